"""One thread a process that keeps the leases of its running steps, and is the last resort against a call that hangs.

It beats only while something runs. A beat that fails is tried again at once; meanwhile each step's own clock runs out,
and its call may send nothing more (`Call.may_send_until`). A call that outlives its time-out although it was
interrupted (it hangs in foreign code) is given up here: its attempt is settled as in doubt and the process ends itself,
which a pool child may do, since its parent starts another.
"""

import logging
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from django.db import Error, connection

from agents import draining, presence
from agents.call import Call
from workflows import transitions
from workflows.conf import conf

logger = logging.getLogger(__name__)

# How long after its time-out an interrupted call may take to let go.
GRACE = 2.0


@dataclass(frozen=True, kw_only=True)
class Held:
    """A step that this process runs."""

    step_id: int
    token: uuid.UUID
    call: Call
    give_up: Callable[[], object]
    # Interrupts the call, where what became of it can be asked after.
    hand_back: Callable[[], object] | None = None


class Heart:
    """`hold` before the call, `let_go` after it."""

    def __init__(self) -> None:
        self._held: dict[uuid.UUID, Held] = {}
        self._answered: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self.may_end_process = False

    def hold(self, held: Held) -> None:
        with self._changed:
            if self._pid != os.getpid():  # a fork: the parent's thread and steps are not ours
                self._pid, self._thread, self._held, self._answered = os.getpid(), None, {}, Counter()
            self._held[held.token] = held
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sag-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()

    def let_go(self, token: uuid.UUID, *, answered_by: str = "") -> None:
        """`answered_by`: the agent whose service answered, for the count by which an outage is told from bad luck."""
        with self._changed:
            self._held.pop(token, None)
            if answered_by:
                self._answered[answered_by] += 1

    def tell_answers(self) -> None:
        """Count the good answers so far, at once: a failure that is counted before them looks like an outage."""
        with self._changed:
            answered, self._answered = self._answered, Counter()
        if answered:
            self._tell(answered)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held)
            try:
                self._sleep_and_watch(conf.heartbeat)
                self._beat()
            except Exception:  # this thread must outlive any fault: all leases of the process hang on it
                logger.exception("the heartbeat met a fault, and goes on")

    def _sleep_and_watch(self, seconds: float) -> None:
        """Wait for the next beat, awake early where a call's time is up."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
            with self._changed:
                running = list(self._held.values())
            for held in running:
                if time.monotonic() > held.call.ends_at + GRACE:
                    self._give_up(held)
                elif held.hand_back is not None and draining.lasts() > conf.drain_within:
                    held.hand_back()

    def _beat(self) -> None:
        with self._changed:
            held = dict(self._held)
        self.tell_answers()
        if not held:
            return
        asked_at = time.monotonic()
        said = {token: one.call.reported.not_stored() for token, one in held.items()}
        try:
            beat = transitions.heartbeat({token: (one.step_id, said[token]) for token, one in held.items()})
        except Error as error:
            logger.warning("no heartbeat, the database did not take it: %s", error)
            connection.close()
            return
        for token, one in held.items():
            one.call.may_send_until = min(asked_at + conf.lease, one.call.ends_at) if token in beat.held else 0.0
            one.call.stopping = one.call.stopping or token in beat.stopping or token not in beat.held
            one.call.reported.stored(said[token])
        presence.note_beat()
        presence.tell_sometimes()

    def _tell(self, answered: Counter[str]) -> None:
        try:
            for agent, count in answered.items():
                transitions.count_calls(agent, "ok", count)
        except Error as error:  # it is only a count
            logger.warning("the answers of services were not counted: %s", error)
            connection.close()

    def _give_up(self, held: Held) -> None:
        logger.error("step %s outlived its time-out and hangs; its attempt is given up", held.step_id)
        self.let_go(held.token)
        try:
            held.give_up()
        except Exception as error:  # the process must end all the same
            logger.warning("could not settle the hanging attempt, its lease will end: %s", error)
        if self.may_end_process:
            os.kill(os.getpid(), signal.SIGKILL)


heart = Heart()
