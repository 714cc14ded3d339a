"""A step's input as it is stored: JSON with references in it, and what it becomes once they are known.

`{"$given": ["traveller", "name"]}` is a part of the job's input, `{"$result": ["flight", "arrives_at"]}` a part of the
result of the step named first. Everything else stands for itself. Only a literal object with a name that begins with
"$" is wrapped, `{"$literal": {…}}`, so that it is not taken for one of these; references inside it still count.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workflows.exceptions import InvalidStep, UnresolvedReference
from workflows.plans.json_values import MAX_DEPTH, fault_in_scalar, fault_in_text
from workflows.plans.nearest import did_you_mean
from workflows.plans.references import Reference, path_of, path_text, source_of

Template = Any
"""A stored template: any JSON value."""


def encode(value: object, names: Mapping[int, str], path: tuple[object, ...] = ()) -> Template:
    """The template of a declared input. `names`: each known step's name by the `id()` of its object."""
    if len(path) > MAX_DEPTH:
        raise InvalidStep(f"input= is nested more than {MAX_DEPTH} levels deep, or contains itself.")
    if isinstance(value, Reference):
        source = source_of(value)
        if source is None:
            return {"$given": list(path_of(value))}
        return {"$result": [names[id(source)], *path_of(value)]}
    if isinstance(value, Mapping):
        return _encode_object(value, names, path)
    if isinstance(value, list | tuple):
        return [encode(item, names, (*path, index)) for index, item in enumerate(value)]
    if fault := fault_in_scalar(value):
        raise InvalidStep(f"{path_text('input', path)} {fault}.")
    return value


def _encode_object(value: Mapping[Any, object], names: Mapping[int, str], path: tuple[object, ...]) -> Template:
    for key in value:
        if fault := fault_in_text(key) if isinstance(key, str) else "is no text":
            raise InvalidStep(f"{path_text('input', (*path, key))}: the name {fault}.")
    encoded = {key: encode(item, names, (*path, key)) for key, item in value.items()}
    return {"$literal": encoded} if any(key.startswith("$") for key in encoded) else encoded


def declared_references(value: object, depth: int = 0) -> Iterator[Reference]:
    """The references in an input as declared, before it is encoded."""
    if isinstance(value, Reference):
        yield value
    elif depth > MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from declared_references(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from declared_references(item, depth + 1)


def references_of(template: Template) -> set[str]:
    """The names of the steps whose results the template reads."""
    match template:
        case {"$result": [str(name), *_]}:
            return {name}
        case {"$given": _}:
            return set()
        case {"$literal": dict(inner)}:
            return set().union(*map(references_of, inner.values()))
        case dict():
            return set().union(*map(references_of, template.values()))
        case list():
            return set().union(*map(references_of, template))
    return set()


def resolve(template: Template, given: dict[str, Any], results: Mapping[str, Any]) -> Any:
    """The input that the template describes.

    `given` is the job's input, `results` the result of each step by its name. Raises UnresolvedReference, which names
    the place and what was found there, but no values.
    """
    match template:
        case {"$given": list(path)}:
            return _follow("given", given, path)
        case {"$result": [str(name), *path]}:
            if name not in results:
                raise UnresolvedReference(f"The step {name!r} has left no result.{did_you_mean(name, results)}")
            return _follow(name, results[name], path)
        case {"$literal": dict(inner)}:
            return {key: resolve(item, given, results) for key, item in inner.items()}
        case dict():
            return {key: resolve(item, given, results) for key, item in template.items()}
        case list():
            return [resolve(item, given, results) for item in template]
    return template


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
