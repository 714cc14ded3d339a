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
from django.db.models import F
from django.db.models.functions import Greatest
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.types.json import Jsonb

from workflows import statements
from workflows.clock import SagNow
from workflows.conf import conf
from workflows.exceptions import NotFound, StaleVersion
from workflows.models import Agent, Attempt, Event, Job, Step
from workflows.plans.plan import Plan
from workflows.states import (
    JOB_MOVES,
    STEP_MOVES,
    ErrorKind,
    JobState,
    Outcome,
    Reason,
    Remedy,
    Role,
    StepState,
)

P = ParamSpec("P")
T = TypeVar("T")

# The error code of an attempt whose call was made and whose result cannot be kept: never retried, always undone.
RESULT_NOT_STORABLE = "result_not_storable"

_TRIES_AFTER_DEADLOCK = 5


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

    `given` is the job's input, `plan` the steps of its plan as JSON, `seq` this step's place in it. `age` is how long ago
    it was claimed, which is not zero only where the answer to that was lost.
    """

    step_id: int
    job_id: uuid.UUID
    seq: int
    name: str
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
    given: dict[str, Any]
    plan: list[dict[str, Any]]
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """What settling a step led to: the job's state, the step handed over, [step id, queue] of others to ring for."""

    job_state: str
    handed_over: Claimed | None = None
    to_ring: list[tuple[int, str]]


def start(job: Job, *, plan: Plan, actor: str, start_at: datetime | None) -> list[tuple[int, str]] | None:
    """Write an unsaved job, its steps and its first event, in one statement.

    [step id, queue] of the steps that wait for no other; None when the job's key is taken. Sets `created_at`.
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
        },
    )
    if not rows:
        return None
    job.created_at = rows[0].opened_at
    job._state.adding = False
    return [(row.step_id, row.queue) for row in rows]


def claim(step_id: int, *, token: uuid.UUID, worker: str, unless_locked: bool = False) -> Claimed | None:
    """NotStarted → Running, for the one that holds `token`. None when the step may not start now, or is taken."""
    rows = statements.fetch(
        statements.CLAIM_UNLESS_LOCKED if unless_locked else statements.CLAIM,
        {"step": step_id, "token": token, "worker": worker, "lease": timedelta(seconds=conf.lease)},
    )
    if not rows:
        return None
    # Django keeps psycopg from parsing jsonb.
    return Claimed(**{**rows[0]._asdict(), "given": json.loads(rows[0].given), "plan": json.loads(rows[0].plan)})


def candidates(queue: str, limit: int) -> list[int]:
    """Ids of the steps of a queue that may start now, oldest first, read without a lock."""
    return [row.id for row in statements.fetch(statements.CANDIDATES, {"queue": queue, "limit": limit})]


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
            seq=row.seq,
            name=row.name,
            operation=row.operation,
            queue=row.queue,
            attempt=row.attempt,
            token=row.token,
            probe_only=False,
            idempotency_key=row.idempotency_key,
            timeout=row.timeout,
            age=0.0,
        )
    return Settled(
        job_state=row.job_state,
        handed_over=handed_over,
        to_ring=[(step_id, queue) for step_id, queue in json.loads(row.to_ring or "[]")],
    )


def heartbeat(held: Mapping[uuid.UUID, int]) -> set[uuid.UUID]:
    """Extend the leases of the steps {token: step id}. The tokens that still hold theirs."""
    rows = statements.fetch(
        statements.HEARTBEAT,
        {"steps": list(held.values()), "tokens": list(held), "lease": timedelta(seconds=conf.lease)},
    )
    return {row.token for row in rows}


# --- verbs of a step, under the job's lock ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed. `in_doubt`: the other side may have done it. `retry_after`: seconds, as it asked for."""

    kind: str
    code: str
    message: str
    in_doubt: bool = False
    retry_after: float | None = None


def complete(job: Job, step: Step, *, result: Any, sent: Any, actor: str) -> None:
    """Running → Completed."""
    _end_attempt(step, Outcome.COMPLETED, input=sent)
    _move_step(
        job,
        step,
        StepState.COMPLETED,
        kind="step.completed",
        actor=actor,
        result=result,
        finished_at=SagNow(),
        error_kind="",
        error_code="",
        error_message="",
        **_NO_LEASE,
    )
    if step.role == "forward":
        _write_job(job, open_steps=F("open_steps") - 1)


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


def retry(
    job: Job,
    step: Step,
    *,
    delay: timedelta,
    actor: str,
    reason: str,
    probe_only: bool = False,
    fresh_allowance: bool = False,
) -> None:
    """Failed → NotStarted, to start no sooner than `delay` from now. A person's retry brings a fresh allowance."""
    due = SagNow() + delay
    changes: dict[str, Any] = {"charged": 0} if fresh_allowance else {}
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
        rings=0,
        probe_only=probe_only,
        held=job.paused_at is not None,
        finished_at=None,
        remedy="",
        remedy_reason="",
        **changes,
    )


