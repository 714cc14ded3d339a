"""The only writer of state.

Each verb changes a job or a step along an edge of `states.py`, guarded in the UPDATE by what its caller believed, and
writes the Event that tells of it in the same transaction. The verbs of the hot path (start, claim, settle, heartbeat)
are one hand-written statement each. All others take a job that `locked()` has locked, in a statement of its own, and
read what they decide on only after it: under READ COMMITTED a statement that waited sees all but its own target stale.
"""

import functools
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from django.db import OperationalError, connection, transaction
from django.db.models import F, JSONField, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Greatest
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.sql import SQL, Identifier
from psycopg.types.json import Jsonb

from workflows import statements
from workflows.clock import SagNow
from workflows.conf import conf
from workflows.exceptions import NotFound, StaleVersion
from workflows.models import Agent, Attempt, Breaker, CallCount, Event, Job, Once, Signal, Step, Worker
from workflows.plans.plan import Plan, PlanStep
from workflows.states import (
    JOB_MOVES,
    STEP_MOVES,
    TERMINAL_JOB_STATES,
    ErrorKind,
    JobState,
    Outcome,
    Reason,
    Remedy,
    Role,
    SettledBy,
    StepKind,
    StepState,
)

P = ParamSpec("P")
T = TypeVar("T")

# The error code of an attempt whose call was made and whose result cannot be kept: never retried, always undone.
RESULT_NOT_STORABLE = "result_not_storable"
# That of a call that was handed on, and whose callback did not come.
CALLBACK_TIMEOUT = "callback_timeout"

# A failed step with one of these remedies is done with: the job goes on without it.
COUNTED_OFF = (Remedy.IGNORE, Remedy.OTHERWISE)

_FORGET_EVENTS = SQL("""
DELETE FROM {partition} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {partition}
    WHERE job_id = ANY (%s) AND job_id <> ALL (ARRAY(SELECT id FROM sag_workflows_job WHERE id = ANY (%s)))
    LIMIT %s))
""")

_TRIES_AFTER_DEADLOCK = 5
_NO_LEASE: dict[str, Any] = {"token": None, "complete_by": None, "deadline": None}
_NOTHING: Mapping[str, Any] = {}


# --- transactions and locks ------------------------------------------------------------------------------------------


def in_transaction(verb: Callable[P, T]) -> Callable[P, T]:
    """Run `verb` in a transaction; again from its start when PostgreSQL broke it off (deadlock, serialization)."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if connection.in_atomic_block:
            return verb(*args, **kwargs)
        for tried in range(1, _TRIES_AFTER_DEADLOCK + 1):
            try:
                with transaction.atomic():
                    return verb(*args, **kwargs)
            except OperationalError as error:
                broken_off = isinstance(error.__cause__, DeadlockDetected | SerializationFailure)
                if not broken_off or tried == _TRIES_AFTER_DEADLOCK:
                    raise
                time.sleep(0.01 * tried)
        raise AssertionError("the loop returns or raises")

    return run


def lock(job_id: uuid.UUID, *, unless_locked: bool = False) -> Job | None:
    """The job, locked until the transaction ends. None when it is locked already and `unless_locked` was asked for.

    NO KEY UPDATE, so that rows which refer to the job can be inserted meanwhile. Raises NotFound.
    """
    jobs = Job.objects.select_for_update(no_key=True, skip_locked=unless_locked)
    job = jobs.filter(pk=job_id).first()
    if job is None and not unless_locked:
        raise NotFound(f"There is no job {job_id}.")
    return job


# --- the hot path ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """A step that this worker may perform now, and all it needs to know of it. Times are seconds.

    `given` is the job's input (None for an item, which would carry the whole list), `plan` the steps of its plan as JSON,
    `place` this step's in it; an undo has that of its original. `index` and `item` are those of an item of a fan-out. `age`
    is how long ago it was claimed, which is not zero only where the answer to that was lost. `scheduled_for`: the due time
    that the job stands for, if a schedule started it. `limit_key`: under which its limit is counted, or "".
    """

    step_id: int
    job_id: uuid.UUID
    place: int
    name: str
    index: int | None = None
    item: Any = None
    role: str
    undoes_id: int | None
    operation: str
    queue: str
    attempt: int
    token: uuid.UUID
    probe_only: bool
    idempotency_key: str
    timeout: float
    workflow: str
    given: dict[str, Any] | None
    plan: list[dict[str, Any]]
    scheduled_for: datetime | None = None
    limit_key: str = ""
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """What settling a step led to: the job's state, the step handed over, [step id, queue] of others to ring for.

    `attend`: the scheduler has to look at the job, for there is a gate that may open now, or an end that it makes itself.
    """

    job_state: str
    handed_over: Claimed | None = None
    to_ring: list[tuple[int, str]]
    attend: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A job that was just written: [step id, queue] of the steps to ring for. `gated`: the scheduler has to look first."""

    first: list[tuple[int, str]]
    gated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """What a heartbeat found: the leases that are still held, and of these the ones whose jobs are stopping."""

    held: set[uuid.UUID]
    stopping: set[uuid.UUID]


def start(job: Job, *, plan: Plan, actor: str, start_at: datetime | None) -> Opened | None:
    """Write an unsaved job, its steps and its first event, in one statement. None when the job's key is taken.

    Sets `created_at`.
    """
    rows = statements.fetch(
        statements.START,
        {
            "job": job.pk,
            "client": job.client_id,
            "key": job.key,
            "workflow": job.workflow,
            "version": job.version,
            "plan": plan.document,
            "steps": plan.rows,
            "count": len(plan.steps),
            "input": Jsonb(job.input),
            "queue": conf.queue,
            "ring_old": timedelta(seconds=conf.ring_old),
            "actor": actor,
            "start_at": start_at,
            "time_limit": job.time_limit,
            # A limit that the plan names counts from when the start is first seen after its commit; see `set_deadlines`.
            "own_limit": plan.deadline is not None,
            "hooked": job.hooked,
            "parent_step": job.parent_step_id,
        },
    )
    if not rows:
        return None
    job.created_at = rows[0].opened_at
    job._state.adding = False
    first = [(row.step_id, row.queue) for row in rows if not row.gated]
    return Opened(first=first, gated=len(first) < len(rows))


