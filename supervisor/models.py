from django.db import models


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
