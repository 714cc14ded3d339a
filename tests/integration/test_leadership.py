"""Whose turn a duty is: one process at a time, told by the number of its term; and no harm where two believe it is theirs."""

import time
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction

from supervisor import leadership, tasks
from supervisor import sweep as supervision
from supervisor.leadership import Duty, Turn
from supervisor.models import Sweep, Term
from tests.integration.engine import Beside, Engine, check_books, history, named, states
from workflows import Workflow, step
from workflows.clock import now
from workflows.models import Job, Step


class Led(Workflow):
    a = step("shop.a")


def nothing(_: Turn) -> None:
    pass


def as_another(monkeypatch: pytest.MonkeyPatch, name: str = "host:2:another") -> None:
    """From now on this process is taken for another one."""
    monkeypatch.setattr(leadership, "me", lambda: name)


def test_a_duty_is_done_once_however_many_ask_for_it_at_once(engine: Engine) -> None:
    """Two supervisors, and a message of two beats for each."""

    def while_we_are_at_it(_: Turn) -> None:
        assert Beside(lambda: leadership.do(Duty.SWEEP, nothing)).result() is False

    assert leadership.do(Duty.SWEEP, while_we_are_at_it)
    assert Term.objects.get().term == 1


def test_who_waits_for_the_row_sees_whose_turn_it_has_become(engine: Engine) -> None:
    leadership.do(Duty.SWEEP, nothing)
    engine.ahead(2)
    with transaction.atomic():
        with connection.cursor() as cursor:
            values = {"duty": Duty.SWEEP, "holder": "host:3:first", "length": 4.0}
            cursor.execute(leadership._TAKE, values)
            assert cursor.fetchone() == (2,)
        second = Beside(lambda: leadership.do(Duty.SWEEP, nothing)).until_blocked()
    assert second.result() is False
    assert Term.objects.get().holder == "host:3:first"


@pytest.fixture
def long_intervals(settings: Any) -> None:
    """Longer than what a test takes on any machine."""
    settings.SAG = {"sweep": 120}


def test_who_began_to_ask_before_the_term_was_drawn_does_not_take_it_for_one_of_another_time(engine: Engine) -> None:
    """Its clock stands at when it began to wait: the term of who came first seems to be longer than any may be."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE sag_supervisor_term")
        waits = Beside(lambda: leadership.do(Duty.SWEEP, nothing)).until_blocked()
        assert leadership.do(Duty.SWEEP, nothing)
    assert waits.result() is False


@pytest.mark.usefixtures("long_intervals")
def test_it_rests_for_half_an_interval_whoever_asks(engine: Engine) -> None:
    done = [leadership.do(Duty.SWEEP, nothing)]
    for _ in range(4):
        engine.ahead(40)
        done.append(leadership.do(Duty.SWEEP, nothing))
    assert done == [True, False, True, False, True]


@pytest.mark.usefixtures("long_intervals")
def test_each_duty_has_a_turn_of_its_own(engine: Engine) -> None:
    assert all(leadership.do(duty, nothing) for duty in Duty)
    assert not any(leadership.do(duty, nothing) for duty in (Duty.SWEEP, Duty.PRUNE, Duty.TELL))
    assert Term.objects.count() == len(Duty)


@pytest.mark.parametrize("duty", list(Duty))
def test_a_turn_whose_holder_died_is_over_after_its_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, duty: Duty
) -> None:
    """SAS-033: nobody has to step in."""
    monkeypatch.setattr(Turn, "end", lambda *_, **__: None)  # it died before that
    leadership.do(duty, nothing)
    as_another(monkeypatch)
    assert not leadership.do(duty, nothing)
    engine.ahead(30)  # for most of them it is over sooner
    assert leadership.do(duty, nothing)
    assert Term.objects.get().holder == "host:2:another"


def test_a_duty_that_fails_was_not_done_and_the_next_may_try(engine: Engine) -> None:
    """SAS-034: a loop that fails at each pass does not look healthy."""

    def fails(_: Turn) -> None:
        raise ConnectionError("the database is away")

    with pytest.raises(ConnectionError):
        leadership.do(Duty.TICKS, fails)
    assert Term.objects.get().done_at is None
    engine.ahead(1)
    assert leadership.do(Duty.TICKS, nothing)
    assert Term.objects.get().done_at is not None


def test_a_long_duty_keeps_its_turn_by_renewing_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def long(turn: Turn) -> None:
        for _ in range(5):
            engine.ahead(3)
            monkeypatch.setattr(turn, "_renew_at", 0.0)
            assert turn.goes_on()
            assert Beside(lambda: leadership.do(Duty.SWEEP, nothing)).result() is False

    assert leadership.do(Duty.SWEEP, long)


def test_who_stood_still_finds_its_turn_gone_and_does_not_take_it_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-028: it does not renew what is another's by now, nor end it."""

    def frozen(turn: Turn) -> None:
        engine.ahead(5)
        with monkeypatch.context() as patched:
            as_another(patched)
            assert leadership.do(Duty.SWEEP, nothing)
        monkeypatch.setattr(turn, "_renew_at", 0.0)
        assert not turn.goes_on()

    assert leadership.do(Duty.SWEEP, frozen)
    row = Term.objects.get()
    assert (row.holder, row.term) == ("host:2:another", 2)


