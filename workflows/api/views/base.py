"""What all routes have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Prefetch, prefetch_related_objects
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from workflows import clock
from workflows.api.documents import BookingDocument, JobDocument, StepWithAttempts
from workflows.api.parsing import JSONParser
from workflows.api.permissions import HasScope, Scope
from workflows.api.preconditions import etag
from workflows.api.problems import RETRY_AFTER
from workflows.api.schema import ApiSchema
from workflows.models import Job, Step

READ = (Scope.READ, Scope.OPERATE)
WRITE = (Scope.WRITE,)
CANCEL = (Scope.WRITE, Scope.OPERATE)
OPERATE = (Scope.OPERATE,)


class ApiView(APIView):
    """Base of the routes; `scopes` says for each method which scopes will do."""

    parser_classes = (JSONParser,)
    permission_classes = (HasScope,)
    schema = ApiSchema()
    scopes: ClassVar[Mapping[str, Sequence[Scope]]] = {}

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """An answer is for this client only, and is asked for anew each time (304 makes that cheap)."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "private, no-cache"
        return response


def steps_of(job: Job) -> list[Step]:
    """All steps of a job with their attempts, in the order of the plan."""
    return list(Step.objects.filter(job=job).for_timeline())


def with_steps(jobs: Sequence[Job], document: type[JobDocument] | type[BookingDocument]) -> list[dict[str, Any]]:
    """The jobs of a page with their steps, in three more queries however many they are."""
    prefetch_related_objects(jobs, Prefetch("steps", queryset=Step.objects.for_timeline()))
    present = clock.now()
    return [document.of(job, list(job.steps.all()), present).on_the_wire() for job in jobs]


def job_answer(
    job: Job,
    document: type[JobDocument] | type[BookingDocument] = JobDocument,
    *,
    status: int = 200,
    location: str = "",
) -> Response:
    """The job as it is now, with its version, and when to ask again while it is active."""
    body = document.of(job, steps_of(job), clock.now()).on_the_wire()
    return Response(body, status=status, headers=_headers(job, job.seq, location))


def step_answer(job: Job, step: Step, *, status: int = 200, location: str = "") -> Response:
    """The step as it is now, with its own version."""
    steps = steps_of(job)
    current = next(other for other in steps if other.pk == step.pk)
    body = StepWithAttempts.of(job, current, steps, clock.now()).on_the_wire()
    return Response(body, status=status, headers=_headers(job, current.version, location))


def _headers(job: Job, version: int, location: str) -> dict[str, str]:
    headers = {"ETag": etag(version)}
    if location:
        headers["Location"] = location
    if location or not job.is_terminal:
        headers["Retry-After"] = RETRY_AFTER
    return headers
