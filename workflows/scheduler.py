"""What comes next. Opens jobs, takes in what the agents report, moves each job to its next state, and hears people.

Every function here is one short transaction (or takes part in the caller's): the job locked first, then read, then a
pure decision (`next_move`), then the verbs of `transitions`. No function makes a remote call; doorbells ring after the
commit. Nothing depends on the process that runs it: any worker, web server or supervisor is the scheduler for a moment.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from django.db import OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

from workflows import broker, compensation, transitions
from workflows.clock import now
from workflows.exceptions import InvalidInput, KeyConflict, KeyInUse, NotFound, StaleVersion, WrongState
from workflows.models import Agent, Attempt, Job, Step
from workflows.models.job import new_job_id
from workflows.plans.plan import Plan
from workflows.states import JobState, Outcome, Reason, Remedy, Role, StepState
from workflows.transitions import Claimed, Failure, Settled, in_transaction

# --- opening ---------------------------------------------------------------------------------------------------------


def open_job(
    *,
    plan: Plan,
    input: Any,
    key: str | None = None,
    client_id: int | None = None,
    actor: str = "application",
    start_at: datetime | None = None,
) -> Job:
    """Write a job and all its steps, and ring for the first ones on commit.

    Inside the caller's `atomic()` the job commits or vanishes with the caller's rows. The same client, workflow and key
    give the same job; with another input KeyConflict; KeyInUse while another start of that key has not committed yet.
    """
    job = Job(
        id=new_job_id(),
        client_id=client_id,
        key=key,
        workflow=plan.workflow,
        version=plan.version,
        plan=json.loads(plan.document),
        input=input,
        state=JobState.RUNNING,
        reason="",
        reason_detail="",
        seq=1,
        open_steps=len(plan.steps),
    )
    # A start that waits for another one of its key gives up after `lock_timeout`; a savepoint keeps the caller's rows.
    guard = transaction.atomic() if key is not None and connection.in_atomic_block else nullcontext()
    try:
        with guard:
            first = transitions.start(job, plan=plan, actor=actor, start_at=start_at)
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            raise KeyInUse(f"Another start of {plan.workflow} under the key {key!r} is being accepted.") from error
        raise
    if first is None:
        return _job_of_key(plan, input, key, client_id)
    if start_at is None:
        broker.ring_on_commit(first)
    return job


def _job_of_key(plan: Plan, input: Any, key: str | None, client_id: int | None) -> Job:
    job = Job.objects.filter(client_id=client_id, workflow=plan.workflow, key=key).first()
    if job is None:
        raise KeyInUse(f"The job of {plan.workflow} under the key {key!r} was just removed; start again.")
    # Compared where it is stored: Python takes true for 1, and reads a large number back as another.
    if not Job.objects.filter(pk=job.pk, input=input).exists():
        raise KeyConflict(f"The key {key!r} already started job {job.pk} of {plan.workflow} with another input.")
    return job


# --- what agents report ----------------------------------------------------------------------------------------------


def settle(
    claimed: Claimed,
    *,
    result: str,
    sent: str | None,
    next_token: uuid.UUID,
    worker: str,
    hand_over: bool,
    follows_doubt: bool = False,
    by_probe: bool = False,
) -> Settled | None:
    """An attempt succeeded. `result`, and `sent`, the input that went out, are JSON text.

    None when its word came too late and was kept as evidence.

    Repeating one's own settle answers as the first time did. The worker draws `next_token` before, so that it can ask.
    """
    if claimed.role == Role.FORWARD and not follows_doubt:
        settled = transitions.settle(
            claimed, result=result, sent=sent, next_token=next_token, worker=worker, hand_over=hand_over
        )
        if settled is not None:
            broker.ring_on_commit(settled.to_ring)
            return settled
    return _settle_under_lock(claimed, json.loads(result), sent, next_token, by_probe)


@in_transaction
def _settle_under_lock(
    claimed: Claimed, result: Any, sent: str | None, next_token: uuid.UUID, by_probe: bool
) -> Settled | None:
    job, step = _locked(claimed.job_id, claimed.step_id)
    if not _holds(step, claimed):
        attempt = Attempt.objects.get(step=step, number=claimed.attempt)
        if attempt.token == claimed.token and attempt.outcome == Outcome.COMPLETED:
            return _as_the_first_time(job, claimed, next_token)
        _hear_late_word(job, step, claimed, outcome=Outcome.COMPLETED, result=result, message="")
        return None
    transitions.complete(job, step, result=result, sent=_parsed(sent), actor="agent")
    _resolve_doubts_by_success(job, step, by_probe)
    transitions.release_successors(job, step)
    move_on(job)
    return Settled(job_state=job.state, to_ring=_ring_for_ready(job))


@in_transaction
def fail(claimed: Claimed, failure: Failure, *, sent: str | None) -> bool:
    """An attempt failed. `sent` is the input that went out, JSON text. False when its word came too late, as evidence."""
    job, step = _locked(claimed.job_id, claimed.step_id)
    if not _holds(step, claimed):
        attempt = Attempt.objects.get(step=step, number=claimed.attempt)
        if attempt.token == claimed.token and attempt.outcome == Outcome.FAILED:
            return True
        _hear_late_word(job, step, claimed, outcome=Outcome.FAILED, result=None, message=failure.message)
        return False
    transitions.fail(job, step, failure, sent=_parsed(sent), actor="agent")
    _after_failure(job, step)
    return True


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def claimed_under(step_id: int, token: uuid.UUID) -> Claimed | None:
    """The claim that went through although its answer was lost; None when it did not."""
    step = Step.objects.select_related("job").filter(pk=step_id, token=token, state=StepState.RUNNING).first()
    return _claim_of(step, step.job.input, step.job.plan["steps"]) if step else None


def _holds(step: Step, claimed: Claimed) -> bool:
    """The fence."""
    return step.state == StepState.RUNNING and (step.attempt, step.token) == (claimed.attempt, claimed.token)


def _as_the_first_time(job: Job, claimed: Claimed, next_token: uuid.UUID) -> Settled:
    """The commit had gone through and its answer was lost: find what was handed over under the token drawn for it."""
    step = Step.objects.filter(job=job, token=next_token, state=StepState.RUNNING).first()
    if step is None:
        return Settled(job_state=job.state, to_ring=_ring_for_ready(job))
    return Settled(job_state=job.state, handed_over=_claim_of(step, claimed.given, claimed.plan), to_ring=[])


def _claim_of(step: Step, given: Any, plan: list[dict[str, Any]]) -> Claimed:
    if step.token is None or step.deadline is None:
        raise AssertionError(f"step {step.name} is held by nobody")
    return Claimed(
        step_id=step.pk,
        job_id=step.job_id,
        seq=step.seq,
        name=step.name,
        role=step.role,
        undoes_id=step.undoes_id,
        operation=step.operation,
        queue=step.queue,
        attempt=step.attempt,
        token=step.token,
        probe_only=step.probe_only,
        idempotency_key=step.idempotency_key,
        timeout=step.timeout.total_seconds(),
        workflow=step.job.workflow,
        given=given,
        plan=plan,
        age=(now() - (step.deadline - step.timeout)).total_seconds(),
    )


def _resolve_doubts_by_success(job: Job, step: Step, by_probe: bool) -> None:
    """What resolves doubt: the probe's "done", an answer under the same key where the agent honours keys, the undo."""
    agents = announced_agents()
    agent = agents.get(step.agent)
    if step.role == Role.FORWARD:
        if by_probe:
            transitions.resolve_doubts(job, step, Attempt.Resolution.PROBE)
        elif agent is not None and agent.honours_keys:
            transitions.resolve_doubts(job, step, Attempt.Resolution.ANSWER)
        return
    original = step.undoes
    if original is None:
        raise AssertionError(f"step {step.name} undoes nothing")
    answer_is_final = step.role == Role.RECHECK or compensation.closes_keys(original, agents)
    if answer_is_final or not original.attempts.filter(in_doubt=True).exists():
        transitions.resolve_doubts(job, original, Attempt.Resolution.UNDO)
    if agent is not None and agent.honours_keys:
        transitions.resolve_doubts(job, step, Attempt.Resolution.ANSWER)


