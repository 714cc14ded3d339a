"""Is it healthy? The supervisor's last sweep, the oldest work that nobody takes, and how many jobs stand where."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from supervisor import health
from supervisor.console.filters import NEEDS_PERSON, WORDS, jobs_in
from supervisor.health import WAITS_TOO_LONG
from workflows import standing
from workflows.models import Tick
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
    """`swept_at`: when the last sweep ended; `silent`: that was too long ago, and nobody is at it.

    `ticked_at`: when a due time of a schedule was last decided on; `ticks_silent`: nobody looks for them.
    `waiting_since`: how long the oldest ready step has been waiting.
    """

    now: datetime
    swept_at: datetime | None
    silent: bool
    ticks_silent: bool
    waiting_since: datetime | None
    ticked_at: datetime | None
    counts: dict[str, Count]

    @property
    def troubles(self) -> list[str]:
        """What is wrong with the machinery itself, in sentences."""
        found = []
        if self.swept_at is None:
            found.append("The supervisor has not swept yet: nothing that got stuck would be found.")
        elif self.silent:
            found.append(
                "The supervisor is silent: what gets stuck now is not found. See that supervisor and beat run."
            )
        if self.ticks_silent and not self.silent:
            found.append("Nobody looks for due times of schedules: none is opened now. See that beat runs.")
        if self.waiting_since is not None and self.now - self.waiting_since > WAITS_TOO_LONG:
            found.append("Ready steps are waiting and no worker takes them. See that the agents run.")
        return found


def take(now: datetime) -> Pulse:
    supervisor = health.look(now)
    return Pulse(
        now=now,
        swept_at=supervisor.swept_at,
        silent=bool(supervisor.sweeps_missed),
        ticks_silent=bool(supervisor.ticks_missed),
        waiting_since=min(standing.oldest_ready().values(), default=None),
        ticked_at=_last_tick(),
        counts=state_counts(),
    )


def state_counts() -> dict[str, Count]:
    """{state or word: how many jobs}, in the order that they are shown."""
    return {word: Count.of(jobs_in(word)) for word in WORDS}


def needy() -> Count:
    """How many jobs need a person."""
    return Count.of(jobs_in(NEEDS_PERSON))


def _last_tick() -> datetime | None:
    last: datetime | None = Tick.objects.order_by("-pk").values_list("decided_at", flat=True).first()
    return last
