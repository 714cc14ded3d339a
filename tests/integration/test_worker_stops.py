"""A worker that has to stop in the middle of a call hands it back, where the next one can find out what became of it."""

import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from agents import InDoubt, draining, worker
from supervisor import sweep as supervision
from tests.integration.engine import Engine, check_books, history, named, state_of
from workflows import Retry, Workflow, step, undo, verbs
from workflows.models import Attempt, Event, Job

pytestmark = pytest.mark.usefixtures("stoppable")


class WithProbe(Workflow):
    compensate_within = timedelta(days=1)
    a = step("stall.a", probe="stall.find", compensation="stall.undo_a", retry=Retry(attempts=1))


class WithKeys(Workflow):
    a = step("shop.a", retry=Retry(attempts=1))


class WithNeither(Workflow):
    a = step("stall.a", timeout=timedelta(seconds=2), retry=Retry(attempts=1), on_failure="hold")


@pytest.fixture
def stoppable(engine: Engine, settings: Any) -> Iterator[None]:
    """This process as a child of a pool, whose calls can be interrupted, and that may soon be told to stop."""
    settings.SAG = {"drain_within": 0.1}
    before = signal.getsignal(signal.SIGALRM)
    worker.let_calls_be_interrupted()
    yield
    draining._since[0] = 0.0
    signal.signal(signal.SIGALRM, before)


def told_to_stop(call: Any) -> None:
    """The word comes while the call is under way, and the call has no end."""
    draining.begin()
    threading.Event().wait(30)


def until_told_to_stop(engine: Engine) -> None:
    """Answer doorbells; from then on each would only be rung again."""
    while engine.rings and not draining.is_draining():
        engine.answer(*engine.rings.popleft())


def next_worker(engine: Engine) -> None:
    draining._since[0] = 0.0
    engine.drain()


def stopped_in(engine: Engine, workflow: type[Workflow], operation: str) -> Job:
    job = workflow.start()
    engine.says(operation, told_to_stop, {"reference": "R"})
    worker.work("agents", named(job, "a").pk)
    return job


def test_the_next_worker_asks_at_once_what_became_of_the_call_and_nothing_is_charged(engine: Engine) -> None:
    job = stopped_in(engine, WithProbe, "stall.a")
    step = named(job, "a")
    assert (step.state, step.charged, step.attempt) == ("NotStarted", 0, 1)
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.in_doubt) == ("released", True)
    assert attempt.input is not None
    event = Event.objects.get(job=job, kind="step.released")
    assert event.reason == "Its worker had to stop in the middle of the call."
    engine.says("stall.find", {"reference": "R"})
    next_worker(engine)  # it was rung for; nobody waited for the end of a lease
    assert engine.asked() == ["stall.a", "stall.find"]
    assert state_of(job) == "Completed"
    assert Attempt.objects.get(number=1).resolved_by == "probe"
    check_books(job)


def test_under_the_same_key_the_call_is_simply_made_again(engine: Engine) -> None:
    job = stopped_in(engine, WithKeys, "shop.a")
    next_worker(engine)
    first, second = engine.calls_of("shop.a")
    assert first.idempotency_key == second.idempotency_key
    assert (state_of(job), named(job, "a").charged) == ("Completed", 0)
    check_books(job)


def test_what_nobody_could_find_out_goes_on_until_its_own_time_is_up(engine: Engine) -> None:
    """A doubt that only a person could clear is not made for the sake of a deploy."""
    job = stopped_in(engine, WithNeither, "stall.a")
    assert "step.released" not in " ".join(history(job))
    assert (named(job, "a").state, named(job, "a").error_code) == ("Failed", "timeout")


def test_a_call_that_ends_in_time_is_settled(engine: Engine, settings: Any) -> None:
    settings.SAG = {"drain_within": 60}
    job = WithProbe.start()

    def ends(call: Any) -> Any:
        draining.begin()
        return {"reference": "R"}

    engine.says("stall.a", ends)
    worker.work("agents", named(job, "a").pk)
    assert state_of(job) == "Completed"


def test_a_job_that_is_cancelled_meanwhile_is_undone(engine: Engine) -> None:
    job = WithProbe.start()

    def cancelled(call: Any) -> None:
        verbs.cancel(job.pk, undo=True, actor="client:x", reason="no more")
        told_to_stop(call)

    engine.says("stall.a", cancelled)
    worker.work("agents", named(job, "a").pk)
    next_worker(engine)
    engine.pass_time(120, times=3)
    assert state_of(job) == "Compensated"
    assert "stall.undo_a" in engine.asked()
    assert engine.asked().count("stall.a") == 1
    check_books(job)


def test_an_undo_that_is_broken_off_is_done_by_the_next_worker(engine: Engine) -> None:
    job = WithProbe.start()
    engine.drain()
    undo_it = undo.preview(job.pk)
    engine.says("stall.undo_a", told_to_stop, {"cancelled": True})
    undo.compensate(job.pk, digest=undo_it.digest, actor="client:x", reason="no more")
    until_told_to_stop(engine)
    assert state_of(job) == "Compensating"
    next_worker(engine)
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_probe_that_is_broken_off_leaves_the_doubt(engine: Engine) -> None:
    class TriedTwice(Workflow):
        a = step("stall.a", probe="stall.find", retry=Retry(attempts=2, first=timedelta(seconds=0.1)))

    job = TriedTwice.start()
    engine.says("stall.a", InDoubt("The answer was lost."), {"reference": "R"})
    engine.says("stall.find", told_to_stop, None)
    engine.drain()
    engine.ahead(1)
    supervision.ring_due()
    until_told_to_stop(engine)
    assert (named(job, "a").state, named(job, "a").attempt) == ("NotStarted", 2)
    next_worker(engine)
    assert engine.asked() == ["stall.a", "stall.find", "stall.find", "stall.a"]
    assert state_of(job) == "Completed"