def _hear_late_word(job: Job, step: Step, claimed: Claimed, *, outcome: Outcome, result: Any, message: str) -> None:
    """Keep it as evidence. Where an effect came to light behind a finished undo, the undo is asked once more."""
    transitions.keep_late_word(job, step, number=claimed.attempt, outcome=outcome, result=result, message=message)
    if outcome != Outcome.COMPLETED or step.role != Role.FORWARD:
        return
    undos = list(Step.objects.filter(undoes=step).order_by("seq"))
    undone = [undo for undo in undos if undo.state == StepState.COMPLETED]
    asked_again = [undo for undo in undos if undo.role == Role.RECHECK and undo.state in _UNENDED]
    if undone and not asked_again:
        _add_recheck(job, step, ordinal=sum(undo.role == Role.RECHECK for undo in undos) + 1)


def _add_recheck(job: Job, step: Step, ordinal: int) -> None:
    plan = Plan.from_json(job.plan)
    steps = list(Step.objects.filter(job=job))
    row = compensation.recheck_row(
        job,
        step,
        plan.step(step.name),
        compensation.NO_EVIDENCE,
        announced_agents(),
        max(other.seq for other in steps) + 1,
    )
    if ordinal > 1:
        row.name = f"{row.name}.{ordinal}"
        row.idempotency_key = f"{row.idempotency_key}.{ordinal}"
    transitions.add_recheck(job, row, reason="A late answer shows an effect behind the finished undo.")
    broker.ring_on_commit([(row.pk, row.queue)])


