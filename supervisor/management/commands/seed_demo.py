"""`manage.py seed_demo`: real jobs, run by the real workers: a trip for every ending, a report, and a waiting roll-out.

The simulators are told which fault a trip is to meet. Their faults belong to a service, not to a trip, so the trips go
one after another, each until it has ended; then the faults that were set before are set again.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import httpx2
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from workflows import Retry, Workflow, scheduler, verbs
from workflows.catalog import FleetRollout, NightlyReport, TripBooking
from workflows.exceptions import WrongState
from workflows.models import Job
from workflows.plans.plan import Plan
from workflows.states import StepKind, StepState

PATIENCE = 120.0  # seconds for one trip to end
LOOK_EVERY = 0.2
OPERATOR = "operator:operator"

Faults = Mapping[str, Mapping[str, Any]]


def plan_that_gives_up_soon() -> Plan:
    """The trip, with two attempts for an undo where the shipped one has ten: nobody waits minutes for a demo."""
    soon = Retry(attempts=2, first=timedelta(seconds=1))
    plan = TripBooking.plan
    return replace(plan, steps=tuple(replace(step, undo_retry=soon) for step in plan.steps))


def cancel_during_the_hotel(job: Job) -> None:
    """What an operator's click does, while the hotel is being asked."""
    wait_until(lambda: job.steps.filter(name="hotel", state=StepState.RUNNING).exists() or has_ended(job), "its hotel")
    try:
        verbs.cancel(job.pk, undo=True, actor=OPERATOR, reason="The traveller has fallen ill.")
    except WrongState:
        return  # it had ended before: nothing to cancel


@dataclass(frozen=True, kw_only=True)
class Story:
    """One trip of the demo, and the faults that it meets: {service: faults}."""

    key: str
    traveller: str
    faults: Faults
    plan: Callable[[], Plan] = lambda: TripBooking.plan
    meanwhile: Callable[[Job], None] = lambda job: None


STORIES = (
    Story(key="demo-completed", traveller="Ada Okafor", faults={}),
    Story(
        key="demo-sold-out",
        traveller="Bruno Silva",
        faults={"cars": {"sold_out": True, "times": 1, "operations": ["reserve"]}},
    ),
    Story(
        key="demo-cancelled",
        traveller="Chiara Rossi",
        faults={"hotels": {"latency_ms": 3000, "times": 1, "operations": ["reserve"]}},
        meanwhile=cancel_during_the_hotel,
    ),
    Story(
        key="demo-undo-fails",
        traveller="Dmitri Ivanov",
        faults={
            "cars": {"sold_out": True, "times": 1, "operations": ["reserve"]},
            "hotels": {"down": True, "operations": ["cancel"]},
        },
        plan=plan_that_gives_up_soon,
    ),
    Story(
        key="demo-lost-answer",
        traveller="Emi Tanaka",
        faults={"hotels": {"lose_answer_rate": 1, "latency_ms": 1200, "times": 4, "operations": ["reserve", "find"]}},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Routine:
    """A job of another workflow, which meets no faults."""

    key: str
    workflow: type[Workflow]
    input: Callable[[], dict[str, Any]]


ROUTINES = (
    Routine(key="demo-report", workflow=NightlyReport, input=lambda: {"day": datetime.now(UTC).date().isoformat()}),
    Routine(
        key="demo-rollout",
        workflow=FleetRollout,
        input=lambda: {"release": "2.1.0", "hosts": [f"h{n:03}" for n in range(1, 31)], "soak_seconds": 1},
    ),
)


class Command(BaseCommand):
    help = (
        "Start a trip of every ending, a report on them, and a roll-out that waits. Jobs that are there already stay."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        signal.signal(signal.SIGTERM, _leave)
        with httpx2.Client(base_url=settings.SIMULATORS_URL, timeout=5, trust_env=False) as simulators:
            for story in STORIES:
                job = self.tell(simulators, story)
                self.stdout.write(f"{story.key}: {job.state}")
        for routine in ROUTINES:
            job = self.begin(routine)
            self.stdout.write(f"{routine.key}: {job.state}")

    def tell(self, simulators: httpx2.Client, story: Story) -> Job:
        """The story's job, once it has ended."""
        job = Job.objects.filter(client=None, workflow=TripBooking.name, key=story.key).first()
        if job is not None and job.is_terminal:
            return job
        with faults_of(simulators, story.faults):
            plan, trip = story.plan(), TripBooking.validate(trip_of(story))
            job = scheduler.open_job(plan=plan, input=trip, key=story.key, actor="demo")
            story.meanwhile(job)
            wait_until(lambda: has_ended(job), story.key)
        job.refresh_from_db()
        return job

    def begin(self, routine: Routine) -> Job:
        """The routine's job, once it has ended or waits for a person."""
        job = Job.objects.filter(client=None, workflow=routine.workflow.name, key=routine.key).first()
        if job is None:
            job = routine.workflow.start(routine.input(), key=routine.key, actor="demo")
        wait_until(lambda: has_ended(job) or waits_for_a_person(job), routine.key)
        job.refresh_from_db()
        return job


@contextmanager
def faults_of(simulators: httpx2.Client, faults: Faults) -> Iterator[None]:
    """Set these faults, and set again what was there when the block ends, however it ends."""
    before = wait_until(lambda: _asked(simulators, "GET", "/faults"), "the simulators")
    try:
        for service, wanted in faults.items():
            _asked(simulators, "PUT", f"/faults/{service}", wanted)
        yield
    finally:
        for service in faults:
            _asked(simulators, "PUT", f"/faults/{service}", before[service])


def _asked(simulators: httpx2.Client, method: str, path: str, content: Any = None) -> Any:
    """The simulators' answer; None when they cannot be reached."""
    try:
        answer = simulators.request(method, path, json=content)
    except httpx2.TransportError:
        return None
    return answer.raise_for_status().json()


def has_ended(job: Job) -> bool:
    return Job.objects.filter(pk=job.pk).exclude(finished_at=None).exists()


def waits_for_a_person(job: Job) -> bool:
    return job.steps.filter(kind=StepKind.SIGNAL, state=StepState.RUNNING).exists()


def wait_until(question: Callable[[], Any], what: str) -> Any:
    """The first truthy answer; CommandError when none comes in time."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise CommandError(f"Waited {PATIENCE:.0f} s for {what} in vain; `manage.py seed_demo` may be run again.")
        time.sleep(LOOK_EVERY)
    return answer


def trip_of(story: Story) -> dict[str, Any]:
    name = story.traveller
    return {
        "traveller": {"name": name, "email": f"{name.split()[0].lower()}@example.com"},
        "flight": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 1},
        "hotel": {"city": "Lisbon", "check_in": "2027-03-04", "check_out": "2027-03-07", "guests": 1},
        "car": {"city": "Lisbon", "pick_up": "2027-03-04", "drop_off": "2027-03-07", "class": "compact"},
    }


def _leave(number: int, frame: FrameType | None) -> None:
    """Told to stop: leave through the `finally`s, which put the faults back."""
    sys.exit(128 + number)