def claim(step_id: int, *, token: uuid.UUID, worker: str, unless_locked: bool = False) -> Claimed | None:
    """NotStarted → Running, for the one that holds `token`. None when the step may not start now, or is taken."""
    return _claim(statements.CLAIM_UNLESS_LOCKED if unless_locked else statements.CLAIM, step_id, token, worker)


def claim_within_limits(step_id: int, *, token: uuid.UUID, worker: str) -> Claimed | None:
    """The same for a step whose agent or key has a limit, for who has just counted under the agent's lock."""
    return _claim(statements.CLAIM_WITHIN_LIMITS, step_id, token, worker)


def _claim(statement: str, step_id: int, token: uuid.UUID, worker: str) -> Claimed | None:
    rows = statements.fetch(
        statement, {"step": step_id, "token": token, "worker": worker, "lease": timedelta(seconds=conf.lease)}
    )
    if not rows:
        return None
    # Django keeps psycopg from parsing jsonb.
    parsed = {name: json.loads(getattr(rows[0], name) or "null") for name in ("given", "item")}
    return Claimed(**{**rows[0]._asdict(), **parsed, "plan": _parsed_plan(rows[0].plan)})


@functools.lru_cache(maxsize=64)
def _parsed_plan(text: str) -> Any:
    """Most claims are of a plan that was just seen. Whoever reads a plan leaves it as it is."""
    return json.loads(text)


def candidates(queue: str, limit: int, full: Iterable[str] = ()) -> list[tuple[int, bool]]:
    """[id, limited] of the steps of a queue that may start now, oldest first, read without a lock.

    `full`: the agents and limit keys that were just found to be at their limit.
    """
    found = statements.fetch(statements.CANDIDATES, {"queue": queue, "limit": limit, "full": list(full)})
    return [(row.id, row.limited) for row in found]


def settle(
    claimed: Claimed, *, result: str, sent: str | None, next_token: uuid.UUID, worker: str, hand_over: bool
) -> Settled | None:
    """Running → Completed with hand-over, on the hot path. `result` and `sent`, the input, are JSON text.

    None when the fence does not hold or the job is stopping, undoing or ended: then the slow verbs decide.
    """
    rows = statements.fetch(
        statements.SETTLE,
        {
            "job": claimed.job_id,
            "step": claimed.step_id,
            "attempt": claimed.attempt,
            "token": claimed.token,
            "result": result,
            "input": sent,
            "next_token": next_token,
            "worker": worker,
            "queue": claimed.queue,
            "hand_over": hand_over,
            "lease": timedelta(seconds=conf.lease),
            "ring_old": timedelta(seconds=conf.ring_old),
        },
    )
    if not rows:
        return None
    row = rows[0]
    handed_over = None
    if row.next_id is not None:
        handed_over = replace(
            claimed,
            step_id=row.next_id,
            place=row.place,
            name=row.name,
            operation=row.operation,
            queue=row.queue,
            attempt=row.attempt,
            token=row.token,
            probe_only=False,
            idempotency_key=row.idempotency_key,
            timeout=row.timeout,
            limit_key="",
            age=0.0,
        )
    return Settled(
        job_state=row.job_state,
        handed_over=handed_over,
        to_ring=[(step_id, queue) for step_id, queue in json.loads(row.to_ring or "[]")],
        attend=row.attend,
    )


def settle_item(claimed: Claimed, *, result: str, sent: str | None) -> Settled | None:
    """Running → Completed for an item of a fan-out, which lets the next one go. None as with `settle`."""
    rows = statements.fetch(
        statements.SETTLE_ITEM,
        {
            "job": claimed.job_id,
            "step": claimed.step_id,
            "attempt": claimed.attempt,
            "token": claimed.token,
            "result": result,
            "input": sent,
            "ring_old": timedelta(seconds=conf.ring_old),
        },
    )
    if not rows:
        return None
    row = rows[0]
    to_ring = [] if row.next_id is None else [(row.next_id, row.queue)]
    return Settled(job_state=JobState.RUNNING, to_ring=to_ring, attend=row.attend)


def heartbeat(held: Mapping[uuid.UUID, tuple[int, str | None]]) -> Beat:
    """Extend the leases of the steps {token: (step id, progress as JSON text or None)}."""
    rows = statements.fetch(
        statements.HEARTBEAT,
        {
            "steps": [step_id for step_id, _ in held.values()],
            "tokens": list(held),
            "progress": [progress for _, progress in held.values()],
            "lease": timedelta(seconds=conf.lease),
        },
    )
    return Beat(held={row.token for row in rows}, stopping={row.token for row in rows if row.stopping})


