"""Schedules played against the test's clock: no supervisor runs, a test says when somebody looks."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.engine import Engine
from workflows import Retry, Workflow, schedules, step, ticks
from workflows.clock import now
from workflows.models import Job, Schedule, Tick
from workflows.timing.policy import POLICY_FIELDS, Policy
from workflows.timing.timetable import Timetable, as_tuple

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MORNING = datetime(2027, 3, 4, 10, 0, tzinfo=UTC)
EACH_MINUTE = "* * * * *"


class Chore(Workflow):
    """What schedules start in these tests."""

    a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=1))


class Diary:
    """The tests' way to schedules: makes them, moves the clock, looks, and asks what became of due times."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def at(self, moment: datetime) -> None:
        """Set the clock."""
        self.engine.ahead((moment - now()).total_seconds())

    def make(self, cron: Any = None, *, workflow: str = "Chore", input: Any = None, **options: Any) -> Schedule:
        policy = {name: options.pop(name) for name in POLICY_FIELDS if name in options}
        paused = options.pop("paused", False)
        timetable = Timetable(cron=as_tuple(cron), **options)
        return schedules.create(
            workflow=workflow,
            input=input,
            timetable=timetable,
            policy=Policy(**policy),
            paused=paused,
            client_id=None,
            actor="tester",
        )

    def look(self) -> int:
        """As the supervisor does each second; then the workers do what is to be done."""
        decided = ticks.open_due()
        self.engine.drain()
        return decided

    def look_each(self, step: timedelta, until: datetime) -> None:
        while (present := now()) < until:
            self.at(min(present + step, until))
            self.look()


def outcomes(schedule: Schedule) -> Counter[str]:
    """How many ticks of each kind there are: "started", "skipped window", …"""
    rows = Tick.objects.filter(schedule=schedule)
    return Counter(" ".join(filter(None, [row.outcome, row.reason])) for row in rows)


def started(schedule: Schedule) -> list[datetime]:
    """The nominal times of those that were started, in the order of their jobs."""
    rows = Tick.objects.filter(schedule=schedule, outcome="started").order_by("job_id")
    return list(rows.values_list("due_at", flat=True))


def due_times(schedule: Schedule) -> list[datetime]:
    rows = Tick.objects.filter(schedule=schedule, kind="due").order_by("due_at")
    return list(rows.values_list("due_at", flat=True))


def jobs() -> int:
    return Job.objects.filter(workflow="Chore").count()
