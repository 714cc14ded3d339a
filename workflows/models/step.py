from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from workflows.clock import SagNow
from workflows.models.invariants import Sound
from workflows.models.job import Job
from workflows.querysets import FAILING, StepQuerySet
from workflows.states import ErrorKind, Remedy, Role, StepState

READY = Q(state=StepState.NOT_STARTED, waiting_for=0, held=False)


class Step(models.Model):
    """One unit of a job's plan. (`attempt`, `token`) is the fence; `complete_by` is the lease; `deadline` caps it.

    `waiting_for` counts unfinished prerequisites; `releases` holds the `seq` of the steps that this one releases.
    `held` keeps the steps of paused, stopping and ended jobs out of the index of ready work.
    `version` is the number of the last event of the job that concerned this step.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="steps", db_index=False)
    seq = models.SmallIntegerField()
    name = models.CharField(max_length=80)
    role = models.CharField(max_length=8, choices=Role.choices, db_default=Role.FORWARD)
    undoes = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="undos", db_index=False)
    operation = models.CharField(max_length=100)
    agent = models.CharField(max_length=60)
    queue = models.CharField(max_length=60)
    idempotency_key = models.CharField(max_length=150)

    state = models.CharField(max_length=10, choices=StepState.choices, db_default=StepState.NOT_STARTED)
    waiting_for = models.SmallIntegerField(db_default=0)
    releases = ArrayField(models.SmallIntegerField())
    released_at = models.DateTimeField(null=True)
    held = models.BooleanField(db_default=False)
    run_after = models.DateTimeField(db_default=SagNow())
    ring_after = models.DateTimeField(db_default=SagNow())
    rings = models.SmallIntegerField(db_default=0)

    timeout = models.DurationField()
    attempt = models.IntegerField(db_default=0)
    charged = models.IntegerField(db_default=0)
    attempts_allowed = models.IntegerField()
    probe_only = models.BooleanField(db_default=False)
    token = models.UUIDField(null=True)
    worker = models.CharField(max_length=150, blank=True, db_default="")
    complete_by = models.DateTimeField(null=True)
    deadline = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)

    result = models.JSONField(null=True)
    error_kind = models.CharField(max_length=16, choices=ErrorKind.choices, blank=True, db_default="")
    error_code = models.CharField(max_length=60, blank=True, db_default="")
    error_message = models.TextField(blank=True, db_default="")
    retry_after = models.DurationField(null=True)
    remedy = models.CharField(max_length=12, choices=Remedy.choices, blank=True, db_default="")
    remedy_reason = models.TextField(blank=True, db_default="")
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    version = models.IntegerField(db_default=1)

    objects = StepQuerySet.as_manager()

    class Meta:
        ordering = ["job_id", "seq"]
        constraints = [
            models.UniqueConstraint(fields=["job", "name"], name="step_name_once_per_job"),
            models.CheckConstraint(
                condition=Sound(
                    *("state", "attempt", "waiting_for", "token", "complete_by", "deadline", "finished_at"),
                    *("error_kind", "remedy", "role", "undoes"),
                    function="sag_step_is_sound",
                ),
                name="step_is_sound",
            ),
        ]
        indexes = [
            # What may a worker of this queue take next, oldest first?
            models.Index(fields=["queue", "run_after", "id"], condition=READY, name="step_ready"),
            # Whose doorbell is due, or old?
            models.Index(fields=["ring_after", "id"], condition=READY, name="step_to_ring"),
            # Whose lease is over?
            models.Index(fields=["complete_by"], condition=Q(state=StepState.RUNNING), name="step_running"),
            # Which failed steps has nobody decided on?
            models.Index(fields=["id"], condition=Q(state=StepState.FAILED, remedy=""), name="step_without_remedy"),
            # Which failed and have not ended?
            models.Index(fields=["job"], condition=FAILING, name="step_failing"),
            # Which stand in front of a person?
            models.Index(
                fields=["job"], condition=Q(state=StepState.FAILED, remedy=Remedy.ESCALATE), name="step_escalated"
            ),
        ]

    def __str__(self) -> str:
        return self.name
