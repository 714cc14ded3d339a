"""Which workers are there: what they tell of themselves, and how those that were not seen are asked."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app

from agents import draining, presence, watch, worker
from supervisor import roll_call
from tests.integration.engine import Beside, Engine, named, state_of
from workflows import Workflow, broker, step
from workflows.clock import now
from workflows.models import Attempt, Worker


class ShortKnown(Workflow):
    a = step("shop.a")
    b = step("shop.b", after=[a])


@pytest.fixture
def this_worker(engine: Engine) -> Iterator[None]:
    """This process as a worker that has just started."""
    presence.begin()
    worker._process.pid = 0  # it may have a name already
    _wait_for_the_next_word()
    yield
    presence._start.name = presence._start.mark = ""
    worker._process.pid = 0


@pytest.fixture
def draining_soon() -> Iterator[None]:
    """What a test begins to drain is undone."""
    yield
    draining._since[0] = 0.0


def _wait_for_the_next_word() -> None:
    presence._moments[presence._At.TOLD] = presence._moments[presence._At.CLAIMED] = 0.0


def _row() -> Worker:
    return Worker.objects.get()


# --- the row -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("this_worker")
def test_a_worker_that_answers_a_doorbell_in_vain_is_seen(engine: Engine) -> None:
    worker.work("agents", None)
    row = _row()
    assert row.queues == ["agents"]
    assert row.name == f"{row.host}:{row.pid}:{presence.mark()}"
    assert row.last_claim_at is None
    assert abs((now() - row.seen_at).total_seconds()) < 5


@pytest.mark.usefixtures("this_worker")
def test_a_claim_is_told_of_and_its_attempt_bears_the_mark_of_the_worker(engine: Engine) -> None:
    job = ShortKnown.start()
    engine.drain()
    assert state_of(job) == "Completed"
    _wait_for_the_next_word()
    presence.note_claim()
    worker.work("agents", None)
    assert _row().last_claim_at is not None
    names = Attempt.objects.values_list("worker", flat=True)
    assert {name.split(":")[2].split("-")[0] for name in names} == {presence.mark()}


@pytest.mark.usefixtures("this_worker")
def test_a_worker_tells_of_itself_once_in_a_few_seconds(engine: Engine) -> None:
    worker.work("agents", None)
    first = _row().seen_at
    engine.ahead(60)
    worker.work("agents", None)
    assert _row().seen_at == first
    _wait_for_the_next_word()
    worker.work("agents", None)
    assert _row().seen_at > first


@pytest.mark.usefixtures("this_worker")
def test_a_row_that_was_deleted_comes_back_with_the_time_of_its_start(engine: Engine) -> None:
    """SAS-023"""
    worker.work("agents", None)
    before = _row()
    Worker.objects.all().delete()
    _wait_for_the_next_word()
    worker.work("agents", None)
    assert _row().name == before.name
    assert abs((_row().started_at - before.started_at).total_seconds()) < 1


@pytest.mark.usefixtures("this_worker")
def test_an_end_is_told_and_what_was_known_stays(engine: Engine) -> None:
    worker.work("agents", None)
    before = _row()
    engine.ahead(10)
    watch.end()
    after = _row()
    assert (after.seen_at, after.started_at) == (before.seen_at, before.started_at)
    assert after.draining_at is not None
    assert after.stopped_at is not None
    assert after.stopped_at > before.seen_at


def test_a_process_that_is_no_worker_tells_nothing(engine: Engine) -> None:
    worker.work("agents", None)
    assert not Worker.objects.exists()


# --- who was not seen is asked -------------------------------------------------------------------------------------------


def _a_worker(name: str, queue: str = "agents", **said: Any) -> Worker:
    there = {"host": "h", "pid": 1, "queues": [queue], "started_at": now(), "seen_at": now()}
    return Worker.objects.create(name=name, **there | said)


def test_a_worker_that_was_not_seen_for_ten_seconds_is_rung_for_without_a_step(engine: Engine) -> None:
    _a_worker("one")
    _a_worker("another", queue="depot")
    assert roll_call.hold() == 0
    engine.ahead(11)
    Worker.objects.filter(name="another").update(seen_at=now())
    engine.rings.clear()
    assert roll_call.hold() == 1
    assert [(queue, arguments) for _, queue, arguments in engine.rings] == [("agents", ["agents", None])]


@pytest.mark.usefixtures("this_worker")
def test_whoever_answers_is_seen_and_rung_for_no_more(engine: Engine) -> None:
    worker.work("agents", None)
    engine.ahead(11)
    assert roll_call.hold() == 1
    _wait_for_the_next_word()
    engine.drain()
    engine.ahead(9)
    assert roll_call.hold() == 0


def test_a_worker_that_stays_away_is_asked_after_more_and_more_rarely(engine: Engine) -> None:
    _a_worker("gone")
    asked = []
    for seconds in range(0, 7200, 5):
        engine.ahead(5)
        if roll_call.hold():
            asked.append(seconds)
    assert 40 < len(asked) < 100
    assert asked[1] - asked[0] <= 15
    assert asked[-1] - asked[-2] > 500


@pytest.mark.parametrize("moment", ["draining_at", "stopped_at"])
def test_workers_that_have_stopped_or_are_about_to_are_not_rung_for(engine: Engine, moment: str) -> None:
    said: dict[str, Any] = {moment: now()}
    _a_worker("one", **said)
    engine.ahead(60)
    assert roll_call.hold() == 0


def test_two_supervisors_at_once_ask_once(engine: Engine) -> None:
    for name in "abc":
        _a_worker(name)
    engine.ahead(11)
    first, second = Beside(roll_call.hold), Beside(roll_call.hold)
    assert first.result() + second.result() == 3


def test_a_worker_is_forgotten_a_day_after_it_was_last_seen(engine: Engine) -> None:
    _a_worker("old", seen_at=now() - timedelta(hours=25))
    _a_worker("young", seen_at=now() - timedelta(hours=23))
    roll_call.forget()
    assert [row.name for row in Worker.objects.all()] == ["young"]


# --- on its way out ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("draining_soon")
def test_a_step_claimed_just_before_the_word_to_drain_goes_back_uncharged(engine: Engine) -> None:
    job = ShortKnown.start()
    claimed = engine.claim(named(job, "a"))
    engine.rings.clear()
    draining.begin()
    worker._run_chain(claimed, 0.0)
    given_back = named(job, "a")
    assert (given_back.state, given_back.charged, given_back.attempt) == ("NotStarted", 0, 1)
    assert engine.asked() == []
    assert Attempt.objects.get().outcome == "released"
    assert ["agents", given_back.pk] in [arguments for _, _, arguments in engine.rings]
    draining._since[0] = 0.0
    engine.drain()
    assert state_of(job) == "Completed"


# --- deafness ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def doorbells(transactional_db: None) -> Iterator[None]:
    """One doorbell in a queue of the real broker that nobody reads."""
    _purge()
    broker.ring("depot")
    yield
    _purge()


def _purge() -> None:
    with current_app.connection_for_write() as link:
        channel: Any = link.default_channel
        channel.queue_purge("depot")


def _looks_until_deaf(ears: watch.Ears, limit: int = 20) -> int | None:
    return next((look for look in range(1, limit + 1) if ears.are_deaf()), None)


@pytest.mark.usefixtures("doorbells")
def test_a_worker_that_lets_doorbells_lie_is_deaf_after_half_a_minute_of_looks() -> None:
    looks = _looks_until_deaf(watch.Ears(["depot"], lambda: False))
    assert looks is not None
    assert looks * watch.LOOK_EVERY == 30


@pytest.mark.usefixtures("doorbells")
def test_a_worker_whose_processes_are_all_busy_is_not_deaf() -> None:
    assert _looks_until_deaf(watch.Ears(["depot"], lambda: True)) is None


@pytest.mark.usefixtures("doorbells")
def test_an_answer_in_between_shows_that_a_worker_hears() -> None:
    ears = watch.Ears(["depot"], lambda: False)
    assert _looks_until_deaf(ears, watch.DEAF_AFTER - 1) is None
    presence.note_answer()
    assert _looks_until_deaf(ears, watch.DEAF_AFTER) is None
    assert ears.are_deaf()


@pytest.mark.usefixtures("this_worker")
def test_a_worker_for_which_others_answer_each_time_is_deaf_too(engine: Engine) -> None:
    """SAS-005: beside one that works, its queue is always empty."""
    worker.work("agents", None)
    ears = watch.Ears(["depot"], lambda: False)
    assert not ears.are_deaf()
    for asked in range(1, watch.DEAF_AFTER + 1):
        engine.ahead(11 + asked)
        assert roll_call.hold() == 1
        assert ears.are_deaf() == (asked == watch.DEAF_AFTER)


@pytest.mark.usefixtures("this_worker")
def test_polls_from_before_a_worker_was_frozen_do_not_count(engine: Engine) -> None:
    worker.work("agents", None)
    for _ in range(watch.DEAF_AFTER * 2):
        engine.ahead(60)
        roll_call.hold()
    assert presence.polls() >= watch.DEAF_AFTER
    assert _looks_until_deaf(watch.Ears(["depot"], lambda: False)) is None


def test_where_nobody_rings_nobody_is_deaf(transactional_db: None) -> None:
    _purge()
    assert _looks_until_deaf(watch.Ears(["depot"], lambda: False)) is None
