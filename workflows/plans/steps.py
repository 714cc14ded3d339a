"""`step(…)`: one line of a class body."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Never

from workflows.conf import conf
from workflows.exceptions import InvalidStep
from workflows.plans.nearest import did_you_mean
from workflows.plans.references import Reference, source_of
from workflows.plans.retry import Retry

_OPERATION = re.compile(r"[a-z][a-z0-9_]{0,59}\.[a-z][a-z0-9_]{0,59}")
_LONGEST_OPERATION = 100
_KEYWORDS = ("input", "compensation", "probe", "after", "timeout", "retry", "undo_retry")


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What a step was declared with, checked and with the defaults filled in; `input` is not encoded yet."""

    operation: str
    input: object
    compensation: str | None
    probe: str | None
    after: tuple["Step", ...]
    timeout: timedelta
    retry: Retry
    undo_retry: Retry


class Step(Reference):
    """A declared step; used in another step's input it stands for this one's whole result."""

    _name: str | None
    _owner: str | None
    _options: StepOptions

    def __init__(self, options: StepOptions) -> None:
        super().__init__(self)
        self._options = options
        self._name = None
        self._owner = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._owner = owner.__name__

    def __repr__(self) -> str:
        return self._name or f"step({self._options.operation!r})"


def options_of(declared: Step) -> StepOptions:
    """What the step was declared with."""
    return declared._options  # public attributes would pass for fields of the result


def owner_of(declared: Step) -> str | None:
    """The name of the workflow class that the step belongs to, once that is made."""
    return declared._owner  # as above


def step(
    operation: str,
    *,
    input: object = None,
    compensation: str | None = None,
    probe: str | None = None,
    after: Iterable[Step] = (),
    timeout: timedelta | None = None,
    retry: Retry | None = None,
    undo_retry: Retry | None = None,
    **unknown: Never,
) -> Step:
    """Declare a step that calls `operation` ("agent.operation").

    `input`         what the operation gets: JSON with references in it at any depth; an empty object if left out
    `compensation`  the operation that undoes this one
    `probe`         the operation that asks the service what became of an attempt whose answer was lost
    `after`         steps that must be done first although nothing of theirs is read
    `timeout`       the hard cap of one attempt
    `retry`         how often and how patiently it is tried again; `undo_retry` the same for the compensation

    The last three have their defaults from the settings table (`workflows.conf`).
    """
    for name in unknown:
        raise InvalidStep(f"step({operation!r}) has no {name}=.{did_you_mean(name, _KEYWORDS)}")
    _check_operations(operation, compensation, probe)
    if undo_retry is not None and compensation is None:
        raise InvalidStep(f"step({operation!r}) has undo_retry= but no compensation= to try again.")
    return Step(
        StepOptions(
            operation=operation,
            input={} if input is None else input,
            compensation=compensation,
            probe=probe,
            after=_checked_after(operation, after),
            timeout=_checked_timeout(operation, timeout),
            retry=_checked_retry(operation, "retry", retry) or conf.retry,
            undo_retry=_checked_retry(operation, "undo_retry", undo_retry) or conf.undo_retry,
        )
    )


def _check_operations(operation: str, compensation: str | None, probe: str | None) -> None:
    named = {"operation": operation, "compensation": compensation, "probe": probe}
    seen: dict[str, str] = {}
    for role, name in named.items():
        if name is None and role != "operation":
            continue
        if isinstance(name, str) and len(name) > _LONGEST_OPERATION:
            raise InvalidStep(f"{role} {name!r} is longer than {_LONGEST_OPERATION} characters.")
        if not isinstance(name, str) or not _OPERATION.fullmatch(name):
            raise InvalidStep(f"{role} {name!r} is not of the form 'agent.operation'.{_respelled(name)}")
        if name in seen:
            raise InvalidStep(f"{name!r} cannot be both {seen[name]} and {role} of one step.")
        seen[name] = role


def _respelled(name: object) -> str:
    candidate = re.sub(r"[^a-z0-9_]+", ".", str(name).strip().lower())
    return f" Did you mean {candidate!r}?" if _OPERATION.fullmatch(candidate) else " An example: 'flight.reserve'."


def _checked_after(operation: str, after: object) -> tuple[Step, ...]:
    if isinstance(after, Reference | str) or not isinstance(after, Iterable):
        raise InvalidStep(f"step({operation!r}): after= takes a list of steps: after=[{_bare(after)}].")
    steps: list[Step] = []
    for item in after:
        if not isinstance(item, Step):
            raise InvalidStep(
                f"step({operation!r}): {item!r} in after= is no step. Write the step itself: after=[{_bare(item)}]."
            )
        steps.append(item)
    return tuple(steps)


def _bare(item: object) -> str:
    if isinstance(item, Reference) and source_of(item) is not None:
        return repr(source_of(item))
    return item if isinstance(item, str) and item.isidentifier() else "other_step"


def _checked_timeout(operation: str, timeout: object) -> timedelta:
    if timeout is None:
        return timedelta(seconds=conf.step_timeout)
    if not isinstance(timeout, timedelta):
        raise InvalidStep(f"step({operation!r}): timeout={timeout!r} must be a timedelta, as timedelta(seconds=30).")
    if timeout <= timedelta(0):
        raise InvalidStep(f"step({operation!r}): timeout={timeout!r} must be longer than zero.")
    return timeout


def _checked_retry(operation: str, keyword: str, retry: object) -> Retry | None:
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidStep(f"step({operation!r}): {keyword}={retry!r} must be a Retry, as Retry(attempts=3).")
    return retry
