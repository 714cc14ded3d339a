"""What a step is given, as it is stored: JSON with references in it, and what it becomes once they are known.

`{"$given": ["traveller", "name"]}` is a part of the job's input, `{"$result": ["flight", "arrives_at"]}` a part of the
result of the step named first, `{"$item": ["host"]}` a part of the item of a fan-out. A condition may also be
`{"$not": reference}`. Everything else stands for itself. Only a literal object with a name that begins with "$" is
wrapped, `{"$literal": {…}}`, so that it is not taken for one of these; references inside it still count.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from workflows.exceptions import InvalidStep, UnresolvedReference
from workflows.plans.json_values import MAX_DEPTH, fault_in_scalar, fault_in_text
from workflows.plans.nearest import did_you_mean
from workflows.plans.references import Negation, Reference, is_item, path_of, path_text, source_of

Template = Any
"""A stored template: any JSON value."""


def encode(value: object, names: Mapping[int, str], root: str = "input", path: tuple[object, ...] = ()) -> Template:
    """The template of a declared value. `names`: each known step's name by the `id()` of its object."""
    if len(path) > MAX_DEPTH:
        raise InvalidStep(f"{root}= is nested more than {MAX_DEPTH} levels deep, or contains itself.")
    if isinstance(value, Reference):
        source = source_of(value)
        if source is not None:
            return {"$result": [names[id(source)], *path_of(value)]}
        return {"$item" if is_item(value) else "$given": list(path_of(value))}
    if isinstance(value, Negation):
        raise InvalidStep(
            f"{path_text(root, path)} is {value!r}, but ~ is for when= alone. Compute it in an operation."
        )
    if isinstance(value, Mapping):
        return _encode_object(value, names, root, path)
    if isinstance(value, list | tuple):
        return [encode(part, names, root, (*path, index)) for index, part in enumerate(value)]
    if fault := fault_in_scalar(value):
        raise InvalidStep(f"{path_text(root, path)} {fault}.")
    return value


def _encode_object(
    value: Mapping[Any, object], names: Mapping[int, str], root: str, path: tuple[object, ...]
) -> Template:
    for key in value:
        if fault := fault_in_text(key) if isinstance(key, str) else "is no text":
            raise InvalidStep(f"{path_text(root, (*path, key))}: the name {fault}.")
    encoded = {key: encode(part, names, root, (*path, key)) for key, part in value.items()}
    return {"$literal": encoded} if any(key.startswith("$") for key in encoded) else encoded


def encode_condition(value: Reference | Negation | None, names: Mapping[int, str]) -> Template:
    """The template of what `when=` was given; None if it was given nothing."""
    if isinstance(value, Negation):
        return {"$not": encode(value.negated, names)}
    return encode(value, names)


def declared_references(value: object, depth: int = 0) -> Iterator[Reference]:
    """The references in a value as declared, before it is encoded."""
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, Negation):
        yield value.negated
    elif depth > MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from declared_references(part, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from declared_references(part, depth + 1)


def references_of(template: Template) -> set[str]:
    """The names of the steps whose results the template reads."""
    match template:
        case {"$result": [str(name), *_]}:
            return {name}
        case {"$given": _} | {"$item": _}:
            return set()
        case {"$literal": dict(inner)}:
            return set().union(*map(references_of, inner.values()))
        case dict():
            return set().union(*map(references_of, template.values()))
        case list():
            return set().union(*map(references_of, template))
    return set()


def resolve(
    template: Template,
    given: dict[str, Any],
    results: Mapping[str, Any],
    item: Any = None,
    absent: Collection[str] = frozenset(),
) -> Any:
    """The value that the template describes.

    `given` is the job's input, `results` the result of each step by its name, `item` what the row of a fan-out is
    about. A step in `absent` was skipped, or failed and was ignored: whatever is read of it is null. Raises
    UnresolvedReference, which names the place and what was found there, but no values.
    """

    def value_of(part: Template) -> Any:
        match part:
            case {"$given": list(path)}:
                return _follow("given", given, path)
            case {"$result": [str(name), *_]} if name in absent:
                return None
            case {"$result": [str(name), *path]}:
                if name not in results:
                    raise UnresolvedReference(f"The step {name!r} has left no result.{did_you_mean(name, results)}")
                return _follow(name, results[name], path)
            case {"$item": list(path)}:
                return _follow("item", item, path)
            case {"$not": reference}:
                return not value_of(reference)
            case {"$literal": dict(inner)}:
                return {key: value_of(value) for key, value in inner.items()}
            case dict():
                return {key: value_of(value) for key, value in part.items()}
            case list():
                return [value_of(value) for value in part]
        return part

    return value_of(template)


def _follow(root: str, value: Any, path: Sequence[str | int]) -> Any:
    for depth, key in enumerate(path):
        if isinstance(value, dict) and isinstance(key, str) and key in value:
            value = value[key]
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            here = path_text(root, path[:depth])
            raise UnresolvedReference(
                f"{path_text(root, path)} leads to nothing: {here} {_what_is_there(value, key)}",
                path=path_text(root, path),
            )
    return value


def _what_is_there(value: Any, key: str | int) -> str:
    match value:
        case dict():
            return f"has no {key!r}.{did_you_mean(key, value)}" if value else "is empty."
        case list():
            return f"is a list of {len(value)}."
        case None:
            return "is null."
    return f"is a {type(value).__name__}."
