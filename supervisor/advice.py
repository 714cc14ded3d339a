"""What to do about a need, in words: one pure function, from its kind and facts to a sentence or two."""

from supervisor.models import Need
from workflows.states import ErrorKind

Kind = Need.Kind

_OF_KIND = {
    Kind.FAILED_UNDO: (
        "Look up at the service whether what was done is still there. Retry the undo once the cause is mended; or undo it by "
        "hand there, and give its result."
    ),
    Kind.VERDICT: "Ask the service what became of the key on the job's page, and give your verdict with what you found.",
    Kind.LATE_RESULT: (
        "Compare what came too late, shown at the attempt, with what the service says. Take it up if they agree; if not, "
        "give your verdict."
    ),
    Kind.UNDONE_IN_PART: "Retry the job to go forward again from there, or undo the rest of it.",
}
_OF_CODE = {
    "unknown_operation": "Deploy agents whose code has this operation, then retry.",
    "unresolved_reference": (
        "The plan reads something that an earlier step did not leave. Mend what that agent answers or the plan; for this job "
        "give the result by hand, or undo it."
    ),
    "queue_timeout": "No worker took it in time. Start workers of its queue, then retry.",
    "lease_expired": (
        "Its workers died in the middle of it. Find out why (memory, a crash in a library) before you retry, or it takes "
        "more of them along."
    ),
}
_OF_ERROR_KIND = {
    ErrorKind.PERMANENT: (
        "The service refuses it for good. Mend what it was asked for or what it knows, then retry, if need be under a new "
        "key; or skip the step, or undo the job."
    ),
    ErrorKind.CANCELLED: "Somebody stopped it. Retry it, skip it, or undo the job.",
    ErrorKind.EXPIRED_WAITING: "What it waited for did not come. See that it comes, then retry; or skip it, or undo the job.",
    ErrorKind.LOST: _OF_CODE["lease_expired"],
}
_FOR_THE_PLAN = "A time-out in the plan would end such waits."
_AGAIN = "See whether the service answers again, then retry; or skip the step, or undo the job."


# What the code of a stalled gate says: a wait that should have ended by itself; a decision that nobody takes.
OVERDUE = "overdue"
UNDECIDED = "undecided"


def recommended(kind: str, *, code: str = "", error_kind: str = "", frame: str = "") -> str:
    """What to do about it. Where no worker is, the code is the queue's name."""
    if kind == Kind.NO_WORKER:
        return f"Start workers of the queue “{code}”, or see why they are not heard of: the steps then go on by themselves."
    if kind == Kind.STALLED_GATE:
        return _of_gate(code)
    if not frame:
        return _OF_KIND.get(Kind(kind)) or _of_exhausted(code, error_kind)
    raised = f"The agent's own code raised this at {frame}: mend and deploy it first, or it fails again."
    return f"{raised} {_OF_KIND.get(Kind(kind), 'Then retry.')}"


def _of_gate(code: str) -> str:
    if code == OVERDUE:
        return "Nothing moved it on when its time was over. See that supervisor and beat run, and what the last sweeps tell."
    if code == UNDECIDED:
        return f"Get a decision from whoever may take it, or give it; or cancel the job. {_FOR_THE_PLAN}"
    return f"Find out why the signal does not come, send it, or cancel the job. {_FOR_THE_PLAN}"


def _of_exhausted(code: str, error_kind: str) -> str:
    if code in _OF_CODE:
        return _OF_CODE[code]
    return _OF_ERROR_KIND.get(ErrorKind(error_kind), _AGAIN) if error_kind else _AGAIN
