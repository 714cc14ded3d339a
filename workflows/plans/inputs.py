"""What a job is started with: checked at the door, so that nothing behind it has to wonder."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from workflows.conf import conf
from workflows.exceptions import InputTooLarge, InvalidInput
from workflows.plans.json_values import plain, pointer, printable

logger = logging.getLogger(__name__)

_MOST_ERRORS = 50  # an answer is for reading


def accepted(workflow: str, model: type[BaseModel] | None, value: object) -> dict[str, Any]:
    """The input as it is stored: validated, defaults filled in, names as aliases, only JSON.

    Without a model any JSON object will do. Raises InvalidInput or InputTooLarge.
    """
    given = {} if value is None else value
    document = given if model is None else _validated(workflow, model, given)
    if not isinstance(document, Mapping):
        raise _invalid(workflow, [{"pointer": "", "message": f"must be an object, not {type(value).__name__}"}])
    stored: dict[str, Any] = _without_faults(workflow, document, strict=True)
    _check_size(workflow, stored)
    return stored


def _validated(workflow: str, model: type[BaseModel], value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        # pydantic stops at a text that is none, without saying where.
        value = _without_faults(workflow, value, strict=False)
    try:
        instance = model.model_validate(value)
    except ValidationError as error:
        raise _invalid(workflow, [_fault(item) for item in error.errors(include_url=False)]) from error
    try:
        # In the JSON of a model NaN would have become null.
        _without_faults(workflow, instance.model_dump(by_alias=True), strict=False)
        return instance.model_dump(mode="json", by_alias=True)
    except (ValueError, RecursionError) as error:
        # An untyped field lets anything through validation; what JSON cannot express shows only now.
        raise _invalid(workflow, [{"pointer": "", "message": printable(str(error))}]) from error


def _without_faults(workflow: str, value: object, *, strict: bool) -> Any:
    faults: list[dict[str, str]] = []
    stored = plain(value, faults, strict=strict)
    if faults:
        raise _invalid(workflow, faults)
    return stored


def _fault(error: Any) -> dict[str, str]:
    message = error["msg"].removeprefix("Value error, ")
    return {"pointer": pointer(error["loc"]), "message": printable(message)}


def _invalid(workflow: str, faults: list[dict[str, str]]) -> InvalidInput:
    first = faults[0]
    where = f"{first['pointer']}: " if first["pointer"] else ""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    message = f"The input does not fit {workflow}: {where}{first['message']}{more}"
    return InvalidInput(message, errors=faults[:_MOST_ERRORS])


def _check_size(workflow: str, document: dict[str, Any]) -> None:
    size = len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    if size > conf.payload_limit:
        raise InputTooLarge(
            f"The input of {workflow} is {size:,} bytes; a job carries at most {conf.payload_limit:,}. "
            "Store the bulk elsewhere and give its address.",
            size=size,
            limit=conf.payload_limit,
        )
    if size > conf.payload_warning:
        logger.warning("The input of %s is %s bytes; the limit is %s.", workflow, size, conf.payload_limit)
