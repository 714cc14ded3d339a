"""The supervisor's own record: its last sweeps, what they found and did, and what they could not handle."""

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from supervisor import health
from supervisor.console.access import reader
from supervisor.models import Sweep
from workflows.clock import now
from workflows.conf import conf

SIZE = 50
SHOWN = {"": "All", "busy": "That did something", "problems": "With problems"}
_DID_SOMETHING = Q(expired__gt=0) | Q(remedied__gt=0) | Q(moved__gt=0) | Q(failed__gt=0)


@reader
def sweeps(request: HttpRequest) -> HttpResponse:
    """The newest first; which ones, and from where on, is in the URL."""
    shown = request.GET.get("show", "")
    shown = shown if shown in SHOWN else ""
    rows = _those(shown)
    after = request.GET.get("after", "")
    if after.isascii() and after.isdigit() and len(after) < 19:
        rows = rows.filter(pk__lt=int(after))
    found = list(rows[: SIZE + 1])
    present, swept_at = now(), health.swept_at()
    context = {
        "now": present,
        "swept_at": swept_at,
        "silent": health.is_silent(swept_at, present),
        "interval": conf.sweep,
        "sweeps": found[:SIZE],
        "older": found[SIZE - 1].pk if len(found) > SIZE else None,
        "shown": shown,
        "choices": SHOWN,
    }
    return render(request, "console/sweeps.html", context)


def _those(shown: str) -> QuerySet[Sweep]:
    rows = Sweep.objects.order_by("-pk")
    match shown:
        case "busy":
            return rows.filter(_DID_SOMETHING)
        case "problems":
            return rows.filter(failed__gt=0)
    return rows
