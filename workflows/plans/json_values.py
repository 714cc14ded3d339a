"""What can be stored as JSON in PostgreSQL and read back unchanged, and where a value breaks that."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

MAX_DEPTH = 100
"""Levels of lists and objects inside each other; a value that contains itself ends here too."""

_MAX_BITS = 1024  # the range of a double: beyond it JSON readers disagree about a number


def fault_in_scalar(value: object) -> str | None:
    """Why this value (no list, no object) cannot be stored, or None."""
    match value:
        case None | bool():
            return None
        case str():
            return fault_in_text(value)
        case int():
            return "is a number too large to be stored" if value.bit_length() > _MAX_BITS else None
        case float():
            return None if math.isfinite(value) else f"is {value}, which JSON cannot express"
    return f"is a {type(value).__name__}, which JSON cannot express; write it as text or as a number"


def fault_in_text(text: str) -> str | None:
    """Why this text cannot be stored, or None."""
    if "\0" in text:
        return "contains the character NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half of a surrogate pair, which is no character"
    return None


def printable(text: str) -> str:
    """The text with what cannot be stored written as an escape, so that an error can name it."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def pointer(path: Iterable[object]) -> str:
    """A JSON Pointer (RFC 6901)."""
    return "".join("/" + printable(str(part)).replace("~", "~0").replace("/", "~1") for part in path)


def plain(value: Any, faults: list[dict[str, str]], path: tuple[object, ...] = (), *, strict: bool = True) -> Any:
    """The value as fresh dicts, lists and scalars; each fault is added to `faults` as `{"pointer", "message"}`.

    Without `strict`, names that are no text and values of Python's other types may stay: a schema will turn them into
    JSON, or refuse them.
    """
    if len(path) > MAX_DEPTH:
        faults.append({"pointer": pointer(path), "message": f"is nested more than {MAX_DEPTH} levels deep"})
        return None
    if isinstance(value, Mapping):
        for key in value:
            if fault := fault_in_text(key) if isinstance(key, str) else strict and "is no text":
                faults.append({"pointer": pointer((*path, key)), "message": f"the name {fault}"})
        return {key: plain(item, faults, (*path, key), strict=strict) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, faults, (*path, index), strict=strict) for index, item in enumerate(value)]
    if (strict or isinstance(value, str | int | float)) and (fault := fault_in_scalar(value)):
        faults.append({"pointer": pointer(path), "message": fault})
    return value
