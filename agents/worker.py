"""Claim, perform, settle: two short transactions with the call between them.

A worker that is rung takes the step it was rung for, then what is handed over to it, one commit a step. It keeps an
outcome that the database cannot take until it can. It never decides what comes after a failure. An atomic operation
makes no call: it runs inside the transaction that settles it.
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
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from types import FrameType
from typing import Any, TypeVar

from django.db import DataError, Error, close_old_connections, connection
from pydantic import BaseModel

from agents import presence, registry
from agents.call import AgentError, Call, Defer, InDoubt, LeaseLost, Snooze, Transient, Undoes
from agents.draining import is_draining
from agents.frames import top_frame
from agents.heartbeat import Held, heart
from agents.patience import NO_ANSWER, until_answered
from agents.results import Unstorable, clean_text, to_store
from workflows import broker, reports, transitions
from workflows.conf import conf
from workflows.exceptions import UnresolvedReference
from workflows.models import Attempt, Job, Step
from workflows.plans.templates import references_of, resolve
from workflows.states import ErrorKind, Role, StepState
from workflows.transitions import Claimed, Failure, Settled

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CANDIDATES = 20
_LOOKS_AT_TAKEN_ONES = 3
_LOOK_AGAIN_AFTER = 0.1
_LONGEST_WAIT = 86_400.0
# An agent's rate that lets the next call begin within this many seconds is waited for, so many times in a row.
_WAITS_FOR_A_TURN = 20
_LONGEST_WAIT_FOR_A_TURN = 0.25

_NOT_CALLED = Failure(kind=ErrorKind.TRANSIENT, code="not_called", message="Time was up before the call could be made.")


class AttemptTimeout(BaseException):
    """The call's time is up. No Exception, so that an operation's own `except Exception` cannot swallow it."""


@dataclass(kw_only=True)
class Outcome:
    """What became of a call: a result, a failure, or a word that it is not over. `sent`, what went in, is JSON text.

    `atomic`: the operation ran inside the transaction that settles it; once `ended`, there is nothing left to report.
    `handed_back`: it was interrupted since its worker stops, and did not hear of its time being up.
    """

    sent: str | None = None
    called: bool = False
    result: str | None = None
    failure: Failure | None = None
    put_off: Snooze | Defer | None = None
    follows_doubt: bool = False
    by_probe: bool = False
    atomic: bool = False
    ended: bool = False
    asked_back: bool = False
    handed_back: bool = False


@dataclass(kw_only=True)
class _Process:
    """Who this process is, unique per start, and when it last found nothing to do in a queue."""

    pid: int = 0
    name: str = ""
    found_nothing: dict[str, float] = field(default_factory=dict)


_process = _Process()


def identity() -> str:
    """This process's name in the store: host, pid, its worker's mark and one of this very start."""
    if _process.pid != os.getpid():
        _process.pid = os.getpid()
        _process.found_nothing = {}
        marks = [mark for mark in (presence.mark(), uuid.uuid4().hex[:8]) if mark]
        _process.name = f"{socket.gethostname()}:{os.getpid()}:{'-'.join(marks)}"
    return _process.name


def work(queue: str, step_id: int | None) -> None:
    """Answer a doorbell."""
    close_old_connections()
    presence.note_answer()
    if is_draining():
        broker.ring(queue, step_id)
        return
    claimed, asked_at = _claim(step_id) if step_id is not None else (None, 0.0)
    if claimed is not None:
        _run_chain(claimed, asked_at)
    elif step_id is not None and _is_limited(step_id):
        _take_within_limits(queue, step_id)
    # Whoever starts something in an empty queue rings, but not where old doorbells like this one seemed enough.
    if claimed is None or not _found_nothing_lately(queue):
        _look_round(queue)
    presence.tell_sometimes()


def _found_nothing_lately(queue: str) -> bool:
    return time.monotonic() - _process.found_nothing.get(queue, 0.0) < _LOOK_AGAIN_AFTER


def _is_limited(step_id: int) -> bool:
    limited = Step.objects.filter(pk=step_id, state=StepState.NOT_STARTED, limited=True)
    return until_answered(limited.exists)


def _look_round(queue: str) -> None:
    """Take what may start in this queue, whoever was rung for it, oldest first, until there is nothing more.

    Where all that was found had just been taken by others, or was locked, it looks again before it goes to sleep.
    """
    looks_left, limits = _LOOKS_AT_TAKEN_ONES, _Limits()
    found: list[tuple[int, bool]] = []
    while looks_left and not is_draining():
        found = until_answered(partial(transitions.candidates, queue, _CANDIDATES, limits.full))
        if not found and limits.wait_for_a_turn():
            continue
        random.shuffle(found)  # the workers that look round together should not all reach for the same step
        went_on = _take_all(queue, found, limits)
        looks_left = (_LOOKS_AT_TAKEN_ONES if went_on else looks_left - 1) if found else 0
    if not found:  # what others had locked may be there still, and the next ring must not pass it by
        _process.found_nothing[queue] = time.monotonic()
    if limits.turn_comes_soon:
        broker.ring(queue)  # others in this process's queues have their turn first


def _take_all(queue: str, found: list[tuple[int, bool]], limits: "_Limits") -> bool:
    """Whether any could be taken. A limit that is reached ends this: what follows may be under the same one."""
    taken = False
    for step_id, limited in found:
        if is_draining():
            return False
        if limited:
            known = len(limits.full)
            taken |= _take_within_limits(queue, step_id, limits, unless_locked=True)
            if len(limits.full) > known:
                return True
        else:
            claimed, asked_at = _claim(step_id, unless_locked=True)
            _run_chain(claimed, asked_at)
            taken |= claimed is not None
    return taken


@dataclass(kw_only=True)
class _Limits:
    """What one look round a queue met of limits: those that are reached, and when a rate lets the next call begin."""

    full: set[str] = field(default_factory=set)
    _turns: dict[str, float] = field(default_factory=dict)
    _waits_left: int = _WAITS_FOR_A_TURN

    def reached(self, name: str, seconds: float) -> None:
        """No more of these in this look, so that steps behind them are not kept waiting; soon, where it is a rate."""
        self.full.add(name)
        if 0 < seconds <= _LONGEST_WAIT_FOR_A_TURN:
            self._turns[name] = time.monotonic() + seconds

    @property
    def turn_comes_soon(self) -> bool:
        return bool(self._turns)

    def wait_for_a_turn(self) -> bool:
        """With nothing else to do: wait for the next call that a rate allows. False when there is none to wait for."""
        if not self._turns or not self._waits_left:
            return False
        self._waits_left -= 1
        name = min(self._turns, key=lambda name: self._turns[name])
        time.sleep(max(self._turns.pop(name) - time.monotonic(), 0.0))
        self.full.discard(name)
        return True


def _take_within_limits(
    queue: str, step_id: int, limits: _Limits | None = None, *, unless_locked: bool = False
) -> bool:
    """Claim a step whose agent or key has a limit, where that leaves room, and make its call."""
    token = uuid.uuid4()
    claim = partial(reports.claim_within_limits, step_id, token=token, worker=identity(), unless_locked=unless_locked)

    def found() -> tuple[Claimed, str, float] | None:
        claimed = reports.claimed_under(step_id, token)
        return (claimed, "", 0.0) if claimed else None

    try:
        (claimed, full, seconds), asked_at = _timed(claim)
    except NO_ANSWER as error:
        logger.warning("the database did not answer a claim: %s", error)
        connection.close()
        (claimed, full, seconds), asked_at = until_answered(lambda: _timed(lambda: found() or claim()))
    if limits is not None and full:
        limits.reached(full, seconds)
    if claimed is None:
        return False
    _run_chain(claimed, asked_at, limited=True)
    _process.found_nothing.pop(queue, None)  # its place is free, and who waits for that was not rung for
    return True


def _claim(step_id: int, *, unless_locked: bool = False) -> tuple[Claimed | None, float]:
    """Claim under a token drawn before, so that a claim whose answer was lost is found again by it."""
    identity()
    token = uuid.uuid4()
    claim = partial(transitions.claim, step_id, token=token, worker=identity(), unless_locked=unless_locked)
    found = partial(reports.claimed_under, step_id, token)
    try:
        return _timed(claim)
    except NO_ANSWER as error:
        logger.warning("the database did not answer a claim: %s", error)
        connection.close()
    # What the server did not finish when the connection broke may still commit between two of our looks.
    return until_answered(lambda: _timed(lambda: found() or claim() or found()))


def _timed(ask: Callable[[], T]) -> tuple[T, float]:
    """The answer, and when it was asked for. A lease counts from before its claim, not from when we heard of it."""
    asked_at = time.monotonic()
    return ask(), asked_at


def _run_chain(claimed: Claimed | None, asked_at: float, *, limited: bool = False) -> None:
    """A step and all that is handed over after it. Results known on the way need not be read again."""
    known: dict[str, Any] = {}
    while claimed is not None:
        presence.note_claim()
        if is_draining():
            _hand_back(claimed)
            return
        outcome = _perform(claimed, known, began=asked_at - claimed.age)
        queue = claimed.queue
        claimed, asked_at = _settle(claimed, outcome)
        if limited and claimed is not None:
            broker.ring(queue)  # its place is free now, not at the end of the chain
            limited = False


def _hand_back(claimed: Claimed) -> None:
    """The word to drain came between the claim and the call: another worker takes the step at once, uncharged."""
    reason = "Its worker was about to stop, and had not begun."
    until_answered(partial(reports.release, claimed, delay=timedelta(0), reason=reason))
    broker.ring(claimed.queue, claimed.step_id)


def _hand_back_under_way(claimed: Claimed, outcome: Outcome) -> None:
    """A worker that stops has interrupted the call: another one asks at once what became of it. Uncharged, but in doubt."""
    in_doubt = outcome.called and not outcome.atomic
    reason = "Its worker had to stop in the middle of the call." if in_doubt else "Its worker had to stop."
    release = partial(reports.release, claimed, delay=timedelta(0), reason=reason, in_doubt=in_doubt, sent=outcome.sent)
    until_answered(release)
    broker.ring(claimed.queue, claimed.step_id)


def _settle(claimed: Claimed, outcome: Outcome) -> tuple[Claimed | None, float]:
    """Report the outcome. The step handed over, if any, and when it was asked for."""
    if outcome.ended:
        return None, 0.0
    if outcome.handed_back:
        _hand_back_under_way(claimed, outcome)
        return None, 0.0
    if outcome.put_off is not None:
        return _put_off(claimed, outcome.put_off, outcome.sent)
    if outcome.failure is not None:
        return _fail(claimed, outcome.failure, outcome.sent)
    settle = partial(
        reports.settle,
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
    _note_lateness(claimed, settled)
    return (settled.handed_over if settled else None), asked_at


def _note_lateness(claimed: Claimed, settled: Settled | None) -> None:
    if settled is None:
        logger.warning("the word of attempt %s at step %s came too late", claimed.attempt, claimed.step_id)


def _put_off(claimed: Claimed, said: Snooze | Defer, sent: str | None) -> tuple[None, float]:
    """The call is over and its step is not: it is called again later, or a callback ends it."""
    if isinstance(said, Snooze):
        put_off = partial(reports.release, claimed, delay=said.delay, reason=clean_text(said.message))
    else:
        within = timedelta(seconds=conf.defer_within) if said.within is None else said.within
        put_off = partial(reports.defer, claimed, within=within, sent=sent)
    _, asked_at = until_answered(lambda: _timed(put_off))
    return None, asked_at


def _fail(claimed: Claimed, failure: Failure, sent: str | None) -> tuple[None, float]:
    heart.tell_answers()
    _, asked_at = until_answered(lambda: _timed(lambda: reports.fail(claimed, failure, sent=sent)))
    return None, asked_at


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
        index=claimed.index,
        item=claimed.item,
        scheduled_for=claimed.scheduled_for,
        step_id=claimed.step_id,
        token=claimed.token,
        ends_at=began + claimed.timeout - _margin(claimed.timeout),
        may_send_until=began + min(conf.lease, claimed.timeout),
    )
    timed_out = Failure(
        kind=ErrorKind.IN_DOUBT,
        code="timeout",
        message=f"No answer within the {claimed.timeout:g} s of this attempt.",
        in_doubt=True,
    )
    give_up = partial(reports.fail, claimed, timed_out, sent=None)
    hand_back = partial(_interrupt, outcome) if _may_be_handed_back(claimed) else None
    heart.hold(Held(step_id=claimed.step_id, token=claimed.token, call=call, give_up=give_up, hand_back=hand_back))
    try:
        with _time_limit(call.seconds_left()):
            _fill_in(call, claimed, known)
            outcome.sent, outcome.called = json.dumps(call.input), True
            call.input = json.loads(outcome.sent)  # its own copy: what an operation does to it stays with it
            _run_operation(call, claimed, outcome, known)
    except AttemptTimeout:
        connection.close()  # the interruption may have hit it in mid-sentence
        outcome.result, outcome.handed_back = None, outcome.asked_back
        if not outcome.handed_back:
            outcome.failure = timed_out if outcome.called else _NOT_CALLED
    except (Snooze, Defer) as said:
        outcome.put_off = said
    except BaseException as error:  # whatever an operation raises is an outcome, were it SystemExit
        outcome.result, outcome.failure = None, _failure_from(error, called=outcome.called)
    finally:
        refused = outcome.failure is not None and outcome.failure.kind == ErrorKind.PERMANENT
        answered = refused or (outcome.failure is None and outcome.put_off is None and not outcome.handed_back)
        heart.let_go(claimed.token, answered_by=claimed.operation.partition(".")[0] if answered else "")
    if outcome.atomic and not outcome.ended:
        _judge_rolled_back(claimed, outcome)
    if not outcome.ended:
        _keep_last_progress(call)
    return outcome


def let_calls_be_interrupted() -> None:
    """In a process whose calls run in its main thread. An interruption that comes when its call has just ended is nothing."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def _may_be_handed_back(claimed: Claimed) -> bool:
    """Where calls can be interrupted, and who comes next can find out what became of this one, or may just repeat it."""
    if signal.getsignal(signal.SIGALRM) != signal.SIG_IGN:
        return False
    if claimed.role != Role.FORWARD or claimed.plan[claimed.place].get("probe"):
        return True
    agent = next((agent for agent in registry.all_agents() if claimed.operation in agent.operations), None)
    return agent is not None and (agent.honours_keys or agent.operations[claimed.operation].atomic)


