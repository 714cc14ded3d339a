"""How much trouble is an outage, and how many retries are too many: decided on counts, and on nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

OK = "ok"
RETRY = "retry"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The calls of one agent in the last `window`: how many by word, and how many different steps failed by it."""

    window: timedelta
    calls: Mapping[str, int]
    steps: Mapping[str, int]

    @property
    def ok(self) -> int:
        return self.calls.get(OK, 0)

    @property
    def retries(self) -> int:
        return self.calls.get(RETRY, 0)

    @property
    def failed(self) -> int:
        return sum(count for word, count in self.calls.items() if word not in (OK, RETRY))


@dataclass(frozen=True, kw_only=True)
class Outage:
    """One class of failure that stands for the service being away, and what was counted."""

    cause: str
    failures: int
    calls: int
    steps: int


def outage(counts: Counts, *, steps: int, share: float) -> Outage | None:
    """The most frequent class of failure, if so many different steps met it, and so large a share of all calls."""
    failures = {word: count for word, count in counts.calls.items() if word not in (OK, RETRY)}
    if not failures:
        return None
    cause = max(failures, key=lambda word: (failures[word], word))
    calls = counts.ok + counts.failed
    if counts.steps.get(cause, 0) < steps or failures[cause] < share * calls:
        return None
    return Outage(cause=cause, failures=failures[cause], calls=calls, steps=counts.steps[cause])


def retry_is_within_budget(counts: Counts, *, share: float, least: int) -> bool:
    """Whether another retry leaves the retries at most `share` of the recent calls; `least` are always allowed."""
    return counts.retries < max(least, share * (counts.ok + counts.failed))
