"""Jobs in every situation that the console shows, made by the engine's own verbs, and people to look at them."""

import json
import uuid
from typing import Any

from django.contrib.auth.models import Group, User

from supervisor import sweep
from workflows import scheduler, transitions
from workflows.catalog.trip import TripBooking
from workflows.models import Job, Step
from workflows.plans.plan import Plan
from workflows.states import ErrorKind, Role, StepState
from workflows.transitions import Claimed, Failure

TRIP = {
    "traveller": {"name": "Ada Okafor", "email": "ada@example.com"},
    "flight": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 1},
    "hotel": {"city": "Lisbon", "check_in": "2027-03-04", "check_out": "2027-03-07", "guests": 1},
    "car": {"city": "Lisbon", "pick_up": "2027-03-04", "drop_off": "2027-03-07", "class": "compact"},
}
PASSWORD = "a long enough password"


def person(name: str, *, operator: bool = False) -> User:
    user = User.objects.create_user(name, password=PASSWORD)
    if operator:
        user.groups.add(Group.objects.get_or_create(name="operators")[0])
    return user


def trip(key: str | None = None, *, plan: Plan | None = None, **changes: Any) -> Job:
    """A trip whose flight may start."""
    return scheduler.open_job(plan=plan or TripBooking.plan, input=TRIP | changes, key=key)


def step(job: Job, name: str) -> Step:
    return Step.objects.get(job=job, name=name)


def run(job: Job, name: str, *, worker: str = "worker-1") -> Claimed:
    """A worker takes the step."""
    claimed = transitions.claim(step(job, name).pk, token=uuid.uuid4(), worker=worker)
    assert claimed, f"{name} could not be claimed"
    return claimed


def complete(job: Job, name: str, result: Any = None) -> None:
    """A worker takes the step and does it."""
    result = {"reference": f"REF-{name}", "arrives_at": "2027-03-04T11:35:00Z"} if result is None else result
    settle(run(job, name), result)


def settle(claimed: Claimed, result: Any) -> None:
    scheduler.settle(
        claimed,
        result=json.dumps(result),
        sent=json.dumps({"asked": claimed.name}),
        next_token=uuid.uuid4(),
        worker="worker-1",
        hand_over=False,
    )


def fail(job: Job, name: str, message: str = "No cars left.", *, kind: str = ErrorKind.PERMANENT) -> None:
    """A worker takes the step and fails; the supervisor has not looked yet."""
    failure = Failure(kind=kind, code="sold_out", message=message, in_doubt=kind == ErrorKind.IN_DOUBT)
    scheduler.fail(run(job, name), failure, sent=json.dumps({"asked": name}))


def decide(job: Job, name: str) -> None:
    """The supervisor chooses the remedy of a failed step."""
    sweep.decide(step(job, name).pk)


def failed_undo(key: str | None = None, message: str = "The hotel does not know this booking.") -> Job:
    """A trip that ended Failed: no car was left, the flight is undone, the hotel's undo was given up."""
    job = trip(key)
    complete(job, "flight")
    complete(job, "hotel")
    fail(job, "car")
    decide(job, "car")
    fail(job, "hotel.undo", message)
    decide(job, "hotel.undo")
    complete(job, "flight.undo")
    job.refresh_from_db()
    assert job.state == "Failed"
    return job


def compensated(key: str | None = None) -> Job:
    """A trip that was undone."""
    job = trip(key)
    complete(job, "flight")
    fail(job, "hotel", "No room left.")
    decide(job, "hotel")
    complete(job, "flight.undo", {"cancelled": True, "reference": "REF-flight"})
    job.refresh_from_db()
    assert job.state == "Compensated"
    return job


def completed(key: str | None = None) -> Job:
    job = trip(key)
    for name in ("flight", "hotel", "car"):
        complete(job, name)
    job.refresh_from_db()
    assert job.state == "Completed"
    return job


def failing(key: str | None = None) -> Job:
    """A trip whose flight failed once and waits for its second attempt."""
    job = trip(key)
    fail(job, "flight", "Nobody answers.", kind=ErrorKind.TRANSIENT)
    decide(job, "flight")
    assert step(job, "flight").state == StepState.NOT_STARTED
    return job


def undo_names(job: Job) -> list[str]:
    return list(job.steps.exclude(role=Role.FORWARD).order_by("seq").values_list("name", flat=True))