# --- verbs of a step, under the job's lock ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed. `in_doubt`: the other side may have done it. `retry_after`: seconds, as it asked for.

    `frame`: where an exception that nobody expected was raised.
    """

    kind: str
    code: str
    message: str
    in_doubt: bool = False
    retry_after: float | None = None
    frame: str = ""


def open_waiting(job: Job, step: Step, *, until: datetime | None, data: dict[str, Any] | None = None) -> None:
    """NotStarted → Running without a lease: it waits for a time, a signal, another job or its items.

    `until` is when the supervisor looks at it.
    """
    _move_step(
        job,
        step,
        StepState.RUNNING,
        kind="step.opened",
        actor="scheduler",
        data=data,
        attempt=F("attempt") + 1,
        deadline=until,
        gated=False,
        held=False,
        started_at=Coalesce("started_at", SagNow()),
    )


def look_again_at(step: Step, at: datetime | None) -> None:
    """Set when the supervisor looks at a step that runs without a lease."""
    Step.objects.filter(pk=step.pk, state=StepState.RUNNING, complete_by__isnull=True).update(deadline=at)


def defer(job: Job, step: Step, *, within: timedelta, sent: Any) -> None:
    """Running → Running: the worker is done with it, and a callback is waited for."""
    number = _next_number(job)
    Attempt.objects.filter(step=step, number=step.attempt, outcome="").update(input=sent)
    _guarded(step, token=None, complete_by=None, deadline=SagNow() + within, version=number)
    _event(job, number, "step.deferred", step=step, attempt=step.attempt, actor="agent")


def release(job: Job, step: Step, *, delay: timedelta, reason: str, in_doubt: bool = False, sent: Any = None) -> None:
    """Running → NotStarted, not charged: the operation asked to be called again later, or its worker stops."""
    _end_attempt(step, Outcome.RELEASED, in_doubt=in_doubt, **({} if sent is None else {"input": sent}))
    due = SagNow() + delay
    _move_step(
        job,
        step,
        StepState.NOT_STARTED,
        kind="step.released",
        actor="agent",
        reason=reason,
        data={"delay_seconds": round(delay.total_seconds(), 3)} | ({"in_doubt": True} if in_doubt else {}),
        run_after=due,
        ring_after=due,
        queue_by=due + F("queue_timeout"),
        rings=0,
        held=job.paused_at is not None or job.stopping_at is not None,
        **_NO_LEASE,
    )


def complete(job: Job, step: Step, *, result: Any, actor: str, sent: Any = None, settled_by: str = "") -> None:
    """Running → Completed."""
    _end_attempt(step, Outcome.COMPLETED, **({} if sent is None else {"input": sent}))
    _move_step(
        job,
        step,
        StepState.COMPLETED,
        kind="step.completed",
        actor=actor,
        data={"by": str(settled_by)} if settled_by else None,
        result=result,
        settled_by=settled_by,
        finished_at=SagNow(),
        error_kind="",
        error_code="",
        error_message="",
        **_NO_LEASE,
    )
    _count_off(job, step)


def settle_by_word(
    job: Job,
    step: Step,
    *,
    result: Any,
    settled_by: SettledBy,
    actor: str,
    reason: str,
    data: Mapping[str, Any] = _NOTHING,
) -> None:
    """NotStarted or Failed → Completed: a callback, a late answer or a person says that it was done. Marked for ever."""
    counted = step.state == StepState.FAILED and step.remedy in COUNTED_OFF
    uncount_item(step)
    _move_step(
        job,
        step,
        StepState.COMPLETED,
        kind="step.settled",
        actor=actor,
        reason=reason,
        data={"by": str(settled_by), **data},
        result=result,
        settled_by=settled_by,
        finished_at=SagNow(),
        held=False,
        gated=False,
        error_kind="",
        error_code="",
        error_message="",
        remedy="",
        remedy_reason="",
    )
    if not counted:
        _count_off(job, step)


def fail(job: Job, step: Step, failure: Failure, *, sent: Any, actor: str) -> None:
    """Running → Failed, reported by the worker that holds the step."""
    _fail_running(job, step, failure, Outcome.FAILED, kind="step.failed", actor=actor, sent=sent)


def expire(job: Job, step: Step) -> None:
    """Running → Failed: the lease is over and nobody knows whether the call was made."""
    message = f"The lease of attempt {step.attempt} on {step.worker} ended without a word."
    lost = Failure(kind=ErrorKind.LOST, code="lease_expired", message=message, in_doubt=True)
    _fail_running(job, step, lost, Outcome.LOST, kind="step.expired", actor="supervisor")


def cancel_step(job: Job, step: Step, *, actor: str, reason: str) -> None:
    """Running → Failed: the running attempt is fenced out; whether its call still lands is in doubt."""
    cancelled = Failure(kind=ErrorKind.CANCELLED, code="cancelled", message=reason, in_doubt=True)
    _fail_running(job, step, cancelled, Outcome.CANCELLED, kind="step.cancelled", actor=actor, reason=reason)


def wait_ended_badly(job: Job, step: Step, failure: Failure, *, actor: str) -> None:
    """Running → Failed: what a step without a lease waited for did not come in time, or was a refusal."""
    _fail_running(job, step, failure, Outcome.FAILED, kind="step.failed", actor=actor)


def refuse(job: Job, step: Step, failure: Failure, *, actor: str = "scheduler") -> None:
    """NotStarted → Failed, without an attempt: nobody took it in time, or it cannot be begun at all."""
    _move_step(
        job,
        step,
        StepState.FAILED,
        kind="step.failed",
        actor=actor,
        reason=failure.message,
        data={"kind": failure.kind, "code": failure.code, "in_doubt": False},
        finished_at=SagNow(),
        error_kind=failure.kind,
        error_code=failure.code,
        error_message=failure.message,
    )


def pass_gate(job: Job, step: Step, *, limit_key: str = "") -> None:
    """The scheduler has looked: the step may start as any other."""
    limits = {"limited": True, "limit_key": limit_key} if limit_key else {}
    _guarded(
        step,
        gated=False,
        held=job.paused_at is not None,
        run_after=Greatest(F("run_after"), SagNow()),
        ring_after=Greatest(F("run_after"), SagNow()),
        queue_by=Greatest(F("run_after"), SagNow()) + F("queue_timeout"),
        **limits,
    )


def postpone(step: Step, until: datetime) -> None:
    """Start no sooner than that: the rate of its agent is used up. Not charged."""
    Step.objects.filter(pk=step.pk, state=StepState.NOT_STARTED, run_after__lt=until).update(
        run_after=until, ring_after=until, rings=0
    )


def take_a_turn(agent: Agent, next_turn: datetime) -> None:
    """A call of a locked agent with a rate begins now; the next may begin then."""
    Agent.objects.filter(pk=agent.pk).update(rate_next=next_turn)


def retry(
    job: Job,
    step: Step,
    *,
    delay: timedelta,
    actor: str,
    reason: str,
    probe_only: bool = False,
    fresh_allowance: bool = False,
    uncharged: bool = False,
) -> None:
    """Failed → NotStarted, to start no sooner than `delay` from now. A person's retry brings a fresh allowance.

    `uncharged`: the failure was that of an outage, and does not count.
    """
    due = SagNow() + delay
    waits_at_gate = _waits_at_gate(job, step)
    changes: dict[str, Any] = {"charged": 0, "started_at": None} if fresh_allowance else {}
    changes |= {"charged": Greatest(F("charged") - 1, 0)} if uncharged else {"parked_since": None}
    _move_step(
        job,
        step,
        StepState.NOT_STARTED,
        kind="step.retried",
        actor=actor,
        reason=reason,
        data={"delay_seconds": round(delay.total_seconds(), 3), "probe_only": probe_only},
        run_after=due,
        ring_after=due,
        queue_by=due + F("queue_timeout"),
        rings=0,
        probe_only=probe_only,
        admitted=False,
        # An item that had ended waits for its turn once more.
        held=job.paused_at is not None or waits_at_gate or (fresh_allowance and step.parent_id is not None),
        gated=waits_at_gate,
        finished_at=None,
        remedy="",
        remedy_reason="",
        **changes,
    )


def _waits_at_gate(job: Job, step: Step) -> bool:
    """Whether the scheduler has to look once more. A call that came through its gate once need not."""
    if step.kind != StepKind.CALL or step.is_fan_out:
        return True
    if step.role != Role.FORWARD or step.parent_id is not None:
        return False
    planned = PlanStep.from_json(job.plan["steps"][step.place])
    return planned.each is not None or (planned.gated and step.attempt == 0)


def line_up(undo: Step, *, waiting_for: int, releases: Sequence[int]) -> None:
    """Before a failed undo is tried again beside others: whom it waits for, and who waits for it now."""
    _guarded(undo, waiting_for=waiting_for, releases=list(releases), released_at=None)


def renew_key(job: Job, step: Step, *, actor: str, reason: str) -> None:
    """Another idempotency key for a step that was refused for good: the other side would repeat its refusal for ever."""
    number = _next_number(job)
    key = f"{step.idempotency_key.partition('~')[0]}~{step.attempt}"
    _guarded(step, idempotency_key=key, version=number)
    _event(job, number, "step.key_renewed", step=step, actor=actor, reason=reason, data={"key": key})


def take_from_worker(job: Job, step: Step, *, actor: str, reason: str) -> None:
    """Running → Failed for the moment in which a person completes a step that runs: the attempt is fenced out."""
    calls = step.kind == StepKind.CALL
    taken = Failure(kind=ErrorKind.CANCELLED, code="completed_by_hand", message=reason, in_doubt=calls)
    _fail_running(job, step, taken, Outcome.CANCELLED, kind="step.cancelled", actor=actor, reason=reason)


def note_verdict(job: Job, step: Step, *, done: bool, actor: str, reason: str) -> None:
    """What a person found out of a step whose state it can no longer change."""
    number = _next_number(job)
    Step.objects.filter(pk=step.pk).update(version=number)
    _event(job, number, "step.verdict", step=step, actor=actor, reason=reason, data={"done": done})
    step.refresh_from_db()


def skip(job: Job, step: Step, *, reason: str, actor: str = "scheduler", settled_by: str = "") -> None:
    """NotStarted or Failed → Skipped. Never with doubt open."""
    counted = step.state == StepState.FAILED and step.remedy in COUNTED_OFF
    uncount_item(step)
    _move_step(
        job,
        step,
        StepState.SKIPPED,
        kind="step.skipped",
        actor=actor,
        reason=reason,
        skip_reason=reason,
        settled_by=settled_by,
        finished_at=SagNow(),
        gated=False,
        remedy="",
        remedy_reason="",
    )
    if not counted:
        _count_off(job, step)


def skip_items(job: Job, fan: Step, *, reason: str) -> None:
    """NotStarted → Skipped for all items that never began, at once and with one event."""
    number = _next_number(job)
    items = Step.objects.filter(parent=fan, state=StepState.NOT_STARTED, attempt=0)
    skipped = items.update(state=StepState.SKIPPED, skip_reason=reason, finished_at=SagNow(), version=number)
    _guarded(fan, items_open=F("items_open") - skipped, version=number)
    _event(job, number, "items.skipped", step=fan, actor="scheduler", reason=reason, data={"items": skipped})


def fail_in_doubt(job: Job, step: Step, *, reason: str) -> None:
    """NotStarted → Failed: undo begins while an earlier attempt of this waiting step is in doubt."""
    _move_step(
        job,
        step,
        StepState.FAILED,
        kind="step.failed",
        actor="scheduler",
        reason=reason,
        finished_at=SagNow(),
        error_kind=ErrorKind.IN_DOUBT,
        remedy=Remedy.COMPENSATE,
        remedy_reason=reason,
    )


def decide_remedy(job: Job, step: Step, remedy: Remedy, *, actor: str, reason: str) -> None:
    """Record what becomes of a failed step that is not tried again."""
    number = _next_number(job)
    _guarded(step, remedy=remedy, remedy_reason=reason, version=number)
    _event(job, number, "step.remedy", step=step, actor=actor, reason=reason, data={"remedy": str(remedy)})
    if remedy in COUNTED_OFF:
        _count_off(job, step)


def release_successors(job: Job, step: Step) -> None:
    """Count this step off from those that wait for it, once for ever."""
    released = Step.objects.filter(pk=step.pk, released_at__isnull=True).update(released_at=SagNow())
    if released and step.releases:
        waiting = Step.objects.filter(job=job, seq__in=step.releases, state=StepState.NOT_STARTED)
        waiting.update(
            waiting_for=F("waiting_for") - 1,
            run_after=Greatest(F("run_after"), SagNow()),
            ring_after=Greatest(F("run_after"), SagNow()),
            queue_by=Greatest(F("run_after"), SagNow()) + F("queue_timeout"),
        )


# --- fan-outs, under the job's lock ----------------------------------------------------------------------------------


def plan_items(job: Job, fan: Step, *, total: int, admitted: int) -> None:
    """Write how many items a fan-out has, and how many may start, before the first of them is written."""
    number = _next_number(job)
    _guarded(fan, items_total=total, items_open=total, items_admitted=admitted, version=number)
    _event(job, number, "step.expanded", step=fan, actor="scheduler", data={"items": total})


def write_items(fan: Step, items: Sequence[Any], *, keys: Sequence[str], seq: int) -> None:
    """The next items of a fan-out in the order of its list, in one statement. `keys`: the limit's key of each, or ""."""
    parameters = {"fan": fan.pk, "items": Jsonb(items), "keys": list(keys), "seq": seq, "first": fan.items_made}
    statements.fetch(statements.ITEMS, parameters)
    fan.refresh_from_db()


