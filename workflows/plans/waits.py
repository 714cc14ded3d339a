"""`timer(…)` and `signal(…)`: lines of a class body that wait for the clock, or for somebody outside."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Never, cast

from workflows.conf import conf
from workflows.exceptions import InvalidStep
from workflows.plans.arguments import (
    LONGEST,
    checked_duration,
    checked_flag,
    checked_flow,
    is_number,
    refuse_unknown,
)
from workflows.plans.declared import Step, StepOptions
from workflows.plans.json_values import fault_in_text
from workflows.plans.plan import OnFailure, Unmet
from workflows.plans.references import Negation, Reference

_LONGEST_APPROVER = 156  # "group:" and a name of Django's longest

_NOT_OF_A_TIMER = {
    "otherwise": "A timer cannot fail: there is nothing to do in its place.",
    "on_failure": "A timer cannot fail.",
    "timeout": "It waits as long as its delay says.",
    "compensation": "Waiting leaves nothing behind that could be undone.",
    "input": "It calls nothing.",
    "each": "Many timers of one length end together: declare one.",
}
_NOT_OF_A_SIGNAL = {
    "compensation": "A signal does nothing that could be undone. Undo what follows it.",
    "input": "It calls nothing; what it carries is its result.",
    "each": "It is one message: declare a signal for each that is waited for.",
    "retry": "It is not tried but waited for: timeout= says how long.",
}


def timer(
    delay: int | float | timedelta | datetime | Reference,
    *,
    after: Iterable[Step] = (),
    when: Reference | Negation | None = None,
    unmet: Unmet | None = None,
    **unknown: Never,
) -> Step:
    """Declare a wait: what comes after it begins no sooner than then.

    `delay` is a number of seconds or a timedelta, counted from when all that the timer waits for has ended; or a
    datetime; or a reference, to a number of seconds or to an instant as RFC 3339 text.
    """
    where = f"timer({delay!r})"
    refuse_unknown(where, unknown, timer, _NOT_OF_A_TIMER)
    return Step(
        StepOptions(
            declaration=where,
            kind="timer",
            flow=checked_flow(where, after=after, when=when, unmet=unmet),
            delay=_checked_delay(where, delay),
            timeout=timedelta(seconds=conf.step_timeout),
            retry=conf.retry,
            undo_retry=conf.undo_retry,
        )
    )


def _checked_delay(where: str, delay: object) -> object:
    if isinstance(delay, Reference):
        return delay
    if isinstance(delay, datetime):
        if delay.utcoffset() is None:
            raise InvalidStep(f"{where}: a datetime needs its timezone, as datetime(2030, 1, 1, tzinfo=UTC).")
        return delay.astimezone(UTC).isoformat().replace("+00:00", "Z")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not is_number(seconds):
        raise InvalidStep(
            f"{where} waits for seconds, a timedelta, a datetime or a reference to one of them, not for {delay!r}."
        )
    if not 0 <= cast(float, seconds) <= LONGEST.total_seconds():
        raise InvalidStep(f"{where} must wait for no less than zero and no more than a hundred years.")
    return seconds


def signal(
    *,
    timeout: timedelta | None = None,
    approval: bool = False,
    approvers: Iterable[str] = (),
    after: Iterable[Step] = (),
    when: Reference | Negation | None = None,
    unmet: Unmet | None = None,
    on_failure: OnFailure | None = None,
    otherwise: Step | None = None,
    **unknown: Never,
) -> Step:
    """Declare a step that is done when a signal of its name arrives; what the signal carries is its result.

    `timeout`    how long it is waited for, after which the step has failed; for ever if left out
    `approval`   a person decides, and says why; a refusal fails the step
    `approvers`  who may decide: user names and "group:NAME"; every operator if left out

    The others are those of `step`.
    """
    where = "signal()"
    refuse_unknown(where, unknown, signal, _NOT_OF_A_SIGNAL)
    deciding = _checked_approvers(where, approvers)
    return Step(
        StepOptions(
            declaration=where,
            kind="signal",
            flow=checked_flow(where, after=after, when=when, unmet=unmet, on_failure=on_failure, otherwise=otherwise),
            wait=checked_duration(where, "timeout", timeout),
            approval=checked_flag(where, "approval", approval) or bool(deciding),
            approvers=deciding,
            timeout=timedelta(seconds=conf.step_timeout),
            retry=conf.retry,
            undo_retry=conf.undo_retry,
        )
    )


def _checked_approvers(where: str, approvers: object) -> tuple[str, ...]:
    if isinstance(approvers, str):
        raise InvalidStep(f"{where}: approvers= takes a list: approvers=[{approvers!r}].")
    if isinstance(approvers, Reference | Negation) or not isinstance(approvers, Iterable):
        raise InvalidStep(f"{where}: approvers={approvers!r} must be a list of user names and 'group:NAME'.")
    names: list[str] = []
    for name in approvers:
        if not isinstance(name, str) or not name.removeprefix("group:").strip() or fault_in_text(name):
            raise InvalidStep(f"{where}: the approver {name!r} is neither a user's name nor 'group:NAME'.")
        if len(name) > _LONGEST_APPROVER:
            raise InvalidStep(f"{where}: the approver {name!r} is longer than any name can be.")
        names.append(name)
    return tuple(dict.fromkeys(names))
