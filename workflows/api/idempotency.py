"""`Idempotency-Key`: a request that is sent again has the effect of one, and gets the answer of the first.

Follows draft 07 of the IETF. The answer is kept in the transaction that did the work, so that neither stands without the
other. A request that meets its own first one still at work is answered 409 without waiting; a key belongs to one client,
method and path. What failed before anything was done (malformed, not allowed, stale, …) is not kept: mend it and send it
again under the same key.
"""

import hashlib
import json
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

from django.db import connection, transaction
from rest_framework.request import Request
from rest_framework.response import Response

from workflows.api import problems
from workflows.api.permissions import client_id
from workflows.api.problems import InvalidKey, KeyRequired, KeyReused
from workflows.clock import SagNow
from workflows.exceptions import KeyInUse, WrongState
from workflows.models import IdempotencyRecord
from workflows.transitions import in_transaction

Method = Callable[..., Response]

LONGEST = 255
_KEPT_HEADERS = ("Location", "Retry-After", "ETag")


class _Use(NamedTuple):
    """One use of a key: whose, where, and for what."""

    client: int
    method: str
    path: str
    key: str
    fingerprint: str

    @property
    def place(self) -> dict[str, Any]:
        return {"client_id": self.client, "method": self.method, "path": self.path, "key": self.key}


def idempotent(*, required: bool = False) -> Callable[[Method], Method]:
    """Honour the key on this method of a view; `required`: refuse a request without one."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def answer(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
            use = _use_of(request)
            execute = partial(method, view, request, *args, **kwargs)
            if use is not None:
                return _once(use, request, execute)
            if required:
                raise KeyRequired(
                    "Send an Idempotency-Key of your own making, so that sending again does nothing twice."
                )
            return execute()

        return answer

    return decorate


def key_of(request: Request) -> str | None:
    """The key, quoted as the draft has it or bare as most software sends it; None without one. Raises InvalidKey."""
    header = request.headers.get("Idempotency-Key")
    if header is None:
        return None
    key = header.strip()
    if key.startswith('"'):
        key = _unquoted(key)
    elif '"' in key:
        raise _invalid("has a quotation mark inside, which only a quoted key may have, behind a backslash")
    if not 0 < len(key) <= LONGEST:
        raise _invalid(f"must have 1 to {LONGEST} characters, not {len(key)}")
    if not (key.isascii() and key.isprintable()):
        raise _invalid("may hold printable ASCII characters only")
    return key


def _unquoted(text: str) -> str:
    """The value of a String of RFC 8941."""
    key: list[str] = []
    rest = iter(text[1:])
    for character in rest:
        if character == '"':
            if next(rest, None) is None:
                return "".join(key)
            raise _invalid("goes on behind its closing quotation mark")
        if character == "\\":
            character = next(rest, "")
            if character not in ('"', "\\"):
                raise _invalid("has a backslash before something else than a quotation mark or a backslash")
        key.append(character)
    raise _invalid("begins with a quotation mark and does not end with one")


def _invalid(fault: str) -> InvalidKey:
    return InvalidKey(f"The Idempotency-Key {fault}.", errors=[{"header": "Idempotency-Key", "message": fault}])


def _use_of(request: Request) -> _Use | None:
    key = key_of(request)
    if key is None:
        return None
    # Canonical JSON: the order of names and white space make no other request.
    canonical = json.dumps(request.data, sort_keys=True, separators=(",", ":"))
    fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
    return _Use(client_id(request), str(request.method), request.path, key, fingerprint)


@in_transaction
def _once(use: _Use, request: Request, execute: Callable[[], Response]) -> Response:
    """Execute, or replay what the first request under this key was answered."""
    if not _locked(use):
        raise KeyInUse("The first request under this Idempotency-Key is still being processed; ask again in a moment.")
    if not _locked(use._replace(fingerprint="")):
        raise KeyReused("Another request with another body is being processed under this Idempotency-Key.")
    record = IdempotencyRecord.objects.filter(**use.place).first()
    if record is not None:
        if record.fingerprint != use.fingerprint:
            raise KeyReused("This Idempotency-Key came first with another body; use a new key for a new request.")
        return _replayed(record)
    try:
        with transaction.atomic():
            response = execute()
    except WrongState as error:
        response = problems.of(error, request)
    _keep(use, response)
    return response


def _locked(use: _Use) -> bool:
    """Whether this transaction holds the lock of this use now, without waiting for whoever else holds it."""
    digest = hashlib.sha256("\0".join(map(str, use)).encode()).digest()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(digest[:8], signed=True)])
        (locked,) = cursor.fetchone()
    return bool(locked)


def _keep(use: _Use, response: Response) -> None:
    IdempotencyRecord.objects.create(
        **use.place,
        fingerprint=use.fingerprint,
        status=response.status_code,
        headers={name: response[name] for name in _KEPT_HEADERS if response.has_header(name)},
        body=response.data,
        created_at=SagNow(),
    )


def _replayed(record: IdempotencyRecord) -> Response:
    content_type = problems.CONTENT_TYPE if record.status >= 400 else None
    return Response(record.body, status=record.status, headers=record.headers, content_type=content_type)
