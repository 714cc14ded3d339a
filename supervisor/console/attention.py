"""What needs a person: the causes, those first for which jobs stand there longest, and what people do about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib import messages
from django.db.models import Exists, OuterRef, Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.urls import reverse

from supervisor import health, needs
from supervisor.advice import recommended
from supervisor.console.access import actor, is_operator, operator, reader
from supervisor.console.actions import NOT_DONE
from supervisor.console.filters import NEEDS_PERSON, jobs_in
from supervisor.console.needs import InNeed, told
from supervisor.models import Case, Incident, Need, Note
from workflows.clock import now
from workflows.exceptions import NotFound, WrongState
from workflows.models import Job
from workflows.querysets import JobQuerySet

ON_A_PAGE = 20
JOBS_OF_A_CAUSE = 5
NOT_GROUPED = 20
PUT_OFF = 20
NOTES = 5
REFUSALS_TOLD = 5

# Of each kind: the shape that stands for it, and its words.
KINDS: dict[str, tuple[str, str]] = {
    Need.Kind.EXHAUSTED: ("failed", "Given up"),
    Need.Kind.FAILED_UNDO: ("failing", "Undo failed"),
    Need.Kind.VERDICT: ("doubt", "Verdict wanted"),
    Need.Kind.LATE_RESULT: ("doubt", "Late answer"),
    Need.Kind.STALLED_GATE: ("waiting", "Waits too long"),
    Need.Kind.NO_WORKER: ("person", "No worker"),
    Need.Kind.UNDONE_IN_PART: ("undone", "Undone in part"),
}
SNOOZES = {"1": "for an hour", "4": "for four hours", "24": "for a day", "168": "for a week", "": "no longer"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """One cause as its card shows it, with the first of its jobs and the last of its notes."""

    need: Need
    shape: str
    word: str
    advice: str
    runbook: str
    jobs: Sequence[InNeed]
    notes: Sequence[Note]
    more_notes: int
    retried: bool

    @property
    def counted(self) -> str:
        """How many jobs; where not all are counted, so many at least."""
        capped = self.need.kind == Need.Kind.NO_WORKER and self.need.jobs >= needs.MOST_WITHOUT_WORKER
        return f"{self.need.jobs:,}{'+' if capped else ''}"


@reader
def attention(request: HttpRequest) -> HttpResponse:
    """The causes with their jobs; below them those that somebody has put off."""
    present = now()
    place = _place(request.GET.get("after", ""))
    awake = Need.objects.open().awake(present).order_by("since", "pk")
    found = list((awake.filter(_behind(*place)) if place else awake)[: ON_A_PAGE + 1])
    shown = found[:ON_A_PAGE]
    put_off = [] if place else list(Need.objects.open().filter(snoozed_until__gt=present).order_by("since")[:PUT_OFF])
    cards = _cards([*shown, *put_off])
    not_grouped = [] if place else list(_not_grouped().newest_first()[: NOT_GROUPED + 1])
    context = {
        "now": present,
        "cards": cards[: len(shown)],
        "put_off": cards[len(shown) :],
        "not_grouped": told(not_grouped[:NOT_GROUPED]),
        "more_not_grouped": len(not_grouped) > NOT_GROUPED,
        "later": f"{shown[-1].since.isoformat()}~{shown[-1].pk}" if len(found) > len(shown) else "",
        "first_page": place is None,
        "swept_at": health.swept_at(),
        "snoozes": SNOOZES,
        "at_once": needs.RETRIED_AT_ONCE,
        "may_act": is_operator(request.user),
        "me": request.user.get_username(),
    }
    return render(request, "console/attention.html", context)


def _not_grouped() -> JobQuerySet:
    """Jobs that came to need a person since the supervisor last looked."""
    return jobs_in(NEEDS_PERSON).filter(~Exists(Case.objects.filter(job_id=OuterRef("pk"))))


def _place(text: str) -> tuple[datetime, int] | None:
    since, _, row_id = text.partition("~")
    try:
        moment = datetime.fromisoformat(since)
        return (moment, int(row_id)) if moment.tzinfo is not None and len(row_id) < 19 else None
    except ValueError:
        return None


def _behind(since: datetime, row_id: int) -> Q:
    return Q(since__gt=since) | Q(since=since, pk__gt=row_id)


def _cards(found: Sequence[Need]) -> list[Card]:
    runbooks, notes = needs.runbooks(found), needs.notes_of(found)
    first = needs.first_jobs(found, JOBS_OF_A_CAUSE)
    by_id = Job.objects.defer("input").in_bulk({job for jobs in first.values() for job in jobs})
    in_need = {of_job.job.pk: of_job for of_job in told(list(by_id.values())) if of_job.reasons}
    cards = []
    for need in found:
        shape, word = KINDS[need.kind]
        of_need = notes.get(need.pk, [])
        cards.append(
            Card(
                need=need,
                shape=shape,
                word=word,
                advice=recommended(need.kind, code=need.code, error_kind=need.error_kind, frame=need.frame),
                runbook=runbooks.get(need.pk, ""),
                jobs=[in_need[job] for job in first.get(need.pk, []) if job in in_need],
                notes=of_need[-NOTES:],
                more_notes=max(len(of_need) - NOTES, 0),
                retried=need.kind in needs.RETRIED,
            )
        )
    return cards


# --- the buttons -----------------------------------------------------------------------------------------------------


@operator
def cause_acknowledgement(request: HttpRequest, cause_id: int) -> HttpResponse:
    """The person has it in hand."""

    def acknowledge() -> str:
        needs.acknowledge(_need(cause_id), actor=actor(request), reason=_text(request, "reason"))
        return "You have it in hand: it is not told again."

    return _act(request, cause_id, acknowledge)


@operator
def cause_assignment(request: HttpRequest, cause_id: int) -> HttpResponse:
    """Whose it is."""
    assignee = _text(request, "assignee")[:150]

    def assign() -> str:
        needs.assign(cause_id, assignee, actor=actor(request))
        return f"It is {assignee}'s now." if assignee else "It is nobody's now."

    return _act(request, cause_id, assign)


@operator
def cause_snooze(request: HttpRequest, cause_id: int) -> HttpResponse:
    """Put it off for so many hours."""
    hours = request.POST.get("hours", "")
    if hours not in SNOOZES:
        return HttpResponseBadRequest("The field “hours” is one of those offered.")

    def snooze() -> str:
        until = now() + timedelta(hours=int(hours)) if hours else None
        needs.snooze(cause_id, until, actor=actor(request), reason=_text(request, "reason"))
        return (
            "Put off: until then it stands below the others and is not told." if until else "It is put off no longer."
        )

    return _act(request, cause_id, snooze)


@operator
def cause_notes(request: HttpRequest, cause_id: int) -> HttpResponse:
    """What the next one who looks should know."""
    text = _text(request, "text")
    if not text:
        return HttpResponseBadRequest("The field “text” is empty.")

    def note() -> str:
        needs.add_note(cause_id, text, actor=actor(request))
        return "Noted."

    return _act(request, cause_id, note)


@operator
def cause_retries(request: HttpRequest, cause_id: int) -> HttpResponse:
    """Try its jobs again, so many at a time."""

    def retry() -> str:
        done = needs.retry_all(cause_id, actor=actor(request), reason=_text(request, "reason"))
        refused = [tried for tried in done if tried.refusal]
        for tried in refused[:REFUSALS_TOLD]:
            messages.warning(request, f"…{str(tried.job_id)[-12:]} {tried.step}: {tried.refusal}")
        again = f"{len(done) - len(refused):,} of its jobs are tried again"
        return f"{again}, {len(refused):,} were refused." if refused else f"{again}."

    return _act(request, cause_id, retry)


@operator
def incident_acknowledgement(request: HttpRequest, incident_id: int) -> HttpResponse:
    """The person has the outage in hand."""

    def acknowledge() -> str:
        incident = Incident.objects.filter(pk=incident_id).first()
        if incident is None:
            raise NotFound(f"There is no incident {incident_id}.")
        needs.acknowledge(incident, actor=actor(request))
        return f"You have the outage of {incident.agent} in hand: it is not told again."

    return _answered(request, acknowledge, reverse("incident", args=[incident_id]))


def _need(cause_id: int) -> Need:
    need = Need.objects.filter(pk=cause_id).first()
    if need is None:
        raise NotFound(f"There is no cause {cause_id}.")
    return need


def _act(request: HttpRequest, cause_id: int, verb: Callable[[], str]) -> HttpResponse:
    return _answered(request, verb, "attention", f"#need-{cause_id}")


def _answered(request: HttpRequest, verb: Callable[[], str], page: str, place: str = "") -> HttpResponse:
    try:
        messages.success(request, verb())
    except NotFound as error:
        raise Http404(error.message) from error
    except WrongState as refusal:
        messages.warning(request, f"{NOT_DONE} {refusal.message}")
    answer = redirect(page)
    answer["Location"] += place
    return answer


def _text(request: HttpRequest, name: str) -> str:
    return request.POST.get(name, "").replace("\0", "").strip()[:5000]
