"""What is forgotten, and when: ended jobs by their end, failures later, and never what needs a person; ticks by their own age.

The history of jobs that are forgotten goes last, by the week in which they were opened: see `workflows/history.py`.
"""

import logging
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError

from workflows import history, tick_records, transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.history import Partition
from workflows.models import IdempotencyRecord, Job

logger = logging.getLogger(__name__)

BATCH = 200
EVENTS = 5_000
_BATCHES_A_RUN = 50
_TICKS_A_BATCH = 1000

# Up to which job a partition was gone through by the last call; one that came to its end begins anew.
_reached: dict[str, uuid.UUID] = {}


def prune() -> int:
    """Delete what is older than it is kept, batch by batch, each a transaction of its own. How many jobs."""
    moment = now()
    pruned = _forget_jobs(moment)
    _forget_keys(moment - timedelta(seconds=conf.keep_keys))
    _forget_ticks(moment)
    _forget_history()
    return pruned


def _forget_jobs(moment: datetime) -> int:
    """Those to which rows of a team's own tables refer stay, and keep no other from being forgotten."""
    ended_before = moment - timedelta(seconds=conf.keep_history)
    failed_before = moment - timedelta(seconds=conf.keep_failures)
    pruned, held = 0, set[uuid.UUID]()
    for _ in range(_BATCHES_A_RUN):
        old = Job.objects.to_prune(ended_before, failed_before).exclude(pk__in=held)
        jobs = list(old.values_list("pk", flat=True)[:BATCH])
        try:
            pruned += transitions.prune(jobs) if jobs else 0
        except IntegrityError:
            pruned += _forget_one_by_one(jobs, held)
        if len(jobs) < BATCH:
            break
    if held:
        logger.warning("%s old jobs stay, since other tables refer to them, among them %s", len(held), min(held))
    return pruned


def _forget_one_by_one(jobs: Sequence[uuid.UUID], held: set[uuid.UUID]) -> int:
    pruned = 0
    for job in jobs:
        try:
            pruned += transitions.prune([job])
        except IntegrityError:
            held.add(job)
    return pruned


def _forget_ticks(moment: datetime) -> None:
    """And with the last tick of a schedule that is over, the schedule."""
    tick_records.forget_ticks(moment - timedelta(seconds=conf.keep_ticks), _TICKS_A_BATCH, _BATCHES_A_RUN)
    changes_before = moment - timedelta(seconds=conf.keep_changes)
    tick_records.forget_changes(changes_before, _TICKS_A_BATCH, _BATCHES_A_RUN)
    tick_records.forget_schedules(changes_before, BATCH)


def _forget_keys(before: datetime) -> None:
    """They were written in the order of their ids, so the first young one ends the search."""
    for _ in range(_BATCHES_A_RUN):
        oldest = IdempotencyRecord.objects.order_by("pk").values_list("pk", "created_at")[:BATCH]
        old = [key for key, created_at in oldest if created_at < before]
        IdempotencyRecord.objects.filter(pk__in=old).delete()
        if len(old) < BATCH:
            break


def _forget_history() -> None:
    """Drop the partitions of weeks of which no job is left.

    A week whose last jobs live on, or need a person, keeps their events for as long; those of all its other jobs are
    deleted once even failures of that time would be forgotten. So are those in the catch-all, which is never dropped.
    """
    moment = history.present()
    may_be_over = moment - timedelta(seconds=min(conf.keep_history, conf.keep_failures))
    is_old = moment - timedelta(seconds=max(conf.keep_history, conf.keep_failures))
    for partition in history.partitions():
        if partition.ended_before(may_be_over) and history.drop(partition):
            continue
        if partition.is_catch_all or partition.ended_before(is_old):
            _forget_events(partition)


def _forget_events(partition: Partition) -> None:
    """Those of jobs that are no more, a bounded number a call."""
    for _ in range(_BATCHES_A_RUN):
        jobs = history.jobs_in(partition, _reached.get(partition.name, history.BEFORE_ALL), limit=BATCH)
        gone = set(jobs).difference(Job.objects.filter(pk__in=jobs).values_list("pk", flat=True))
        if gone and transitions.forget_events(partition.name, sorted(gone), EVENTS) == EVENTS:
            continue
        if len(jobs) < BATCH:
            _reached.pop(partition.name, None)
            return
        _reached[partition.name] = jobs[-1]