def _after_failure(job: Job, step: Step) -> None:
    """In an ordinary job the supervisor chooses a remedy, at once; a stopping job was only waiting for this end."""
    if job.stopping_at is not None:
        move_on(job)
    else:
        broker.ring_supervisor_on_commit(step.pk)


# --- moving a job to its next state ----------------------------------------------------------------------------------


class Move(Enum):
    """What a job is ready for."""

    NOTHING = auto()
    COMPLETE = auto()
    UNDO = auto()
    FAIL = auto()
    END_UNDO = auto()


_UNENDED = (StepState.NOT_STARTED, StepState.RUNNING)


def next_move(job: Job, steps: Sequence[Step], agents: Mapping[str, Agent]) -> Move:
    """Pure. A stopping job waits for what still runs; an undo ends when every row that holds the close has ended."""
    forward = [step for step in steps if step.role == Role.FORWARD]
    if job.state == JobState.RUNNING:
        if any(step.state == StepState.RUNNING for step in forward):
            return Move.NOTHING
        if job.stopping_at is not None:
            return Move.UNDO if job.stopping_undo else Move.FAIL
        ended_well = all(step.state in (StepState.COMPLETED, StepState.SKIPPED) for step in forward)
        return Move.COMPLETE if ended_well else Move.NOTHING
    if job.state == JobState.COMPENSATING:
        holding = [step for step in steps if compensation.holds_the_close(step, agents)]
        return Move.END_UNDO if all(_has_ended(step) for step in holding) else Move.NOTHING
    return Move.NOTHING


def _has_ended(step: Step) -> bool:
    """Failed is an end only once the machine, or a person, has given up on it."""
    if step.state == StepState.FAILED:
        return step.remedy == Remedy.ESCALATE
    return step.state not in _UNENDED


def move_on(job: Job) -> None:
    """Move a locked job to its next state, if it is ready for one."""
    agents = announced_agents()
    steps = list(Step.objects.filter(job=job).for_timeline())
    match next_move(job, steps, agents):
        case Move.COMPLETE:
            transitions.close(job, JobState.COMPLETED)
        case Move.UNDO:
            _begin_undo(job, steps, agents)
        case Move.FAIL:
            _end_failed_steps(job, steps, Remedy.WAIT, "The job ended without undo.")
            transitions.close(job, JobState.FAILED, detail=job.reason_detail)
        case Move.END_UNDO:
            _end_undo(job, steps)


def _begin_undo(job: Job, steps: Sequence[Step], agents: Mapping[str, Agent]) -> None:
    """Undo what was done. Where nothing can be, the job fails as it stands, so that a person may take it on from here."""
    evidence = compensation.evidence_of(steps)
    plan = Plan.from_json(job.plan)
    rows = compensation.plan_undo(job, plan, steps, evidence, agents)
    reversible = any(step.compensation for step in plan.steps)
    touched = any(step.state == StepState.COMPLETED or evidence[step.pk].open_doubt for step in steps)
    if not rows and (touched or not reversible):
        _end_failed_steps(job, steps, Remedy.WAIT, "Nothing that was done can be undone.")
        transitions.close(job, JobState.FAILED, detail=job.reason_detail)
        return
    for step in steps:
        if step.state == StepState.NOT_STARTED and evidence[step.pk].open_doubt:
            transitions.fail_in_doubt(job, step, reason="Undo began while an attempt was in doubt.")
        elif step.state == StepState.NOT_STARTED:
            transitions.skip(job, step, reason="Undo began before this step.")
    _end_failed_steps(job, steps, Remedy.COMPENSATE, "The job is being undone.")
    if rows:
        transitions.begin_undo(job, rows)
        _ring_for_ready(job)
    else:
        transitions.close(job, JobState.COMPENSATED, detail=job.reason_detail)


