from django.contrib.postgres.fields import ArrayField
from django.db import models


class Worker(models.Model):
    """One start of a worker of agents. `name` is its host, its main process and a mark of this very start.

    The same mark is in the `worker` of the attempts that its processes make. `seen_at`: it answered a doorbell or kept
    a lease. `polled_at`: a doorbell was rung only to hear whether it answers; `polls` is how often that was done.
    `drain_asked_at`: somebody wants it to end, and its keeper to start another.
    """

    name = models.CharField(max_length=150, primary_key=True)
    host = models.CharField(max_length=100)
    pid = models.IntegerField()
    queues = ArrayField(models.CharField(max_length=60))
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    last_claim_at = models.DateTimeField(null=True)
    polled_at = models.DateTimeField(null=True)
    polls = models.IntegerField(db_default=0)
    drain_asked_at = models.DateTimeField(null=True)
    drain_asked_by = models.CharField(max_length=200, blank=True, db_default="")
    drain_reason = models.TextField(blank=True, db_default="")
    draining_at = models.DateTimeField(null=True)
    stopped_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name
