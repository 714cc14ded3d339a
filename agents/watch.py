"""The watch in a worker's main process: it tells of its worker's start and end, and ends a worker that has become deaf.

A worker may lose its consumer and live on: connected, answering pings, and never taking a message again. So it is not
asked: what counts is that doorbells lie in its queue, that a process of its pool is free, and that none answers.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from celery.signals import worker_ready, worker_shutdown
from celery.worker import state
from celery.worker.consumer import Consumer
from django.db import Error, connections

from agents import draining, presence
from workflows import broker
from workflows.conf import conf

logger = logging.getLogger(__name__)

LOOK_EVERY = 5.0
DEAF_AFTER = 6  # looks in a row; not a time, since a machine that slept has missed nothing
_EXIT_CODE = 1  # a failure, or its keeper might take it for a wish to stop


class Ears:
    """Whether doorbells lie in the queues of this worker and it does not hear them. `is_busy`: no process is free."""

    def __init__(self, queues: list[str], is_busy: Callable[[], bool]) -> None:
        self._queues = queues
        self._is_busy = is_busy
        self._last_answer = presence.last_answer()
        self._missed = 0

    def are_deaf(self) -> bool:
        """One look."""
        answer = presence.last_answer()
        hears = answer != self._last_answer or self._is_busy() or not self._somebody_rings()
        self._last_answer = answer
        self._missed = 0 if hears else self._missed + 1
        return self._missed >= DEAF_AFTER

    def _somebody_rings(self) -> bool:
        try:
            return any(broker.depth(queue) for queue in self._queues)
        except Exception as error:  # a transport's own: of a broker that is away nobody is to be heard
            logger.info("the broker does not say how many doorbells wait: %s", error)
            return False


@worker_ready.connect
def begin(sender: Consumer, **_: object) -> None:
    if presence.queues():
        pool: Any = sender.pool
        ears = Ears(presence.queues(), lambda: len(state.active_requests) >= pool.num_processes)
        threading.Thread(target=_watch, args=[ears], name="sag-watch", daemon=True).start()


@worker_shutdown.connect
def end(**_: object) -> None:
    """The pool has ended, and nothing runs any more."""
    if presence.queues():
        _tell("draining_at", "stopped_at")


def _watch(ears: Ears) -> None:
    _tell("seen_at")
    while not draining.wait(LOOK_EVERY):
        try:
            if ears.are_deaf():
                _end_worker()
        except Exception:  # the watch must outlive any fault of its own
            logger.exception("the watch of this worker met a fault, and goes on")
    _tell("draining_at")


def _tell(*changed: str) -> None:
    try:
        presence.tell(*changed)
    except Error as error:
        logger.warning("the database did not take what this worker tells of itself: %s", error)
    finally:
        connections.close_all()  # children forked from now on must not share this process's connection


def _end_worker() -> None:
    """As after SIGTERM: calls that run may end. A main process that does not even hear this is killed after them."""
    logger.error(
        "doorbells have waited for %.0f s in %s, and this worker hears none although it is not busy: it ends itself, to be "
        "started again",
        DEAF_AFTER * LOOK_EVERY,
        ", ".join(presence.queues()),
    )
    draining.begin()
    setattr(state, "should_stop", _EXIT_CODE)  # noqa: B010  (its stubs say None)
    asked_at = time.monotonic()
    while time.monotonic() - max(asked_at, presence.last_beat()) < 2 * conf.lease:
        time.sleep(1.0)
    logger.error("this worker does not end either: it is killed")
    os.kill(os.getpid(), signal.SIGKILL)
