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

from workflows import broker, compensation, explanations, gates, scheduler, transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.exceptions import DigestMismatch, InvalidInput, NotFound, StaleVersion, WrongState
from workflows.models import Attempt, Job, Step
from workflows.plans.json_values import plain
from workflows.plans.plan import Plan, PlanStep
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


@in_transaction
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
        scheduler.send_to_children(job)
    transitions.stop(job, reason=why, detail=reason, undo=undo, actor=actor)
    scheduler.move_on(job)


def _check_not_past_pivot(job: Job, names: Collection[str] | None = None) -> None:
    pivot = compensation.pivot_passed(Plan.from_json(job.plan), _timeline(job), names)
    if pivot is not None:
        raise WrongState(
            f"{pivot} is the point of no return, and it is done, or may be: the job can only go forward, or be stopped "
            "without undo.",
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
    if job.state != JobState.FAILED:
        raise WrongState(
            f"The job is {job.state}; only a Failed one is tried again.", state=job.state, allowed=job_verbs(job)
        )
    retry_locked(job, actor=actor, reason=reason)
    return job


def retry_locked(job: Job, *, actor: str, reason: str) -> None:
    """The same for a job that is locked and Failed. Raises WrongState where only a person's word leads on."""
    scene = _scene(job)
    way = way_on(job, scene.steps)
    if way is None:
        raise WrongState(
            f"Nobody knows what became of {', '.join(_doubtful(job))}, and no retry finds it out: record a verdict first.",
            state=job.state,
            allowed=job_verbs(job),
        )
    transitions.reopen(job, way, actor=actor, reason=reason)
    if way == JobState.COMPENSATING:
        _retry_undos(job, compensation.plan_undo(scene).again, actor=actor, reason=reason)
        for step in scene.steps:
            if step.role == Role.RECHECK and step.state == StepState.FAILED:
                _retry_now(job, step, actor=actor, reason=reason)
    else:
        _renew(job, scene)
        for step in _timeline(job):
            if step.state == StepState.FAILED and step.remedy not in transitions.COUNTED_OFF:
                _retry_now(job, step, actor=actor, reason=reason)
        _recount(job)
    scheduler.move_on(job)
    scheduler.ring_for_ready(job)


def way_on(job: Job, steps: Sequence[Step]) -> JobState | None:
    """Where a retry of a Failed job leads: to its undos that failed, else forward. None where only a verdict leads on.

    An undo of the whole job that left but a doubt has nothing to try again. And what was undone in part is not done again
    while nobody knows whether a step in it was done: a step in doubt never gets a new key.
    """
    undos = [step for step in steps if step.role != Role.FORWARD]
    if any(step.state == StepState.FAILED for step in undos):
        return JobState.COMPENSATING
    if not undos:
        return JobState.RUNNING
    back = compensation.taken_back(Plan.from_json(job.plan), steps)
    return JobState.RUNNING if job.partial and not back & _doubtful(job).keys() else None


def _doubtful(job: Job) -> dict[str, str]:
    """{name: address} of the forward steps and items of which nobody knows whether they were done."""
    rows = Step.objects.filter(job=job, role=Role.FORWARD, superseded=False).in_doubt().order_by("seq")
    return {step.name: step.address for step in rows}


def _retry_undos(job: Job, undos: Sequence[compensation.Again], *, actor: str, reason: str) -> None:
    """In the order of the first time."""
    for again in undos:
        transitions.line_up(again.undo, waiting_for=again.waiting_for, releases=again.releases)
        _retry_now(job, again.undo, actor=actor, reason=reason)


def _renew(job: Job, scene: compensation.Scene) -> None:
    """New rows for what was undone, or skipped when that began, and for all that depends on it.

    What could not be undone is not done twice: it stays, with its result.
    """
    forward = {step.name: step for step in scene.steps if step.role == Role.FORWARD}
    back = compensation.taken_back(scene.plan, scene.steps)
    again = [
        step.name
        for step in scene.plan.steps
        if step.name in back and not compensation.stays(step, forward[step.name], scene.steps)
    ]
    if not again:
        return
    number = {name: scene.seq + n for n, name in enumerate(again)}
    order = compensation.forward_order(scene.plan, number)
    rows = [_next_generation(forward[name], number, order, gated=scene.plan.step(name).gated) for name in again]
    replaced = [step for step in scene.steps if _what_it_is_for(step) in number]
    transitions.go_forward_again(job, rows, replaced=replaced)


def _what_it_is_for(step: Step) -> str:
    """The step of the plan that this row does, or undoes."""
    return step.name if step.undoes is None else step.undoes.name


def _next_generation(old: Step, number: dict[str, int], order: dict[str, set[str]], *, gated: bool) -> Step:
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
        waiting_for=len(order[old.name]),
        releases=[number[name] for name in number if old.name in order[name]],
        gated=gated,
        held=gated,
        limited=old.limited,
        timeout=old.timeout,
        queue_timeout=old.queue_timeout,
        attempts_allowed=old.attempts_allowed,
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
    has_key = step.kind == StepKind.CALL and not step.is_fan_out
    if new_key and (not has_key or step.error_kind != ErrorKind.PERMANENT or explanations.in_doubt(step)):
        raise WrongState(
            f"Step {name} keeps its key: only a definite, permanent failure says that nothing was done under it.",
            state=step.state,
            allowed=step_verbs(job, step),
        )
    if new_key:
        transitions.renew_key(job, step, actor=actor, reason=reason)
    if job.state == JobState.FAILED and step.role == Role.FORWARD:
        retry_locked(job, actor=actor, reason=reason)
        return step_at(job, name)
    if job.state == JobState.FAILED:
        transitions.reopen(job, JobState.COMPENSATING, actor=actor, reason=reason)
    _retry_in_place(job, step, actor=actor, reason=reason)
    _recount(job)
    scheduler.move_on(job)
    return step


def _retry_in_place(job: Job, step: Step, *, actor: str, reason: str) -> None:
    """This step alone, with the fan-out that it is an item of."""
    if step.parent_id is not None:
        _reopen_fan_of(job, step, actor=actor, reason=reason)
    _retry_now(job, step, actor=actor, reason=reason)
    if step.parent_id is not None:
        scheduler.go_on_with_items(job, step)


def _reopen_fan_of(job: Job, item: Step, *, actor: str, reason: str) -> None:
    """The fan-out goes on as well; where it had ended, it counts its items anew once it is looked at."""
    fan = Step.objects.get(items=item.pk)
    if fan.state == StepState.FAILED:
        transitions.retry(job, fan, delay=timedelta(0), actor=actor, reason=reason, fresh_allowance=True)
    elif fan.state == StepState.RUNNING:
        transitions.uncount_item(item)


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
        scheduler.send_to_children(job)
    return job


@in_transaction
def resume(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    job = _locked_job(job_id, seen)
    if job.paused_at is not None:
        gates.put_off_timers(job)
        transitions.resume(job, actor=actor, reason=reason)
        scheduler.send_to_children(job)
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
    forward = [step for step in scene.steps if step.role == Role.FORWARD and (names is None or step.name in names)]
    not_undone = [{"step": step.name, "why": why} for step in forward if (why := _why_not(scene, step)) is not None]
    left_in_doubt = [step.name for step in forward if _why_not(scene, step) and _is_in_doubt(step)]
    seen = [[step.pk, step.version, step.state, step.attempt, step.items_open] for step in scene.steps]
    facts = json.dumps([str(job.pk), job.state, down_to, seen, calls], sort_keys=True)
    return Preview(
        digest=hashlib.sha256(facts.encode()).hexdigest(),
        steps=calls,
        not_undone=not_undone,
        in_doubt=[call["step"] for call in calls if call["in_doubt"]] + left_in_doubt,
        running=[step.name for step in forward if step.state == StepState.RUNNING],
        pivot=compensation.pivot_passed(scene.plan, scene.steps, names),
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
    failed = scene.failed_undos(names)
    again = {step.name: step for step in scene.steps if step.role == Role.FORWARD and step.name in failed}
    originals = {**scene.originals(names), **again}
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
        items = Step.objects.filter(parent=step).with_effects().prefetch_related("attempts").order_by("index")
        undo = compensation.undo_of(step, scene.steps)
        # Where an undo has failed, only the items whose own has are asked for again.
        rows = list(items if undo is None else items.filter(undos__parent=undo, undos__state=StepState.FAILED))
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
    if not compensation.needs_undo(step, scene.evidence[step.pk], scene.behind):
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
        _check_not_past_pivot(job)
        _stop(job, Reason.OPERATOR, undo=True, actor=actor, reason=reason)
        return job
    undo_ended(job, scene, actor=actor, reason=reason, why=Reason.OPERATOR, down_to=down_to)
    return job


def undo_ended(
    job: Job, scene: compensation.Scene, *, actor: str, reason: str, why: Reason, down_to: str | None = None
) -> None:
    """Undo a locked job in which nothing runs: one that has ended, or a part of one that has not."""
    names = _names_down_to(job, scene.plan, down_to)
    _check_not_past_pivot(job, names)
    if down_to is not None and names is not None:
        _check_part(job, scene, names, down_to)
    undo = compensation.plan_undo(scene, names)
    if not undo.rows and not undo.again:
        raise WrongState("There is nothing to undo.", state=job.state, allowed=job_verbs(job))
    detail = reason if down_to is None else f"Undone down to {down_to}: {reason}"
    if job.state == JobState.RUNNING:
        if job.paused_at is not None:
            transitions.resume(job, actor=actor, reason="The undo lifts the pause.")
        transitions.stop(job, reason=why, detail=detail, undo=True, actor=actor)
    forward = [step for step in scene.steps if step.role == Role.FORWARD]
    for step in forward:
        if step.state == StepState.RUNNING:
            transitions.wait_ended_badly(job, step, scheduler.STOPPED, actor="scheduler")
    scheduler.end_forward_steps(job, scene.steps, scene.evidence, names)
    if names is not None:
        rest = [step for step in forward if step.name not in names]
        scheduler.end_failed_steps(job, rest, Remedy.WAIT, f"The job is undone down to {down_to}.")
    transitions.begin_undo(job, undo.rows, actor=actor, why=detail, reason=why, partial=down_to is not None)
    _retry_undos(job, undo.again, actor=actor, reason=reason)
    scheduler.move_on(job)
    scheduler.ring_for_ready(job)


def _check_part(job: Job, scene: compensation.Scene, names: Collection[str], down_to: str) -> None:
    """A part is undone only where the job can go forward over it again, and nothing is cut off that runs."""
    for step in scene.steps:
        if step.role != Role.FORWARD:
            continue
        planned = scene.plan.step(step.name)
        undoable = compensation.can_be_undone(planned) or planned.undo_unnecessary
        if step.state == StepState.RUNNING and (step.name not in names or not _only_waits(step)):
            raise WrongState(
                f"{step.name} runs. A part is undone only while nothing runs: pause the job, and wait for its end.",
                state=job.state,
                allowed=job_verbs(job),
            )
        if step.name in names and step.pk in scene.behind and not undoable and step.state != StepState.COMPLETED:
            raise WrongState(
                f"{step.name} is half done and cannot be undone, so that the job could not go forward over it again.",
                state=job.state,
                allowed=job_verbs(job),
            )
        if step.name == down_to and step.state == StepState.COMPLETED and _leaves_nothing(planned):
            raise WrongState(
                f"{down_to} left nothing that could be undone: name a step before it, or one behind it.",
                state=job.state,
                allowed=job_verbs(job),
            )


def _only_waits(step: Step) -> bool:
    """Whether it may be ended at once: a timer, a signal, or a fan-out of which no item runs."""
    if step.is_fan_out:
        return not Step.objects.filter(parent=step, state=StepState.RUNNING).exists()
    return step.kind in (StepKind.TIMER, StepKind.SIGNAL)


def _leaves_nothing(planned: PlanStep) -> bool:
    return planned.undo_unnecessary or planned.kind in (StepKind.TIMER, StepKind.SIGNAL)


def _check_may_be_undone(job: Job) -> None:
    within = Plan.from_json(job.plan).compensate_within
    allowed = job_verbs(job)
    ordinary = job.state == JobState.RUNNING and job.stopping_at is None
    if ordinary or _may_be_undone_late(job):
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
    if done and step.state != StepState.COMPLETED:
        _settle(job, step, _accepted_result(result), SettledBy.PERSON, actor=actor, reason=reason)
    else:
        # What has ended well keeps its state: another attempt did it. What was not done is tried again, or needs no undo.
        transitions.note_verdict(job, step, done=done, actor=actor, reason=reason)
        if not done:
            _after_not_done(job, step, actor=actor, reason=reason)
    _end_anew(job, actor=actor, reason=reason)
    return step


def _after_not_done(job: Job, step: Step, *, actor: str, reason: str) -> None:
    if job.state == JobState.RUNNING and job.stopping_at is None:
        if step.state == StepState.FAILED and step.remedy == Remedy.ESCALATE:
            _retry_in_place(job, step, actor=actor, reason=reason)
        scheduler.move_on(job)
        return
    for undo in Step.objects.filter(undoes=step, role=Role.UNDO, superseded=False):
        never_began = undo.state == StepState.NOT_STARTED and undo.attempt == 0
        if never_began or (undo.state == StepState.FAILED and not _is_in_doubt(undo)):
            said = f"{step.address} is known not to have been done: there is nothing to undo."
            _skip(job, undo, actor=actor, reason=said)
    scheduler.move_on(job)


def _end_anew(job: Job, *, actor: str, reason: str) -> None:
    """A job whose undo had failed for want of this word alone ends as undone after all."""
    if job.state != JobState.FAILED or job.partial:
        return
    steps = _timeline(job)
    undos = [step for step in steps if step.role == Role.UNDO]
    if undos and all(step.state != StepState.FAILED for step in undos) and not _doubtful(job):
        transitions.reopen(job, JobState.COMPENSATING, actor=actor, reason=reason)
        scheduler.move_on(job)


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
    result, by = _accepted_result(result), SettledBy.PERSON
    if attempt is not None:
        late = Attempt.objects.filter(step=step, number=attempt, late_outcome=Outcome.COMPLETED).first()
        if late is None:
            raise NotFound(f"Attempt {attempt} of {name} said nothing too late that could be taken up.")
        result, by = late.late_result, SettledBy.LATE
    if step.state == StepState.RUNNING:
        transitions.take_from_worker(job, step, actor=actor, reason=reason)
    transitions.resolve_doubts(job, step, Attempt.Resolution.PERSON, actor=actor, reason=reason)
    _settle(job, step, result, by, actor=actor, reason=reason)
    _end_anew(job, actor=actor, reason=reason)
    return step


def _accepted_result(result: Any) -> Any:
    """What a person gives as a result, as it is stored. Raises InvalidInput."""
    faults: list[dict[str, str]] = []
    stored = plain(result, faults, ("result",))
    if not faults and len(json.dumps(stored).encode()) > conf.payload_limit:
        faults = [{"pointer": "/result", "message": f"is larger than {conf.payload_limit} bytes"}]
    if faults:
        raise InvalidInput(f"The result is refused: {faults[0]['pointer']} {faults[0]['message']}", errors=faults)
    return stored


def _settle(job: Job, step: Step, result: Any, by: SettledBy, *, actor: str, reason: str) -> None:
    transitions.settle_by_word(job, step, result=result, settled_by=by, actor=actor, reason=reason)
    if step.role != Role.FORWARD:
        scheduler.resolve_doubts_by_success(job, step, by_probe=False)
    _go_on_behind(job, step, actor=actor, reason=reason)


def _skip(job: Job, step: Step, *, actor: str, reason: str) -> None:
    if step.is_fan_out:
        scheduler.leave_items(job, step, reason=reason)
    transitions.skip(job, step, reason=reason, actor=actor, settled_by=SettledBy.PERSON)
    _go_on_behind(job, step, actor=actor, reason=reason)


def _go_on_behind(job: Job, step: Step, *, actor: str, reason: str) -> None:
    """What a person has settled is counted off; with the last of its failed items the undo of a fan-out is mended too."""
    scheduler.go_on_behind(job, step)
    if step.role == Role.UNDO and step.parent_id is not None:
        fan = Step.objects.get(items=step.pk)
        if fan.state == StepState.FAILED and not fan.items.filter(state=StepState.FAILED).exists():
            by = SettledBy.PERSON
            transitions.settle_by_word(job, fan, result=None, settled_by=by, actor=actor, reason=reason)
            scheduler.go_on_behind(job, fan)
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
    _skip(job, step, actor=actor, reason=reason)
    return step


# --- which verbs -----------------------------------------------------------------------------------------------------


def job_verbs(job: Job) -> list[str]:
    """What may be asked of this job now, as the nouns that its buttons and routes are named after."""
    if job.is_terminal:
        return _verbs_after_the_end(job)
    ordinary = job.state == JobState.RUNNING and job.stopping_at is None
    verbs = ["cancellation"] if ordinary else []
    if ordinary and _before_pivot(job):
        verbs.append("compensation")
    return [*verbs, "resumption" if job.paused_at else "pause"]


def _verbs_after_the_end(job: Job) -> list[str]:
    if not _may_be_undone_late(job):
        return []
    scene = _scene(job)
    undo = compensation.plan_undo(scene)
    verbs = ["retries"] if job.state == JobState.FAILED and way_on(job, scene.steps) is not None else []
    if (undo.rows or undo.again) and compensation.pivot_passed(scene.plan, scene.steps) is None:
        verbs.append("compensation")
    return verbs


def _before_pivot(job: Job) -> bool:
    plan = Plan.from_json(job.plan)
    pivotal = any(step.pivot for step in plan.steps)
    return not pivotal or compensation.pivot_passed(plan, _timeline(job)) is None


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
    if step.superseded and step.role != Role.RECHECK:
        return []
    verbs = []
    if step.state == StepState.RUNNING and not step.is_fan_out and step.kind != StepKind.CHILD:
        verbs.append("cancellation")
    if step.state == StepState.FAILED and _may_be_tried_again(job, step):
        verbs.append("retries")
    if _takes_a_word(job, step) and not _decided_by_others(job, step):
        plain = not step.is_fan_out and step.kind != StepKind.CHILD
        if plain and step.state in (StepState.RUNNING, StepState.FAILED):
            verbs.append("result")
        if step.role == Role.FORWARD and _may_be_skipped(step) and not _is_in_doubt(step):
            verbs.append("skip")
    if explanations.in_doubt(step) and step.state != StepState.RUNNING:
        verbs.append("verdict")
    return verbs


def _takes_a_word(job: Job, step: Step) -> bool:
    """Whether a person may still say what became of it: where it is under way, and where it has stopped the job."""
    if step.role == Role.UNDO:
        return job.state in (JobState.COMPENSATING, JobState.FAILED)
    if step.role == Role.RECHECK:
        return step.state == StepState.FAILED
    if job.state == JobState.FAILED:
        return not job.steps.filter(superseded=False).undoing().exists()
    return job.state == JobState.RUNNING and job.stopping_at is None


def _decided_by_others(job: Job, step: Step) -> bool:
    """An approval with named approvers is theirs alone."""
    return step.kind == StepKind.SIGNAL and bool(job.plan["steps"][step.place].get("approvers"))


def _is_in_doubt(step: Step) -> bool:
    """It, or an item of it."""
    if step.is_fan_out:
        return Step.objects.filter(parent=step).in_doubt().exists()
    return explanations.in_doubt(step)


def _may_be_skipped(step: Step) -> bool:
    return step.state == StepState.FAILED or (step.state == StepState.NOT_STARTED and step.parent_id is None)


def _may_be_tried_again(job: Job, step: Step) -> bool:
    if step.remedy in transitions.COUNTED_OFF and step.released_at is not None:
        return False
    if step.role == Role.UNDO:
        return job.state in (JobState.COMPENSATING, JobState.FAILED)
    if step.role == Role.RECHECK:
        return True
    if job.state == JobState.FAILED:
        return way_on(job, _timeline(job)) == JobState.RUNNING
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
