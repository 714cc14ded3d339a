"""What is forgotten, and when: ended jobs by their end, failures later, and never what needs a person; ticks by their own age."""

from datetime import datetime, timedelta

from workflows import tick_records, transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.models import IdempotencyRecord, Job

BATCH = 200
_BATCHES_A_RUN = 50
_TICKS_A_BATCH = 1000


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
    _forget_ticks(moment)
    return pruned


def _forget_ticks(moment: datetime) -> None:
    """And with the last tick of a schedule that is over, the schedule."""
    tick_records.forget_ticks(moment - timedelta(seconds=conf.keep_ticks), _TICKS_A_BATCH, _BATCHES_A_RUN)
    changes_before = moment - timedelta(seconds=conf.keep_changes)
    tick_records.forget_changes(changes_before, _TICKS_A_BATCH, _BATCHES_A_RUN)
    tick_records.forget_schedules(changes_before, BATCH)


def _forget_keys(before: datetime) -> None:
    """They were written in the order of their ids, so the first young one ends the search."""
    oldest = IdempotencyRecord.objects.order_by("pk").values_list("pk", "created_at")[: BATCH * _BATCHES_A_RUN]
    old = [key for key, created_at in oldest if created_at < before]
    IdempotencyRecord.objects.filter(pk__in=old).delete()
