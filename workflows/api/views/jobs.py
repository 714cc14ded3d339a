"""Jobs of any workflow: start, find, follow, and the verbs."""

import uuid
from typing import Protocol

from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import verbs
from workflows.api import schema
from workflows.api.bodies import Cancellation, JobStart, Verb
from workflows.api.documents import EventDocument, EventPage, JobDocument, JobPage, address
from workflows.api.idempotency import idempotent
from workflows.api.pagination import linked, page
from workflows.api.parameters import choices, number, text
from workflows.api.parsing import body_of
from workflows.api.permissions import actor, client_id, visible_job, visible_jobs
from workflows.api.preconditions import not_modified, version_seen
from workflows.api.views.base import CANCEL, OPERATE, READ, WRITE, ApiView, job_answer, with_steps
from workflows.exceptions import InvalidInput, UnknownWorkflow
from workflows.models import Event, Job
from workflows.plans import registry
from workflows.querysets import JobQuerySet
from workflows.states import JobState

_MOST_EVENTS = 200
_LARGEST_NUMBER = 2**31 - 1


def filtered(request: Request, jobs: JobQuerySet) -> tuple[JobQuerySet, list[tuple[str, str]]]:
    """The jobs that the query asks for, and its filters as they stand in it."""
    filters = [("state", state) for state in choices(request, "state", JobState.values)]
    if filters:
        jobs = jobs.filter(state__in={state for _, state in filters})
    if wanted := text(request, "q"):
        filters.append(("q", wanted))
        jobs = jobs.filter(_called(wanted))
    return jobs, filters


def _called(name: str) -> Q:
    """Exactly this id or key: what an index finds."""
    try:
        return Q(pk=uuid.UUID(name)) | Q(key=name)
    except ValueError:
        return Q(key=name)


class JobList(ApiView):
    scopes = {"GET": READ, "POST": WRITE}

    @extend_schema(
        operation_id="list_jobs",
        parameters=[*schema.FILTERS, schema.WORKFLOW, *schema.PAGING],
        responses={200: JobPage},
    )
    def get(self, request: Request) -> Response:
        """The jobs that this client may see, newest first."""
        jobs, filters = filtered(request, visible_jobs(request))
        if workflow := text(request, "workflow"):
            filters.append(("workflow", workflow))
            jobs = jobs.filter(workflow=workflow)
        return page(request, jobs, filters, lambda found: with_steps(found, JobDocument))

    @extend_schema(
        operation_id="start_job", parameters=[schema.KEY_REQUIRED], request=JobStart, responses={202: JobDocument}
    )
    @idempotent(required=True)
    def post(self, request: Request) -> Response:
        """Start a job. It is stored when this answers, whatever happens next."""
        body = body_of(request, JobStart)
        try:
            workflow = registry.get(body.workflow)
        except UnknownWorkflow as error:
            raise UnknownWorkflow(error.message, errors=[{"pointer": "/workflow", "message": error.message}]) from None
        try:
            job = workflow.start(
                body.input,
                key=body.key,
                client_id=client_id(request),
                actor=actor(request),
                start_at=body.start_at,
            )
        except InvalidInput as error:
            raise InvalidInput(error.message, errors=_below_input(error.errors)) from None
        return job_answer(job, status=202, location=address(job))


def _below_input(errors: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{**error, "pointer": f"/input{error['pointer']}"} for error in errors]


class JobDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_job", parameters=[schema.IF_NONE_MATCH], responses={200: JobDocument})
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        """One job as it is now: 200 in every state, with `Retry-After` while it is active."""
        job = visible_job(request, job_id)
        return not_modified(request, job.seq) or job_answer(job)


class JobEvents(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_events", parameters=schema.EVENTS, responses={200: EventPage})
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        """The history of a job by its own numbers, oldest first, behind the number `since`."""
        job = visible_job(request, job_id)
        since = number(request, "since", 0, least=0, most=_LARGEST_NUMBER)
        limit = number(request, "limit", _MOST_EVENTS, least=1, most=_MOST_EVENTS)
        found = list(Event.objects.filter(job=job, seq__gt=since).order_by("seq")[: limit + 1])
        events, more = found[:limit], len(found) > limit
        following = f"{request.path}?since={events[-1].seq}&limit={limit}" if more else None
        return linked([EventDocument.of(event).on_the_wire() for event in events], next=following, prev=None)


class JobCancellation(ApiView):
    scopes = {"POST": CANCEL}

    @extend_schema(
        operation_id="cancel_job",
        parameters=[schema.KEY, schema.IF_MATCH],
        request=Cancellation,
        responses={202: JobDocument},
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        """Stop a job, and undo what it did unless `undo` is false. Asking twice does it once."""
        job = visible_job(request, job_id)
        seen = version_seen(request, job.seq)
        body = body_of(request, Cancellation)
        job = verbs.cancel(job_id, undo=body.undo, actor=actor(request), reason=body.reason, seen=seen)
        return job_answer(job, status=202, location=address(job))


class _Act(Protocol):
    def __call__(self, job_id: uuid.UUID, /, *, actor: str, reason: str, seen: int | None) -> Job: ...


def _carry_out(act: _Act, request: Request, job_id: uuid.UUID, *, if_match_required: bool = False) -> Response:
    job = visible_job(request, job_id)
    seen = version_seen(request, job.seq, required=if_match_required)
    body = body_of(request, Verb)
    job = act(job_id, actor=actor(request), reason=body.reason, seen=seen)
    return job_answer(job, status=202, location=address(job))


class JobRetries(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="retry_job",
        parameters=[schema.KEY, schema.IF_MATCH_REQUIRED],
        request=Verb,
        responses={202: JobDocument},
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        """Try again, after the cause is mended, what made a job end Failed."""
        return _carry_out(verbs.retry_job, request, job_id, if_match_required=True)


class JobPause(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="pause_job", parameters=[schema.KEY, schema.IF_MATCH], request=Verb, responses={202: JobDocument}
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        """Start no further step of a job until it is resumed."""
        return _carry_out(verbs.pause, request, job_id)


class JobResumption(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="resume_job", parameters=[schema.KEY, schema.IF_MATCH], request=Verb, responses={202: JobDocument}
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        """Go on with a paused job."""
        return _carry_out(verbs.resume, request, job_id)
