"""The watch in a worker's main process: it tells of its worker's start and end, and ends a worker that is deaf, or asked to.

A worker may lose its consumer and live on: connected, answering pings, and never taking a message again. So it is not
asked: what counts is that doorbells lie in its queue, or are rung for its sake, that a process of its pool is free, and
that none of them answers.
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
DEAF_AFTER = 6  # looks in a row, or polls; not a time, since a machine that slept has missed nothing
_EXIT_CODE = 1  # a failure, or its keeper might take it for a wish to stop


class Ears:
    """Whether this worker lets doorbells lie, or others answer each that asks after it. `is_busy`: no process is free."""

    def __init__(self, queues: list[str], is_busy: Callable[[], bool]) -> None:
        self._queues = queues
        self._is_busy = is_busy
        self._last_answer = presence.last_answer()
        self._unheard = 0
        self._polls_before: int | None = None  # when it fell silent

    def are_deaf(self) -> bool:
        """One look."""
        answer = presence.last_answer()
        if answer != self._last_answer or self._is_busy():
            self._last_answer, self._unheard, self._polls_before = answer, 0, None
            return False
        self._unheard = self._unheard + 1 if self._somebody_rings() else 0
        return self._unheard >= DEAF_AFTER or self._unheard_polls() >= DEAF_AFTER

    def _somebody_rings(self) -> bool:
        try:
            return any(broker.depth(queue) for queue in self._queues)
        except Exception as error:  # a transport's own: of a broker that is away nobody is to be heard
            logger.info("the broker does not say how many doorbells wait: %s", error)
            return False

    def _unheard_polls(self) -> int:
        try:
            polls = presence.polls()
        except Error as error:
            logger.info("the database does not say how often this worker was asked after: %s", error)
            return 0
        if self._polls_before is None:
            self._polls_before = polls
        return polls - self._polls_before


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
    """Connections are closed after each use: children that are forked meanwhile must not share them."""
    _tell("seen_at")
    while not draining.wait(LOOK_EVERY):
        try:
            if ears.are_deaf():
                logger.error(
                    "doorbells ring in %s, and this worker hears none although it is not busy: it ends itself, to be "
                    "started again",
                    ", ".join(presence.queues()),
                )
                _end_worker()
            elif somebody := presence.is_asked_to_drain():
                logger.warning("%s wants this worker to end: it does so, to be started again", somebody)
                _end_worker()
        except Exception:  # the watch must outlive any fault of its own
            logger.exception("the watch of this worker met a fault, and goes on")
        finally:
            connections.close_all()
    _tell("draining_at")


def _tell(*changed: str) -> None:
    try:
        presence.tell(*changed)
    except Error as error:
        logger.warning("the database did not take what this worker tells of itself: %s", error)
    finally:
        connections.close_all()


def _end_worker() -> None:
    """As after SIGTERM: calls that run may end. A main process that does not even hear this is killed after them."""
    draining.begin()
    _tell("draining_at")
    setattr(state, "should_stop", _EXIT_CODE)  # noqa: B010  (its stubs say None)
    asked_at = time.monotonic()
    while time.monotonic() - max(asked_at, presence.last_beat()) < 2 * conf.lease:
        time.sleep(1.0)
    logger.error("this worker does not end either: it is killed")
    os.kill(os.getpid(), signal.SIGKILL)
