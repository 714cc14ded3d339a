"""Claim, perform, settle: two short transactions with the call between them.

A worker that is rung takes the step it was rung for, then what is handed over to it, one commit a step. It keeps an
outcome that the database cannot take until it can. It never decides what comes after a failure.
"""

import json
import logging
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from django.db import DataError, InterfaceError, InternalError, OperationalError, close_old_connections, connection

from agents import registry
from agents.call import AgentError, Call, InDoubt, LeaseLost, Transient, Undoes
from agents.draining import is_draining
from agents.heartbeat import Held, heart
from agents.results import Unstorable, clean_text, to_store
from workflows import broker, scheduler, transitions
from workflows.conf import conf
from workflows.exceptions import UnresolvedReference
from workflows.models import Attempt, Step
from workflows.plans.templates import references_of, resolve
from workflows.states import ErrorKind, Role
from workflows.transitions import Claimed, Failure

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CANDIDATES = 20
_LOOKS_AT_TAKEN_ONES = 3
_LOOK_AGAIN_AFTER = 0.1
_LONGEST_WAIT = 86_400.0


# What the database says when it is away, in the middle of a failover (read only), or has ended our idle transaction.
_NO_ANSWER = (OperationalError, InterfaceError, InternalError)

_NOT_CALLED = Failure(kind=ErrorKind.TRANSIENT, code="not_called", message="Time was up before the call could be made.")


class AttemptTimeout(BaseException):
    """The call's time is up. No Exception, so that an operation's own `except Exception` cannot swallow it."""


@dataclass(kw_only=True)
class Outcome:
    """What became of a call: a result, or a failure. `sent` is the input that went into it; both are JSON text."""

    sent: str | None = None
    called: bool = False
    result: str | None = None
    failure: Failure | None = None
    follows_doubt: bool = False
    by_probe: bool = False


@dataclass(kw_only=True)
class _Process:
    """Who this process is, unique per start, and when it last found nothing to do in a queue."""

    pid: int = 0
    name: str = ""
    found_nothing: dict[str, float] = field(default_factory=dict)


_process = _Process()


def identity() -> str:
    """This process's name in the store: host, pid and a mark of this very start."""
    if _process.pid != os.getpid():
        _process.pid = os.getpid()
        _process.found_nothing = {}
        _process.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    return _process.name


def work(queue: str, step_id: int | None) -> None:
    """Answer a doorbell."""
    close_old_connections()
    if is_draining():
        broker.ring(queue, step_id)
        return
    if step_id is not None:
        _run_chain(*_claim(step_id))
    _look_round(queue)


def _look_round(queue: str) -> None:
    """Take what may start in this queue, whoever was rung for it, oldest first, until there is nothing more.

    Where all that was found had just been taken by others, or was locked, it looks again before it goes to sleep. A
    queue that was empty a moment ago is not looked at: whoever starts something in it rings.
    """
    if time.monotonic() - _process.found_nothing.get(queue, 0.0) < _LOOK_AGAIN_AFTER:
        return
    looks_left = _LOOKS_AT_TAKEN_ONES
    while looks_left and not is_draining():
        found = until_answered(partial(transitions.candidates, queue, _CANDIDATES))
        random.shuffle(found)  # the workers that look round together should not all reach for the same step
        taken = sum(_take(step_id) for step_id, _ in found)
        looks_left = (_LOOKS_AT_TAKEN_ONES if taken else looks_left - 1) if found else 0
    _process.found_nothing[queue] = time.monotonic()


def _take(step_id: int) -> bool:
    if is_draining():
        return False
    claimed, asked_at = _claim(step_id, unless_locked=True)
    _run_chain(claimed, asked_at)
    return claimed is not None


def _claim(step_id: int, *, unless_locked: bool = False) -> tuple[Claimed | None, float]:
    """Claim under a token drawn before, so that a claim whose answer was lost is found again by it."""
    identity()
    token = uuid.uuid4()
    claim = partial(transitions.claim, step_id, token=token, worker=identity(), unless_locked=unless_locked)
    found = partial(scheduler.claimed_under, step_id, token)
    try:
        return _timed(claim)
    except _NO_ANSWER as error:
        logger.warning("the database did not answer a claim: %s", error)
        connection.close()
    # What the server did not finish when the connection broke may still commit between two of our looks.
    return until_answered(lambda: _timed(lambda: found() or claim() or found()))


