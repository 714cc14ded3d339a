"""What operations promise of their results, as JSON Schema: announced by their workers, held against what a person gives."""

import json
import logging
from datetime import datetime
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from workflows.models import Agent, Step
from workflows.plans.json_values import pointer
from workflows.plans.schema import Schema

logger = logging.getLogger(__name__)

_MOST_FAULTS = 50  # an answer is for reading
_LONGEST_MESSAGE = 200


def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value))


_FORMATS = FormatChecker(Draft202012Validator.FORMAT_CHECKER.checkers)
_FORMATS.checks("date-time", raises=ValueError)(_is_moment)


class _AsStored(GenerateJsonSchema):
    """The worker fills in what has a default, so that a stored result has those fields as well."""

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        if field["type"] == "typed-dict-field":
            return super().field_is_required(field, total)
        return field.get("serialization_exclude_if") is None


def schema_of(model: type[BaseModel]) -> Schema | None:
    """The JSON Schema of a result as it is stored; None, with a warning, where the model has none that can be checked."""
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_AsStored, mode="serialization")
        Draft202012Validator.check_schema(schema)
    except (PydanticUserError, SchemaError) as error:
        said = str(error).partition("\n")[0]
        logger.warning("A result of %s given by hand is not checked: it has no JSON Schema. %s", model.__name__, said)
        return None
    return schema


def promised(step: Step) -> Schema | None:
    """What a result of this step has to fit, as the workers of its agent announced it."""
    outputs = Agent.objects.filter(pk=step.agent).values_list("outputs", flat=True).first()
    return outputs.get(step.operation) if outputs else None


def faults(result: Any, schema: Schema) -> list[dict[str, str]]:
    """Where a result does not fit, as {"pointer", "message"}; the first of them."""
    found = Draft202012Validator(schema, format_checker=_FORMATS).iter_errors(result)
    return [_fault(best_match([error])) for error in islice(found, _MOST_FAULTS)]


def _fault(error: ValidationError) -> dict[str, str]:
    message = error.message
    if len(message) > _LONGEST_MESSAGE:  # it repeats the value
        message = f"does not fit {error.validator}: {json.dumps(error.validator_value)}"[:_LONGEST_MESSAGE]
    return {"pointer": pointer(("result", *error.absolute_path)), "message": message}
