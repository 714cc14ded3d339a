"""The faults a vendor can be told to have, and the dice that decide which of them meets a call."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any

OPERATIONS = ("reserve", "find", "cancel")
LONGEST_MS = 3_600_000


class BadFault(ValueError):
    """A fault field that cannot be set; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What is wrong with one vendor. The defaults describe a vendor with whom nothing is wrong.

    Rates are probabilities from 0 to 1. `times` is how many more matching calls are affected (None: all), and a call
    matches when its operation is one of `operations`.
    """

    latency_ms: float = 0
    jitter_ms: float = 0
    error_rate: float = 0
    lose_answer_rate: float = 0
    lose_request_rate: float = 0
    slow_forever_rate: float = 0
    apply_after_ms: float = 0
    down: bool = False
    sold_out: bool = False
    retry_after: int | None = None
    honour_keys: bool = True
    seed: int | None = None
    times: int | None = None
    operations: tuple[str, ...] = OPERATIONS

    @classmethod
    def parse(cls, given: Any) -> "Faults":
        """The faults described by a JSON object; raises BadFault for the first field that is not right."""
        if not isinstance(given, Mapping):
            raise BadFault("", "The faults must be a JSON object.")
        known = [field.name for field in fields(cls)]
        for name, value in given.items():
            if name not in known:
                raise BadFault(name, f"There is no fault {name!r}. The faults are: {', '.join(known)}.")
            is_right, wanted = CHECKS[name]
            if not is_right(value):
                raise BadFault(name, f"{name} must be {wanted}, not {value!r}.")
        chosen = dict(given)
        if "operations" in chosen:
            chosen["operations"] = tuple(name for name in OPERATIONS if name in chosen["operations"])
        return cls(**chosen)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"operations": list(self.operations)}

    def matches(self, operation: str) -> bool:
        return operation in self.operations and self.times != 0

    def draw(self, seed: str, number: int) -> "Fate":
        """What happens to the `number`-th matching call: the same for the same seed, also after a restart.

        Every die is thrown for every call, so that changing one rate does not shift the luck of the others.
        """
        dice = Random(f"{seed}/{number}")
        jitter, error, answer, request, slow = (dice.random() for _ in range(5))
        return Fate(
            faults=self,
            delay=(self.latency_ms + jitter * self.jitter_ms) / 1000,
            error=error < self.error_rate,
            lose_answer=answer < self.lose_answer_rate,
            lose_request=request < self.lose_request_rate,
            never_answer=slow < self.slow_forever_rate,
        )


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What one call meets. `delay` is in seconds; the rest says which of the faults strike."""

    faults: Faults = Faults()
    delay: float = 0
    error: bool = False
    lose_answer: bool = False
    lose_request: bool = False
    never_answer: bool = False

    @property
    def refuses_for_now(self) -> bool:
        """A `retry_after` that no other refusal carries is a vendor who limits the rate."""
        return self.faults.retry_after is not None and not self.faults.down and not self.faults.error_rate


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and low <= value <= high


def _whole_or_none(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: value is None or (type(value) is int and low <= value <= high)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _are_operations(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(name in OPERATIONS for name in value)


_MS = (_between(0, LONGEST_MS), f"a number of milliseconds from 0 to {LONGEST_MS}")
_RATE = (_between(0, 1), "a number from 0 to 1")
_SWITCH = (_is_bool, "true or false")

CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "latency_ms": _MS,
    "jitter_ms": _MS,
    "error_rate": _RATE,
    "lose_answer_rate": _RATE,
    "lose_request_rate": _RATE,
    "slow_forever_rate": _RATE,
    "apply_after_ms": _MS,
    "down": _SWITCH,
    "sold_out": _SWITCH,
    "retry_after": (_whole_or_none(0, 86_400), "a whole number of seconds from 0 to 86400, or null"),
    "honour_keys": _SWITCH,
    "seed": (_whole_or_none(-(2**63), 2**63 - 1), "a whole number, or null"),
    "times": (_whole_or_none(0, 2**31), "a whole number of calls, or null for all of them"),
    "operations": (_are_operations, f"a list of some of: {', '.join(OPERATIONS)}"),
}