def skip(job: Job, step: Step, *, reason: str) -> None:
    """NotStarted → Skipped. Never with doubt open."""
    _move_step(
        job, step, StepState.SKIPPED, kind="step.skipped", actor="scheduler", reason=reason, finished_at=SagNow()
    )


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


def release_successors(job: Job, step: Step) -> None:
    """Count this step off from those that wait for it, once for ever."""
    released = Step.objects.filter(pk=step.pk, released_at__isnull=True).update(released_at=SagNow())
    if released and step.releases:
        waiting = Step.objects.filter(job=job, seq__in=step.releases, state=StepState.NOT_STARTED)
        waiting.update(
            waiting_for=F("waiting_for") - 1,
            run_after=Greatest(F("run_after"), SagNow()),
            ring_after=Greatest(F("run_after"), SagNow()),
        )


# --- doubt -----------------------------------------------------------------------------------------------------------


def resolve_doubts(job: Job, step: Step, by: Attempt.Resolution) -> None:
    """Close the open doubts of a step: it is known now, or undone."""
    resolved = Attempt.objects.filter(step=step, in_doubt=True, resolved_by="").update(resolved_by=by)
    if resolved:
        data = {"by": by, "attempts": resolved}
        _event(job, _next_number(job), "doubt.resolved", step=step, actor="agent", data=data)


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
    _event(job, number, "job.stopping", actor=actor, reason=detail, data={"reason": str(reason), "undo": undo})


def begin_undo(job: Job, rows: Sequence[Step]) -> None:
    """Running → Compensating, with the steps that undo."""
    _move_job(
        job, JobState.COMPENSATING, kind="job.compensating", actor="scheduler", stopping_at=None, stopping_undo=None
    )
    for row in rows:
        row.held = job.paused_at is not None
    Step.objects.bulk_create(rows)


def add_recheck(job: Job, row: Step, *, reason: str) -> None:
    """One more undo of an effect that may have landed late. The job's state stays."""
    row.version = _next_number(job)
    row.save(force_insert=True)
    _event(job, row.version, "recheck.added", step=row, actor="scheduler", reason=reason)


def close(job: Job, state: JobState, *, detail: str = "") -> None:
    """To a terminal state. A pause ends with it: what may still be asked for in it is not held back."""
    Step.objects.filter(job=job, state=StepState.NOT_STARTED, role=Role.RECHECK, held=True).update(held=False)
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
    )


def reopen(job: Job, state: JobState, *, actor: str, reason: str) -> None:
    """Failed → Running or Compensating: a person or client tries again after the cause is mended."""
    changes: dict[str, Any] = {"reason": "", "reason_detail": ""} if state == JobState.RUNNING else {}
    _move_job(job, state, kind="job.reopened", actor=actor, why=reason, finished_at=None, **changes)
    if state == JobState.RUNNING:
        let_go(job)


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
    Step.objects.filter(job=job, state=StepState.NOT_STARTED, held=True).update(held=False)


def recount(job: Job, counts: Mapping[int, int]) -> None:
    """Set wrong counters of unfinished prerequisites right: {step id: count}. The supervisor found them."""
    for step_id, count in counts.items():
        Step.objects.filter(pk=step_id, job=job, state=StepState.NOT_STARTED).update(waiting_for=count)
    _event(job, _next_number(job), "job.recounted", actor="supervisor", data={"steps": len(counts)})


# --- agents ---------------------------------------------------------------------------------------------------------


def announce(agent: Agent) -> None:
    """A worker says what it can do. Steps that wait for this agent in another queue follow it."""
    agent.announced_at = SagNow()
    agent.save()
    Step.objects.filter(agent=agent.name, state=StepState.NOT_STARTED).exclude(queue=agent.queue).update(
        queue=agent.queue
    )


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
        Step.objects.filter(pk__in=free.values("pk")).update(ring_after=SagNow() + wait, rings=rings + 1)


# --- the pen ---------------------------------------------------------------------------------------------------------

_NO_LEASE: dict[str, Any] = {"token": None, "complete_by": None, "deadline": None}


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


def _move_job(job: Job, target: JobState, *, kind: str, actor: str, why: str = "", **changes: Any) -> None:
    if (job.state, target) not in JOB_MOVES:
        raise AssertionError(f"no edge leads a job from {job.state} to {target}")
    number = _next_number(job)
    _write_job(job, state=target, only_if={"state": job.state}, **changes)
    _event(job, number, kind, actor=actor, reason=why)


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
        step=step.name if step else "",
        attempt=attempt,
        actor=actor,
        reason=reason,
        data=data,
        at=SagNow(),
    )