def _end_failed_steps(job: Job, steps: Sequence[Step], remedy: Remedy, reason: str) -> None:
    for step in steps:
        if step.state == StepState.FAILED and step.remedy == "":
            transitions.decide_remedy(job, step, remedy, actor="scheduler", reason=reason)


def _end_undo(job: Job, steps: Sequence[Step]) -> None:
    evidence = compensation.evidence_of(steps)
    undone = all(step.state != StepState.FAILED for step in steps if step.role == Role.UNDO)
    doubt = any(evidence[step.pk].open_doubt for step in steps if step.role == Role.FORWARD)
    transitions.close(job, JobState.COMPENSATED if undone and not doubt else JobState.FAILED, detail=job.reason_detail)


@in_transaction
def heal(job_id: uuid.UUID) -> bool:
    """Set a stranded job moving again: its counters, its held steps, its next move. False when it is not stranded."""
    job = transitions.lock(job_id, unless_locked=True)
    if job is None or not Job.objects.filter(pk=job_id).stranded().exists():
        return False
    steps = list(Step.objects.filter(job=job))
    ended = {step.seq for step in steps if step.released_at is not None}
    counts: dict[int, int] = {}
    for step in steps:
        if step.state == StepState.NOT_STARTED:
            unfinished = sum(step.seq in other.releases for other in steps if other.seq not in ended)
            if unfinished != step.waiting_for:
                counts[step.pk] = unfinished
    if counts:
        transitions.recount(job, counts)
    if job.stopping_at is None:
        transitions.let_go(job)
    _ring_for_ready(job)
    move_on(job)
    return True


# --- what the supervisor decided -------------------------------------------------------------------------------------


def give_up(job: Job, step: Step, *, reason: str) -> None:
    """A forward step will not succeed: stop the locked job and undo it."""
    transitions.decide_remedy(job, step, Remedy.COMPENSATE, actor="supervisor", reason=reason)
    detail = f"{step.name}: {step.error_message}"
    if job.stopping_at is None:
        transitions.stop(job, reason=Reason.STEP_FAILED, detail=detail, undo=True, actor="supervisor")
    move_on(job)


def escalate(job: Job, step: Step, *, reason: str) -> None:
    """An undo will not succeed: a person is told; the undo of other steps goes on."""
    transitions.decide_remedy(job, step, Remedy.ESCALATE, actor="supervisor", reason=reason)
    transitions.release_successors(job, step)
    _ring_for_ready(job)
    move_on(job)


# --- what people and clients ask for ---------------------------------------------------------------------------------


@in_transaction
def cancel(job_id: uuid.UUID, *, undo: bool, actor: str, reason: str, seen: int | None = None) -> Job:
    """Stop a job, by default with undo. Asking again while it stops or is undone gives the same answer.

    `seen` is the version the caller looked at; None takes whatever is there. Raises WrongState once the job has ended.
    """
    if not undo and not reason.strip():
        fault = "to cancel without undo needs a reason"
        raise InvalidInput(f"The request is refused: {fault}.", errors=[{"pointer": "/reason", "message": fault}])
    job = _locked_job(job_id, seen)
    if job.is_terminal:
        raise WrongState(f"The job is {job.state}; it has ended.", state=job.state, allowed=job_verbs(job))
    if job.state == JobState.RUNNING and job.stopping_at is None:
        if job.paused_at is not None:
            transitions.resume(job, actor=actor, reason="To cancel lifts the pause.")
        transitions.stop(job, reason=Reason.CANCELLED, detail=reason, undo=undo, actor=actor)
        move_on(job)
    return job


