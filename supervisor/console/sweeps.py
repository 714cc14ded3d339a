"""The supervisor's own record: its last sweeps, what they found and did, and what they could not handle."""

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from supervisor import health
from supervisor.console.access import reader
from supervisor.leadership import Duty
from supervisor.models import Sweep, Term
from workflows.clock import now
from workflows.conf import conf

SIZE = 50
SHOWN = {"": "All", "busy": "That found something", "problems": "With problems"}
_DID_SOMETHING = Q(found__gt=0) | Q(expired__gt=0) | Q(remedied__gt=0) | Q(moved__gt=0) | Q(failed__gt=0)
# Of each duty: what it is called here.
_DUTIES = {
    Duty.SWEEP: "Sweeps",
    Duty.RINGS: "Rings for ready steps",
    Duty.TICKS: "Due times of schedules",
    Duty.NEEDS: "Who needs a person",
    Duty.TELL: "Word to people",
    Duty.PRUNE: "Forgetting what is old",
}


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
    present = now()
    supervisor = health.look(present)
    context = {
        "now": present,
        "swept_at": supervisor.swept_at,
        "silent": bool(supervisor.sweeps_missed),
        "terms": _terms(),
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


def _terms() -> list[tuple[str, Term]]:
    """[what the duty is called, whose turn it was last]"""
    found = Term.objects.in_bulk()
    return [(word, found[duty]) for duty, word in _DUTIES.items() if duty in found]