def _interrupt(outcome: Outcome) -> None:
    outcome.asked_back = True
    os.kill(os.getpid(), signal.SIGALRM)


def _keep_last_progress(call: Call) -> None:
    """What was reported since the last heartbeat. It is worth one try: the outcome matters more."""
    said = call.reported.not_stored()
    if said is None or call.token is None:
        return
    try:
        transitions.heartbeat({call.token: (call.step_id, said)})
    except Error as error:
        logger.warning("the last progress of step %s is not kept: %s", call.step_id, error)
        connection.close()


def _run_operation(call: Call, claimed: Claimed, outcome: Outcome, known: dict[str, Any]) -> None:
    """The probe first where an earlier attempt is in doubt, then the operation."""
    probe = claimed.plan[claimed.place].get("probe") if claimed.role == Role.FORWARD else None
    if claimed.attempt > 1:
        outcome.follows_doubt = _has_open_doubt(claimed.step_id)
    if outcome.follows_doubt and probe:
        found = registry.find(probe).perform(call)
        if found is not None:
            outcome.result, outcome.by_probe = to_store(found, _promised(claimed)), True
            return
    if claimed.probe_only:
        outcome.failure = Failure(
            kind=ErrorKind.IN_DOUBT, code="nothing_found", message="The other side knows nothing of this key."
        )
        return
    operation = registry.find(claimed.operation)
    if operation.atomic:
        _run_atomically(call, claimed, outcome, operation)
        return
    outcome.result = to_store(operation.perform(call), operation.output)
    known[claimed.name] = json.loads(outcome.result)


