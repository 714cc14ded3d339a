import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from workflows.clock import SagNow
from workflows.models.invariants import Sound
from workflows.querysets import JobQuerySet
from workflows.states import LIVE_JOB_STATES, TERMINAL_JOB_STATES, JobState, Reason


def new_job_id() -> uuid.UUID:
    """Ids are made here, not in the database: known before the commit, and in order of time for the index's sake."""
    return uuid7()


class Job(models.Model):
    """One execution of a workflow. `seq` numbers its events and is its version."""

    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    # No constraint: jobs outlive the client that started them, and user ids are never used twice.
    client = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    key = models.CharField(max_length=255, null=True)
    workflow = models.CharField(max_length=120)
    version = models.IntegerField()
    plan = models.JSONField()
    input = models.JSONField()
    state = models.CharField(max_length=12, choices=JobState.choices, db_default=JobState.RUNNING)
    reason = models.CharField(max_length=12, choices=Reason.choices, blank=True, db_default="")
    reason_detail = models.TextField(blank=True, db_default="")
    stopping_at = models.DateTimeField(null=True)
    stopping_undo = models.BooleanField(null=True)
    paused_at = models.DateTimeField(null=True)
    time_limit = models.DurationField(null=True)
    deadline = models.DateTimeField(null=True)
    # `hooked`: the scheduler closes it, since another job is opened with that. `partial`: only a part is being undone.
    hooked = models.BooleanField(db_default=False)
    partial = models.BooleanField(db_default=False)
    # The step of another job that started this one, and waits for its end. That step may go before this job does.
    parent_step_id = models.BigIntegerField(null=True)
    told_parent_at = models.DateTimeField(null=True)
    # Which due time of its schedule it stands for, however late it was started.
    scheduled_for = models.DateTimeField(null=True)
    seq = models.IntegerField(db_default=0)
    open_steps = models.IntegerField()
    created_at = models.DateTimeField(db_default=SagNow())
    finished_at = models.DateTimeField(null=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["client", "workflow", "key"],
                condition=Q(key__isnull=False),
                nulls_distinct=False,
                name="job_once_per_key",
            ),
            models.CheckConstraint(
                condition=Sound(
                    *("state", "finished_at", "stopping_at", "stopping_undo", "reason", "open_steps"),
                    function="sag_job_is_sound",
                ),
                name="job_is_sound",
            ),
        ]
        indexes = [
            # Which live jobs has nobody moved? (walked by id, a slice a sweep)
            models.Index(fields=["id"], condition=Q(state__in=LIVE_JOB_STATES), name="job_live"),
            # Which live jobs is a deadline to be set for, and whose is past?
            models.Index(
                fields=["deadline"],
                condition=Q(state=JobState.RUNNING, stopping_at__isnull=True, time_limit__isnull=False),
                name="job_with_deadline",
            ),
            # Which children have ended, and have not told their parents?
            models.Index(
                fields=["id"],
                condition=Q(parent_step_id__isnull=False, told_parent_at__isnull=True, state__in=TERMINAL_JOB_STATES),
                name="job_owes_parent",
            ),
            # The children of this step.
            models.Index(
                fields=["parent_step_id"], condition=Q(parent_step_id__isnull=False), name="job_of_parent_step"
            ),
            # Which jobs have this business key? (of any client, for operators)
            models.Index(fields=["key"], condition=Q(key__isnull=False), name="job_with_key"),
            # Which jobs were undone in part, and stand still?
            models.Index(fields=["id"], condition=Q(state=JobState.FAILED, partial=True), name="job_undone_in_part"),
            # The newest jobs, of all, in one state, of one client.
            models.Index(fields=["-created_at", "-id"], name="job_newest"),
            models.Index(fields=["state", "-created_at", "-id"], name="job_newest_in_state"),
            models.Index(fields=["client", "-created_at", "-id"], name="job_newest_of_client"),
        ]

    def __str__(self) -> str:
        return f"{self.workflow} {self.id}"

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_JOB_STATES