def add_undos(fan: Step, rows: Sequence[Step]) -> None:
    """The next undos of the items of a fan-out."""
    Step.objects.bulk_create(rows)
    _guarded(fan, items_made=F("items_made") + len(rows))


def count_item(fan: Step, *, failed: bool) -> None:
    """An item has ended: count it off, and let the next one go."""
    _guarded(
        fan,
        items_open=F("items_open") - 1,
        items_failed=F("items_failed") + int(failed),
        items_admitted=F("items_admitted") + 1,
    )


def uncount_item(item: Step) -> None:
    """An item that was counted off as failed is open again, or about to be counted off for another reason."""
    if item.parent_id is not None and Step.objects.filter(ended_item(item.role), pk=item.pk).exists():
        Step.objects.filter(pk=item.parent_id).update(
            items_open=F("items_open") + 1, items_failed=F("items_failed") - 1, items_admitted=F("items_admitted") - 1
        )


def admit_items(fan: Step, *, at_once: int | None) -> list[tuple[int, str]]:
    """Let go the items that may start by now, in the order of the list. [step id, queue] of them."""
    waiting = Step.objects.filter(
        parent=fan, index__lt=fan.items_admitted, state=StepState.NOT_STARTED, held=True, gated=False
    )
    found = list(waiting.order_by("index").values_list("pk", "queue"))
    if found and at_once is not None:
        under_way = Step.objects.filter(parent=fan, held=False).exclude(ended_item(fan.role)).count()
        found = found[: max(at_once - under_way, 0)]
    Step.objects.filter(pk__in=[pk for pk, _ in found]).update(
        held=False, run_after=Greatest(F("run_after"), SagNow()), queue_by=SagNow() + F("queue_timeout")
    )
    return found


