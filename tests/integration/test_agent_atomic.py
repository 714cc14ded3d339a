"""Operations that write to this database alone run inside the transaction that settles them: exactly once."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pydantic
import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import QuerySet
from psycopg.errors import DeadlockDetected

from agents import Agent, Call, Defer, InDoubt, Permanent, Snooze, Transient, worker
from agents.tasks import row_of
from tests.integration.engine import Beside, Engine, backend, check_books, history, named, state_of
from workflows import Retry, Workflow, reports, step, transitions
from workflows.models import Attempt, Step


class Booked(pydantic.BaseModel):
    entry: int
    note: str = "none"


ledger = Agent("ledger")
script: list[Any] = []


def _name(call: Call) -> str:
    return f"{call.step} {call.attempt} of {call.job_id}"


def _rows() -> QuerySet[Group]:
    """What this module's operations write: other tests' groups stay out of it."""
    return Group.objects.filter(name__contains=" of ").order_by("id")


def _write(call: Call) -> Any:
    """Write a row, then do what the test says."""
    Group.objects.create(name=_name(call))
    said = script.pop(0) if len(script) > 1 else script[0] if script else {"entry": 1}
    if isinstance(said, BaseException):
        raise said
    return said(call) if callable(said) else said


@ledger.operation(atomic=True)
def book(call: Call) -> Any:
    return _write(call)


@ledger.operation(atomic=True, output=Booked)
def book_typed(call: Call) -> Any:
    return _write(call)


@ledger.operation(atomic=True)
def unbook(call: Call) -> Any:
    return _write(call)


@ledger.operation(output=Booked)
def ask(call: Call) -> Any:
    return script[0](call) if callable(script[0]) else script[0]


class Book(Workflow):
    a = step("ledger.book", retry=Retry(attempts=2), timeout=timedelta(seconds=20))
    b = step("shop.b", input={"a": a})


@pytest.fixture
def atomic(engine: Engine) -> Iterator[Engine]:
    transitions.announce(row_of(ledger))
    script.clear()
    yield engine
    _rows().delete()


def _written() -> list[str]:
    return [name.partition(" of ")[0] for name in _rows().values_list("name", flat=True)]


def test_what_an_atomic_operation_wrote_and_its_result_are_there_together_and_the_job_goes_on(atomic: Engine) -> None:
    """Protocol 36"""
    job = Book.start()
    atomic.drain()
    assert (state_of(job), _written()) == ("Completed", ["a 1"])
    assert atomic.calls_of("shop.b")[0].input == {"a": {"entry": 1}}
    assert Attempt.objects.get(step__name="a").input == {}
    check_books(job)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (Transient("busy"), "transient"),
        (Permanent("no"), "permanent"),
        (InDoubt("?"), "transient"),
        (ValueError("a bug"), "transient"),
        (IntegrityError("twice"), "transient"),
        (SystemExit(1), "transient"),
        (lambda call: object(), "permanent"),
    ],
    ids=["transient", "permanent", "in doubt", "bug", "database", "exit", "not storable"],
)
def test_an_exception_rolls_all_back_and_nothing_is_in_doubt(atomic: Engine, said: Any, kind: str) -> None:
    script.append(said)
    job = Book.start()
    atomic.drain()
    atomic.pass_time(70)
    assert (state_of(job), _written()) == ("Failed", [])
    attempts = Attempt.objects.filter(step__name="a")
    assert {one.error_kind for one in attempts} == {kind}
    assert len(attempts) == (1 if kind == "permanent" else 2)
    assert not attempts.filter(in_doubt=True).exists()
    assert not attempts.filter(late_at__isnull=False).exists()
    check_books(job)


def test_a_heartbeat_does_not_wait_for_an_atomic_operation(atomic: Engine) -> None:
    """Protocol 36: the fence is checked under the job's lock, and the step's row stays free."""
    beats: list[Any] = []

    def beat_beside(call: Call) -> Any:
        assert connection.in_atomic_block
        beats.append(Beside(lambda: transitions.heartbeat({call.token: (call.step_id, None)})).result())
        return {}

    script.append(beat_beside)
    job = Book.start()
    atomic.drain()
    assert [len(beat.held) for beat in beats] == [1]
    assert state_of(job) == "Completed"


def test_an_attempt_that_was_fenced_out_does_not_run_at_all(atomic: Engine) -> None:
    job = Book.start()
    claimed = atomic.claim(named(job, "a"))
    atomic.ahead(11)
    atomic.sweep()
    worker._run_chain(claimed, 1e12)
    assert _written() == []
    assert named(job, "a").state != "Completed"


def test_an_attempt_that_died_leaves_a_doubt_which_the_next_one_closes_since_it_was_rolled_back(
    atomic: Engine,
) -> None:
    job = Book.start()
    atomic.claim(named(job, "a"))
    atomic.rings.clear()
    atomic.ahead(11)
    atomic.sweep()
    assert Attempt.objects.get().in_doubt
    atomic.pass_time(5)
    assert (state_of(job), _written()) == ("Completed", ["a 2"])
    assert not Attempt.objects.filter(in_doubt=True, resolved_by="").exists()


def test_a_snooze_rolls_back_and_comes_again(atomic: Engine) -> None:
    script.extend([Snooze(5), {"entry": 2}])
    job = Book.start()
    atomic.drain()
    assert (_written(), named(job, "a").state) == ([], "NotStarted")
    atomic.pass_time(6)
    assert (_written(), state_of(job)) == (["a 2"], "Completed")


def test_a_defer_is_refused_with_the_reason(atomic: Engine) -> None:
    script.append(Defer())
    job = Book.start()
    atomic.drain()
    failed = named(job, "a")
    assert (failed.error_kind, failed.error_code) == ("permanent", "defer_in_atomic")
    assert "cannot Defer" in failed.error_message
    assert (_written(), state_of(job)) == ([], "Failed")


def test_its_time_out_rolls_back_and_is_not_in_doubt(atomic: Engine) -> None:
    class AtomicSlow(Workflow):
        a = step("ledger.book", retry=Retry(attempts=1), timeout=timedelta(seconds=0.4))

    script.append(lambda call: threading.Event().wait(30))
    job = AtomicSlow.start()
    atomic.drain()
    failed = named(job, "a")
    assert (failed.error_kind, failed.error_code, _written()) == ("transient", "timeout", [])
    assert not Attempt.objects.get().in_doubt
    assert state_of(job) == "Failed"


def test_a_connection_that_breaks_in_the_middle_rolls_back_and_is_tried_again(
    atomic: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(call: Call) -> Any:
        pid = backend()
        Beside(lambda: _terminate(pid)).result()
        return {}

    script.extend([cut, {"entry": 2}])
    job = Book.start()
    atomic.drain()
    assert _written() == []
    atomic.pass_time(5)
    assert (_written(), state_of(job)) == (["a 2"], "Completed")
    assert not Attempt.objects.filter(in_doubt=True).exists()
    check_books(job)


def _terminate(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_commit_that_went_through_although_its_answer_was_lost_counts(
    atomic: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reports.settle_atomically

    def broken(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(reports, "settle_atomically", broken)
    job = Book.start()
    atomic.drain()
    assert (_written(), state_of(job)) == (["a 1"], "Completed")
    assert not Attempt.objects.filter(late_at__isnull=False).exists()
    assert history(job).count("step.completed a") == 1


def test_an_operation_that_is_run_again_after_a_deadlock_is_given_its_input_anew(
    atomic: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def spoil(call: Call) -> Any:
        seen.append(dict(call.input))
        call.input["n"] = "spoilt"
        if len(seen) == 1:
            raise OperationalError("deadlock detected") from DeadlockDetected()
        return {}

    class Given(Workflow):
        a = step("ledger.book", input={"n": 1})

    script.append(spoil)
    job = Given.start()
    atomic.drain()
    assert seen == [{"n": 1}, {"n": 1}]
    assert (state_of(job), _written()) == ("Completed", ["a 1"])
    assert Attempt.objects.get().input == {"n": 1}


def test_a_compensation_may_be_atomic(atomic: Engine) -> None:
    class Undo(Workflow):
        a = step("shop.a", compensation="ledger.unbook")
        b = step("shop.b", after=[a])

    atomic.says("shop.b", Permanent("gone"))
    job = Undo.start()
    atomic.drain()
    assert (state_of(job), _written()) == ("Compensated", ["a.undo 1"])
    check_books(job)


def test_two_jobs_do_not_wait_for_each_others_atomic_operations(atomic: Engine) -> None:
    """SAS-018's kind: what one job holds keeps nobody else."""
    first, second = Book.start(), Book.start()
    ended: list[str] = []

    def other_job(call: Call) -> Any:
        if call.job_id == first.pk:
            other = Step.objects.get(job=second, name="a")
            Beside(lambda: worker.work("agents", other.pk)).result()
            ended.append(named(second, "a").state)
        return {}

    script.append(other_job)
    worker.work("agents", named(first, "a").pk)
    assert ended == ["Completed"]
    assert named(first, "a").state == "Completed"


