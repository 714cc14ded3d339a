"""What is forgotten, and when: ended jobs by their end, failures later, and never what needs a person."""

from datetime import datetime, timedelta

from workflows import transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.models import IdempotencyRecord, Job

BATCH = 200
_BATCHES_A_RUN = 50


def prune() -> int:
    """Delete what is older than it is kept, batch by batch, each a transaction of its own. How many jobs."""
    moment = now()
    ended_before = moment - timedelta(seconds=conf.keep_history)
    failed_before = moment - timedelta(seconds=conf.keep_failures)
    pruned = 0
    for _ in range(_BATCHES_A_RUN):
        jobs = list(Job.objects.to_prune(ended_before, failed_before).values_list("pk", flat=True)[:BATCH])
        pruned += transitions.prune(jobs) if jobs else 0
        if len(jobs) < BATCH:
            break
    _forget_keys(moment - timedelta(seconds=conf.keep_keys))
    return pruned


def _forget_keys(before: datetime) -> None:
    """They were written in the order of their ids, so the first young one ends the search."""
    for _ in range(_BATCHES_A_RUN):
        oldest = IdempotencyRecord.objects.order_by("pk").values_list("pk", "created_at")[:BATCH]
        old = [key for key, created_at in oldest if created_at < before]
        IdempotencyRecord.objects.filter(pk__in=old).delete()
        if len(old) < BATCH:
            break
