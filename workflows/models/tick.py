from django.db import models
from django.db.models import Exists, OuterRef, Q

from workflows.clock import SagNow
from workflows.models.job import Job
from workflows.states import LIVE_JOB_STATES


class TickQuerySet(models.QuerySet["Tick"]):
    def running(self) -> "TickQuerySet":
        """Whose job has not ended, as far as somebody took note? (tick_open)"""
        return self.filter(open=True, outcome=Tick.Outcome.STARTED)

    def waiting(self) -> "TickQuerySet":
        """Which have their turn when the jobs before them have ended? Backfills last, each in its own order. (tick_open)"""
        return self.filter(open=True, outcome=Tick.Outcome.WAITING).order_by("-kind", "id")

    def of_ended_jobs(self) -> "TickQuerySet":
        """Of the running ones, those whose job has ended since, or is no longer stored."""
        live = Job.objects.filter(pk=OuterRef("job_id"), state__in=LIVE_JOB_STATES)
        return self.filter(~Exists(live), open=True, outcome=Tick.Outcome.STARTED)

    def newest_first(self) -> "TickQuerySet":
        """(tick_newest)"""
        return self.order_by("-due_at", "-id")


class Tick(models.Model):
    """What became of one due time of a schedule: exactly one row each. Triggers and backfills have rows of their own.

    `due_at` is the nominal time, without jitter. `open`: its job runs, or it waits for its turn; both end. `run` counts
    the backfills that have run the same due time again.
    """

    class Kind(models.TextChoices):
        BACKFILL = "backfill"
        DUE = "due"
        TRIGGER = "trigger"

    class Outcome(models.TextChoices):
        STARTED = "started"
        WAITING = "waiting"
        SKIPPED = "skipped"
        DROPPED = "dropped"

    schedule = models.ForeignKey(
        "sag_workflows.Schedule", on_delete=models.CASCADE, related_name="ticks", db_index=False
    )
    due_at = models.DateTimeField()
    kind = models.CharField(max_length=8, choices=Kind.choices, db_default=Kind.DUE)
    run = models.IntegerField(db_default=1, default=1)
    made_up = models.BooleanField(default=False)
    # The rule under which it was let in or not, which for a backfill is its own.
    overlap = models.CharField(max_length=12, blank=True, default="")
    # Of a backfill: how many of its jobs may run beside each other; null: as many as there are.
    max_active = models.IntegerField(null=True)
    outcome = models.CharField(max_length=8, choices=Outcome.choices)
    reason = models.CharField(max_length=40, blank=True, default="")
    detail = models.TextField(blank=True, default="")
    # No constraint: ticks outlive the jobs that they started.
    job = models.ForeignKey(
        Job, null=True, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    open = models.BooleanField(default=False)
    decided_at = models.DateTimeField(db_default=SagNow())

    objects = TickQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["schedule", "due_at", "kind", "run"], name="tick_once_per_due_time"),
            models.CheckConstraint(
                condition=Q(outcome="started", job__isnull=False)
                | Q(outcome="waiting", job__isnull=True, open=True)
                | Q(outcome__in=["skipped", "dropped"], job__isnull=True, open=False),
                name="tick_is_sound",
            ),
        ]
        indexes = [
            models.Index(fields=["schedule", "-due_at", "-id"], name="tick_newest"),
            models.Index(fields=["schedule", "id"], condition=Q(open=True), name="tick_open"),
        ]

    @property
    def is_in_nobodys_way(self) -> bool:
        """Of a backfill that may run beside whatever else runs."""
        return self.kind == Tick.Kind.BACKFILL and self.overlap == "allow"

    def __str__(self) -> str:
        return f"{self.due_at.isoformat()} {self.outcome}"
