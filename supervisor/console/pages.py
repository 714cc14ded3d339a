"""The job list, a page at a time. By keyset: page 2,000 of 100,000 jobs costs what the first one does."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch, Q
from django.http import QueryDict

from workflows.models import Job, Step
from workflows.querysets import JobQuerySet
from workflows.states import Role

SIZE = 50

# What a row of the list shows of a step. Inputs and results stay where they are: they may be large.
_SHOWN = ("id", "job_id", "seq", "name", "role", "undoes_id", "state", "attempt", "waiting_for", "held", "run_after",
          "error_kind", "error_code", "error_message", "remedy", "started_at", "finished_at")  # fmt: skip


@dataclass(frozen=True)
class Cursor:
    """A place in the list, newest first."""

    created_at: datetime
    id: uuid.UUID

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        moment, _, id = text.partition("~")
        try:
            return cls(datetime.fromisoformat(moment), uuid.UUID(id))
        except ValueError:
            return None

    @classmethod
    def of(cls, job: Job) -> Cursor:
        return cls(job.created_at, job.pk)

    def __str__(self) -> str:
        return f"{self.created_at.isoformat()}~{self.id}"

    @property
    def older(self) -> Q:
        # The first condition alone says nothing new, but it lets the index begin here.
        return Q(created_at__lte=self.created_at) & (Q(created_at__lt=self.created_at) | Q(id__lt=self.id))

    @property
    def newer(self) -> Q:
        return Q(created_at__gte=self.created_at) & (Q(created_at__gt=self.created_at) | Q(id__gt=self.id))


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some jobs, newest first, with the cursors of the pages on either side, where there are any."""

    jobs: Sequence[Job]
    newer: Cursor | None = None
    older: Cursor | None = None


def page(jobs: JobQuerySet, query: QueryDict) -> Page:
    """The page that `?after=` or `?before=` names; the newest one where neither is there, or neither can be read."""
    after = Cursor.parse(query.get("after", ""))
    before = Cursor.parse(query.get("before", ""))
    rows = with_steps(jobs)
    if before and not after:
        found = list(rows.filter(before.newer).order_by("created_at", "id")[: SIZE + 1])
        shown = found[:SIZE][::-1]
        if len(shown) < SIZE:  # the top of the list: show a full page of it
            return page(jobs, QueryDict())
        return Page(jobs=shown, newer=Cursor.of(shown[0]) if len(found) > SIZE else None, older=Cursor.of(shown[-1]))
    found = list((rows.filter(after.older) if after else rows).newest_first()[: SIZE + 1])
    shown = found[:SIZE]
    return Page(
        jobs=shown,
        newer=Cursor.of(shown[0]) if after and shown else None,
        older=Cursor.of(shown[-1]) if len(found) > SIZE else None,
    )


def with_steps(jobs: JobQuerySet) -> JobQuerySet:
    """Jobs with what their row in a list shows."""
    # Not the rechecks of items either, of which there may be as many as there are items.
    steps = Step.objects.of_plan().exclude(role=Role.RECHECK, undoes__index__isnull=False).only(*_SHOWN).order_by("seq")
    return jobs.defer("plan", "input").prefetch_related(Prefetch("steps", steps))
