"""The record of due times: nothing is missing in it unseen, and what is old is forgotten."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import QuerySet

from supervisor import doctor, retention
from tests.integration.engine import Engine
from tests.integration.recurring import EACH_MINUTE, HOUR, MINUTE, MORNING, Diary, due_times
from workflows import schedules, tick_records, ticks
from workflows.clock import now
from workflows.models import Schedule, ScheduleChange, Tick

DAY = timedelta(days=1)


@pytest.fixture
def diary(engine: Engine) -> Diary:
    diary = Diary(engine)
    diary.at(MORNING)
    return diary


def ticked(diary: Diary, *minutes: int) -> Schedule:
    schedule = diary.make(EACH_MINUTE, overlap="allow")
    for minute in minutes:
        diary.at(MORNING + minute * MINUTE)
        diary.look()
    return schedule


def verdict(about: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine() if finding.about == about)


# --- whole ------------------------------------------------------------------------------------------------------------


def test_a_due_time_without_a_row_is_found_and_the_doctor_says_so(diary: Diary) -> None:
    schedule = ticked(diary, 1, 2, 3, 4)
    assert tick_records.missing(schedule, MORNING) == []
    assert verdict("ticks").grade == doctor.Grade.WELL
    Tick.objects.filter(due_at=MORNING + 2 * MINUTE).delete()
    schedule.refresh_from_db()
    assert tick_records.missing(schedule, MORNING) == [MORNING + 2 * MINUTE]
    found = verdict("ticks")
    assert found.grade == doctor.Grade.ILL
    assert f"Chore ({schedule.pk}) has none for 1, the first of 2027-03-04 10:02:00 UTC" in found.said


def test_what_another_timetable_had_not_named_is_not_missing(diary: Diary) -> None:
    schedule = ticked(diary, 1)
    diary.at(MORNING + HOUR + 30 * timedelta(seconds=1))
    schedules.change(schedule.pk, {"every": 10}, actor="ada")
    schedule.refresh_from_db()
    assert tick_records.missing(schedule, MORNING) == []
    diary.at(MORNING + HOUR + MINUTE)
    diary.look()
    schedule.refresh_from_db()
    assert tick_records.missing(schedule, MORNING) == []


# --- forgotten --------------------------------------------------------------------------------------------------------


def test_ticks_are_forgotten_after_ninety_days_but_for_the_last_one_of_what_goes_on(diary: Diary) -> None:
    schedule = ticked(diary, 1, 2, 3)
    diary.at(MORNING + 89 * DAY)
    retention.prune()
    assert Tick.objects.count() == 3
    Schedule.objects.update(next_due=now() + DAY)
    diary.at(MORNING + 91 * DAY)
    retention.prune()
    assert due_times(schedule) == [MORNING + 3 * MINUTE]
    assert Schedule.objects.exists()


def test_what_is_at_work_or_waits_is_not_forgotten(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="buffer_all")
    for minute in (1, 2, 3):
        diary.at(MORNING + minute * MINUTE)
        ticks.open_due()
    Schedule.objects.update(next_due=None)
    diary.at(MORNING + 1000 * DAY)
    assert tick_records.forget_ticks(now() - 90 * DAY, 10, 10) == 0
    assert len(due_times(schedule)) == 3


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_the_first_young_tick_ends_the_search_and_a_batch_is_no_end(diary: Diary, batch: int) -> None:
    schedule = ticked(diary, 1, 2, 3, 4)
    other = diary.make("0 0 1 1 *")
    Tick.objects.create(schedule=other, due_at=MORNING, outcome="skipped", decided_at=MORNING)
    before = MORNING + 3 * MINUTE
    assert tick_records.forget_ticks(before, batch, 100) == 2
    assert due_times(schedule) == [MORNING + 3 * MINUTE, MORNING + 4 * MINUTE]
    assert due_times(other) == [MORNING]


def test_a_schedule_that_is_over_goes_after_a_year_with_its_last_tick_and_its_history(diary: Diary) -> None:
    once, removed, going_on = diary.make(at=(MORNING + MINUTE,)), diary.make(EACH_MINUTE), diary.make("0 0 1 1 *")
    declared = diary.make(EACH_MINUTE)
    Schedule.objects.filter(pk=declared.pk).update(declaration={})
    diary.at(MORNING + MINUTE)
    diary.look()
    for schedule in (removed, declared):
        schedules.remove(schedule.pk, actor="ada")
    diary.at(MORNING + 360 * DAY)
    retention.prune()
    assert set(Schedule.objects.all()) == {once, removed, going_on, declared}
    assert not Tick.objects.exclude(schedule=going_on).exists()
    diary.at(MORNING + 366 * DAY)
    retention.prune()
    assert set(Schedule.objects.all()) == {going_on, declared}
    assert set(ScheduleChange.objects.values_list("schedule", "kind")) == {
        (going_on.pk, "created"),
        (declared.pk, "removed"),
    }


def plan_of(rows: "QuerySet[Tick]") -> str:
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        plan = rows.explain()
        cursor.execute("RESET enable_seqscan")
    return plan


def test_whether_a_later_tick_is_there_is_asked_of_an_index(diary: Diary) -> None:
    schedule = ticked(diary, 1)
    later = Tick.objects.filter(schedule=schedule, kind="due", due_at__gt=MORNING)
    assert "tick_once_per_due_time" in plan_of(later) or "tick_newest" in plan_of(later)
