"""What the world looks like after the end."""

from collections.abc import Iterable, Sequence
from typing import Any

from workflows.explanations.circumstances import NOTHING_KNOWN, Circumstances
from workflows.explanations.facts import in_doubt, known_reference, reference_of, with_attempts
from workflows.explanations.words import doer, failure, planned, time_of
from workflows.models import Job, Step
from workflows.states import UNENDED, JobState, Role, StepKind, StepState

_UNNECESSARY = "Its plan says that it leaves nothing to undo."

Entry = dict[str, Any]


def receipt(job: Job, steps: Sequence[Step], known: Circumstances = NOTHING_KNOWN) -> Entry | None:
    """What the world looks like now that the job has ended; None before.

    `undone`: {step, reference}; `not_undone`: {step, reference, why}, what is or may be live although the job did not
    complete; `pending`: {step, reference, why}, undos still to be asked once more, which the job did not wait for. Of many
    items the first are named, and `more` says how many there are beyond.
    """
    if not job.is_terminal:
        return None
    undone: list[Entry] = []
    not_undone: list[Entry] = []
    more = {"undone": 0, "not_undone": 0, "pending": 0}
    for step in steps:
        if step.role != Role.FORWARD or job.state == JobState.COMPLETED:
            continue
        if step.is_fan_out and (step.pk in known.undone or step.pk in known.left):
            _tell_items(job, step, known, undone, not_undone, more)
        elif step.kind == StepKind.CHILD and step.pk in known.children:
            _tell_child(step, known.children[step.pk], undone, not_undone)
        else:
            undos = [other for other in steps if other.undoes_id == step.pk]
            _tell(job, step, undos, undone, not_undone)
    pending = [_pending(step, steps) for step in steps if step.role == Role.RECHECK and step.state in UNENDED]
    if rechecks := known.rechecks.get(job.pk):
        pending += [_pending(step, steps) for step in rechecks.first]
        more["pending"] = rechecks.more
    return {
        "outcome": job.state,
        "undone": undone,
        "not_undone": not_undone,
        "pending": pending,
        "more": more,
        "safe_to_retry_with_new_key": job.state != JobState.COMPLETED
        and all(entry["why"] == _UNNECESSARY for entry in not_undone),
    }


def _tell(job: Job, step: Step, undos: Sequence[Step], undone: list[Entry], not_undone: list[Entry]) -> None:
    if any(other.state == StepState.COMPLETED for other in undos) and not in_doubt(step):
        undone.append({"step": step.address, "reference": _reference_of_undone(step, undos)})
    elif (step.state == StepState.COMPLETED or in_doubt(step)) and step.kind in (StepKind.CALL, StepKind.CHILD):
        why = _why_not_undone(job, step, undos)
        not_undone.append({"step": step.address, "reference": known_reference(step), "why": why})


def _tell_items(
    job: Job, fan: Step, known: Circumstances, undone: list[Entry], not_undone: list[Entry], more: dict[str, int]
) -> None:
    for items, name in ((known.undone.get(fan.pk), "undone"), (known.left.get(fan.pk), "not_undone")):
        if items is not None:
            for item in items.first:
                _tell(job, item, list(item.undos.all()), undone, not_undone)
            more[name] += items.more


def _tell_child(step: Step, child: Job, undone: list[Entry], not_undone: list[Entry]) -> None:
    """A child's own receipt has what it did; here stands how it came out."""
    entry = {"step": step.address, "reference": str(child.pk)}
    if child.state == JobState.COMPENSATED:
        undone.append(entry)
    else:
        not_undone.append({**entry, "why": f"Job {child.pk} ({child.workflow}) is {child.state}; see its own receipt."})


def _reference_of_undone(step: Step, undos: Iterable[Step]) -> str | None:
    answers = [reference_of(undo.result) for undo in undos]
    return known_reference(step) or next(filter(None, answers), None)


def _why_not_undone(job: Job, step: Step, undos: Sequence[Step]) -> str:
    failed = next((undo for undo in undos if undo.state == StepState.FAILED), None)
    if failed is not None:
        return f"{doer(failed)} failed: {failure(failed)}."
    if undos:
        return "Its undo was answered, and yet nobody knows whether an earlier call still landed."
    declared = planned(job, step)
    if declared.get("undo_unnecessary"):
        return _UNNECESSARY
    if declared.get("compensation") is None and step.kind == StepKind.CALL:
        return f"{step.operation} declares no compensation."
    return "The job ended without undo."


def _pending(step: Step, steps: Sequence[Step]) -> Entry:
    original = with_attempts(step.undoes, steps) if step.undoes else step
    why = f"{step.operation} is asked once more at {time_of(step.run_after)}, in case a call that was in doubt lands late."
    return {"step": original.address, "reference": known_reference(original), "why": why}
