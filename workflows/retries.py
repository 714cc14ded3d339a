"""Tries again what has failed, once somebody has asked for it: a whole job, its undos, or one step. Its job is locked."""

from collections.abc import Sequence
from datetime import timedelta

from workflows import broker, compensation, fanouts, scenes, scheduler, transitions
from workflows.allowed import doubtful, job_verbs, way_on
from workflows.exceptions import WrongState
from workflows.models import Job, Step
from workflows.states import JobState, Role, StepState


def retry_locked(job: Job, *, actor: str, reason: str) -> None:
    """Go on with a locked job that is Failed. Raises WrongState where only a person's word leads on."""
    scene = scenes.scene_now(job)
    way = way_on(job, scene.steps)
    if way is None:
        raise WrongState(
            f"Nobody knows what became of {', '.join(doubtful(job))}, and no retry finds it out: record a verdict first.",
            state=job.state,
            allowed=job_verbs(job),
        )
    transitions.reopen(job, way, actor=actor, reason=reason)
    if way == JobState.COMPENSATING:
        retry_undos(job, compensation.plan_undo(scene).again, actor=actor, reason=reason)
        for step in scene.steps:
            if step.role == Role.RECHECK and step.state == StepState.FAILED:
                _retry_now(job, step, actor=actor, reason=reason)
    else:
        _renew(job, scene)
        for step in scenes.timeline(job):
            if step.state == StepState.FAILED and step.remedy not in transitions.COUNTED_OFF:
                _retry_now(job, step, actor=actor, reason=reason)
        recount(job)
    scheduler.move_on(job)
    scheduler.ring_for_ready(job)


def retry_undos(job: Job, undos: Sequence[compensation.Again], *, actor: str, reason: str) -> None:
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


def recount(job: Job) -> None:
    """A step that is tried again is open again."""
    open_steps = Step.objects.of_plan().filter(job=job, role=Role.FORWARD)
    done = [StepState.COMPLETED, StepState.SKIPPED]
    settled = open_steps.filter(state=StepState.FAILED, remedy__in=transitions.COUNTED_OFF)
    transitions.count_open_steps(job, open_steps.exclude(state__in=done).count() - settled.count())


def retry_in_place(job: Job, step: Step, *, actor: str, reason: str) -> None:
    """This step alone, with the fan-out that it is an item of."""
    if step.parent_id is not None:
        _reopen_fan_of(job, step, actor=actor, reason=reason)
    _retry_now(job, step, actor=actor, reason=reason)
    if step.parent_id is not None:
        scheduler.go_on_with_items(job, step)


def _reopen_fan_of(job: Job, item: Step, *, actor: str, reason: str) -> None:
    """The fan-out goes on as well; where it had ended, it counts its items anew once it is looked at."""
    fan = fanouts.fan_of(item)
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
