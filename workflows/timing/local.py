"""A cron expression in a time zone, as moments in UTC.

The rule for the days on which clocks change is the one of Debian's cron. Fixed times (neither minute nor hour begins with
`*`) fall due once a day: in the hour that is left out at the first moment after it, in the hour that comes twice the first
time. All others follow the clock on the wall as it really runs: not at all in the hour that is left out, twice in the
other. cronsim finds the wall's times; what they mean in a zone is decided here, because its own walk over the change
misses times where clocks move by half an hour.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_LOOK_FOR_CHANGES = timedelta(days=370)


def due_after(expression: str, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
    """The due times after this moment, in order. Ends where there is none for fifty years, or time as we count it ends."""
    minute, hour = expression.split()[:2]
    follows_the_wall = minute.startswith("*") or hour.startswith("*")
    try:
        yield from (_on_the_wall if follows_the_wall else _once_each)(expression, zone, moment)
    except OverflowError:
        return


def first_moment(local: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which clocks show this time, or the first after it where they leave it out."""
    moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == local:
        return moment
    return _change_between(zone, local.replace(tzinfo=zone, fold=1).astimezone(UTC), moment)


def next_change(zone: ZoneInfo, moment: datetime) -> datetime | None:
    """When clocks in the zone change next, or None where they do not within a year and a bit."""
    change = _next_change(zone, moment)
    return change if _offset(zone, change) != _offset(zone, moment) else None


def _once_each(expression: str, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
    last = moment
    for local in CronSim(expression, moment.astimezone(zone).replace(tzinfo=None, fold=0)):
        due = first_moment(local, zone)
        if due > last:
            yield due
            last = due


def _on_the_wall(expression: str, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
    """Between two changes of the clocks the wall is as far from UTC everywhere."""
    since, offset = moment, _offset(zone, moment)
    while True:
        change = _next_change(zone, max(moment, since))
        for local in CronSim(expression, (since + offset).replace(tzinfo=None)):
            due = local.replace(tzinfo=UTC) - offset
            if due >= change:
                break
            yield due
        else:
            return
        since, moment, offset = change - _SECOND, change, _offset(zone, change)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _next_change(zone: ZoneInfo, moment: datetime) -> datetime:
    """When clocks change next, or a moment a year on where they do not."""
    offset, last = _offset(zone, moment), moment + _LOOK_FOR_CHANGES
    while moment < last:
        if _offset(zone, moment + _DAY) != offset:
            return _change_between(zone, moment, moment + _DAY)
        moment += _DAY
    return moment


def _change_between(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The first second with the offset that holds at `after`; at `before` another one does."""
    before, after = before.replace(microsecond=0), after.replace(microsecond=0)
    offset = _offset(zone, after)
    while after - before > _SECOND:
        middle = before + (after - before) // (2 * _SECOND) * _SECOND
        if _offset(zone, middle) == offset:
            after = middle
        else:
            before = middle
    return after
