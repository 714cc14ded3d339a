"""Ours against cronsim's own walk through a zone: random expressions of all kinds, round each change of the clocks.

Where they differ, one of the reasons on the list of docs/reference/cron.md must explain it, moment by moment.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from tests.unit.test_schedules_times import ZONES
from workflows.timing import local
from workflows.timing.timetable import Timetable, fault_in_cron

PAGE = Path(__file__).parents[2] / "docs/reference/cron.md"
SECOND = timedelta(seconds=1)
AROUND = timedelta(days=1)
SINCE, UNTIL = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)

NO_WHOLE_HOUR, MIDNIGHT, ENDLESS = "no-whole-hour", "midnight", "endless"


class Endless(Exception):
    """cronsim walks and walks."""


class Bounded(CronSim):
    """cronsim, but for its walks without an end."""

    steps = 0

    def tick(self, seconds: int = 1) -> None:
        self.steps += 1
        if self.steps > 20_000:
            raise Endless
        super().tick(seconds)


def field(draw: random.Random, low: int, high: int) -> str:
    first, last = sorted(draw.sample(range(low, high + 1), 2))
    return draw.choice(
        [
            *("*", f"*/{draw.randint(1, high // 2)}", f"{first}", f"{first}-{last}", f"{first},{last}"),
            *(f"{first}-{last}/{draw.randint(1, 7)}", f"{first}/{draw.randint(1, 9)}", f"{first},{last}-{high}"),
        ]
    )


def expression(draw: random.Random) -> str:
    """Any that can be followed, most of them so that they fall due in the days around a change."""
    while True:
        minute, hour = field(draw, 0, 59), draw.choice([field(draw, 0, 23), field(draw, 0, 4)])
        day = draw.choice([*("*" * 6), field(draw, 1, 31), "L", "LW", "*/2"])
        month = draw.choice([*("*" * 9), field(draw, 1, 12)])
        weekday = draw.choice([*("*" * 6), field(draw, 0, 7), "MON-FRI", "0#1", "7L", "*/2"])
        text = f"{minute} {hour} {day} {month} {weekday}"
        if fault_in_cron(text) is None:
            return text


def changes(zone: ZoneInfo) -> Iterator[datetime]:
    """In two years; or some day, where there is none."""
    change = local.next_change(zone, SINCE)
    if change is None:
        yield SINCE + timedelta(days=200)
    while change is not None and change < UNTIL:
        yield change
        change = local.next_change(zone, change)


def cronsims(text: str, zone: ZoneInfo, since: datetime, until: datetime) -> list[datetime]:
    found = []
    for due in Bounded(text, since.astimezone(zone)):
        if due.astimezone(UTC) >= until:
            break
        found.append(due.astimezone(UTC))
    return found


def is_named(text: str, moment: datetime, zone: ZoneInfo) -> bool:
    """Whether the expression names what clocks in the zone show at this moment."""
    shown = moment.astimezone(zone).replace(tzinfo=None)
    return next(CronSim(text, shown - SECOND), None) == shown


def why_they_differ(text: str, zone: ZoneInfo, change: datetime, ours: set[datetime], theirs: set[datetime]) -> str:
    """The reason, or nothing where none holds for each moment that only one of them has."""
    before, after = ((change + span).astimezone(zone) for span in (-SECOND, timedelta(0)))
    moved = (after.utcoffset() or timedelta(0)) - (before.utcoffset() or timedelta(0))
    if not all(is_named(text, moment, zone) or moment == change for moment in ours - theirs):
        return ""
    if moved % timedelta(hours=1) or after.minute:
        return NO_WHOLE_HOUR
    midnight_is_left_out = before.date() < after.date() and moved > timedelta(0)
    only_theirs_are_unnamed = not any(is_named(text, moment, zone) for moment in theirs - ours)
    return MIDNIGHT if midnight_is_left_out and only_theirs_are_unnamed else ""


def compare(zone_name: str, each: int) -> int:
    zone, draw = ZoneInfo(zone_name), random.Random(zone_name)
    compared, unexplained = 0, []
    for change in changes(zone):
        for _ in range(each):
            text, since = expression(draw), change - AROUND - timedelta(seconds=draw.randrange(86_400))
            until = change + AROUND
            ours = Timetable(cron=(text,), timezone=zone_name).between(since + SECOND, until)
            compared += 1
            try:
                theirs = cronsims(text, zone, since, until)
            except Endless:
                assert zone_name == "Pacific/Chatham", text
                continue
            if ours != theirs and not why_they_differ(text, zone, change, set(ours), set(theirs)):
                unexplained.append((text, zone_name, since, ours, theirs))
    assert unexplained == []
    return compared


@pytest.mark.parametrize("zone", ZONES)
def test_random_expressions_fall_due_as_cronsim_says_or_for_a_reason_that_is_known(zone: str) -> None:
    assert compare(zone, 40) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_many_random_expressions_fall_due_as_cronsim_says_or_for_a_reason_that_is_known(zone: str) -> None:
    assert compare(zone, 200) >= 200


@pytest.mark.parametrize(
    ("reason", "text", "zone", "since", "ours", "theirs"),
    [
        (
            NO_WHOLE_HOUR,
            "37 * * * *",
            "Australia/Lord_Howe",
            "2026-10-03T15:10",
            "2026-10-03T15:37",
            "2026-10-03T16:37",
        ),
        (MIDNIGHT, "*/6 */2 */2 * *", "America/Santiago", "2027-09-05T03:30", "2027-09-05T05:00", "2027-09-05T04:00"),
    ],
)
def test_a_reason_is_one_that_can_be_seen_and_is_in_the_documentation(
    reason: str, text: str, zone: str, since: str, ours: str, theirs: str
) -> None:
    begin, here = datetime.fromisoformat(since).replace(tzinfo=UTC), ZoneInfo(zone)
    assert Timetable(cron=(text,), timezone=zone).next_after(begin) == datetime.fromisoformat(ours).replace(tzinfo=UTC)
    assert next(CronSim(text, begin.astimezone(here))).astimezone(UTC) == datetime.fromisoformat(theirs).replace(
        tzinfo=UTC
    )
    assert f"| `{reason}` | `{text}` in {zone} |" in PAGE.read_text()


def test_where_cronsim_never_ends_ours_does() -> None:
    text, zone = "*/3 3-4 * * *", "Pacific/Chatham"
    since, until = datetime(2027, 4, 2, 7, tzinfo=UTC), datetime(2027, 4, 4, 14, tzinfo=UTC)
    with pytest.raises(Endless):
        cronsims(text, ZoneInfo(zone), since, until)
    ours = Timetable(cron=(text,), timezone=zone).between(since, until)
    assert len(ours) == 2 * 40 + 15  # two hours on each day, and three quarters of one a second time
    assert all(is_named(text, moment, ZoneInfo(zone)) for moment in ours)
    assert f"| `{ENDLESS}` | `{text}` in {zone} |" in PAGE.read_text()
