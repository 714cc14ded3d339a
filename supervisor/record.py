"""What one sweep looked at, found and decided, as its row tells it: all of it counted, the first of it in words."""

import logging
import uuid
from dataclasses import dataclass

from django.db import Error, connection

from supervisor.models import Sweep

logger = logging.getLogger(__name__)

_KEPT = 50
_KEPT_OF_A_KIND = 5
_KEPT_PROBLEMS = 20
_LONGEST_TEXT = 300


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was found of a job or a step, and what is to become of it, with the reason in words."""

    job: uuid.UUID
    step: str = ""
    found: str
    remedy: str
    reason: str


class Record:
    """The row of a sweep that is under way. It stays small however much there is to tell."""

    def __init__(self, row: Sweep) -> None:
        self.row = row

    def looked_at(self, number: int) -> None:
        self.row.looked_at += number

    def found(self) -> None:
        """One of the rows that were looked at wants something done."""
        self.row.found += 1

    def decided(self, decision: Decision) -> None:
        """Counted; and told where not many were told before it, or none of its kind."""
        row, kind = self.row, decision.remedy
        row.counts[kind] = row.counts.get(kind, 0) + 1
        if len(row.decisions) < _KEPT or row.counts[kind] <= _KEPT_OF_A_KIND:
            told = {
                "job": str(decision.job),
                "step": decision.step or None,
                "found": decision.found[:_LONGEST_TEXT],
                "remedy": kind,
                "reason": decision.reason[:_LONGEST_TEXT],
                "acted": not row.observed,
            }
            row.decisions.append(told)

    def failed(self, what: str, error: Exception) -> None:
        """A row that could not be handled."""
        self.row.failed += 1
        if len(self.row.problems) < _KEPT_PROBLEMS:
            self.row.problems.append(f"{what}: {type(error).__name__}: {error}")
        pass_over(what, error)


def pass_over(what: str, error: Exception) -> None:
    """Tell the log of it. What comes next may need another connection."""
    logger.error("the supervisor could not handle %s", what, exc_info=error)
    if isinstance(error, Error):
        connection.close_if_unusable_or_obsolete()
