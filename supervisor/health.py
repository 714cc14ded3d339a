"""Whether this installation can be relied on now. Asked by load balancers and alarms, without a token."""

from datetime import datetime, timedelta

from django.db import Error
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from supervisor.models import Sweep
from workflows.clock import now
from workflows.conf import conf

SWEEPS_MISSED = 3
WAITS_TOO_LONG = timedelta(seconds=30)  # a ready step that no worker takes


def swept_at() -> datetime | None:
    """When the supervisor last looked."""
    return Sweep.objects.order_by("-finished_at").values_list("finished_at", flat=True).first()


def is_silent(last: datetime | None, present: datetime) -> bool:
    """Whether a sweep that ended then is too long ago."""
    return last is None or present - last > timedelta(seconds=SWEEPS_MISSED * conf.sweep)


@require_safe
@never_cache
def live(request: HttpRequest) -> JsonResponse:
    """200 while the process runs."""
    return JsonResponse({"status": "live"})


@require_safe
@never_cache
def ready(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the reasons: the database is away, or no sweep ran for three intervals."""
    reasons = _reasons()
    return JsonResponse(
        {"status": "unready" if reasons else "ready", "reasons": reasons}, status=503 if reasons else 200
    )


def _reasons() -> list[str]:
    try:
        last, present = swept_at(), now()
    except Error:
        return ["The database does not answer."]
    if last is None:
        return ["No sweep of the supervisor has run yet."]
    if is_silent(last, present):
        return [f"The last sweep of the supervisor ended {(present - last).total_seconds():.0f} s ago."]
    return []
