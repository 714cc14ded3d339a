"""Pages by keyset: what is there during the whole walk is met exactly once."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from django.core import signing
from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from workflows.api.parameters import number, text
from workflows.api.permissions import client_id
from workflows.api.problems import InvalidCursor
from workflows.models import Job, Step

DEFAULT_LIMIT = 50
MAX_LIMIT = 200

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, kw_only=True)
class Order(Generic[Row]):
    """An order in which no two rows share a place. `beyond(place)` are the conditions (after it, before it)."""

    by: tuple[str, ...]
    place: Callable[[Row], list[Any]]
    beyond: Callable[[list[Any]], tuple[Q, Q]]

    def walk(self, rows: Any, cursor: "_Cursor | None") -> Any:
        """The rows on the cursor's side of its place, the nearest first."""
        if cursor is None:
            return rows.order_by(*self.by)
        after, before = self.beyond(cursor.place)
        if not cursor.back:
            return rows.filter(after).order_by(*self.by)
        return rows.filter(before).order_by(*(name[1:] if name.startswith("-") else f"-{name}" for name in self.by))


@dataclass(frozen=True, kw_only=True)
class _Cursor:
    """A place between two rows, and which way to go from it."""

    back: bool
    place: list[Any]


def by_time(column: str, *, newest_first: bool) -> Order[Any]:
    """By a moment, and by id among those of the same one."""

    def place(row: Model) -> list[Any]:
        return [getattr(row, column).isoformat(), str(row.pk)]

    def beyond(place: list[Any]) -> tuple[Q, Q]:
        # The last condition of each repeats the bound on the leading column, for the index.
        at, row_id = datetime.fromisoformat(place[0]), place[1]
        newer = (Q(**{f"{column}__gt": at}) | Q(id__gt=row_id)) & Q(**{f"{column}__gte": at})
        older = (Q(**{f"{column}__lt": at}) | Q(id__lt=row_id)) & Q(**{f"{column}__lte": at})
        return (older, newer) if newest_first else (newer, older)

    sign = "-" if newest_first else ""
    return Order(by=(f"{sign}{column}", f"{sign}id"), place=place, beyond=beyond)


NEWEST_FIRST: Order[Job] = by_time("created_at", newest_first=True)
OLDEST_FIRST: Order[Job] = by_time("created_at", newest_first=False)
BY_INDEX: Order[Step] = Order(
    by=("index",),
    place=lambda item: [item.index],
    beyond=lambda place: (Q(index__gt=place[0]), Q(index__lt=place[0])),
)


def page(
    request: Request,
    rows: "QuerySet[Row]",
    filters: Sequence[tuple[str, str]],
    represent: Callable[[list[Row]], list[dict[str, Any]]],
    order: Order[Row],
) -> Response:
    """One page of `rows`, which `filters` (as the query has them) have narrowed already.

    A cursor is good for one client, one list and one set of filters; any other is refused with InvalidCursor.
    """
    limit = number(request, "limit", DEFAULT_LIMIT, least=1, most=MAX_LIMIT)
    signer = _signer(request, filters)
    cursor = _read(text(request, "cursor"), signer)
    found = list(order.walk(rows, cursor)[: limit + 1])
    more, found = len(found) > limit, found[:limit]
    if cursor and cursor.back:
        found.reverse()
    has_previous = more if cursor and cursor.back else cursor is not None
    has_next = more if not (cursor and cursor.back) else True

    def link(row: Row, *, back: bool) -> str:
        here = signer.sign_object([back, *order.place(row)])
        return f"{request.path}?{urlencode([*filters, ('limit', limit), ('cursor', here)])}"

    return linked(
        represent(found),
        next=link(found[-1], back=False) if found and has_next else None,
        prev=link(found[0], back=True) if found and has_previous else None,
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


def _read(written: str | None, signer: signing.Signer) -> _Cursor | None:
    if written is None:
        return None
    try:
        back, *place = signer.unsign_object(written)
    except (signing.BadSignature, ValueError):
        fault = "was not given out for this list with these filters, or not to this client."
        raise InvalidCursor(errors=[{"parameter": "cursor", "message": fault}]) from None
    return _Cursor(back=back, place=place)
