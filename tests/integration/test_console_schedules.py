"""The pages of schedules, and their buttons."""

import html
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from tests.integration import visitors
from tests.integration.engine import Engine
from tests.integration.recurring import EACH_MINUTE, MINUTE, MORNING, Diary, outcomes
from workflows.models import Job, Schedule, Tick


@pytest.fixture
def diary(engine: Engine) -> Diary:
    diary = Diary(engine)
    diary.at(MORNING)
    return diary


def page_of(client: Client, schedule: Schedule) -> str:
    answer = client.get(reverse("schedule", args=[schedule.pk]))
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_the_list_says_when_each_is_due_in_its_zone_and_what_became_of_the_last(diary: Diary) -> None:
    schedule = diary.make("0 8 * * 1-5", timezone="Europe/Madrid")
    each_minute = diary.make(EACH_MINUTE)
    diary.look_each(MINUTE, MORNING + 2 * MINUTE)
    page = visitors.reader().get(reverse("schedules")).content.decode()
    rows = {
        row.pk: page.partition(f'id="schedule-{row.pk}"')[2].partition("</tr>")[0] for row in (schedule, each_minute)
    }
    assert "Fri 2027-03-05 08:00:00 +01:00" in rows[schedule.pk]
    assert "none yet" in rows[schedule.pk]
    assert "Started" in rows[each_minute.pk]


def test_a_schedule_shows_the_next_times_in_its_zone_over_a_change_of_the_clocks(diary: Diary) -> None:
    diary.at(datetime(2027, 3, 27, 12, tzinfo=UTC))
    page = page_of(visitors.reader(), diary.make("0 8 * * *", timezone="Europe/Madrid"))
    assert "Sun 2027-03-28 08:00:00 +02:00" in page
    assert "2027-03-28 06:00:00 UTC" in page
    assert page.count("08:00:00 +02:00") == 5 + 2  # the next ones, and those after the change


