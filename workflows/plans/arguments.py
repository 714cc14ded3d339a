"""The arguments that several words of a class body share, checked; each fault names the word it was found in.

`where` is that word as a sentence shows it: "step('flight.reserve')".
"""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast, get_args
from urllib.parse import urlsplit

from workflows.exceptions import InvalidStep
from workflows.plans.declared import Flow, Spread, Step, options_of
from workflows.plans.nearest import did_you_mean
from workflows.plans.plan import OnFailure, Unmet
from workflows.plans.references import Negation, Reference, source_of
from workflows.plans.retry import Retry

LONGEST = timedelta(days=36_525)
"""A hundred years: an instant that lies further off cannot always be stored."""

_OPERATION = re.compile(r"[a-z][a-z0-9_]{0,59}\.[a-z][a-z0-9_]{0,59}")
_LONGEST_OPERATION = 100
_LONGEST_ADDRESS = 500
_BELONGS_TO = {"delay": "timer(…)", "approval": "signal(…)", "approvers": "signal(…)", "on_parent_end": "child(…)"}


def refuse_unknown(
    where: str, unknown: Iterable[str], word: Callable[..., Step], reasons: Mapping[str, str] | None = None
) -> None:
    """Raise for the first keyword that `word` does not have; `reasons` say why it cannot have some of them."""
    for name in unknown:
        if name in (reasons or {}):
            advice = f" {(reasons or {})[name]}"
        elif name in _BELONGS_TO:
            advice = f" It belongs to {_BELONGS_TO[name]}."
        else:
            parameters = inspect.signature(word).parameters.values()
            advice = did_you_mean(name, [known.name for known in parameters if known.kind is known.KEYWORD_ONLY])
        raise InvalidStep(f"{where} has no {name}=.{advice}")


def fault_in_operation(name: object) -> str | None:
    """Why this is no operation's name, or None."""
    if isinstance(name, str) and len(name) > _LONGEST_OPERATION:
        return f"is longer than {_LONGEST_OPERATION} characters."
    if isinstance(name, str) and _OPERATION.fullmatch(name):
        return None
    candidate = re.sub(r"[^a-z0-9_]+", ".", name.strip().lower()) if isinstance(name, str) else ""
    hint = f"Did you mean {candidate!r}?" if _OPERATION.fullmatch(candidate) else "An example: 'flight.reserve'."
    return f"is not of the form 'agent.operation'. {hint}"


def fault_in_address(address: object) -> str | None:
    """Why this is no address of a web page, or None."""
    example = "must be the address of a page: 'https://wiki.example.com/runbooks/hotel'."
    if not isinstance(address, str) or not address.isascii() or not address.isprintable() or " " in address:
        return example
    if len(address) > _LONGEST_ADDRESS:
        return f"is longer than {_LONGEST_ADDRESS} characters."
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not set("\"'<>\\") & set(address)
    except ValueError:  # a bracket in the wrong place
        good = False
    return None if good else example


def checked_flow(
    where: str,
    *,
    after: object,
    when: object,
    unmet: object,
    on_failure: object = None,
    otherwise: object = None,
    spread: Spread | None = None,
) -> Flow:
    """When the step is done, and what its failure means."""
    if when is not None and not isinstance(when, Reference | Negation):
        raise InvalidStep(
            f"{where}: when={when!r} must be a reference or its opposite, as given['needs_car'] or "
            "~given['has_car']. Anything else is known already: leave the step out, or compute it in an operation."
        )
    if unmet is not None and when is None:
        raise InvalidStep(f"{where} has unmet= but no when= that could be unmet.")
    if otherwise is not None:
        _check_alternative(where, otherwise)
        if spread is not None and spread.each is not None:
            raise InvalidStep(f"{where}: otherwise= cannot stand beside each=: say with tolerate= how many may fail.")
        if on_failure is not None:
            raise InvalidStep(
                f"{where}: with otherwise= its failure starts the alternative. Give on_failure= to that one."
            )
    return Flow(
        after=_checked_after(where, after),
        when=when,
        unmet="skip" if unmet is None else checked_choice(where, "unmet", unmet, Unmet),
        on_failure=None if on_failure is None else checked_choice(where, "on_failure", on_failure, OnFailure),
        otherwise=cast("Step | None", otherwise),
    )


