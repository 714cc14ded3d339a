"""Ends what a job no longer goes on with: its waits when it stops, its steps when undo begins, items it leaves behind."""

from collections.abc import Collection, Mapping, Sequence

from workflows import broker, compensation, fanouts, transitions
from workflows.clock import now
from workflows.models import Job, Step
from workflows.plans.plan import Plan
from workflows.states import ErrorKind, Remedy, Role, StepKind, StepState
from workflows.transitions import Failure

STOPPED = Failure(kind=ErrorKind.CANCELLED, code="cancelled", message="The job is stopping.")


def end_waits(job: Job, steps: Sequence[Step]) -> bool:
    """A stopping job waits no more for times, signals and callbacks; children are told. Whether a step was changed."""
    plan = Plan.from_json(job.plan)
    waiting = [step for step in steps if step.role == Role.FORWARD and step.state == StepState.RUNNING]
    fans = [step for step in waiting if step.is_fan_out]
    items = fanouts.running_items(job).filter(parent__in=fans, complete_by__isnull=True)
    ended = [_end_wait(job, step, plan) for step in [*items, *waiting] if step.complete_by is None and step not in fans]
    for fan in fans:
        if not fanouts.running_items(job).filter(parent=fan).exists():
            transitions.wait_ended_badly(job, fan, STOPPED, actor="scheduler")
            ended.append(True)
    return any(ended)


def _end_wait(job: Job, step: Step, plan: Plan) -> bool:
    if step.kind == StepKind.CHILD:
        policy = plan.steps[step.place].on_parent_end
        if policy == "cancel":
            transitions.look_again_at(step, now())
            broker.ring_wake_on_commit(step.pk)
        if policy != "abandon":
            return False
    if step.kind == StepKind.CALL:
        transitions.cancel_step(job, step, actor="scheduler", reason="The job is stopping; no callback is waited for.")
    else:
        transitions.wait_ended_badly(job, step, STOPPED, actor="scheduler")
    if step.parent_id is not None:
        transitions.count_item(fanouts.fan_of(step), failed=True)
    return True


def end_forward_steps(
    job: Job, steps: Sequence[Step], evidence: Mapping[int, compensation.Evidence], names: Collection[str] | None = None
) -> None:
    """Undo begins: what has not begun is skipped, what is in doubt has failed, what has failed is undone."""
    for step in steps:
        if step.role != Role.FORWARD or (names is not None and step.name not in names):
            continue
        if step.is_fan_out:
            transitions.skip_items(job, step, reason=compensation.BEFORE_UNDO)
            doubtful = Step.objects.filter(parent=step, state=StepState.NOT_STARTED)
            failed = Step.objects.filter(parent=step, state=StepState.FAILED, remedy__in=["", Remedy.ESCALATE])
            for item in [*doubtful, *failed]:
                _end_forward_step(job, item, in_doubt=Step.objects.filter(pk=item.pk).with_effects().exists())
        found = evidence[step.pk]
        _end_forward_step(job, step, in_doubt=found.open_doubt or found.called_once)


def _end_forward_step(job: Job, step: Step, *, in_doubt: bool, reason: str = compensation.BEFORE_UNDO) -> None:
    if step.state == StepState.NOT_STARTED and in_doubt:
        transitions.fail_in_doubt(job, step, reason="Nobody knows whether an earlier attempt did it.")
    elif step.state == StepState.NOT_STARTED:
        transitions.skip(job, step, reason=reason)
    elif step.state == StepState.FAILED and step.remedy in ("", Remedy.ESCALATE):
        transitions.decide_remedy(job, step, Remedy.COMPENSATE, actor="scheduler", reason="The job is being undone.")


def end_failed_steps(job: Job, steps: Sequence[Step], remedy: Remedy, reason: str) -> None:
    """Nobody has to decide any more on what failed: the job ends, or a person has taken it in hand."""
    for step in steps:
        if step.is_fan_out:
            undecided = Step.objects.filter(parent=step, state=StepState.FAILED, remedy__in=["", Remedy.ESCALATE])
            end_failed_steps(job, list(undecided), remedy, reason)
        if step.role == Role.FORWARD and step.state == StepState.FAILED and step.remedy in ("", Remedy.ESCALATE):
            transitions.decide_remedy(job, step, remedy, actor="scheduler", reason=reason)


def leave_items(job: Job, fan: Step, *, reason: str) -> None:
    """A job goes on without this fan-out that failed: nothing more of it is begun. What runs may end."""
    transitions.skip_items(job, fan, reason=reason)
    items = Step.objects.filter(parent=fan)
    for item in items.filter(state=StepState.NOT_STARTED):
        in_doubt = item.attempts.filter(in_doubt=True, resolved_by="").exists()
        _end_forward_step(job, item, in_doubt=in_doubt, reason=reason)
        transitions.count_item(fan, failed=in_doubt)
    for item in items.without_remedy():
        transitions.decide_remedy(job, item, Remedy.IGNORE, actor="scheduler", reason=reason)
        transitions.count_item(fan, failed=True)
    if items.filter(state=StepState.RUNNING).exists():
        transitions.leave_the_close(job)
