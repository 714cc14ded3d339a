"""The buttons: one noun each, a POST with the version that the person saw.

A click that comes too late changes nothing; it is answered with what is now true and the fresh page.
"""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.urls import reverse

from supervisor.console.access import actor, operator
from supervisor.console.filters import Filters
from supervisor.console.views import job_context
from workflows import verbs
from workflows.exceptions import InvalidInput, NotFound, SagError, StaleVersion, WrongState

Verb = Callable[..., Any]

NOT_DONE = "Nothing was done."


@operator
def job_retries(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    return _act(request, job_id, partial(verbs.retry_job, job_id), "What failed is tried again.")


@operator
def job_cancellation(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    undo = request.POST.get("undo") != "no"
    said = "The job stops; what it did is undone." if undo else "The job stops; nothing is undone."
    return _act(request, job_id, partial(verbs.cancel, job_id, undo=undo), said)


@operator
def job_pause(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    return _act(request, job_id, partial(verbs.pause, job_id), "Paused: what runs may end, nothing more starts.")


@operator
def job_resumption(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    return _act(request, job_id, partial(verbs.resume, job_id), "Resumed.")


@operator
def step_retries(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    return _act(request, job_id, partial(verbs.retry_step, job_id, name), f"Step {name} is tried again.")


@operator
def step_cancellation(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    said = f"Step {name} was stopped. Whether its call still lands is in doubt."
    return _act(request, job_id, partial(verbs.cancel_step, job_id, name), said)


def _act(request: HttpRequest, job_id: uuid.UUID, verb: Verb, said: str) -> HttpResponse:
    """Ask for a verb in the person's name, and answer with the page as it is then."""
    seen = request.POST.get("seen", "")
    if not (seen.isascii() and seen.isdigit() and len(seen) < 10):
        return HttpResponseBadRequest("The field “seen”, the version that was looked at, is missing.")
    reason = request.POST.get("reason", "").replace("\0", "").strip()
    try:
        verb(actor=actor(request), reason=reason, seen=int(seen))
    except NotFound as error:
        raise Http404(error.message) from error
    except (StaleVersion, WrongState) as refusal:
        return _answer(request, job_id, messages.WARNING, f"{NOT_DONE} {refusal.message}", refusal)
    except InvalidInput as refusal:
        why = " ".join(error["message"] for error in refusal.errors) or refusal.message
        return _answer(request, job_id, messages.WARNING, f"{NOT_DONE} {why}", refusal)
    return _answer(request, job_id, messages.SUCCESS, said)


def _answer(
    request: HttpRequest, job_id: uuid.UUID, level: int, said: str, refusal: SagError | None = None
) -> HttpResponse:
    """To htmx the fresh part of the page, under the status of a refusal; to a plain form a way back to the page."""
    messages.add_message(request, level, said)
    if not getattr(request, "htmx", False):
        query = Filters.parse(request.GET.get("list", "")).query
        return redirect(reverse("job", args=[job_id]) + (f"?{urlencode({'list': query})}" if query else ""))
    context = job_context(request, job_id)
    return render(request, "console/_job_answer.html", context, status=refusal.http_status if refusal else 200)