def hold_items(fan: Step) -> None:
    """No further item of this fan-out starts."""
    Step.objects.filter(parent=fan, state=StepState.NOT_STARTED, held=False).update(held=True)


def recount_items(fan: Step, *, at_once: int | None) -> None:
    """Where items that had ended are open again: what is open, what has failed and how many may start, counted anew."""
    ended = Step.objects.filter(ended_item(fan.role), parent=fan)
    failed = ended.filter(state=StepState.FAILED).count()
    total = fan.items_total or 0
    still_open = total - ended.count()
    _guarded(
        fan,
        items_open=still_open,
        items_failed=failed,
        items_admitted=(at_once or total) + total - still_open if fan.role == Role.FORWARD else F("items_admitted"),
    )


def ended_item(role: str) -> Q:
    """Items that count as ended. One that stands in front of a person does not, unless it is an undo: those all go on."""
    undecided = ["", Remedy.ESCALATE] if role == Role.FORWARD else [""]
    given_up = Q(state=StepState.FAILED) & ~Q(remedy__in=undecided)
    return Q(state__in=[StepState.COMPLETED, StepState.SKIPPED]) | given_up


def leave_the_close(job: Job) -> None:
    """The scheduler closes this job, since more runs in it than its counter of open steps knows of."""
    if not job.hooked:
        _write_job(job, hooked=True)


# --- doubt -----------------------------------------------------------------------------------------------------------


def resolve_doubts(job: Job, step: Step, by: Attempt.Resolution, *, actor: str = "agent", reason: str = "") -> None:
    """Close the open doubts of a step: it is known now, or undone."""
    resolved = Attempt.objects.filter(step=step, in_doubt=True, resolved_by="").update(resolved_by=by)
    if resolved:
        data = {"by": by, "attempts": resolved}
        _event(job, _next_number(job), "doubt.resolved", step=step, actor=actor, reason=reason, data=data)


def keep_late_word(job: Job, step: Step, *, number: int, outcome: Outcome, result: Any, message: str) -> None:
    """A fenced-out worker speaks: nothing changes, and what it said is kept on its attempt as evidence."""
    Attempt.objects.filter(step=step, number=number).update(
        late_at=SagNow(), late_outcome=outcome, late_result=result, late_message=message
    )
    _event(
        job,
        _next_number(job),
        "attempt.late",
        step=step,
        attempt=number,
        actor="agent",
        reason="The step had been given to another attempt, or ended; the word is kept as evidence.",
        data={"outcome": outcome},
    )


# --- verbs of a job, under its lock ----------------------------------------------------------------------------------


def stop(job: Job, *, reason: Reason, detail: str, undo: bool, actor: str) -> None:
    """Forbid any further start of a running job; what runs may end. `undo` says what comes after."""
    number = _next_number(job)
    _write_job(
        job,
        stopping_at=SagNow(),
        stopping_undo=undo,
        reason=reason,
        reason_detail=detail,
        only_if={"state": JobState.RUNNING},
    )
    hold(job)
    Step.objects.filter(job=job, state=StepState.NOT_STARTED, parked=True).update(parked=False, parked_since=None)
    _event(job, number, "job.stopping", actor=actor, reason=detail, data={"reason": str(reason), "undo": undo})


def begin_undo(
    job: Job,
    rows: Sequence[Step],
    *,
    actor: str = "scheduler",
    why: str = "",
    reason: Reason | None = None,
    partial: bool = False,
) -> None:
    """To Compensating, with the steps that undo. `reason` is that of a job that had ended; one that stops has its own."""
    ended_for: dict[str, Any] = {"reason": reason, "reason_detail": why} if reason else {}
    _move_job(
        job,
        JobState.COMPENSATING,
        kind="job.compensating",
        actor=actor,
        why=why,
        data={"steps": len(rows), "partial": partial},
        stopping_at=None,
        stopping_undo=None,
        finished_at=None,
        told_parent_at=None,
        partial=partial,
        **ended_for,
    )
    for row in rows:
        row.held = job.paused_at is not None or row.gated
        row.version = job.seq
    Step.objects.bulk_create(rows)


def add_recheck(job: Job, row: Step, *, reason: str) -> None:
    """One more undo of an effect that may have landed late. The job's state stays."""
    row.version = _next_number(job)
    row.save(force_insert=True)
    _event(job, row.version, "recheck.added", step=row, actor="scheduler", reason=reason)


def add_rechecks(rows: Sequence[Step]) -> None:
    """The second askings that belong to undos which were just written."""
    Step.objects.bulk_create(rows)


def close(job: Job, state: JobState, *, detail: str = "") -> None:
    """To a terminal state. A pause ends with it: what may still be asked for in it is not held back."""
    Step.objects.filter(job=job, state=StepState.NOT_STARTED, role=Role.RECHECK, held=True).update(held=False)
    said: dict[str, Any] = {"reason_detail": detail} if detail else {}
    _move_job(
        job,
        state,
        kind=f"job.{state.lower()}",
        actor="scheduler",
        why=detail,
        stopping_at=None,
        stopping_undo=None,
        paused_at=None,
        finished_at=SagNow(),
        **said,
    )


