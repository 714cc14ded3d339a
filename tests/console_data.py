"""Jobs in every situation that the console shows, made by the engine's own verbs, and people to look at them."""

import json
import uuid
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import transaction

from supervisor import sweep
from supervisor.models import Sweep, Term
from workflows import Workflow, child, given, item, reports, scheduler, signal, timer, transitions, verbs
from workflows import step as step_
from workflows.catalog.trip import TripBooking
from workflows.clock import now
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
    """The step at this address, of its latest generation."""
    return verbs.step_at(job, name)


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
    reports.settle(
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
    reports.fail(run(job, name), failure, sent=json.dumps({"asked": name}))


def swept(job: Job, said: str, *, observed: bool = True) -> None:
    """A sweep that decided on a step of this job, and whose turn it was."""
    present = now()
    told = {"job": str(job.pk), "step": "car", "found": said, "remedy": "retry", "reason": said, "acted": not observed}
    Sweep.objects.create(
        by=f"{said[:60]}:1:mark",
        started_at=present,
        finished_at=present,
        observed=observed,
        looked_at=3,
        found=1,
        remedied=int(not observed),
        counts={"retry": 1},
        decisions=[told],
    )
    turn = {"holder": f"{said[:60]}:1:mark", "term": 1, "begun_at": present, "until": present, "done_at": present}
    Term.objects.update_or_create(duty="sweep", defaults=turn)


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


# --- jobs with every kind of step ------------------------------------------------------------------------------------


class Showcase(Workflow):
    """One of each kind of step, for the eyes."""

    flight = step_("flight.reserve", compensation="flight.cancel")
    hotel = step_(
        "hotel.reserve", compensation="hotel.cancel", otherwise=step_("inn.reserve", compensation="inn.cancel")
    )
    car = step_("car.reserve", when=given["has_car"])
    cooling = timer(3600)
    news = signal()
    approval = signal(approval=True, approvers=["group:operators", "grace"], timeout=timedelta(hours=24))
    trip = child(TripBooking, input=given["trip"])
    charge = step_("bank.charge", compensation=False, pivot=True, after=[approval])


class Rollout(Workflow):
    """A list of hosts, three at once, of which two may fail."""

    deploy = step_("host.deploy", compensation="host.rollback", each=given["hosts"], input={"host": item}, tolerate=2)
    report = step_("report.publish", compensation=False, after=[deploy])


class Chain(Workflow):
    """Three steps one behind the other; the last cannot be undone, and nobody said so."""

    one = step_("shop.one", compensation="shop.undo_one")
    two = step_("shop.two", compensation="shop.undo_two", after=[one])
    three = step_("shop.three", after=[two])


def showcase(**changes: Any) -> Job:
    """A job that waits for a time, two signals and a child; its car is not wanted."""
    given_input = {"has_car": False, "trip": TRIP} | changes
    return scheduler.open_job(plan=Showcase.plan, input=given_input, key=None)


def rollout(hosts: int = 3) -> Job:
    """A fan-out whose items may start."""
    job = scheduler.open_job(plan=Rollout.plan, input={"hosts": [f"h{n:03}" for n in range(hosts)]})
    scheduler.attend_to_all(job.pk)
    return job


def chain(*done: str) -> Job:
    """A chain of which these steps are done."""
    job = scheduler.open_job(plan=Chain.plan, input={})
    for name in done:
        complete(job, name)
    job.refresh_from_db()
    return job


def lost(job: Job, name: str) -> None:
    """A worker takes the step, and is never heard of again."""
    run(job, name)
    with transaction.atomic():
        found = transitions.lock(job.pk)
        assert found
        transitions.expire(found, step(job, name))


def attend(job: Job) -> None:
    """The scheduler looks at what waits for it."""
    scheduler.attend_to_all(job.pk)
