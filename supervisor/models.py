from django.db import models


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
    """One pass of the supervisor. The age of the newest row is the supervisor's own health."""

    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    # Until when this sweep and those after it expire nothing, because sweeps had been missing (protocol 14).
    grace_until = models.DateTimeField(null=True)
    expired = models.PositiveIntegerField(default=0)
    remedied = models.PositiveIntegerField(default=0)
    moved = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    problems = models.JSONField(default=list)

    class Meta:
        indexes = [models.Index(fields=["-finished_at"], name="sweep_newest")]

    def __str__(self) -> str:
        return f"sweep {self.pk}"
