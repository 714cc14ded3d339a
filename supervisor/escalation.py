"""Word to people: one message for each outage and for each cause for which jobs need a person, not one for each job.

It is repeated every few hours until somebody acknowledges it. That it is over is told once, where it was told at all. Each
channel has its own tellings: what one of them has told is not told again because another one could not. Nothing is sent
within a transaction, and nothing of the supervisor waits for a channel.
"""

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Q
from uuid_utils.compat import uuid7

from supervisor import channels, needs, news
from supervisor.channels import Channel, Message
from supervisor.models import Incident, Need, Telling
from supervisor.needs import Matter
from workflows.clock import now
from workflows.conf import conf
from workflows.transitions import in_transaction

logger = logging.getLogger(__name__)

_SENT_WITHIN = timedelta(minutes=2)  # after that whoever was to send it is taken for dead, and it is sent again
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=30)
_NEWS_FOR = timedelta(days=1)  # that something is over is not told later than this
_ERROR_AT_MOST = 500

_MODELS: dict[str, type[Matter]] = {Telling.Kind.INCIDENT: Incident, Telling.Kind.NEED: Need}

_threads: dict[str, threading.Thread] = {}
_guard = threading.Lock()


def tell_aside() -> threading.Thread | None:
    """`tell` beside whatever runs: a thread that looks what is to be told, and one for each channel, so that one which hangs
    keeps neither the sweep nor the other channels waiting. None while the last look goes on.
    """
    return _aside("look", _look_and_tell_aside)


def _look_and_tell_aside() -> None:
    _look()
    for channel in channels.configured():
        _aside(channel.name, functools.partial(_tell_over, channel))


def _aside(name: str, act: Callable[[], object]) -> threading.Thread | None:
    """In a thread of its own. None while the last one of this name is under way."""
    with _guard:
        if name in _threads and _threads[name].is_alive():
            return None
        thread = threading.Thread(target=_act, args=(name, act), name=f"sag-escalation {name}", daemon=True)
        thread.start()
        _threads[name] = thread
    return thread


def _act(name: str, act: Callable[[], object]) -> None:
    try:
        act()
    except Exception:  # the next one looks again
        logger.exception("people could not be told (%s)", name)
    finally:
        connection.close()


def tell() -> int:
    """Tell of what is new, was told long ago and nobody acknowledged, or is over. How many messages went out."""
    _look()
    return sum(_tell_over(channel) for channel in channels.configured())


def _look() -> None:
    for fault in channels.faults():
        logger.error("a channel is left out: %s", fault.said)
    try:
        needs.note_needs()
    except Exception:  # of outages people are told all the same
        logger.exception("the causes for which jobs need a person could not be noted")


def _tell_over(channel: Channel) -> int:
    """What this channel has still to tell. How many messages it took."""
    tellings = {(row.kind, row.matter_id): row for row in Telling.objects.filter(channel=channel.name, over=False)}
    present = now()
    taken = 0
    for kind, matter in _matters(tellings.keys()):
        telling = tellings.pop((kind, matter.pk), None)
        try:
            if due(matter, telling, present) is not None:
                taken += _tell_of(kind, matter, channel)
            elif telling is not None:
                _lay_down(telling, matter, present)
        except Exception:  # one poison row must not keep people from being told of the others
            logger.exception("%s could not be told over %s", matter, channel.name)
            connection.close_if_unusable_or_obsolete()
    Telling.objects.filter(pk__in=[row.pk for row in tellings.values()]).update(attempts=0, over=True)  # of no matter
    return taken


def _matters(told: Collection[tuple[str, int]]) -> Iterator[tuple[str, Matter]]:
    """Those that may have to be told: what is open and not acknowledged, and what was told before. With their kinds."""
    for kind, model in _MODELS.items():
        before = [pk for of, pk in told if of == kind]
        wanted = Q(closed_at__isnull=True, acknowledged_at__isnull=True) | Q(pk__in=before)
        for matter in model._default_manager.filter(wanted).order_by("opened_at"):
            yield kind, matter


