"""Why it is not further."""

from collections.abc import Sequence
from datetime import UTC, datetime

from workflows.explanations.circumstances import NOTHING_KNOWN, Circumstances
from workflows.explanations.facts import items_done
from workflows.explanations.words import failure, joined, planned, time_of
from workflows.models import Job, Step
from workflows.states import UNENDED, JobState, Outcome, Remedy, Role, StepKind, StepState

_NEVER = datetime.max.replace(tzinfo=UTC)


def step_waiting_because(
    job: Job, step: Step, steps: Sequence[Step], now: datetime, known: Circumstances = NOTHING_KNOWN
) -> str | None:
    """Why this step is not further, in one sentence; None when it has ended, or never starts any more.

    The order of the questions is that of `querysets.READY`: the step, its job, the clock; then limits, and a worker.
    """
    if step.state == StepState.RUNNING:
        return _running(job, step, now, known)
    if step.state == StepState.FAILED:
        return _failed(job, step)
    if step.state != StepState.NOT_STARTED or _never_starts(job, step):
        return None
    if job.stopping_at is not None:
        return f"{step.address} does not start, because the job is stopping."
    if step.waiting_for:
        return _behind_others(job, step, steps)
    if job.paused_at is not None:
        return f"{step.address} does not start, because the job is paused."
    fan = next((fan for fan in steps if fan.pk == step.parent_id), None)
    if fan is not None and (step.index or 0) >= fan.items_admitted:
        most = planned(job, step).get("at_once")
        return f"{step.address} waits for its turn: at most {most} items of {fan.name} are done at the same time."
    if step.run_after > now and not (step.held and not step.gated):
        return _due_later(step, now, known)
    if step.gated:
        return f"{step.address} waits for the scheduler, which looks at it next."
    if step.parked:
        return f"{step.address} is parked, because agent {step.agent} is away; it goes on by itself once that answers."
    if step.held:
        return f"{step.address} is held back; the supervisor will let it go."
    return _at_limit(step, known) or _for_worker(step, now)


def _running(job: Job, step: Step, now: datetime, known: Circumstances) -> str:
    if step.complete_by is not None:
        return (
            f"{step.address} runs on {step.worker}, attempt {step.attempt}, "
            f"under a lease until {time_of(step.complete_by, now)}."
        )
    if step.is_fan_out:
        return _through_items(step, known)
    until = "" if step.deadline is None else f", until {time_of(step.deadline, now)} at the latest"
    match step.kind:
        case StepKind.TIMER:
            return f"{step.address} waits for its time: it is due at {time_of(step.deadline, now)}."
        case StepKind.SIGNAL:
            return f"{step.address} waits for {_signal(job, step)}{until}."
        case StepKind.CHILD:
            return f"{step.address} waits for {_child(step, known)}."
    return f"{step.address} waits for a callback, attempt {step.attempt}{until}."


def _through_items(fan: Step, known: Circumstances) -> str:
    failed = f", {fan.items_failed} failed" if fan.items_failed else ""
    unwritten = f"; {fan.items_made} are written so far" if fan.items_made < (fan.items_total or 0) else ""
    return f"{fan.name}: {items_done(fan, known)} of {fan.items_total} items are done{failed}{unwritten}."


def _signal(job: Job, step: Step) -> str:
    declared = planned(job, step)
    if approvers := declared.get("approvers"):
        return f"the decision of {joined(approvers, 'or')}"
    return "a decision" if declared.get("approval") else f'the signal "{step.name}"'


def _child(step: Step, known: Circumstances) -> str:
    child = known.children.get(step.pk)
    if child is None:
        return "the job that it started"
    done = "be undone" if step.role != Role.FORWARD else "end"
    return f"job {child.pk} ({child.workflow}, {child.state}) to {done}"


def _failed(job: Job, step: Step) -> str | None:
    if not step.remedy:
        return f"{step.address} failed ({failure(step)}) and waits for the supervisor's remedy."
    if step.remedy == Remedy.ESCALATE and not job.is_terminal:
        return f"{step.address} failed ({failure(step)}) and waits for a person."
    return None


def _never_starts(job: Job, step: Step) -> bool:
    """READY's part on the job's state: each role runs only in the states that it was made for."""
    if step.role == Role.RECHECK:
        return False
    return job.state != (JobState.RUNNING if step.role == Role.FORWARD else JobState.COMPENSATING)


