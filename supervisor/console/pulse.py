"""Is it healthy? The supervisor's last sweep, the oldest work that nobody takes, and how many jobs stand where."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Min

from supervisor.console.filters import NEEDS_PERSON, WORDS, jobs_in
from supervisor.health import WAITS_TOO_LONG, is_silent, swept_at
from workflows.models import Step, Tick
from workflows.querysets import JobQuerySet

COUNTED = 1000


@dataclass(frozen=True)
class Count:
    """A number of rows, counted as far as `COUNTED`: to count a big table whole takes longer than anybody waits."""

    number: int

    @classmethod
    def of(cls, jobs: JobQuerySet) -> Count:
        return cls(jobs.order_by().values("pk")[: COUNTED + 1].count())

    def __str__(self) -> str:
        return f"{COUNTED:,}+" if self.number > COUNTED else f"{self.number:,}"

    def __bool__(self) -> bool:
        return self.number > 0


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """`swept_at`: when the last sweep ended. `waiting_since`: how long the oldest ready step has been waiting.

    `ticked_at`: when a due time of a schedule was last decided on.
    """

    now: datetime
    swept_at: datetime | None
    waiting_since: datetime | None
    ticked_at: datetime | None
    counts: dict[str, Count]

    @property
    def troubles(self) -> list[str]:
        """What is wrong with the machinery itself, in sentences."""
        found = []
        if self.swept_at is None:
            found.append("The supervisor has not swept yet: nothing that got stuck would be found.")
        elif is_silent(self.swept_at, self.now):
            found.append(
                "The supervisor is silent: what gets stuck now is not found. See that supervisor and beat run."
            )
        if self.waiting_since is not None and self.now - self.waiting_since > WAITS_TOO_LONG:
            found.append("Ready steps are waiting and no worker takes them. See that the agents run.")
        return found


def take(now: datetime) -> Pulse:
    return Pulse(
        now=now, swept_at=swept_at(), waiting_since=_oldest_ready(), ticked_at=_last_tick(), counts=state_counts()
    )


def state_counts() -> dict[str, Count]:
    """{state or word: how many jobs}, in the order that they are shown."""
    return {word: Count.of(jobs_in(word)) for word in WORDS}


def needy() -> Count:
    """How many jobs need a person."""
    return Count.of(jobs_in(NEEDS_PERSON))


def _oldest_ready() -> datetime | None:
    oldest: datetime | None = Step.objects.ready().aggregate(oldest=Min("run_after"))["oldest"]
    return oldest


def _last_tick() -> datetime | None:
    last: datetime | None = Tick.objects.order_by("-pk").values_list("decided_at", flat=True).first()
    return last
