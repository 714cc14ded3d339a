"""What becomes of due times: on time, after an outage, with several openers at once. Cases C and D of the public reports."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, connection, transaction

from tests.integration.engine import Beside, Engine
from tests.integration.recurring import (
    EACH_MINUTE,
    HOUR,
    MINUTE,
    MORNING,
    Diary,
    due_times,
    jobs,
    outcomes,
    started,
)
from workflows import schedules, ticks
from workflows.clock import now
from workflows.models import Job, Schedule, Tick


@pytest.fixture
def diary(engine: Engine) -> Diary:
    diary = Diary(engine)
    diary.at(MORNING)
    return diary


def end_all_jobs() -> None:
    """As if the workers had done them, which is not what is looked at."""
    Job.objects.filter(state="Running").update(state="Completed", open_steps=0, finished_at=now())


# --- on time ----------------------------------------------------------------------------------------------------------


def test_each_due_time_starts_one_job_and_leaves_one_row(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.look_each(timedelta(seconds=20), MORNING + 5 * MINUTE + timedelta(seconds=5))
    assert due_times(schedule) == [MORNING + n * MINUTE for n in range(1, 6)]
    assert outcomes(schedule) == {"started": 5}
    assert jobs() == 5


def test_nothing_is_due_before_its_time(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + timedelta(seconds=59))
    assert diary.look() == 0
    assert outcomes(schedule) == {}


def test_a_job_carries_its_nominal_time_in_its_key(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE + timedelta(seconds=7))
    diary.look()
    assert Job.objects.get().key == f"schedule:{schedule.pk}:2027-03-04T10:01:00Z"
    assert Tick.objects.get().job == Job.objects.get()


def test_a_due_time_that_was_just_opened_is_never_taken_for_missed__SAS_042(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, catch_up="all")
    for n in range(1, 61):
        diary.at(MORNING + n * MINUTE)
        diary.look()
        diary.at(MORNING + n * MINUTE + timedelta(seconds=7))
        diary.look()
    assert outcomes(schedule) == {"started": 60}
    assert jobs() == 60


def test_due_times_of_the_last_minute_are_all_on_time_whatever_the_catch_up(diary: Diary) -> None:
    schedule = diary.make(every=10, catch_up="none", overlap="allow")
    diary.at(MORNING + timedelta(seconds=60))
    diary.look()
    assert outcomes(schedule) == {"started": 6}


def test_one_moment_falls_due_once_and_never_again(diary: Diary) -> None:
    schedule = diary.make(at=(MORNING + HOUR,))
    diary.look_each(timedelta(minutes=30), MORNING + 3 * HOUR)
    assert started(schedule) == [MORNING + HOUR]
    assert Schedule.objects.get().next_due is None


def test_with_jitter_a_job_begins_later_and_its_tick_has_the_nominal_time(diary: Diary) -> None:
    schedule = diary.make("0 * * * *", jitter=1800)
    diary.at(MORNING + HOUR)
    diary.look()
    tick, job = Tick.objects.get(), Job.objects.get()
    begins = job.steps.get().run_after
    assert tick.due_at == MORNING + HOUR
    assert MORNING + HOUR < begins < MORNING + 1.5 * HOUR
    assert job.steps.get().state == "NotStarted"
    diary.engine.pass_time((begins - now()).total_seconds() + 1)
    assert Job.objects.get().state == "Completed"
    assert outcomes(schedule) == {"started": 1}


# --- after an outage --------------------------------------------------------------------------------------------------


EXPECTED: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"catch_up": "none"}, {"skipped late": 179, "started": 1}),
    ({"catch_up": "latest"}, {"skipped superseded": 178, "started": 2}),
    ({"catch_up": "recent"}, {"skipped limit": 169, "started": 11}),
    ({"catch_up": "all", "catch_up_limit": 10}, {"skipped limit": 169, "started": 11}),
    ({"catch_up": "all", "catch_up_window": 900}, {"skipped window": 165, "started": 15}),
    ({"catch_up": "all", "catch_up_window": 900, "overlap": "allow"}, {"skipped window": 165, "started": 15}),
]


@pytest.mark.parametrize(("policy", "expected"), EXPECTED)
def test_three_hours_away_from_twenty_minutely_schedules__SAS_044(
    diary: Diary, policy: dict[str, Any], expected: dict[str, int]
) -> None:
    """The last due time is on time when they are looked at again, so each policy has one more than it makes up for."""
    made = [diary.make(EACH_MINUTE, **policy) for _ in range(20)]
    diary.at(MORNING + 3 * HOUR)
    late = [MORNING + n * MINUTE for n in range(1, 181)]
    total, before = 20 * expected["started"], 0
    while Tick.objects.filter(outcome="waiting").exists() or before == 0:
        ticks.open_due()
        assert jobs() - before <= ticks.PACE + 20  # what is on time, and no more than a bit of what is late
        before = jobs()
        end_all_jobs()
        assert before <= total
    for schedule in made:
        assert outcomes(schedule) == expected
        assert due_times(schedule) == late
        assert sorted(started(schedule)) == late[180 - expected["started"] :]
    assert jobs() == total


def test_what_is_late_is_started_oldest_first_before_what_is_on_time(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, catch_up="all", catch_up_window=600)
    diary.at(MORNING + 3 * HOUR)
    while diary.look():
        end_all_jobs()
    assert started(schedule) == [MORNING + n * MINUTE for n in range(171, 181)]


def test_what_is_made_up_for_runs_one_after_another_and_knows_its_time__SAS_043(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, catch_up="all", catch_up_limit=10)
    diary.at(MORNING + 4 * MINUTE)
    ticks.open_due()
    assert outcomes(schedule) == {"started": 1, "waiting": 3}
    assert Tick.objects.filter(made_up=True).count() == 3
    for _ in range(4):
        diary.look()
    assert started(schedule) == [MORNING + n * MINUTE for n in (1, 2, 3, 4)]
    keys = list(Job.objects.order_by("pk").values_list("key", flat=True))
    assert [key[-20:] for key in keys] == [f"2027-03-04T10:0{n}:00Z" for n in (1, 2, 3, 4)]


def test_a_run_of_yesterday_is_made_up_for_once_at_its_own_local_time__SAS_041(diary: Diary) -> None:
    schedule = diary.make("0 9 * * *", timezone="Pacific/Auckland", catch_up="latest", catch_up_window=3600)
    for _ in range(24):
        diary.at(now() + HOUR)
        diary.look()
    nine_in_auckland = datetime(2027, 3, 4, 20, tzinfo=UTC)
    assert started(schedule) == [nine_in_auckland]


def test_four_days_away_are_settled_in_bounded_batches(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, catch_up="latest")
    diary.at(MORNING + timedelta(days=4))
    assert (diary.look(), len(due_times(schedule))) == (5000, 5000)
    diary.look()
    diary.look()
    total = 4 * 24 * 60
    assert outcomes(schedule) == {"skipped superseded": total - 2, "started": 2}
    assert len(due_times(schedule)) == len(set(due_times(schedule))) == total


def test_made_up_jobs_that_may_run_together_are_started_at_a_pace(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, catch_up="all", overlap="allow")
    diary.at(MORNING + 2 * HOUR)
    ticks.open_due()
    assert outcomes(schedule) == {"started": 1 + ticks.PACE, "waiting": 119 - ticks.PACE}
    ticks.open_due()
    ticks.open_due()
    assert outcomes(schedule) == {"started": 120}
    assert started(schedule)[0] == MORNING + MINUTE


# --- nobody and somebody ------------------------------------------------------------------------------------------------


def test_openers_at_once_start_one_job_and_do_not_fall_over_each_other__SAS_028_029_033(
    diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE)
    with transaction.atomic():
        Schedule.objects.select_for_update(no_key=True).get()
        other = Beside(ticks.open_due)
        assert other.result() == 0
    for opener in [Beside(ticks.open_due) for _ in range(4)]:
        opener.result()
    assert outcomes(schedule) == {"started": 1}
    assert jobs() == 1
    assert [record.getMessage() for record in caplog.records] == []


def test_an_opener_that_dies_before_its_commit_leaves_nothing_and_the_next_one_opens__SAS_035(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE)
    with transaction.atomic():
        ticks.open_due()
        assert jobs() == 1
        transaction.set_rollback(True)
    assert (jobs(), outcomes(schedule)) == (0, {})
    diary.look()
    assert (jobs(), outcomes(schedule)) == (1, {"started": 1})


def test_the_database_refuses_a_second_row_for_one_due_time(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE)
    diary.look()
    with pytest.raises(IntegrityError, match="tick_once_per_due_time"), transaction.atomic():
        Tick.objects.create(schedule=schedule, due_at=MORNING + MINUTE, outcome="skipped")


def test_a_clock_that_jumps_ahead_and_back_doubles_and_loses_nothing__SAS_050(diary: Diary) -> None:
    hourly, minutely = diary.make("0 * * * *", catch_up="all"), diary.make(EACH_MINUTE, catch_up="all")
    diary.at(MORNING + 65 * MINUTE)
    for _ in range(70):
        diary.look()
    next_due = [Schedule.objects.get(pk=schedule.pk).next_due for schedule in (hourly, minutely)]
    diary.at(MORNING)
    diary.look()
    assert [Schedule.objects.get(pk=schedule.pk).next_due for schedule in (hourly, minutely)] == next_due
    diary.look_each(MINUTE, MORNING + 70 * MINUTE)
    assert started(hourly) == [MORNING + HOUR]
    assert started(minutely) == [MORNING + n * MINUTE for n in range(1, 71)]


def test_a_schedule_that_cannot_be_handled_stops_no_other_one(diary: Diary) -> None:
    broken = [diary.make(EACH_MINUTE) for _ in range(3)]
    whole = diary.make(EACH_MINUTE)
    Schedule.objects.filter(pk__in=[schedule.pk for schedule in broken]).update(timetable={"cron": 1})
    diary.at(MORNING + MINUTE)
    diary.look()
    assert outcomes(whole) == {"started": 1}
    assert [outcomes(schedule) for schedule in broken] == [{}, {}, {}]


def test_a_workflow_that_is_gone_makes_no_jobs_and_says_so__SAS_048(diary: Diary) -> None:
    gone, other = diary.make(EACH_MINUTE), diary.make(EACH_MINUTE)
    Schedule.objects.filter(pk=gone.pk).update(workflow="Retired")
    diary.at(MORNING + MINUTE)
    diary.look()
    assert outcomes(gone) == {"dropped unknown_workflow": 1}
    assert "No workflow is called 'Retired'" in Tick.objects.get(schedule=gone).detail
    assert outcomes(other) == {"started": 1}


def test_what_is_due_is_found_by_its_index(diary: Diary) -> None:
    diary.make(EACH_MINUTE)
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        plan = Schedule.objects.due().values("pk").explain()
        cursor.execute("RESET enable_seqscan")
    assert "schedule_due" in plan


# --- the days on which clocks change ------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Paris", "Australia/Lord_Howe"])
@pytest.mark.parametrize("local", ["0 9 * * *", "0 12 * * *", "30 23 * * *"])
def test_a_daily_job_runs_once_a_day_at_its_local_time_all_year__SAS_036(diary: Diary, zone: str, local: str) -> None:
    schedule = diary.make(local, timezone=zone, catch_up="all")
    diary.at(MORNING + timedelta(days=365))
    Schedule.objects.filter(pk=schedule.pk).update(catch_up_window=366 * 86_400)
    ticks.open_due()
    minute, hour, *_ = local.split()
    days = [due.astimezone(ZoneInfo(zone)) for due in due_times(schedule)]
    assert {(day.hour, day.minute) for day in days} == {(int(hour), int(minute))}
    assert [later.date() - day.date() for day, later in pairwise(days)] == [timedelta(days=1)] * 364


def test_the_preview_and_what_runs_agree_over_both_changes_of_the_clocks__SAS_037(diary: Diary) -> None:
    for zone, start in (("America/Los_Angeles", (2027, 3, 13)), ("Europe/Amsterdam", (2027, 10, 30))):
        diary.at(datetime(*start, tzinfo=UTC))
        schedule = diary.make(("30 1 * * *", "30 2 * * *", "*/15 * * * *"), timezone=zone, overlap="allow")
        expected = schedule.times.between(now(), now() + timedelta(days=2) - 2 * MINUTE)
        diary.look_each(15 * MINUTE, datetime(*start, tzinfo=UTC) + timedelta(days=2) - MINUTE)
        assert due_times(schedule) == expected
        assert outcomes(schedule) == {"started": len(due_times(schedule))}
        schedules.remove(schedule.pk, actor="tester")


def test_an_operation_is_told_which_due_time_its_job_stands_for__SAS_043(diary: Diary) -> None:
    diary.make("0 * * * *", catch_up="latest")
    diary.at(MORNING + HOUR + 20 * MINUTE)
    diary.look()
    assert [call.scheduled_for for call in diary.engine.calls_of("shop.a")] == [MORNING + HOUR]
    assert Job.objects.get().scheduled_for == MORNING + HOUR
