"""What agents report: that they take a step, and how their attempt at it ended.

Each report is one short transaction (or takes part in the caller's): the fence first, then the verb of `transitions`,
then the scheduler moves the job on. A report of an attempt that no longer holds its step changes nothing; how that
attempt ended is kept as evidence. Nor does it change anything to report twice, where the answer to the first was lost.
"""

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import connection

from workflows import broker, doubts, scheduler, transitions
from workflows.clock import now
from workflows.exceptions import NotFound
from workflows.models import Agent, Attempt, Job, Step
from workflows.plans.plan import Plan
from workflows.states import ENDED_STEP_STATES, ErrorKind, Outcome, Role, SettledBy, StepState
from workflows.transitions import Claimed, Failure, Settled, in_transaction

# --- a claim that has to be counted, and one whose answer was lost ---------------------------------------------------


@in_transaction
def claim_within_limits(
    step_id: int, *, token: uuid.UUID, worker: str, unless_locked: bool = False
) -> tuple[Claimed | None, str, float]:
    """Claim a step whose agent or key has a limit: counted from the rows, under a lock that all who count must take.

    (the claim or None, the limit that is reached or "", seconds until its agent's rate lets the next call begin).
    """
    step = Step.objects.filter(pk=step_id, state=StepState.NOT_STARTED, limited=True).first()
    if step is None:
        return None, "", 0.0
    if transitions.lock(step.job_id, unless_locked=unless_locked) is None:
        return None, "", 0.0
    agent = Agent.objects.select_for_update(no_key=True).filter(name=step.agent).first()
    if full := _limit_reached(step, agent):
        return None, full, 0.0
    if agent is None or not agent.rate_count or not agent.rate_period:
        return transitions.claim_within_limits(step_id, token=token, worker=worker), "", 0.0
    moment = now()
    if agent.rate_next is not None and agent.rate_next > moment:
        transitions.postpone(step, agent.rate_next)
        return None, agent.name, (agent.rate_next - moment).total_seconds()
    claimed = transitions.claim_within_limits(step_id, token=token, worker=worker)
    if claimed is not None:
        transitions.take_a_turn(agent, moment + agent.rate_period / agent.rate_count)
    return claimed, "", 0.0


def _limit_reached(step: Step, agent: Agent | None) -> str:
    """The name of the limit that leaves no room for this step. A holder that dies is counted until its lease is over."""
    running = Step.objects.filter(state=StepState.RUNNING, limited=True)
    if agent is not None and agent.at_once is not None and running.filter(agent=agent.name).count() >= agent.at_once:
        return agent.name
    if step.limit_key:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [step.limit_key])
        most = int(step.limit_key.partition(":")[0])
        if running.filter(limit_key=step.limit_key).count() >= most:
            return step.limit_key
    return ""


def claimed_under(step_id: int, token: uuid.UUID) -> Claimed | None:
    """The claim that went through although its answer was lost; None when it did not."""
    step = Step.objects.select_related("job").filter(pk=step_id, token=token, state=StepState.RUNNING).first()
    return _claim_of(step, step.job.input, step.job.plan["steps"]) if step else None


def _claim_of(step: Step, given: Any, plan: list[dict[str, Any]]) -> Claimed:
    if step.token is None or step.deadline is None:
        raise AssertionError(f"step {step.name} is held by nobody")
    return Claimed(
        step_id=step.pk,
        job_id=step.job_id,
        place=step.place,
        name=step.name,
        index=step.index,
        item=step.item,
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
        scheduled_for=step.job.scheduled_for,
        limit_key=step.limit_key,
        age=(now() - (step.deadline - step.timeout)).total_seconds(),
    )


# --- how an attempt ended --------------------------------------------------------------------------------------------


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
        if claimed.index is None:
            settled = transitions.settle(
                claimed, result=result, sent=sent, next_token=next_token, worker=worker, hand_over=hand_over
            )
        else:
            settled = transitions.settle_item(claimed, result=result, sent=sent)
        if settled is not None:
            broker.ring_on_commit(settled.to_ring)
            scheduler.offer_key(claimed.limit_key, besides=claimed.queue)  # where its worker looks round by itself
            if settled.attend:
                scheduler.attend_to_all(claimed.job_id)
            return settled
    return _settle_under_lock(claimed, json.loads(result), sent, next_token, by_probe)


@in_transaction
def _settle_under_lock(
    claimed: Claimed, result: Any, sent: str | None, next_token: uuid.UUID, by_probe: bool
) -> Settled | None:
    job, step = _locked(claimed.job_id, claimed.step_id)
    if not _holds(step, claimed):
        attempt = Attempt.objects.get(step=step, number=claimed.attempt)
        if attempt.token == claimed.token and attempt.outcome == Outcome.COMPLETED and not step.settled_by:
            return _as_the_first_time(job, claimed, next_token)
        doubts.hear_late_word(job, step, number=claimed.attempt, outcome=Outcome.COMPLETED, result=result, message="")
        return None
    by = SettledBy.PROBE if by_probe else ""
    transitions.complete(job, step, result=result, sent=_parsed(sent), actor="agent", settled_by=by)
    doubts.resolve_by_success(job, step, by_probe)
    scheduler.go_on_behind(job, step)
    return Settled(job_state=job.state, to_ring=scheduler.ring_for_ready(job))


