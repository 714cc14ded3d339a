"""What people and client programs ask for: the verbs, and which of them may be asked now.

Each is one transaction that locks the job first, looks at what its caller saw (`seen`, a version), and then either does
what was asked, with an Event that names who asked and why, or refuses with what is now true.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from workflows import broker, compensation, explanations, scheduler, transitions
from workflows.clock import now
from workflows.exceptions import DigestMismatch, InvalidInput, NotFound, StaleVersion, WrongState
from workflows.models import Attempt, Job, Step
from workflows.plans.plan import Plan
from workflows.states import ErrorKind, JobState, Outcome, Reason, Remedy, Role, SettledBy, StepKind, StepState
from workflows.transitions import in_transaction

# --- stop, pause, go on ----------------------------------------------------------------------------------------------


@in_transaction
def cancel(job_id: uuid.UUID, *, undo: bool, actor: str, reason: str, seen: int | None = None) -> Job:
    """Stop a job, by default with undo. Asking again while it stops or is undone gives the same answer.

    `seen` is the version the caller looked at; None takes whatever is there. Raises WrongState once the job has ended.
    """
    if not undo:
        _check_reason(reason, "to cancel without undo")
    job = _locked_job(job_id, seen)
    if job.is_terminal:
        raise WrongState(f"The job is {job.state}; it has ended.", state=job.state, allowed=job_verbs(job))
    if job.state == JobState.RUNNING and job.stopping_at is None:
        if undo:
            _check_not_past_pivot(job)
        _stop(job, Reason.CANCELLED, undo=undo, actor=actor, reason=reason)
    return job


def cancel_child(job_id: uuid.UUID, *, undo: bool, detail: str) -> None:
    """The parent of this job stops: so does it, as far as it still runs."""
    with_undo = undo
    job = _locked_job(job_id)
    if job.state == JobState.RUNNING and job.stopping_at is None:
        if with_undo and compensation.pivot_passed(Plan.from_json(job.plan), _timeline(job)) is not None:
            with_undo = False
        _stop(job, Reason.PARENT, undo=with_undo, actor="scheduler", reason=detail)


def _stop(job: Job, why: Reason, *, undo: bool, actor: str, reason: str) -> None:
    if job.paused_at is not None:
        transitions.resume(job, actor=actor, reason="To cancel lifts the pause.")
    transitions.stop(job, reason=why, detail=reason, undo=undo, actor=actor)
    scheduler.move_on(job)


def _check_not_past_pivot(job: Job) -> None:
    pivot = compensation.pivot_passed(Plan.from_json(job.plan), _timeline(job))
    if pivot is not None:
        raise WrongState(
            f"{pivot} is the point of no return, and it is done: the job can only go forward, or be stopped without undo.",
            state=job.state,
            allowed=job_verbs(job),
        )


def _check_reason(reason: str, what: str) -> None:
    if not reason.strip():
        fault = f"{what} needs a reason"
        raise InvalidInput(f"The request is refused: {fault}.", errors=[{"pointer": "/reason", "message": fault}])


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
    if step.complete_by is None and step.kind == StepKind.CHILD:
        raise WrongState(
            f"{name} waits for a job of its own: cancel that one.", state=step.state, allowed=step_verbs(job, step)
        )
    if step.complete_by is None and step.is_fan_out:
        raise WrongState(f"{name} is a fan-out: cancel its items, or the job.", state=step.state, allowed=[])
    if step.kind == StepKind.CALL:
        transitions.cancel_step(job, step, actor=actor, reason=reason)
    else:
        stopped = transitions.Failure(kind=ErrorKind.CANCELLED, code="cancelled", message=reason or "Cancelled.")
        transitions.wait_ended_badly(job, step, stopped, actor=actor)
    scheduler.after_failure(job, step)
    return step


# --- try again -------------------------------------------------------------------------------------------------------


@in_transaction
def retry_job(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    """Go on with a job that ended Failed, after the cause is mended: its failed undos, else forward from where it failed.

    Steps that were undone, or skipped because undo began, get new rows of the next generation, with keys of their own.
    """
    job = _locked_job(job_id, seen)
    if "retries" not in job_verbs(job):
        raise WrongState(
            f"The job is {job.state}; only a Failed one is tried again.", state=job.state, allowed=job_verbs(job)
        )
    retry_locked(job, actor=actor, reason=reason)
    return job


def retry_locked(job: Job, *, actor: str, reason: str) -> None:
    """The same for a job that is locked and Failed."""
    steps = _timeline(job)
    undos = [step for step in steps if step.role != Role.FORWARD]
    failed_undos = [step for step in undos if step.state == StepState.FAILED]
    if failed_undos:
        transitions.reopen(job, JobState.COMPENSATING, actor=actor, reason=reason)
        for step in failed_undos:
            _retry_now(job, step, actor=actor, reason=reason)
    else:
        transitions.reopen(job, JobState.RUNNING, actor=actor, reason=reason)
        _renew(job, steps)
        for step in _timeline(job):
            if (
                step.role == Role.FORWARD
                and step.state == StepState.FAILED
                and step.remedy not in transitions.COUNTED_OFF
            ):
                _retry_now(job, step, actor=actor, reason=reason)
        _recount(job)
    scheduler.move_on(job)
    scheduler.ring_for_ready(job)


def _renew(job: Job, steps: Sequence[Step]) -> None:
    """New rows where the old ones were undone, or were skipped when that began; and for all that depends on them."""
    plan = Plan.from_json(job.plan)
    forward = {step.name: step for step in steps if step.role == Role.FORWARD}
    again = {name for name, step in forward.items() if compensation.undo_of(step, steps) or _was_skipped_by_undo(step)}
    if not again:
        return
    seq = max(Step.objects.filter(job=job).values_list("seq", flat=True)) + 1
    number = {name: seq + n for n, name in enumerate(name for name in forward if name in again)}
    rows = [_next_generation(forward[name], number, plan, again) for name in number]
    replaced = [step for step in steps if (step.undoes.name if step.undoes else step.name) in again]
    transitions.go_forward_again(job, rows, replaced=replaced)


def _was_skipped_by_undo(step: Step) -> bool:
    return step.state == StepState.SKIPPED and step.skip_reason == scheduler.BEFORE_UNDO


def _next_generation(old: Step, number: dict[str, int], plan: Plan, again: Collection[str]) -> Step:
    planned = plan.steps[old.place]
    generation = old.generation + 1
    return Step(
        job_id=old.job_id,
        seq=number[old.name],
        place=old.place,
        name=old.name,
        generation=generation,
        kind=old.kind,
        operation=old.operation,
        agent=old.agent,
        queue=old.queue,
        idempotency_key=f"{old.job_id}:{old.name}:g{generation}",
        waiting_for=sum(name in again for name in planned.after),
        releases=[number[name] for name in plan.dependents(old.name) if name in again],
        gated=planned.gated,
        held=planned.gated,
        limited=old.limited,
        timeout=old.timeout,
        queue_timeout=old.queue_timeout,
        attempts_allowed=old.attempts_allowed,
        version=old.version,
    )


def _recount(job: Job) -> None:
    open_steps = Step.objects.of_plan().filter(job=job, role=Role.FORWARD)
    done = [StepState.COMPLETED, StepState.SKIPPED]
    settled = open_steps.filter(state=StepState.FAILED, remedy__in=transitions.COUNTED_OFF)
    transitions.count_open_steps(job, open_steps.exclude(state__in=done).count() - settled.count())


@in_transaction
def retry_step(
    job_id: uuid.UUID, name: str, *, actor: str, reason: str, seen: int | None = None, new_key: bool = False
) -> Step:
    """Try one failed step again, with a fresh allowance, under the same key; or under a new one after a definite refusal."""
    job = _locked_job(job_id)
    step = _step_of(job, name, seen)
    if "retries" not in step_verbs(job, step):
        raise WrongState(
            f"Step {name} is {step.state} in a job that is {job.state}; it cannot be tried again now.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    if new_key and (step.error_kind != ErrorKind.PERMANENT or explanations.in_doubt(step)):
        raise WrongState(
            f"Step {name} keeps its key: only a definite, permanent failure says that nothing was done under it.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    if new_key:
        transitions.renew_key(job, step, actor=actor, reason=reason)
    if job.state == JobState.FAILED and step.role == Role.FORWARD and step.parent_id is None:
        retry_locked(job, actor=actor, reason=reason)
        step.refresh_from_db()
        return step
    if job.state == JobState.FAILED:
        back = JobState.RUNNING if step.role == Role.FORWARD else JobState.COMPENSATING
        transitions.reopen(job, back, actor=actor, reason=reason)
    if step.parent_id is not None:
        _reopen_fan_of(job, step, actor=actor, reason=reason)
    _retry_now(job, step, actor=actor, reason=reason)
    _recount(job)
    scheduler.move_on(job)
    return step


def _reopen_fan_of(job: Job, item: Step, *, actor: str, reason: str) -> None:
    """The fan-out goes on as well; where it had ended, it counts its items anew once it is looked at."""
    fan = Step.objects.get(items=item.pk)
    if fan.state == StepState.FAILED:
        transitions.retry(job, fan, delay=timedelta(0), actor=actor, reason=reason, fresh_allowance=True)
    elif fan.state == StepState.RUNNING:
        transitions.recount_items(fan, reopened=1)


def _retry_now(job: Job, step: Step, *, actor: str, reason: str) -> None:
    if step.is_fan_out:
        for item in Step.objects.filter(parent=step, state=StepState.FAILED):
            transitions.retry(job, item, delay=timedelta(0), actor=actor, reason=reason, fresh_allowance=True)
    transitions.retry(job, step, delay=timedelta(0), actor=actor, reason=reason, fresh_allowance=True)
    broker.ring_on_commit([(step.pk, step.queue)])


# --- pause -----------------------------------------------------------------------------------------------------------


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
        scheduler.move_on(job)
        scheduler.ring_for_ready(job)
    return job


# --- undo ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What an undo would do, now. `digest` stands for exactly this; an undo under another one is refused.

    `steps`: {step, operation, key, reference, in_doubt}, in the order in which they begin. `not_undone`: {step, why}.
    `running`: steps whose calls are under way; what they turn out to have done is undone as well.
    """

    digest: str
    steps: list[dict[str, Any]]
    not_undone: list[dict[str, Any]]
    in_doubt: list[str]
    running: list[str]
    pivot: str | None
    down_to: str | None