def reopen(job: Job, state: JobState, *, actor: str, reason: str) -> None:
    """Failed → Running or Compensating: a person or client tries again after the cause is mended."""
    changes: dict[str, Any] = {}
    if state == JobState.RUNNING:
        # The time of the whole job begins anew with a redrive.
        changes = {"reason": "", "reason_detail": "", "partial": False, "deadline": None}
    _move_job(
        job, state, kind="job.reopened", actor=actor, why=reason, finished_at=None, told_parent_at=None, **changes
    )
    if state == JobState.RUNNING:
        let_go(job)


def go_forward_again(job: Job, rows: Sequence[Step], *, replaced: Sequence[Step]) -> None:
    """New rows of the next generation for steps that were undone or skipped; the old ones stay, with their undos."""
    old = [step.pk for step in replaced]
    Step.objects.filter(Q(pk__in=old) | Q(parent__in=old), job=job).update(superseded=True)
    number = _next_number(job)
    for row in rows:
        row.version = number
    Step.objects.bulk_create(rows)
    names = [row.name for row in rows]
    _event(job, number, "steps.renewed", actor="scheduler", data={"steps": names})


def count_open_steps(job: Job, count: int) -> None:
    """How many forward steps have to end before the job completes, counted anew."""
    _write_job(job, open_steps=count)


def stand_for(job: Job, due: datetime) -> None:
    """The due time for which a schedule has just started this job."""
    job.scheduled_for = due
    Job.objects.filter(pk=job.pk).update(scheduled_for=due)


def set_deadlines() -> int:
    """Begin the time of jobs that have a limit, now that their start has committed, or later if they begin later. How many."""
    begun = Job.objects.filter(
        state=JobState.RUNNING, stopping_at__isnull=True, time_limit__isnull=False, deadline__isnull=True
    )
    first = Step.objects.filter(job_id=OuterRef("pk"), waiting_for=0, parent__isnull=True).order_by("run_after")
    begins = Greatest(SagNow(), Subquery(first.values("run_after")[:1]))
    with transaction.atomic():
        free = begun.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True)[:500]
        return Job.objects.filter(pk__in=list(free)).update(deadline=begins + F("time_limit"))


def told_parent(job: Job) -> None:
    """The step that waited for this job has heard of this end of it, which may not be its last."""
    Job.objects.filter(pk=job.pk, seq=job.seq, told_parent_at__isnull=True).update(told_parent_at=SagNow())


def pause(job: Job, *, actor: str, reason: str) -> None:
    """Nothing starts any more until `resume`; what runs goes on to its end."""
    number = _next_number(job)
    _write_job(job, paused_at=SagNow(), only_if={"paused_at": None})
    hold(job)
    _event(job, number, "job.paused", actor=actor, reason=reason)


def resume(job: Job, *, actor: str, reason: str) -> None:
    number = _next_number(job)
    _write_job(job, paused_at=None)
    let_go(job)
    _event(job, number, "job.resumed", actor=actor, reason=reason)


def hold(job: Job) -> None:
    """Take the job's waiting steps out of the index of ready work, so that claims and rings need not step over them."""
    Step.objects.filter(job=job, state=StepState.NOT_STARTED, held=False).update(held=True)


def let_go(job: Job) -> None:
    """Put them back, but neither those that wait at a gate nor the items whose turn has not come."""
    held = Step.objects.filter(job=job, state=StepState.NOT_STARTED, held=True, gated=False, parked=False)
    its_turn = Q(parent__isnull=True) | Q(index__lt=F("parent__items_admitted"), parent__state=StepState.RUNNING)
    # The time in the queue begins anew with the first ring.
    due = Greatest(F("run_after"), SagNow())
    held.filter(its_turn).update(held=False, ring_after=due, rings=0, queue_by=due + F("queue_timeout"))


def recount(job: Job, counts: Mapping[int, int]) -> None:
    """Set wrong counters of unfinished prerequisites right: {step id: count}. The supervisor found them."""
    for step_id, count in counts.items():
        Step.objects.filter(pk=step_id, job=job, state=StepState.NOT_STARTED).update(waiting_for=count)
    _event(job, _next_number(job), "job.recounted", actor="supervisor", data={"steps": len(counts)})


# --- signals, callbacks, and calls that are made once ----------------------------------------------------------------


def keep_signal(job: Job, *, name: str, payload: Any, actor: str, outcome: Signal.Outcome, reason: str = "") -> Signal:
    """Write down a signal that came, and what becomes of it."""
    stored = Value(None, JSONField()) if payload is None else payload  # the JSON null, which is not "nothing"
    signal = Signal.objects.create(
        job=job, name=name, payload=stored, actor=actor, outcome=outcome, received_at=SagNow()
    )
    data = {"name": name, "outcome": str(outcome)}
    _event(job, _next_number(job), "signal.received", actor=actor, reason=reason, data=data)
    return signal


def take_signal(signal: Signal) -> None:
    """An early signal is heard by the step that now waits for it."""
    Signal.objects.filter(pk=signal.pk).update(outcome=Signal.Outcome.TAKEN)


def note_lost_word(job: Job, step: Step, *, actor: str, reason: str, data: Mapping[str, Any]) -> None:
    """A callback that came when nothing waited for it any more: recorded, and without effect."""
    _event(job, _next_number(job), "callback.ignored", step=step, actor=actor, reason=reason, data=dict(data))


@in_transaction
def intend_once(step_id: int, *, name: str, attempt: int, token: uuid.UUID) -> Once | None:
    """Write that a call is about to be made; the earlier row when there is one, None when it is new."""
    if not Step.objects.filter(pk=step_id, token=token, attempt=attempt).exists():
        raise StaleVersion(f"Attempt {attempt} does not hold step {step_id} any more.")
    known, made = Once.objects.get_or_create(
        step_id=step_id, name=name, defaults={"attempt": attempt, "begun_at": SagNow()}
    )
    return None if made else known


@in_transaction
def keep_once(step_id: int, *, name: str, result: Any) -> None:
    """What the call answered."""
    Once.objects.filter(step_id=step_id, name=name, done_at__isnull=True).update(result=result, done_at=SagNow())


@in_transaction
def forget_once(step_id: int, *, name: str, attempt: int) -> None:
    """The call that this attempt intended is known not to have been made."""
    Once.objects.filter(step_id=step_id, name=name, attempt=attempt, done_at__isnull=True).delete()


# --- breakers --------------------------------------------------------------------------------------------------------

CALL_SLICE = 5.0
_SAMPLES = 20
_UNPARKED_AT_ONCE = 1000


