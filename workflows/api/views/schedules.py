"""Schedules: make, find, change, remove; what became of their due times; run now, run the past."""

import uuid
from zoneinfo import ZoneInfo

from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import clock, schedules
from workflows.api import schema
from workflows.api.bodies import Verb
from workflows.api.idempotency import idempotent
from workflows.api.pagination import Order, by_time, page
from workflows.api.parameters import choices, text
from workflows.api.parsing import body_of, within_input, workflow_named
from workflows.api.permissions import Scope, actor, client_id, has_scope
from workflows.api.preconditions import etag, version_seen
from workflows.api.schedules import (
    BackfillBody,
    BackfillDocument,
    PreviewBody,
    ScheduleDocument,
    ScheduleEdit,
    SchedulePage,
    ScheduleStart,
    TickDocument,
    TickPage,
    TimesDocument,
    address,
)
from workflows.api.views.base import OPERATE, READ, ApiView
from workflows.exceptions import InvalidInput, NotFound
from workflows.models import Schedule, Tick
from workflows.models.schedule import ScheduleQuerySet
from workflows.plans import registry
from workflows.timing.policy import Policy
from workflows.timing.timetable import Timetable
from workflows.timing.zones import fault_in_zone

_NEWEST_SCHEDULES: Order[Schedule] = by_time("created_at", newest_first=True)
_NEWEST_TICKS: Order[Tick] = by_time("due_at", newest_first=True)


def visible_schedules(request: Request) -> ScheduleQuerySet:
    """Operators' programs see every schedule, all others their own and those of the code."""
    kept = Schedule.objects.kept()
    if has_scope(request, Scope.OPERATE):
        return kept
    return kept.filter(Q(client_id=client_id(request)) | Q(declaration__isnull=False))


def _visible(request: Request, schedule_id: uuid.UUID) -> Schedule:
    schedule = visible_schedules(request).filter(pk=schedule_id).first()
    if schedule is None:
        raise NotFound(f"There is no schedule {schedule_id}.")
    return schedule


def _answer(schedule: Schedule, *, status: int = 200) -> Response:
    headers = {"ETag": etag(schedule.revision)}
    if status == 201:
        headers["Location"] = address(schedule)
    return Response(ScheduleDocument.of(schedule).on_the_wire(), status=status, headers=headers)


class ScheduleList(ApiView):
    scopes = {"GET": READ, "POST": OPERATE}

    @extend_schema(
        operation_id="list_schedules", parameters=[schema.WORKFLOW, *schema.PAGING], responses={200: SchedulePage}
    )
    def get(self, request: Request) -> Response:
        """The schedules that this client may see, newest first."""
        found, filters = visible_schedules(request), []
        if workflow := text(request, "workflow"):
            filters.append(("workflow", workflow))
            found = found.filter(workflow=workflow)
        return page(
            request,
            found,
            filters,
            lambda rows: [ScheduleDocument.of(row).on_the_wire() for row in rows],
            _NEWEST_SCHEDULES,
        )

    @extend_schema(
        operation_id="create_schedule",
        parameters=[schema.KEY],
        request=ScheduleStart,
        responses={201: ScheduleDocument},
    )
    @idempotent()
    def post(self, request: Request) -> Response:
        """Have jobs of a workflow started by themselves, from the next due time on."""
        body = body_of(request, ScheduleStart)
        workflow = workflow_named(body.workflow)
        timetable, policy = Timetable(**body.of_timetable()), Policy(**body.of_policy())
        with within_input():
            workflow.validate(body.input)
        schedule = schedules.create(
            workflow=workflow.name,
            input=body.input,
            timetable=timetable,
            policy=policy,
            paused=body.paused,
            note=body.note,
            client_id=client_id(request),
            actor=actor(request),
        )
        return _answer(schedule, status=201)


