"""Celery's way to the supervisor: beat drives the sweep and the rings, a failure asks for its remedy at once.

Where the database does not answer, a line says so and nothing is lost: beat asks again in a moment, and whatever a doorbell
was rung for is found in the store.
"""

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from celery import shared_task
from django.db import InterfaceError, OperationalError, close_old_connections

from supervisor import cancellations, escalation, leadership, needs, retention, roll_call, storms
from supervisor import sweep as supervision
from supervisor.leadership import Duty, Turn
from workflows import broker, errands, history, scheduler, schedules, ticks
from workflows.conf import conf

logger = logging.getLogger(__name__)

SWEEP = "supervisor.tasks.sweep"
PRUNE = "supervisor.tasks.prune"
RING_DUE = "supervisor.tasks.ring_due"
OPEN_DUE = "supervisor.tasks.open_due"
NOTE_NEEDS = "supervisor.tasks.note_needs"
TELL_PEOPLE = "supervisor.tasks.tell_people"


@contextmanager
def _database() -> Iterator[None]:
    close_old_connections()
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        logger.warning("this time the database did not answer: %s", " ".join(str(error).split()))
        close_old_connections()


def _take_turn(duty: Duty, act: Callable[[Turn], object]) -> None:
    with _database():
        leadership.do(duty, act)


# --- duties, each done by one process at a time ----------------------------------------------------------------------


@shared_task(name=SWEEP, ignore_result=True)
def sweep() -> None:
    _take_turn(Duty.SWEEP, lambda turn: supervision.sweep(is_ours=turn.goes_on))


@shared_task(name=RING_DUE, ignore_result=True)
def ring_due() -> None:
    _take_turn(Duty.RINGS, _ring_due)


def _ring_due(_: Turn) -> None:
    supervision.wake_due()
    storms.tend()
    supervision.ring_due()
    roll_call.hold()
    cancellations.work_off_aside()


@shared_task(name=PRUNE, ignore_result=True)
def prune() -> None:
    _take_turn(Duty.PRUNE, _prune)


def _prune(_: Turn) -> None:
    history.make_ahead()
    if not conf.observe_only:
        retention.prune()
    roll_call.forget()
    cancellations.forget_old()
    needs.forget()
    escalation.forget()


@shared_task(name=NOTE_NEEDS, ignore_result=True)
def note_needs() -> None:
    _take_turn(Duty.NEEDS, lambda _: needs.note_needs())


@shared_task(name=TELL_PEOPLE, ignore_result=True)
def tell_people() -> None:
    _take_turn(Duty.TELL, lambda _: escalation.tell_aside())


@shared_task(name=OPEN_DUE, ignore_result=True)
def open_due() -> None:
    _take_turn(Duty.TICKS, _open_due)


def _open_due(_: Turn) -> None:
    register_declared()
    ticks.open_due()


@cache
def register_declared() -> None:
    """Once for each process, since it is the process's own code that declares. One that failed is tried again."""
    schedules.register_declared()


# --- doorbells -------------------------------------------------------------------------------------------------------


@shared_task(name=broker.DECIDE, ignore_result=True)
def decide(step_id: int) -> None:
    with _database():
        if not conf.observe_only:
            supervision.decide(step_id)


@shared_task(name=broker.ATTEND, ignore_result=True)
def attend(job_id: str) -> None:
    with _database():
        scheduler.attend_to_all(uuid.UUID(job_id))


@shared_task(name=broker.WAKE, ignore_result=True)
def wake(step_id: int) -> None:
    with _database():
        errands.wake(step_id)


@shared_task(name=broker.TELL_PARENT, ignore_result=True)
def tell_parent(job_id: str) -> None:
    with _database():
        errands.tell_parent(uuid.UUID(job_id))
