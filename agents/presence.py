"""Who this worker is, and when it was last of use: told in a row of the store, for those who have to know who is there.

A worker is the process that Celery started, with the children of its pool. It is seen when one of them has answered a
doorbell, be it in vain, or keeps the lease of a call; that its process exists says nothing.
"""

import logging
import mmap
import os
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import cache

from celery import current_app
from celery.signals import worker_init
from django.db import Error, connection

from agents import registry
from workflows import transitions
from workflows.clock import SagNow
from workflows.models import Worker

logger = logging.getLogger(__name__)

TELL_EVERY = 5.0


class _At(IntEnum):
    """Moments of the monotonic clock, which is the same in all processes of a machine."""

    ANSWERED = 0
    BEATEN = 1
    CLAIMED = 2
    TOLD = 3


# Made when the module is imported, before the pool forks: one for the main process and all its children.
_moments = memoryview(mmap.mmap(-1, 8 * len(_At))).cast("d")


@dataclass(kw_only=True)
class _Start:
    """One start of a worker. Children have it from their main process, through the fork; elsewhere it is empty."""

    name: str = ""
    host: str = ""
    pid: int = 0
    mark: str = ""
    began: float = 0.0


_start = _Start()


@worker_init.connect
def begin(**_: object) -> None:
    """This process is a worker's main process, and has no children yet."""
    _start.host, _start.pid, _start.mark = socket.gethostname(), os.getpid(), uuid.uuid4().hex[:8]
    _start.name = f"{_start.host}:{_start.pid}:{_start.mark}"
    _start.began = _moments[_At.ANSWERED] = time.monotonic()
    queues.cache_clear()


def mark() -> str:
    """What the names of this worker's processes have in common, or nothing where there is no worker."""
    return _start.mark


@cache
def queues() -> list[str]:
    """The queues that this worker consumes and some agent of ours has. The supervisor's worker has none."""
    consumed = current_app.amqp.queues.consume_from
    return sorted({agent.queue for agent in registry.all_agents() if agent.queue in consumed})


def note_answer() -> None:
    """A doorbell was answered."""
    _moments[_At.ANSWERED] = time.monotonic()


def note_claim() -> None:
    _moments[_At.CLAIMED] = time.monotonic()


def note_beat() -> None:
    """A call goes on, and its lease is kept."""
    _moments[_At.BEATEN] = time.monotonic()


def last_answer() -> float:
    return _moments[_At.ANSWERED]


def last_beat() -> float:
    return _moments[_At.BEATEN]


def polls() -> int:
    """How often a doorbell was rung to hear whether this worker answers. It may have been another that answered."""
    return Worker.objects.filter(pk=_start.name).values_list("polls", flat=True).first() or 0


def is_asked_to_drain() -> str:
    """Who wants this worker to end, or nothing."""
    asked = Worker.objects.filter(pk=_start.name, drain_asked_at__isnull=False)
    return asked.values_list("drain_asked_by", flat=True).first() or ""


def tell_sometimes() -> None:
    """Say that this worker was seen, at most every few seconds for all of its processes together."""
    moment, told = time.monotonic(), _moments[_At.TOLD]
    if not _start.name or moment - told < TELL_EVERY or not queues():
        return
    _moments[_At.TOLD] = moment
    try:
        tell("seen_at", *(["last_claim_at"] if _moments[_At.CLAIMED] >= told else []))
    except Error as error:  # a worker that cannot say so goes on, and is not seen meanwhile
        logger.warning("the database did not take that this worker was seen: %s", error)
        connection.close()


def tell(*changed: str) -> None:
    """Write this worker's row, or of one that is there the moments that have changed."""
    moment = time.monotonic()
    claimed = _moments[_At.CLAIMED]
    row = Worker(
        name=_start.name,
        host=_start.host,
        pid=_start.pid,
        queues=queues(),
        started_at=SagNow() - timedelta(seconds=moment - _start.began),
        seen_at=SagNow(),
        last_claim_at=SagNow() - timedelta(seconds=moment - claimed) if claimed else None,
        draining_at=SagNow() if "draining_at" in changed else None,
        stopped_at=SagNow() if "stopped_at" in changed else None,
    )
    transitions.note_worker(row, changed)
