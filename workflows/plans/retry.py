"""How often, and how patiently, a step is tried again."""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Never, Self

from workflows.exceptions import InvalidRetry
from workflows.plans.nearest import did_you_mean


@dataclass(frozen=True, init=False)
class Retry:
    """At most `attempts` tries; before each next one a wait drawn from zero up to a bound (full jitter).

    The bound starts at `first`, grows by `factor` with each failure, and never passes `cap`.
    """

    attempts: int
    first: timedelta
    factor: float
    cap: timedelta

    def __init__(
        self,
        *,
        attempts: int = 5,
        first: timedelta = timedelta(seconds=1),
        factor: float = 2.0,
        cap: timedelta = timedelta(seconds=60),
        **unknown: Never,
    ) -> None:
        for name in unknown:
            raise InvalidRetry(f"Retry has no {name}=.{did_you_mean(name, ['attempts', 'first', 'factor', 'cap'])}")
        _check(attempts, first, factor, cap)
        for name, value in (("attempts", attempts), ("first", first), ("factor", float(factor)), ("cap", cap)):
            object.__setattr__(self, name, value)

    def bound(self, failures: int) -> timedelta:
        """The longest wait after this many failures (1 = the first try failed)."""
        if failures < 1:
            raise ValueError(f"a wait follows at least one failure, not {failures}")
        try:
            return min(self.cap, self.first * self.factor ** (failures - 1))
        except OverflowError:
            return self.cap

    def delay(self, failures: int, random: float) -> timedelta:
        """The wait after this many failures; `random` is drawn by the caller from [0, 1)."""
        return self.bound(failures) * random

    def schedule(self) -> list[timedelta]:
        """The longest wait before each further try: one less than there are attempts."""
        return [self.bound(failures) for failures in range(1, self.attempts)]

    def to_json(self) -> dict[str, Any]:
        """The policy as stored; durations in seconds."""
        return {
            "attempts": self.attempts,
            "first": self.first.total_seconds(),
            "factor": self.factor,
            "cap": self.cap.total_seconds(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The reverse of `to_json`; what is absent has its default."""
        arguments = dict(document)
        for name in ("first", "cap"):
            if name in document:
                arguments[name] = timedelta(seconds=document[name])
        return cls(**arguments)


def _check(attempts: object, first: object, factor: object, cap: object) -> None:
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise InvalidRetry(f"attempts={attempts!r} must be a whole number of at least 1; 1 means no second try.")
    for name, value in (("first", first), ("cap", cap)):
        if not isinstance(value, timedelta):
            raise InvalidRetry(f"{name}={value!r} must be a timedelta, for example timedelta(seconds=1).")
        if value <= timedelta(0):
            raise InvalidRetry(f"{name}={value!r} must be longer than zero.")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not math.isfinite(factor) or factor < 1:
        raise InvalidRetry(f"factor={factor!r} must be a number of at least 1; 1 keeps all waits equal.")
    if cap < first:  # type: ignore[operator]  # both were found to be timedeltas above
        raise InvalidRetry(f"cap={cap!r} is shorter than first={first!r}.")
