"""An outcome is not lost: the database breaks the connection, is read only, is slow; the call's time is up."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from agents import heartbeat, worker
from agents.heartbeat import Heart, Held
from tests.integration.engine import Beside, Engine, backend, check_books, history, locked, named, state_of, states
from tests.waiting import wait_until
from workflows import Retry, Workflow, step, transitions
from workflows.conf import conf
from workflows.models import Attempt, Step


class Kin(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of a worker whose database does not answer, recorded instead of waited."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


def _terminate(pid: int) -> None:
    def end_it() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    Beside(end_it).result()


@pytest.mark.parametrize("operation", ["shop.a", "shop.b"])
def test_a_connection_that_ends_in_the_middle_of_a_call_does_not_lose_its_outcome(
    engine: Engine, patient: list[float], operation: str
) -> None:
    """SAS-010, SAS-018"""

    def cut(call: Any) -> Any:
        _terminate(backend())
        return {"reference": "R1"}

    engine.says(operation, cut)
    job = Kin.start()
    engine.drain()
    assert patient
    assert state_of(job) == "Completed"
    assert named(job, operation[-1]).result == {"reference": "R1"}
    assert engine.asked() == ["shop.a", "shop.b"]
    assert Attempt.objects.count() == 2
    check_books(job)


def test_a_connection_that_ends_in_the_middle_of_the_settling_transaction_does_not_lose_the_failure(
    engine: Engine, patient: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents import Permanent

    real = transitions.fail
    cuts: list[int] = []

    def cut_in_the_middle(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        if not cuts:
            cuts.append(1)
            _terminate(backend())

    monkeypatch.setattr(transitions, "fail", cut_in_the_middle)
    engine.says("shop.b", Permanent("sold out"))
    job = Kin.start()
    engine.drain()
    assert cuts
    assert state_of(job) == "Compensated"
    assert history(job).count("step.failed b") == 1
    check_books(job)


def test_a_database_that_is_read_only_for_a_while_does_not_lose_the_outcome(
    engine: Engine, patient: list[float]
) -> None:
    """A fail-over: the connection leads to a standby. The next one leads to the new primary."""

    def fail_over(call: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        return {"reference": "R1"}

    engine.says("shop.a", fail_over)
    job = Kin.start()
    engine.drain()
    assert patient
    assert state_of(job) == "Completed"
    assert named(job, "a").result == {"reference": "R1"}
    assert len(engine.calls_of("shop.a")) == 1


def test_a_job_locked_for_long_does_not_lose_the_outcome(engine: Engine, patient: list[float]) -> None:
    """The settle gives up its wait for the lock, and asks again until it has it."""
    job = Kin.start()
    claimed = engine.claim(named(job, "a"))

    def settle() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '20ms'")
        return worker.until_answered(lambda: _settle_impatiently(engine, claimed))

    with locked(job):
        settled = Beside(settle)
        wait_until(lambda: len(patient) >= 2, what="the settle was tried twice", every=0.005)
    assert settled.result().job_state == "Running"
    assert states(job)["a"] == "Completed"
    check_books(job)


def _settle_impatiently(engine: Engine, claimed: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '20ms'")
    return engine.settle(claimed)


def test_the_waits_for_a_database_that_is_away_grow_to_two_seconds_and_no_further(patient: list[float]) -> None:
    from django.db import OperationalError

    asked = []

    def ask() -> str:
        asked.append(1)
        if len(asked) < 12:
            raise OperationalError("away")
        return "answered"

    assert worker.until_answered(ask) == "answered"
    assert patient == sorted(patient)
    assert (patient[0], patient[-1], len(patient)) == (0.1, 2.0, 11)


# --- time --------------------------------------------------------------------------------------------------------------


def _hang(call: Any) -> None:
    threading.Event().wait(30)


def test_a_call_that_hangs_is_interrupted_at_its_time_out_and_in_doubt(engine: Engine) -> None:
    """SAS-061"""

    class Impatient(Workflow):
        a = step("shop.a", compensation="shop.undo_a", timeout=timedelta(seconds=0.4), retry=Retry(attempts=1))

    engine.says("shop.a", _hang)
    began = time.monotonic()
    job = Impatient.start()
    engine.drain()
    assert time.monotonic() - began < 10
    attempt = Attempt.objects.get(step__name="a")
    assert (attempt.error_code, attempt.in_doubt) == ("timeout", True)
    assert state_of(job) == "Compensated"
    assert engine.asked() == ["shop.a", "shop.undo_a"]


def test_an_operation_cannot_swallow_its_time_out(engine: Engine) -> None:
    class Stubborn(Workflow):
        a = step("shop.a", compensation="shop.undo_a", timeout=timedelta(seconds=0.4), retry=Retry(attempts=1))

    def stubborn(call: Any) -> Any:
        try:
            _hang(call)
        except Exception:
            return {"never": "heard"}

    engine.says("shop.a", stubborn)
    job = Stubborn.start()
    engine.drain()
    assert named(job, "a").error_code == "timeout"
    assert named(job, "a").result is None


def test_an_attempt_whose_time_was_up_before_its_call_is_not_in_doubt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Workflow):
        a = step("shop.a", timeout=timedelta(seconds=0.3), retry=Retry(attempts=1))

    monkeypatch.setattr(worker, "_fill_in", lambda *args: _hang(None))
    job = Late.start()
    engine.drain()
    assert engine.asked() == []
    assert (named(job, "a").error_code, Attempt.objects.get().in_doubt) == ("not_called", False)
    assert state_of(job) == "Failed"


def test_the_last_resort_settles_a_call_that_cannot_be_interrupted_as_in_doubt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat's thread gives up a call that hangs in foreign code; its late answer is evidence."""
    monkeypatch.setattr(heartbeat, "GRACE", 0.0)
    job = Kin.start()
    first = named(job, "a")
    gave_up = threading.Event()

    class Watchful(Heart):
        def _give_up(self, held: Held) -> None:
            super()._give_up(held)
            gave_up.set()

    watchful = Watchful()
    monkeypatch.setattr(worker, "heart", watchful)

    def hang_in_foreign_code(call: Any) -> Any:
        call.ends_at = time.monotonic()
        assert gave_up.wait(20)
        return {"reference": "LATE"}

    engine.says("shop.a", hang_in_foreign_code)
    monkeypatch.setattr(worker, "_time_limit", lambda seconds: __import__("contextlib").nullcontext())
    worker.work("agents", first.pk)
    attempt = Attempt.objects.get()
    assert (attempt.error_code, attempt.in_doubt, attempt.late_outcome) == ("timeout", True, "completed")
    assert attempt.late_result == {"reference": "LATE"}


