"""Words from outside that a step waits for: signals by name, and the callbacks of deferred calls by token.

Under the job's lock the first one wins and every other one is recorded. A signal that comes before its step waits is kept.
A callback is good for any attempt of its step, also before the worker has said that it defers.

A callback's token is made from the step and the project's secret, so that nothing at rest gives it away.
"""

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, PermissionsMixin
from django.core.signing import b62_decode, b62_encode
from django.utils.crypto import salted_hmac

from workflows import doubts, gates, scheduler, transitions
from workflows.exceptions import InvalidInput, NotAllowed, NotFound, WrongState
from workflows.models import Attempt, Job, Signal, Step
from workflows.plans.json_values import plain
from workflows.plans.plan import Plan, PlanStep
from workflows.states import ErrorKind, JobState, Outcome, Role, SettledBy, StepState
from workflows.transitions import Failure, in_transaction

_SALT = "sag.callback"


# --- signals ---------------------------------------------------------------------------------------------------------


@in_transaction
def send(job_id: Any, name: str, payload: Any, *, actor: str, names: Collection[str] | None = None) -> Signal:
    """Deliver a signal to a job. Its `outcome` says what became of it: taken, kept for later, or lost to an earlier one.

    `names`: what the sender is called among approvers (`names_of`); None where nobody is to be asked.
    Raises NotFound, WrongState once the job has ended, NotAllowed, InvalidInput.
    """
    job = transitions.lock(job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    planned = _planned(job, name)
    payload = _accepted(planned, payload)
    if planned.approvers and names is not None and not set(planned.approvers) & set(names):
        raise NotAllowed(f"{name} is decided by {', '.join(planned.approvers)}, not by {actor}.")
    step = Step.objects.of_plan().get(job=job, name=name)
    if job.state != JobState.RUNNING or job.stopping_at is not None:
        state = "stopping" if job.stopping_at else job.state
        raise WrongState(f"The job is {state}; it waits for no signal.", state=job.state, allowed=[])
    if step.state == StepState.RUNNING:
        signal = transitions.keep_signal(job, name=name, payload=payload, actor=actor, outcome=Signal.Outcome.TAKEN)
        gates.hear_signal(job, step, planned, payload, actor=actor)
        scheduler.move_on(job)
        scheduler.ring_for_ready(job)
        return signal
    if (
        step.state == StepState.NOT_STARTED
        and not Signal.objects.filter(job=job, name=name, outcome=Signal.Outcome.KEPT).exists()
    ):
        return transitions.keep_signal(job, name=name, payload=payload, actor=actor, outcome=Signal.Outcome.KEPT)
    reason = f"An earlier one came first, or {name} waits no more; it is {step.state}."
    return transitions.keep_signal(
        job, name=name, payload=payload, actor=actor, outcome=Signal.Outcome.LOST, reason=reason
    )


def names_of(user: AbstractBaseUser | AnonymousUser) -> set[str]:
    """What somebody is called among approvers: by name, and by each group."""
    groups = user.groups.values_list("name", flat=True) if isinstance(user, PermissionsMixin) else ()
    return {user.get_username(), *(f"group:{name}" for name in groups)}


def _planned(job: Job, name: str) -> PlanStep:
    waiting = [step for step in Plan.from_json(job.plan).steps if step.kind == "signal"]
    found = next((step for step in waiting if step.name == name), None)
    if found is None:
        known = ", ".join(step.name for step in waiting) or "none"
        raise NotFound(f"{job.workflow} waits for no signal {name!r}; it knows {known}.")
    return found


def _accepted(planned: PlanStep, payload: Any) -> Any:
    faults: list[dict[str, str]] = []
    stored = plain(payload, faults, strict=True)
    if not faults and planned.approval:
        faults = _faults_of_approval(stored)
    if faults:
        raise InvalidInput(
            f"The signal {planned.name} is refused: {faults[0]['pointer']} {faults[0]['message']}", errors=faults
        )
    return stored


def _faults_of_approval(payload: Any) -> list[dict[str, str]]:
    if not isinstance(payload, dict) or not isinstance(payload.get("approved"), bool):
        return [{"pointer": "/approved", "message": "must be true or false"}]
    reason = payload.get("reason", "")
    if not isinstance(reason, str):
        return [{"pointer": "/reason", "message": "must be a text"}]
    if not payload["approved"] and not reason.strip():
        return [{"pointer": "/reason", "message": "is needed to refuse"}]
    return []


# --- callbacks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CalledBack:
    """What a callback did to its step."""

    step: Step
    outcome: Literal["completed", "failed", "ignored"]


def token_of(step_id: int) -> str:
    """The token with which an outside service completes or fails this step."""
    return f"{b62_encode(step_id)}-{_seal(step_id, settings.SECRET_KEY)}"


def _seal(step_id: int, secret: str | bytes) -> str:
    return salted_hmac(_SALT, str(step_id), secret=secret, algorithm="sha256").hexdigest()


def _step_behind(token: str) -> int:
    head, _, seal = token.partition("-")
    if head.isascii() and head.isalnum() and len(head) <= 11:
        step_id = b62_decode(head)
        secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        if any(hmac.compare_digest(seal.encode(), _seal(step_id, secret).encode()) for secret in secrets):
            return step_id
    raise NotFound("No step waits under this token.")


def call_back(token: str, body: Any) -> CalledBack:
    """An outside service says what became of a deferred call: {"result": …} or {"error": {"kind", "code", "message"}}.

    Raises NotFound for a token that is none, InvalidInput.
    """
    step_id = _step_behind(token)
    result, failure = _accepted_callback(body)
    return _call_back(step_id, result, failure)


# In which states of its job a step may still be completed or failed from outside.
_WANTED_IN = {
    Role.FORWARD: (JobState.RUNNING,),
    Role.UNDO: (JobState.COMPENSATING,),
    Role.RECHECK: (JobState.COMPENSATING, JobState.COMPENSATED, JobState.FAILED),
}


@in_transaction
def _call_back(step_id: int, result: Any, failure: Failure | None) -> CalledBack:
    job_id = Step.objects.filter(pk=step_id).values_list("job_id", flat=True).first()
    job = transitions.lock(job_id) if job_id else None
    if job is None:
        raise NotFound("No step waits under this token.")
    step = Step.objects.get(pk=step_id)
    wanted = job.state in _WANTED_IN[Role(step.role)] and not step.superseded
    waits = step.state == StepState.RUNNING or (
        failure is None and step.attempt > 0 and step.state in (StepState.NOT_STARTED, StepState.FAILED)
    )
    if not (wanted and waits):
        return _ignored(job, step, result, failure)
    if failure is not None:
        transitions.wait_ended_badly(job, step, failure, actor="callback")
        scheduler.after_failure(job, step)
        return CalledBack(step=step, outcome="failed")
    transitions.resolve_doubts(job, step, Attempt.Resolution.CALLBACK, actor="callback")
    if step.state == StepState.RUNNING:
        transitions.complete(job, step, result=result, actor="callback", settled_by=SettledBy.CALLBACK)
    else:
        said = "A callback says that it was done."
        transitions.settle_by_word(
            job, step, result=result, settled_by=SettledBy.CALLBACK, actor="callback", reason=said
        )
    scheduler.go_on_behind(job, step)
    scheduler.ring_for_ready(job)
    return CalledBack(step=step, outcome="completed")


def _ignored(job: Job, step: Step, result: Any, failure: Failure | None) -> CalledBack:
    """Late or doubled: recorded, and without effect on the step. An effect behind a finished undo is undone once more."""
    if failure is None and step.state != StepState.COMPLETED and step.attempt > 0:
        doubts.hear_late_word(
            job, step, number=step.attempt, outcome=Outcome.COMPLETED, result=result, message="by callback"
        )
    else:
        said = f"The step is {step.state} already."
        data = {"result": result} if failure is None else {"error": failure.message}
        transitions.note_lost_word(job, step, actor="callback", reason=said, data=data)
    return CalledBack(step=step, outcome="ignored")


def _accepted_callback(body: Any) -> tuple[Any, Failure | None]:
    faults: list[dict[str, str]] = []
    stored = plain(body, faults, strict=True)
    if not faults and (not isinstance(stored, dict) or ("result" in stored) == ("error" in stored)):
        faults = [{"pointer": "", "message": 'must be {"result": …} or {"error": {"kind", "code", "message"}}'}]
    if not faults and "error" in stored:
        error = stored["error"]
        kinds = (ErrorKind.TRANSIENT, ErrorKind.PERMANENT)
        if not isinstance(error, dict) or error.get("kind", ErrorKind.PERMANENT) not in kinds:
            faults = [{"pointer": "/error/kind", "message": "must be transient or permanent"}]
        elif not all(isinstance(error.get(name, ""), str) for name in ("code", "message")):
            faults = [{"pointer": "/error", "message": "code and message must be texts"}]
    if faults:
        raise InvalidInput(f"The callback is refused: {faults[0]['message']}", errors=faults)
    if "result" in stored:
        return stored["result"], None
    error = stored["error"]
    kind = error.get("kind", ErrorKind.PERMANENT)
    return None, Failure(kind=kind, code=error.get("code", kind)[:60], message=error.get("message", ""))