def _check_alternative(where: str, otherwise: object) -> None:
    if not isinstance(otherwise, Step):
        raise InvalidStep(f"{where}: otherwise={otherwise!r} must be a step: otherwise=step('inn.reserve').")
    options = options_of(otherwise)
    if options.kind == "timer":
        raise InvalidStep(
            f"{where}: otherwise={otherwise!r}, but waiting is no alternative. Give a step, signal or child."
        )
    for keyword, value in (("when", options.flow.when), ("each", options.spread.each)):
        if value is not None:
            raise InvalidStep(
                f"{where}: the alternative {otherwise!r} cannot have {keyword}=. It is done once, if this step fails."
            )


def _checked_after(where: str, after: object) -> tuple[Step, ...]:
    if isinstance(after, Reference | Negation | str) or not isinstance(after, Iterable):
        raise InvalidStep(f"{where}: after= takes a list of steps: after=[{_bare(after)}].")
    steps: list[Step] = []
    for earlier in after:
        if not isinstance(earlier, Step):
            raise InvalidStep(
                f"{where}: {earlier!r} in after= is no step. Write the step itself: after=[{_bare(earlier)}]."
            )
        steps.append(earlier)
    return tuple(steps)


def _bare(value: object) -> str:
    if isinstance(value, Reference) and (source := source_of(value)) is not None:
        return repr(source)
    return value if isinstance(value, str) and value.isidentifier() else "other_step"


def checked_spread(where: str, *, each: object, at_once: object, tolerate: object) -> Spread:
    """Over which list the step is done, and how."""
    if each is not None and not isinstance(each, Reference | list | tuple):
        raise InvalidStep(f"{where}: each={each!r} must be a list, or a reference to one, as given['hosts'].")
    if at_once is not None:
        _check_alone(where, each, "at_once")
        if not is_whole(at_once) or cast(int, at_once) < 1:
            raise InvalidStep(f"{where}: at_once={at_once!r} must be a whole number of at least 1; None means all.")
    _check_tolerance(where, tolerate)
    if tolerate:
        _check_alone(where, each, "tolerate")
    return Spread(each=each, at_once=cast("int | None", at_once), tolerate=cast("int | float", tolerate or 0))


def _check_alone(where: str, each: object, keyword: str) -> None:
    if each is None:
        raise InvalidStep(f"{where} has {keyword}= but no each=: it is done once. Name the list: each=given['hosts'].")


def _check_tolerance(where: str, tolerate: object) -> None:
    if is_whole(tolerate) and cast(int, tolerate) >= 0:
        return
    if isinstance(tolerate, float) and 0 <= tolerate < 1:
        return
    hint = (
        f" Did you mean {int(tolerate)}?" if isinstance(tolerate, float) and tolerate > 1 and tolerate % 1 == 0 else ""
    )
    raise InvalidStep(
        f"{where}: tolerate={tolerate!r} must be a number of items, as 3, or a share of them below 1, as 0.02.{hint}"
    )


def checked_choice(where: str, keyword: str, value: object, choices: Any) -> Any:
    """One of the words of a Literal."""
    words = get_args(choices)
    if isinstance(value, str) and value in words:
        return value
    raise InvalidStep(
        f"{where}: {keyword}={value!r} is unknown.{did_you_mean(value if isinstance(value, str) else '', words)}"
    )


def checked_flag(where: str, keyword: str, value: object) -> bool:
    """True or False, and nothing that only looks like it."""
    if not isinstance(value, bool):
        raise InvalidStep(f"{where}: {keyword}={value!r} must be True or False.")
    return value


def checked_duration(where: str, keyword: str, value: object) -> timedelta | None:
    """A duration above zero, or None."""
    if value is not None and (fault := fault_in_duration(value)):
        raise InvalidStep(f"{where}: {keyword}={value!r} {fault}")
    return cast("timedelta | None", value)


def fault_in_duration(value: object) -> str | None:
    """Why this is no duration above zero, or None."""
    if not isinstance(value, timedelta):
        return "must be a timedelta, as timedelta(seconds=30)."
    if value <= timedelta(0):
        return "must be longer than zero."
    return None if value <= LONGEST else "is longer than a hundred years."


def checked_retry(where: str, keyword: str, retry: object) -> Retry | None:
    """A retry policy, or None."""
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidStep(f"{where}: {keyword}={retry!r} must be a Retry, as Retry(attempts=3).")
    return retry


def is_whole(value: object) -> bool:
    """Whether it is an int, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a finite number."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))
