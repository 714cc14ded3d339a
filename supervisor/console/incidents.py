"""Outages, as the overview and the agents' page tell of them; the page of one, and how all that waits for it is given up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.utils.dateparse import parse_datetime

from supervisor import cancellations, storms
from supervisor.cancellations import Progress
from supervisor.console.access import actor, is_operator, operator, reader
from supervisor.models import GroupCancellation, Incident
from workflows.clock import now
from workflows.conf import conf
from workflows.exceptions import InvalidInput, NotFound, WrongState
from workflows.models import Breaker, Step

SHOWN_WAITING = 20
_LATELY = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Outage:
    """`waiting`: {"steps", "jobs", "oldest"} of what is parked because of it; none once it is over."""

    incident: Incident
    waiting: dict[str, Any]


def lately(now: datetime, limit: int) -> list[Outage]:
    """All that go on, and after them the newest that ended in the last day, up to `limit`."""
    going_on = list(Incident.objects.filter(closed_at__isnull=True))
    room = max(limit - len(going_on), 0)
    over = Incident.objects.filter(closed_at__gt=now - _LATELY)[:room]
    found = [Outage(incident=incident, waiting=storms.waiting(incident.agent)) for incident in going_on]
    return found + [Outage(incident=incident, waiting={}) for incident in over]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What somebody decided on the jobs that waited, and how far it is."""

    asked: GroupCancellation
    progress: Progress


@reader
def incident(request: HttpRequest, incident_id: int) -> HttpResponse:
    """One outage: what is known of it, who waits, and what was decided on them."""
    present, found = now(), _incident(incident_id)
    goes_on = found.closed_at is None
    waiting: dict[str, Any] = storms.waiting(found.agent) if goes_on else {}
    parked = Step.objects.parked(found.agent).select_related("job")
    steps = list(parked[:SHOWN_WAITING]) if goes_on else []
    decisions = [Decision(asked=asked, progress=cancellations.progress(asked)) for asked in found.cancellations.all()]
    context = {
        "now": present,
        "incident": found,
        "breaker": Breaker.objects.filter(agent=found.agent, parks=True).first() if goes_on else None,
        "waiting": waiting,
        "steps": steps,
        "more": waiting.get("steps", 0) - len(steps),
        "number": cancellations.number_of_jobs(found.agent) if goes_on else 0,
        "decisions": decisions,
        "moves": goes_on or any(decision.progress.left for decision in decisions),
        "release_rate": conf.release_rate,
        "may_act": is_operator(request.user),
    }
    return render(request, "console/incident.html", context)


@reader
def incident_group(request: HttpRequest, incident_id: int) -> HttpResponse:
    """What it would mean to give up all that waits: how many jobs, with undo and without."""
    present, found = now(), _incident(incident_id)
    context = {
        "now": present,
        "incident": found,
        "waiting": storms.waiting(found.agent) if found.closed_at is None else {},
        "number": cancellations.number_of_jobs(found.agent) if found.closed_at is None else 0,
        "may_act": is_operator(request.user),
    }
    return render(request, "console/incident_group.html", context)


@operator
def incident_cancellation(request: HttpRequest, incident_id: int) -> HttpResponse:
    """All jobs that the person was shown as waiting are cancelled, one after another."""
    how, shown_at = request.POST.get("undo", ""), _moment(request.POST.get("as_of", ""))
    if how not in ("yes", "no") or shown_at is None:
        return HttpResponseBadRequest(
            "The fields “undo”, which is yes or no, and “as_of”, when it was shown, are needed."
        )
    reason = request.POST.get("reason", "").replace("\0", "").strip()
    try:
        asked = cancellations.ask(incident_id, undo=how == "yes", actor=actor(request), reason=reason, as_of=shown_at)
    except NotFound as error:
        raise Http404(error.message) from error
    except (WrongState, InvalidInput) as refusal:
        messages.warning(request, f"Nothing was done. {refusal.message}")
        return redirect("incident-group", incident_id)
    number = cancellations.progress(asked).jobs
    end = "what they did is undone" if asked.undo else "nothing is undone"
    messages.success(request, f"{number} job{'' if number == 1 else 's'} will be stopped, one after another; {end}.")
    return redirect("incident", incident_id)


def _incident(incident_id: int) -> Incident:
    found = Incident.objects.filter(pk=incident_id).first()
    if found is None:
        raise Http404(f"There is no incident {incident_id}.")
    return found


def _moment(text: str) -> datetime | None:
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None
