"""The supervisor's own record in the Django admin, to read."""

from django.contrib import admin

from supervisor.models import Sweep, Telling
from workflows.admin import ReadOnlyAdmin


@admin.register(Sweep)
class SweepAdmin(ReadOnlyAdmin):
    list_display = ("id", "started_at", "finished_at", "expired", "remedied", "moved", "failed")
    ordering = ("-finished_at",)


@admin.register(Telling)
class TellingAdmin(ReadOnlyAdmin):
    list_display = ("kind", "matter_id", "channel", "said", "told_at", "attempts", "last_error", "over")
    ordering = ("-id",)
