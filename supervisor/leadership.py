"""Whose turn each duty of the supervisor is: however many supervisors and beats there are, one process at a time does it.

A term saves work and guards nothing. Locks, guards in the updates and unique keys keep each duty correct when two do it at
once, as they may when a process was frozen and thaws. A term is told by its number, not by the name of who holds it; it
is over when its time is, by the database's clock, and then whoever comes first takes the next one.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum

from django.db import Error, connection

from supervisor.models import Term
from workflows.clock import SagNow
from workflows.conf import conf


class Duty(StrEnum):
    SWEEP = "sweep"
    RINGS = "rings"
    TICKS = "ticks"
    NEEDS = "needs"
    TELL = "tell"
    PRUNE = "prune"


_SECONDS = {Duty.RINGS: 1.0, Duty.TICKS: 1.0, Duty.NEEDS: 5.0, Duty.TELL: 30.0, Duty.PRUNE: 60.0}
_MARK = uuid.uuid4().hex[:12]

# The row is locked by whoever comes first; who waited for it sees it as it is then, with a clock that stands at when it
# began to wait. So a term may seem a little too long. One that is much longer than any was drawn before the clock was set
# back.
_TAKE = """
INSERT INTO sag_supervisor_term AS kept (duty, holder, term, begun_at, until)
VALUES (%(duty)s, %(holder)s, 1, sag_now(), sag_now() + make_interval(secs => %(length)s))
ON CONFLICT (duty) DO UPDATE
SET holder = EXCLUDED.holder, term = kept.term + 1, begun_at = EXCLUDED.begun_at, until = EXCLUDED.until
WHERE kept.until <= sag_now() OR kept.until > EXCLUDED.until + make_interval(secs => %(length)s)
RETURNING term"""


def me() -> str:
    """This process, told apart from any other there ever was."""
    return f"{socket.gethostname()[:80]}:{os.getpid()}:{_MARK}"


def every(duty: Duty) -> timedelta:
    """How often a duty is to be done."""
    return timedelta(seconds=_SECONDS.get(duty, conf.sweep))


class Turn:
    """A term that is ours."""

    def __init__(self, duty: Duty, number: int, length: timedelta) -> None:
        self.number = number
        self._mine = Term.objects.filter(duty=duty, holder=me(), term=number)
        self._length = length
        self._renew_at = self._soon()

    def goes_on(self) -> bool:
        """Renew it now and then. False once somebody else has taken over, since we stood still for too long."""
        if time.monotonic() < self._renew_at:
            return True
        self._renew_at = self._soon()
        return bool(self._mine.update(until=SagNow() + self._length))

    def end(self, *, rest: timedelta, done: bool) -> None:
        """Let the others rest for a while, counted from its beginning."""
        row = self._mine.only("begun_at").first()
        if row is not None:
            self._mine.update(until=row.begun_at + rest, **{"done_at": SagNow()} if done else {})

    def _soon(self) -> float:
        return time.monotonic() + self._length.total_seconds() / 3


def do(duty: Duty, act: Callable[[Turn], object]) -> bool:
    """Do it, unless somebody is at it or has just been. Whether it was ours to do."""
    rest = every(duty) / 2  # a message comes early now and then
    length = max(rest, min(2 * every(duty), timedelta(seconds=conf.lease)))
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"duty": duty, "holder": me(), "length": length.total_seconds()})
        row = cursor.fetchone()
    if row is None:
        return False
    turn = Turn(duty, row[0], length)
    try:
        act(turn)
    except BaseException:
        with suppress(Error):  # what befell the duty is told; its term ends by itself
            turn.end(rest=rest, done=False)
        raise
    turn.end(rest=rest, done=True)
    return True
