from datetime import timedelta

from django.db import models


class ClockOffset(models.Model):
    """By how much `sag_now()` runs ahead of the database's own clock: one row, zero outside tests and rehearsals."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    ahead = models.DurationField(default=timedelta(0))

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="clock_has_one_row")]

    def __str__(self) -> str:
        return f"{self.ahead} ahead"
