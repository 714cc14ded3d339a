"""The supervisor's way to schedules: the task that beat asks for each second."""

import pytest
from django.conf import settings

from supervisor import tasks
from tests.integration.engine import Engine
from tests.integration.recurring import EACH_MINUTE, MINUTE, MORNING, Diary, outcomes
from workflows import schedules
from workflows.models import Schedule


@pytest.fixture
def diary(engine: Engine) -> Diary:
    tasks.register_declared.cache_clear()
    diary = Diary(engine)
    diary.at(MORNING)
    return diary


def test_the_task_enters_what_the_code_declares_and_opens_what_is_due(diary: Diary) -> None:
    schedule = diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE)
    tasks.open_due()
    assert outcomes(schedule) == {"started": 1}
    nightly = Schedule.objects.get(workflow="NightlyReport")
    assert nightly.times.in_words() == "At 02:00 every day (Europe/Berlin)"
    assert (nightly.catch_up, nightly.overlap) == ("latest", "skip")


def test_each_process_reads_its_declarations_once_and_again_if_that_failed(
    diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def fails_once() -> int:
        read.append("read")
        if len(read) == 1:
            raise ConnectionError("the database is away")
        return 0

    monkeypatch.setattr(schedules, "register_declared", fails_once)
    with pytest.raises(ConnectionError):
        tasks.open_due()
    for minute in (1, 2):  # a look at once after another would rest
        diary.at(MORNING + minute * MINUTE)
        tasks.open_due()
    assert len(read) == 2


def test_beat_asks_for_it_each_second_and_an_outage_leaves_none_behind() -> None:
    [entry] = [entry for entry in settings.CELERY_BEAT_SCHEDULE.values() if entry["task"] == tasks.OPEN_DUE]
    assert entry["schedule"].total_seconds() == entry["options"]["expires"] == 1