def _promised(claimed: Claimed) -> type[BaseModel] | None:
    """What a result of this step has to fit, also where the probe or another worker's agents say it."""
    try:
        return registry.find(claimed.operation).output
    except registry.UnknownOperation:
        return None


def _run_atomically(call: Call, claimed: Claimed, outcome: Outcome, operation: registry.Operation) -> None:
    """Run it inside the transaction that settles it; an exception rolls back all that it wrote."""

    def perform() -> str:
        call.input = json.loads(outcome.sent or "null")  # anew: after a deadlock it is run again
        result = to_store(operation.perform(call), operation.output)
        _keep_last_progress(call)
        return result

    outcome.atomic = True
    settled = reports.settle_atomically(claimed, perform, sent=lambda: outcome.sent)
    outcome.ended = True
    _note_lateness(claimed, settled)


def _judge_rolled_back(claimed: Claimed, outcome: Outcome) -> None:
    """Nothing was done, and that is certain; unless the commit went through and only its answer was lost.

    The store is asked under the job's lock, so that a commit which is still on its way has ended.
    """
    if outcome.put_off is not None:
        if isinstance(outcome.put_off, Defer):
            outcome.put_off = None
            outcome.failure = Failure(
                kind=ErrorKind.PERMANENT,
                code="defer_in_atomic",
                message="An atomic operation cannot Defer: it ends with its transaction, which was rolled back.",
            )
        return
    failure = outcome.failure
    if failure is not None and failure.in_doubt:
        kind = ErrorKind.PERMANENT if failure.code == transitions.RESULT_NOT_STORABLE else ErrorKind.TRANSIENT
        outcome.failure = replace(failure, kind=kind, in_doubt=False)
    outcome.ended = until_answered(partial(reports.is_settled, claimed))


