"""Sweeps and incidents, to read; and a person's or a program's word that a service answers again."""

from typing import Any

from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from supervisor import cancellations, storms
from supervisor.api.documents import GroupCancellationBody, IncidentDocument, IncidentPage, SweepDocument, SweepPage
from supervisor.models import Incident, Sweep
from workflows import standing
from workflows.api import schema
from workflows.api.agents import AgentDocument
from workflows.api.bodies import Verb
from workflows.api.idempotency import idempotent
from workflows.api.pagination import Order, page
from workflows.api.parsing import body_of
from workflows.api.permissions import actor
from workflows.api.views.base import OPERATE, READ, ApiView
from workflows.exceptions import NotFound


def _by_id(row: Any) -> list[Any]:
    return [row.pk]


def _beyond(place: list[Any]) -> tuple[Q, Q]:
    return Q(id__lt=place[0]), Q(id__gt=place[0])


_NEWEST_SWEEPS: Order[Sweep] = Order(by=("-id",), place=_by_id, beyond=_beyond)
_NEWEST_INCIDENTS: Order[Incident] = Order(by=("-id",), place=_by_id, beyond=_beyond)


class SweepList(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_sweeps", parameters=schema.PAGING, responses={200: SweepPage})
    def get(self, request: Request) -> Response:
        """The sweeps of the last 24 hours, newest first."""

        def written(rows: list[Sweep]) -> list[dict[str, Any]]:
            return [SweepDocument.of(row).on_the_wire() for row in rows]

        return page(request, Sweep.objects.all(), [], written, _NEWEST_SWEEPS)


class IncidentList(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_incidents", parameters=schema.PAGING, responses={200: IncidentPage})
    def get(self, request: Request) -> Response:
        """Outages of services, newest first; those without `closed_at` go on."""

        def written(rows: list[Incident]) -> list[dict[str, Any]]:
            return [IncidentDocument.of(row).on_the_wire() for row in rows]

        newest = Incident.objects.prefetch_related("cancellations")
        return page(request, newest, [], written, _NEWEST_INCIDENTS)


class IncidentDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_incident", responses={200: IncidentDocument})
    def get(self, request: Request, incident_id: int) -> Response:
        """One outage: what is known of it, what waits, and what was decided on that."""
        return _incident_answer(incident_id)


class IncidentCancellation(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="cancel_incident",
        parameters=[schema.KEY],
        request=GroupCancellationBody,
        responses={202: IncidentDocument},
    )
    @idempotent()
    def post(self, request: Request, incident_id: int) -> Response:
        """Cancel all jobs that wait because of it, with undo or without, one after another. 409 when none waits."""
        body = body_of(request, GroupCancellationBody)
        cancellations.ask(incident_id, undo=body.undo, actor=actor(request), reason=body.reason, as_of=body.as_of)
        return _incident_answer(incident_id, status=202)


def _incident_answer(incident_id: int, *, status: int = 200) -> Response:
    incident = Incident.objects.filter(pk=incident_id).first()
    if incident is None:
        raise NotFound(f"There is no incident {incident_id}.")
    return Response(IncidentDocument.of(incident).on_the_wire(), status=status)


class AgentResumption(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(operation_id="resume_agent", parameters=[schema.KEY], request=Verb, responses={202: AgentDocument})
    @idempotent()
    def post(self, request: Request, name: str) -> Response:
        """Its service answers again: let its parked steps go, so many a second. 409 when its breaker is not open."""
        body = body_of(request, Verb)
        if standing.of_agent(name) is None:
            raise NotFound(f"No worker has announced an agent {name!r}.")
        storms.resume(name, actor=actor(request), reason=body.reason)
        found = standing.of_agent(name)
        assert found is not None  # agents are never deleted
        return Response(AgentDocument.of(found).on_the_wire(), status=202)
