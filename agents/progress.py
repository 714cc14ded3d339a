"""How far a call has come, in its own words: kept here, and stored with the heartbeat."""

import json
import math
from collections.abc import Mapping

from agents.results import clean_text

_LIMIT = 4_000  # bytes of JSON
_MESSAGE_LIMIT = 500  # characters


class Progress:
    """What an operation last reported, and whether the store has it. Written by the call, read by the heartbeat."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._stored: str | None = None

    def report(
        self, done: float | None, total: float | None, message: str, counters: Mapping[str, float | str]
    ) -> None:
        """Remember it in place of what was reported before. Raises ValueError for what cannot be shown."""
        for name, value in (("done", done), ("total", total), *counters.items()):
            _check(name, value, text_allowed=name in counters)
        if not isinstance(message, str):
            raise ValueError(f"progress(): message= must be a text, not {message!r}.")
        numbers = {name: value for name, value in (("done", done), ("total", total)) if value is not None}
        said = clean_text(message)[:_MESSAGE_LIMIT]
        encoded = json.dumps({**numbers, **({"message": said} if said else {}), **counters})
        if len(encoded) > _LIMIT:
            raise ValueError(f"progress() was given {len(encoded):,} bytes; {_LIMIT:,} are allowed.")
        self._last = encoded

    def not_stored(self) -> str | None:
        """What was reported and not stored yet, as JSON text."""
        last = self._last
        return None if last is self._stored else last

    def stored(self, said: str | None) -> None:
        if said is not None:
            self._stored = said


def _check(name: str, value: float | str | None, *, text_allowed: bool) -> None:
    if value is None and not text_allowed:
        return
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return
    if text_allowed and isinstance(value, str) and clean_text(value) == value:
        return
    wanted = "a finite number or a text without NUL" if text_allowed else "a finite number"
    raise ValueError(f"progress(): {name}= must be {wanted}, not {value!r}.")
