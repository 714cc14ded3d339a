"""What one job wants of another: a child that is to be stopped or undone, and a parent that waits to hear of an end.

Two jobs are never locked at once. Each errand is found in the store, is done by one transaction on the one job, then ticked
off by another on the other, and changes nothing when it is done twice.
"""

import uuid
from contextlib import suppress

from workflows import children, compensation, findings, retries, scenes, scheduler, transitions, undo, verbs
from workflows.allowed import job_verbs
from workflows.exceptions import SagError, WrongState
from workflows.models import Event, Job, Step
from workflows.plans.plan import Plan
from workflows.states import ErrorKind, JobState, Reason, Role, SettledBy, StepKind, StepState
from workflows.transitions import Failure, in_transaction


def wake(step_id: int) -> bool | None:
    """See to a step that runs without a lease and is due. None when its job is locked."""
    step = findings.due(step_id)
    if step is None:
        return False
    if step.kind != StepKind.CHILD:
        return findings.wait_is_over(step_id)
    child = children.child_of(step)
    if child is None:
        return _answer(step.pk, step.job_id, None)
    if _ask(step, child):
        _ask_no_more(step)
        return True
    return tell_parent(child.pk)


def _ask(step: Step, child: Job) -> bool:
    """Ask the child for what its parent wants of it. False when it has nothing more to do, and its end is the answer."""
    _pass_on_the_pause(step.job, child)
    if step.role != Role.FORWARD:
        return _undo_child(child)
    if step.job.stopping_at is not None:
        if Plan.from_json(step.job.plan).steps[step.place].on_parent_end == "cancel":
            detail = f"{step.job.workflow} {step.job_id} is stopping."
            verbs.cancel_child(child.pk, undo=bool(step.job.stopping_undo), detail=detail)
        return not Job.objects.get(pk=child.pk).is_terminal
    # Its parent's step waits for it once more only after it was told of the failure.
    tried_again = child.state == JobState.FAILED and child.told_parent_at is not None
    return _retry_child(child.pk) if tried_again else not child.is_terminal


def _pass_on_the_pause(job: Job, child: Job) -> None:
    """A child is paused with its parent, and resumed with it unless somebody else had paused it."""
    if child.is_terminal:
        return
    with suppress(WrongState):  # it has just ended
        if job.paused_at is not None:
            verbs.pause(child.pk, actor="scheduler", reason="The job that started it is paused.")
        elif child.paused_at is not None:
            paused = Event.objects.filter(job=child, kind="job.paused").order_by("-seq").first()
            if paused is not None and paused.actor == "scheduler":
                verbs.resume(child.pk, actor="scheduler", reason="The job that started it goes on.")


@in_transaction
def _retry_child(job_id: uuid.UUID) -> bool:
    job = transitions.lock(job_id)
    if job is None or job.state != JobState.FAILED:
        return True
    if "retries" not in job_verbs(job):
        return False
    retries.retry_locked(job, actor="scheduler", reason="The step that started it is tried again.")
    return True


@in_transaction
def _undo_child(child: Job) -> bool:
    job = transitions.lock(child.pk)
    if job is None or job.state == JobState.COMPENSATED:
        return False
    reason = "The job that started it is being undone."
    if job.state == JobState.RUNNING:
        verbs.cancel_child(job.pk, undo=True, detail=reason)
    elif job.state in (JobState.COMPLETED, JobState.FAILED):
        try:
            undo.undo_ended(job, scenes.scene_now(job), actor="scheduler", reason=reason, why=Reason.PARENT)
        except SagError:
            return False
    return not job.is_terminal


@in_transaction
def _ask_no_more(step: Step) -> None:
    job = transitions.lock(step.job_id)
    if job is not None:
        transitions.look_again_at(step, None)


def tell_parent(job_id: uuid.UUID) -> bool | None:
    """A child has ended: complete or fail the step that waits for it. None when that one's job is locked."""
    child = Job.objects.filter(pk=job_id).first()
    if child is None or not child.is_terminal or child.parent_step_id is None:
        return False
    waiting = Step.objects.filter(state=StepState.RUNNING, kind=StepKind.CHILD, complete_by__isnull=True)
    step = waiting.filter(pk=child.parent_step_id).first() or waiting.filter(undoes_id=child.parent_step_id).first()
    told: bool | None = True
    if step is not None and children.child_of(step) == child:
        told = _answer(step.pk, step.job_id, child)
    if told is not None:
        transitions.told_parent(child)
    return told


@in_transaction
def _answer(step_id: int, job_id: uuid.UUID, child: Job | None) -> bool | None:
    job = transitions.lock(job_id, unless_locked=True)
    if job is None:
        return None
    step = Step.objects.filter(pk=step_id, state=StepState.RUNNING, kind=StepKind.CHILD).first()
    if step is None:
        return True
    result, failure = None, None  # an undo of a child that is gone: there is nothing to undo
    if child is None and step.role == Role.FORWARD:
        gone = "The job that it started is not there any more."
        failure = Failure(kind=ErrorKind.PERMANENT, code="child_gone", message=gone)
    elif child is not None:
        result, failure = children.answer_of(child, step)
    if child is not None and step.role != Role.FORWARD and child.state in (JobState.COMPLETED, JobState.FAILED):
        failure = failure if compensation.is_touched(scenes.scene_now(child)) else None
    if failure is not None:
        transitions.wait_ended_badly(job, step, failure, actor="scheduler")
        scheduler.after_failure(job, step)
    else:
        transitions.complete(job, step, result=result, actor="scheduler", settled_by=SettledBy.CHILD)
        scheduler.go_on_behind(job, step)
        scheduler.ring_for_ready(job)
    return True
