from django.db import models

from workflows.models.job import Job


class Event(models.Model):
    """Append-only history of a job, numbered within it. Written in the transaction of the change that it tells of.

    `actor` is who did it ("agent", "scheduler", "supervisor", "operator:ada", "client:shop"), `reason` why.
    """

    # Written only under its job's lock, so the check of a foreign key would buy nothing on the hot path.
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events", db_index=False, db_constraint=False)
    seq = models.IntegerField()
    kind = models.CharField(max_length=40)
    step = models.CharField(max_length=120, blank=True, db_default="")
    attempt = models.IntegerField(null=True)
    actor = models.CharField(max_length=200)
    reason = models.TextField(blank=True, db_default="")
    data = models.JSONField(null=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["job_id", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="event_number_once_per_job")]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"
