"""What is stored as one short word, as people say it."""

from workflows.models import Event, Job, Step
from workflows.states import Reason, SettledBy

_REASONS = {
    Reason.STEP_FAILED: "A step failed",
    Reason.CANCELLED: "It was cancelled",
    Reason.DEADLINE: "Its time was over",
    Reason.OPERATOR: "A person had it undone",
    Reason.PARENT: "The job that started it ended",
}

# Where nothing is said, the step was settled as its kind of step always is.
_SETTLED = {
    SettledBy.CALLBACK: "settled by callback",
    SettledBy.PERSON: "settled by hand",
    SettledBy.PROBE: "settled by the probe",
    SettledBy.LATE: "settled by a late word",
}

_EVENTS = {
    "job.opened": "Job opened",
    "job.stopping": "Job is stopping",
    "job.compensating": "Undo begins",
    "job.completed": "Job completed",
    "job.compensated": "Job undone",
    "job.failed": "Job failed",
    "job.reopened": "Job tried again",
    "job.paused": "Job paused",
    "job.resumed": "Job resumed",
    "job.recounted": "Counters set right",
    "steps.renewed": "New generation of steps",
    "step.claimed": "Started",
    "step.opened": "Begins to wait",
    "step.expanded": "Items known",
    "step.deferred": "Waits for a callback",
    "step.released": "Put back, not charged",
    "step.completed": "Completed",
    "step.settled": "Settled by word",
    "step.failed": "Failed",
    "step.expired": "Lease ran out",
    "step.cancelled": "Stopped",
    "step.retried": "To be tried again",
    "step.key_renewed": "New idempotency key",
    "step.skipped": "Skipped",
    "step.remedy": "Remedy chosen",
    "step.verdict": "Verdict",
    "items.skipped": "Items skipped",
    "doubt.resolved": "Doubt resolved",
    "attempt.late": "Late word kept",
    "recheck.added": "To be asked once more",
    "signal.received": "Signal",
    "callback.ignored": "Callback came too late",
}


def of_reason(job: Job) -> str:
    """Why a job stopped short, one sentence or an empty text."""
    if not job.reason:
        return ""
    said = _REASONS[Reason(job.reason)]
    return f"{said}: {job.reason_detail}" if job.reason_detail else f"{said}."


def of_settling(step: Step) -> str:
    """Who completed a step, where it was not the answer of its call."""
    return _SETTLED.get(SettledBy(step.settled_by), "") if step.settled_by else ""


def of_event(event: Event) -> str:
    return _EVENTS.get(event.kind, event.kind)
