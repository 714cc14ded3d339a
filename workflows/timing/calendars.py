"""An entry of a calendar: on which days, at which times, in which years.

Its fields are written like those of cron, but all of them must hold: the 13th that is a Friday, not either of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from workflows.plans.nearest import did_you_mean
from workflows.timing import local

_MOMENT = timedelta(microseconds=1)
_YEARS = range(1970, 2200)
_LONGEST_FIELD = 100
_SOME_DAY = datetime(2024, 1, 1)


@dataclass(frozen=True, kw_only=True)
class CalendarEntry:
    """Midnight of every day, where nothing else is said."""

    year: str = "*"
    month: str = "*"
    day: str = "*"
    weekday: str = "*"
    hour: str = "0"
    minute: str = "0"

    @staticmethod
    def read(document: "Mapping[str, Any] | CalendarEntry") -> "CalendarEntry":
        """From JSON, where numbers may be numbers."""
        if isinstance(document, CalendarEntry):
            return document
        return CalendarEntry(**{name: str(value) for name, value in document.items()})

    def to_json(self) -> dict[str, str]:
        """What was said of it."""
        return {name: value for name, value in asdict(self).items() if value != getattr(CalendarEntry, name)}

    def due_after(self, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
        """The due times after this moment, in order. Ends with its years."""
        years = _years(self.year)
        begin = max(moment.astimezone(zone).date(), datetime(min(years), 1, 1).date())
        last = moment
        for day in self._days(datetime(begin.year, begin.month, begin.day) - timedelta(days=1), max(years)):
            if day.year in years:
                expression = f"{self.minute} {self.hour} {day.day} {day.month} *"
                before = local.first_moment(day, zone) - _MOMENT
                after = local.first_moment(day + timedelta(days=2), zone)
                for due in local.due_after(expression, zone, before):
                    if due >= after:
                        break
                    if due > last:
                        yield due
                        last = due

    def _days(self, since: datetime, last_year: int) -> Iterator[datetime]:
        weekdays = CronSim(f"0 0 * * {self.weekday}", _SOME_DAY)
        days = takewhile(lambda day: day.year <= last_year, CronSim(f"0 0 {self.day} {self.month} *", since))
        return (day for day in days if weekdays.match_dow(day))

    def in_words(self) -> str:
        """As people say it."""
        words = CronSim(f"{self.minute} {self.hour} {self.day} {self.month} *", _SOME_DAY).explain()
        if self.weekday != "*":
            on = CronSim(f"0 0 * * {self.weekday}", _SOME_DAY).explain().removeprefix("At 00:00 ")
            words += f", but only {on}" if self.day != "*" or self.month != "*" else f", {on}"
        return words if self.year == "*" else f"{words}, in {self.year}"

    def never_comes(self) -> bool:
        """Not in fifty years, nor therefore ever."""
        return next(self._days(_SOME_DAY, _SOME_DAY.year + 50), None) is None


def fault_in_entry(document: Mapping[str, Any] | CalendarEntry) -> str | None:
    """Why this entry cannot be followed, or None."""
    given = document.to_json() if isinstance(document, CalendarEntry) else dict(document)
    names = CalendarEntry.__dataclass_fields__
    for name, value in given.items():
        if name not in names:
            return f"has no {name!r}.{did_you_mean(name, names)}"
        if isinstance(value, bool) or not isinstance(value, str | int) or not 0 < len(str(value)) <= _LONGEST_FIELD:
            return f"has a {name} that is neither a number nor a short text."
    entry = CalendarEntry.read(given)
    if any(len(value.split()) != 1 for value in asdict(entry).values()):
        return "has a field that is not one word, like 1-5."
    try:
        _years(entry.year)
        CronSim(f"{entry.minute} {entry.hour} * * *", _SOME_DAY)
        never = entry.never_comes()
    except (CronSimError, AssertionError, ValueError) as error:
        return f"is wrong: {str(error).removeprefix('Bad ') or 'one of its fields cannot be read'}."
    return "never comes: no day is like that." if never else None


def _years(text: str) -> set[int]:
    """Raises ValueError."""
    if text == "*":
        return set(_YEARS)
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1)) & set(_YEARS) or _no_year(part)
    return found


def _no_year(text: str) -> set[int]:
    raise ValueError(f"{text!r} names no year from {_YEARS[0]} to {_YEARS[-1]}")