def due(matter: Matter, telling: Telling | None, present: datetime) -> Telling.Said | None:
    """What is to be said of it over the channel of this telling now, if anything."""
    told_at = telling.told_at if telling else None
    if telling is not None and (telling.over or _waits(telling, present)):
        return None
    if matter.closed_at is not None:
        return Telling.Said.MENDED if told_at and matter.closed_at > present - _NEWS_FOR else None
    if matter.acknowledged_at is not None or _is_put_off(matter, present):
        return None
    if told_at is None:
        return Telling.Said.OPENED
    return Telling.Said.STILL if told_at < present - timedelta(seconds=conf.notify_again) else None


def _is_put_off(matter: Matter, present: datetime) -> bool:
    return isinstance(matter, Need) and matter.snoozed_until is not None and matter.snoozed_until > present


def _waits(telling: Telling, present: datetime) -> bool:
    """Somebody is sending it, or it failed a short while ago."""
    return telling.attempts > 0 and telling.try_after is not None and telling.try_after > present


def _lay_down(telling: Telling, matter: Matter, present: datetime) -> None:
    """Nothing is to be said now: then nothing waits to be tried again either, and of what is over never will."""
    if _waits(telling, present):
        return
    over = matter.closed_at is not None
    if over or telling.attempts:
        as_seen = Telling.objects.filter(pk=telling.pk, attempts=telling.attempts, told_at=telling.told_at)
        as_seen.update(attempts=0, over=over)


def _tell_of(kind: str, matter: Matter, channel: Channel) -> bool:
    """Marked before it is sent, so that two supervisors do not both send; to be tried again when it could not be."""
    taken = _take(kind, matter.pk, channel)
    if taken is None:
        return False
    telling, message = taken
    mine = Telling.objects.filter(pk=telling.pk, message_id=telling.message_id)
    try:
        channel.send(message)
    except Exception as error:  # whatever a channel raises: it is tried again, and the others are told meanwhile
        said = channels.in_words(error)
        logger.warning("%s could not tell of %s: %s", channel.name, matter, said)
        again = now() + _pause(telling.attempts)
        mine.filter(attempts=telling.attempts).update(try_after=again, last_error=said[:_ERROR_AT_MOST])
        return False
    told_at, mended = now(), telling.said == Telling.Said.MENDED
    mine.update(told_at=told_at, attempts=0, last_error="", over=mended)
    if not mended:
        _MODELS[kind]._default_manager.filter(pk=matter.pk).update(notified_at=told_at)
    return True


@in_transaction
def _take(kind: str, matter_id: int, channel: Channel) -> tuple[Telling, Message] | None:
    """The telling, marked, and what to say. None when it is not to be told any more, or another one is about to."""
    key: dict[str, Any] = {"kind": kind, "matter_id": matter_id, "channel": channel.name}
    rows = Telling.objects.filter(**key)
    if not rows.exists():  # or the insert would wait for whoever changes that row
        Telling.objects.bulk_create([Telling(**key)], ignore_conflicts=True)
    telling = rows.select_for_update(no_key=True, skip_locked=True).first()
    matter = _MODELS[kind]._default_manager.filter(pk=matter_id).first()
    present = now()
    said = due(matter, telling, present) if telling and matter else None
    if telling is None or matter is None or said is None:
        return None
    if not telling.attempts or telling.said != said:
        telling.message_id, telling.attempts = uuid7(), 0
    telling.said = said
    telling.attempts += 1
    telling.try_after = present + _SENT_WITHIN
    telling.save()
    return telling, news.of(matter, said, id=f"msg_{telling.message_id}", present=present)


def _pause(attempts: int) -> timedelta:
    """After so many attempts in vain: half a minute, and each time twice as long."""
    return min(_FIRST_PAUSE * 2.0 ** min(attempts - 1, 20), _LONGEST_PAUSE)


def forget() -> None:
    """What was told of matters that have long been over."""
    before = now() - timedelta(seconds=conf.keep_history)
    Telling.objects.filter(over=True, try_after__lt=before).delete()
