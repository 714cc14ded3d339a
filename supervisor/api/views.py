"""Sweeps and incidents, to read; and a person's or a program's word that a service answers again."""

from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from supervisor import cancellations, storms
from supervisor.api.documents import (
    DrainDocument,
    GroupCancellationBody,
    IncidentDocument,
    IncidentPage,
    SweepDocument,
    SweepPage,
    WorkerDocument,
    WorkerPage,
)
from supervisor.models import Incident, Sweep
from workflows import standing, transitions
from workflows.api import schema
from workflows.api.agents import AgentDocument
from workflows.api.bodies import Verb
from workflows.api.idempotency import idempotent
from workflows.api.pagination import Order, linked, page
from workflows.api.parsing import body_of
from workflows.api.permissions import actor
from workflows.api.views.base import OPERATE, READ, ApiView
from workflows.exceptions import NotFound
from workflows.models import Worker


def _by_id(row: Any) -> list[Any]:
    return [row.pk]


def _beyond(place: list[Any]) -> tuple[Q, Q]:
    return Q(id__lt=place[0]), Q(id__gt=place[0])


_MOST_WORKERS = 1000
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


class WorkerList(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_workers", responses={200: WorkerPage})
    def get(self, request: Request) -> Response:
        """The workers that were seen in the last day, those that stopped among them; the last seen first."""
        found = Worker.objects.order_by("-seen_at", "name")[:_MOST_WORKERS]
        return linked([WorkerDocument.of(worker).on_the_wire() for worker in found], next=None, prev=None)


class WorkerDraining(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(operation_id="drain_worker", parameters=[schema.KEY], request=Verb, responses={202: DrainDocument})
    @idempotent()
    def post(self, request: Request, name: str) -> Response:
        """Have one worker end what it does, and end; whoever keeps it starts another."""
        if not Worker.objects.filter(pk=name).exists():
            raise NotFound(f"There is no worker {name!r}.")
        return _drain(request, Worker.objects.filter(pk=name))


class QueueDraining(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(operation_id="drain_queue", parameters=[schema.KEY], request=Verb, responses={202: DrainDocument})
    @idempotent()
    def post(self, request: Request, queue: str) -> Response:
        """The same for every worker that there is of a queue."""
        workers = Worker.objects.filter(queues__contains=[queue])
        if not workers.exists():
            raise NotFound(f"There is no worker of a queue {queue!r}.")
        return _drain(request, workers)


def _drain(request: Request, workers: QuerySet[Worker]) -> Response:
    body = body_of(request, Verb)
    names = transitions.ask_to_drain(workers, actor=actor(request), reason=body.reason)
    return Response(DrainDocument(workers=names).on_the_wire(), status=202)


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
