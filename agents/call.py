"""What an operation is given, and what it may raise: that it failed, that it comes back later, that a callback will."""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import connection

from agents.patience import until_answered
from agents.progress import Progress
from agents.results import to_store
from workflows import signals, transitions
from workflows.exceptions import StaleVersion

_LONGEST_SNOOZE = timedelta(days=1)
_LONGEST_NAME = 100


class AgentError(Exception):
    """How an operation says that it did not succeed. `code` is a stable word for programs."""

    kind = ""
    default_code = ""
    # For subclasses whose own initialiser does not call this one.
    message: str = ""
    code: str = ""

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code


class Transient(AgentError):
    """Nothing was done, and trying again may help. `retry_after`: seconds that the other side asked us to wait."""

    kind = default_code = "transient"
    retry_after: float | None = None

    def __init__(self, message: str = "", *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Permanent(AgentError):
    """Nothing was done, and trying again cannot help."""

    kind = default_code = "permanent"


class InDoubt(AgentError):
    """Nobody knows whether it was done: a time-out after sending, a lost connection, an answer that makes no sense."""

    kind = default_code = "in_doubt"


class Stopped(AgentError):
    """Nothing was done: the operation saw `call.stopping` before it sent anything, and leaves."""

    kind = "cancelled"
    default_code = "stopped"


class LeaseLost(Exception):
    """This worker may no longer act on the step: another attempt may already run it. Send nothing more."""


class Snooze(BaseException):
    """Call the operation again in so many seconds; this attempt is not charged. For asking whether something is ready.

    It says that this attempt did nothing that would have to be undone: what begins something and then waits for it is
    two steps, or a Defer. No Exception, as the time-out is none: an operation's own `except Exception`, written for the
    failures of its service, must not swallow it.
    """

    def __init__(self, seconds: float, message: str = "") -> None:
        longest = _LONGEST_SNOOZE.total_seconds()
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds <= longest:  # NaN compares as false
            raise ValueError(f"Snooze takes seconds from 0 to {longest:,.0f}, which is a day, not {seconds!r}.")
        super().__init__(seconds, message)
        self.delay = timedelta(seconds=seconds)
        self.message = message


class Defer(BaseException):
    """The worker's part is done; the step stays Running until its callback comes (`call.callback_path`).

    Without a callback `within` that time the step has failed, in doubt. No Exception, for the reason that Snooze has.
    """

    def __init__(self, within: timedelta | None = None) -> None:
        if within is not None and (not isinstance(within, timedelta) or within <= timedelta(0)):
            raise ValueError(f"Defer takes within= as a timedelta above zero, not {within!r}.")
        super().__init__(within)
        self.within = within


@dataclass(frozen=True, kw_only=True)
class Undoes:
    """The step that a compensation undoes. `result` is None when nobody heard its answer; `reason` is why, in words."""

    name: str
    idempotency_key: str
    input: Any
    result: Any
    reason: str = ""


@dataclass(kw_only=True)
class Call:
    """One attempt at one step, as its operation sees it.

    `input` is what the plan says goes in, `results` the results of the steps that it refers to, by name. Send
    `idempotency_key` with the request: it is the same over all attempts. A compensation finds its original in `undoes`.
    In a fan-out `item` is what this call is about, and `index` its place in the list.
    In a job that a schedule started `scheduled_for` is the due time it stands for, in UTC, however late it runs.
    `stopping` becomes true, at a heartbeat, when the job is being stopped or the step was taken away: what can end
    early should, with its result, or with Stopped where nothing was done.
    `may_send_until` and `ends_at` are moments of this process's monotonic clock, in seconds.
    """

    job_id: uuid.UUID
    workflow: str
    step: str
    attempt: int
    idempotency_key: str
    input: Any
    results: dict[str, Any] = field(default_factory=dict)
    undoes: Undoes | None = None
    index: int | None = None
    item: Any = None
    scheduled_for: datetime | None = None
    ends_at: float
    may_send_until: float
    stopping: bool = False
    step_id: int = 0
    token: uuid.UUID | None = field(default=None, repr=False)
    reported: Progress = field(default_factory=Progress, repr=False)
    _made_once: set[str] = field(default_factory=set, init=False, repr=False)

    def seconds_left(self) -> float:
        """How long this attempt may still take; zero when it is over."""
        return max(0.0, self.ends_at - time.monotonic())

    def check_may_send(self) -> None:
        """Raise LeaseLost once this worker cannot prove any more that the step is its own. Ask before each request."""
        if time.monotonic() >= self.may_send_until:
            raise LeaseLost(f"The lease of attempt {self.attempt} at {self.step} is over; nothing more may be sent.")

    def progress(
        self, done: float | None = None, total: float | None = None, message: str = "", **counters: float | str
    ) -> None:
        """Say how far this call has come; it is stored with the next heartbeat, and the last word when the call ends.

        Costs nothing, so say it as often as you like. Each word takes the place of the one before, whole.
        """
        self.reported.report(done, total, message, counters)

    @property
    def callback_token(self) -> str:
        """With this an outside service completes or fails the step, in whatever attempt it is then. A secret."""
        return signals.token_of(self.step_id)

    @property
    def callback_path(self) -> str:
        """Where it posts {"result": …} or {"error": {"kind", "code", "message"}}, behind this installation's address."""
        return f"/api/v1/callbacks/{self.callback_token}"

    def once(self, name: str, function: Callable[[], Any]) -> Any:
        """Call `function` once over all attempts of this step, and give its answer in its stored form ever after.

        For a service that knows no keys: the intent is stored before the call and the answer after it. An intent
        without an answer is in doubt, and the call is not made again. Where `function` raises what says that nothing
        was done (Transient, Permanent, Stopped), the intent is forgotten, and a later attempt may call it.
        """
        self._check_once(name)
        self.check_may_send()
        if (answer := self._answer_of(name)) is not None:
            return json.loads(answer)
        try:
            self.check_may_send()
        except LeaseLost:
            self._forget(name)
            raise
        self._made_once.add(name)
        try:
            answer = to_store(function())
        except (Transient, Permanent, Stopped):
            self._forget(name)
            self._made_once.discard(name)
            raise
        kept = json.loads(answer)
        until_answered(partial(transitions.keep_once, self.step_id, name=name, result=kept))
        return kept

    def _check_once(self, name: str) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise ValueError(f"call.once() needs a name of 1 to {_LONGEST_NAME} characters, not {name!r}.")
        if connection.in_atomic_block:
            raise RuntimeError(
                f"call.once({name!r}, …) stores its intent in a commit of its own, which it cannot inside a transaction; "
                "an atomic operation makes no calls to outside."
            )

    def _answer_of(self, name: str) -> str | None:
        """What the call answered when it was made, as JSON text; None, and the intent is stored, when it was not."""
        if self.token is None:
            raise RuntimeError("This call belongs to no attempt of a step.")
        intend = partial(transitions.intend_once, self.step_id, name=name, attempt=self.attempt, token=self.token)
        try:
            known = until_answered(intend)
        except StaleVersion as error:
            raise LeaseLost(str(error)) from error
        if known is None:
            return None
        if known.done_at is not None:
            return json.dumps(known.result)
        if known.attempt == self.attempt and name not in self._made_once:
            return None  # our own intent, and the store's answer to it was lost
        raise InDoubt(f"The call {name!r} of attempt {known.attempt} was begun, and nobody knows whether it was made.",
                      code="once_in_doubt")  # fmt: skip

    def _forget(self, name: str) -> None:
        until_answered(partial(transitions.forget_once, self.step_id, name=name, attempt=self.attempt))
