"""The pages of schedules, and their buttons."""

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from tests.integration import visitors
from tests.integration.engine import Engine
from tests.integration.recurring import EACH_MINUTE, MINUTE, MORNING, Diary
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
    assert page.count("08:00:00 +02:00") == 5


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
