"""Whether this installation can be relied on now. Asked by load balancers and alarms, without a token."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import Error
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from supervisor.leadership import Duty
from supervisor.models import Sweep, Term
from workflows.clock import now
from workflows.conf import conf

SWEEPS_MISSED = 3
TICKS_LATE = timedelta(seconds=30)
WAITS_TOO_LONG = timedelta(seconds=30)  # a ready step that no worker takes
OBSERVES = (
    "The supervisor only observes: nothing that failed or got stuck moves until the setting observe_only is taken back."
)


def swept_at() -> datetime | None:
    """When the supervisor last looked."""
    return Sweep.objects.order_by("-finished_at").values_list("finished_at", flat=True).first()


@require_safe
@never_cache
def live(request: HttpRequest) -> JsonResponse:
    """200 while the process runs."""
    return JsonResponse({"status": "live"})


@require_safe
@never_cache
def ready(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the reasons: the database is away, or no sweep or no look at the schedules ran for long."""
    notes: list[str] = []
    try:
        found = look(now())
        reasons = [reason for reason in (found.sweeps_missed, found.ticks_missed) if reason]
        notes = [OBSERVES] if found.observes else []
    except Error:
        reasons = ["The database does not answer."]
    answer = {"status": "unready" if reasons else "ready", "reasons": reasons, "notes": notes}
    return JsonResponse(answer, status=503 if reasons else 200)


@dataclass(frozen=True, kw_only=True)
class Health:
    """How the supervisor itself is. `sweeps_missed`: why what gets stuck is not found now. `ticks_missed`: why no due time
    of a schedule is opened. `observes`: by its last sweep it changes nothing.
    """

    swept_at: datetime | None
    sweeps_missed: str
    ticks_missed: str
    observes: bool


def look(present: datetime) -> Health:
    last = Sweep.objects.order_by("-finished_at").only("finished_at", "observed").first() or Sweep()
    terms = Term.objects.in_bulk([Duty.SWEEP, Duty.TICKS])
    return Health(
        swept_at=last.finished_at,
        sweeps_missed=_sweeps_missed(last.finished_at, terms.get(Duty.SWEEP), present),
        ticks_missed=_ticks_missed(terms.get(Duty.TICKS), present),
        observes=last.observed,
    )


def _sweeps_missed(last: datetime | None, term: Term | None, present: datetime) -> str:
    """One that is under way is not missed, however much it finds to do."""
    if last is None:
        return "No sweep of the supervisor has run yet."
    under_way = term is not None and term.begun_at > last and term.until > present
    if under_way or present - last <= timedelta(seconds=SWEEPS_MISSED * conf.sweep):
        return ""
    return f"The last sweep of the supervisor ended {_seconds(present - last)} ago."


def _ticks_missed(term: Term | None, present: datetime) -> str:
    """Told by the looks at schedules, not by their ticks: a day may have no due time at all."""
    if term is None or term.done_at is None:
        return "Nobody has looked for due times of schedules yet."
    if present - term.done_at <= TICKS_LATE:
        return ""
    return f"The last look for due times of schedules ended {_seconds(present - term.done_at)} ago."


def observes() -> bool:
    """Whether the supervisor, by its last sweep, changes nothing."""
    return bool(Sweep.objects.order_by("-finished_at").values_list("observed", flat=True).first())


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"
