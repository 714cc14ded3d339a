"""The pages: is it healthy, the jobs, one job, and the part of its page that follows the job."""

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django_htmx.http import HTMX_STOP_POLLING

from supervisor.console import pulse, timeline
from supervisor.console.access import is_operator, reader
from supervisor.console.filters import NEEDS_PERSON, WORDS, Filters, jobs_in
from supervisor.console.pages import page, with_steps
from workflows import explanations
from workflows.clock import now
from workflows.models import Job, Step
from workflows.plans import registry

NEWEST = 12
IN_NEED = 10


@reader
def overview(request: HttpRequest) -> HttpResponse:
    """Is it healthy, who is needed, what happened last."""
    present = now()
    context = {
        "now": present,
        "pulse": pulse.take(present),
        "words": WORDS,
        "in_need": _in_need(),
        "jobs": with_steps(Job.objects.newest_first())[:NEWEST],
    }
    return render(request, "console/overview.html", context)


def _in_need() -> list[tuple[Job, list[str]]]:
    """The newest jobs that need a person, each with why."""
    needy = list(jobs_in(NEEDS_PERSON).newest_first()[:IN_NEED])
    steps: dict[uuid.UUID, list[Step]] = {job.pk: [] for job in needy}
    for step in Step.objects.filter(job__in=needy).for_timeline():
        steps[step.job_id].append(step)
    return [(job, explanations.needs_person(job, steps[job.pk])) for job in needy]


@reader
def jobs(request: HttpRequest) -> HttpResponse:
    """The list. Filters and place are in the URL."""
    filters = Filters.read(request.GET)
    found = page(filters.apply(Job.objects.all()), request.GET)
    ids = [job.pk for job in found.jobs]
    context = {
        "now": now(),
        "filters": filters,
        "page": found,
        "jobs": found.jobs,
        "needy": set(Job.objects.filter(pk__in=ids).needs_person().values_list("pk", flat=True)),
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
    context = job_context(request, job_id)
    status = 200 if context["view"].moves else HTMX_STOP_POLLING
    return render(request, "console/_job_live.html", context, status=status)


def job_context(request: HttpRequest, job_id: uuid.UUID) -> dict[str, Any]:
    """What the job page's templates need. `list_query`: the filters of the list that the reader came from."""
    view = timeline.view_of(job_id)
    return {
        "view": view,
        "job": view.job,
        "now": view.now,
        "may_act": is_operator(request.user),
        "list_query": Filters.parse(request.GET.get("list", "")).query,
    }
