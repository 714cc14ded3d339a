"""The rules of schedules: overlaps, edits, pauses, triggers, backfills, and what the code declares."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from agents import Permanent
from tests.integration.engine import Beside, Engine
from tests.integration.recurring import EACH_MINUTE, HOUR, MINUTE, MORNING, Diary, due_times, jobs, outcomes, started
from workflows import Cron, Every, Workflow, schedules, step, ticks
from workflows.exceptions import InvalidInput, NotFound, StaleVersion
from workflows.models import Job, Schedule, ScheduleChange, Tick
from workflows.plans import registry
from workflows.timing.timetable import Timetable

SECOND = timedelta(seconds=1)


@pytest.fixture
def diary(engine: Engine) -> Diary:
    diary = Diary(engine)
    diary.at(MORNING)
    return diary


def fresh(schedule: Schedule) -> Schedule:
    return Schedule.objects.get(pk=schedule.pk)


def open_at(diary: Diary, *minutes: float) -> None:
    """Look at these minutes past ten, and let no worker do anything."""
    for minute in minutes:
        diary.at(MORNING + minute * MINUTE)
        ticks.open_due()


# --- overlaps ---------------------------------------------------------------------------------------------------------


def test_a_due_time_that_finds_a_job_at_work_is_skipped_and_says_whose(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="skip")
    open_at(diary, 1, 2, 3)
    assert outcomes(schedule) == {"started": 1, "skipped overlap": 2}
    assert str(Job.objects.get().pk) in Tick.objects.filter(outcome="skipped")[0].detail
    diary.engine.drain()
    open_at(diary, 4)
    assert started(schedule) == [MORNING + MINUTE, MORNING + 4 * MINUTE]


def test_what_is_made_up_for_waits_for_a_job_that_worked_through_the_outage__SAS_043(diary: Diary) -> None:
    schedule = diary.make("*/5 * * * *", catch_up="all")
    open_at(diary, 5, 17)
    assert outcomes(schedule) == {"started": 1, "waiting": 2}
    for _ in range(3):
        diary.look()
    assert started(schedule) == [MORNING + n * MINUTE for n in (5, 10, 15)]


def test_with_buffer_one_the_newest_waits_and_the_others_are_dropped__SAS_046(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="buffer_one")
    open_at(diary, 1, 2, 3, 4)
    assert outcomes(schedule) == {"started": 1, "waiting": 1, "dropped buffer": 2}
    diary.look()
    diary.look()
    assert started(schedule) == [MORNING + MINUTE, MORNING + 4 * MINUTE]
    assert jobs() == 2


def test_with_buffer_all_each_has_its_turn_in_order(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="buffer_all")
    open_at(diary, 1, 2, 3)
    assert outcomes(schedule) == {"started": 1, "waiting": 2}
    for _ in range(3):
        diary.look()
    assert started(schedule) == [MORNING + n * MINUTE for n in (1, 2, 3)]
    assert Tick.objects.filter(open=True).count() == 1


def test_what_waits_is_bounded(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "MOST_WAITING", 2)
    schedule = diary.make(EACH_MINUTE, overlap="buffer_all")
    open_at(diary, 1, 2, 3, 4, 5)
    assert outcomes(schedule) == {"started": 1, "waiting": 2, "dropped buffer": 2}


def test_with_cancel_other_the_job_at_work_is_undone_first_and_the_newest_follows(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="cancel_other")
    open_at(diary, 1)
    first = Job.objects.get()
    claimed = diary.engine.claim(first.steps.get())
    open_at(diary, 2, 3)
    assert outcomes(schedule) == {"started": 1, "waiting": 1, "dropped buffer": 1}
    first.refresh_from_db()
    assert first.stopping_at is not None
    diary.engine.settle(claimed)
    diary.look()
    assert "shop.undo_a" in diary.engine.asked()
    diary.look()
    assert started(schedule) == [MORNING + MINUTE, MORNING + 3 * MINUTE]
    assert Job.objects.get(pk=first.pk).reason == "cancelled"


def test_with_allow_they_run_beside_each_other(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="allow")
    open_at(diary, 1, 2, 3)
    assert outcomes(schedule) == {"started": 3}


# --- edits ------------------------------------------------------------------------------------------------------------


def test_a_new_timetable_counts_from_now_and_starts_nothing_of_the_past(diary: Diary) -> None:
    schedule = diary.make("0 3 * * *", timezone="Europe/Berlin", catch_up="all")
    schedules.change(schedule.pk, {"timezone": "America/New_York", "cron": ("*/5 * * * *",)}, actor="tester")
    assert diary.look() == 0
    assert fresh(schedule).next_due == MORNING + 5 * MINUTE
    assert fresh(schedule).revision == 2
    assert outcomes(schedule) == {}


def test_one_moved_away_just_before_its_time_runs_once_at_the_new_time__SAS_047(diary: Diary) -> None:
    schedule = diary.make(at=(MORNING + MINUTE,))
    diary.at(MORNING + MINUTE - SECOND)
    schedules.change(schedule.pk, {"at": (MORNING + 3 * MINUTE,)}, actor="tester")
    diary.look_each(20 * SECOND, MORNING + 5 * MINUTE)
    assert started(schedule) == due_times(schedule) == [MORNING + 3 * MINUTE]


def test_what_was_due_when_an_edit_came_is_neither_lost_nor_doubled__SAS_047(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE + SECOND)
    schedules.change(schedule.pk, {"every": 3600}, actor="tester")
    diary.look()
    assert started(schedule) == [MORNING + MINUTE]
    assert fresh(schedule).times.cron == ()
    assert fresh(schedule).next_due == MORNING + HOUR


def test_constant_edits_of_one_schedule_let_all_others_run__SAS_047(diary: Diary) -> None:
    edited, other = diary.make(EACH_MINUTE), diary.make(EACH_MINUTE)
    for second in range(0, 300, 5):
        diary.at(MORNING + second * SECOND)
        schedules.change(edited.pk, {"jitter": second % 7}, actor="tester")
        diary.look()
    assert started(other) == [MORNING + n * MINUTE for n in range(1, 5)]
    assert due_times(edited) == [MORNING + n * MINUTE for n in range(1, 5)]


def test_a_removed_schedule_never_falls_due_and_keeps_its_ticks__SAS_047(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="buffer_all")
    open_at(diary, 1, 2)
    diary.at(MORNING + 3 * MINUTE - SECOND)
    schedules.remove(schedule.pk, actor="tester", reason="no longer wanted")
    diary.look_each(20 * SECOND, MORNING + 6 * MINUTE)
    assert outcomes(schedule) == {"started": 1, "dropped removed": 1}
    assert jobs() == 1
    with pytest.raises(NotFound):
        schedules.trigger(schedule.pk, actor="tester")


def test_an_edit_of_what_somebody_else_has_changed_is_refused(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    schedules.change(schedule.pk, {"jitter": 5}, actor="first", seen=1)
    with pytest.raises(StaleVersion):
        schedules.change(schedule.pk, {"jitter": 9}, actor="second", seen=1)
    assert fresh(schedule).jitter == 5


def test_an_edit_that_waits_for_an_opener_sees_what_it_has_opened(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE)
    with transaction.atomic():
        ticks.open_due()
        edit = Beside(lambda: schedules.change(schedule.pk, {"every": 3600}, actor="tester")).until_blocked()
    edit.result()
    assert outcomes(schedule) == {"started": 1}
    assert fresh(schedule).next_due == MORNING + HOUR


def test_an_edit_after_the_clock_went_back_opens_nothing_twice__SAS_050(diary: Diary) -> None:
    schedule = diary.make("0 * * * *")
    diary.at(MORNING + 2 * HOUR)
    diary.look()
    diary.at(MORNING)
    schedules.change(schedule.pk, {"exclude": ("12-25",)}, actor="tester")
    diary.look_each(30 * MINUTE, MORNING + 3 * HOUR)
    assert started(schedule) == [MORNING + HOUR, MORNING + 2 * HOUR, MORNING + 3 * HOUR]
    assert jobs() == 3


def test_an_edit_that_would_never_fall_due_is_refused_and_changes_nothing(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    with pytest.raises(InvalidInput, match="never falls due"):
        schedules.change(schedule.pk, {"end_at": MORNING - HOUR}, actor="tester")
    assert (fresh(schedule).revision, fresh(schedule).times) == (1, Timetable(cron=(EACH_MINUTE,)))


def test_who_changed_what_is_written_down_with_it(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    schedules.change(schedule.pk, {"overlap": "allow"}, actor="ada", reason="it is quick now")
    change = ScheduleChange.objects.latest("id")
    assert (change.kind, change.actor, change.reason, change.revision) == ("changed", "ada", "it is quick now", 2)
    assert change.data == {"overlap": ["skip", "allow"]}


# --- pauses -----------------------------------------------------------------------------------------------------------


def test_what_falls_due_while_it_is_paused_is_skipped_and_nothing_runs_on_resuming__SAS_045(diary: Diary) -> None:
    schedule = diary.make("0 * * * *", catch_up="all")
    diary.at(MORNING + 5 * MINUTE)
    schedules.change(schedule.pk, {"paused": True}, actor="ada", reason="maintenance")
    diary.at(MORNING + 2.6 * HOUR)
    schedules.change(schedule.pk, {"paused": False}, actor="ada")
    diary.look()
    assert outcomes(schedule) == {"skipped paused": 2}
    assert Tick.objects.all()[0].detail == "Paused by ada. maintenance"
    diary.at(MORNING + 3 * HOUR)
    diary.look()
    assert started(schedule) == [MORNING + 3 * HOUR]


def test_a_pause_ends_the_waiting_of_those_in_line(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="buffer_all")
    open_at(diary, 1, 2, 3)
    schedules.change(schedule.pk, {"paused": True}, actor="ada")
    diary.look()
    assert outcomes(schedule) == {"started": 1, "skipped paused": 2}
    assert jobs() == 1


def test_it_pauses_itself_when_a_job_ends_badly_and_was_told_to(diary: Diary) -> None:
    diary.engine.says("shop.a", Permanent("No.", code="no"))
    schedule, other = diary.make(EACH_MINUTE, pause_on_failure=True), diary.make(EACH_MINUTE)
    diary.look_each(MINUTE, MORNING + 3 * MINUTE)
    assert outcomes(schedule) == {"started": 1, "skipped paused": 2}
    assert fresh(schedule).paused_by == "scheduler"
    assert str(Tick.objects.get(schedule=schedule, outcome="started").job_id) in fresh(schedule).pause_note
    assert outcomes(other) == {"started": 3}


# --- run now, run the past --------------------------------------------------------------------------------------------


def test_a_trigger_is_marked_and_leaves_the_due_times_as_they_are(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, paused=False)
    diary.at(MORNING + 30 * SECOND)
    tick = schedules.trigger(schedule.pk, actor="ada", reason="a test")
    assert (tick.kind, tick.outcome) == ("trigger", "started")
    assert fresh(schedule).next_due == MORNING + MINUTE
    diary.engine.drain()
    diary.at(MORNING + MINUTE)
    diary.look()
    assert due_times(schedule) == [MORNING + MINUTE]
    assert jobs() == 2


def test_a_paused_schedule_can_be_triggered(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, paused=True)
    assert schedules.trigger(schedule.pk, actor="ada").outcome == "started"


def test_a_trigger_follows_the_rule_for_overlaps(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="skip")
    open_at(diary, 1)
    tick = schedules.trigger(schedule.pk, actor="ada")
    assert (tick.outcome, tick.reason) == ("skipped", "overlap")


def test_a_backfill_runs_what_was_never_started_one_after_another(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, catch_up="none")
    open_at(diary, 1)
    diary.engine.drain()
    diary.at(MORNING + 5 * MINUTE)
    diary.look()
    assert outcomes(schedule) == {"started": 2, "skipped late": 3}
    done = schedules.backfill(
        schedule.pk, MORNING + MINUTE, MORNING + 4.5 * MINUTE, overlap="buffer_all", dry_run=False, actor="ada"
    )
    assert [tick.due_at for tick in done.left_out] == [MORNING + MINUTE]
    for _ in range(4):
        diary.look()
    filled = Tick.objects.filter(kind="backfill").order_by("due_at")
    assert [(tick.due_at, tick.outcome) for tick in filled] == [(MORNING + n * MINUTE, "started") for n in (2, 3, 4)]
    assert jobs() == 5
    again = schedules.backfill(
        schedule.pk, MORNING + MINUTE, MORNING + 4.5 * MINUTE, overlap="allow", dry_run=False, actor="ada"
    )
    assert again.ticks == []


def ran(schedule: Schedule) -> list[tuple[int, int, str]]:
    """Of each tick of a backfill, in the order of their turns: minute, which run of it, outcome."""
    rows = Tick.objects.filter(schedule=schedule, kind="backfill").order_by("pk")
    return [(row.due_at.minute, row.run, row.outcome) for row in rows]


def backfill(schedule: Schedule, since: float, until: float, **options: Any) -> schedules.Backfill:
    manner = {"overlap": "buffer_all", "dry_run": False, "actor": "ada", **options}
    return schedules.backfill(schedule.pk, MORNING + since * MINUTE, MORNING + until * MINUTE, **manner)


def test_a_backfill_in_reverse_begins_with_the_newest(diary: Diary) -> None:
    schedule = diary.make("0 0 1 1 *", catch_up="none")
    schedules.change(schedule.pk, {"cron": (EACH_MINUTE,), "start_at": MORNING - HOUR, "paused": True}, actor="ada")
    backfill(schedule, -3, 0, reverse=True)
    assert ran(schedule) == [(59, 1, "started"), (58, 1, "waiting"), (57, 1, "waiting")]
    for _ in range(3):
        diary.look()
    assert started(schedule) == [MORNING - n * MINUTE for n in (1, 2, 3)]


def test_a_backfill_runs_no_more_at_once_than_it_may(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, paused=True)
    backfill(schedule, -5, 0, overlap="allow", max_active=2)
    assert [outcome for _, _, outcome in ran(schedule)] == ["started"] * 2 + ["waiting"] * 3
    ticks.open_due()
    assert outcomes(schedule) == {"started": 2, "waiting": 3}
    diary.engine.drain()
    ticks.open_due()
    assert outcomes(schedule) == {"started": 4, "waiting": 1}


@pytest.mark.parametrize(("reprocess", "again"), [("none", [3]), ("failed", [2, 3]), ("completed", [1, 2, 3])])
def test_a_backfill_can_run_again_what_failed_or_all_that_ended(diary: Diary, reprocess: str, again: list[int]) -> None:
    diary.engine.says("shop.a", "done", Permanent("No.", code="no"), "done")
    schedule = diary.make(EACH_MINUTE, catch_up="none")
    for minute in (1, 2):
        open_at(diary, minute)
        diary.engine.drain()
    schedules.change(schedule.pk, {"paused": True}, actor="ada")
    open_at(diary, 3)
    done = backfill(schedule, 0.5, 3.5 - 0.5, reprocess=reprocess, dry_run=True)
    assert [tick.due_at.minute for tick in done.ticks] == [minute for minute in again if minute < 3]
    diary.at(MORNING + 4 * MINUTE)
    backfill(schedule, 0.5, 3.5, reprocess=reprocess)
    for _ in again:
        diary.look()
    assert ran(schedule) == [(minute, 1, "started") for minute in again]
    if reprocess == "completed":
        backfill(schedule, 0.5, 1.5, reprocess=reprocess)
        assert ran(schedule)[-1] == (1, 2, "started")


def test_what_is_at_work_is_never_run_again_by_a_backfill(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    open_at(diary, 1, 1.5)
    done = backfill(schedule, 0.5, 1.5, reprocess="completed", overlap="allow")
    assert (done.ticks, len(done.left_out)) == ([], 1)


def test_a_backfill_does_not_keep_its_schedule_from_what_falls_due(diary: Diary) -> None:
    schedule, beside = diary.make(EACH_MINUTE), diary.make(EACH_MINUTE)
    backfill(schedule, -5, 0)
    backfill(beside, -5, 0, overlap="allow", max_active=1)
    open_at(diary, 1)
    due = Tick.objects.filter(kind="due")
    assert due.get(schedule=schedule).outcome == "waiting"
    assert due.get(schedule=beside).outcome == "started"
    diary.look()
    diary.look()
    assert due.get(schedule=schedule).outcome == "started"


@pytest.mark.parametrize(
    ("manner", "fault"),
    [
        ({"reprocess": "everything"}, "reprocess cannot be 'everything'"),
        ({"max_active": 0, "overlap": "allow"}, "max_active must be"),
        ({"max_active": 2}, "goes with overlap allow"),
    ],
)
def test_a_backfill_that_contradicts_itself_is_refused(diary: Diary, manner: dict[str, Any], fault: str) -> None:
    schedule = diary.make(EACH_MINUTE)
    with pytest.raises(InvalidInput, match=fault):
        backfill(schedule, -5, 0, **manner)


def test_a_dry_run_of_a_backfill_tells_and_does_nothing(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    start = MORNING - 3 * MINUTE
    done = schedules.backfill(schedule.pk, start, MORNING, overlap="allow", dry_run=True, actor="ada")
    assert [tick.due_at for tick in done.ticks] == [start + n * MINUTE for n in range(3)]
    assert (jobs(), outcomes(schedule)) == (0, {})


@pytest.mark.parametrize(
    ("start", "end", "fault"),
    [
        (MORNING, MORNING - HOUR, "must come after"),
        (MORNING, MORNING + HOUR, "lies ahead"),
        (MORNING - timedelta(days=1), MORNING, "more than 1000"),
    ],
)
def test_a_backfill_of_no_past_or_too_much_of_it_is_refused(
    diary: Diary, start: datetime, end: datetime, fault: str
) -> None:
    schedule = diary.make(EACH_MINUTE)
    with pytest.raises(InvalidInput, match=fault):
        schedules.backfill(schedule.pk, start, end, overlap="allow", dry_run=True, actor="ada")


# --- what the code declares -------------------------------------------------------------------------------------------


@pytest.fixture
def nightly(monkeypatch: pytest.MonkeyPatch) -> type[Workflow]:
    monkeypatch.setattr(registry, "_workflows", dict(registry._workflows))

    class Nightly(Workflow):
        schedule = Cron("0 2 * * *", timezone="Europe/Berlin", overlap="buffer_one")
        a = step("shop.a")

    return Nightly


def declared() -> Schedule:
    return Schedule.objects.get(workflow="Nightly")


def test_what_the_code_declares_is_entered_once_however_often(diary: Diary, nightly: type[Workflow]) -> None:
    for opener in [Beside(schedules.register_declared) for _ in range(3)]:
        opener.result()
    assert declared().next_due == datetime(2027, 3, 5, 1, tzinfo=UTC)
    assert (declared().overlap, declared().revision) == ("buffer_one", 1)
    diary.at(datetime(2027, 3, 5, 1, tzinfo=UTC))
    diary.look()
    assert outcomes(declared()) == {"started": 1}


def test_a_new_declaration_counts_from_now(diary: Diary, nightly: type[Workflow]) -> None:
    schedules.register_declared()
    nightly.schedule = Every(3600, catch_up="none")
    schedules.register_declared()
    assert (declared().next_due, declared().catch_up, declared().revision) == (MORNING + HOUR, "none", 2)


def test_what_people_changed_stays_until_the_code_declares_something_else(
    diary: Diary, nightly: type[Workflow]
) -> None:
    schedules.register_declared()
    schedules.change(declared().pk, {"cron": ("0 5 * * *",)}, actor="ada")
    schedules.register_declared()
    assert declared().times.cron == ("0 5 * * *",)
    schedules.remove(declared().pk, actor="ada")
    schedules.register_declared()
    assert declared().deleted_at is not None


def test_a_declaration_that_is_gone_takes_its_schedule_away(diary: Diary, nightly: type[Workflow]) -> None:
    schedules.register_declared()
    nightly.schedule = None
    schedules.register_declared()
    assert declared().deleted_at is not None
    assert ScheduleChange.objects.latest("id").actor == "code"