def _timed(ask: Callable[[], T]) -> tuple[T, float]:
    """The answer, and when it was asked for. A lease counts from before its claim, not from when we heard of it."""
    asked_at = time.monotonic()
    return ask(), asked_at


def _run_chain(claimed: Claimed | None, asked_at: float) -> None:
    """A step and all that is handed over after it. Results known on the way need not be read again."""
    known: dict[str, Any] = {}
    while claimed is not None:
        outcome = _perform(claimed, known, began=asked_at - claimed.age)
        claimed, asked_at = _settle(claimed, outcome)


def _settle(claimed: Claimed, outcome: Outcome) -> tuple[Claimed | None, float]:
    """Report the outcome. The step handed over, if any, and when it was asked for."""
    if outcome.failure is not None:
        return _fail(claimed, outcome.failure, outcome.sent)
    settle = partial(
        scheduler.settle,
        claimed,
        result=outcome.result or "null",
        sent=outcome.sent,
        next_token=uuid.uuid4(),
        worker=identity(),
        follows_doubt=outcome.follows_doubt,
        by_probe=outcome.by_probe,
    )
    try:
        settled, asked_at = until_answered(lambda: _timed(lambda: settle(hand_over=not is_draining())))
    except DataError as error:
        return _fail(claimed, _unstorable(str(error)), outcome.sent)
    if settled is None:
        logger.warning("the word of attempt %s at step %s came too late", claimed.attempt, claimed.step_id)
        return None, asked_at
    return settled.handed_over, asked_at


def _fail(claimed: Claimed, failure: Failure, sent: str | None) -> tuple[None, float]:
    _, asked_at = until_answered(lambda: _timed(lambda: scheduler.fail(claimed, failure, sent=sent)))
    return None, asked_at


def until_answered(ask: Callable[[], T]) -> T:
    """Ask the database until it answers: an outcome is kept here as long as this process lives, its slot taken."""
    wait = 0.1
    while True:
        try:
            return ask()
        except _NO_ANSWER as error:
            logger.warning("the database does not answer, asking again in %.1f s: %s", wait, error)
            connection.close()
            time.sleep(wait)
            wait = min(wait * 2, 2.0)


# --- the call --------------------------------------------------------------------------------------------------------


def _perform(claimed: Claimed, known: dict[str, Any], *, began: float) -> Outcome:
    """Make the call of one attempt, within its time and with its lease kept."""
    outcome = Outcome()
    call = Call(
        job_id=claimed.job_id,
        workflow=claimed.workflow,
        step=claimed.name,
        attempt=claimed.attempt,
        idempotency_key=claimed.idempotency_key,
        input=None,
        ends_at=began + claimed.timeout - _margin(claimed.timeout),
        may_send_until=began + min(conf.lease, claimed.timeout),
    )
    timed_out = Failure(
        kind=ErrorKind.IN_DOUBT,
        code="timeout",
        message=f"No answer within the {claimed.timeout:g} s of this attempt.",
        in_doubt=True,
    )
    give_up = partial(scheduler.fail, claimed, timed_out, sent=None)
    heart.hold(Held(step_id=claimed.step_id, token=claimed.token, call=call, give_up=give_up))
    try:
        with _time_limit(call.seconds_left()):
            _fill_in(call, claimed, known)
            outcome.sent, outcome.called = json.dumps(call.input), True
            call.input = json.loads(outcome.sent)  # its own copy: what an operation does to it stays with it
            _run_operation(call, claimed, outcome, known)
    except AttemptTimeout:
        connection.close()  # the interruption may have hit it in mid-sentence
        outcome.result, outcome.failure = None, timed_out if outcome.called else _NOT_CALLED
    except Exception as error:  # whatever an operation raises is an outcome
        outcome.result, outcome.failure = None, _failure_from(error, called=outcome.called)
    finally:
        heart.let_go(claimed.token)
    return outcome


