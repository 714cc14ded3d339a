"""What is so: doubt, references, how far it is."""

from collections.abc import Iterable, Sequence
from typing import Any

from workflows.compensation import BEFORE_UNDO
from workflows.explanations.circumstances import NOTHING_KNOWN, Circumstances
from workflows.models import Step
from workflows.states import Role, StepKind, StepState

_REFERENCES = ("reference", "confirmation", "id")


def in_doubt(step: Step) -> bool:
    """Whether an attempt ended of which nobody knows what it did."""
    return any(attempt.in_doubt and not attempt.resolved_by for attempt in step.attempts.all())


def reference_of(result: Any) -> str | None:
    """The name under which the other side knows what it did, if its answer holds one."""
    if not isinstance(result, dict):
        return None
    for name in _REFERENCES:
        value = result.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def known_reference(step: Step) -> str | None:
    """The reference in the step's result, or in what a fenced-out attempt said too late; of a child the job's id."""
    if step.kind == StepKind.CHILD:
        return str(step.result["job"]) if isinstance(step.result, dict) and "job" in step.result else None
    late = [attempt.late_result for attempt in step.attempts.all()]
    return next(filter(None, map(reference_of, [step.result, *late])), None)


def with_attempts(step: Step, steps: Sequence[Step]) -> Step:
    """The same step out of the list, whose attempts are prefetched."""
    return next((other for other in steps if other.pk == step.pk), step)


def progress(steps: Iterable[Step], known: Circumstances = NOTHING_KNOWN) -> dict[str, Any]:
    """{"done", "total", "message"} of the forward steps, each item of a fan-out counted as one; of an undo the message.

    Steps that turned out not to be needed are left out: they will never be done.
    """
    steps = list(steps)
    done, total = _counted([step for step in steps if step.role == Role.FORWARD], known)
    undos = [step for step in steps if step.role == Role.UNDO]
    undone, to_undo = _counted(undos, known)
    message = f"{undone} of {to_undo} undone" if undos else f"{done} of {total} done"
    return {"done": done, "total": total, "message": message}


def _counted(steps: Iterable[Step], known: Circumstances) -> tuple[int, int]:
    done = total = 0
    for step in steps:
        if step.items_total:
            done += items_done(step, known)
            total += step.items_total
        elif step.state != StepState.SKIPPED or step.skip_reason == BEFORE_UNDO:
            done += step.state == StepState.COMPLETED
            total += 1
    return done, total


def items_done(fan: Step, known: Circumstances) -> int:
    counts = known.counts.get(fan.pk)
    if counts is not None:
        return counts[StepState.COMPLETED]
    return (fan.items_total or 0) - fan.items_open - fan.items_failed
