from django.db import models

from workflows.clock import SagNow
from workflows.models.step import Step


class Once(models.Model):
    """One call to a service without keys: the intent is written before it, the result after it.

    `done_at` null: it was about to be made, and nobody knows whether it was.
    """

    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="calls_once", db_index=False)
    name = models.CharField(max_length=100)
    attempt = models.IntegerField()
    begun_at = models.DateTimeField(db_default=SagNow())
    result = models.JSONField(null=True)
    done_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["step", "name"], name="once_per_step_and_name")]

    def __str__(self) -> str:
        return self.name
