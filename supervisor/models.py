from datetime import datetime

from django.db import models
from django.db.models import Value


class Incident(models.Model):
    """One outage of one service, however many jobs wait for it. Closed by itself once the service answers."""

    agent = models.CharField(max_length=60)
    cause = models.CharField(max_length=60)
    message = models.TextField(blank=True)
    # What was counted when it began: {"failures", "calls", "steps", "window"}.
    evidence = models.JSONField()
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    notified_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-opened_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["agent"], condition=models.Q(closed_at__isnull=True), name="incident_open_once_per_agent"
            )
        ]
        indexes = [models.Index(fields=["-opened_at"], name="incident_newest")]

    def __str__(self) -> str:
        return f"{self.agent}: {self.cause}"


class GroupCancellation(models.Model):
    """What a person decided on the jobs that waited because of one outage: all of them are cancelled, one after another."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="cancellations")
    undo = models.BooleanField()
    actor = models.CharField(max_length=200)
    reason = models.TextField(blank=True)
    asked_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-asked_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["incident"],
                condition=models.Q(finished_at__isnull=True),
                name="cancellation_open_once_per_incident",
            )
        ]

    def __str__(self) -> str:
        return f"{self.incident}, cancelled by {self.actor}"


class GroupMember(models.Model):
    """One job of such a group, and what became of it there. Its own history tells the rest."""

    class Outcome(models.TextChoices):
        CANCELLED = "cancelled"
        ENDED = "ended"
        REFUSED = "refused"

    cancellation = models.ForeignKey(
        GroupCancellation, on_delete=models.CASCADE, related_name="members", db_index=False
    )
    # Not a key to its table: jobs are forgotten, and this must not keep them.
    job_id = models.UUIDField()
    # Empty until its turn comes.
    outcome = models.CharField(max_length=9, choices=Outcome.choices, blank=True, db_default="")
    why = models.TextField(blank=True, db_default="")
    # How often it failed for a reason of ours.
    failures = models.SmallIntegerField(db_default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cancellation", "job_id"], name="group_member_once")]
        indexes = [models.Index(fields=["id"], condition=models.Q(outcome=""), name="group_member_to_do")]

    def __str__(self) -> str:
        return f"{self.job_id} {self.outcome or 'waits'}"


class NeedQuerySet(models.QuerySet):
    def open(self) -> "NeedQuerySet":
        """Those for which some job stands in front of a person. (need_open_once_per_cause)"""
        return self.filter(closed_at__isnull=True)

    def awake(self, present: datetime) -> "NeedQuerySet":
        """Those that nobody has put off until later."""
        return self.exclude(snoozed_until__gt=present)


class Need(models.Model):
    """One cause for which jobs stand in front of a person, however many they are. Closed once none of them does any more.

    What people did about it is in its notes; the jobs are in its cases.
    """

    class Kind(models.TextChoices):
        EXHAUSTED = "exhausted"
        FAILED_UNDO = "failed_undo"
        VERDICT = "verdict"
        LATE_RESULT = "late_result"
        STALLED_GATE = "stalled_gate"
        NO_WORKER = "no_worker"
        UNDONE_IN_PART = "undone_in_part"

    kind = models.CharField(max_length=14, choices=Kind.choices)
    # One sentence: workflow, step, and the message of the failure without what differs from job to job.
    cause = models.CharField(max_length=600)
    workflow = models.CharField(max_length=120, blank=True)
    step = models.CharField(max_length=100, blank=True)
    agent = models.CharField(max_length=60, blank=True)
    error_kind = models.CharField(max_length=16, blank=True)
    code = models.CharField(max_length=60, blank=True)
    frame = models.CharField(max_length=200, blank=True)
    jobs = models.PositiveIntegerField(default=0)
    # Since when the first of the jobs stands there.
    since = models.DateTimeField()
    # Some of the jobs, as text.
    examples = models.JSONField(default=list)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    notified_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    assignee = models.CharField(max_length=150, blank=True)
    snoozed_until = models.DateTimeField(null=True)

    objects = NeedQuerySet.as_manager()

    class Meta:
        ordering = ["-opened_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["cause", "kind", "code", "frame"],
                condition=models.Q(closed_at__isnull=True),
                name="need_open_once_per_cause",
            )
        ]

    def __str__(self) -> str:
        return self.cause


class Case(models.Model):
    """One job that stands there for a need, because of one of its steps; `step_id` 0: because of how it ended as a whole.

    `version` is the step's. All cases are what the last look found: see `needs.note_needs`.
    """

    need = models.ForeignKey(Need, on_delete=models.CASCADE, related_name="cases", db_index=False)
    kind = models.CharField(max_length=14, choices=Need.Kind.choices)
    job_id = models.UUIDField()
    step_id = models.BigIntegerField()
    version = models.IntegerField()
    since = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job_id", "step_id", "version", "kind"], name="case_once_per_step")
        ]
        # The cases of one need, those that stand there longest first.
        indexes = [models.Index(fields=["need", "since", "job_id"], name="case_of_need")]

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id}"


class Note(models.Model):
    """What somebody did about a need, or wrote down for the next one who looks."""

    need = models.ForeignKey(Need, on_delete=models.CASCADE, related_name="notes")
    author = models.CharField(max_length=150)
    # Empty for a mere note.
    did = models.CharField(max_length=200, blank=True)
    text = models.TextField(blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.did or self.text[:40]


class Telling(models.Model):
    """What was told of one matter over one channel, and what is on its way.

    Marked before it is sent, so that two supervisors do not both send. On its way, or failed and to be tried again, while
    `attempts` is above zero.
    """

    class Kind(models.TextChoices):
        INCIDENT = "incident"
        NEED = "need"

    class Said(models.TextChoices):
        OPENED = "opened"
        STILL = "still"
        MENDED = "mended"

    kind = models.CharField(max_length=20, choices=Kind.choices)
    matter_id = models.BigIntegerField()
    channel = models.CharField(max_length=80)
    said = models.CharField(max_length=20, choices=Said.choices, blank=True)
    # Of the message, over all its attempts.
    message_id = models.UUIDField(null=True)
    # When a message was last taken from us.
    told_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    try_after = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True)
    # Nothing more is to be said of it.
    over = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["channel", "kind", "matter_id"], name="telling_once_per_channel")
        ]
        indexes = [
            models.Index(fields=["channel"], condition=models.Q(over=False), name="telling_live"),
            models.Index(fields=["try_after"], condition=models.Q(over=True), name="telling_over"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.matter_id} over {self.channel}"


class Sweep(models.Model):
    """One pass of the supervisor. The age of the newest row is the supervisor's own health.

    `looked_at` rows were read, `found` of them wanted something done, `expired`, `remedied` and `moved` of these were
    changed. `decisions` tells of the first of them, `counts` how many there were of each kind. `observed`: nothing was
    changed, and the decisions are what would have been done.
    """

    # The database's own defaults are for supervisors of the version before, while an update is under way.
    # Which process, and the mark of this very start of it.
    by = models.CharField(max_length=150, blank=True, default="", db_default="")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    # Until when this sweep and those after it expire nothing, because sweeps had been missing (protocol 14).
    grace_until = models.DateTimeField(null=True)
    observed = models.BooleanField(default=False, db_default=False)
    looked_at = models.PositiveIntegerField(default=0, db_default=0)
    found = models.PositiveIntegerField(default=0, db_default=0)
    expired = models.PositiveIntegerField(default=0)
    remedied = models.PositiveIntegerField(default=0)
    moved = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    problems = models.JSONField(default=list)
    # {remedy: how many}
    counts = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    # {"job", "step", "found", "remedy", "reason", "acted"}, of the first so many.
    decisions = models.JSONField(default=list, db_default=Value([], models.JSONField()))

    class Meta:
        indexes = [models.Index(fields=["-finished_at"], name="sweep_newest")]

    def __str__(self) -> str:
        return f"sweep {self.pk}"

    @property
    def acted(self) -> int:
        """How many rows it changed."""
        return self.expired + self.remedied + self.moved


class Term(models.Model):
    """Whose turn a duty of the supervisor is, and until when; a row for each duty. `done_at`: when it was last done."""

    duty = models.CharField(max_length=10, primary_key=True)
    holder = models.CharField(max_length=150)
    term = models.BigIntegerField()
    begun_at = models.DateTimeField()
    until = models.DateTimeField()
    done_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.duty} {self.term}"
