from datetime import timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models

from workflows.clock import SagNow


class Breaker(models.Model):
    """What all workers know of an agent whose service does not answer: its steps are parked, and nothing is charged.

    While it `parks`, only a step that was `admitted` may start: a trial now and then, and once one has succeeded the
    others, so many a second.
    """

    class Phase(models.TextChoices):
        CLOSED = "closed"
        OPEN = "open"
        TRIAL = "trial"
        RELEASING = "releasing"

    agent = models.CharField(max_length=60, primary_key=True)
    phase = models.CharField(max_length=9, choices=Phase.choices, db_default=Phase.CLOSED)
    parks = models.BooleanField(db_default=False)
    cause = models.CharField(max_length=60, blank=True, db_default="")
    message = models.TextField(blank=True, db_default="")
    # {"failures", "calls", "steps", "window"}: what was counted when it opened.
    evidence = models.JSONField(null=True)
    opened_at = models.DateTimeField(null=True)
    trial_at = models.DateTimeField(null=True)
    cooldown = models.DurationField(default=timedelta(seconds=5))
    trials = models.IntegerField(db_default=0)
    trial_step_id = models.BigIntegerField(null=True)
    changed_at = models.DateTimeField(db_default=SagNow())

    def __str__(self) -> str:
        return f"{self.agent} {self.phase}"


class CallCount(models.Model):
    """How the calls of an agent went, in slices of a few seconds: `word` is "ok", "retry", or an error's code.

    `steps` are some of those that failed so, each once: one step that fails again and again is no outage.
    """

    agent = models.CharField(max_length=60)
    slice_at = models.DateTimeField()
    word = models.CharField(max_length=60)
    count = models.IntegerField()
    steps = ArrayField(models.BigIntegerField(), db_default=[])
    message = models.TextField(blank=True, db_default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "slice_at", "word"], name="calls_counted_once")]
        indexes = [models.Index(fields=["slice_at"], name="calls_counted_by_age")]

    def __str__(self) -> str:
        return f"{self.agent} {self.word} {self.count}"
