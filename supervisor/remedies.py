"""Which remedy a failed step gets: one pure function, from facts to a remedy and its reason in words."""

from dataclasses import dataclass
from datetime import timedelta

from workflows.plans.retry import Retry
from workflows.states import ErrorKind, Remedy, Role
from workflows.transitions import RESULT_NOT_STORABLE


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a failed step. `draw` is a random number in [0, 1) for the jitter; times are timedeltas."""

    role: Role
    kind: ErrorKind
    code: str
    message: str
    charged: int
    allowed: int
    open_doubt: bool
    has_probe: bool
    was_probe_only: bool
    retry: Retry
    retry_after: timedelta | None
    draw: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The remedy, why, and for a retry when and how."""

    remedy: Remedy
    reason: str
    delay: timedelta = timedelta(0)
    probe_only: bool = False


def choose(facts: Facts) -> Choice:
    """Again while it may help and is allowed; then undo; and where an undo itself will not succeed, a person."""
    hopeless = _hopeless(facts)
    if hopeless is None and facts.charged < facts.allowed and not facts.was_probe_only:
        return _again(facts, f"Attempt {facts.charged} of {facts.allowed} failed ({facts.kind}).")
    reason = hopeless or _used_up(facts)
    if facts.role != Role.FORWARD:
        return Choice(remedy=Remedy.ESCALATE, reason=reason)
    if hopeless is None and facts.open_doubt and facts.has_probe and not facts.was_probe_only:
        return _again(facts, f"{reason} The other side is asked once what became of it.", probe_only=True)
    return Choice(remedy=Remedy.COMPENSATE, reason=reason)


def _hopeless(facts: Facts) -> str | None:
    """Why another attempt cannot help, or must not be made."""
    if facts.kind == ErrorKind.CANCELLED:
        return "A person stopped this step."
    if facts.kind == ErrorKind.PERMANENT:
        return f"The failure is permanent: {facts.message}"
    if facts.code == RESULT_NOT_STORABLE:
        return f"The call was made and its result cannot be stored: {facts.message}"
    return None


def _used_up(facts: Facts) -> str:
    if facts.was_probe_only:
        return "All attempts are used up, and the other side could not say that it was done."
    return f"All {facts.allowed} attempts are used up."


def _again(facts: Facts, reason: str, *, probe_only: bool = False) -> Choice:
    """After the back-off, or when the other side asked for, within the cap."""
    if facts.retry_after is not None:
        delay = min(facts.retry_after, facts.retry.cap)
    else:
        delay = facts.retry.delay(max(facts.charged, 1), facts.draw)
    return Choice(remedy=Remedy.RETRY, reason=reason, delay=delay, probe_only=probe_only)
