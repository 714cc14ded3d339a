"""What a job's rows mean, in words that people and client programs read. Pure: rows in, sentences and small dicts out.

Every function takes the steps as `Step.objects.filter(job=job).for_timeline()` gives them, with `undoes` and attempts.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from workflows.models import Job, Step
from workflows.states import JobState, Remedy, Role, StepState

_REFERENCES = ("reference", "confirmation", "id")
_UNENDED = (StepState.NOT_STARTED, StepState.RUNNING)

# --- one step --------------------------------------------------------------------------------------------------------


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
    """The reference in the step's result, or in what a fenced-out attempt said too late."""
    late = [attempt.late_result for attempt in step.attempts.all()]
    return next(filter(None, map(reference_of, [step.result, *late])), None)


def step_waiting_because(job: Job, step: Step, steps: Sequence[Step], now: datetime) -> str | None:
    """Why this step is not further, in one sentence; None when it has ended, or never starts any more.

    The order of the questions is that of `querysets.READY`: the step, its job, the clock; then only a worker is missing.
    """
    if step.state == StepState.RUNNING:
        return (
            f"{step.name} runs on {step.worker}, attempt {step.attempt}, "
            f"under a lease until {_time(step.complete_by, now)}."
        )
    if step.state == StepState.FAILED:
        return None if step.remedy else f"{step.name} failed ({_failure(step)}) and waits for the supervisor's remedy."
    if step.state != StepState.NOT_STARTED or _never_starts(job, step):
        return None
    if job.stopping_at is not None:
        return f"{step.name} does not start, because the job is stopping."
    if step.waiting_for:
        return f"{step.name} waits for {_names(_unreleased_prerequisites(step, steps))}."
    if job.paused_at is not None:
        return f"{step.name} does not start, because the job is paused."
    if step.held:
        return f"{step.name} is held back; the supervisor will let it go."
    if step.run_after > now:
        return _due_later(step, now)
    return f'{step.name} waits for a worker of queue "{step.queue}".'


def _never_starts(job: Job, step: Step) -> bool:
    """READY's part on the job's state: each role runs only in the states that it was made for."""
    if step.role == Role.RECHECK:
        return job.state in (JobState.RUNNING, JobState.COMPLETED)
    return job.state != (JobState.RUNNING if step.role == Role.FORWARD else JobState.COMPENSATING)


def _due_later(step: Step, now: datetime) -> str:
    due = _time(step.run_after, now)
    if step.attempt and step.error_kind:
        what = "only asks what became of the last one," if step.probe_only else "starts"
        why = f"because attempt {step.attempt} failed ({_failure(step)})"
        return f"Attempt {step.attempt + 1} of {step.name} {what} at {due}, {why}."
    if step.role == Role.RECHECK:
        return f"{step.name} asks once more at {due}, because until then a call that was in doubt may still land."
    return f"{step.name} starts at {due}, as was asked for."


def _unreleased_prerequisites(step: Step, steps: Sequence[Step]) -> list[str]:
    return [other.name for other in steps if step.seq in other.releases and other.released_at is None]


# --- the whole job ---------------------------------------------------------------------------------------------------


def waiting_because(job: Job, steps: Sequence[Step], now: datetime) -> str | None:
    """Why the job is not further, in one sentence about what decides it; None when it has ended."""
    if job.is_terminal:
        return None
    running = [step for step in steps if step.state == StepState.RUNNING]
    if job.stopping_at is not None:
        after = "and will then be undone" if job.stopping_undo else "and will then end"
        names = _names(step.name for step in running)
        return (
            f"The job is stopping {after}; it waits for {names}, still running."
            if running
            else f"The job is stopping {after}."
        )
    if job.paused_at is not None:
        still = f"; {_names(step.name for step in running)} may still end" if running else ""
        return f"The job is paused since {_time(job.paused_at, now)} and starts nothing until it is resumed{still}."
    deciding = _deciding(steps, now)
    sentences = [step_waiting_because(job, step, steps, now) for step in deciding]
    return next(
        filter(None, sentences), "Nothing of the job is ready or running; the supervisor's next sweep moves it on."
    )


def _deciding(steps: Sequence[Step], now: datetime) -> list[Step]:
    """The unended steps, the one that the job waits for most immediately first."""

    def urgency(step: Step) -> tuple[int, datetime, int]:
        if step.state == StepState.RUNNING:
            return 0, now, step.seq
        if step.state == StepState.FAILED:
            return 1, now, step.seq
        if step.waiting_for:
            return 4, now, step.seq
        return (2, now, step.seq) if step.run_after <= now else (3, step.run_after, step.seq)

    return sorted((step for step in steps if step.state in (*_UNENDED, StepState.FAILED)), key=urgency)


def progress(steps: Iterable[Step]) -> dict[str, Any]:
    """{"done", "total", "message"} of the forward steps; the message says how far an undo is."""
    steps = list(steps)
    forward = [step for step in steps if step.role == Role.FORWARD]
    undo = [step for step in steps if step.role == Role.UNDO]
    done = sum(step.state == StepState.COMPLETED for step in forward)
    undone = sum(step.state == StepState.COMPLETED for step in undo)
    message = f"{undone} of {len(undo)} undone" if undo else f"{done} of {len(forward)} done"
    return {"done": done, "total": len(forward), "message": message}


