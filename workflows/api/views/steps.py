"""The steps of a job. An undo is `<name>.undo`."""

import uuid

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import verbs
from workflows.api import schema
from workflows.api.bodies import Verb
from workflows.api.documents import StepWithAttempts, address
from workflows.api.idempotency import idempotent
from workflows.api.parsing import body_of
from workflows.api.permissions import actor, visible_job
from workflows.api.preconditions import not_modified, version_seen
from workflows.api.views.base import OPERATE, READ, ApiView, step_answer
from workflows.exceptions import NotFound
from workflows.models import Job, Step


def _found(request: Request, job_id: uuid.UUID, name: str) -> tuple[Job, Step]:
    job = visible_job(request, job_id)
    step = Step.objects.filter(job=job, name=name).first()
    if step is None:
        raise NotFound(f"Job {job_id} has no step {name}.")
    return job, step


class StepDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_step", parameters=[schema.IF_NONE_MATCH], responses={200: StepWithAttempts})
    def get(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """One step with every attempt at it."""
        job, found = _found(request, job_id, step)
        return not_modified(request, found.version) or step_answer(job, found)


class StepCancellation(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="cancel_step",
        parameters=[schema.KEY, schema.IF_MATCH],
        request=Verb,
        responses={202: StepWithAttempts},
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """Take a running step from its worker. What its call did is in doubt then, and the job is undone."""
        _, found = _found(request, job_id, step)
        seen = version_seen(request, found.version)
        body = body_of(request, Verb)
        found = verbs.cancel_step(job_id, step, actor=actor(request), reason=body.reason, seen=seen)
        return _accepted(job_id, found)


class StepRetries(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="retry_step",
        parameters=[schema.KEY, schema.IF_MATCH_REQUIRED],
        request=Verb,
        responses={202: StepWithAttempts},
    )
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """Try one failed step again, under the same key and with all its attempts."""
        _, found = _found(request, job_id, step)
        seen = version_seen(request, found.version, required=True)
        body = body_of(request, Verb)
        found = verbs.retry_step(job_id, step, actor=actor(request), reason=body.reason, seen=seen)
        return _accepted(job_id, found)


def _accepted(job_id: uuid.UUID, step: Step) -> Response:
    job = Job.objects.get(pk=job_id)
    return step_answer(job, step, status=202, location=f"{address(job)}/steps/{step.name}")
