from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from workflows.clock import SagNow
from workflows.models.invariants import Sound
from workflows.models.job import Job
from workflows.querysets import FAILING, StepQuerySet
from workflows.states import ErrorKind, Remedy, Role, SettledBy, StepKind, StepState

READY = Q(state=StepState.NOT_STARTED, waiting_for=0, held=False)


class Step(models.Model):
    """One unit of a job's plan. (`attempt`, `token`) is the fence; `complete_by` is the lease; `deadline` caps it.

    `waiting_for` counts unfinished prerequisites; `releases` holds the `seq` of the steps that this one releases.
    `held` keeps the steps of paused, stopping and ended jobs out of the index of ready work.
    Where the scheduler has to look before a step may start (`gated`), it is held as well until the scheduler has looked.
    `parked`: its agent's service is away; it is held until it is `admitted` again.
    A fan-out is one row that counts its items; each item is a row with that one as its `parent`.
    `superseded`: a row of a later `generation` has taken its place, after it was undone.
    `version` is the number of the last event of the job that concerned this step.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="steps", db_index=False)
    seq = models.IntegerField()
    place = models.SmallIntegerField(db_default=0)
    name = models.CharField(max_length=100)
    index = models.IntegerField(null=True)
    generation = models.SmallIntegerField(db_default=1)
    superseded = models.BooleanField(db_default=False)
    kind = models.CharField(max_length=6, choices=StepKind.choices, db_default=StepKind.CALL)
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="items", db_index=False)
    role = models.CharField(max_length=8, choices=Role.choices, db_default=Role.FORWARD)
    undoes = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="undos", db_index=False)
    operation = models.CharField(max_length=100, blank=True)
    agent = models.CharField(max_length=60, blank=True)
    queue = models.CharField(max_length=60)
    idempotency_key = models.CharField(max_length=200)

    state = models.CharField(max_length=10, choices=StepState.choices, db_default=StepState.NOT_STARTED)
    waiting_for = models.SmallIntegerField(db_default=0)
    releases = ArrayField(models.IntegerField())
    released_at = models.DateTimeField(null=True)
    held = models.BooleanField(db_default=False)
    gated = models.BooleanField(db_default=False)
    parked = models.BooleanField(db_default=False)
    parked_since = models.DateTimeField(null=True)
    admitted = models.BooleanField(db_default=False)
    limited = models.BooleanField(db_default=False)
    limit_key = models.CharField(max_length=200, blank=True, db_default="")
    run_after = models.DateTimeField(db_default=SagNow())
    ring_after = models.DateTimeField(db_default=SagNow())
    rings = models.SmallIntegerField(db_default=0)

    queue_timeout = models.DurationField(null=True)
    queue_by = models.DateTimeField(null=True)
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
    progress = models.JSONField(null=True)

    item = models.JSONField(null=True)
    items_total = models.IntegerField(null=True)
    items_made = models.IntegerField(db_default=0)
    items_admitted = models.IntegerField(db_default=0)
    items_open = models.IntegerField(db_default=0)
    items_failed = models.IntegerField(db_default=0)

    result = models.JSONField(null=True)
    settled_by = models.CharField(max_length=8, choices=SettledBy.choices, blank=True, db_default="")
    skip_reason = models.TextField(blank=True, db_default="")
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
            models.UniqueConstraint(
                fields=["job", "name", "index", "generation"], nulls_distinct=False, name="step_name_once_per_job"
            ),
            models.CheckConstraint(
                condition=Sound(
                    *("state", "attempt", "waiting_for", "token", "complete_by", "deadline", "finished_at"),
                    *("error_kind", "remedy", "role", "undoes", "index", "parent"),
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
            # Which wait for something that is due now: a timer, a signal, a callback?
            models.Index(
                fields=["deadline"], condition=Q(state=StepState.RUNNING, complete_by__isnull=True), name="step_waiting"
            ),
            # Which signals without a time-out are waited for, and since when?
            models.Index(
                fields=["started_at"],
                condition=Q(
                    state=StepState.RUNNING, kind=StepKind.SIGNAL, complete_by__isnull=True, deadline__isnull=True
                ),
                name="step_waits_for_ever",
            ),
            # Which stand ready too long without a worker that takes them?
            models.Index(fields=["queue_by"], condition=READY, name="step_queued_too_long"),
            # Which are parked, because their agent's service is away? Those that waited longest first.
            models.Index(
                fields=["agent", "run_after", "id"],
                condition=Q(state=StepState.NOT_STARTED, parked=True),
                name="step_parked",
            ),
            # Where has the scheduler to look before they may start?
            models.Index(
                fields=["id"],
                condition=Q(state=StepState.NOT_STARTED, waiting_for=0, gated=True),
                name="step_at_gate",
            ),
            # Which fan-outs are under way?
            models.Index(
                fields=["id"],
                condition=Q(state=StepState.RUNNING, items_total__isnull=False),
                name="step_fan_outs",
            ),
            # The items of a fan-out, in order; those of one state.
            models.Index(fields=["parent", "index"], condition=Q(parent__isnull=False), name="step_items"),
            # Which of them wait for their turn?
            models.Index(
                fields=["parent", "index"],
                condition=Q(parent__isnull=False, state=StepState.NOT_STARTED, held=True, gated=False),
                name="step_items_held",
            ),
            # How many run at this agent, or under this key, when there is a limit?
            models.Index(fields=["agent"], condition=Q(state=StepState.RUNNING, limited=True), name="step_at_limit"),
            models.Index(
                fields=["limit_key"], condition=Q(state=StepState.RUNNING, limited=True), name="step_at_key_limit"
            ),
            # Which wait, in which queue, for a place under this key?
            models.Index(
                fields=["limit_key", "queue", "run_after"], condition=READY & ~Q(limit_key=""), name="step_wants_key"
            ),
            # What undoes this step?
            models.Index(fields=["undoes"], condition=Q(undoes__isnull=False), name="step_undoes"),
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
        return self.address

    @property
    def address(self) -> str:
        """Its name, for an item of a fan-out with the place in the list: `deploy:3`."""
        return self.name if self.index is None else f"{self.name}:{self.index}"

    @property
    def is_fan_out(self) -> bool:
        """Whether it has items, or will have: known once its list is."""
        return self.items_total is not None

    def items_results(self) -> list[Any]:
        """What the items of this fan-out left, in the order of its list; None for those that left nothing."""
        return list(self.items.order_by("index").values_list("result", flat=True))
