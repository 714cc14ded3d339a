"""References: values that will be known when the job runs.

`given["traveller"]["name"]` stands for a part of the job's input, `flight["arrives_at"]` for a part of a step's
result, a bare `flight` for all of it, `item` for the item of a fan-out that a row is about. While the class body runs
there is nothing behind them yet, so everything that would need a value (a loop, an `if`, an f-string, a comparison) is
refused on the spot: Python would otherwise loop for ever, take a branch for good, or store the text of an object.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from workflows.exceptions import ReferenceMisused

if TYPE_CHECKING:
    from workflows.plans.declared import Step

Key = str | int
Root = Literal["given", "item"]
_ADVICE = "It is known only when the job runs: pass it on in input=, and compute with it in an operation."


def path_text(root: str, path: Sequence[object]) -> str:
    """A path as it is written in Python: flight["legs"][0]."""
    return root + "".join(f"[{json.dumps(key, ensure_ascii=False, default=repr)}]" for key in path)


def _refusing(act: str) -> Any:
    def refuse(self: "Pending", *_: object) -> NoReturn:
        raise ReferenceMisused(f"{self!r} cannot be {act}. {_ADVICE}")

    return refuse


class Pending:
    """A value that will be known when the job runs."""

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a copy of a step would be another step

    __iter__ = __reversed__ = _refusing("iterated")
    __len__ = _refusing("measured with len()")
    __contains__ = _refusing("searched with 'in'")
    __bool__ = _refusing("tested for truth")
    __str__ = __format__ = _refusing("turned into text")
    __eq__ = __ne__ = _refusing("compared")
    __lt__ = __le__ = __gt__ = __ge__ = _refusing("compared")
    __hash__ = _refusing("used as a key or put into a set")


class Reference(Pending):
    """A place in the job's input, in a step's result, or in an item; `[…]` goes further in."""

    _source: "Step | Root"
    _path: tuple[Key, ...]

    def __init__(self, source: "Step | Root", path: tuple[Key, ...] = ()) -> None:
        self._source = source
        self._path = path

    def __getitem__(self, key: Key) -> "Reference":
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise ReferenceMisused(f"{self!r} is entered by a name or by a position, not by {key!r}.")
        if isinstance(key, int) and key < 0:
            raise ReferenceMisused(f"{self!r}[{key}]: positions count from the front, starting at 0.")
        return Reference(self._source, (*self._path, key))

    def __invert__(self) -> "Negation":
        return Negation(self)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{self!r} has no attribute {name!r}. Write {path_text(repr(self), [name])}.")

    def __repr__(self) -> str:
        root = self._source if isinstance(self._source, str) else repr(self._source)
        return path_text(root, self._path)


class Negation(Pending):
    """`~reference`: true where the reference is not. Only `when=` takes it."""

    def __init__(self, reference: Reference) -> None:
        self.negated = reference

    def __repr__(self) -> str:
        return f"~{self.negated!r}"

    def __getitem__(self, key: object) -> NoReturn:
        raise ReferenceMisused(f"{self!r} has nothing inside. Write ~{path_text(repr(self.negated), [key])}.")

    def __invert__(self) -> NoReturn:
        raise ReferenceMisused(f"~{self!r}: write {self.negated!r} itself.")


given = Reference("given")
item = Reference("item")


def source_of(reference: Reference) -> "Step | None":
    """The step whose result is meant; None for the job's input and for an item."""
    source = reference._source  # public attributes would pass for fields of the value
    return None if isinstance(source, str) else source


def is_item(reference: Reference) -> bool:
    """Whether it is a part of an item."""
    return isinstance(reference._source, str) and reference._source == "item"  # as above


def path_of(reference: Reference) -> tuple[Key, ...]:
    """The way from the source to the value."""
    return reference._path  # as above