def preview(job_id: uuid.UUID, *, down_to: str | None = None) -> Preview:
    """What undoing this job would do: all of it, or down to one step, which is undone too. Changes nothing."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return _preview(job, _scene(job), down_to)


def _preview(job: Job, scene: compensation.Scene, down_to: str | None) -> Preview:
    names = _names_down_to(job, scene.plan, down_to)
    calls = [call for step in _in_order_of_undo(scene, names) for call in _calls_of(scene, step)]
    not_undone = [
        {"step": step.name, "why": why}
        for step in scene.steps
        if (names is None or step.name in names) and (why := _why_not(scene, step)) is not None
    ]
    running = [
        step.name
        for step in scene.steps
        if step.role == Role.FORWARD and step.state == StepState.RUNNING and (names is None or step.name in names)
    ]
    seen = [[step.pk, step.version, step.state, step.attempt, step.items_open] for step in scene.steps]
    facts = json.dumps([str(job.pk), job.state, down_to, seen, calls], sort_keys=True)
    return Preview(
        digest=hashlib.sha256(facts.encode()).hexdigest(),
        steps=calls,
        not_undone=not_undone,
        in_doubt=[call["step"] for call in calls if call["in_doubt"]],
        running=running,
        pivot=compensation.pivot_passed(scene.plan, scene.steps),
        down_to=down_to,
    )


def _names_down_to(job: Job, plan: Plan, down_to: str | None) -> set[str] | None:
    if down_to is None:
        return None
    if all(step.name != down_to for step in plan.steps):
        raise NotFound(f"Job {job.pk} has no step {down_to!r}.")
    return compensation.behind(plan, down_to)


def _in_order_of_undo(scene: compensation.Scene, names: Collection[str] | None) -> list[Step]:
    """Those to be undone, the first to begin first; with those whose undo has failed and will be tried again."""
    again = [
        step
        for step in scene.steps
        if (undo := compensation.undo_of(step, scene.steps)) is not None
        and undo.state == StepState.FAILED
        and (names is None or step.name in names)
    ]
    originals = {**scene.originals(names), **{step.name: step for step in again}}
    order = compensation.undo_order(scene.plan, set(originals))
    placed: list[str] = []
    left = sorted(originals, key=lambda name: originals[name].seq, reverse=True)
    while left:
        free = [name for name in left if not order[name] - set(placed)]
        placed += free
        left = [name for name in left if name not in free]
    return [originals[name] for name in placed]


def _calls_of(scene: compensation.Scene, step: Step) -> list[dict[str, Any]]:
    planned = scene.plan.steps[step.place]
    operation = planned.compensation or f"undo of the job that {step.name} started"
    rows = [step]
    if step.is_fan_out:
        rows = list(Step.objects.filter(parent=step).with_effects().prefetch_related("attempts").order_by("index"))
    return [
        {
            "step": row.address,
            "operation": operation,
            "key": row.idempotency_key,
            "reference": explanations.known_reference(row),
            "in_doubt": explanations.in_doubt(row),
        }
        for row in rows
    ]


def _why_not(scene: compensation.Scene, step: Step) -> str | None:
    """Why something that was done, or may have been, is not undone; None where it is, or there is nothing."""
    planned = scene.plan.steps[step.place]
    if not compensation.needs_undo(step, scene.evidence[step.pk], scene.fans):
        return None
    if compensation.can_be_undone(planned) or step.kind not in (StepKind.CALL, StepKind.CHILD):
        return None
    if planned.undo_unnecessary:
        return "unnecessary: the plan says that it leaves nothing to undo"
    return "undeclared: the plan names no compensation for it"


@in_transaction
def compensate(
    job_id: uuid.UUID,
    *,
    digest: str,
    actor: str,
    reason: str,
    down_to: str | None = None,
    seen: int | None = None,
) -> Job:
    """Undo exactly what the preview of this digest showed. Raises DigestMismatch when something has moved since.

    A running job is stopped first. Down to a step: the job ends Failed, and a retry goes forward again from there.
    """
    job = _locked_job(job_id, seen)
    _check_may_be_undone(job)
    scene = _scene(job)
    if _preview(job, scene, down_to).digest != digest:
        raise DigestMismatch(
            "The job has moved on since this undo was shown; nothing was done. Look at the new preview.",
            state=job.state,
        )
    if job.state == JobState.RUNNING and down_to is None:
        _stop(job, Reason.OPERATOR, undo=True, actor=actor, reason=reason)
        return job
    if job.state == JobState.RUNNING and any(step.state == StepState.RUNNING for step in scene.steps):
        raise WrongState("A part is undone only while nothing runs: pause the job first.", state=job.state)
    undo_ended(job, scene, actor=actor, reason=reason, why=Reason.OPERATOR, down_to=down_to)
    return job


def undo_ended(
    job: Job, scene: compensation.Scene, *, actor: str, reason: str, why: Reason, down_to: str | None = None
) -> None:
    """Undo a locked job in which nothing runs: one that has ended, or a part of one that has not."""
    names = _names_down_to(job, scene.plan, down_to)
    rows = compensation.plan_undo(scene, names)
    failed = [
        undo
        for step in scene.steps
        if (undo := compensation.undo_of(step, scene.steps)) is not None
        and undo.state == StepState.FAILED
        and (names is None or step.name in names)
    ]
    if not rows and not failed:
        raise WrongState("There is nothing to undo.", state=job.state, allowed=job_verbs(job))
    partial = down_to is not None
    detail = f"Undone down to {down_to}: {reason}" if partial else reason
    if job.state == JobState.RUNNING:
        transitions.stop(job, reason=why, detail=detail, undo=True, actor=actor)
    scheduler.end_forward_steps(job, scene.steps, scene.evidence, names)
    transitions.begin_undo(job, rows, actor=actor, why=detail, reason=why, partial=partial)
    for undo in failed:
        _retry_now(job, undo, actor=actor, reason=reason)
    scheduler.move_on(job)
    scheduler.ring_for_ready(job)


def _check_may_be_undone(job: Job) -> None:
    within = Plan.from_json(job.plan).compensate_within
    allowed = job_verbs(job)
    if "compensation" in allowed:
        _check_not_past_pivot(job)
        return
    if job.state == JobState.COMPLETED and within is not None:
        raise WrongState(
            f"The job completed more than {within} ago, too long to be undone.", state=job.state, allowed=allowed
        )
    if job.state == JobState.COMPLETED:
        raise WrongState(f"{job.workflow} cannot be undone once it is Completed.", state=job.state, allowed=allowed)
    raise WrongState(f"The job is {job.state}; it cannot be undone now.", state=job.state, allowed=allowed)


def _scene(job: Job) -> compensation.Scene:
    return scheduler.scene_of(job, _timeline(job), scheduler.announced_agents())


# --- what a person knows ---------------------------------------------------------------------------------------------


@in_transaction
def verdict(
    job_id: uuid.UUID,
    name: str,
    *,
    done: bool,
    actor: str,
    reason: str,
    result: Any = None,
    seen: int | None = None,
) -> Step:
    """A person has found out what became of a step in doubt, and says how (`reason`, the evidence)."""
    _check_reason(reason, "a verdict")
    job = _locked_job(job_id)
    step = _step_of(job, name, seen)
    if "verdict" not in step_verbs(job, step):
        raise WrongState(
            f"Step {name} is {step.state} and not in doubt; there is nothing to decide.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    transitions.resolve_doubts(job, step, Attempt.Resolution.PERSON, actor=actor, reason=reason)
    forward_again = job.state == JobState.RUNNING and job.stopping_at is None
    if not done:
        if step.state == StepState.FAILED and step.remedy == Remedy.ESCALATE and forward_again:
            _retry_now(job, step, actor=actor, reason=reason)
    elif forward_again or (step.role != Role.FORWARD and job.state == JobState.COMPENSATING):
        _settle(job, step, result, SettledBy.PERSON, actor=actor, reason=reason)
    else:
        # Behind an end, or an undo, a step that turns out to be done keeps its state, and is undone where it can be.
        transitions.note_verdict(job, step, done=done, actor=actor, reason=reason)
    scheduler.move_on(job)
    return step


@in_transaction
def give_result(
    job_id: uuid.UUID,
    name: str,
    *,
    actor: str,
    reason: str,
    result: Any = None,
    attempt: int | None = None,
    seen: int | None = None,
) -> Step:
    """Complete a step by hand: with a result that a person gives, or with what a fenced-out attempt said too late."""
    _check_reason(reason, "a result given by hand")
    job = _locked_job(job_id)
    step = _step_of(job, name, seen)
    if "result" not in step_verbs(job, step):
        raise WrongState(
            f"Step {name} is {step.state} in a job that is {job.state}; it takes no result now.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    by = SettledBy.PERSON
    if attempt is not None:
        late = Attempt.objects.filter(step=step, number=attempt, late_outcome=Outcome.COMPLETED).first()
        if late is None:
            raise NotFound(f"Attempt {attempt} of {name} said nothing too late that could be taken up.")
        result, by = late.late_result, SettledBy.LATE
    if step.state == StepState.RUNNING:
        transitions.take_from_worker(job, step, actor=actor, reason=reason)
    transitions.resolve_doubts(job, step, Attempt.Resolution.PERSON, actor=actor, reason=reason)
    _settle(job, step, result, by, actor=actor, reason=reason)
    return step


def _settle(job: Job, step: Step, result: Any, by: SettledBy, *, actor: str, reason: str) -> None:
    transitions.settle_by_word(job, step, result=result, settled_by=by, actor=actor, reason=reason)
    scheduler.go_on_behind(job, step)
    scheduler.ring_for_ready(job)


@in_transaction
def skip(job_id: uuid.UUID, name: str, *, actor: str, reason: str, seen: int | None = None) -> Step:
    """Go on without a step that has not begun, or has failed. Never where nobody knows what it did."""
    _check_reason(reason, "to skip a step")
    job = _locked_job(job_id)
    step = _step_of(job, name, seen)
    if "skip" not in step_verbs(job, step):
        raise WrongState(
            f"Step {name} is {step.state} in a job that is {job.state}; it cannot be skipped now.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    transitions.skip(job, step, reason=reason, actor=actor)
    scheduler.go_on_behind(job, step)
    scheduler.ring_for_ready(job)
    return step


# --- which verbs -----------------------------------------------------------------------------------------------------


def job_verbs(job: Job) -> list[str]:
    """What may be asked of this job now, as the nouns that its buttons and routes are named after."""
    if job.is_terminal:
        undo = ["compensation"] if _may_be_undone_late(job) else []
        return [*(["retries"] if job.state == JobState.FAILED else []), *undo]
    ordinary = job.state == JobState.RUNNING and job.stopping_at is None
    stop = ["cancellation", "compensation"] if ordinary else []
    return [*stop, "resumption" if job.paused_at else "pause"]


def _may_be_undone_late(job: Job) -> bool:
    if job.state == JobState.FAILED:
        return True
    within = Plan.from_json(job.plan).compensate_within
    return (
        job.state == JobState.COMPLETED
        and within is not None
        and job.finished_at is not None
        and now() <= job.finished_at + within
    )


def step_verbs(job: Job, step: Step) -> list[str]:
    """What may be asked of this step now."""
    if step.superseded:
        return []
    in_doubt = explanations.in_doubt(step)
    moving = job.state == JobState.RUNNING and job.stopping_at is None
    if step.role != Role.FORWARD:
        moving = job.state == JobState.COMPENSATING
    plain = not step.is_fan_out and step.kind != StepKind.CHILD
    verbs = []
    if step.state == StepState.RUNNING and not step.is_fan_out and step.kind != StepKind.CHILD:
        verbs.append("cancellation")
    if step.state == StepState.FAILED and _may_be_tried_again(job, step):
        verbs.append("retries")
    if moving and plain and step.state in (StepState.RUNNING, StepState.FAILED):
        verbs.append("result")
    if moving and not in_doubt and step.role == Role.FORWARD and _may_be_skipped(step):
        verbs.append("skip")
    if in_doubt and step.state in (StepState.FAILED, StepState.NOT_STARTED):
        verbs.append("verdict")
    return verbs


def _may_be_skipped(step: Step) -> bool:
    return step.state == StepState.FAILED or (step.state == StepState.NOT_STARTED and step.parent_id is None)


def _may_be_tried_again(job: Job, step: Step) -> bool:
    if step.remedy in transitions.COUNTED_OFF and step.released_at is not None:
        return False
    undoing = job.state in (JobState.COMPENSATING, JobState.FAILED)
    if step.role == Role.UNDO:
        return undoing
    if step.role == Role.RECHECK:
        return undoing or job.state == JobState.COMPENSATED
    if job.state == JobState.FAILED:
        return not job.steps.filter(superseded=False).undoing().exists()
    return job.state == JobState.RUNNING and job.stopping_at is None


# --- reading under the lock ------------------------------------------------------------------------------------------


def _locked_job(job_id: uuid.UUID, seen: int | None = None) -> Job:
    job = transitions.lock(job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    if seen is not None and seen != job.seq:
        raise StaleVersion(f"The job has moved on: you saw version {seen}, it is at {job.seq} and {job.state}.")
    return job


_ITEM = re.compile(r"(?P<name>.+):(?P<index>\d{1,9})")


def step_at(job: Job, address: str) -> Step:
    """The step at an address: `flight`, `deploy:3` for an item, `flight.undo`; of its latest generation."""
    item = _ITEM.fullmatch(address)
    where = {"name": item["name"], "index": int(item["index"])} if item else {"name": address, "index__isnull": True}
    step = Step.objects.filter(job=job, **where).order_by("-generation").first()
    if step is None:
        raise NotFound(f"Job {job.pk} has no step {address!r}.")
    return step


def _step_of(job: Job, address: str, seen: int | None) -> Step:
    step = step_at(job, address)
    if seen is not None and seen != step.version:
        raise StaleVersion(
            f"Step {address} has moved on: you saw version {seen}, it is at {step.version}, {step.state}."
        )
    return step


def _timeline(job: Job) -> list[Step]:
    return list(Step.objects.filter(job=job).for_timeline())
