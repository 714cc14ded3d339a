from django.conf import settings
from django.db import models
from django.db.models import Exists, OuterRef, Q
from uuid_utils.compat import uuid7

from workflows.clock import SagNow
from workflows.models.tick import Tick
from workflows.timing.policy import CatchUp, Overlap, Policy
from workflows.timing.timetable import Timetable


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def kept(self) -> "ScheduleQuerySet":
        """All but the removed ones, whose ticks are still there to be asked for."""
        return self.filter(deleted_at__isnull=True)

    def due(self) -> "ScheduleQuerySet":
        """Whose next due time has come? (schedule_due)"""
        return self.kept().filter(next_due__lte=SagNow())

    def to_attend(self) -> "ScheduleQuerySet":
        """Where has a job ended behind which another waits, or of which nobody took note yet? (tick_open)"""
        open_ticks = Tick.objects.filter(schedule=OuterRef("pk"), open=True)
        return self.kept().filter(
            Exists(open_ticks.filter(outcome=Tick.Outcome.WAITING)) | Exists(open_ticks.of_ended_jobs())
        )

    def newest_first(self) -> "ScheduleQuerySet":
        """(schedule_newest)"""
        return self.order_by("-created_at", "-id")


class Schedule(models.Model):
    """When jobs of a workflow are started, and by which rules. `revision` grows with each change of it by people or code.

    `next_due` is the mark up to which every due time has its tick; null: none will come any more.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    client = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    workflow = models.CharField(max_length=120)
    input = models.JSONField(null=True)
    timetable = models.JSONField()
    catch_up = models.CharField(max_length=10)
    catch_up_window = models.IntegerField()
    catch_up_limit = models.IntegerField(null=True)
    overlap = models.CharField(max_length=12)
    jitter = models.IntegerField(default=0)
    pause_on_failure = models.BooleanField(default=False)
    paused_at = models.DateTimeField(null=True)
    paused_by = models.CharField(max_length=200, blank=True, default="")
    pause_note = models.TextField(blank=True, default="")
    # As the code declared it when it was last read; null: a person or a program made this schedule.
    declaration = models.JSONField(null=True)
    revision = models.IntegerField(default=1)
    next_due = models.DateTimeField(null=True)
    scanned_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=SagNow())
    deleted_at = models.DateTimeField(null=True)

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workflow"], condition=Q(declaration__isnull=False), name="schedule_declared_once"
            )
        ]
        indexes = [
            models.Index(
                fields=["next_due"],
                condition=Q(deleted_at__isnull=True, next_due__isnull=False),
                name="schedule_due",
            ),
            models.Index(fields=["-created_at", "-id"], name="schedule_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.workflow} {self.id}"

    @property
    def times(self) -> Timetable:
        return Timetable.from_json(self.timetable)

    @property
    def policy(self) -> Policy:
        catch_up: CatchUp = self.catch_up  # type: ignore[assignment]  # checked when it was written
        overlap: Overlap = self.overlap  # type: ignore[assignment]
        return Policy(
            catch_up=catch_up,
            catch_up_window=self.catch_up_window,
            catch_up_limit=self.catch_up_limit,
            overlap=overlap,
            jitter=self.jitter,
            pause_on_failure=self.pause_on_failure,
        )


class ScheduleChange(models.Model):
    """What somebody did to a schedule, written with it: who, when, why, and which fields from what to what."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="changes", db_index=False)
    revision = models.IntegerField()
    kind = models.CharField(max_length=20)
    actor = models.CharField(max_length=200)
    reason = models.TextField(blank=True, default="")
    data = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=SagNow())

    class Meta:
        indexes = [models.Index(fields=["schedule", "id"], name="change_of_schedule")]

    def __str__(self) -> str:
        return self.kind
