"""Bodies: read within bounds, as JSON and nothing else, and refused with the place of what cannot be stored."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from workflows.api.problems import BodyTooLarge, Malformed
from workflows.conf import conf
from workflows.exceptions import InvalidInput, UnknownWorkflow
from workflows.plans import registry
from workflows.plans.json_values import plain, pointer, printable
from workflows.plans.nearest import did_you_mean
from workflows.workflow import Workflow

Model = TypeVar("Model", bound=BaseModel)

_ROOM_AROUND_THE_INPUT = 100_000  # bytes, for the other fields of a body and for white space


class JSONParser(BaseParser):
    """Strict JSON in UTF-8. NUL, halves of surrogate pairs, NaN and numbers beyond a double are refused where they stand."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The document. Raises BodyTooLarge before it reads anything, or Malformed."""
        limit = conf.payload_limit + _ROOM_AROUND_THE_INPUT
        announced = int((parser_context or {})["request"].META.get("CONTENT_LENGTH") or 0)
        if announced > limit:
            raise BodyTooLarge(f"The body has {announced:,} bytes; at most {limit:,} are taken in.", limit=limit)
        document = _loaded(_decoded(stream.read(limit + 1)))
        faults: list[dict[str, str]] = []
        plain(document, faults)
        if faults:
            first = faults[0]
            raise Malformed(f"The body cannot be stored: {first['pointer'] or 'it'} {first['message']}.", errors=faults)
        return document


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8 at byte {error.start}"
        raise Malformed(f"The body {fault}.", errors=[{"pointer": "", "message": fault}]) from None


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        fault = f"is no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
    except RecursionError:
        fault = "is nested too deeply"
    except ValueError as error:  # an integer of thousands of digits, or a constant
        fault = f"is no JSON that can be kept: {error}"
    raise Malformed(f"The body {fault}.", errors=[{"pointer": "", "message": fault}])


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def document_of(request: Request) -> dict[str, Any]:
    """The body as an object; no body is an empty one. Raises InvalidInput for any other kind of document."""
    document = request.data or {}
    if not isinstance(request.data, Mapping):
        fault = f"must be an object, not {type(request.data).__name__}"
        raise InvalidInput(f"The body {fault}.", errors=[{"pointer": "", "message": fault}])
    return dict(document)


def body_of(request: Request, model: type[Model]) -> Model:
    """The body as this model. Raises InvalidInput with a pointer for each field that does not fit."""
    document = document_of(request)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        faults = [_fault(item, model) for item in error.errors(include_url=False)]
    first = faults[0]
    raise InvalidInput(f"The body does not fit: {first['pointer']}: {first['message']}", errors=faults)


def _fault(error: Any, model: type[BaseModel]) -> dict[str, str]:
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "There is no such field." + did_you_mean(error["loc"][-1], model.model_fields)
    return {"pointer": pointer(error["loc"]), "message": printable(message)}


def workflow_named(name: str) -> type[Workflow]:
    """The workflow that the body's field `workflow` names. Raises UnknownWorkflow with a pointer to it."""
    try:
        return registry.get(name)
    except UnknownWorkflow as error:
        raise UnknownWorkflow(error.message, errors=[{"pointer": "/workflow", "message": error.message}]) from None


@contextmanager
def within_input() -> Iterator[None]:
    """What is wrong in a workflow's input is told with its place in the body, whose field `input` that is."""
    try:
        yield
    except InvalidInput as error:
        errors = [{**fault, "pointer": f"/input{fault['pointer']}"} for fault in error.errors]
        raise InvalidInput(error.message, errors=errors) from None
