"""The engine's rows in the Django admin, to read. What changes them are the scheduler's verbs; API tokens are managed here."""

import uuid

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import ModelAdmin, TabularInline
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.forms import CheckboxSelectMultiple, ModelForm, TypedMultipleChoiceField
from django.http import HttpRequest
from django.utils.functional import cached_property
from knox.models import get_digest_token
from knox.settings import CONSTANTS

from workflows.models import (
    Agent,
    ApiToken,
    Attempt,
    Event,
    Job,
    Once,
    Schedule,
    ScheduleChange,
    Signal,
    Step,
    Tick,
)

COUNTED = 10_000


class BoundedPaginator(Paginator):
    """Counts only so far: to count a table of millions for a row of page numbers would take longer than the page."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return rows.order_by()[:COUNTED].count() if isinstance(rows, QuerySet) else len(rows)


class ReadOnly:
    """Nobody adds, changes or deletes here."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class ReadOnlyAdmin(ReadOnly, ModelAdmin):
    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 200


class StepInline(ReadOnly, TabularInline):
    """The steps of the plan as it is now; of a fan-out the one row that stands for its items."""

    model = Step
    fields = ("seq", "name", "kind", "role", "operation", "state", "attempt", "error_code", "started_at", "finished_at")
    readonly_fields = fields
    ordering = ("seq",)
    show_change_link = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Step]:
        return super().get_queryset(request).filter(parent=None, superseded=False, undoes__index=None)


class AttemptInline(ReadOnly, TabularInline):
    model = Attempt
    fields = ("number", "worker", "outcome", "error_kind", "error_message", "in_doubt", "resolved_by", "late_outcome")
    readonly_fields = fields
    ordering = ("number",)


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = ("id", "key", "workflow", "state", "reason", "created_at")
    list_filter = ("state", "reason")
    search_fields = ("=id", "=key")
    search_help_text = "The exact id or key"
    ordering = ("-created_at", "-id")
    inlines = (StepInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return super().get_queryset(request).defer("plan", "input")


@admin.register(Step)
class StepAdmin(ReadOnlyAdmin):
    list_display = ("id", "job_id", "name", "index", "kind", "operation", "state", "attempt", "settled_by", "worker")
    list_filter = ("state", "kind", "role", "settled_by")
    search_fields = ("=job__id",)
    search_help_text = "The exact id of a job"
    ordering = ("-id",)
    inlines = (AttemptInline,)
    raw_id_fields = ("job", "parent", "undoes")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Step]:
        return super().get_queryset(request).defer("result", "item")


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "step_id",
        "number",
        "worker",
        "started_at",
        "outcome",
        "error_code",
        "in_doubt",
        "resolved_by",
    )
    list_filter = ("outcome", "in_doubt")
    search_fields = ("=step__id",)
    search_help_text = "The number of a step"
    ordering = ("-id",)


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    """An event is found by its job and number, and no index knows its id: so all of it stands in the list."""

    list_display = ("job_id", "seq", "kind", "step", "attempt", "actor", "reason", "data", "at")
    list_display_links = None
    search_fields = ("job_id",)
    search_help_text = "The exact id of a job"
    ordering = ("-job_id", "-seq")
    sortable_by = ()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Event], search_term: str
    ) -> tuple[QuerySet[Event], bool]:
        if not search_term:
            return queryset, False
        try:
            return queryset.filter(job_id=uuid.UUID(search_term.strip())), False
        except ValueError:
            return queryset.none(), False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Event | None:
        return None


@admin.register(Agent)
class AgentAdmin(ReadOnlyAdmin):
    list_display = ("name", "queue", "honours_keys", "closes_keys", "lands_within", "at_once", "announced_at")
    ordering = ("name",)


@admin.register(Signal)
class SignalAdmin(ReadOnlyAdmin):
    list_display = ("id", "job_id", "name", "actor", "outcome", "received_at")
    list_filter = ("outcome",)
    search_fields = ("=job__id",)
    search_help_text = "The exact id of a job"
    ordering = ("-id",)
    raw_id_fields = ("job",)


@admin.register(Once)
class OnceAdmin(ReadOnlyAdmin):
    list_display = ("id", "step_id", "name", "attempt", "begun_at", "done_at")
    search_fields = ("=step__id",)
    search_help_text = "The number of a step"
    ordering = ("-id",)
    raw_id_fields = ("step",)


class ScheduleChangeInline(ReadOnly, TabularInline):
    """Who did what to the schedule, and why."""

    model = ScheduleChange
    fields = ("at", "kind", "actor", "reason", "revision", "data")
    readonly_fields = fields
    ordering = ("-id",)


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = ("id", "workflow", "next_due", "catch_up", "overlap", "paused_at", "paused_by", "deleted_at")
    list_filter = ("overlap", "catch_up")
    search_fields = ("=id", "=workflow")
    search_help_text = "The exact id, or the workflow"
    ordering = ("-created_at", "-id")
    inlines = (ScheduleChangeInline,)


@admin.register(Tick)
class TickAdmin(ReadOnlyAdmin):
    list_display = ("id", "schedule_id", "due_at", "kind", "made_up", "outcome", "reason", "job_id", "decided_at")
    list_filter = ("outcome", "kind")
    search_fields = ("=schedule__id",)
    search_help_text = "The exact id of a schedule"
    ordering = ("-id",)
    raw_id_fields = ("schedule", "job")


class ApiTokenForm(ModelForm):
    scopes = TypedMultipleChoiceField(choices=ApiToken.Scope.choices, widget=CheckboxSelectMultiple)

    class Meta:
        model = ApiToken
        fields = ("name", "user", "scopes", "expiry")


@admin.register(ApiToken)
class ApiTokenAdmin(ModelAdmin):
    """The token itself is shown once, when it is made; the store only knows its digest."""

    form = ApiTokenForm
    list_display = ("name", "user", "scopes", "created", "expiry", "last_used_at")
    list_select_related = ("user",)
    list_filter = ("expiry",)
    search_fields = ("name", "user__username")
    autocomplete_fields = ("user",)
    ordering = ("name",)

    def save_model(self, request: HttpRequest, obj: ApiToken, form: forms.Form, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        obj.digest, token = get_digest_token()
        obj.token_key = token[: CONSTANTS.TOKEN_KEY_LENGTH]
        super().save_model(request, obj, form, change)
        self.message_user(request, f"The token of {obj.name}, shown only this once: {token}", messages.WARNING)