def _behind_others(job: Job, step: Step, steps: Sequence[Step]) -> str:
    names = [other.name for other in steps if step.seq in other.releases and other.released_at is None]
    primary = planned(job, step).get("instead_of")
    only = f", and is done only if {primary} fails" if primary and step.role == Role.FORWARD else ""
    return f"{step.address} waits for {joined(names)}{only}."


def _due_later(step: Step, now: datetime, known: Circumstances) -> str:
    due = time_of(step.run_after, now)
    last = next((attempt for attempt in step.attempts.all() if attempt.number == step.attempt), None)
    if last is not None and last.outcome == Outcome.RELEASED:
        return f"{step.address} is called again at {due}, as its agent asked for."
    if step.attempt and step.error_kind:
        what = "only asks what became of the last one," if step.probe_only else "starts"
        why = f"because attempt {step.attempt} failed ({failure(step)})"
        return f"Attempt {step.attempt + 1} of {step.address} {what} at {due}, {why}."
    if step.role == Role.RECHECK:
        return f"{step.address} asks once more at {due}, because until then a call that was in doubt may still land."
    agent = known.agents.get(step.agent)
    if agent is not None and agent.rate_next is not None and step.run_after <= agent.rate_next:
        return f"{step.address} starts at {due}, because agent {agent.name} takes only so many calls in a time."
    return f"{step.address} starts at {due}, as was asked for."


def _at_limit(step: Step, known: Circumstances) -> str | None:
    """Which limit leaves no room for it. What its rate lets begin is in `run_after`."""
    agent = known.agents.get(step.agent)
    if agent is not None and agent.at_once is not None and known.running.get(agent.name, 0) >= agent.at_once:
        return (
            f"{step.address} waits for room: agent {agent.name} takes at most {agent.at_once} calls at the same time."
        )
    most, _, key = step.limit_key.partition(":")
    if step.limited and step.limit_key and known.running.get(step.limit_key, 0) >= int(most):
        return f"{step.address} waits for room: at most {most} steps with the limit key {key!r} run at the same time."
    return None


def _for_worker(step: Step, now: datetime) -> str:
    until = "" if step.queue_by is None else f", until {time_of(step.queue_by, now)} at the latest"
    return f'{step.address} waits for a worker of queue "{step.queue}"{until}.'


# --- the whole job ---------------------------------------------------------------------------------------------------


def waiting_because(job: Job, steps: Sequence[Step], now: datetime, known: Circumstances = NOTHING_KNOWN) -> str | None:
    """Why the job is not further, in one sentence about what decides it; None when it has ended."""
    if job.is_terminal:
        return None
    running = [step for step in steps if step.state == StepState.RUNNING]
    if job.stopping_at is not None:
        after = "and will then be undone" if job.stopping_undo else "and will then end"
        names = joined(step.name for step in running)
        return (
            f"The job is stopping {after}; it waits for {names}, still running."
            if running
            else f"The job is stopping {after}."
        )
    if job.paused_at is not None:
        still = f"; {joined(step.name for step in running)} may still end" if running else ""
        return f"The job is paused since {time_of(job.paused_at, now)} and starts nothing until it is resumed{still}."
    rechecks = known.rechecks[job.pk].first if job.pk in known.rechecks else ()
    deciding = _deciding([*steps, *rechecks], now)
    sentences = (step_waiting_because(job, step, steps, now, known) for step in deciding)
    return next(
        filter(None, sentences), "Nothing of the job is ready or running; the supervisor's next sweep moves it on."
    )


def _deciding(steps: Sequence[Step], now: datetime) -> list[Step]:
    """The unended steps, the one that the job waits for most immediately first: what is at work, then what will be by
    itself, then what has to come from outside.
    """

    def urgency(step: Step) -> tuple[int, datetime, int]:
        if step.state == StepState.RUNNING:
            if step.complete_by is None and step.kind in (StepKind.TIMER, StepKind.SIGNAL):
                return 4, step.deadline or _NEVER, step.seq
            return 0, now, step.seq
        if step.state == StepState.FAILED:
            return (5 if step.remedy else 1), now, step.seq
        if step.waiting_for:
            return 6, now, step.seq
        return (2, now, step.seq) if step.run_after <= now else (3, step.run_after, step.seq)

    return sorted((step for step in steps if step.state in (*UNENDED, StepState.FAILED)), key=urgency)
