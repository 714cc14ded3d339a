"""Celery's way to the supervisor: beat drives the sweep and the rings, a failure asks for its remedy at once."""

from celery import shared_task
from django.db import close_old_connections

from supervisor import sweep as supervision
from workflows import broker

SWEEP = "supervisor.tasks.sweep"
RING_DUE = "supervisor.tasks.ring_due"


@shared_task(name=SWEEP, ignore_result=True)
def sweep() -> None:
    close_old_connections()
    supervision.sweep()


@shared_task(name=RING_DUE, ignore_result=True)
def ring_due() -> None:
    close_old_connections()
    supervision.ring_due()


@shared_task(name=broker.DECIDE, ignore_result=True)
def decide(step_id: int) -> None:
    close_old_connections()
    supervision.decide(step_id)
