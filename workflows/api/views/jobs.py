"""Jobs of any workflow: start, find, follow, and the verbs."""

import uuid
from typing import Protocol

from django.core.exceptions import PermissionDenied
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import signals, undo, verbs
from workflows.api import schema
from workflows.api.bodies import Cancellation, Compensation, JobStart, Verb
from workflows.api.documents import (
    EventDocument,
    EventPage,
    JobDocument,
    JobPage,
    PreviewDocument,
    SignalDocument,
    address,
)
from workflows.api.idempotency import idempotent
from workflows.api.pagination import NEWEST_FIRST, linked, page
from workflows.api.parameters import choices, number, text
from workflows.api.parsing import body_of, within_input, workflow_named
from workflows.api.permissions import Scope, actor, client_id, has_scope, visible_job, visible_jobs
from workflows.api.preconditions import version_seen
from workflows.api.views.base import CANCEL, OPERATE, READ, WRITE, ApiView, headers, job_answer, unchanged, with_steps
from workflows.models import Event, Job, Signal, Step
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
        jobs = jobs.called(wanted)
    return jobs, filters


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
        return page(request, jobs, filters, lambda found: with_steps(found, JobDocument), NEWEST_FIRST)

    @extend_schema(
        operation_id="start_job", parameters=[schema.KEY_REQUIRED], request=JobStart, responses={202: JobDocument}
    )
    @idempotent(required=True)
    def post(self, request: Request) -> Response:
        """Start a job. It is stored when this answers, whatever happens next."""
        body = body_of(request, JobStart)
        workflow = workflow_named(body.workflow)
        with within_input():
            job = workflow.start(
                body.input,
                key=body.key,
                client_id=client_id(request),
                actor=actor(request),
                start_at=body.start_at,
            )
        return job_answer(job, status=202, location=address(job))


class JobDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_job", parameters=[schema.IF_NONE_MATCH], responses={200: JobDocument})
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        """One job as it is now: 200 in every state, with `Retry-After` while it is active."""
        job = visible_job(request, job_id)
        return unchanged(request, job.seq, Step.objects.of_plan().filter(job=job)) or job_answer(job)


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


class JobCompensation(ApiView):
    scopes = {"GET": READ, "POST": CANCEL}

    @extend_schema(operation_id="preview_undo", parameters=[schema.DOWN_TO], responses={200: PreviewDocument})
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        """What undoing a job would do now: all of it, or down to one step. Changes nothing."""
        job = visible_job(request, job_id)
        preview = undo.preview(job_id, down_to=text(request, "down_to"))
        return Response(PreviewDocument.of(preview).on_the_wire(), headers=headers(job, job.seq))

    @extend_schema(
        operation_id="undo_job",
        parameters=[schema.KEY, schema.IF_MATCH_REQUIRED],
        request=Compensation,
        responses={202: JobDocument},
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        """Undo a job, exactly as its preview showed; also one that completed, as long as its workflow allows.

        A client without `jobs:operate` undoes whole jobs of its own that run or have completed.
        """
        job = visible_job(request, job_id)
        seen = version_seen(request, job.seq, required=True)
        body = body_of(request, Compensation)
        if not has_scope(request, Scope.OPERATE) and (body.down_to is not None or job.state == JobState.FAILED):
            raise PermissionDenied(f"To repair a job needs a token with the scope {Scope.OPERATE}.")
        job = undo.compensate(
            job_id, digest=body.digest, down_to=body.down_to, actor=actor(request), reason=body.reason, seen=seen
        )
        return job_answer(job, status=202, location=address(job))


class JobSignal(ApiView):
    scopes = {"POST": CANCEL}

    @extend_schema(
        operation_id="send_signal", parameters=[schema.KEY], request=OpenApiTypes.ANY, responses={202: SignalDocument}
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID, name: str) -> Response:
        """Tell a job what one of its steps waits for. The body is what the step leaves as its result, any JSON.

        An approval's body is `{"approved": true or false, "reason"}`. Where approvers are named, the token's user has to be
        one of them, or in a group that is.
        """
        visible_job(request, job_id)
        sent = signals.send(job_id, name, request.data, actor=actor(request), names=signals.names_of(request.user))
        return Response(SignalDocument.of(Signal.objects.get(pk=sent.pk)).on_the_wire(), status=202)


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
