"""Timetable: at which moments something is due. Checked when it is made, so that a stored one always can be followed."""

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from workflows.exceptions import InvalidInput
from workflows.plans.json_values import printable
from workflows.plans.nearest import did_you_mean
from workflows.timing import local
from workflows.timing.calendars import CalendarEntry, fault_in_entry
from workflows.timing.zones import fault_in_zone

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# "17-17/4" is 17, as in other crons; cronsim takes it for "17/4", which is 17 and every fourth after it.
_STEPS_THROUGH_ONE = re.compile(r"(?<![\w#-])(\w+)-\1/\d+")
_LONGEST_EXPRESSION = 200
KINDS = ("cron", "every", "at", "calendar")
_MOST = {"cron": 20, "at": 500, "calendar": 20, "exclude": 400}
_LONGEST_INTERVAL = 366 * 86_400
_YEARS = range(1970, 2200)
_SOME_DAY = datetime(2024, 1, 1)  # where it never comes in the fifty years after a day, it never comes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = timedelta(microseconds=1)
_DAYS_LEFT_OUT_IN_A_ROW = 1500
_LOOK_BACK = timedelta(days=35)
_A_DAY_OF_EACH_YEAR = re.compile(r"\d\d-\d\d")
_PARTS = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1}


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """Cron expressions or entries of a calendar in a zone, or an interval, or moments; within `start_at` and `end_at`, but
    on no day of `exclude`.

    An interval is counted from `start_at`, and without one from midnight UTC, so that an edit does not move it. Excluded
    days are dates of the zone: "2027-12-25", or "12-25" for each year's.
    """

    cron: tuple[str, ...] = ()
    every: int | None = None
    at: tuple[datetime, ...] = ()
    calendar: tuple[CalendarEntry, ...] = ()
    timezone: str = "UTC"
    exclude: tuple[str, ...] = ()
    start_at: datetime | None = None
    end_at: datetime | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput with all that is wrong."""
        if faults := list(self._faults()):
            raise InvalidInput(
                f"This timetable cannot be followed: {faults[0][0]} {faults[0][1]}",
                errors=[{"pointer": f"/{field}", "message": printable(fault)} for field, fault in faults],
            )
        object.__setattr__(self, "cron", tuple(_plain(expression) for expression in self.cron))
        object.__setattr__(self, "calendar", tuple(CalendarEntry.read(entry) for entry in self.calendar))

    # --- when ---

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The due times after this moment, in order and each once."""
        if self.start_at is not None:
            moment = max(moment, self.start_at - _MOMENT)
        for _ in range(_DAYS_LEFT_OUT_IN_A_ROW):
            for due in self._times(moment):
                if self.end_at is not None and due > self.end_at:
                    return
                if self._is_left_out(due):
                    moment = self._end_of_day(due)
                    break
                yield due
            else:
                return

    def next_after(self, moment: datetime) -> datetime | None:
        """The first due time after this moment, or None when there is none any more."""
        return next(self.after(moment), None)

    def between(self, start: datetime, end: datetime, most: int | None = None) -> list[datetime]:
        """The due times from `start` on that come before `end`, the first `most` of them."""
        found = []
        for due in islice(self.after(start - _MOMENT), most):
            if due >= end:
                break
            found.append(due)
        return found

    def last_before(self, end: datetime, since: datetime, count: int) -> list[datetime]:
        """The last `count` due times before `end`, none from before `since`. Looks back no further than it must."""
        span = timedelta(hours=1)
        while True:
            start = max(since, end - span)
            found = self.between(start, end)
            if len(found) >= count or start == since:
                return found[-count:]
            span *= 2

    def around_next_change(self, moment: datetime, count: int) -> tuple[datetime, list[datetime]] | None:
        """When clocks in the zone change next, and the last and the first `count` due times before and after it."""
        change = local.next_change(ZoneInfo(self.timezone), moment)
        if change is None:
            return None
        before = self.last_before(change, max(moment, change - _LOOK_BACK), count)
        return change, [*before, *islice(self.after(change - _MOMENT), count)]

    def _times(self, moment: datetime) -> Iterator[datetime]:
        last = None
        zone = ZoneInfo(self.timezone)
        streams = [local.due_after(expression, zone, moment) for expression in self.cron]
        streams += [entry.due_after(zone, moment) for entry in self.calendar]
        for due in heapq.merge(*streams, self._intervals(moment), iter(sorted(at for at in self.at if at > moment))):
            if due != last:
                yield due
                last = due

    def _intervals(self, moment: datetime) -> Iterator[datetime]:
        if self.every is None:
            return
        interval, origin = timedelta(seconds=self.every), self.start_at or _EPOCH
        due = origin + ((moment - origin) // interval + 1) * interval
        try:
            while True:
                yield due
                due += interval
        except OverflowError:
            return

    def _is_left_out(self, due: datetime) -> bool:
        day = due.astimezone(ZoneInfo(self.timezone)).date().isoformat() if self.exclude else ""
        return day in self.exclude or day[5:] in self.exclude

    def _end_of_day(self, due: datetime) -> datetime:
        zone = ZoneInfo(self.timezone)
        tomorrow = due.astimezone(zone).date() + timedelta(days=1)
        return local.first_moment(datetime(tomorrow.year, tomorrow.month, tomorrow.day), zone) - _MOMENT

    # --- what is wrong ---

    def _faults(self) -> Iterator[tuple[str, str]]:
        given = [name for name in KINDS if getattr(self, name) not in ((), None)]
        if len(given) != 1:
            yield given[1] if given else "cron", f"must be there alone: a timetable has one of {', '.join(KINDS)}."
        for name, most in _MOST.items():
            if len(getattr(self, name)) > most:
                yield name, f"has more than {most} entries."
        for expression in self.cron[: _MOST["cron"]]:
            if fault := fault_in_cron(expression):
                yield "cron", fault
        for entry in self.calendar[: _MOST["calendar"]]:
            if fault := fault_in_entry(entry):
                yield "calendar", fault
        if self.every is not None and not 1 <= self.every <= _LONGEST_INTERVAL:
            yield (
                "every",
                f"must be a whole number of seconds from 1 to {_LONGEST_INTERVAL} (a year), not {self.every}.",
            )
        if fault := fault_in_zone(self.timezone):
            yield "timezone", fault
        for text in self.exclude[: _MOST["exclude"]]:
            if not _is_day(text):
                yield "exclude", f"{text!r} is no day; write 2027-12-25, or 12-25 for each year's."
        yield from self._faults_in_moments()

    def _faults_in_moments(self) -> Iterator[tuple[str, str]]:
        named = [("start_at", self.start_at), ("end_at", self.end_at), *(("at", moment) for moment in self.at)]
        moments = [(name, moment) for name, moment in named if moment is not None]
        for name, moment in moments:
            if moment.tzinfo is None:
                yield name, "must say its offset from UTC, or it would mean another moment in each place."
            elif moment.year not in _YEARS:
                yield name, f"must lie in the years from {_YEARS[0]} to {_YEARS[-1]}."
        if self.start_at and self.end_at and all(m.tzinfo for _, m in moments) and self.end_at < self.start_at:
            yield "end_at", "lies before start_at."

    # --- as words and as JSON ---

    def in_words(self) -> str:
        """One sentence for people."""
        if self.cron:
            sayings = [CronSim(expression, _SOME_DAY).explain() for expression in self.cron]
            words = f"{'; '.join(sayings)} ({self.timezone})"
        elif self.calendar:
            words = f"{'; '.join(entry.in_words() for entry in self.calendar)} ({self.timezone})"
        elif self.every is not None:
            words = f"Every {_span(self.every)}"
        else:
            words = " and ".join(f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" for moment in sorted(self.at))
        if self.exclude:
            words += f", not on {', '.join(self.exclude)}"
        if self.start_at:
            words += f", from {self.start_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC on"
        if self.end_at:
            words += f", until {self.end_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        return words

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "cron": list(self.cron),
            "every": self.every,
            "at": [moment.isoformat() for moment in self.at],
            "calendar": [entry.to_json() for entry in self.calendar],
            "timezone": self.timezone,
            "exclude": list(self.exclude),
            "start_at": self.start_at and self.start_at.isoformat(),
            "end_at": self.end_at and self.end_at.isoformat(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`."""
        return cls(
            cron=tuple(document["cron"]),
            every=document["every"],
            at=tuple(datetime.fromisoformat(moment) for moment in document["at"]),
            calendar=tuple(CalendarEntry.read(entry) for entry in document.get("calendar", ())),
            timezone=document["timezone"],
            exclude=tuple(document["exclude"]),
            start_at=_moment(document["start_at"]),
            end_at=_moment(document["end_at"]),
        )


def fault_in_cron(expression: str) -> str | None:
    """Why this expression cannot be followed, or None."""
    if len(expression) > _LONGEST_EXPRESSION:
        return f"is longer than {_LONGEST_EXPRESSION} characters."
    if expression.strip().startswith("@"):
        if expression.strip().lower() in NICKNAMES:
            return None
        return f"{expression!r} is no nickname.{did_you_mean(expression, NICKNAMES)}"
    fields = len(expression.split())
    if fields == 6:
        return (
            f"{expression!r} has a field for seconds, and would fall due up to every second; for that there is every."
        )
    if fields != 5:
        return f"{expression!r} has {fields} fields, not the five of minute, hour, day of month, month and day of week."
    try:
        never = next(CronSim(expression, _SOME_DAY), None) is None
    except (CronSimError, AssertionError) as error:
        fault = str(error).removeprefix("Bad ").replace("day-of-", "day of ") or "one of its fields"
        is_a_day = fault == "day of month" and _is_a_day_of_some_month(expression.split()[2])
        return f"{expression!r} is wrong in {fault}{': its months have no such day' if is_a_day else ''}."
    return f"{expression!r} never comes: no day is like that." if never else None


def _is_a_day_of_some_month(day: str) -> bool:
    try:
        CronSim(f"0 0 {day} * *", _SOME_DAY)
    except (CronSimError, AssertionError):
        return False
    return True


def _plain(expression: str) -> str:
    """The same in five fields that cronsim reads as everybody does."""
    text = NICKNAMES.get(expression.strip().lower(), expression)
    return _STEPS_THROUGH_ONE.sub(r"\1", text)


def _is_day(text: str) -> bool:
    """A leap year stands in where the year is left open."""
    try:
        date.fromisoformat(f"2024-{text}" if _A_DAY_OF_EACH_YEAR.fullmatch(text) else text)
    except ValueError:
        return False
    return len(text) in (5, 10)


def _span(seconds: int) -> str:
    """ "90 seconds", "2 hours", "day"."""
    for name, size in _PARTS.items():
        if seconds % size == 0:
            return name if seconds == size else f"{seconds // size} {name}s"
    raise AssertionError("every whole number is a multiple of one")


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def as_tuple(value: Sequence[Any] | Any) -> tuple[Any, ...]:
    """One, or several, or none."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)