def test_a_term_is_told_by_its_number_and_not_by_a_name(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SAS-029: even the same process does not renew a term that it has lost."""

    def twice(turn: Turn) -> None:
        engine.ahead(5)
        assert leadership.do(Duty.SWEEP, nothing)
        monkeypatch.setattr(turn, "_renew_at", 0.0)
        assert not turn.goes_on()

    assert leadership.do(Duty.SWEEP, twice)


def test_a_clock_that_is_set_back_keeps_nobody_waiting(engine: Engine) -> None:
    engine.ahead(86_400)
    assert leadership.do(Duty.SWEEP, nothing)
    engine.ahead(-86_400)
    assert leadership.do(Duty.SWEEP, nothing)


@pytest.mark.usefixtures("long_intervals")
def test_two_supervisors_with_two_beats_sweep_once_an_interval(engine: Engine) -> None:
    for _ in range(5):
        messages = [Beside(tasks.sweep) for _ in range(4)]
        for message in messages:
            message.result()
        engine.ahead(120)
    assert Sweep.objects.count() == 5


def test_a_sweep_that_thaws_after_another_took_over_goes_no_further_and_doubles_nothing(engine: Engine) -> None:
    """Frozen between two rows: what it does not handle, the other has handled, each once."""
    jobs = [Led.start() for _ in range(6)]
    for job in jobs:
        engine.claim(named(job, "a"))
    engine.rings.clear()
    engine.ahead(11)
    Sweep.objects.create(started_at=now(), finished_at=now())
    asked: list[int] = []

    def frozen_at_the_third_row() -> bool:
        asked.append(1)
        if len(asked) == 3:
            other: Any = Beside(engine.sweep).result()
            assert other.expired == 4
        return len(asked) < 3

    row = supervision.sweep(engine.memory, frozen_at_the_third_row)
    assert row.expired == 2
    assert [states(job)["a"] for job in jobs] == ["NotStarted"] * 6
    for job in jobs:
        assert history(job).count("step.expired a") == 1
        check_books(job)


def test_a_sweep_that_was_frozen_in_a_row_changes_nothing_that_was_decided_meanwhile(engine: Engine) -> None:
    """The worst moment: it has found the row, and thaws after the other has expired and retried it, and a worker has it."""
    [job] = [Led.start()]
    engine.claim(named(job, "a"))
    engine.ahead(11)
    step_id = next(supervision._ids(Step.objects.overdue()))
    assert engine.sweep().expired == 1
    engine.ahead(2)
    claimed = engine.claim(named(job, "a"), "next")
    assert supervision.expire(step_id) is False
    assert supervision.decide(step_id) is False
    assert engine.settle(claimed).job_state == "Completed"
    check_books(Job.objects.get())


def test_a_turn_asks_the_database_only_now_and_then(engine: Engine, django_assert_num_queries: Any) -> None:
    def many(turn: Turn) -> None:
        with django_assert_num_queries(0):
            began = time.monotonic()
            while time.monotonic() - began < 0.2:
                assert turn.goes_on()

    assert leadership.do(Duty.SWEEP, many)
    assert leadership.every(Duty.SWEEP) == timedelta(seconds=2)


@pytest.mark.parametrize(
    ("duty", "task"),
    [
        (Duty.SWEEP, tasks.SWEEP),
        (Duty.RINGS, tasks.RING_DUE),
        (Duty.TICKS, tasks.OPEN_DUE),
        (Duty.NEEDS, tasks.NOTE_NEEDS),
        (Duty.TELL, tasks.TELL_PEOPLE),
        (Duty.PRUNE, tasks.PRUNE),
    ],
)
def test_beat_asks_for_each_duty_as_often_as_it_is_to_be_done(duty: Duty, task: str) -> None:
    [entry] = [entry for entry in settings.CELERY_BEAT_SCHEDULE.values() if entry["task"] == task]
    assert entry["schedule"] == leadership.every(duty)
    assert len(Duty) == len(settings.CELERY_BEAT_SCHEDULE)
