"""Results and error texts on their way into the store: faithfully, or with a clear word why not.

Stored form: JSON. Dates and times as ISO 8601, decimals, UUIDs and enums as strings or their values, bytes as base64,
sets and tuples as lists, dataclasses and pydantic models as objects. NaN and infinities, NUL, lone surrogates, cycles
and what is no data at all cannot be stored.
"""

import json
import re
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from workflows.conf import conf

_LONG_NUMBER = re.compile(r"\d{4300}")  # beyond this Python would not read it again
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_ERROR_TEXT_LIMIT = 10_000


class Unstorable(Exception):
    """A result came from a call that was made, and cannot be kept."""


def to_store(result: Any, output: type[BaseModel] | None = None) -> str:
    """The JSON text of a result, in the form of `output` where that was promised. Raises Unstorable with the reason."""
    if output is not None:
        result = _fitted(result, output)
    try:
        encoded = to_json(result, inf_nan_mode="constants", bytes_mode="base64")
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise Unstorable(f"The result is not JSON: {error}") from error
    if len(encoded) > conf.payload_limit:
        raise Unstorable(f"The result has {len(encoded):,} bytes; {conf.payload_limit:,} are allowed.")
    text = encoded.decode()
    if _NUL.search(text):
        raise Unstorable("The result has a NUL character in a text.")
    if "NaN" in text or "Infinity" in text:
        json.loads(text, parse_constant=_refuse_constant)
    if _LONG_NUMBER.search(text):
        _check_readable(text)
    return text


def _fitted(result: Any, output: type[BaseModel]) -> BaseModel:
    try:
        return output.model_validate(result)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "as a whole"
        raise Unstorable(f"The result does not fit {output.__name__}: {place}: {first['msg']}.") from None


def _check_readable(text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise Unstorable(f"The result has a number that is too long: {error}") from error


def clean_text(said: object) -> str:
    """An error text that any store and page can hold: no NUL, no lone surrogates, not endless."""
    try:
        text = str(said)
    except Exception:  # whatever somebody else's error does when it is printed
        text = f"(a {type(said).__name__} that cannot be printed)"
    text = text[: _ERROR_TEXT_LIMIT + 1].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _ERROR_TEXT_LIMIT else text[:_ERROR_TEXT_LIMIT] + " …"


def _refuse_constant(name: str) -> NoReturn:
    raise Unstorable(f"The result has the number {name}, which JSON cannot hold.")