def needs_person(job: Job, steps: Sequence[Step]) -> list[str]:
    """What the machine may not decide alone, one sentence each, naming exactly what may still be live.

    Agrees with `JobQuerySet.needs_person`: undos that were given up, and doubts that a job ended with.
    """
    escalated = [step for step in steps if step.state == StepState.FAILED and step.remedy == Remedy.ESCALATE]
    sentences = [_given_up(step, steps) for step in escalated]
    if job.state in (JobState.FAILED, JobState.COMPLETED):
        told = {step.pk for step in escalated} | {step.undoes_id for step in escalated}
        sentences += [_left_in_doubt(step) for step in steps if step.pk not in told and in_doubt(step)]
    return sentences


def _given_up(step: Step, steps: Sequence[Step]) -> str:
    original = step.undoes
    if original is None:
        return f"{step.name}: {step.operation} was given up: {_failure(step)}."
    did = _what_is_live(_with_attempts(original, steps))
    if step.role == Role.RECHECK:
        return f"{original.name}: {did}; asking {step.operation} once more failed: {_failure(step)}."
    later = [other for other in steps if other.undoes_id == original.pk and other.role == Role.RECHECK]
    if any(other.state == StepState.COMPLETED for other in later):
        return f"{original.name}: {step.operation} failed ({_failure(step)}); asked once more later, it was answered."
    return f"{original.name}: {did}; its undo {step.operation} failed: {_failure(step)}."


def _left_in_doubt(step: Step) -> str:
    if step.undoes is not None:
        return f"{step.undoes.name}: nobody knows whether its undo {step.operation} took effect (key {step.idempotency_key})."
    return f"{step.name}: {_what_is_live(step)}; it was not undone."


def _what_is_live(original: Step) -> str:
    reference = known_reference(original)
    if reference is not None:
        return f"{reference}, made by {original.operation}, may still be live"
    if original.state == StepState.COMPLETED:
        return f"what {original.operation} did under the key {original.idempotency_key} may still be live"
    return (
        f"nobody knows whether {original.operation} took effect; "
        f"something under the key {original.idempotency_key} may be live"
    )


def _with_attempts(step: Step, steps: Sequence[Step]) -> Step:
    """The same step out of the list, whose attempts are prefetched."""
    return next((other for other in steps if other.pk == step.pk), step)


# --- the receipt -----------------------------------------------------------------------------------------------------


def receipt(job: Job, steps: Sequence[Step]) -> dict[str, Any] | None:
    """What the world looks like now that the job has ended; None before.

    `undone`: {step, reference}; `not_undone`: {step, reference, why}, what is or may be live although the job did not
    complete; `pending`: {step, reference, why}, undos still to be asked once more, which the job did not wait for.
    """
    if not job.is_terminal:
        return None
    undone, not_undone = [], []
    for step in steps:
        if step.role != Role.FORWARD or job.state == JobState.COMPLETED:
            continue
        undos = [other for other in steps if other.undoes_id == step.pk]
        if any(other.state == StepState.COMPLETED for other in undos) and not in_doubt(step):
            undone.append({"step": step.name, "reference": _reference_of_undone(step, undos)})
        elif step.state == StepState.COMPLETED or in_doubt(step):
            why = _why_not_undone(job, step, undos)
            not_undone.append({"step": step.name, "reference": known_reference(step), "why": why})
    pending = [_pending(step, steps) for step in steps if step.role == Role.RECHECK and step.state in _UNENDED]
    return {
        "outcome": job.state,
        "undone": undone,
        "not_undone": not_undone,
        "pending": pending,
        "safe_to_retry_with_new_key": job.state != JobState.COMPLETED and not not_undone,
    }


def _reference_of_undone(step: Step, undos: Iterable[Step]) -> str | None:
    answers = [reference_of(undo.result) for undo in undos]
    return known_reference(step) or next(filter(None, answers), None)


def _why_not_undone(job: Job, step: Step, undos: Sequence[Step]) -> str:
    failed = next((undo for undo in undos if undo.state == StepState.FAILED), None)
    if failed is not None:
        return f"{failed.operation} failed: {_failure(failed)}."
    if undos:
        return "Its undo was answered, and yet nobody knows whether an earlier call still landed."
    planned = next((planned for planned in job.plan["steps"] if planned["name"] == step.name), None)
    if planned is None or planned["compensation"] is None:
        return f"{step.operation} declares no compensation."
    return "The job ended without undo."


def _pending(step: Step, steps: Sequence[Step]) -> dict[str, Any]:
    original = _with_attempts(step.undoes, steps) if step.undoes else step
    why = (
        f"{step.operation} is asked once more at {_time(step.run_after)}, in case a call that was in doubt lands late."
    )
    return {"step": original.name, "reference": known_reference(original), "why": why}


# --- words -----------------------------------------------------------------------------------------------------------


def _failure(step: Step) -> str:
    return (step.error_message or step.error_code or step.error_kind).rstrip(".")


def _names(names: Iterable[str]) -> str:
    *first, last = list(names) or ["its prerequisites"]
    return f"{', '.join(first)} and {last}" if first else last


def _time(moment: datetime | None, now: datetime | None = None) -> str:
    """The time of day, with the date unless it is today's."""
    if moment is None:
        return "an unknown time"
    moment = moment.astimezone(UTC)
    same_day = now is not None and now.astimezone(UTC).date() == moment.date()
    return f"{moment:%H:%M:%S} UTC" if same_day else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
