"""Word to people: one message for each outage and for each cause for which jobs need a person, not one for each job.

It is repeated every few hours until somebody acknowledges it, and falls silent when the cause is mended. Nothing is sent
within a transaction, and nothing of the supervisor waits for a mail server.
"""

import logging
import re
import threading
from collections import defaultdict
from datetime import datetime, timedelta
from typing import TypeVar

from django.conf import settings
from django.core.mail import send_mail
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from supervisor import storms
from supervisor.models import Incident, Need
from workflows.clock import now
from workflows.conf import conf
from workflows.exceptions import WrongState
from workflows.models import Attempt, Job, Step
from workflows.states import JobState

logger = logging.getLogger(__name__)

_EXAMPLES = 5
_DIFFERS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b(?=\w*\d)\w+\b|(?<=')[^']*(?=')|(?<=\")[^\"]*(?=\")", re.IGNORECASE
)
_under_way = threading.Lock()

Matter = Incident | Need
M = TypeVar("M", Incident, Need)


def normalised(message: str) -> str:
    """Without what differs from job to job: ids, numbers, dates, and what stands in quotes."""
    return " ".join(_DIFFERS.sub("…", message).split())[:300]


def tell_aside() -> threading.Thread | None:
    """`tell` in a thread of its own, since a mail server that hangs must not keep the sweep waiting. None while one runs."""
    if not _under_way.acquire(blocking=False):
        return None
    thread = threading.Thread(target=_tell_and_leave, name="sag-escalation", daemon=True)
    thread.start()
    return thread


def _tell_and_leave() -> None:
    try:
        tell()
    except Exception:  # the next one looks again
        logger.exception("people could not be told")
    finally:
        connection.close()
        _under_way.release()


def tell() -> int:
    """Tell of what is new, or was told long ago and nobody acknowledged. How many messages went out."""
    note_needs()
    if not settings.SAG_NOTIFY:
        return 0
    present = now()
    matters: list[Matter] = [*_to_tell(Incident.objects.all(), present), *_to_tell(Need.objects.all(), present)]
    return sum(_tell_of(matter, present) for matter in matters)


def _to_tell(matters: QuerySet[M], present: datetime) -> QuerySet[M]:
    due = Q(notified_at__isnull=True) | Q(notified_at__lt=present - timedelta(seconds=conf.notify_again))
    return matters.filter(due, closed_at__isnull=True, acknowledged_at__isnull=True).order_by("opened_at")


def _tell_of(matter: Matter, present: datetime) -> bool:
    """Marked as told before it is sent, so that two supervisors do not both send; unmarked when it could not be."""
    told_before = matter.notified_at
    mine = type(matter)._default_manager.filter(pk=matter.pk, closed_at__isnull=True)
    if not mine.filter(notified_at=told_before).update(notified_at=present):
        return False
    subject, body = _words(matter)
    if told_before is not None:
        subject = f"Still: {subject}"
    try:
        send_mail(" ".join(subject.split())[:200], body, None, settings.SAG_NOTIFY)
    except Exception as error:  # whatever a mail backend raises: it is tried again, and the others are told meanwhile
        logger.warning("people could not be told of %s: %s", matter, error)
        mine.filter(notified_at=present).update(notified_at=told_before)
        return False
    return True


def _words(matter: Matter) -> tuple[str, str]:
    """Subject and text of its message."""
    since = f"Since {matter.opened_at:%Y-%m-%d %H:%M:%S} UTC."
    if isinstance(matter, Incident):
        waiting = storms.waiting(matter.agent)
        return f"{matter.agent} is away: {matter.cause}", "\n".join(
            [
                f"The service of agent {matter.agent} does not answer: {matter.message}",
                since,
                f"{waiting['steps']} steps of {waiting['jobs']} jobs are parked. Nothing is charged, and they go on by "
                "themselves once it answers.",
            ]
        )
    number = f"{matter.jobs} job needs" if matter.jobs == 1 else f"{matter.jobs} jobs need"
    lines = [f"{number} a person: {matter.cause}", since, "Among them:", *(f"  {job}" for job in matter.examples)]
    return f"{number} a person: {matter.cause}", "\n".join(lines)


@transaction.atomic
def note_needs() -> None:
    """Write down for which causes jobs need a person now, and close those for which none does any more."""
    still = {need.cause: need for need in Need.objects.select_for_update(no_key=True).filter(closed_at__isnull=True)}
    present, found = now(), _causes()  # looked for under the lock, or what another one has just written down is closed
    for cause in found.keys() - still.keys():
        Need.objects.get_or_create(cause=cause, closed_at=None, defaults={"opened_at": present} | _extent(found[cause]))
    for cause in found.keys() & still.keys():
        if still[cause].jobs != len(found[cause]):
            Need.objects.filter(pk=still[cause].pk).update(**_extent(found[cause]))
    ended = [need.pk for cause, need in still.items() if cause not in found]
    Need.objects.filter(pk__in=ended).update(closed_at=present)


def _extent(jobs: set[str]) -> dict[str, object]:
    return {"jobs": len(jobs), "examples": sorted(jobs)[-_EXAMPLES:]}


def _causes() -> dict[str, set[str]]:
    """The jobs that need a person, by cause."""
    found: dict[str, set[str]] = defaultdict(set)
    escalated = Step.objects.escalated().order_by().values_list("job_id", "job__workflow", "name", "error_message")
    for job, workflow, step, message in escalated.iterator():
        found[f"{workflow}, {step}: {normalised(message)}"[:300]].add(str(job))
    doubts = Attempt.objects.filter(
        in_doubt=True, resolved_by="", step__job__state__in=[JobState.FAILED, JobState.COMPLETED]
    )
    for job, workflow, step in doubts.values_list("step__job_id", "step__job__workflow", "step__name").iterator():
        found[f"{workflow}, {step}: nobody knows whether it was done."].add(str(job))
    for job, workflow in Job.objects.filter(state=JobState.FAILED, partial=True).values_list("pk", "workflow"):
        found[f"{workflow}: only a part of it was undone."].add(str(job))
    return found


def acknowledge(matter: Matter, *, actor: str) -> None:
    """Somebody has it in hand: it is not told again. Raises WrongState when it is over, or was acknowledged before."""
    open_one = type(matter)._default_manager.filter(pk=matter.pk, closed_at__isnull=True, acknowledged_at__isnull=True)
    if not open_one.update(acknowledged_at=now(), acknowledged_by=actor):
        raise WrongState("It is over, or somebody has acknowledged it before.")