def _as_the_first_time(job: Job, claimed: Claimed, next_token: uuid.UUID) -> Settled:
    """The commit had gone through and its answer was lost: find what was handed over under the token drawn for it."""
    step = Step.objects.filter(job=job, token=next_token, state=StepState.RUNNING).first()
    if step is None:
        scheduler.move_on(job)  # whoever had the answer might have had to
        return Settled(job_state=job.state, to_ring=scheduler.ring_for_ready(job))
    return Settled(job_state=job.state, handed_over=_claim_of(step, claimed.given, claimed.plan), to_ring=[])


@in_transaction
def is_settled(claimed: Claimed) -> bool:
    """Whether this very attempt completed its step. Asked under the lock, so that a commit on its way has ended."""
    _, step = _locked(claimed.job_id, claimed.step_id)
    completed = step.attempts.filter(number=claimed.attempt, token=claimed.token, outcome=Outcome.COMPLETED)
    return not step.settled_by and completed.exists()


@in_transaction
def settle_atomically(
    claimed: Claimed, operation: Callable[[], str], *, sent: Callable[[], str | None]
) -> Settled | None:
    """Run an operation that writes to this database alone inside the transaction that settles it: exactly once.

    Its job is locked and the fence checked before; the step's own row is not, so that the heartbeat need not wait.
    None when the fence does not hold: then nothing was run.
    """
    job, step = _locked(claimed.job_id, claimed.step_id)
    if not _holds(step, claimed):
        return None
    result = json.loads(operation())
    transitions.complete(job, step, result=result, sent=_parsed(sent()), actor="agent")
    # Whatever ended an earlier attempt rolled it back with all that it wrote.
    transitions.resolve_doubts(job, step, Attempt.Resolution.ANSWER)
    doubts.resolve_by_success(job, step, by_probe=False)
    scheduler.go_on_behind(job, step)
    return Settled(job_state=job.state, to_ring=scheduler.ring_for_ready(job))


@in_transaction
def fail(claimed: Claimed, failure: Failure, *, sent: str | None) -> bool:
    """An attempt failed. `sent` is the input that went out, JSON text. False when its word came too late, as evidence."""
    job, step = _locked(claimed.job_id, claimed.step_id)
    if not _holds(step, claimed):
        attempt = Attempt.objects.get(step=step, number=claimed.attempt)
        if attempt.token == claimed.token and attempt.outcome == Outcome.FAILED:
            return True
        doubts.hear_late_word(
            job, step, number=claimed.attempt, outcome=Outcome.FAILED, result=None, message=failure.message
        )
        return False
    transitions.fail(job, step, failure, sent=_parsed(sent), actor="agent")
    scheduler.after_failure(job, step)
    if failure.kind in (ErrorKind.TRANSIENT, ErrorKind.IN_DOUBT):
        transitions.count_calls(step.agent, failure.code, step_id=step.pk, message=failure.message)
    return True


@in_transaction
def release(
    claimed: Claimed, *, delay: timedelta, reason: str, in_doubt: bool = False, sent: str | None = None
) -> bool:
    """The operation asked to be called again later, or its worker stops. False when its word came too late.

    `in_doubt`: its call was broken off, and nobody knows what became of it.
    """
    job, step = _locked(claimed.job_id, claimed.step_id)
    if not _holds(step, claimed):
        return False
    too_late = _too_late(job, step, delay, reason, in_doubt=in_doubt)
    if too_late is not None:
        transitions.fail(job, step, too_late, sent=_parsed(sent), actor="agent")
        scheduler.after_failure(job, step)
        return True
    transitions.release(job, step, delay=delay, reason=reason, in_doubt=in_doubt, sent=_parsed(sent))
    scheduler.offer_place(step)
    scheduler.move_on(job)
    return True


def _too_late(job: Job, step: Step, delay: timedelta, reason: str, *, in_doubt: bool) -> Failure | None:
    """Of a step that cannot be called again then."""
    late = partial(Failure, kind=ErrorKind.EXPIRED_WAITING, in_doubt=in_doubt)
    if step.role != Role.FORWARD:
        return None
    total = Plan.from_json(job.plan).steps[step.place].total_timeout
    if total and step.started_at and step.started_at + total <= now() + delay:
        said = f"It asked to be called again ({reason}), but its time as a whole ({total}) is over then."
        return late(code="step_timeout", message=said)
    if step.parent is not None and step.parent.state in ENDED_STEP_STATES:
        return late(code="fan_out_ended", message=f"It was given back ({reason}) after its fan-out had ended.")
    return None


@in_transaction
def defer(claimed: Claimed, *, within: timedelta, sent: str | None) -> bool:
    """The operation has handed the work on, and a callback is waited for. False when that came already, or too late."""
    job, step = _locked(claimed.job_id, claimed.step_id)
    if not _holds(step, claimed):
        return False
    transitions.defer(job, step, within=within, sent=_parsed(sent))
    scheduler.move_on(job)
    return True


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)


# --- the fence -------------------------------------------------------------------------------------------------------


def _locked(job_id: uuid.UUID, step_id: int) -> tuple[Job, Step]:
    job = transitions.lock(job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job, Step.objects.get(pk=step_id, job=job)


def _holds(step: Step, claimed: Claimed) -> bool:
    """The fence."""
    return step.state == StepState.RUNNING and (step.attempt, step.token) == (claimed.attempt, claimed.token)
