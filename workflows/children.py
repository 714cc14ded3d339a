"""Children: jobs that are started by a step of another job.

No transaction locks two jobs. A child is opened in its parent's transaction, since nobody else can know it yet. Everything
later is told by a row: the end of a child by `told_parent_at` (`Job.objects.owe_parent`), what the parent wants of it by a
Running step that is due (`Step.objects.due`). Each is applied to the other job by a transaction of its own, which may come
twice and then changes nothing.
"""

from typing import Any

from workflows import broker, opening, transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.models import Job, Step
from workflows.plans import registry
from workflows.plans.plan import PlanStep
from workflows.states import ErrorKind, JobState, Role, StepKind, StepState
from workflows.transitions import Failure


def begin(job: Job, step: Step, planned: PlanStep, input: Any) -> None:
    """Open the child, and let the step wait for its end. Raises UnknownWorkflow, InvalidInput or InputTooLarge.

    A step that is tried again takes up the child that it has, unless that was undone: then it starts another one.
    """
    earlier = child_of(step)
    if earlier is not None and earlier.state != JobState.COMPENSATED:
        transitions.open_waiting(job, step, until=now())
        broker.ring_wake_on_commit(step.pk)
        return
    workflow = registry.get(planned.child or "")
    validated = workflow.validate(input)
    transitions.open_waiting(job, step, until=None, data={"workflow": workflow.name})
    key = step.idempotency_key if earlier is None else f"{step.idempotency_key}~{step.attempt}"
    child = opening.new_job(workflow.plan, validated, key=key, client_id=job.client_id, parent_step_id=step.pk)
    opened = transitions.start(child, plan=workflow.plan, actor="scheduler", start_at=None)
    if opened is None:
        raise AssertionError(f"the key {key} is taken by a job that is no child of {step}")
    broker.ring_on_commit(opened.first)
    if opened.gated:
        broker.ring_attend_on_commit(child.pk)


def tell(job: Job) -> None:
    """A locked job was paused or resumed: so are the jobs that its steps have started, each by an errand of its own."""
    for step in Step.objects.filter(job=job, kind=StepKind.CHILD, state=StepState.RUNNING, items_total__isnull=True):
        transitions.look_again_at(step, now())
        broker.ring_wake_on_commit(step.pk)


def child_of(step: Step) -> Job | None:
    """The job that this step started, the last one; for an undo, the one that its original started."""
    return Job.objects.filter(parent_step_id=step.undoes_id or step.pk).order_by("-created_at", "-id").first()


def answer_of(child: Job, step: Step) -> tuple[Any, Failure | None]:
    """(result, failure) of the step that waited for this end."""
    undoes = step.role != Role.FORWARD
    if child.state == (JobState.COMPENSATED if undoes else JobState.COMPLETED):
        return result_of(child), None
    said = child.reason_detail or child.reason or "it is not undone"
    failure = Failure(
        kind=ErrorKind.PERMANENT,
        code="child_not_undone" if undoes else "child_failed",
        message=f"{child.workflow} {child.pk} ended {child.state}: {said}",
    )
    return None, failure


def result_of(child: Job) -> dict[str, Any]:
    """{"job", "state", "results"}: the results of its steps by name, where they are not too large together."""
    rows = Step.objects.of_plan().filter(
        job=child, state=StepState.COMPLETED, role=Role.FORWARD, items_total__isnull=True
    )
    results = dict(rows.values_list("name", "result"))
    too_large = len(str(results)) > conf.payload_limit
    return {"job": str(child.pk), "state": child.state, "results": {} if too_large else results}