def test_a_schedule_shows_its_ticks_with_their_jobs_or_reasons(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.engine.says("shop.a", lambda call: "done")
    diary.look_each(MINUTE, MORNING + MINUTE)
    job = Job.objects.get()
    schedule_page = page_of(visitors.reader(), schedule)
    assert reverse("job", args=[job.pk]) in schedule_page
    Tick.objects.filter(schedule=schedule).update(
        outcome="skipped", job=None, open=False, reason="overlap", detail="The job before it is still at work."
    )
    assert "The job before it is still at work." in page_of(visitors.reader(), schedule)


def test_the_rules_are_said_in_words(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, overlap="buffer_one", catch_up="recent", jitter=90, pause_on_failure=True)
    page = page_of(visitors.reader(), schedule)
    assert "one waits its turn" in page
    assert "the last 10 due times are made up for, nothing older than 7 d." in page
    assert "up to 1 min 30 s after its due time" in page
    assert "It pauses by itself" in page


def test_a_pause_has_a_note_and_an_author_and_ends_with_a_click(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    client = visitors.operator()
    answer = client.post(
        reverse("schedule-pause", args=[schedule.pk]), {"seen": 1, "reason": "The printer is out."}, follow=True
    )
    name = User.objects.get(pk=client.session["_auth_user_id"]).get_username()
    assert f"by operator:{name}: The printer is out." in " ".join(answer.content.decode().split())
    schedule.refresh_from_db()
    assert schedule.paused_at is not None
    diary.look_each(MINUTE, MORNING + 2 * MINUTE)
    assert not Job.objects.exists()
    client.post(reverse("schedule-resumption", args=[schedule.pk]), {"seen": schedule.revision})
    diary.look_each(MINUTE, MORNING + 3 * MINUTE)
    assert Job.objects.count() == 1


def test_a_stale_click_changes_nothing_and_says_so(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    client = visitors.operator()
    address = reverse("schedule-pause", args=[schedule.pk])
    client.post(address, {"seen": 1, "reason": "first"})
    client.post(reverse("schedule-resumption", args=[schedule.pk]), {"seen": 2})
    answer = client.post(address, {"seen": 1, "reason": "late"}, follow=True)
    assert "Nothing was done." in answer.content.decode()
    schedule.refresh_from_db()
    assert schedule.paused_at is None
    assert client.post(address, {"reason": "x"}).status_code == 400


def test_several_are_paused_and_resumed_at_once_and_nothing_of_the_past_runs__SAS_045(diary: Diary) -> None:
    ticked, gone = [diary.make("0 * * * *", catch_up="all") for _ in range(2)], diary.make(EACH_MINUTE)
    other = diary.make("0 * * * *")
    Schedule.objects.filter(pk=gone.pk).update(deleted_at=MORNING)
    client = visitors.operator()
    ids = {"schedule": [*(str(schedule.pk) for schedule in (*ticked, gone)), "nonsense"], "reason": "move"}
    diary.at(MORNING + 5 * MINUTE)
    answer = client.post(reverse("schedules-pause"), ids, follow=True)
    assert "Paused: 2." in words(answer)
    diary.at(MORNING + 160 * MINUTE)
    client.post(reverse("schedules-resumption"), ids)
    diary.look()
    assert [outcomes(schedule) for schedule in ticked] == [{"skipped paused": 2}] * 2
    diary.look_each(MINUTE, MORNING + 180 * MINUTE)
    assert [outcomes(schedule)["started"] for schedule in ticked] == [1, 1]
    assert "skipped paused" not in outcomes(other)
    for noun in ("schedules-pause", "schedules-resumption"):
        assert visitors.reader().post(reverse(noun), ids).status_code == 403


def test_run_now_starts_a_job_and_leaves_the_due_times_as_they_are(diary: Diary) -> None:
    schedule = diary.make("0 3 * * *")
    due = schedule.next_due
    answer = visitors.operator().post(reverse("schedule-triggers", args=[schedule.pk]), follow=True)
    assert "Started." in answer.content.decode()
    assert Tick.objects.get().kind == "trigger"
    assert Job.objects.count() == 1
    schedule.refresh_from_db()
    assert schedule.next_due == due


@pytest.mark.parametrize("noun", ["schedule-pause", "schedule-resumption", "schedule-triggers"])
def test_a_readers_click_is_refused_and_changes_nothing(diary: Diary, noun: str) -> None:
    schedule = diary.make(EACH_MINUTE)
    client = visitors.reader()
    assert reverse(noun, args=[schedule.pk]) not in page_of(client, schedule)
    assert client.post(reverse(noun, args=[schedule.pk]), {"seen": 1}).status_code == 403
    assert client.get(reverse(noun, args=[schedule.pk])).status_code in (403, 405)
    schedule.refresh_from_db()
    assert (schedule.revision, schedule.paused_at) == (1, None)
    assert not Tick.objects.exists()


def test_a_schedule_that_is_not_there_is_not_found(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    Schedule.objects.filter(pk=schedule.pk).update(deleted_at=MORNING)
    client = visitors.operator()
    assert client.get(reverse("schedule", args=[schedule.pk])).status_code == 404
    assert client.post(reverse("schedule-pause", args=[schedule.pk]), {"seen": 1}).status_code == 404


def test_without_any_the_page_says_how_to_make_one(diary: Diary) -> None:
    assert "Nothing starts by the clock." in visitors.reader().get(reverse("schedules")).content.decode()


# --- make and change ----------------------------------------------------------------------------------------------------


TYPED = {"workflow": "Chore", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "overlap": "allow", "catch_up": "none"}


def words(answer: Any) -> str:
    return " ".join(html.unescape(answer.content.decode()).split())


def test_the_form_shows_the_next_times_and_what_a_change_of_the_clocks_does_to_them(diary: Diary) -> None:
    page = words(visitors.reader().get(reverse("schedule-new"), TYPED))
    assert "At 02:30 every day (Europe/Berlin)" in page
    assert "Fri 2027-03-05 02:30:00 +01:00" in page
    assert "When clocks change next, Sun 2027-03-28 03:00:00 +02:00" in page
    assert "Sat 2027-03-27 02:30:00 +01:00" in page
    assert page.count("Sun 2027-03-28 03:00:00 +02:00") == 2
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("typed", "fault"),
    [
        ({"cron": "0 0 30 2 *"}, "cron '0 0 30 2 *' is wrong in day of month: its months have no such day."),
        ({"cron": "", "every": "soon"}, "every must be a whole number, not 'soon'."),
        ({"timezone": "Europe/Berln"}, "timezone 'Europe/Berln' is no time zone. Did you mean 'Europe/Berlin'?"),
        ({"cron": "", "at": "tomorrow"}, "at 'tomorrow' is no moment"),
        ({"cron": "", "calendar": "dya=13"}, "calendar has no 'dya'. Did you mean 'day'?"),
        ({"input": "{"}, "input is no JSON"),
        ({"workflow": "Chores"}, "No workflow is called 'Chores'"),
        ({"cron": "x" * 10_000}, "is longer than 200 characters."),
    ],
)
def test_what_cannot_be_kept_is_said_in_the_form_and_makes_nothing__SAS_039(
    diary: Diary, typed: dict[str, str], fault: str
) -> None:
    answer = visitors.operator().post(reverse("schedule-create"), {**TYPED, **typed})
    assert (answer.status_code, fault in words(answer)) == (422, True)
    assert not Schedule.objects.exists()


def test_a_schedule_is_made_and_changed_by_the_form(diary: Diary) -> None:
    client = visitors.operator()
    made = client.post(reverse("schedule-create"), {**TYPED, "input": '{"n": 1}', "exclude": "12-25 2027-12-31"})
    schedule = Schedule.objects.get()
    assert made["Location"] == reverse("schedule", args=[schedule.pk])
    assert (schedule.input, schedule.overlap, schedule.catch_up) == ({"n": 1}, "allow", "none")
    assert schedule.times.exclude == ("12-25", "2027-12-31")
    page = words(client.get(reverse("schedule-edit", args=[schedule.pk])))
    assert "30 2 * * *</textarea>" in page
    changed = {
        **TYPED,
        "cron": "",
        "at": "2027-03-05T08:00",
        "seen": "1",
        "reason": "only once",
        "pause_on_failure": "on",
    }
    client.post(reverse("schedule-changes", args=[schedule.pk]), changed)
    schedule.refresh_from_db()
    assert schedule.next_due == datetime(2027, 3, 5, 7, tzinfo=UTC)
    assert (schedule.pause_on_failure, schedule.input) == (True, {})
    assert schedule.changes.latest("pk").reason == "only once"
    client.post(
        reverse("schedule-changes", args=[schedule.pk]), {**TYPED, "cron": "", "calendar": "day=13", "seen": "2"}
    )
    assert "day=13</textarea>" in words(client.get(reverse("schedule-edit", args=[schedule.pk])))
    stale = client.post(reverse("schedule-changes", args=[schedule.pk]), changed, follow=True)
    assert "Nothing was done." in words(stale)


# --- run the past -------------------------------------------------------------------------------------------------------


RANGE = {"from": "2027-03-04T09:57", "to": "2027-03-04T10:00", "overlap": "buffer_all", "reprocess": "none"}


def test_a_backfill_is_shown_before_it_is_run(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, paused=True)
    client = visitors.operator()
    shown = words(client.get(reverse("schedule-backfill", args=[schedule.pk]), {**RANGE, "reverse": "on"}))
    assert "Would run: 3" in shown
    assert shown.index("09:59:00 +00:00") < shown.index("09:57:00 +00:00")
    assert not Tick.objects.exists()
    answer = client.post(
        reverse("schedule-backfills", args=[schedule.pk]), {**RANGE, "reverse": "on", "reason": "lost"}, follow=True
    )
    assert "Due times of the past that are run: 3." in words(answer)
    assert [tick.due_at.minute for tick in Tick.objects.order_by("pk")] == [59, 58, 57]
    assert schedule.changes.latest("pk").reason == "lost"


@pytest.mark.parametrize(
    ("typed", "fault"),
    [
        ({"from": ""}, "from must be given."),
        ({"to": "2027-03-04T09:00"}, "to must come after from."),
        ({"max_active": "3"}, "max active goes with overlap allow only"),
    ],
)
def test_a_backfill_that_cannot_be_is_said_where_it_is_wrong(diary: Diary, typed: dict[str, str], fault: str) -> None:
    schedule = diary.make(EACH_MINUTE)
    client = visitors.operator()
    assert fault in words(client.get(reverse("schedule-backfill", args=[schedule.pk]), {**RANGE, **typed}))
    answer = client.post(reverse("schedule-backfills", args=[schedule.pk]), {**RANGE, **typed})
    assert (answer.status_code, fault in words(answer)) == (422, True)
    assert not Tick.objects.exists()


def test_a_backfill_that_waits_is_said_and_can_be_withdrawn(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE, paused=True)
    client = visitors.operator()
    client.post(reverse("schedule-backfills", args=[schedule.pk]), RANGE)
    assert "2 due times of the past wait to be run." in page_of(client, schedule)
    address = reverse("schedule-backfills-withdrawal", args=[schedule.pk])
    assert visitors.reader().post(address).status_code == 403
    assert "of the backfill 2 more would have been started" in words(client.post(address, follow=True))
    assert "wait to be run" not in page_of(client, schedule)


@pytest.mark.parametrize("noun", ["schedule-changes", "schedule-backfills", "schedule-create"])
def test_a_reader_makes_changes_and_backfills_nothing(diary: Diary, noun: str) -> None:
    schedule = diary.make(EACH_MINUTE)
    address = reverse(noun, args=[] if noun == "schedule-create" else [schedule.pk])
    assert visitors.reader().post(address, {**TYPED, **RANGE, "seen": "1"}).status_code == 403
    assert (Schedule.objects.count(), Tick.objects.count()) == (1, 0)


# --- what is wrong ------------------------------------------------------------------------------------------------------


def test_a_schedule_whose_workflow_is_gone_is_marked__SAS_048(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    assert "no such workflow" not in words(visitors.reader().get(reverse("schedules")))
    Schedule.objects.update(workflow="Retired")
    assert "no such workflow" in words(visitors.reader().get(reverse("schedules")))
    assert "No workflow of this name is there any more" in page_of(visitors.reader(), schedule)


def test_due_times_that_nobody_opened_and_those_without_a_row_are_said(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.look_each(MINUTE, MORNING + 3 * MINUTE)
    page = page_of(visitors.reader(), schedule)
    assert "Nobody has opened" not in page
    assert "no row" not in page
    Tick.objects.filter(due_at=MORNING + 2 * MINUTE).delete()
    diary.at(MORNING + 6 * MINUTE)
    page = page_of(visitors.reader(), schedule)
    assert "Nobody has opened what was due" in page
    assert "1 due time has no row, the first of 2027-03-04 10:02:00 UTC" in page
    assert "late: nobody opens it" in words(visitors.reader().get(reverse("schedules")))
