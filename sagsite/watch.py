"""The watch of the supervisor, in every worker: where no sweep has run for long, the worker does the supervisor's rounds.

So a dead beat or supervisor costs time and no work. Here, since the agents' package must not know the supervisor's.
"""

import logging
import threading
import time
from datetime import datetime, timedelta
from typing import Any

from celery.signals import worker_ready
from django.db import Error, connection, connections

logger = logging.getLogger(__name__)

SWEEPS_MISSED = 10


class Deputy:
    """Does the supervisor's rounds from when they were missed until somebody else does them again."""

    def __init__(self) -> None:
        self._last: int | None = None  # the sweep that we did last, while we stand in
        self._since: datetime | None = None  # our first look: a system that starts has had no sweep for long

    @property
    def stands_in(self) -> bool:
        return self._last is not None

    def look(self) -> bool:
        """One look, and a round where it is needed and no other worker does it at this moment. Whether there was one."""
        if not self._is_needed() or not _lock():
            return False
        try:
            if not self._is_needed():
                return False
            self._do_round()
        finally:
            _unlock()
        return True

    def _is_needed(self) -> bool:
        from supervisor.models import Sweep
        from workflows.clock import now
        from workflows.conf import conf

        last = Sweep.objects.order_by("-finished_at").only("pk", "finished_at").first()
        if last is not None and last.pk == self._last:
            return True
        if self.stands_in:
            logger.warning("the supervisor's rounds are done again; this worker goes back to its own work")
            self._last = None
        present = now()
        self._since = self._since or present
        missed = present - max(self._since, last.finished_at if last and last.finished_at else self._since)
        if missed <= timedelta(seconds=SWEEPS_MISSED * conf.sweep):
            return False
        logger.error(
            "no sweep has run for %.0f s: beat or the supervisor is gone; this worker does their rounds meanwhile",
            missed.total_seconds(),
        )
        return True

    def _do_round(self) -> None:
        from supervisor import sweep, tasks

        self._last = sweep.sweep().pk
        for duty in (tasks.ring_due, tasks.open_due):
            try:
                duty()
            except Exception:  # one that fails must not keep the others from their turn
                logger.exception("a part of the supervisor's round failed")


@worker_ready.connect
def begin(**_: Any) -> None:
    threading.Thread(target=_watch, name="sag-deputy", daemon=True).start()


def _watch() -> None:
    from workflows.conf import conf

    deputy = Deputy()
    while True:
        time.sleep(conf.sweep)
        try:
            deputy.look()
        except Error as error:
            logger.warning("the watch of the supervisor had no answer from the database: %s", error)
        except Exception:  # this watch must outlive any fault of its own
            logger.exception("the watch of the supervisor met a fault, and goes on")
        finally:
            connections.close_all()  # children forked from now on must not share this process's connection


def _lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtext('sag supervisor rounds'))")
        return bool(cursor.fetchone()[0])


def _unlock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(hashtext('sag supervisor rounds'))")