def _given(claimed: Claimed) -> dict[str, Any]:
    return _input_of(claimed.job_id) if claimed.given is None else claimed.given


@lru_cache(maxsize=8)
def _input_of(job_id: uuid.UUID) -> dict[str, Any]:
    """A job's input never changes, and the items of one fan-out follow each other."""
    found: dict[str, Any] = until_answered(lambda: Job.objects.values_list("input", flat=True).get(pk=job_id))
    return found


def _fill_in(call: Call, claimed: Claimed, known: dict[str, Any]) -> None:
    """Put the input together from the job's input and the results of other steps."""
    if claimed.role == Role.FORWARD:
        _resolve_input(call, claimed, known)
        return
    undone = Step.objects.filter(undos=claimed.step_id).select_related("job")
    original = until_answered(undone.only(*_OF_THE_UNDONE, "job__reason_detail").get)
    call.index, call.item = original.index, original.item
    _resolve_input(call, claimed, known)
    call.undoes = Undoes(
        name=original.name,
        idempotency_key=original.idempotency_key,
        input=call.input,
        result=original.result,
        reason=original.job.reason_detail,
    )


_OF_THE_UNDONE = ("job", "name", "index", "item", "idempotency_key", "result")


def _resolve_input(call: Call, claimed: Claimed, known: dict[str, Any]) -> None:
    """The input of this place in the plan: an undo has that of its original."""
    template = claimed.plan[claimed.place]["input"]
    names = references_of(template)
    absent: set[str] = set()
    if missing := names - known.keys():
        found, absent = until_answered(lambda: Step.objects.results(claimed.job_id, claimed.plan, missing))
        known.update(found)
    call.results = deepcopy({name: known[name] for name in names - absent})
    call.input = resolve(template, _given(claimed), call.results, item=call.item, absent=absent)


def _has_open_doubt(step_id: int) -> bool:
    open_doubts = Attempt.objects.filter(step_id=step_id, in_doubt=True, resolved_by="")
    return until_answered(open_doubts.exists)


def _failure_from(error: BaseException, *, called: bool) -> Failure:
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
        frame=clean_text(top_frame(error)),
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
