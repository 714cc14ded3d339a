"""What the machine may not decide alone."""

from collections.abc import Sequence
from datetime import datetime

from workflows.explanations.circumstances import NOTHING_KNOWN, Circumstances
from workflows.explanations.facts import in_doubt, known_reference, with_attempts
from workflows.explanations.words import doer, failure, planned
from workflows.models import Job, Step
from workflows.states import JobState, Remedy, Role, StepKind, StepState


def needs_person(job: Job, steps: Sequence[Step], known: Circumstances = NOTHING_KNOWN) -> list[str]:
    """One sentence each, naming exactly what may still be live. Of many items the first are told, and how many there are.

    Agrees with `JobQuerySet.needs_person`: what was given up, doubts that a job ended with, and undos in part.
    """
    escalated = [step for step in steps if _is_given_up(step)]
    sentences = [_given_up(job, step, steps) for step in escalated]
    if job.state in (JobState.FAILED, JobState.COMPLETED):
        told = {step.pk for step in escalated} | {step.undoes_id for step in escalated}
        sentences += [_left_in_doubt(step) for step in steps if step.pk not in told and in_doubt(step)]
    if items := known.in_need.get(job.pk):
        sentences += [_of_item(job, item, steps) for item in items.first]
        sentences += [f"And {items.more:,} more items need a person."] if items.more else []
    if job.state == JobState.FAILED and job.partial:
        sentences.append("A part of the job was undone: try it again to go forward from there, or undo the rest.")
    return sentences


def needs_person_since(job: Job, steps: Sequence[Step], known: Circumstances = NOTHING_KNOWN) -> datetime:
    """Since when: the oldest end of a step that stands there; the job's own end for what it ended with."""
    items = known.in_need[job.pk].first if job.pk in known.in_need else ()
    ends = [step.finished_at for step in [*steps, *items] if _is_given_up(step) and step.finished_at is not None]
    return min([*ends, *([job.finished_at] if job.finished_at else [])], default=job.created_at)


def _is_given_up(step: Step) -> bool:
    return step.state == StepState.FAILED and step.remedy == Remedy.ESCALATE


def _of_item(job: Job, item: Step, steps: Sequence[Step]) -> str:
    return _given_up(job, item, steps) if _is_given_up(item) else _left_in_doubt(item)


def _given_up(job: Job, step: Step, steps: Sequence[Step]) -> str:
    original = step.undoes
    if original is None:
        return f"{step.address}: {_what_failed(step)}: {failure(step)}.{_no_way_back(job, step, steps)}"
    if step.is_fan_out:
        return f"{original.name}: {failure(step)}."
    did = _what_is_live(with_attempts(original, steps))
    if step.role == Role.RECHECK:
        return f"{original.address}: {did}; asking {doer(step)} once more failed: {failure(step)}."
    later = [other for other in steps if other.undoes_id == original.pk and other.role == Role.RECHECK]
    if any(other.state == StepState.COMPLETED for other in later):
        return f"{original.address}: {doer(step)} failed ({failure(step)}); asked once more later, it was answered."
    return f"{original.address}: {did}; its undo {doer(step)} failed: {failure(step)}."


def _what_failed(step: Step) -> str:
    if step.is_fan_out:
        return "its items failed"
    if step.kind in (StepKind.SIGNAL, StepKind.TIMER):
        return "what it waited for did not come, or was a refusal"
    doubt = ", and nobody knows whether it took effect" if in_doubt(step) else ""
    return f"{doer(step)} was given up{doubt}"


def _no_way_back(job: Job, step: Step, steps: Sequence[Step]) -> str:
    """Why it was not undone, where that is the point of no return."""
    if job.is_terminal or step.role != Role.FORWARD:
        return ""
    pivot = next(
        (
            other.name
            for other in steps
            if other.role == Role.FORWARD
            and planned(job, other).get("pivot")
            and (other.state == StepState.COMPLETED or in_doubt(other))
        ),
        None,
    )
    return f" There is no way back behind {pivot}: mend it and try again." if pivot else ""


def _left_in_doubt(step: Step) -> str:
    if step.undoes is not None:
        return f"{step.undoes.address}: nobody knows whether its undo {doer(step)} took effect (key {step.idempotency_key})."
    return f"{step.address}: {_what_is_live(step)}; it was not undone."


def _what_is_live(original: Step) -> str:
    reference = known_reference(original)
    if original.kind == StepKind.CHILD:
        return f"what job {reference} did may still be live" if reference else "what its job did may still be live"
    if reference is not None:
        return f"{reference}, made by {original.operation}, may still be live"
    if original.state == StepState.COMPLETED:
        return f"what {original.operation} did under the key {original.idempotency_key} may still be live"
    return (
        f"nobody knows whether {original.operation} took effect; "
        f"something under the key {original.idempotency_key} may be live"
    )