def _run_operation(call: Call, claimed: Claimed, outcome: Outcome, known: dict[str, Any]) -> None:
    """The probe first where an earlier attempt is in doubt, then the operation."""
    probe = claimed.plan[claimed.place].get("probe") if claimed.role == Role.FORWARD else None
    if claimed.attempt > 1:
        outcome.follows_doubt = _has_open_doubt(claimed.step_id)
    if outcome.follows_doubt and probe:
        found = registry.find(probe)(call)
        if found is not None:
            outcome.result, outcome.by_probe = to_store(found), True
            return
    if claimed.probe_only:
        outcome.failure = Failure(
            kind=ErrorKind.IN_DOUBT, code="nothing_found", message="The other side knows nothing of this key."
        )
        return
    outcome.result = to_store(registry.find(claimed.operation)(call))
    known[claimed.name] = json.loads(outcome.result)


def _fill_in(call: Call, claimed: Claimed, known: dict[str, Any]) -> None:
    """Put the input together from the job's input and the results of other steps."""
    if claimed.role == Role.FORWARD:
        call.results = _results(claimed, claimed.plan[claimed.place]["input"], known)
        call.input = resolve(claimed.plan[claimed.place]["input"], claimed.given, call.results)
        return
    original = until_answered(Step.objects.filter(undos=claimed.step_id).get)
    template = claimed.plan[original.place]["input"]
    call.results = _results(claimed, template, known)
    call.input = resolve(template, claimed.given, call.results)
    call.undoes = Undoes(
        name=original.name, idempotency_key=original.idempotency_key, input=call.input, result=original.result
    )


def _results(claimed: Claimed, template: Any, known: dict[str, Any]) -> dict[str, Any]:
    names = references_of(template)
    missing = names - known.keys()
    if missing:
        rows = Step.objects.filter(job_id=claimed.job_id, name__in=missing).values_list("name", "result")
        known.update(until_answered(lambda: list(rows.all())))
    return deepcopy({name: known[name] for name in names})


def _has_open_doubt(step_id: int) -> bool:
    open_doubts = Attempt.objects.filter(step_id=step_id, in_doubt=True, resolved_by="")
    return until_answered(open_doubts.exists)


def _failure_from(error: Exception, *, called: bool) -> Failure:
    """The three kinds as they come; anything else counts as in doubt once the operation was called."""
    if isinstance(error, AgentError):
        return Failure(
            kind=error.kind,
            code=clean_text(error.code or error.default_code)[:60],
            message=clean_text(error.message or error),
            in_doubt=isinstance(error, InDoubt),
            retry_after=_bounded(error.retry_after) if isinstance(error, Transient) else None,
        )
    if isinstance(error, Unstorable):
        return _unstorable(str(error))
    if isinstance(error, registry.UnknownOperation | UnresolvedReference):
        code = "unknown_operation" if isinstance(error, registry.UnknownOperation) else "unresolved_reference"
        return Failure(kind=ErrorKind.PERMANENT, code=code, message=clean_text(str(error)))
    code = "lease_lost" if isinstance(error, LeaseLost) else type(error).__name__[:60]
    logger.warning("an operation raised %s", type(error).__name__, exc_info=error)
    return Failure(
        kind=ErrorKind.IN_DOUBT if called else ErrorKind.TRANSIENT,
        code=code,
        message=clean_text(f"{type(error).__name__}: {clean_text(error)}"),
        in_doubt=called,
    )


def _bounded(seconds: float | None) -> float | None:
    """A wait that the other side asked for, at most a day; None where it makes no sense."""
    return min(seconds, _LONGEST_WAIT) if isinstance(seconds, int | float) and seconds >= 0 else None


def _unstorable(reason: str) -> Failure:
    return Failure(
        kind=ErrorKind.IN_DOUBT, code=transitions.RESULT_NOT_STORABLE, message=clean_text(reason), in_doubt=True
    )


def _margin(timeout: float) -> float:
    """A call ends a little before its deadline, so that its outcome can be settled under the lease."""
    return min(1.0, timeout * 0.1)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside after `seconds`. Only a main thread can be; others have the heartbeat's last resort."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_is_up(_signal: int, _frame: FrameType | None) -> None:
    raise AttemptTimeout
