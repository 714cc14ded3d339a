"""The undo that a person or a client program chooses: what it would do, and then exactly that.

It is decided on twice, for the preview and under the job's lock; where the two differ, nothing is done.
"""

import hashlib
import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from workflows import compensation, endings, explanations, retries, scenes, scheduler, transitions, verbs
from workflows.allowed import is_in_doubt, job_verbs, may_be_undone_late
from workflows.exceptions import DigestMismatch, NotFound, WrongState
from workflows.models import Job, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.states import JobState, Reason, Remedy, Role, StepKind, StepState
from workflows.transitions import in_transaction

# So many of the calls are shown.
MOST_CALLS = 500


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What an undo would do, now. `digest` stands for exactly this; an undo under another one is refused.

    `steps`: {step, operation, key, reference, in_doubt}, in the order in which they begin; of `total` calls the first, and
    so are those `in_doubt`, while the digest is of all. `not_undone`: {step, why}. `running`: steps whose calls are under
    way; what they turn out to have done is undone as well. `refused`: why the job cannot be undone now, whatever it did.
    """

    digest: str
    steps: list[dict[str, Any]]
    total: int
    not_undone: list[dict[str, Any]]
    in_doubt: list[str]
    running: list[str]
    pivot: str | None
    refused: str | None
    down_to: str | None


def preview(job_id: uuid.UUID, *, down_to: str | None = None) -> Preview:
    """What undoing this job would do: all of it, or down to one step, which is undone too. Changes nothing."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return _preview(job, scenes.scene_now(job), down_to)


def _preview(job: Job, scene: compensation.Scene, down_to: str | None) -> Preview:
    names = _names_down_to(job, scene.plan, down_to)
    parts: list[_Part] = []
    for step in _in_order_of_undo(scene, names):
        parts.append(_part_of(scene, step, room=MOST_CALLS - sum(len(part.first) for part in parts)))
    forward = [step for step in scene.steps if step.role == Role.FORWARD and (names is None or step.name in names)]
    not_undone = [{"step": step.name, "why": why} for step in forward if (why := _why_not(scene, step)) is not None]
    left_in_doubt = [step.name for step in forward if _why_not(scene, step) and is_in_doubt(step)]
    seen = [[step.pk, step.version, step.state, step.attempt, step.items_open] for step in scene.steps]
    facts = json.dumps([str(job.pk), job.state, down_to, seen, [part.facts for part in parts]], sort_keys=True)
    return Preview(
        digest=hashlib.sha256(facts.encode()).hexdigest(),
        steps=[call for part in parts for call in part.first],
        total=sum(part.total for part in parts),
        not_undone=not_undone,
        in_doubt=[address for part in parts for address in part.in_doubt][:MOST_CALLS] + left_in_doubt,
        running=[step.name for step in forward if step.state == StepState.RUNNING],
        pivot=compensation.pivot_passed(scene.plan, scene.steps, names),
        refused=_why_refused(job),
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


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What of one step is undone: how many calls, all that they are decided on, the first of them, those in doubt."""

    total: int
    facts: Any
    first: list[dict[str, Any]]
    in_doubt: list[str]


def _part_of(scene: compensation.Scene, step: Step, *, room: int) -> _Part:
    if step.is_fan_out:
        return _part_of_items(scene, step, room)
    call = _call_of(scene, step, step)
    return _Part(total=1, facts=call, first=[call][:room], in_doubt=[step.address] if call["in_doubt"] else [])


def _part_of_items(scene: compensation.Scene, fan: Step, room: int) -> _Part:
    """Of many items all are counted and digested where they are stored, and the first are read."""
    items = Step.objects.filter(parent=fan).with_effects()
    undo = compensation.undo_of(fan, scene.steps)
    if undo is not None:
        # Where an undo has failed, only the items whose own has are asked for again.
        items = items.filter(undos__parent=undo, undos__state=StepState.FAILED)
    total, digest = items.fingerprint()
    first = items.prefetch_related("attempts").order_by("index")[:room]
    doubtful = items.in_doubt().order_by("index").only("name", "index")[:MOST_CALLS]
    return _Part(
        total=total,
        facts=[total, digest],
        first=[_call_of(scene, fan, item) for item in first],
        in_doubt=[item.address for item in doubtful],
    )


def _call_of(scene: compensation.Scene, step: Step, row: Step) -> dict[str, Any]:
    """The call that undoes a step, or an item of it."""
    operation = scene.plan.steps[step.place].compensation
    return {
        "step": row.address,
        "operation": operation or f"undo of the job that {step.name} started",
        "key": row.idempotency_key,
        "reference": explanations.known_reference(row),
        "in_doubt": explanations.in_doubt(row),
    }


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
    job = verbs.locked_job(job_id, seen)
    _check_may_be_undone(job)
    scene = scenes.scene_now(job)
    if _preview(job, scene, down_to).digest != digest:
        raise DigestMismatch(
            "The job has moved on since this undo was shown; nothing was done. Look at the new preview.",
            state=job.state,
        )
    if job.state == JobState.RUNNING and down_to is None:
        verbs.check_not_past_pivot(job)
        verbs.stop(job, Reason.OPERATOR, undo=True, actor=actor, reason=reason)
        return job
    undo_ended(job, scene, actor=actor, reason=reason, why=Reason.OPERATOR, down_to=down_to)
    return job


def undo_ended(
    job: Job, scene: compensation.Scene, *, actor: str, reason: str, why: Reason, down_to: str | None = None
) -> None:
    """Undo a locked job in which nothing runs: one that has ended, or a part of one that has not."""
    names = _names_down_to(job, scene.plan, down_to)
    verbs.check_not_past_pivot(job, names)
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
            transitions.wait_ended_badly(job, step, endings.STOPPED, actor="scheduler")
    endings.end_forward_steps(job, scene.steps, scene.evidence, names)
    if names is not None:
        rest = [step for step in forward if step.name not in names]
        endings.end_failed_steps(job, rest, Remedy.WAIT, f"The job is undone down to {down_to}.")
    transitions.begin_undo(job, undo.rows, actor=actor, why=detail, reason=why, partial=down_to is not None)
    retries.retry_undos(job, undo.again, actor=actor, reason=reason)
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
    if (why := _why_refused(job)) is not None:
        raise WrongState(why, state=job.state, allowed=job_verbs(job))


def _why_refused(job: Job) -> str | None:
    """Why a job in this state cannot be undone now."""
    within = Plan.from_json(job.plan).compensate_within
    ordinary = job.state == JobState.RUNNING and job.stopping_at is None
    if ordinary or may_be_undone_late(job):
        return None
    if job.state == JobState.COMPLETED and within is not None:
        return f"The job completed more than {within} ago, too long to be undone."
    if job.state == JobState.COMPLETED:
        return f"{job.workflow} cannot be undone once it is Completed: it names no compensate_within."
    return f"The job is {job.state}; it cannot be undone now."
