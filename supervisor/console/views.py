"""The pages: is it healthy, the jobs, one job with the part that follows it, its items, its undo."""

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django_htmx.http import HTMX_STOP_POLLING

from supervisor import needs as needing
from supervisor.console import incidents, items, needs, pulse, timeline
from supervisor.console.access import is_operator, reader
from supervisor.console.cards import StepView
from supervisor.console.filters import WORDS, Filters
from supervisor.console.pages import page, with_steps
from supervisor.models import Need
from workflows import signals
from workflows.allowed import job_verbs
from workflows.clock import now
from workflows.exceptions import NotFound
from workflows.models import Job
from workflows.plans import registry
from workflows.undo import preview

NEWEST = 12
OUTAGES = 3
IN_NEED = 10
SHOWN_OF_AN_UNDO = 200


@reader
def overview(request: HttpRequest) -> HttpResponse:
    """Is it healthy, who is needed, what happened last."""
    present = now()
    outages = incidents.lately(present, OUTAGES)
    context = {
        "now": present,
        "pulse": pulse.take(present),
        "words": WORDS,
        "outages": outages,
        "away": [outage.incident.agent for outage in outages if outage.incident.closed_at is None],
        "in_need": needs.newest(IN_NEED),
        "jobs": with_steps(Job.objects.newest_first())[:NEWEST],
    }
    return render(request, "console/overview.html", context)


@reader
def jobs(request: HttpRequest) -> HttpResponse:
    """The list. Filters and place are in the URL."""
    filters = Filters.read(request.GET)
    found = page(filters.apply(Job.objects.all()), request.GET)
    ids = [job.pk for job in found.jobs]
    context = {
        "now": now(),
        "filters": filters,
        "cause": Need.objects.filter(pk=int(filters.cause)).first() if filters.cause else None,
        "page": found,
        "jobs": found.jobs,
        "needy": set(needing.jobs(Job.objects.filter(pk__in=ids)).values_list("pk", flat=True)),
        "chips": _chips(filters),
        "workflows": sorted({workflow.name for workflow in registry.all()} | {filters.workflow} - {""}),
    }
    return render(request, "console/jobs.html", context)


def _chips(filters: Filters) -> list[dict[str, Any]]:
    """The states as links that add or take away one each."""
    counts = pulse.state_counts()
    return [
        {
            "word": word,
            "text": text,
            "on": word in filters.states,
            "count": counts[word],
            "query": filters.toggled(word).query,
        }
        for word, text in WORDS.items()
    ]


@reader
def job(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """One job: the page."""
    return render(request, "console/job.html", job_context(request, job_id))


@reader
def live(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """The part of a job's page that follows it. 204 while nothing is new since `seen`; 286 once nothing more comes."""
    mark = timeline.mark_of(job_id)
    if mark.moves and request.GET.get("seen") == mark.text:
        return HttpResponse(status=204)
    context = job_context(request, job_id, mark)
    status = 200 if context["view"].moves else HTMX_STOP_POLLING
    return render(request, "console/_job_live.html", context, status=status)


def job_context(request: HttpRequest, job_id: uuid.UUID, mark: timeline.Mark | None = None) -> dict[str, Any]:
    """What the job page's templates need. `list_query`: the filters of the list that the reader came from."""
    view = timeline.view_of(job_id, mark)
    list_query = _list_query(request)
    cases = needing.cases_of([job_id]).get(job_id, [])
    return {
        "view": view,
        "job": view.job,
        "now": view.now,
        "reasons": needing.reasons(view.needs_person, cases),
        "causes": [case.need for case in cases],
        "list_query": list_query,
        "back": f"?{urlencode({'list': list_query})}" if list_query else "",
        **_rights(request, view.forward),
    }


@reader
def step_items(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    """The items of a fan-out. State and place are in the URL; to htmx the part of the page that follows the job."""
    template = "console/_items_live.html" if getattr(request, "htmx", False) else "console/items.html"
    return render(request, template, items_context(request, job_id, name))


def items_context(request: HttpRequest, job_id: uuid.UUID, name: str) -> dict[str, Any]:
    """What the templates of the items' page need. `back`: what its forms carry so that the same page answers them."""
    view = items.view_of(job_id, name, request.GET)
    list_query = _list_query(request)
    place = [view.query, urlencode({"list": list_query})] if list_query else [view.query]
    carried = [*place, urlencode({"items_of": view.fan.name})]
    return {
        "view": view,
        "job": view.job,
        "now": view.now,
        "list_query": list_query,
        "query": "&".join(filter(None, place)),
        "back": "?" + "&".join(filter(None, carried)),
        **_rights(request, view.cards),
    }


@reader
def undo(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """What an undo would do now: all of it, or `?down_to=` a step."""
    return render(request, "console/undo.html", undo_context(request, job_id, request.GET.get("down_to", "")))


def undo_context(request: HttpRequest, job_id: uuid.UUID, down_to: str) -> dict[str, Any]:
    """What the templates of the undo's page need, or Http404."""
    present = now()
    try:
        undoing = preview(job_id, down_to=down_to or None)
    except NotFound as error:
        raise Http404(error.message) from error
    job = Job.objects.get(pk=job_id)
    list_query = _list_query(request)
    return {
        "job": job,
        "now": present,
        "preview": undoing,
        "calls": undoing.steps[:SHOWN_OF_AN_UNDO],
        "more_calls": undoing.total - SHOWN_OF_AN_UNDO,
        "allowed": "compensation" in job_verbs(job) and undoing.pivot is None,
        "list_query": list_query,
        "back": f"?{urlencode({'list': list_query})}" if list_query else "",
        "may_act": is_operator(request.user),
    }


def _list_query(request: HttpRequest) -> str:
    return Filters.parse(request.GET.get("list", "")).query


def _rights(request: HttpRequest, cards: Sequence[StepView]) -> dict[str, Any]:
    """Whether the reader may push buttons, and which approvals are not the reader's to give."""
    named = [card for card in cards if card.takes_signal and card.planned.approvers]
    called = signals.names_of(request.user) if named else set()
    return {
        "may_act": is_operator(request.user),
        "not_theirs": {card.step.pk for card in named if not called & set(card.planned.approvers)},
    }
