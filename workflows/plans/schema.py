"""Whether a `given[…]` can exist in what the workflow's input schema lets through."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from workflows.exceptions import InvalidWorkflow, UnknownReference
from workflows.plans.nearest import did_you_mean
from workflows.plans.references import path_text

Schema = dict[str, Any]


def schema_of(model: type[BaseModel]) -> Schema:
    """The JSON Schema of a validated input as it is stored: names are aliases, values are as dumped."""
    try:
        return model.model_json_schema(by_alias=True, mode="serialization")
    except PydanticUserError as error:
        raise InvalidWorkflow(f"{model.__name__} cannot be an input: it has no JSON Schema. {error}") from error


def check_path(schema: Schema, path: Sequence[str | int], kinds: Collection[str] = ()) -> None:
    """Raise UnknownReference unless some input that the schema allows has a value at this path.

    `kinds`: one of these JSON Schema types it has to be, if any.
    """
    here = [schema]
    for depth, key in enumerate(path):
        options = [option for part in here for option in _alternatives(part, schema)]
        here = [inner for option in options for inner in _enter(option, key)]
        if not here:
            place = "the input" if depth == 0 else path_text("given", path[:depth])
            raise UnknownReference(
                f"{path_text('given', path)} cannot exist: {place} has no {key!r}.{_hint(options, key)}"
            )
    found = {str(option.get("type", "anything")) for part in here for option in _alternatives(part, schema)}
    if kinds and found.isdisjoint({"anything", *kinds}):
        raise UnknownReference(
            f"{path_text('given', path)} is of type {' or '.join(sorted(found))} where {' or '.join(kinds)} is needed."
        )


def _alternatives(schema: Schema, root: Schema) -> Iterator[Schema]:
    """The schema's own parts, with `$ref` followed and unions taken apart."""
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        yield from _alternatives(target, root)
        return
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    if not choices:
        yield schema
    for choice in choices:
        yield from _alternatives(choice, root)


def _enter(schema: Schema, key: str | int) -> Iterator[Schema]:
    """What may be found under this key, as schemas; nothing if there cannot be anything."""
    kind = schema.get("type")
    if kind is None:
        yield {}
    elif kind == "object" and isinstance(key, str):
        extra = schema.get("additionalProperties", "properties" not in schema)
        if key in schema.get("properties", {}):
            yield schema["properties"][key]
        elif extra:
            yield extra if isinstance(extra, dict) else {}
    elif kind == "array" and isinstance(key, int):
        fixed = schema.get("prefixItems", [])
        if key < len(fixed):
            yield fixed[key]
        elif key < schema.get("maxItems", key + 1):
            yield schema.get("items", {})


def _hint(options: list[Schema], key: str | int) -> str:
    names = [name for option in options for name in option.get("properties", ())]
    if names:
        return did_you_mean(key, dict.fromkeys(names))
    kinds = sorted({option.get("type", "anything") for option in options})
    return f" It is of type {' or '.join(kinds)}."
