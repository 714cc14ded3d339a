from datetime import timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models

from workflows.clock import SagNow


class Agent(models.Model):
    """What a worker announced of an agent at its start: the scheduler and the undo read it, and hold no agent code."""

    name = models.CharField(max_length=60, primary_key=True)
    queue = models.CharField(max_length=60)
    operations = ArrayField(models.CharField(max_length=100))
    # {operation: JSON Schema of its results}, of those that promise one.
    outputs = models.JSONField(db_default=models.Value({}, models.JSONField()))
    honours_keys = models.BooleanField(db_default=False)
    closes_keys = models.BooleanField(db_default=False)
    lands_within = models.DurationField(default=timedelta(seconds=30))
    # Limits over all workers: calls at once, and calls begun in a period; null for none.
    at_once = models.IntegerField(null=True)
    rate_count = models.IntegerField(null=True)
    rate_period = models.DurationField(null=True)
    # The next moment at which the rate lets a call begin.
    rate_next = models.DateTimeField(null=True)
    # Where people read what to do about its failures; empty for nowhere.
    runbook = models.CharField(max_length=500, blank=True, db_default="")
    announced_at = models.DateTimeField(db_default=SagNow())

    def __str__(self) -> str:
        return self.name

    @property
    def has_limit(self) -> bool:
        return self.at_once is not None or self.rate_count is not None
