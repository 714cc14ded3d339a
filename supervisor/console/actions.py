"""The buttons: one noun each, a POST with the version that the person saw.

A click that comes too late changes nothing; it is answered with what is now true and the fresh page.
"""

import json
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.urls import reverse
from django_htmx.http import HttpResponseClientRedirect

from supervisor.console.access import actor, operator
from supervisor.console.views import items_context, job_context, undo_context
from workflows import signals, verbs
from workflows.exceptions import (
    DigestMismatch,
    InvalidInput,
    NotAllowed,
    NotFound,
    SagError,
    StaleVersion,
    WrongState,
)
from workflows.models import Job, Signal
from workflows.plans.json_values import plain
from workflows.undo import compensate

Verb = Callable[..., Any]

NOT_DONE = "Nothing was done."
_CARRIED = ("list", "state", "generation", "after", "before")


# --- a job -----------------------------------------------------------------------------------------------------------


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
def job_compensation(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """Undo what the person was shown. Here the preview's digest is the version seen: it changes with all that matters."""
    digest, down_to = request.POST.get("digest", ""), request.POST.get("down_to", "")
    if not digest:
        return HttpResponseBadRequest("The field “digest”, which stands for what was shown, is missing.")
    try:
        compensate(
            job_id, digest=digest, down_to=down_to or None, actor=actor(request), reason=_text(request, "reason")
        )
    except NotFound as error:
        raise Http404(error.message) from error
    except (DigestMismatch, WrongState) as refusal:
        messages.warning(request, f"{NOT_DONE} {refusal.message}")
        template = "console/_undo_answer.html" if getattr(request, "htmx", False) else "console/undo.html"
        return render(request, template, undo_context(request, job_id, down_to), status=refusal.http_status)
    messages.success(request, f"The undo down to {down_to} begins." if down_to else "The undo begins.")
    page = reverse("job", args=[job_id]) + _query(request)
    return HttpResponseClientRedirect(page) if getattr(request, "htmx", False) else redirect(page)


@operator
def job_signal(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    """Send what a step waits for; of an approval, the person's decision."""
    decision = request.POST.get("decision", "")

    def send(*, actor: str, reason: str, seen: int) -> None:
        payload = _json(request, "payload", {})
        if decision:
            payload = {"approved": decision == "approve", "reason": reason}
        _check_step_seen(job_id, name, seen)
        signal = signals.send(job_id, name, payload, actor=actor, names=signals.names_of(request.user))
        if signal.outcome == Signal.Outcome.LOST:
            raise WrongState(f"An earlier word for {name} came first; this one is only kept in the history.")

    said = {"approve": f"Approved: {name}.", "refuse": f"Refused: {name}."}.get(decision, f"Sent: {name}.")
    return _act(request, job_id, send, said)


def _check_step_seen(job_id: uuid.UUID, name: str, seen: int) -> None:
    """A signal takes no version, the first one wins; but an old page must not answer for a wait that it never showed."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    step = verbs.step_at(job, name)
    if step.version != seen:
        raise StaleVersion(f"{name} has moved on: you saw version {seen}, it is at {step.version}, {step.state}.")


# --- a step ----------------------------------------------------------------------------------------------------------


@operator
def step_retries(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    new_key = request.POST.get("new_key") == "yes"
    said = f"Step {name} is tried again{', under a new key' if new_key else ''}."
    return _act(request, job_id, partial(verbs.retry_step, job_id, name, new_key=new_key), said)


@operator
def step_cancellation(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    said = f"Step {name} was stopped."
    return _act(request, job_id, partial(verbs.cancel_step, job_id, name), said)


@operator
def step_skip(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    return _act(request, job_id, partial(verbs.skip, job_id, name), f"Step {name} is skipped.")


@operator
def step_result(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    """A result by hand; or, with `attempt`, what that one said too late."""
    late = request.POST.get("attempt", "")
    if late and not _is_number(late):
        return HttpResponseBadRequest("The field “attempt” is the number of one.")

    def give(**asked: Any) -> None:
        if late:
            verbs.give_result(job_id, name, attempt=int(late), **asked)
        else:
            verbs.give_result(job_id, name, result=_json(request, "result"), **asked)

    said = f"The late word of attempt {late} was taken up." if late else f"Step {name} has its result, by hand."
    return _act(request, job_id, give, said)


@operator
def step_verdict(request: HttpRequest, job_id: uuid.UUID, name: str) -> HttpResponse:
    word = request.POST.get("verdict", "")
    if word not in ("done", "not_done"):
        return HttpResponseBadRequest("The field “verdict” is done or not_done.")

    def decide(**asked: Any) -> None:
        verbs.verdict(job_id, name, done=word == "done", result=_json(request, "result"), **asked)

    said = f"Verdict on {name}: it was {'' if word == 'done' else 'not '}done."
    return _act(request, job_id, decide, said)


# --- how each is asked and answered ----------------------------------------------------------------------------------


def _act(request: HttpRequest, job_id: uuid.UUID, verb: Verb, said: str) -> HttpResponse:
    """Ask for a verb in the person's name, and answer with the page as it is then."""
    seen = request.POST.get("seen", "")
    if not _is_number(seen):
        return HttpResponseBadRequest("The field “seen”, the version that was looked at, is missing.")
    try:
        verb(actor=actor(request), reason=_text(request, "reason"), seen=int(seen))
    except NotFound as error:
        raise Http404(error.message) from error
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
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
    fan = request.GET.get("items_of", "")
    if not getattr(request, "htmx", False):
        page = reverse("step-items", args=[job_id, fan]) if fan else reverse("job", args=[job_id])
        return redirect(page + _query(request))
    status = refusal.http_status if refusal else 200
    if fan:
        return render(request, "console/_items_answer.html", items_context(request, job_id, fan), status=status)
    return render(request, "console/_job_answer.html", job_context(request, job_id), status=status)


def _query(request: HttpRequest) -> str:
    """What the page that the person acted on had in its address."""
    pairs = [(name, request.GET[name]) for name in _CARRIED if request.GET.get(name)]
    return f"?{urlencode(pairs)}" if pairs else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _text(request: HttpRequest, name: str) -> str:
    return request.POST.get(name, "").replace("\0", "").strip()


def _json(request: HttpRequest, name: str, default: Any = None) -> Any:
    """A field that holds JSON, as it can be stored; `default` where it is empty."""
    text = request.POST.get(name, "").strip()
    if not text:
        return default
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _refuse(name, f"The {name} is no JSON: {error}. Text needs quotes.")
    faults: list[dict[str, str]] = []
    value = plain(value, faults)
    if faults:
        _refuse(name, f"The {name} {faults[0]['pointer']} {faults[0]['message']}.")
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


def _refuse(name: str, fault: str) -> NoReturn:
    raise InvalidInput(fault, errors=[{"pointer": f"/{name}", "message": fault}])
