"""Asking idle workers whether they are there: a doorbell without a step, which whoever hears it answers by a look round."""

from datetime import timedelta

from workflows import broker, transitions
from workflows.clock import now

UNSEEN_FOR = timedelta(seconds=10)
KEEP = timedelta(days=1)


def hold() -> int:
    """Ring for each worker that was not seen lately, unless its queue is full of doorbells already. How many were rung."""
    return sum(broker.ring(queue) for queue in transitions.note_polls(UNSEEN_FOR))


def forget() -> None:
    """Workers that were not seen for long."""
    transitions.forget_workers(now() - KEEP)
