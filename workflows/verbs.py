"""What people and client programs ask for: the verbs. Which of them may be asked now is in `allowed`.

Each is one transaction that locks the job first, looks at what its caller saw (`seen`, a version), and then either does
what was asked, with an Event that names who asked and why, or refuses with what is now true.
"""

import json
import re
import uuid
from collections.abc import Collection
from typing import Any

from workflows import (
    children,
    compensation,
    doubts,
    endings,
    explanations,
    fanouts,
    gates,
    outputs,
    retries,
    scenes,
    scheduler,
    transitions,
)
from workflows.allowed import doubtful, is_in_doubt, job_verbs, step_verbs
from workflows.conf import conf
from workflows.exceptions import InvalidInput, NotFound, StaleVersion, WrongState
from workflows.models import Attempt, Job, Step
from workflows.plans.json_values import plain
from workflows.plans.plan import Plan
from workflows.states import ErrorKind, JobState, Outcome, Reason, Remedy, Role, SettledBy, StepKind, StepState
from workflows.transitions import in_transaction

# --- stop, pause, go on ----------------------------------------------------------------------------------------------


@in_transaction
def cancel(job_id: uuid.UUID, *, undo: bool, actor: str, reason: str, seen: int | None = None) -> Job:
    """Stop a job, by default with undo. Asking again while it stops or is undone gives the same answer.

    `seen` is the version the caller looked at; None takes whatever is there. Raises WrongState once the job has ended.
    """
    if not undo:
        _check_reason(reason, "to cancel without undo")
    job = locked_job(job_id, seen)
    if job.is_terminal:
        raise WrongState(f"The job is {job.state}; it has ended.", state=job.state, allowed=job_verbs(job))
    if job.state == JobState.RUNNING and job.stopping_at is None:
        if undo:
            check_not_past_pivot(job)
        stop(job, Reason.CANCELLED, undo=undo, actor=actor, reason=reason)
    return job


@in_transaction
def cancel_child(job_id: uuid.UUID, *, undo: bool, detail: str) -> None:
    """The parent of this job stops: so does it, as far as it still runs."""
    with_undo = undo
    job = locked_job(job_id)
    if job.state == JobState.RUNNING and job.stopping_at is None:
        if with_undo and compensation.pivot_passed(Plan.from_json(job.plan), scenes.timeline(job)) is not None:
            with_undo = False
        stop(job, Reason.PARENT, undo=with_undo, actor="scheduler", reason=detail)


def stop(job: Job, why: Reason, *, undo: bool, actor: str, reason: str) -> None:
    """Stop a locked job that runs. That ends a pause as well."""
    if job.paused_at is not None:
        transitions.resume(job, actor=actor, reason="To cancel lifts the pause.")
        children.tell(job)
    transitions.stop(job, reason=why, detail=reason, undo=undo, actor=actor)
    scheduler.move_on(job)


def check_not_past_pivot(job: Job, names: Collection[str] | None = None) -> None:
    """Raises WrongState where the point of no return is among what would be undone, and is done, or may be."""
    pivot = compensation.pivot_passed(Plan.from_json(job.plan), scenes.timeline(job), names)
    if pivot is not None:
        raise WrongState(
            f"{pivot} is the point of no return, and it is done, or may be: the job can only go forward, or be stopped "
            "without undo.",
            state=job.state,
            allowed=job_verbs(job),
        )


def _check_reason(reason: str, what: str) -> None:
    if not reason.strip():
        fault = f"{what} needs a reason"
        raise InvalidInput(f"The request is refused: {fault}.", errors=[{"pointer": "/reason", "message": fault}])


