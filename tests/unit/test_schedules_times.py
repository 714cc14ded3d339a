"""When a timetable falls due, above all on the days on which clocks change. Cases of area D of the public reports."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.exceptions import InvalidInput
from workflows.timing.timetable import Timetable, fault_in_cron

MINUTE = timedelta(minutes=1)
ZONES = [
    *("Europe/Berlin", "Europe/London", "Europe/Lisbon", "Europe/Athens", "Europe/Chisinau", "Atlantic/Azores"),
    *("America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles", "America/St_Johns"),
    *("America/Halifax", "America/Havana", "America/Santiago", "America/Nuuk", "America/Miquelon", "Pacific/Easter"),
    *("Africa/Cairo", "Africa/Casablanca", "Asia/Beirut", "Asia/Jerusalem", "Asia/Kolkata", "Asia/Kathmandu"),
    *("Australia/Sydney", "Australia/Adelaide", "Australia/Lord_Howe", "Pacific/Auckland", "Pacific/Chatham"),
    *("Pacific/Norfolk", "Antarctica/Troll", "UTC"),
]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """In so much time of this thread's own: what else the machine does meanwhile is not counted."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < seconds


def falls_due(cron: str | tuple[str, ...], zone: str, since: str, count: int, **more: Any) -> list[str]:
    """The next due times after a moment in UTC, as clocks in the zone show them, with the offset."""
    timetable = Timetable(cron=(cron,) if isinstance(cron, str) else cron, timezone=zone, **more)
    found = islice(timetable.after(at(since)), count)
    return [due.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes") for due in found]


# --- the rule, zone by zone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "zone", "since", "expected"),
    [
        # Fixed times in the hour that is left out: at the first moment after it, once.
        ("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00", ["2027-03-28T03:00+02:00", "2027-03-29T02:30+02:00"]),
        ("0,30 2 * * *", "Europe/Berlin", "2027-03-27T12:00", ["2027-03-28T03:00+02:00", "2027-03-29T02:00+02:00"]),
        ("0 2,3 * * *", "Europe/Berlin", "2027-03-27T12:00", ["2027-03-28T03:00+02:00", "2027-03-29T02:00+02:00"]),
        ("30 2 * * *", "America/New_York", "2027-03-13T12:00", ["2027-03-14T03:00-04:00", "2027-03-15T02:30-04:00"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00"]),
        ("0 2 * * *", "Antarctica/Troll", "2027-03-27T12:00", ["2027-03-28T03:00+02:00", "2027-03-29T02:00+02:00"]),
        # A whole day left out, when Samoa went over the date line.
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T20:00", ["2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"]),
        # Fixed times in the hour that comes twice: the first time.
        ("30 2 * * *", "Europe/Berlin", "2027-10-30T12:00", ["2027-10-31T02:30+02:00", "2027-11-01T02:30+01:00"]),
        ("30 1 * * *", "America/New_York", "2027-11-06T12:00", ["2027-11-07T01:30-04:00", "2027-11-08T01:30-05:00"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-03T12:00", ["2027-04-04T01:45+11:00", "2027-04-05T01:45+10:30"]),
        # The clock has come round again when it is asked: that day's is over.
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T01:10", ["2027-11-01T02:30+01:00"]),
        # What follows the clock on the wall: twice in the one, not at all in the other.
        ("*/30 * * * *", "Europe/Berlin", "2027-10-31T00:15", ["2027-10-31T02:30+02:00", "2027-10-31T02:00+01:00"]),
        ("*/30 * * * *", "Europe/Berlin", "2027-03-28T00:00", ["2027-03-28T01:30+01:00", "2027-03-28T03:00+02:00"]),
        ("0 */2 * * *", "Australia/Lord_Howe", "2027-04-03T12:30", ["2027-04-04T00:00+11:00", "2027-04-04T02:00+10:30"]),
        # Clocks that never change, a quarter of an hour beside the others.
        ("0 9 * * *", "Asia/Kathmandu", "2027-03-27T12:00", ["2027-03-28T09:00+05:45", "2027-03-29T09:00+05:45"]),
        # Days of the month and of the week, the last ones, the rare ones.
        ("0 8 L * *", "UTC", "2027-02-01T00:00", ["2027-02-28T08:00+00:00", "2027-03-31T08:00+00:00"]),
        ("0 8 * * MON#1", "UTC", "2027-03-02T00:00", ["2027-04-05T08:00+00:00"]),
        ("0 8 * * 5L", "UTC", "2027-03-02T00:00", ["2027-03-26T08:00+00:00"]),
        ("0 0 29 2 *", "UTC", "2027-03-02T00:00", ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
        ("0 0 13 * FRI", "UTC", "2027-08-01T00:00", ["2027-08-06T00:00+00:00", "2027-08-13T00:00+00:00"]),
        ("@weekly", "UTC", "2027-03-02T00:00", ["2027-03-07T00:00+00:00"]),
        # Several at once: in order, each moment once.
        (("0 8 * * 4,5", "0 9 * * 5"), "UTC", "2027-03-04T12:00", ["2027-03-05T08:00+00:00", "2027-03-05T09:00+00:00"]),
        # Steps through one value are that value.
        ("5 17-17/4 * * *", "UTC", "2027-03-04T18:00", ["2027-03-05T17:05+00:00", "2027-03-06T17:05+00:00"]),
    ],
)  # fmt: skip
def test_falls_due(cron: str | tuple[str, ...], zone: str, since: str, expected: list[str]) -> None:
    assert falls_due(cron, zone, since, len(expected)) == expected


def changes(zone: str, year: int) -> Iterator[datetime]:
    """The moments in a year after which clocks show something else than a minute later than before."""
    moment = datetime(year, 1, 1, tzinfo=UTC)
    hours = [moment + timedelta(hours=n) for n in range(366 * 24)]
    for before, after in pairwise(hours):
        if before.astimezone(ZoneInfo(zone)).utcoffset() != after.astimezone(ZoneInfo(zone)).utcoffset():
            yield after


class Wall:
    """What clocks in a zone show, minute by minute, over the days around a moment; and the rule, read from there."""

    def __init__(self, zone: str, around: datetime) -> None:
        self.start = around - timedelta(days=2)
        moments = [self.start + n * MINUTE for n in range(4 * 1440)]
        self.shown = [(moment, moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for moment in moments]

    def as_it_runs(self, minutes: set[int], hours: set[int]) -> list[datetime]:
        return [moment for moment, local in self.shown if local.minute in minutes and local.hour in hours]

    def once_each(self, minutes: set[int], hours: set[int]) -> list[datetime]:
        first: dict[datetime, datetime] = {}
        for moment, local in self.shown:
            first.setdefault(local, moment)
        due = {moment for local, moment in first.items() if local.minute in minutes and local.hour in hours}
        for (_, before), (moment, after) in pairwise(self.shown):
            left_out = [before + n * MINUTE for n in range(1, (after - before) // MINUTE)]
            if any(local.minute in minutes and local.hour in hours for local in left_out):
                due.add(moment)
        return sorted(due)


def some_field(draw: random.Random, most: int) -> tuple[str, set[int]]:
    """A field that names values, and which these are."""
    first, last, step = draw.randint(0, most - 1), draw.randint(0, most - 1), draw.randint(1, 7)
    low, high = min(first, last), max(first, last)
    text, values = draw.choice(
        [
            (f"{first}", {first}),
            (f"{low},{high}", {low, high}),
            (f"{low}-{high}", set(range(low, high + 1))),
            (f"{low}-{high}/{step}", set(range(low, high + 1, step))),
        ]
    )
    return text, values


@pytest.mark.parametrize("zone", ZONES)
def test_random_expressions_fall_due_as_the_wall_clock_says(zone: str) -> None:
    """Against a minute by minute reading of the wall, which knows nothing of cron or of ours."""
    draw = random.Random(zone)
    compared = 0
    for around in [*changes(zone, 2026), datetime(2026, 7, 1, tzinfo=UTC)]:
        wall = Wall(zone, around)
        for _ in range(20):
            (minute, minutes), (hour, hours) = some_field(draw, 60), some_field(draw, 24)
            stars = draw.choice(["", "minute", "hour"])
            if stars == "minute":
                step = draw.randint(1, 30)
                minute, minutes = f"*/{step}", set(range(0, 60, step))
            elif stars == "hour":
                step = draw.randint(1, 12)
                hour, hours = f"*/{step}", set(range(0, 24, step))
            expected = (wall.as_it_runs if stars else wall.once_each)(minutes, hours)
            end = wall.shown[-1][0]
            # The first day shows whether a time of it was the first of its kind; it is not compared.
            since = wall.start + timedelta(days=1)
            found = Timetable(cron=(f"{minute} {hour} * * *",), timezone=zone).between(since, end)
            assert found == [due for due in expected if since <= due < end], (minute, hour, around)
            compared += len(found)
    assert compared > 100


# Without Nuuk, whose clocks leave out the last hour of a day: what is due in it comes on the day after.
@pytest.mark.parametrize("zone", [zone for zone in ZONES if zone != "America/Nuuk"])
@pytest.mark.parametrize("expression", ["0 9 * * *", "30 23 * * *", "30 2 * * *"])
def test_a_daily_time_comes_once_on_each_day_of_a_year__SAS_036(zone: str, expression: str) -> None:
    found = Timetable(cron=(expression,), timezone=zone).between(at("2027-01-02T00:00"), at("2027-12-30T00:00"))
    days = [due.astimezone(ZoneInfo(zone)).date() for due in found]
    assert [later - day for day, later in pairwise(days)] == [timedelta(days=1)] * (len(days) - 1)
    assert len(days) in (362, 361)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_an_interval_takes_no_notice_of_clocks__SAS_037(zone: str) -> None:
    found = Timetable(every=5400, timezone=zone).between(at("2027-01-01T00:00"), at("2028-01-01T00:00"))
    assert {later - due for due, later in pairwise(found)} == {timedelta(minutes=90)}
    assert len(found) == 365 * 16


def test_asking_again_from_any_moment_gives_the_same_due_times() -> None:
    timetable = Timetable(cron=("*/7 1-3 * * *", "10 2 * * *"), timezone="Europe/Amsterdam")
    whole = timetable.between(at("2027-10-30T00:00"), at("2027-11-01T00:00"))
    draw = random.Random(7)
    for _ in range(300):
        moment = at("2027-10-30T00:00") + timedelta(seconds=draw.uniform(0, 170_000))
        assert timetable.next_after(moment) == next((due for due in whole if due > moment), None) or moment > whole[-1]


# --- bounds, days left out, intervals -----------------------------------------------------------------------------------


def test_an_interval_is_counted_from_its_start_or_from_midnight_utc() -> None:
    assert Timetable(every=3600).next_after(at("2027-03-04T10:20")) == at("2027-03-04T11:00")
    from_start = Timetable(every=3600, start_at=at("2027-03-04T10:10"))
    assert from_start.next_after(at("2027-03-04T08:00")) == at("2027-03-04T10:10")
    assert from_start.next_after(at("2027-03-04T10:20")) == at("2027-03-04T11:10")


def test_nothing_falls_due_outside_of_its_bounds() -> None:
    timetable = Timetable(cron=("0 * * * *",), start_at=at("2027-03-04T10:00"), end_at=at("2027-03-04T12:00"))
    assert list(timetable.after(at("2020-01-01T00:00"))) == [at(f"2027-03-04T{hour}:00") for hour in (10, 11, 12)]
    assert timetable.next_after(at("2027-03-04T12:00")) is None


def test_days_that_are_left_out_are_days_of_the_zone() -> None:
    days = {"exclude": ("2027-03-05", "12-25")}
    assert falls_due("0 6 * * *", "Pacific/Auckland", "2027-03-03T00:00", 3, **days) == [
        "2027-03-04T06:00+13:00",
        "2027-03-06T06:00+13:00",
        "2027-03-07T06:00+13:00",
    ]
    assert falls_due("0 6 * * *", "Pacific/Auckland", "2030-12-23T20:00", 1, **days) == ["2030-12-26T06:00+13:00"]


def test_a_timetable_whose_every_day_is_left_out_ends_instead_of_looking_for_ever() -> None:
    with within(5):
        assert Timetable(cron=("* * 25 12 *",), exclude=("12-25",)).next_after(at("2027-01-01T00:00")) is None


def test_moments_come_in_order_and_each_once() -> None:
    moments = (at("2027-03-06T08:00"), at("2027-03-04T08:00"), at("2027-03-06T08:00"))
    assert list(Timetable(at=moments).after(at("2027-03-01T00:00"))) == sorted(set(moments))


def test_the_last_ones_before_a_moment_are_those_that_come_last() -> None:
    timetable = Timetable(cron=("*/5 * * * *",))
    end, since = at("2027-03-04T10:00"), at("2020-01-01T00:00")
    assert timetable.last_before(end, since, 3) == [at(f"2027-03-04T09:{minute}") for minute in (45, 50, 55)]
    yearly = Timetable(cron=("@yearly",))
    assert yearly.last_before(end, since, 2) == [at("2026-01-01T00:00"), at("2027-01-01T00:00")]
    assert timetable.last_before(end, at("2027-03-04T09:50"), 9) == [
        at(f"2027-03-04T09:{minute}") for minute in (50, 55)
    ]


# --- what is refused, and words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("0 0 30 2 *", "its months have no such day"),
        ("0 0 31 4,6,9,11 *", "its months have no such day"),
        ("61 * * * *", "wrong in minute"),
        ("* 24 * * *", "wrong in hour"),
        ("0 0 * 13 *", "wrong in month"),
        ("0 0 * * 8", "wrong in day of week"),
        ("*/0 * * * *", "wrong in minute"),
        ("* * * *", "has 4 fields"),
        ("", "has 0 fields"),
        ("*/5 * * * * *", "field for seconds"),
        ("* * * * * * *", "has 7 fields"),
        ("@yearli", "Did you mean '@yearly'"),
        ("@reboot", "is no nickname"),
        ("0 0 * * *" + " " * 10_000, "longer than 200"),
        ("٣ * * * *", "wrong in minute"),
    ],
)
def test_an_expression_that_cannot_be_followed_is_refused_at_once_and_says_why__SAS_039(
    expression: str, fault: str
) -> None:
    with within(1), pytest.raises(InvalidInput, match=fault) as caught:
        Timetable(cron=(expression,))
    assert caught.value.errors[0]["pointer"] == "/cron"


@pytest.mark.parametrize(
    ("times", "pointer"),
    [
        ({}, "/cron"),
        ({"cron": ("0 0 * * *",), "every": 60}, "/every"),
        ({"every": 0}, "/every"),
        ({"every": 10**12}, "/every"),
        ({"every": 60, "timezone": "Europe/Berln"}, "/timezone"),
        ({"every": 60, "timezone": "/etc/passwd"}, "/timezone"),
        ({"every": 60, "exclude": ("02-30",)}, "/exclude"),
        ({"every": 60, "exclude": ("2027-3-4",)}, "/exclude"),
        ({"every": 60, "start_at": datetime(2027, 1, 1)}, "/start_at"),
        ({"every": 60, "start_at": at("9999-12-31T00:00")}, "/start_at"),
        ({"every": 60, "start_at": at("2027-01-02T00:00"), "end_at": at("2027-01-01T00:00")}, "/end_at"),
        ({"at": (datetime(2027, 1, 1),)}, "/at"),
        ({"cron": ("0 0 * * *",) * 21}, "/cron"),
    ],
)
def test_a_timetable_that_makes_no_sense_is_refused_where_it_does_not(times: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Timetable(**times)
    assert caught.value.errors[0]["pointer"] == pointer


FIELD = st.text(alphabet="0123456789*/,-#LWMONJAFEB?H ", max_size=12)


@settings(max_examples=600, deadline=None)
@given(st.lists(FIELD, min_size=5, max_size=5).map(" ".join))
def test_any_text_is_either_refused_or_can_be_followed_and_said_in_words(expression: str) -> None:
    with within(2):
        if fault_in_cron(expression) is not None:
            return
        timetable = Timetable(cron=(expression,), timezone="America/St_Johns")
        due = timetable.next_after(at("2027-03-04T00:00"))
        assert due is not None
        assert due > at("2027-03-04T00:00")
        assert timetable.in_words().endswith("(America/St_Johns)")
        assert Timetable.from_json(timetable.to_json()) == timetable


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({"cron": ("0 8 * * 1-5",), "timezone": "Europe/Madrid"}, "At 08:00 on Monday through Friday (Europe/Madrid)"),
        ({"cron": ("@daily", "0 12 * * 6")}, "At 00:00 every day; At 12:00 on Saturday (UTC)"),
        ({"every": 86_400}, "Every day"),
        ({"every": 5400}, "Every 90 minutes"),
        ({"at": (at("2027-03-04T08:00"),)}, "2027-03-04 08:00:00 UTC"),
        ({"every": 7, "exclude": ("12-25",)}, "Every 7 seconds, not on 12-25"),
        ({"every": 60, "end_at": at("2027-03-04T08:00")}, "Every minute, until 2027-03-04 08:00 UTC"),
    ],
)
def test_a_timetable_is_said_in_words(times: dict[str, Any], words: str) -> None:
    assert Timetable(**times).in_words() == words
