"""Entries of a calendar: all that is said must hold, in the zone, also on the days on which clocks change."""

import random
import time
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.unit.test_schedules_times import ZONES, at
from workflows import Calendar
from workflows.exceptions import InvalidInput, InvalidWorkflow
from workflows.timing.timetable import Timetable


def falls_due(since: str, count: int, zone: str, *entries: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for due in Timetable(calendar=entries, timezone=zone).after(at(since)):  # type: ignore[arg-type]  # as JSON has it
        found.append(due.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes"))
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize(
    ("since", "zone", "entries", "expected"),
    [
        # All that is said holds: Fridays that are the 13th.
        ("2026-01-01T00:00", "UTC", [{"day": 13, "weekday": "FRI", "hour": 9}],
         ["2026-02-13T09:00+00:00", "2026-03-13T09:00+00:00", "2026-11-13T09:00+00:00", "2027-08-13T09:00+00:00"]),
        ("2027-01-01T00:00", "UTC", [{"day": "25-31", "weekday": "5L", "hour": "8,20", "month": "MAR-APR"}],
         ["2027-03-26T08:00+00:00", "2027-03-26T20:00+00:00", "2027-04-30T08:00+00:00"]),
        # Midnight of every day where nothing else is said, and nothing after its years.
        ("2027-12-30T12:00", "Europe/Berlin", [{"year": 2027}], ["2027-12-31T00:00+01:00"]),
        ("2020-01-01T00:00", "UTC", [{"year": "2027,2029", "month": 6, "day": 1}],
         ["2027-06-01T00:00+00:00", "2029-06-01T00:00+00:00"]),
        # The rules of cron on the days on which clocks change.
        ("2027-03-27T12:00", "Europe/Berlin", [{"hour": 2, "minute": 30}],
         ["2027-03-28T03:00+02:00", "2027-03-29T02:30+02:00"]),
        ("2027-10-30T12:00", "Europe/Berlin", [{"hour": 2, "minute": 30}],
         ["2027-10-31T02:30+02:00", "2027-11-01T02:30+01:00"]),
        # Several: in order, each moment once.
        ("2027-03-04T12:00", "UTC", [{"weekday": "FRI"}, {"day": 5}, {"day": 6}],
         ["2027-03-05T00:00+00:00", "2027-03-06T00:00+00:00", "2027-03-12T00:00+00:00"]),
    ],
)  # fmt: skip
def test_falls_due(since: str, zone: str, entries: list[dict[str, Any]], expected: list[str]) -> None:
    ends = any("year" in entry for entry in entries)
    assert falls_due(since, len(expected) + ends, zone, *entries) == expected


@pytest.mark.parametrize("zone", ZONES)
def test_an_entry_falls_due_as_the_same_in_cron(zone: str) -> None:
    """But in the zones where the last hour of a day is left out what is due in it belongs to the day after."""
    draw = random.Random(zone)
    since, until = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    for _ in range(4):
        minute, hour = draw.choice(["0", "*/30", "15,45"]), draw.choice(["*", "2", "1-4", "23"])
        day, month = draw.choice(["*", "1-7", "L"]), draw.choice(["*", "3-4,9-11"])
        entry = {"minute": minute, "hour": hour, "day": day, "month": month}
        cron = Timetable(cron=(f"{minute} {hour} {day} {month} *",), timezone=zone)
        assert Timetable(calendar=(entry,), timezone=zone).between(since, until) == cron.between(since, until)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"dya": 13}, "has no 'dya'. Did you mean 'day'?"),
        ({"day": 32}, "is wrong: day-of-month."),
        ({"day": 30, "month": 2}, "is wrong: day-of-month."),
        ({"day": "1-7", "weekday": "MON#5", "hour": "*", "minute": "*"}, "never comes"),
        ({"hour": 24}, "is wrong: hour."),
        ({"year": "soon"}, "is wrong"),
        ({"year": 1066}, "names no year from 1970 to 2199"),
        ({"day": "1 * * * *"}, "is not one word"),
        ({"day": True}, "neither a number nor a short text"),
        ({"day": "1," * 200}, "neither a number nor a short text"),
    ],
)
def test_an_entry_that_cannot_be_followed_is_refused_at_once_and_says_why(entry: dict[str, Any], fault: str) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidInput) as caught:
        Timetable(calendar=(entry,))  # type: ignore[arg-type]
    assert caught.value.errors[0]["pointer"] == "/calendar"
    assert fault in caught.value.errors[0]["message"]
    assert time.monotonic() - began < 2


def test_an_entry_is_said_in_words_and_stored_as_it_was_said() -> None:
    calendar = Calendar({"day": 13, "weekday": "FRI", "hour": 9, "year": "2027-2029"}, timezone="Europe/Berlin")
    timetable = calendar.timetable
    assert timetable.in_words() == (
        "At 09:00 on the 13th day of every month, but only on Friday, in 2027-2029 (Europe/Berlin)"
    )
    assert timetable.to_json()["calendar"] == [{"year": "2027-2029", "day": "13", "weekday": "FRI", "hour": "9"}]
    assert Timetable.from_json(timetable.to_json()) == timetable
    with pytest.raises(InvalidWorkflow, match="has no 'dya'"):
        Calendar({"dya": 13})


def test_a_timetable_that_was_stored_before_there_were_calendars_can_be_read() -> None:
    document = Timetable(every=60).to_json()
    del document["calendar"]
    assert Timetable.from_json(document) == Timetable(every=60)


def test_a_rare_day_is_found_fast_however_many_minutes_it_has() -> None:
    began = time.monotonic()
    timetable = Timetable(calendar=({"day": 29, "month": 2, "weekday": "SUN", "hour": "*", "minute": "*"},))  # type: ignore[arg-type]
    assert timetable.next_after(at("2027-01-01T00:00")) == at("2032-02-29T00:00")
    assert timetable.next_after(at("2032-02-29T23:59")) == at("2060-02-29T00:00")
    assert time.monotonic() - began < 2