# --- what a result was promised to be ------------------------------------------------------------------------------------


class Ask(Workflow):
    a = step("ledger.ask", compensation="shop.undo_a", probe="shop.find", retry=Retry(attempts=3))


@pytest.mark.parametrize("said", [{"entry": "7"}, Booked(entry=7)], ids=["dict", "model"])
def test_a_result_is_stored_as_its_model_says(atomic: Engine, said: Any) -> None:
    script.append(said)
    job = Ask.start()
    atomic.drain()
    assert named(job, "a").result == {"entry": 7, "note": "none"}


def test_a_result_that_does_not_fit_came_from_a_call_that_was_made_and_is_undone_and_not_tried_again(
    atomic: Engine,
) -> None:
    """Protocol 13"""
    script.append({"entry": "secret"})
    job = Ask.start()
    atomic.drain()
    atomic.pass_time(70)
    attempt = Attempt.objects.get(step__name="a")
    assert (attempt.error_code, attempt.in_doubt) == ("result_not_storable", True)
    assert "does not fit Booked: entry:" in attempt.error_message
    assert "secret" not in attempt.error_message
    assert (state_of(job), "shop.undo_a" in atomic.asked()) == ("Compensated", True)


def test_what_a_probe_found_has_to_fit_as_well(atomic: Engine) -> None:
    def lose(call: Call) -> Any:
        raise InDoubt("lost")

    script.append(lose)
    atomic.says("shop.find", {"entry": 3})
    job = Ask.start()
    atomic.drain()
    atomic.pass_time(5)
    assert (state_of(job), named(job, "a").result) == ("Completed", {"entry": 3, "note": "none"})


def test_an_atomic_result_that_does_not_fit_rolls_back(atomic: Engine) -> None:
    class AtomicTyped(Workflow):
        a = step("ledger.book_typed")

    script.append({"no": "entry"})
    job = AtomicTyped.start()
    atomic.drain()
    failed = named(job, "a")
    assert (failed.error_kind, failed.error_code) == ("permanent", "result_not_storable")
    assert (_written(), state_of(job)) == ([], "Failed")
    assert not Attempt.objects.get().in_doubt


def test_inside_the_operation_a_savepoint_of_its_own_may_fail_and_the_rest_stays(atomic: Engine) -> None:
    def partly(call: Call) -> Any:
        with pytest.raises(IntegrityError), transaction.atomic():
            Group.objects.create(name=_name(call))
        return {}

    script.append(partly)
    job = Book.start()
    atomic.drain()
    assert (_written(), state_of(job)) == (["a 1"], "Completed")
