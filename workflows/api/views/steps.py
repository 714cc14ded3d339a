"""The steps of a job, by address: `flight`, `deploy:3` for an item of a fan-out, `flight.undo`, `deploy.undo:3`."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import clock, explanations, verbs
from workflows.api import schema
from workflows.api.bodies import Result, Retry, Verb, Verdict
from workflows.api.documents import ItemPage, StepDocument, StepWithAttempts, address
from workflows.api.idempotency import idempotent
from workflows.api.pagination import BY_INDEX, page
from workflows.api.parameters import choices
from workflows.api.parsing import body_of
from workflows.api.permissions import actor, visible_job
from workflows.api.preconditions import version_seen
from workflows.api.views.base import OPERATE, READ, ApiView, step_answer, steps_of, unchanged
from workflows.exceptions import NotFound
from workflows.models import Job, Step
from workflows.plans.plan import Plan
from workflows.states import StepState


def _found(request: Request, job_id: uuid.UUID, at: str) -> tuple[Job, Step]:
    job = visible_job(request, job_id)
    return job, verbs.step_at(job, at)


class StepDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_step", parameters=[schema.IF_NONE_MATCH], responses={200: StepWithAttempts})
    def get(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """One step with its attempts: what was really sent, what came back, and what was said too late."""
        job, found = _found(request, job_id, step)
        return unchanged(request, found.version, Step.objects.filter(pk=found.pk)) or step_answer(job, found)


class StepItems(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_items", parameters=[schema.ITEM_STATE, *schema.PAGING], responses={200: ItemPage})
    def get(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """The items of a fan-out in the order of its list, as far as they are written; of its undo, what undoes them."""
        job, fan = _found(request, job_id, step)
        if fan.parent_id is not None or Plan.from_json(job.plan).steps[fan.place].each is None:
            raise NotFound(f"{step} is no fan-out; it has no items.")
        filters = [("state", state) for state in choices(request, "state", StepState.values)]
        items = Step.objects.filter(parent=fan).select_related("undoes").prefetch_related("attempts")
        if filters:
            items = items.filter(state__in={state for _, state in filters})
        return page(request, items, filters, lambda found: _documents(job, found), BY_INDEX)


def _documents(job: Job, items: list[Step]) -> list[dict[str, Any]]:
    steps = steps_of([job])[job.pk]
    known = explanations.around([job], items, receipts=False)
    present = clock.now()
    return [StepDocument.of(job, item, steps, present, known).on_the_wire() for item in items]


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
        """Take a running step from its worker, or end its waiting. What its call did is in doubt then; the job is undone."""
        _, found = _found(request, job_id, step)
        seen = version_seen(request, found.version)
        body = body_of(request, Verb)
        found = verbs.cancel_step(job_id, step, actor=actor(request), reason=body.reason, seen=seen)
        return _accepted(job_id, found)


def _repair(
    request: Request, job_id: uuid.UUID, step: str, body: Verb | Verdict | Result, act: Callable[..., Step], **how: Any
) -> Response:
    """What people do by hand: only to what they saw."""
    _, found = _found(request, job_id, step)
    seen = version_seen(request, found.version, required=True)
    return _accepted(job_id, act(job_id, step, actor=actor(request), reason=body.reason, seen=seen, **how))


_repair_schema = partial(
    extend_schema, parameters=[schema.KEY, schema.IF_MATCH_REQUIRED], responses={202: StepWithAttempts}
)


class StepRetries(ApiView):
    scopes = {"POST": OPERATE}

    @_repair_schema(operation_id="retry_step", request=Retry)
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """Try one failed step again with all its attempts; under the same key, or after a definite refusal under a new one."""
        body = body_of(request, Retry)
        return _repair(request, job_id, step, body, verbs.retry_step, new_key=body.new_key)


class StepSkip(ApiView):
    scopes = {"POST": OPERATE}

    @_repair_schema(operation_id="skip_step", request=Verb)
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """Go on without a step that has not begun, or has failed; never where nobody knows what it did. Needs a reason."""
        return _repair(request, job_id, step, body_of(request, Verb), verbs.skip)


class StepResult(ApiView):
    scopes = {"POST": OPERATE}

    @_repair_schema(operation_id="give_result", request=Result)
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """Complete a step by hand: with a `result`, or with what an `attempt` said too late. Needs a reason."""
        body = body_of(request, Result)
        return _repair(request, job_id, step, body, verbs.give_result, result=body.result, attempt=body.attempt)


class StepVerdict(ApiView):
    scopes = {"POST": OPERATE}

    @_repair_schema(operation_id="give_verdict", request=Verdict)
    @idempotent()
    def post(self, request: Request, job_id: uuid.UUID, step: str) -> Response:
        """Say what became of a step in doubt: `done` or `not_done`. The reason says how you know."""
        body = body_of(request, Verdict)
        done = body.verdict == "done"
        return _repair(request, job_id, step, body, verbs.verdict, done=done, result=body.result)


def _accepted(job_id: uuid.UUID, step: Step) -> Response:
    job = Job.objects.get(pk=job_id)
    return step_answer(job, step, status=202, location=f"{address(job)}/steps/{step.address}")
