"""What needs a person: the jobs, and the causes that they are grouped under, with what people do about those."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from supervisor import needs
from supervisor.api.bodies import Assignment, NoteText, Snooze
from supervisor.api.documents import (
    AttentionDocument,
    AttentionPage,
    CauseDocument,
    CausePage,
    CauseWithNotes,
    IncidentDocument,
    NoteDocument,
)
from supervisor.models import Case, Incident, Need
from workflows import explanations
from workflows.api import schema
from workflows.api.bodies import Verb
from workflows.api.idempotency import idempotent
from workflows.api.pagination import OLDEST_FIRST, Order, by_time, page
from workflows.api.parameters import number, text
from workflows.api.parsing import body_of
from workflows.api.permissions import actor, visible_jobs
from workflows.api.views.base import OPERATE, ApiView, steps_of
from workflows.exceptions import NotFound
from workflows.models import Job

_LARGEST_ID = 2**63 - 1
_CAUSE = OpenApiParameter("cause", int, OpenApiParameter.QUERY, description="Only the jobs of the cause with this id.")


_OLDEST_CAUSES: Order[Need] = by_time("since", newest_first=False)


class Attention(ApiView):
    scopes = {"GET": OPERATE}

    @extend_schema(operation_id="list_attention", parameters=[_CAUSE, *schema.PAGING], responses={200: AttentionPage})
    def get(self, request: Request) -> Response:
        """The jobs that need a person, the oldest first, each with what stands there and what may be done."""
        jobs, filters = needs.jobs(visible_jobs(request)), list[tuple[str, str]]()
        if asked := text(request, "cause"):
            cause = number(request, "cause", 0, least=1, most=_LARGEST_ID)
            jobs = jobs.filter(pk__in=Case.objects.filter(need_id=cause).values("job_id"))
            filters.append(("cause", asked))
        return page(request, jobs, filters, _written, OLDEST_FIRST)


def _written(jobs: list[Job]) -> list[dict[str, Any]]:
    steps, cases = steps_of(jobs), needs.cases_of(job.pk for job in jobs)
    known = explanations.around(jobs, [step for rows in steps.values() for step in rows], receipts=False)
    return [AttentionDocument.of(job, steps[job.pk], known, cases.get(job.pk, [])).on_the_wire() for job in jobs]


class CauseList(ApiView):
    scopes = {"GET": OPERATE}

    @extend_schema(operation_id="list_causes", parameters=schema.PAGING, responses={200: CausePage})
    def get(self, request: Request) -> Response:
        """The causes for which jobs need a person now, the oldest first, those that are put off among them."""

        def written(rows: list[Need]) -> list[dict[str, Any]]:
            runbooks = needs.runbooks(rows)
            return [CauseDocument.of(row, runbooks).on_the_wire() for row in rows]

        return page(request, Need.objects.open(), [], written, _OLDEST_CAUSES)


class CauseDetail(ApiView):
    scopes = {"GET": OPERATE}

    @extend_schema(operation_id="get_cause", responses={200: CauseWithNotes})
    def get(self, request: Request, cause_id: int) -> Response:
        """One cause, open or closed, with what people did about it."""
        return _answer(cause_id)


class CauseAcknowledgement(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="acknowledge_cause", parameters=[schema.KEY], request=Verb, responses={200: CauseWithNotes}
    )
    @idempotent()
    def post(self, request: Request, cause_id: int) -> Response:
        """You have it in hand: it is not told again. 409 when it is over, or somebody did so before."""
        body = body_of(request, Verb)
        needs.acknowledge(_need(cause_id), actor=actor(request), reason=body.reason)
        return _answer(cause_id)


class CauseAssignment(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="assign_cause", parameters=[schema.KEY], request=Assignment, responses={200: CauseWithNotes}
    )
    @idempotent()
    def post(self, request: Request, cause_id: int) -> Response:
        """Say whose it is; an empty name is nobody's. 409 when it is over."""
        body = body_of(request, Assignment)
        needs.assign(cause_id, body.assignee, actor=actor(request), reason=body.reason)
        return _answer(cause_id)


class CauseSnooze(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="snooze_cause", parameters=[schema.KEY], request=Snooze, responses={200: CauseWithNotes}
    )
    @idempotent()
    def post(self, request: Request, cause_id: int) -> Response:
        """Keep it from the top of the list and from being told until then, 90 days at most; null: no longer."""
        body = body_of(request, Snooze)
        needs.snooze(cause_id, body.until, actor=actor(request), reason=body.reason)
        return _answer(cause_id)


class CauseNotes(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(operation_id="add_note", parameters=[schema.KEY], request=NoteText, responses={201: NoteDocument})
    @idempotent()
    def post(self, request: Request, cause_id: int) -> Response:
        """Write down what the next one who looks should know."""
        note = needs.add_note(cause_id, body_of(request, NoteText).text, actor=actor(request))
        return Response(NoteDocument.of(note).on_the_wire(), status=201)


class IncidentAcknowledgement(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="acknowledge_incident", parameters=[schema.KEY], request=Verb, responses={200: IncidentDocument}
    )
    @idempotent()
    def post(self, request: Request, incident_id: int) -> Response:
        """You have the outage in hand: it is not told again. 409 when it is over, or somebody did so before."""
        body_of(request, Verb)
        incident = Incident.objects.filter(pk=incident_id).first()
        if incident is None:
            raise NotFound(f"There is no incident {incident_id}.")
        needs.acknowledge(incident, actor=actor(request))
        incident.refresh_from_db()
        return Response(IncidentDocument.of(incident).on_the_wire())


def _need(cause_id: int) -> Need:
    need = Need.objects.filter(pk=cause_id).first()
    if need is None:
        raise NotFound(f"There is no cause {cause_id}.")
    return need


def _answer(cause_id: int) -> Response:
    need = _need(cause_id)
    return Response(CauseWithNotes.of(need, needs.runbooks([need])).on_the_wire())
