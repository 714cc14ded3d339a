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
    acknowledged_by = models.CharField(max_length=150, blank=True)

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


class Need(models.Model):
    """One cause for which jobs stand in front of a person, however many they are. Closed once none of them does any more."""

    # The message of the failure without what differs from job to job.
    cause = models.CharField(max_length=300)
    jobs = models.PositiveIntegerField(default=0)
    # Some of the jobs, as text.
    examples = models.JSONField(default=list)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    notified_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=150, blank=True)

    class Meta:
        ordering = ["-opened_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["cause"], condition=models.Q(closed_at__isnull=True), name="need_open_once_per_cause"
            )
        ]

    def __str__(self) -> str:
        return self.cause


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
