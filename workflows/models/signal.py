from django.db import models
from django.db.models import Q

from workflows.clock import SagNow
from workflows.models.job import Job


class Signal(models.Model):
    """A named message from outside that a step waits for. The first one wins; it may come before the step waits."""

    class Outcome(models.TextChoices):
        KEPT = "kept"
        TAKEN = "taken"
        LOST = "lost"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="signals", db_index=False)
    name = models.CharField(max_length=100)
    payload = models.JSONField()
    actor = models.CharField(max_length=200)
    received_at = models.DateTimeField(db_default=SagNow())
    outcome = models.CharField(max_length=5, choices=Outcome.choices)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "name"], condition=Q(outcome="kept"), name="signal_kept_once_per_name"
            )
        ]
        indexes = [models.Index(fields=["job", "id"], name="signal_of_job")]

    def __str__(self) -> str:
        return self.name