def test_the_heart_outlives_a_giving_up_that_goes_wrong(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised on its thread, the other steps of this process keep their leases."""
    job = Kin.start()
    claimed = engine.claim(named(job, "a"))

    def call(ends_in: float) -> Any:
        from agents.call import Call

        return Call(job_id=job.pk, workflow="Kin", step="a", attempt=1, idempotency_key="k", input=None,
                    ends_at=time.monotonic() + ends_in, may_send_until=0.0)  # fmt: skip

    def go_wrong() -> None:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(heartbeat, "GRACE", -1.0)
    monkeypatch.setattr(type(conf), "heartbeat", 0.05, raising=False)
    heart = Heart()
    hanging = Held(step_id=0, token=__import__("uuid").uuid4(), call=call(-5), give_up=go_wrong)
    healthy = Held(step_id=claimed.step_id, token=claimed.token, call=call(60), give_up=go_wrong)
    heart.hold(healthy)
    heart.hold(hanging)
    wait_until(lambda: hanging.token not in heart._held, what="the hanging call was given up")
    wait_until(lambda: healthy.call.may_send_until > 0, what="the healthy call's lease was renewed")
    heart.let_go(healthy.token)


def test_a_beat_that_the_database_refuses_is_tried_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Kin.start()
    claimed = engine.claim(named(job, "a"))
    real = transitions.heartbeat
    refused: list[int] = []

    def refuse_once(held: Any) -> Any:
        if not refused:
            refused.append(1)
            raise DatabaseError("not now")
        return real(held)

    monkeypatch.setattr(transitions, "heartbeat", refuse_once)
    monkeypatch.setattr(type(conf), "heartbeat", 0.05, raising=False)
    from agents.call import Call

    call = Call(job_id=job.pk, workflow="Kin", step="a", attempt=1, idempotency_key="k", input=None,
                ends_at=time.monotonic() + 60, may_send_until=0.0)  # fmt: skip
    heart = Heart()
    heart.hold(Held(step_id=claimed.step_id, token=claimed.token, call=call, give_up=lambda: None))
    wait_until(lambda: call.may_send_until > 0, what="the second beat was taken")
    heart.let_go(claimed.token)
    assert refused


# --- looking round -------------------------------------------------------------------------------------------------------


def test_a_worker_that_was_rung_takes_what_nobody_was_rung_for_as_well(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-095: a lost doorbell heals at the next."""
    monkeypatch.undo()
    monkeypatch.setattr("workflows.broker._send", engine.send)
    jobs = [Kin.start() for _ in range(3)]
    engine.rings.clear()
    worker.work("agents", None)
    assert [state_of(job) for job in jobs] == ["Completed"] * 3


def test_a_doorbell_whose_step_is_done_has_its_worker_look_round_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that holds enough doorbells is not rung for: where the last of them are old, their workers must look."""
    monkeypatch.undo()
    monkeypatch.setattr("workflows.broker._send", engine.send)
    done = Kin.start()
    worker.work("agents", named(done, "a").pk)
    unheard = Kin.start()
    engine.rings.clear()
    worker.work("agents", named(done, "a").pk)
    assert [state_of(job) for job in (done, unheard)] == ["Completed"] * 2


def test_a_doorbell_for_a_step_that_is_gone_or_done_is_harmless(engine: Engine) -> None:
    job = Kin.start()
    engine.drain()
    worker.work("agents", named(job, "a").pk)
    worker.work("agents", 999_999_999)
    assert engine.asked() == ["shop.a", "shop.b"]
    assert Step.objects.filter(job=job, attempt=1).count() == 2
    check_books(job)


def test_doorbells_doubled_and_out_of_order_do_nothing_twice(engine: Engine) -> None:
    """SAS-095: old messages from a snapshot of the broker."""
    jobs = [Kin.start() for _ in range(4)]
    doubled = [*engine.rings, *engine.rings, *engine.rings]
    engine.rings.clear()
    engine.rings.extend(reversed(doubled))
    engine.drain()
    assert sorted(engine.asked()) == ["shop.a"] * 4 + ["shop.b"] * 4
    assert [state_of(job) for job in jobs] == ["Completed"] * 4


def test_a_chain_of_plain_steps_asks_the_store_nothing_beside_the_hot_statements(engine: Engine) -> None:
    """Each further question of a step is paid for by every step of every job."""

    class PlainChain(Workflow):
        a = step("shop.a")
        b = step("shop.b", input={"a": a})
        c = step("shop.c", input={"a": a, "b": b})

    job = PlainChain.start()
    with CaptureQueriesContext(connection) as asked:
        engine.drain()
    assert state_of(job) == "Completed"
    assert [one["sql"] for one in asked.captured_queries] == []
