"""Word to people: one message for each outage and for each cause for which jobs need a person, not one for each job.

It is repeated every few hours until somebody acknowledges it, and falls silent when the cause is mended. Nothing is sent
within a transaction, and nothing of the supervisor waits for a mail server.
"""

import logging
import threading
from datetime import datetime, timedelta

from django.conf import settings
from django.core.mail import send_mail
from django.db import connection
from django.db.models import Q, QuerySet

from supervisor import needs, storms
from supervisor.models import Incident, Need
from supervisor.needs import M, Matter
from workflows.clock import now
from workflows.conf import conf

logger = logging.getLogger(__name__)

_under_way = threading.Lock()


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
    needs.note_needs()
    if not settings.SAG_NOTIFY:
        return 0
    present = now()
    matters: list[Matter] = [
        *_to_tell(Incident.objects.all(), present),
        *_to_tell(Need.objects.awake(present), present),
    ]
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
