"""Waiting for something to become true, with an end."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(question: Callable[[], T], timeout: float = 20, *, what: str = "", every: float = 0.05) -> T:
    """Ask until the answer is truthy, and return it; an exception counts as no. Fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    last: object = None
    while True:
        try:
            answer = question()
            if answer:
                return answer
            last = answer
        except Exception as error:
            last = error
        if time.monotonic() > deadline:
            name = what or getattr(question, "__name__", "the condition")
            raise AssertionError(f"Not within {timeout:g} s: {name}. The last answer was {last!r}.")
        time.sleep(every)
