"""What all routes have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Prefetch, prefetch_related_objects
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from workflows import clock, explanations
from workflows.api.documents import BookingDocument, JobDocument, StepWithAttempts
from workflows.api.parsing import JSONParser
from workflows.api.permissions import HasScope, Scope
from workflows.api.preconditions import etag, not_modified
from workflows.api.problems import RETRY_AFTER
from workflows.api.schema import ApiSchema
from workflows.models import Job, Step
from workflows.querysets import StepQuerySet

READ = (Scope.READ, Scope.OPERATE)
WRITE = (Scope.WRITE,)
CANCEL = (Scope.WRITE, Scope.OPERATE)
OPERATE = (Scope.OPERATE,)

_OfJob = JobDocument | BookingDocument


class ApiView(APIView):
    """Base of the routes; `scopes` says for each method which scopes will do."""

    parser_classes = (JSONParser,)
    permission_classes: Any = (HasScope,)
    schema = ApiSchema()
    scopes: ClassVar[Mapping[str, Sequence[Scope]]] = {}

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """An answer is for this client only, and is asked for anew each time (304 makes that cheap)."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "private, no-cache"
        return response


def steps_of(jobs: Sequence[Job]) -> dict[Any, list[Step]]:
    """{job id: its steps with their attempts, in the order of the plan}; of a fan-out the one row that stands for it."""
    prefetch_related_objects(jobs, Prefetch("steps", queryset=Step.objects.for_documents()))
    return {job.pk: list(job.steps.all()) for job in jobs}


def with_steps(jobs: Sequence[Job], document: type[_OfJob]) -> list[dict[str, Any]]:
    """The jobs of a page with their steps, in the same number of queries however many they are."""
    steps = steps_of(jobs)
    all_steps = [step for rows in steps.values() for step in rows]
    known = explanations.around(jobs, all_steps, receipts=document is BookingDocument)
    present = clock.now()
    return [document.of(job, steps[job.pk], present, known).on_the_wire() for job in jobs]


def unchanged(request: Request, version: int, steps: StepQuerySet) -> Response | None:
    """304 when the client has this version already, and nothing of these steps has changed without a new one."""
    response = not_modified(request, version)
    return None if response is not None and steps.telling().exists() else response


def job_answer(
    job: Job,
    document: type[_OfJob] = JobDocument,
    *,
    status: int = 200,
    location: str = "",
) -> Response:
    """The job as it is now, with its version, and when to ask again while it is active."""
    [body] = with_steps([job], document)
    return Response(body, status=status, headers=headers(job, job.seq, location))


def step_answer(job: Job, step: Step, *, status: int = 200, location: str = "") -> Response:
    """The step as it is now, with its own version."""
    steps = steps_of([job])[job.pk]
    present = Step.objects.select_related("undoes").prefetch_related("attempts").get(pk=step.pk)
    known = explanations.around([job], [present], receipts=False)
    body = StepWithAttempts.of(job, present, steps, clock.now(), known).on_the_wire()
    return Response(body, status=status, headers=headers(job, present.version, location))


def headers(job: Job, version: int, location: str = "") -> dict[str, str]:
    """The version, where it is, and when to ask again."""
    found = {"ETag": etag(version)}
    if location:
        found["Location"] = location
    if location or not job.is_terminal:
        found["Retry-After"] = RETRY_AFTER
    return found