@in_transaction
def cancel_step(job_id: uuid.UUID, name: str, *, actor: str, reason: str, seen: int | None = None) -> Step:
    """Fence out the attempt that runs. The supervisor then undoes the job, since a person stopped this step."""
    job = _locked_job(job_id)
    step = _step_of(job, name, seen)
    if step.state != StepState.RUNNING:
        raise WrongState(
            f"Step {name} is {step.state}; only a running step can be cancelled.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    transitions.cancel_step(job, step, actor=actor, reason=reason)
    _after_failure(job, step)
    return step


@in_transaction
def retry_job(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    """Try again, after the cause is mended, what made the job end Failed: its failed undos, else its failed steps."""
    job = _locked_job(job_id, seen)
    steps = list(Step.objects.filter(job=job).for_timeline())
    if "retries" not in job_verbs(job):
        raise WrongState(
            f"The job is {job.state}; only a Failed one is tried again.", state=job.state, allowed=job_verbs(job)
        )
    undos = [step for step in steps if step.role != Role.FORWARD]
    again = [step for step in (undos or steps) if step.state == StepState.FAILED]
    transitions.reopen(job, JobState.COMPENSATING if undos else JobState.RUNNING, actor=actor, reason=reason)
    for step in again:
        _retry_now(job, step, actor=actor, reason=reason)
    _ring_for_ready(job)
    move_on(job)
    return job


@in_transaction
def retry_step(job_id: uuid.UUID, name: str, *, actor: str, reason: str, seen: int | None = None) -> Step:
    """Try one failed step again, with a fresh allowance, under the same key."""
    job = _locked_job(job_id)
    step = _step_of(job, name, seen)
    if "retries" not in step_verbs(job, step):
        raise WrongState(
            f"Step {name} is {step.state} in a job that is {job.state}; it cannot be tried again now.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    if job.state == JobState.FAILED and step.role == Role.FORWARD:
        retry_job(job_id, actor=actor, reason=reason)
        step.refresh_from_db()
        return step
    if job.state == JobState.FAILED and step.role == Role.UNDO:
        transitions.reopen(job, JobState.COMPENSATING, actor=actor, reason=reason)
    _retry_now(job, step, actor=actor, reason=reason)
    return step


@in_transaction
def pause(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    """Start nothing more of this job until `resume`; what runs goes on."""
    job = _locked_job(job_id, seen)
    if job.is_terminal:
        raise WrongState(f"The job is {job.state}; it has ended.", state=job.state, allowed=job_verbs(job))
    if job.paused_at is None:
        transitions.pause(job, actor=actor, reason=reason)
    return job


@in_transaction
def resume(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    job = _locked_job(job_id, seen)
    if job.paused_at is not None:
        transitions.resume(job, actor=actor, reason=reason)
        _ring_for_ready(job)
    return job


def job_verbs(job: Job) -> list[str]:
    """What may be asked of this job now, as the nouns that its buttons and routes are named after."""
    if not job.is_terminal:
        ordinary = job.state == JobState.RUNNING and job.stopping_at is None
        return [*(["cancellation"] if ordinary else []), "resumption" if job.paused_at else "pause"]
    return ["retries"] if job.state == JobState.FAILED else []


def step_verbs(job: Job, step: Step) -> list[str]:
    """What may be asked of this step now."""
    if step.state == StepState.RUNNING:
        return ["cancellation"]
    if step.state != StepState.FAILED:
        return []
    undoing = job.state in (JobState.COMPENSATING, JobState.FAILED)
    tryable = {
        Role.FORWARD: (job.state == JobState.RUNNING and job.stopping_at is None)
        or (job.state == JobState.FAILED and not job.steps.undoing().exists()),
        Role.UNDO: undoing,
        Role.RECHECK: undoing or job.state == JobState.COMPENSATED,
    }
    return ["retries"] if tryable[Role(step.role)] else []


def _retry_now(job: Job, step: Step, *, actor: str, reason: str) -> None:
    transitions.retry(job, step, delay=timedelta(0), actor=actor, reason=reason, fresh_allowance=True)
    broker.ring_on_commit([(step.pk, step.queue)])


# --- reading under the lock ------------------------------------------------------------------------------------------


def announced_agents() -> dict[str, Agent]:
    return {agent.name: agent for agent in Agent.objects.all()}


def _locked(job_id: uuid.UUID, step_id: int) -> tuple[Job, Step]:
    job = _locked_job(job_id)
    return job, Step.objects.get(pk=step_id, job=job)


def _locked_job(job_id: uuid.UUID, seen: int | None = None) -> Job:
    job = transitions.lock(job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    if seen is not None and seen != job.seq:
        raise StaleVersion(f"The job has moved on: you saw version {seen}, it is at {job.seq} and {job.state}.")
    return job


def _step_of(job: Job, name: str, seen: int | None) -> Step:
    step = Step.objects.filter(job=job, name=name).first()
    if step is None:
        raise NotFound(f"Job {job.pk} has no step {name!r}.")
    if seen is not None and seen != step.version:
        raise StaleVersion(f"Step {name} has moved on: you saw version {seen}, it is at {step.version}, {step.state}.")
    return step


def _ring_for_ready(job: Job) -> list[tuple[int, str]]:
    """Ring on commit for every step of this job that may start at once."""
    steps = list(Step.objects.filter(job=job).ready().values_list("pk", "queue"))
    broker.ring_on_commit(steps)
    return steps