class ScheduleDetail(ApiView):
    scopes = {"GET": READ, "PATCH": OPERATE, "DELETE": OPERATE}

    @extend_schema(operation_id="get_schedule", responses={200: ScheduleDocument})
    def get(self, request: Request, schedule_id: uuid.UUID) -> Response:
        """One schedule as it is now."""
        return _answer(_visible(request, schedule_id))

    @extend_schema(
        operation_id="change_schedule",
        parameters=[schema.IF_MATCH_REQUIRED],
        request=ScheduleEdit,
        responses={200: ScheduleDocument},
    )
    def patch(self, request: Request, schedule_id: uuid.UUID) -> Response:
        """Change what is named, pause, or resume. A new timetable counts from now; nothing of the past is started."""
        schedule = _visible(request, schedule_id)
        seen = version_seen(request, schedule.revision, required=True)
        body = body_of(request, ScheduleEdit)
        if "input" in body.model_fields_set:
            with within_input():
                registry.get(schedule.workflow).validate(body.input)
        changed = schedules.change(schedule_id, body.changes(), actor=actor(request), reason=body.note, seen=seen)
        return _answer(changed)

    @extend_schema(operation_id="remove_schedule", parameters=[schema.IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, schedule_id: uuid.UUID) -> Response:
        """Nothing falls due any more; jobs that run go on."""
        seen = version_seen(request, _visible(request, schedule_id).revision, required=True)
        schedules.remove(schedule_id, actor=actor(request), seen=seen)
        return Response(status=204)


class ScheduleTicks(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_ticks", parameters=[schema.OUTCOME, *schema.PAGING], responses={200: TickPage})
    def get(self, request: Request, schedule_id: uuid.UUID) -> Response:
        """What became of each due time, and of triggers and backfills; the newest first."""
        found = Tick.objects.filter(schedule=_visible(request, schedule_id))
        filters = [("outcome", outcome) for outcome in choices(request, "outcome", Tick.Outcome.values)]
        if filters:
            found = found.filter(outcome__in={outcome for _, outcome in filters})
        return page(
            request, found, filters, lambda rows: [TickDocument.of(row).on_the_wire() for row in rows], _NEWEST_TICKS
        )


class SchedulePreview(ApiView):
    scopes = {"POST": READ}

    @extend_schema(operation_id="preview_schedule", request=PreviewBody, responses={200: TimesDocument})
    def post(self, request: Request) -> Response:
        """When it would fall due, also when clocks change next; in UTC, in its zone and in the viewer's. Makes nothing."""
        body = body_of(request, PreviewBody)
        timetable, viewer = Timetable(**body.of_timetable()), body.viewer_timezone
        if viewer and (fault := fault_in_zone(viewer)):
            raise InvalidInput(fault, errors=[{"pointer": "/viewer_timezone", "message": fault}])
        document = TimesDocument.of(
            timetable, body.since or clock.now(), body.count, ZoneInfo(viewer) if viewer else None
        )
        return Response(document.on_the_wire())


class ScheduleTriggers(ApiView):
    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="trigger_schedule", parameters=[schema.KEY], request=Verb, responses={202: TickDocument}
    )
    @idempotent()
    def post(self, request: Request, schedule_id: uuid.UUID) -> Response:
        """Run now, by the schedule's rule for overlaps, also while it is paused. Its due times stay what they are."""
        _visible(request, schedule_id)
        body = body_of(request, Verb)
        tick = schedules.trigger(schedule_id, actor=actor(request), reason=body.reason)
        headers = {"Location": f"/api/v1/jobs/{tick.job_id}"} if tick.job_id else {}
        return Response(TickDocument.of(tick).on_the_wire(), status=202, headers=headers)


class ScheduleBackfills(ApiView):
    scopes = {"POST": OPERATE, "DELETE": OPERATE}

    @extend_schema(
        operation_id="backfill_schedule",
        parameters=[schema.KEY],
        request=BackfillBody,
        responses={200: BackfillDocument, 202: BackfillDocument},
    )
    @idempotent()
    def post(self, request: Request, schedule_id: uuid.UUID) -> Response:
        """Run due times of the past, by themselves those that were never started; a dry run (200) only tells which."""
        _visible(request, schedule_id)
        body = body_of(request, BackfillBody)
        done = schedules.backfill(
            schedule_id,
            body.since,
            body.until,
            overlap=body.overlap,
            dry_run=body.dry_run,
            actor=actor(request),
            reason=body.reason,
            reverse=body.reverse,
            reprocess=body.reprocess,
            max_active=body.max_active,
        )
        document = BackfillDocument.of(done, dry_run=body.dry_run)
        return Response(document.on_the_wire(), status=200 if body.dry_run else 202)

    @extend_schema(operation_id="withdraw_backfills", responses={204: None})
    def delete(self, request: Request, schedule_id: uuid.UUID) -> Response:
        """Of backfills nothing more is started; what they have started goes on."""
        _visible(request, schedule_id)
        schedules.withdraw_backfills(schedule_id, actor=actor(request))
        return Response(status=204)