def count_calls(agent: str, word: str, count: int = 1, *, step_id: int | None = None, message: str = "") -> None:
    """How calls of an agent went, in slices of five seconds."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO sag_workflows_callcount AS c (agent, slice_at, word, count, steps, message)
            VALUES (%(agent)s, date_bin(%(slice)s::interval, sag_now(), 'epoch'), %(word)s, %(count)s, %(steps)s::bigint[],
                    %(message)s)
            ON CONFLICT (agent, slice_at, word) DO UPDATE SET count = c.count + EXCLUDED.count,
                steps = CASE WHEN cardinality(c.steps) >= %(samples)s OR c.steps @> EXCLUDED.steps THEN c.steps
                             ELSE c.steps || EXCLUDED.steps END
            """,
            {
                "agent": agent,
                "slice": f"{CALL_SLICE} seconds",
                "word": word[:60],
                "count": count,
                "steps": [] if step_id is None else [step_id],
                "message": message[:1000],
                "samples": _SAMPLES,
            },
        )


def forget_calls(before: datetime) -> None:
    """Counts that nothing is decided on any more."""
    CallCount.objects.filter(slice_at__lt=before).delete()


def lock_new_breaker(agent: str) -> Breaker:
    """The row of an agent that had none, locked. Where two make it at once, the second waits for the first, and has its."""
    Breaker.objects.bulk_create([Breaker(agent=agent)], ignore_conflicts=True)
    return Breaker.objects.select_for_update(no_key=True).get(agent=agent)


def set_breaker(agent: str, **changes: Any) -> None:
    """The one row that all workers go by."""
    Breaker.objects.update_or_create(agent=agent, defaults={"changed_at": SagNow(), **changes})


def park(agent: str, limit: int, *, admitted: bool = False) -> int:
    """Take ready steps of this agent out of the way of others: rows of many jobs, without their locks, as with rings.

    `admitted`: those as well that were let go, and have not started.
    """
    ready = Step.objects.to_park(agent) | Step.objects.admitted(agent) if admitted else Step.objects.to_park(agent)
    with transaction.atomic():
        free = ready.select_for_update(skip_locked=True, no_key=True)[:limit]
        return Step.objects.filter(pk__in=list(free.values_list("pk", flat=True))).update(
            held=True, parked=True, admitted=False, parked_since=Coalesce("parked_since", SagNow())
        )


def admit(agent: str, limit: int) -> list[int]:
    """Let so many parked steps of this agent start, those that waited longest. Their ids."""
    parked = Step.objects.parked(agent).of_moving_jobs().due_to_start()
    with transaction.atomic():
        free = parked.select_for_update(skip_locked=True, no_key=True, of=("self",))[:limit]
        found = list(free.values_list("pk", flat=True))
        _unpark(found, admitted=True)
    return found


def unpark_forgotten() -> None:
    """Parked steps whose agent's breaker is closed, and whose jobs are not paused: nobody lets them go but this.

    Those of paused jobs, those in a back-off, and those that two processes parked and let go at the same moment.
    """
    with transaction.atomic():
        parked = Step.objects.parked_for_nothing().of_moving_jobs()
        free = parked.select_for_update(skip_locked=True, no_key=True, of=("self",))[:_UNPARKED_AT_ONCE]
        _unpark(list(free.values_list("pk", flat=True)), admitted=False)


def _unpark(steps: Sequence[int], *, admitted: bool) -> None:
    # The time in the queue begins anew with the first ring.
    due = Greatest(F("run_after"), SagNow())
    Step.objects.filter(pk__in=steps).update(
        held=False,
        parked=False,
        admitted=admitted,
        run_after=due,
        ring_after=due,
        rings=0,
        queue_by=due + F("queue_timeout"),
    )


# --- agents ---------------------------------------------------------------------------------------------------------


@in_transaction
def announce(agent: Agent) -> None:
    """A worker says what it can do. Steps that wait for this agent in another queue follow it.

    All steps are read only where it says so for the first time or something else than before; else those alone that are
    ready: they may have been opened just as it changed.
    """
    before = Agent.objects.select_for_update(no_key=True).filter(pk=agent.name).first()
    agent.announced_at = SagNow()
    # `rate_next` stays: other workers count on it.
    told = [field.name for field in Agent._meta.concrete_fields if field.name not in ("name", "rate_next")]
    Agent.objects.bulk_create([agent], update_conflicts=True, unique_fields=["name"], update_fields=told)
    waiting = Step.objects.filter(agent=agent.name, state=StepState.NOT_STARTED)
    if before is not None and (before.queue, before.has_limit) == (agent.queue, agent.has_limit):
        waiting = waiting.filter(waiting_for=0, held=False)
    waiting.exclude(queue=agent.queue).update(queue=agent.queue)
    waiting.filter(limit_key="").exclude(limited=agent.has_limit).update(limited=agent.has_limit)


# --- workers ---------------------------------------------------------------------------------------------------------


def note_worker(worker: Worker, changed: Sequence[str]) -> None:
    """A worker tells of itself. Where its row is there, only what has changed is written; one that is gone comes back."""
    Worker.objects.bulk_create([worker], update_conflicts=True, unique_fields=["name"], update_fields=changed)


def ask_to_drain(workers: QuerySet[Worker], *, actor: str, reason: str) -> list[str]:
    """A person wants these workers to end what they do, and to end; those that are about to anyway are passed over. Names."""
    asked = workers.filter(stopped_at__isnull=True, draining_at__isnull=True, drain_asked_at__isnull=True)
    with transaction.atomic():
        names = sorted(asked.select_for_update(no_key=True).values_list("name", flat=True))
        Worker.objects.filter(name__in=names).update(drain_asked_at=SagNow(), drain_asked_by=actor, drain_reason=reason)
    return names


def note_polls(unseen_for: timedelta) -> list[str]:
    """For each worker that was not seen for so long, one of its queues: whoever is alive answers a doorbell there.

    One that stays away is asked after more and more rarely.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE sag_workflows_worker SET polled_at = sag_now(), polls = polls + 1
            WHERE stopped_at IS NULL AND draining_at IS NULL
              AND GREATEST(seen_at, polled_at) < sag_now() - GREATEST(make_interval(secs => %s), (sag_now() - seen_at) / 10)
            RETURNING queues[1]
            """,
            [unseen_for.total_seconds()],
        )
        return [queue for (queue,) in cursor.fetchall()]


