"""A call that is not over when its worker is done with it: called again later, ended by a callback, or stopped."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

from agents import Call, Defer, InDoubt, Permanent, Snooze, Stopped
from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, named, state_of
from workflows import Retry, Workflow, findings, reports, signals, step, verbs
from workflows.clock import now
from workflows.exceptions import InvalidInput, NotFound
from workflows.models import Attempt, Event, Job, Step


class Two(Workflow):
    a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=2))
    b = step("shop.b", compensation="shop.undo_b", after=[a])


class ProbedFirst(Workflow):
    a = step("shop.a", compensation="shop.undo_a", probe="shop.find", retry=Retry(attempts=3))


def _lose_the_answer_once(monkeypatch: pytest.MonkeyPatch, verb: str) -> list[int]:
    """It commits, and the connection breaks before the answer comes."""
    real = getattr(reports, verb)
    lost: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        if not lost:
            lost.append(1)
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(reports, verb, broken)
    return lost


# --- Snooze ------------------------------------------------------------------------------------------------------------


def test_a_snoozed_step_is_called_again_when_it_is_due_and_not_before_and_is_not_charged(engine: Engine) -> None:
    engine.says("shop.a", Snooze(20, "not ready yet"), Snooze(20), {"ready": True})
    job = Two.start()
    engine.drain()
    waiting = named(job, "a")
    assert (waiting.state, waiting.attempt, waiting.charged) == ("NotStarted", 1, 0)
    assert Event.objects.get(kind="step.released").reason == "not ready yet"
    engine.pass_time(19)
    assert engine.asked() == ["shop.a"]
    engine.pass_time(2)
    engine.pass_time(21)
    assert engine.asked() == ["shop.a", "shop.a", "shop.a", "shop.b"]
    assert state_of(job) == "Completed"
    assert (named(job, "a").charged, named(job, "a").result) == (0, {"ready": True})
    assert [one.outcome for one in Attempt.objects.filter(step__name="a")] == ["released", "released", "completed"]
    assert len({call.idempotency_key for call in engine.calls_of("shop.a")}) == 1
    check_books(job)


@pytest.mark.parametrize("said", [Snooze(5), Defer()], ids=["snooze", "defer"])
def test_an_operations_own_except_does_not_swallow_it(engine: Engine, said: BaseException) -> None:
    def careful(call: Call) -> Any:
        try:
            raise said
        except Exception:
            return {"swallowed": True}

    engine.says("shop.a", careful)
    job = Two.start()
    engine.drain()
    assert named(job, "a").state in ("NotStarted", "Running")
    assert named(job, "a").result is None


def test_a_compensation_may_snooze(engine: Engine) -> None:
    engine.says("shop.b", Permanent("gone"))
    engine.says("shop.undo_a", Snooze(30), {"cancelled": True})
    job = Two.start()
    engine.drain()
    assert (state_of(job), named(job, "a.undo").state) == ("Compensating", "NotStarted")
    engine.pass_time(31)
    assert state_of(job) == "Compensated"
    assert named(job, "a.undo").charged == 0
    check_books(job)


def test_a_probe_may_snooze_and_is_asked_again_before_the_operation(engine: Engine) -> None:
    engine.says("shop.a", InDoubt("lost"))
    engine.says("shop.find", Snooze(10), {"found": True})
    job = ProbedFirst.start()
    engine.drain()
    engine.pass_time(2)
    assert engine.asked() == ["shop.a", "shop.find"]
    engine.pass_time(11)
    assert engine.asked() == ["shop.a", "shop.find", "shop.find"]
    assert (state_of(job), named(job, "a").settled_by) == ("Completed", "probe")


def test_a_snooze_whose_answer_was_lost_is_taken_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = _lose_the_answer_once(monkeypatch, "release")
    engine.says("shop.a", Snooze(20), {})
    job = Two.start()
    engine.drain()
    assert lost == [1]
    assert history(job).count("step.released a") == 1
    engine.pass_time(21)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_job_that_is_cancelled_while_a_step_snoozes_skips_it(engine: Engine) -> None:
    engine.says("shop.a", Snooze(20))
    job = Two.start()
    engine.drain()
    verbs.cancel(job.pk, undo=True, actor="ada", reason="")
    engine.pass_time(21)
    assert (named(job, "a").state, engine.asked()) == ("Skipped", ["shop.a"])
    assert Job.objects.get(pk=job.pk).is_terminal


# --- Defer -------------------------------------------------------------------------------------------------------------


def _deferred(engine: Engine, workflow: type[Workflow] = Two, within: timedelta | None = None) -> tuple[Job, str]:
    """A job whose first step waits for its callback, and the token of that."""
    engine.says("shop.a", Defer(within))
    job = workflow.start()
    engine.drain()
    return job, engine.calls_of("shop.a")[0].callback_token


def test_a_deferred_step_stays_running_without_a_lease_until_its_callback(engine: Engine) -> None:
    job, token = _deferred(engine, within=timedelta(hours=2))
    waiting = named(job, "a")
    assert (waiting.state, waiting.complete_by, waiting.token) == ("Running", None, None)
    assert timedelta(minutes=119) < waiting.deadline - now() <= timedelta(hours=2)
    engine.ahead(3600)
    engine.sweep()
    assert named(job, "a").state == "Running"
    called = signals.call_back(token, {"result": {"reference": "R7"}})
    engine.drain()
    assert (called.outcome, state_of(job)) == ("completed", "Completed")
    assert (named(job, "a").result, named(job, "a").settled_by) == ({"reference": "R7"}, "callback")
    assert engine.asked() == ["shop.a", "shop.b"]
    check_books(job)


def test_the_path_of_a_callback_holds_its_token(engine: Engine) -> None:
    _, token = _deferred(engine)
    assert engine.calls_of("shop.a")[0].callback_path == f"/api/v1/callbacks/{token}"


def test_a_callback_that_comes_before_the_defer_has_settled_wins_and_that_settle_is_not_called_late(
    engine: Engine,
) -> None:
    """SAS-077, protocol 27"""

    def answered_at_once(call: Call) -> Any:
        Beside(lambda: signals.call_back(call.callback_token, {"result": {"fast": True}})).result()
        raise Defer

    engine.says("shop.a", answered_at_once)
    job = Two.start()
    engine.drain()
    assert (state_of(job), named(job, "a").result) == ("Completed", {"fast": True})
    assert not Attempt.objects.filter(late_at__isnull=False).exists()
    assert history(job).count("step.completed a") == 1
    check_books(job)


def test_a_callback_that_comes_twice_is_recorded_and_changes_nothing(engine: Engine) -> None:
    job, token = _deferred(engine)
    signals.call_back(token, {"result": {"n": 1}})
    again = signals.call_back(token, {"result": {"n": 2}})
    refused = signals.call_back(token, {"error": {"kind": "permanent", "message": "no"}})
    engine.drain()
    assert (again.outcome, refused.outcome) == ("ignored", "ignored")
    assert (named(job, "a").result, state_of(job)) == ({"n": 1}, "Completed")
    assert history(job).count("callback.ignored a") == 2
    check_books(job)


def test_without_a_callback_in_time_the_step_is_in_doubt_and_undone(engine: Engine) -> None:
    job, _ = _deferred(engine, within=timedelta(seconds=60))
    engine.ahead(61)
    supervision.wake_due()
    failed = named(job, "a")
    assert (failed.state, failed.error_code, failed.error_kind) == ("Failed", "callback_timeout", "expired_waiting")
    assert Attempt.objects.get(step=failed).in_doubt
    engine.drain()
    assert state_of(job) == "Compensated"
    assert engine.asked()[:2] == ["shop.a", "shop.undo_a"]
    check_books(job)


def test_a_late_callback_settles_a_step_that_had_timed_out_while_nothing_was_decided(engine: Engine) -> None:
    job, token = _deferred(engine, within=timedelta(seconds=60))
    engine.ahead(61)
    assert findings.wait_is_over(named(job, "a").pk)
    assert signals.call_back(token, {"result": {"late": True}}).outcome == "completed"
    engine.drain()
    assert (state_of(job), named(job, "a").result) == ("Completed", {"late": True})
    assert not Attempt.objects.filter(in_doubt=True, resolved_by="").exists()
    check_books(job)


def test_a_callback_after_the_undo_is_evidence_and_the_undo_is_asked_once_more(engine: Engine) -> None:
    class Stall(Workflow):
        a = step("stall.a", compensation="stall.undo_a")

    engine.says("stall.a", Defer(timedelta(seconds=60)))
    job = Stall.start()
    engine.drain()
    engine.ahead(61)
    supervision.wake_due()
    engine.drain()
    engine.pass_time(200)
    assert state_of(job) == "Compensated"
    asked = engine.asked().count("stall.undo_a")
    called = signals.call_back(engine.calls_of("stall.a")[0].callback_token, {"result": {"late": True}})
    engine.drain()
    assert called.outcome == "ignored"
    assert state_of(job) == "Compensated"
    assert engine.asked().count("stall.undo_a") == asked + 1


@pytest.mark.parametrize(("kind", "state"), [("permanent", "Compensated"), ("transient", "Running")])
def test_a_callback_may_say_that_it_failed(engine: Engine, kind: str, state: str) -> None:
    job, token = _deferred(engine)
    body = {"error": {"kind": kind, "code": "no_room", "message": "No room."}}
    assert signals.call_back(token, body).outcome == "failed"
    engine.drain()
    assert (state_of(job), named(job, "a").error_code) == (state, "no_room")


def test_a_callback_of_an_earlier_attempt_completes_the_step_in_a_later_one(engine: Engine) -> None:
    job, token = _deferred(engine)
    signals.call_back(token, {"error": {"kind": "transient", "message": "later"}})
    engine.drain()
    engine.pass_time(5)
    assert named(job, "a").attempt == 2
    assert engine.calls_of("shop.a")[1].callback_token == token
    signals.call_back(token, {"result": 1})
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_compensation_may_defer(engine: Engine) -> None:
    engine.says("shop.b", Permanent("gone"))
    engine.says("shop.undo_a", Defer())
    job = Two.start()
    engine.drain()
    assert (state_of(job), named(job, "a.undo").state) == ("Compensating", "Running")
    signals.call_back(engine.calls_of("shop.undo_a")[0].callback_token, {"result": {"cancelled": True}})
    engine.drain()
    assert state_of(job) == "Compensated"
    check_books(job)


def test_the_second_asking_of_an_undo_may_defer_although_its_job_has_ended(engine: Engine) -> None:
    class Doubtful(Workflow):
        a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=1))

    engine.says("shop.a", InDoubt("lost"))
    engine.says("shop.undo_a", {"cancelled": False}, Defer())
    job = Doubtful.start()
    engine.drain()
    engine.pass_time(120)
    recheck = Step.objects.get(job=job, role="recheck")
    assert (state_of(job), recheck.state) == ("Compensated", "Running")
    called = signals.call_back(engine.calls_of("shop.undo_a")[1].callback_token, {"result": {"cancelled": True}})
    assert (called.outcome, called.step.state) == ("completed", "Completed")
    check_books(job)


def test_a_probe_may_defer(engine: Engine) -> None:
    engine.says("shop.a", InDoubt("lost"))
    engine.says("shop.find", Defer())
    job = ProbedFirst.start()
    engine.drain()
    engine.pass_time(2)
    assert (named(job, "a").state, engine.asked()) == ("Running", ["shop.a", "shop.find"])
    signals.call_back(engine.calls_of("shop.find")[0].callback_token, {"result": {"found": True}})
    engine.drain()
    assert state_of(job) == "Completed"
    assert not Attempt.objects.filter(in_doubt=True, resolved_by="").exists()


def test_a_defer_whose_answer_was_lost_is_taken_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = _lose_the_answer_once(monkeypatch, "defer")
    job, token = _deferred(engine)
    assert lost == [1]
    assert history(job).count("step.deferred a") == 1
    signals.call_back(token, {"result": None})
    engine.drain()
    assert state_of(job) == "Completed"
    assert not Attempt.objects.filter(late_at__isnull=False).exists()


def test_a_token_that_was_changed_in_one_letter_leads_to_no_step(engine: Engine) -> None:
    job, token = _deferred(engine)
    for wrong in (token[:-1], token[:-1] + ("0" if token[-1] != "0" else "1"), "1" + token, "", "ü-" + token):
        with pytest.raises(NotFound):
            signals.call_back(wrong, {"result": 1})
    with pytest.raises(InvalidInput):
        signals.call_back(token, {"result": 1, "error": {}})
    assert named(job, "a").state == "Running"


# --- stopping, and what no operation should raise ----------------------------------------------------------------------


def test_an_operation_that_leaves_because_its_job_stops_is_not_in_doubt(engine: Engine) -> None:
    def leave(call: Call) -> Any:
        verbs.cancel(call.job_id, undo=True, actor="ada", reason="")
        raise Stopped("Nothing sent yet.")

    engine.says("shop.a", leave)
    job = Two.start()
    engine.drain()
    attempt = Attempt.objects.get()
    assert (attempt.error_kind, attempt.error_code, attempt.in_doubt) == ("cancelled", "stopped", False)
    assert engine.asked() == ["shop.a"]
    assert state_of(job) == "Compensated"
    check_books(job)


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()], ids=repr
)
def test_what_would_end_the_process_is_an_outcome_in_doubt_at_once(engine: Engine, raised: BaseException) -> None:
    class OnceWaiting(Workflow):
        a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=1))

    engine.says("shop.a", raised)
    job = OnceWaiting.start()
    engine.drain()
    attempt = Attempt.objects.get(step__name="a")
    assert (attempt.error_kind, attempt.error_code) == ("in_doubt", type(raised).__name__)
    assert engine.asked() == ["shop.a", "shop.undo_a"]
    assert state_of(job) == "Compensated"
