"""Every error as a problem document (RFC 9457): what was wrong, where, and what to do. Never a trace.

The `type` of an error of ours is `/problems/<code>`, stable for ever; errors that HTTP itself names have `about:blank`.
"""

import inspect
import logging
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from workflows.exceptions import KeyInUse, SagError
from workflows.plans.json_values import printable

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER = "1"  # seconds


class Malformed(SagError):
    """The request is not written as it must be."""

    code = "malformed_request"
    http_status = 400


class InvalidParameter(SagError):
    """A parameter of the query cannot be used."""

    code = "invalid_parameter"
    http_status = 400


class InvalidCursor(SagError):
    """The cursor does not belong to this list; start again without one."""

    code = "invalid_cursor"
    http_status = 400


class KeyRequired(SagError):
    """This request needs an Idempotency-Key."""

    code = "idempotency_key_required"
    http_status = 400
    headers = {"Link": '</api/v1/docs>; rel="describedby"; type="text/html"'}  # where the policy is written


class InvalidKey(SagError):
    """The Idempotency-Key cannot be used."""

    code = "invalid_idempotency_key"
    http_status = 400


class KeyReused(SagError):
    """The Idempotency-Key was used for another request."""

    code = "idempotency_key_reused"
    http_status = 422


class BodyTooLarge(SagError):
    """The body is larger than this API takes in."""

    code = "body_too_large"
    http_status = 413


class PreconditionRequired(SagError):
    """This request needs If-Match, so that nothing is done to what you have not seen."""

    code = "precondition_required"
    http_status = 428


class Unavailable(SagError):
    """The database does not answer; ask again in a moment."""

    code = "unavailable"
    http_status = 503
    headers = {"Retry-After": "2"}


class InternalError(SagError):
    """Something went wrong on our side. It has been logged."""

    code = "internal_error"
    http_status = 500


def handler(error: Exception, context: dict[str, Any]) -> Response:
    """Django REST framework's exception handler."""
    return of(error, context["request"])


def of(error: Exception, request: Request) -> Response:
    """The problem document that answers this error."""
    match error:
        case SagError():
            response = _of_ours(error)
        case Http404():
            response = _plain(404, "There is nothing at this address.")
        case PermissionDenied():
            response = _plain(403, str(error) or "This is not allowed.")
        case exceptions.APIException():
            response = _of_framework(error)
        case OperationalError() | InterfaceError():
            logger.warning("the database did not answer %s %s: %s", request.method, request.path, error)
            response = _of_ours(Unavailable())
        case _:
            logger.error("%s %s failed", request.method, request.path, exc_info=error)
            response = _of_ours(InternalError())
    response.data["instance"] = printable(request.path)
    if request.method == "POST":
        # Whoever asked for something may ask again under a new key only when nothing was, or can have been, done.
        in_progress = isinstance(error, KeyInUse)
        response.data["safe_to_retry_with_new_key"] = response.status_code < 500 and not in_progress
    return response


def _of_ours(error: SagError) -> Response:
    title = " ".join((inspect.getdoc(type(error)) or "").split())
    details = {name: value for name, value in error.details.items() if value or name == "allowed"}
    response = _document(f"/problems/{error.code.replace('_', '-')}", title, error.http_status, error.message, details)
    headers = {"Retry-After": RETRY_AFTER} if isinstance(error, KeyInUse) else getattr(error, "headers", {})
    for name, value in headers.items():
        response[name] = value
    return response


def _of_framework(error: exceptions.APIException) -> Response:
    response = _plain(error.status_code, _sentence(error.detail))
    if challenge := getattr(error, "auth_header", None):
        response["WWW-Authenticate"] = challenge
    if wait := getattr(error, "wait", None):
        response["Retry-After"] = f"{wait:.0f}"
    return response


def _sentence(detail: Any) -> str:
    """The framework nests its details in lists and dicts; ours are one sentence."""
    if isinstance(detail, dict):
        return " ".join(_sentence(value) for value in detail.values())
    if isinstance(detail, list):
        return " ".join(_sentence(value) for value in detail)
    return str(detail)


def _plain(status: int, detail: str) -> Response:
    return _document("about:blank", HTTPStatus(status).phrase, status, detail, {})


def _document(kind: str, title: str, status: int, detail: str, details: dict[str, Any]) -> Response:
    data = {"type": kind, "title": title, "status": status, "detail": printable(detail), **details}
    return Response(data, status=status, content_type=CONTENT_TYPE)
