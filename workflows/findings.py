"""What the supervisor finds, and what follows: a step that will not succeed, a time that is over, a job that is stranded.

Each is one short transaction (or takes part in the caller's) that looks again under the job's lock. Where somebody else
holds that lock nothing is done; the next sweep finds it again. What is looked at again is found by its id, without its time in
the condition: else each of thousands would be looked for among all whose time is over.
"""

import uuid

from django.db.models import Q

from workflows import children, compensation, endings, fanouts, scenes, scheduler, transitions
from workflows.clock import now
from workflows.models import Job, Step
from workflows.plans.plan import Plan
from workflows.states import ErrorKind, JobState, Reason, Remedy, Role, SettledBy, StepKind, StepState
from workflows.transitions import Failure, in_transaction

# --- a step that will not succeed ------------------------------------------------------------------------------------


def give_up(job: Job, step: Step, remedy: Remedy, *, reason: str) -> None:
    """A step of a locked job will not succeed. What that means for its job is the remedy."""
    if step.parent_id is not None and step.role == Role.FORWARD and remedy != Remedy.ESCALATE:
        _give_up_item(job, step, reason=reason)
        return
    transitions.decide_remedy(job, step, remedy, actor="supervisor", reason=reason)
    if remedy in transitions.COUNTED_OFF:
        if step.is_fan_out:
            endings.leave_items(job, step, reason=f"{step.name} failed, and the job goes on without it.")
        scheduler.go_on_behind(job, step)
        scheduler.ring_for_ready(job)
    elif remedy == Remedy.COMPENSATE:
        detail = f"{step.address}: {step.error_message}"
        if job.stopping_at is None:
            transitions.stop(job, reason=Reason.STEP_FAILED, detail=detail, undo=True, actor="supervisor")
        scheduler.move_on(job)
    elif step.role != Role.FORWARD:  # an undo: a person is told; the undo of other steps goes on
        scheduler.go_on_behind(job, step)
        scheduler.ring_for_ready(job)


def _give_up_item(job: Job, item: Step, *, reason: str) -> None:
    """Tolerated, or one too many: then the fan-out itself fails."""
    fan = fanouts.fan_of(item)
    room = fan.items_failed < fanouts.tolerated(Plan.from_json(job.plan).steps[fan.place], fan.items_total or 0)
    remedy = Remedy.IGNORE if room else Remedy.COMPENSATE
    transitions.decide_remedy(job, item, remedy, actor="supervisor", reason=reason)
    scheduler.go_on_behind(job, item)
    scheduler.ring_for_ready(job)


# --- a time that is over ---------------------------------------------------------------------------------------------


@in_transaction
def pass_deadline(job_id: uuid.UUID) -> bool | None:
    """The time of a job as a whole is over: stop it, and undo it where that is still possible. None when it is locked."""
    job = transitions.lock(job_id, unless_locked=True)
    if job is None:
        return None
    if job.state != JobState.RUNNING or job.stopping_at is not None or job.time_limit is None:
        return False
    if job.deadline is None or job.deadline > now():
        return False
    if job.paused_at is not None:
        transitions.resume(job, actor="supervisor", reason="Its deadline lifts the pause.")
        children.tell(job)
    undo = compensation.pivot_passed(Plan.from_json(job.plan), scenes.timeline(job)) is None
    detail = f"It did not end by {job.deadline:%Y-%m-%d %H:%M:%S} UTC, its deadline."
    transitions.stop(job, reason=Reason.DEADLINE, detail=detail, undo=undo, actor="supervisor")
    scheduler.move_on(job)
    return True


def due(step_id: int) -> Step | None:
    """The step, if it waits without a lease for something whose time has come."""
    step = Step.objects.filter(pk=step_id).first()
    if step is None or step.state != StepState.RUNNING or step.complete_by is not None or step.deadline is None:
        return None
    return step if step.deadline <= now() else None


@in_transaction
def wait_is_over(step_id: int) -> bool | None:
    """What a step without a lease waited for is here (a time), or did not come in time (a signal, a callback)."""
    job = _lock_job_of(step_id)
    if job is None:
        return None
    step = due(step_id)
    if step is None or (job.paused_at is not None and step.kind == StepKind.TIMER):
        return False
    if step.kind == StepKind.TIMER:
        transitions.complete(job, step, result=None, actor="scheduler", settled_by=SettledBy.TIMER)
        scheduler.go_on_behind(job, step)
        scheduler.ring_for_ready(job)
        return True
    if step.kind == StepKind.SIGNAL:
        said, code = f"No signal {step.name} came in time.", "signal_timeout"
    else:
        said, code = "No callback came in time.", transitions.CALLBACK_TIMEOUT
    expired = Failure(kind=ErrorKind.EXPIRED_WAITING, code=code, message=said, in_doubt=step.kind == StepKind.CALL)
    transitions.wait_ended_badly(job, step, expired, actor="supervisor")
    scheduler.after_failure(job, step)
    return True


@in_transaction
def refuse_parked(step_id: int) -> bool | None:
    """A step's service was away for longer than it may be parked."""
    job = _lock_job_of(step_id)
    if job is None:
        return None
    step = Step.objects.filter(pk=step_id, state=StepState.NOT_STARTED, parked=True).first()
    if step is None:
        return False
    said = f"The service of agent {step.agent} was away for longer than a step may be parked."
    _refuse(job, step, Failure(kind=ErrorKind.EXPIRED_WAITING, code="park_timeout", message=said))
    return True


@in_transaction
def refuse_queued(step_id: int) -> bool | None:
    """Nobody took a ready step within its queue time-out."""
    job = _lock_job_of(step_id)
    if job is None:
        return None
    step = Step.objects.ready().filter(pk=step_id).first()
    if step is None or step.queue_by is None or step.queue_by > now():
        return False
    if step.rings == 0:
        transitions.note_rings([step])  # nobody was rung for it yet: this is when it is first seen
        return False
    said = f'No worker of queue "{step.queue}" took {step.address} within {step.queue_timeout}.'
    _refuse(job, step, Failure(kind=ErrorKind.EXPIRED_WAITING, code="queue_timeout", message=said))
    return True


def _refuse(job: Job, step: Step, failure: Failure) -> None:
    transitions.refuse(job, step, failure, actor="supervisor")
    scheduler.after_failure(job, step)


def _lock_job_of(step_id: int) -> Job | None:
    """None where there is no such step, or where somebody else holds its job."""
    job_id = Step.objects.filter(pk=step_id).values_list("job_id", flat=True).first()
    return transitions.lock(job_id, unless_locked=True) if job_id else None


# --- a job that is stranded ------------------------------------------------------------------------------------------


@in_transaction
def heal(job_id: uuid.UUID) -> bool:
    """Set a stranded job moving again: its counters, its held steps, its next move. False when it is not stranded."""
    job = transitions.lock(job_id, unless_locked=True)
    if job is None or not Job.objects.filter(pk=job_id).stranded().exists():
        return False
    steps = list(Step.objects.filter(Q(parent__isnull=True) | Q(releases__len__gt=0), job=job))
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
    scheduler.ring_for_ready(job)
    scheduler.move_on(job)
    return True
