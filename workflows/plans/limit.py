"""How many steps may run at the same time, over all jobs."""

from dataclasses import dataclass
from typing import Never

from workflows.exceptions import InvalidStep
from workflows.plans.json_values import fault_in_text
from workflows.plans.nearest import did_you_mean
from workflows.plans.references import Reference

_LONGEST_KEY = 200


@dataclass(frozen=True, init=False, eq=False)  # a reference cannot be compared
class Limit:
    """Of all steps whose `key` has the same value, in whichever jobs, at most `at_once` run at the same time.

    The key is a reference, as in `Limit(key=given["city"], at_once=2)`, or a text of your own.
    """

    key: Reference | str
    at_once: int

    def __init__(self, *, key: Reference | str, at_once: int, **unknown: Never) -> None:
        for name in unknown:
            raise InvalidStep(f"Limit has no {name}=.{did_you_mean(name, ['key', 'at_once'])}")
        if not isinstance(key, Reference):
            if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
                raise InvalidStep(
                    f"Limit: key={key!r} must be a reference or a text of 1 to {_LONGEST_KEY} characters."
                )
            if fault := fault_in_text(key):
                raise InvalidStep(f"Limit: key={key!r} {fault}.")
        if isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1:
            raise InvalidStep(f"Limit: at_once={at_once!r} must be a whole number of at least 1.")
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "at_once", at_once)
