"""Which remedy a failed step gets: one pure function, from facts to a remedy and its reason in words."""

from dataclasses import dataclass
from datetime import timedelta

from workflows.plans.retry import Retry
from workflows.states import ErrorKind, Remedy, Role
from workflows.transitions import CALLBACK_TIMEOUT, RESULT_NOT_STORABLE


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a failed step. `draw` is a random number in [0, 1) for the jitter; times are timedeltas.

    `policy`: what its final failure means, "compensate", "hold" or "ignore". `waits`: it makes no call of its own, so that
    trying again would not help. `too_late`: an item whose fan-out has ended without it. `deaths`: how many attempts ended
    with their worker. `time_left`: of the step as a whole.
    """

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
    policy: str = "compensate"
    has_alternative: bool = False
    is_item: bool = False
    too_late: bool = False
    waits: bool = False
    deaths: int = 0
    deaths_allowed: int = 3
    time_left: timedelta = timedelta.max


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The remedy, why, and for a retry when and how."""

    remedy: Remedy
    reason: str
    delay: timedelta = timedelta(0)
    probe_only: bool = False


def choose(facts: Facts) -> Choice:
    """Again while it may help and is allowed; then what the plan says; and where the machine must not decide, a person."""
    hopeless = _hopeless(facts)
    may_ask = hopeless is None or facts.code == CALLBACK_TIMEOUT
    if hopeless is None and facts.charged < facts.allowed and not facts.was_probe_only:
        if facts.kind == ErrorKind.LOST and facts.deaths >= facts.deaths_allowed:
            return Choice(remedy=Remedy.ESCALATE, reason=_poison(facts))
        again = _again(facts, f"Attempt {facts.charged} of {facts.allowed} failed ({facts.kind}).")
        if again.delay < facts.time_left:
            return again
        hopeless = "The time of this step as a whole is over (step_timeout)."
    reason = hopeless or _used_up(facts)
    if facts.role != Role.FORWARD:
        return Choice(remedy=Remedy.ESCALATE, reason=reason)
    if may_ask and facts.open_doubt and facts.has_probe and not facts.was_probe_only:
        return _again(facts, f"{reason} The other side is asked once what became of it.", probe_only=True)
    return _by_plan(facts, reason)


def _by_plan(facts: Facts, reason: str) -> Choice:
    """What the final failure of a forward step means."""
    if facts.has_alternative and facts.kind != ErrorKind.CANCELLED:
        if not facts.open_doubt:
            return Choice(remedy=Remedy.OTHERWISE, reason=f"{reason} Its alternative is taken.")
        reason += " Its alternative is not taken, since nobody knows whether it was done."
    if facts.policy == "ignore" and not facts.is_item:
        return Choice(remedy=Remedy.IGNORE, reason=f"{reason} The job goes on without it.")
    if facts.policy == "hold" and not facts.is_item:
        return Choice(remedy=Remedy.ESCALATE, reason=f"{reason} A person decides.")
    return Choice(remedy=Remedy.COMPENSATE, reason=reason)


def _poison(facts: Facts) -> str:
    return (
        f"Its worker died {facts.deaths} times in the middle of it. It is set aside, so that it kills no more of them."
    )


def _hopeless(facts: Facts) -> str | None:
    """Why another attempt cannot help, or must not be made."""
    if facts.kind == ErrorKind.CANCELLED:
        return "A person stopped this step."
    if facts.kind == ErrorKind.PERMANENT:
        return f"The failure is permanent: {facts.message}"
    if facts.too_late:
        return "Its fan-out has failed, so it is not tried again."
    if facts.waits or facts.kind == ErrorKind.EXPIRED_WAITING:
        return facts.message
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