def forget_workers(before: datetime) -> None:
    """Those that were not seen since."""
    Worker.objects.filter(seen_at__lt=before).delete()


# --- retention -------------------------------------------------------------------------------------------------------


@in_transaction
def prune(jobs: Sequence[uuid.UUID]) -> int:
    """Delete ended jobs with all that belongs to them, unless one was taken up again meanwhile. How many.

    All but their events, which nobody finds any more, and which go later, a week at once (`history.drop`).
    """
    ended = Job.objects.filter(pk__in=jobs, state__in=TERMINAL_JOB_STATES).select_for_update(skip_locked=True)
    found = list(ended.values_list("pk", flat=True))
    steps = Step.objects.filter(job__in=found)
    # By what refers to what, one statement a table; the rows are too many to be read first, as the ORM's cascade would.
    for rows in (
        Attempt.objects.filter(step__in=steps),
        Once.objects.filter(step__in=steps),
        Signal.objects.filter(job__in=found),
        steps,
        Job.objects.filter(pk__in=found),
    ):
        rows._raw_delete(rows.db)
    return len(found)


def forget_events(partition: str, jobs: Sequence[uuid.UUID], limit: int) -> int:
    """Delete, from one partition of the history, events of those of these jobs that are no more: `limit` at most. How many."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_EVENTS.format(partition=Identifier(partition)), [list(jobs), list(jobs), limit])
        forgotten: int = cursor.rowcount
    return forgotten


# --- doorbells -------------------------------------------------------------------------------------------------------


@in_transaction
def note_rings(steps: Iterable[Step]) -> None:
    """After a ring the next is due later and later: a queue without workers must not fill with doorbells.

    These are rows of many jobs, without their locks: one that is locked is passed over, and rung for again.
    """
    by_rings: dict[int, list[int]] = {}
    for step in steps:
        by_rings.setdefault(step.rings, []).append(step.pk)
    for rings, ids in by_rings.items():
        wait = timedelta(seconds=min(conf.ring_old * 2**rings, conf.ring_cap))
        noted = Step.objects.filter(pk__in=ids, state=StepState.NOT_STARTED, rings=rings)
        free = noted.select_for_update(skip_locked=True, no_key=True)
        # The time in the queue begins when a step is first seen there.
        seen = {} if rings else {"queue_by": Greatest(F("queue_by"), SagNow() + F("queue_timeout"))}
        Step.objects.filter(pk__in=free.values("pk")).update(ring_after=SagNow() + wait, rings=rings + 1, **seen)


# --- the pen ---------------------------------------------------------------------------------------------------------


def _fail_running(
    job: Job,
    step: Step,
    failure: Failure,
    outcome: Outcome,
    *,
    kind: str,
    actor: str,
    reason: str = "",
    sent: Any = None,
) -> None:
    _end_attempt(
        step,
        outcome,
        input=sent,
        error_kind=failure.kind,
        error_code=failure.code,
        error_message=failure.message,
        error_frame=failure.frame,
        in_doubt=failure.in_doubt,
    )
    _move_step(
        job,
        step,
        StepState.FAILED,
        kind=kind,
        actor=actor,
        reason=reason or failure.message,
        data={"kind": failure.kind, "code": failure.code, "in_doubt": failure.in_doubt},
        finished_at=SagNow(),
        charged=F("charged") + 1,
        error_kind=failure.kind,
        error_code=failure.code,
        error_message=failure.message,
        retry_after=None if failure.retry_after is None else timedelta(seconds=failure.retry_after),
        **_NO_LEASE,
    )


def _end_attempt(step: Step, outcome: Outcome, **changes: Any) -> None:
    Attempt.objects.filter(step=step, number=step.attempt, outcome="").update(
        outcome=outcome, finished_at=SagNow(), **changes
    )


def _count_off(job: Job, step: Step) -> None:
    if step.role == Role.FORWARD and step.parent_id is None:
        _write_job(job, open_steps=Greatest(F("open_steps") - 1, 0))


def _move_step(
    job: Job,
    step: Step,
    target: StepState,
    *,
    kind: str,
    actor: str,
    reason: str = "",
    data: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    if (step.state, target) not in STEP_MOVES:
        raise AssertionError(f"no edge leads a step from {step.state} to {target}")
    number = _next_number(job)
    attempt = step.attempt or None
    _guarded(step, state=target, version=number, **changes)
    _event(job, number, kind, step=step, attempt=attempt, actor=actor, reason=reason, data=data)


def _guarded(step: Step, **changes: Any) -> None:
    """Write a step only while it is what the caller read under the lock, then read it anew."""
    rows = Step.objects.filter(pk=step.pk, state=step.state, attempt=step.attempt, token=step.token).update(**changes)
    if rows != 1:
        raise StaleVersion(f"Step {step.name} is no longer {step.state} in attempt {step.attempt}.")
    step.refresh_from_db()


def _move_job(
    job: Job,
    target: JobState,
    *,
    kind: str,
    actor: str,
    why: str = "",
    data: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    if (job.state, target) not in JOB_MOVES:
        raise AssertionError(f"no edge leads a job from {job.state} to {target}")
    number = _next_number(job)
    _write_job(job, state=target, only_if={"state": job.state}, **changes)
    _event(job, number, kind, actor=actor, reason=why, data=data)


def _write_job(job: Job, *, only_if: Mapping[str, Any] | None = None, **changes: Any) -> None:
    rows = Job.objects.filter(pk=job.pk, **_as_filter(only_if or {})).update(**changes)
    if rows != 1:
        raise StaleVersion(f"Job {job.pk} is no longer what it was.")
    job.refresh_from_db()


def _as_filter(believed: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{field}__isnull" if value is None else field: value is None or value for field, value in believed.items()}


def _next_number(job: Job) -> int:
    """The number of the job's next event, drawn under its lock."""
    job.seq += 1
    Job.objects.filter(pk=job.pk).update(seq=job.seq)
    return job.seq


def _event(
    job: Job,
    number: int,
    kind: str,
    *,
    actor: str,
    step: Step | None = None,
    attempt: int | None = None,
    reason: str = "",
    data: dict[str, Any] | None = None,
) -> None:
    Event.objects.create(
        job=job,
        seq=number,
        kind=kind,
        step=step.address if step else "",
        attempt=attempt,
        actor=actor,
        reason=reason,
        data=data,
        at=SagNow(),
    )
