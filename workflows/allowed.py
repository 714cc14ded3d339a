"""Which verbs may be asked now, of a job and of a step.

Every function reads, and changes nothing. The faces ask before they show a button; the verbs ask again under the lock.
"""

from collections.abc import Sequence

from workflows import compensation, explanations, scenes, transitions
from workflows.clock import now
from workflows.models import Job, Step
from workflows.plans.plan import Plan
from workflows.states import JobState, Role, StepKind, StepState

# --- of a job --------------------------------------------------------------------------------------------------------


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
    if not may_be_undone_late(job):
        return []
    scene = scenes.scene_now(job)
    undo = compensation.plan_undo(scene)
    verbs = ["retries"] if job.state == JobState.FAILED and way_on(job, scene.steps) is not None else []
    if (undo.rows or undo.again) and compensation.pivot_passed(scene.plan, scene.steps) is None:
        verbs.append("compensation")
    return verbs


def _before_pivot(job: Job) -> bool:
    plan = Plan.from_json(job.plan)
    pivotal = any(step.pivot for step in plan.steps)
    return not pivotal or compensation.pivot_passed(plan, scenes.timeline(job)) is None


def may_be_undone_late(job: Job) -> bool:
    """Whether it has ended in a way, and not too long ago, that leaves room for an undo."""
    if job.state == JobState.FAILED:
        return True
    within = Plan.from_json(job.plan).compensate_within
    return (
        job.state == JobState.COMPLETED
        and within is not None
        and job.finished_at is not None
        and now() <= job.finished_at + within
    )


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
    return JobState.RUNNING if job.partial and not back & doubtful(job).keys() else None


def doubtful(job: Job) -> dict[str, str]:
    """{name: address} of the forward steps and items of which nobody knows whether they were done."""
    rows = Step.objects.filter(job=job, role=Role.FORWARD, superseded=False).in_doubt().order_by("seq")
    return {step.name: step.address for step in rows}


# --- of a step -------------------------------------------------------------------------------------------------------


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
        if step.role == Role.FORWARD and _may_be_skipped(step) and not is_in_doubt(step):
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
        return way_on(job, scenes.timeline(job)) == JobState.RUNNING
    return job.state == JobState.RUNNING and job.stopping_at is None


def is_in_doubt(step: Step) -> bool:
    """It, or an item of it."""
    if step.is_fan_out:
        return Step.objects.filter(parent=step).in_doubt().exists()
    return explanations.in_doubt(step)
