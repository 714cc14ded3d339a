"""`call.once`: for services that know no keys, a call is made once over all attempts, or it is in doubt."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, transaction

from agents import Call, InDoubt, LeaseLost, Permanent, Snooze, Transient
from tests.integration.engine import Engine, check_books, named, state_of
from workflows import Retry, Workflow, given, step, transitions, verbs
from workflows.models import Attempt, Once


class CarefulOnce(Workflow):
    a = step("stall.a", compensation="stall.undo_a", retry=Retry(attempts=3))


class CarefulItems(Workflow):
    a = step("stall.a", compensation="stall.undo_a", each=given["list"])


@pytest.fixture
def made(engine: Engine) -> list[str]:
    """The calls that the pretended service took."""
    return []


def _run(engine: Engine, operation: Callable[[Call], Any]) -> Any:
    engine.says("stall.a", operation)
    job = CarefulOnce.start()
    engine.drain()
    for _ in range(3):
        engine.pass_time(70)
    return job


def test_a_call_is_made_once_and_its_answer_is_known_to_later_attempts_in_its_stored_form(
    engine: Engine, made: list[str]
) -> None:
    def pay(call: Call) -> Any:
        receipt = call.once("pay", lambda: made.append("pay") or ("R1", {7}))
        if call.attempt == 1:
            raise Transient("the second service is busy")
        return {"receipt": receipt}

    job = _run(engine, pay)
    assert made == ["pay"]
    assert (state_of(job), named(job, "a").result) == ("Completed", {"receipt": ["R1", [7]]})
    check_books(job)


def test_an_answer_of_none_is_known_as_well(engine: Engine, made: list[str]) -> None:
    def tell(call: Call) -> Any:
        assert call.once("tell", lambda: made.append("tell")) is None
        if call.attempt == 1:
            raise Snooze(5)

    assert state_of(_run(engine, tell)) == "Completed"
    assert made == ["tell"]


def test_calls_of_different_names_are_made_once_each(engine: Engine, made: list[str]) -> None:
    def both(call: Call) -> Any:
        for name in ("first", "second"):
            call.once(name, lambda name=name: made.append(name))
        if call.attempt == 1:
            raise Snooze(5)

    assert state_of(_run(engine, both)) == "Completed"
    assert made == ["first", "second"]


def test_an_intent_without_an_answer_is_in_doubt_and_the_call_is_not_made_again(
    engine: Engine, made: list[str]
) -> None:
    """Its worker died, or anything unexpected was raised."""

    def break_down(call: Call) -> Any:
        return call.once("pay", lambda: made.append("pay") or 1 / 0)

    job = _run(engine, break_down)
    assert made == ["pay"]
    attempts = Attempt.objects.filter(step__name="a")
    assert [(one.error_code, one.in_doubt) for one in attempts] == [
        ("ZeroDivisionError", True),
        ("once_in_doubt", True),
        ("once_in_doubt", True),
    ]
    engine.pass_time(120)
    assert state_of(job) == "Compensated"


@pytest.mark.parametrize("said", [Transient("busy"), Permanent("never")], ids=["transient", "permanent"])
def test_a_call_that_was_definitely_not_made_leaves_no_intent(
    engine: Engine, made: list[str], said: BaseException
) -> None:
    def refuse() -> Any:
        made.append("refused")
        raise said

    def pay(call: Call) -> Any:
        return call.once("pay", refuse if call.attempt == 1 else lambda: made.append("pay"))

    _run(engine, pay)
    assert made == (["refused", "pay"] if isinstance(said, Transient) else ["refused"])
    assert not Once.objects.filter(done_at__isnull=True).exists()


def test_a_doubt_of_the_call_itself_leaves_the_intent(engine: Engine, made: list[str]) -> None:
    def lose(call: Call) -> Any:
        def send() -> None:
            made.append("sent")
            raise InDoubt("no answer")

        call.once("pay", send)

    _run(engine, lose)
    assert made == ["sent"]


def test_a_second_try_in_the_same_attempt_after_an_unknown_end_is_in_doubt(engine: Engine, made: list[str]) -> None:
    def stubborn(call: Call) -> Any:
        try:
            call.once("pay", lambda: made.append("pay") or 1 / 0)
        except ZeroDivisionError:
            return call.once("pay", lambda: made.append("again"))

    job = _run(engine, stubborn)
    assert made == ["pay"]
    assert {one.error_code for one in Attempt.objects.filter(step=named(job, "a"))} == {"once_in_doubt"}


def test_an_answer_that_cannot_be_stored_is_in_doubt_and_undone(engine: Engine, made: list[str]) -> None:
    job = _run(engine, lambda call: call.once("pay", lambda: made.append("pay") or object()))
    assert made == ["pay"]
    assert Attempt.objects.get(step__name="a").error_code == "result_not_storable"
    engine.pass_time(120)
    assert state_of(job) == "Compensated"


def test_an_intent_whose_acknowledgement_was_lost_does_not_keep_the_call_from_being_made(
    engine: Engine, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transitions.intend_once
    lost: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        if not lost:
            lost.append(1)
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(transitions, "intend_once", broken)
    job = _run(engine, lambda call: call.once("pay", lambda: made.append("pay")))
    assert (lost, made, state_of(job)) == ([1], ["pay"], "Completed")


def test_nothing_is_called_once_the_lease_is_lost(engine: Engine, made: list[str]) -> None:
    def slow(call: Call) -> Any:
        call.may_send_until = 0.0
        with pytest.raises(LeaseLost):
            call.once("pay", lambda: made.append("pay"))
        return {"refused": True}

    job = _run(engine, slow)
    assert named(job, "a").result == {"refused": True}  # an operation's own assertion is but a failed attempt
    assert made == []
    assert not Once.objects.exists()


def test_a_fenced_out_attempt_makes_no_call_and_leaves_no_intent(engine: Engine, made: list[str]) -> None:
    refused: list[int] = []

    def fenced_out(call: Call) -> Any:
        engine.ahead(11)
        engine.sweep()
        with pytest.raises(LeaseLost):
            call.once("pay", lambda: made.append("pay"))
        refused.append(call.attempt)
        raise Transient("gone")

    engine.says("stall.a", fenced_out)
    CarefulOnce.start()
    engine.drain()
    assert (refused, made) == ([1], [])
    assert not Once.objects.exists()


def test_what_an_old_attempt_takes_back_is_its_own_intent_alone(engine: Engine) -> None:
    job = CarefulOnce.start()
    claimed = engine.claim(named(job, "a"))
    transitions.intend_once(claimed.step_id, name="pay", attempt=1, token=claimed.token)
    transitions.forget_once(claimed.step_id, name="pay", attempt=2)
    assert Once.objects.count() == 1
    transitions.forget_once(claimed.step_id, name="pay", attempt=1)
    assert not Once.objects.exists()


def test_inside_a_transaction_once_is_refused_since_its_intent_would_vanish_with_it(
    engine: Engine, made: list[str]
) -> None:
    def wrapped(call: Call) -> Any:
        with transaction.atomic():
            call.once("pay", lambda: made.append("pay"))

    _run(engine, wrapped)
    assert made == []
    assert "in a commit of its own" in Attempt.objects.filter(step__name="a").first().error_message


@pytest.mark.parametrize("name", ["", "x" * 101, None])
def test_a_name_that_cannot_be_kept_is_refused(engine: Engine, made: list[str], name: Any) -> None:
    _run(engine, lambda call: call.once(name, lambda: made.append("pay")))
    assert made == []
    assert "call.once() needs a name" in Attempt.objects.filter(step__name="a").first().error_message


@pytest.mark.parametrize("then", [Snooze(600), Permanent("refused"), Transient("busy")], ids=repr)
def test_what_was_called_once_is_undone_although_its_attempt_says_that_nothing_was_done(
    engine: Engine, made: list[str], then: BaseException
) -> None:
    def submit(call: Call) -> Any:
        call.once("submit", lambda: made.append("submit"))
        raise then

    engine.says("stall.a", submit)
    job = CarefulOnce.start()
    engine.drain()
    if not isinstance(then, Permanent):
        verbs.cancel(job.pk, undo=True, actor="operator:ada", reason="enough")
        engine.drain()
    assert made == ["submit"]
    assert engine.asked().count("stall.undo_a") == 1
    assert state_of(job) == "Compensated"
    check_books(job)


def test_what_was_called_once_for_an_item_is_undone_with_it(engine: Engine, made: list[str]) -> None:
    def submit(call: Call) -> Any:
        if call.index == 1:
            call.once("submit", lambda: made.append("submit"))
            raise Snooze(600)

    engine.says("stall.a", submit)
    job = CarefulItems.start({"list": [0, 1]})
    engine.drain()
    verbs.cancel(job.pk, undo=True, actor="operator:ada", reason="enough")
    engine.drain()
    assert engine.asked().count("stall.undo_a") == 2
    assert state_of(job) == "Compensated"
