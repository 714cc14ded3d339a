"""Pages of jobs, newest first, by keyset: what is there during the whole walk is met exactly once."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core import signing
from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from workflows.api.parameters import number, text
from workflows.api.permissions import client_id
from workflows.api.problems import InvalidCursor
from workflows.models import Job
from workflows.querysets import JobQuerySet

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


@dataclass(frozen=True, kw_only=True)
class _Cursor:
    """A place between two jobs, and which way to go from it."""

    newer: bool
    created_at: datetime
    id: str

    def beyond(self, jobs: JobQuerySet) -> JobQuerySet:
        """The jobs on that side of the place, the nearest first."""
        # The first condition repeats the others' bound on the leading column, for the index.
        if self.newer:
            after = Q(created_at__gt=self.created_at) | Q(id__gt=self.id)
            return jobs.filter(after, created_at__gte=self.created_at).order_by("created_at", "id")
        before = Q(created_at__lt=self.created_at) | Q(id__lt=self.id)
        return jobs.filter(before, created_at__lte=self.created_at).newest_first()


def page(
    request: Request,
    jobs: JobQuerySet,
    filters: Sequence[tuple[str, str]],
    represent: Callable[[list[Job]], list[dict[str, Any]]],
) -> Response:
    """One page of `jobs`, which `filters` (as the query has them) have narrowed already.

    A cursor is good for one client, one list and one set of filters; any other is refused with InvalidCursor.
    """
    limit = number(request, "limit", DEFAULT_LIMIT, least=1, most=MAX_LIMIT)
    signer = _signer(request, filters)
    cursor = _read(text(request, "cursor"), signer)
    found = list((cursor.beyond(jobs) if cursor else jobs.newest_first())[: limit + 1])
    more, found = len(found) > limit, found[:limit]
    if cursor and cursor.newer:
        found.reverse()
    has_newer = more if cursor and cursor.newer else cursor is not None
    has_older = more if not (cursor and cursor.newer) else True

    def link(job: Job, *, newer: bool) -> str:
        here = _written(_Cursor(newer=newer, created_at=job.created_at, id=str(job.pk)), signer)
        return f"{request.path}?{urlencode([*filters, ('limit', limit), ('cursor', here)])}"

    return linked(
        represent(found),
        next=link(found[-1], newer=False) if found and has_older else None,
        prev=link(found[0], newer=True) if found and has_newer else None,
    )


def linked(results: list[dict[str, Any]], *, next: str | None, prev: str | None) -> Response:
    """A page, its neighbours in the body and in the header Link (RFC 8288)."""
    links = {"next": next, "prev": prev}
    header = ", ".join(f'<{address}>; rel="{name}"' for name, address in links.items() if address)
    return Response({"results": results, **links}, headers={"Link": header} if header else {})


def _signer(request: Request, filters: Sequence[tuple[str, str]]) -> signing.Signer:
    """The signature covers what the cursor is good for, without the cursor's having to say it."""
    good_for = json.dumps([client_id(request), request.path, sorted(filters)])
    return signing.Signer(salt=f"workflows.api.pagination {good_for}")


def _written(cursor: _Cursor, signer: signing.Signer) -> str:
    return signer.sign_object([cursor.newer, cursor.created_at.isoformat(), cursor.id])


def _read(written: str | None, signer: signing.Signer) -> _Cursor | None:
    if written is None:
        return None
    try:
        newer, created_at, job_id = signer.unsign_object(written)
    except (signing.BadSignature, ValueError):
        fault = "was not given out for this list with these filters, or not to this client."
        raise InvalidCursor(errors=[{"parameter": "cursor", "message": fault}]) from None
    return _Cursor(newer=newer, created_at=datetime.fromisoformat(created_at), id=job_id)