@in_transaction
def cancel_step(job_id: uuid.UUID, name: str, *, actor: str, reason: str, seen: int | None = None) -> Step:
    """Fence out the attempt that runs. The supervisor then undoes the job, since a person stopped this step."""
    job = locked_job(job_id)
    step = _step_of(job, name, seen)
    if step.state != StepState.RUNNING:
        raise _refused(job, step, f"Step {name} is {step.state}; only a running step can be cancelled.")
    if step.complete_by is None and step.kind == StepKind.CHILD:
        raise _refused(job, step, f"{name} waits for a job of its own: cancel that one.")
    if step.complete_by is None and step.is_fan_out:
        raise WrongState(f"{name} is a fan-out: cancel its items, or the job.", state=step.state, allowed=[])
    if step.kind == StepKind.CALL:
        transitions.cancel_step(job, step, actor=actor, reason=reason)
    else:
        stopped = transitions.Failure(kind=ErrorKind.CANCELLED, code="cancelled", message=reason or "Cancelled.")
        transitions.wait_ended_badly(job, step, stopped, actor=actor)
    scheduler.after_failure(job, step)
    return step


# --- try again -------------------------------------------------------------------------------------------------------


@in_transaction
def retry_job(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    """Go on with a job that ended Failed, after the cause is mended: its failed undos, else forward from where it failed.

    Steps that were undone, or skipped because undo began, get new rows of the next generation, with keys of their own.
    """
    job = locked_job(job_id, seen)
    if job.state != JobState.FAILED:
        raise WrongState(
            f"The job is {job.state}; only a Failed one is tried again.", state=job.state, allowed=job_verbs(job)
        )
    retries.retry_locked(job, actor=actor, reason=reason)
    return job


@in_transaction
def retry_step(
    job_id: uuid.UUID, name: str, *, actor: str, reason: str, seen: int | None = None, new_key: bool = False
) -> Step:
    """Try one failed step again, with a fresh allowance, under the same key; or under a new one after a definite refusal."""
    job, step = _asked_for("retries", job_id, name, seen)
    has_key = step.kind == StepKind.CALL and not step.is_fan_out
    if new_key and (not has_key or step.error_kind != ErrorKind.PERMANENT or explanations.in_doubt(step)):
        raise _refused(
            job,
            step,
            f"Step {name} keeps its key: only a definite, permanent failure says that nothing was done under it.",
        )
    if new_key:
        transitions.renew_key(job, step, actor=actor, reason=reason)
    if job.state == JobState.FAILED and step.role == Role.FORWARD:
        retries.retry_locked(job, actor=actor, reason=reason)
        return step_at(job, name)
    if job.state == JobState.FAILED:
        transitions.reopen(job, JobState.COMPENSATING, actor=actor, reason=reason)
    retries.retry_in_place(job, step, actor=actor, reason=reason)
    retries.recount(job)
    scheduler.move_on(job)
    return step


# --- pause -----------------------------------------------------------------------------------------------------------


@in_transaction
def pause(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    """Start nothing more of this job until `resume`; what runs goes on."""
    job = locked_job(job_id, seen)
    if job.is_terminal:
        raise WrongState(f"The job is {job.state}; it has ended.", state=job.state, allowed=job_verbs(job))
    if job.paused_at is None:
        transitions.pause(job, actor=actor, reason=reason)
        children.tell(job)
    return job


@in_transaction
def resume(job_id: uuid.UUID, *, actor: str, reason: str, seen: int | None = None) -> Job:
    job = locked_job(job_id, seen)
    if job.paused_at is not None:
        gates.put_off_timers(job)
        transitions.resume(job, actor=actor, reason=reason)
        children.tell(job)
        scheduler.move_on(job)
        scheduler.ring_for_ready(job)
    return job


# --- what a person knows ---------------------------------------------------------------------------------------------


@in_transaction
def verdict(
    job_id: uuid.UUID,
    name: str,
    *,
    done: bool,
    actor: str,
    reason: str,
    result: Any = None,
    seen: int | None = None,
) -> Step:
    """A person has found out what became of a step in doubt, and says how (`reason`, the evidence)."""
    _check_reason(reason, "a verdict")
    job, step = _asked_for("verdict", job_id, name, seen)
    transitions.resolve_doubts(job, step, Attempt.Resolution.PERSON, actor=actor, reason=reason)
    if done and step.state != StepState.COMPLETED:
        # Who knows that it was done need not know what it answered.
        stored = None if result is None else _accepted_result(result, step)
        _settle(job, step, stored, SettledBy.PERSON, actor=actor, reason=reason)
    else:
        # What has ended well keeps its state: another attempt did it. What was not done is tried again, or needs no undo.
        transitions.note_verdict(job, step, done=done, actor=actor, reason=reason)
        if not done:
            _after_not_done(job, step, actor=actor, reason=reason)
    _end_anew(job, actor=actor, reason=reason)
    return step


def _after_not_done(job: Job, step: Step, *, actor: str, reason: str) -> None:
    if job.state == JobState.RUNNING and job.stopping_at is None:
        if step.state == StepState.FAILED and step.remedy == Remedy.ESCALATE:
            retries.retry_in_place(job, step, actor=actor, reason=reason)
        scheduler.move_on(job)
        return
    for undo in Step.objects.filter(undoes=step, role=Role.UNDO, superseded=False):
        never_began = undo.state == StepState.NOT_STARTED and undo.attempt == 0
        if never_began or (undo.state == StepState.FAILED and not is_in_doubt(undo)):
            said = f"{step.address} is known not to have been done: there is nothing to undo."
            _skip(job, undo, actor=actor, reason=said)
    scheduler.move_on(job)


def _end_anew(job: Job, *, actor: str, reason: str) -> None:
    """A job whose undo had failed for want of this word alone ends as undone after all."""
    if job.state != JobState.FAILED or job.partial:
        return
    steps = scenes.timeline(job)
    undos = [step for step in steps if step.role == Role.UNDO]
    if undos and all(step.state != StepState.FAILED for step in undos) and not doubtful(job):
        transitions.reopen(job, JobState.COMPENSATING, actor=actor, reason=reason)
        scheduler.move_on(job)


@in_transaction
def give_result(
    job_id: uuid.UUID,
    name: str,
    *,
    actor: str,
    reason: str,
    result: Any = None,
    attempt: int | None = None,
    seen: int | None = None,
) -> Step:
    """Complete a step by hand: with a result that a person gives, or with what a fenced-out attempt said too late."""
    _check_reason(reason, "a result given by hand")
    job, step = _asked_for("result", job_id, name, seen)
    if attempt is None:
        result, by = _accepted_result(result, step), SettledBy.PERSON
    else:
        late = Attempt.objects.filter(step=step, number=attempt, late_outcome=Outcome.COMPLETED).first()
        if late is None:
            raise NotFound(f"Attempt {attempt} of {name} said nothing too late that could be taken up.")
        result, by = late.late_result, SettledBy.LATE
    if step.state == StepState.RUNNING:
        transitions.take_from_worker(job, step, actor=actor, reason=reason)
    transitions.resolve_doubts(job, step, Attempt.Resolution.PERSON, actor=actor, reason=reason)
    _settle(job, step, result, by, actor=actor, reason=reason)
    _end_anew(job, actor=actor, reason=reason)
    return step


def _accepted_result(result: Any, step: Step) -> Any:
    """What a person gives as the result of a step, as it is stored. Raises InvalidInput."""
    faults: list[dict[str, str]] = []
    stored = plain(result, faults, ("result",))
    if not faults and len(json.dumps(stored).encode()) > conf.payload_limit:
        faults = [{"pointer": "/result", "message": f"is larger than {conf.payload_limit} bytes"}]
    promised = None if faults else outputs.promised(step)
    if promised is not None:
        faults = outputs.faults(stored, promised)
    if faults:
        raise InvalidInput(f"The result is refused: {faults[0]['pointer']} {faults[0]['message']}", errors=faults)
    return stored


def _settle(job: Job, step: Step, result: Any, by: SettledBy, *, actor: str, reason: str) -> None:
    transitions.settle_by_word(job, step, result=result, settled_by=by, actor=actor, reason=reason)
    if step.role != Role.FORWARD:
        doubts.resolve_by_success(job, step, by_probe=False)
    _go_on_behind(job, step, actor=actor, reason=reason)


def _skip(job: Job, step: Step, *, actor: str, reason: str) -> None:
    if step.is_fan_out:
        endings.leave_items(job, step, reason=reason)
    transitions.skip(job, step, reason=reason, actor=actor, settled_by=SettledBy.PERSON)
    _go_on_behind(job, step, actor=actor, reason=reason)


def _go_on_behind(job: Job, step: Step, *, actor: str, reason: str) -> None:
    """What a person has settled is counted off; with the last of its failed items the undo of a fan-out is mended too."""
    scheduler.go_on_behind(job, step)
    if step.role == Role.UNDO and step.parent_id is not None:
        fan = fanouts.fan_of(step)
        if fan.state == StepState.FAILED and not fan.items.filter(state=StepState.FAILED).exists():
            by = SettledBy.PERSON
            transitions.settle_by_word(job, fan, result=None, settled_by=by, actor=actor, reason=reason)
            scheduler.go_on_behind(job, fan)
    scheduler.ring_for_ready(job)


@in_transaction
def skip(job_id: uuid.UUID, name: str, *, actor: str, reason: str, seen: int | None = None) -> Step:
    """Go on without a step that has not begun, or has failed. Never where nobody knows what it did."""
    _check_reason(reason, "to skip a step")
    job, step = _asked_for("skip", job_id, name, seen)
    _skip(job, step, actor=actor, reason=reason)
    return step


# --- reading under the lock ------------------------------------------------------------------------------------------


def locked_job(job_id: uuid.UUID, seen: int | None = None) -> Job:
    """The job, locked. Raises NotFound, and StaleVersion where it is not the version that the caller saw."""
    job = transitions.lock(job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    if seen is not None and seen != job.seq:
        raise StaleVersion(f"The job has moved on: you saw version {seen}, it is at {job.seq} and {job.state}.")
    return job


_ITEM = re.compile(r"(?P<name>.+):(?P<index>\d{1,9})")


def step_at(job: Job, address: str) -> Step:
    """The step at an address: `flight`, `deploy:3` for an item, `flight.undo`; of its latest generation."""
    item = _ITEM.fullmatch(address)
    where = {"name": item["name"], "index": int(item["index"])} if item else {"name": address, "index__isnull": True}
    step = Step.objects.filter(job=job, **where).order_by("-generation").first()
    if step is None:
        raise NotFound(f"Job {job.pk} has no step {address!r}.")
    return step


def _step_of(job: Job, address: str, seen: int | None) -> Step:
    step = step_at(job, address)
    if seen is not None and seen != step.version:
        raise StaleVersion(
            f"Step {address} has moved on: you saw version {seen}, it is at {step.version}, {step.state}."
        )
    return step


_NOT_NOW = {
    "retries": "in a job that is {job}; it cannot be tried again now",
    "verdict": "and not in doubt; there is nothing to decide",
    "result": "in a job that is {job}; it takes no result now",
    "skip": "in a job that is {job}; it cannot be skipped now",
}


def _asked_for(verb: str, job_id: uuid.UUID, address: str, seen: int | None) -> tuple[Job, Step]:
    """A job, locked, and its step. Raises WrongState where `verb`, of `step_verbs`, cannot be asked of it now."""
    job = locked_job(job_id)
    step = _step_of(job, address, seen)
    if verb not in step_verbs(job, step):
        raise _refused(job, step, f"Step {address} is {step.state} {_NOT_NOW[verb].format(job=job.state)}.")
    return job, step


def _refused(job: Job, step: Step, said: str) -> WrongState:
    return WrongState(said, state=step.state, allowed=step_verbs(job, step))
