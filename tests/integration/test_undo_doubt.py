"""Doubt: what nobody heard the end of is asked after, done under the same key, or undone; never forgotten."""

from datetime import timedelta
from typing import Any

import pytest

from agents import InDoubt, Permanent, Transient
from supervisor import sweep as supervision
from tests.integration.engine import Engine, check_books, history, named, state_of, states
from workflows import Retry, Workflow, reports, step, verbs
from workflows.models import Attempt, Job, Step

LOST = InDoubt("the connection was lost")


class Probed(Workflow):
    a = step("shop.a", compensation="shop.undo_a", probe="shop.find", retry=Retry(attempts=2))
    b = step("shop.b", compensation="shop.undo_b", after=[a])


class Unprobed(Workflow):
    a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=2))
    b = step("shop.b", compensation="shop.undo_b", after=[a])


class AtTheKiosk(Workflow):
    """The kiosk honours keys and does not close them: a call may land after the undo of its key."""

    a = step("kiosk.a", compensation="kiosk.undo_a", retry=Retry(attempts=1), timeout=timedelta(seconds=20))
    b = step("kiosk.b", compensation="kiosk.undo_b", after=[a])


class AtTheStall(Workflow):
    """The stall promises nothing."""

    a = step("stall.a", compensation="stall.undo_a", retry=Retry(attempts=2))


def _doubts(job: Job, name: str) -> list[tuple[bool, str]]:
    return list(
        Attempt.objects.filter(step__job=job, step__name=name).order_by("number").values_list("in_doubt", "resolved_by")
    )


# --- the probe -----------------------------------------------------------------------------------------------------------


def test_after_a_lost_answer_the_probe_is_asked_first_and_its_yes_is_the_result(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    engine.says("shop.find", {"reference": "F1"})
    job = Probed.start()
    engine.drain()
    engine.pass_time(70)
    assert engine.asked() == ["shop.a", "shop.find", "shop.b"]
    assert named(job, "a").result == {"reference": "F1"}
    assert _doubts(job, "a") == [(True, "probe"), (False, "")]
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_probe_that_finds_nothing_lets_the_call_be_made_again_under_the_same_key(engine: Engine) -> None:
    engine.says("shop.a", LOST, {"reference": "R2"})
    engine.says("shop.find", None)
    job = Probed.start()
    engine.drain()
    engine.pass_time(70)
    assert engine.asked() == ["shop.a", "shop.find", "shop.a", "shop.b"]
    assert {call.idempotency_key for name, call in _all_calls() if name != "shop.b"} == {f"{job.pk}:a"}
    assert _doubts(job, "a") == [(True, "answer"), (False, "")]
    assert state_of(job) == "Completed"


def _all_calls() -> Any:
    from tests.integration import engine as playing

    return playing.calls


def test_an_attempt_that_follows_a_definite_failure_asks_no_probe(engine: Engine) -> None:
    engine.says("shop.a", Transient("busy"), {})
    job = Probed.start()
    engine.drain()
    engine.pass_time(70)
    assert engine.asked() == ["shop.a", "shop.a", "shop.b"]
    assert state_of(job) == "Completed"


def test_a_step_used_up_in_doubt_is_only_asked_after_once_more_and_then_undone(engine: Engine) -> None:
    """SAS-071: an uncertain step is undone too, by its key, without a reference."""
    engine.says("shop.a", LOST)
    engine.says("shop.find", None)
    job = Probed.start()
    engine.drain()
    engine.pass_time(70, times=3)
    assert engine.asked() == ["shop.a", "shop.find", "shop.a", "shop.find", "shop.undo_a", "shop.undo_a"]
    undo, recheck = engine.calls_of("shop.undo_a")
    assert undo.undoes.idempotency_key == f"{job.pk}:a"
    assert undo.undoes.result is None
    assert recheck.idempotency_key != undo.idempotency_key
    assert state_of(job) == "Compensated"
    assert {resolved for in_doubt, resolved in _doubts(job, "a") if in_doubt} == {"undo"}
    check_books(job)


def test_the_last_asking_may_still_find_it_and_the_job_goes_on(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    engine.says("shop.find", None, {"reference": "F1"})
    job = Probed.start()
    engine.drain()
    engine.pass_time(70, times=3)
    assert engine.asked() == ["shop.a", "shop.find", "shop.a", "shop.find", "shop.b"]
    assert state_of(job) == "Completed"
    check_books(job)


@pytest.mark.parametrize("answer", [Permanent("forbidden"), InDoubt("silence"), RuntimeError("bug")], ids=repr)
def test_a_probe_that_fails_leaves_the_doubt_open_and_the_step_is_undone(engine: Engine, answer: Exception) -> None:
    engine.says("shop.a", LOST)
    engine.says("shop.find", answer)
    job = Probed.start()
    engine.drain()
    engine.pass_time(70, times=4)
    assert state_of(job) == "Compensated"
    assert "shop.undo_a" in engine.asked()
    assert engine.asked().count("shop.a") == 1
    check_books(job)


# --- what resolves doubt, and what does not --------------------------------------------------------------------------------


def test_a_definite_no_after_a_doubt_does_not_excuse_the_undo(engine: Engine) -> None:
    """Attempt 1 took the last seat, attempt 2 hears "sold out"."""
    engine.says("shop.a", LOST, Permanent("sold out", code="sold_out"))
    job = Unprobed.start()
    engine.drain()
    engine.pass_time(70, times=2)
    assert engine.asked()[:3] == ["shop.a", "shop.a", "shop.undo_a"]
    assert state_of(job) == "Compensated"
    assert named(job, "a").error_code == "sold_out"
    check_books(job)


def test_an_answer_under_the_same_key_resolves_doubt_where_keys_are_honoured(engine: Engine) -> None:
    engine.says("shop.a", LOST, {"reference": "R"})
    job = Unprobed.start()
    engine.drain()
    engine.pass_time(70)
    assert _doubts(job, "a") == [(True, "answer"), (False, "")]
    assert not Job.objects.needs_person().exists()
    assert state_of(job) == "Completed"


def test_where_keys_are_not_honoured_a_later_success_leaves_the_doubt_to_a_person(engine: Engine) -> None:
    """The first call may have booked as well: two live bookings, and nobody but a person can tell."""
    engine.says("stall.a", LOST, {"reference": "R"})
    job = AtTheStall.start()
    engine.drain()
    engine.pass_time(70)
    assert state_of(job) == "Completed"
    assert _doubts(job, "a") == [(True, ""), (False, "")]
    assert list(Job.objects.needs_person()) == [Job.objects.get(pk=job.pk)]


def test_cancel_during_the_back_off_after_a_lost_answer_undoes_the_booking_that_nobody_heard_of(
    engine: Engine,
) -> None:
    engine.says("shop.a", LOST)
    job = Unprobed.start()
    engine.drain()
    assert states(job)["a"] == "NotStarted"
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    assert states(job) == {"a": "Failed", "b": "Skipped", "a.undo": "NotStarted", "a.recheck": "NotStarted"}
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.undo_a"]
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_step_that_was_only_refused_is_skipped_when_undo_begins(engine: Engine) -> None:
    engine.says("shop.a", Transient("busy"))
    job = Unprobed.start()
    engine.drain()
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    assert states(job) == {"a": "Skipped", "b": "Skipped"}
    assert state_of(job) == "Compensated"
    engine.drain()
    assert engine.asked() == ["shop.a"]


def test_doubt_at_a_step_that_cannot_be_undone_is_left_to_a_person(engine: Engine) -> None:
    class HalfUndoable(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a], retry=Retry(attempts=1))

    engine.says("shop.b", LOST)
    job = HalfUndoable.start()
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.b", "shop.undo_a"]
    assert state_of(job) == "Failed"
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    assert list(Step.objects.in_doubt().values_list("name", flat=True)) == ["b"]
    check_books(job)


def test_ended_without_undo_an_open_doubt_is_left_to_a_person(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    job = Unprobed.start()
    engine.drain()
    verbs.cancel(job.pk, undo=False, actor="operator:x", reason="we call them")
    assert state_of(job) == "Failed"
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    engine.pass_time(70)
    assert engine.asked() == ["shop.a"]


# --- the quiet time ----------------------------------------------------------------------------------------------------------


def test_where_keys_are_not_closed_the_job_stays_compensating_until_the_recheck_at_the_quiet_time(
    engine: Engine,
) -> None:
    """SAS-070: "nothing found" is not final while the call may still land."""
    engine.says("kiosk.a", LOST)
    job = AtTheKiosk.start()
    engine.drain()
    assert engine.asked() == ["kiosk.a", "kiosk.undo_a"]
    assert state_of(job) == "Compensating"
    assert states(job)["a.undo"] == "Completed"
    recheck = named(job, "a.recheck")
    began = Attempt.objects.get(step__job=job, step__name="a").started_at
    assert recheck.run_after == began + timedelta(seconds=20) + timedelta(seconds=30)
    engine.pass_time(45)
    assert engine.asked().count("kiosk.undo_a") == 1
    assert state_of(job) == "Compensating"
    engine.pass_time(6)
    assert engine.asked().count("kiosk.undo_a") == 2
    assert state_of(job) == "Compensated"
    assert _doubts(job, "a") == [(True, "undo")]
    check_books(job)


def test_where_keys_are_closed_the_first_answer_is_final_and_the_recheck_only_makes_sure(engine: Engine) -> None:
    engine.says("shop.a", LOST)

    class Once(Workflow):
        a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=1))

    job = Once.start()
    engine.drain()
    assert state_of(job) == "Compensated"
    assert states(job)["a.recheck"] == "NotStarted"
    engine.pass_time(70)
    assert states(job)["a.recheck"] == "Completed"
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_doubt_that_was_resolved_still_has_its_recheck_when_the_job_is_undone(engine: Engine) -> None:
    """The first call may still be travelling although the second was answered."""
    engine.says("kiosk.a", LOST, {"reference": "R"})
    engine.says("kiosk.b", Permanent("no"))

    class Patient(Workflow):
        a = step("kiosk.a", compensation="kiosk.undo_a")
        b = step("kiosk.b", compensation="kiosk.undo_b", after=[a])

    job = Patient.start()
    engine.drain()
    engine.pass_time(1)
    assert state_of(job) == "Compensating"
    assert "a.recheck" in states(job)
    engine.pass_time(120)
    assert engine.asked().count("kiosk.undo_a") == 2
    assert state_of(job) == "Compensated"


def test_the_quiet_time_is_that_of_the_agent_that_was_called_not_of_the_one_that_undoes(engine: Engine) -> None:
    from workflows.models import Agent

    class TwoAgents(Workflow):
        a = step("kiosk.a", compensation="shop.undo_a", retry=Retry(attempts=1), timeout=timedelta(seconds=20))

    Agent.objects.filter(name="kiosk").update(lands_within=timedelta(seconds=500))
    engine.says("kiosk.a", LOST)
    job = TwoAgents.start()
    engine.drain()
    began = Attempt.objects.get(step__job=job, step__name="a").started_at
    assert named(job, "a.recheck").run_after - began == timedelta(seconds=520)
    assert state_of(job) == "Compensating"
    engine.pass_time(530)
    assert state_of(job) == "Compensated"


# --- late words --------------------------------------------------------------------------------------------------------------


def test_a_success_that_comes_to_light_after_the_undo_has_it_undone_again(engine: Engine) -> None:
    """SAS-016, SAS-076"""
    job = AtTheKiosk.start()
    claimed = engine.claim(named(job, "a"))
    engine.rings.clear()
    engine.ahead(21)
    supervision.expire(claimed.step_id)
    engine.drain()
    engine.pass_time(60)
    assert state_of(job) == "Compensated"
    assert states(job)["a.recheck"] == "Completed"
    before = Job.objects.get(pk=job.pk).finished_at
    assert engine.settle(claimed, '{"reference": "LATE"}') is None
    assert state_of(job) == "Compensated"
    engine.drain()
    assert states(job)["a.recheck.2"] == "Completed"
    assert engine.asked().count("kiosk.undo_a") == 3
    assert len({call.idempotency_key for call in engine.calls_of("kiosk.undo_a")}) == 3
    assert Job.objects.get(pk=job.pk).finished_at == before
    check_books(job)


def test_a_late_success_while_a_recheck_is_still_to_come_adds_no_other(engine: Engine) -> None:
    job = AtTheKiosk.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(21)
    supervision.expire(claimed.step_id)
    engine.drain()
    engine.settle(claimed, '{"reference": "LATE"}')
    assert [name for name in states(job) if "recheck" in name] == ["a.recheck"]


def test_a_late_failure_after_the_undo_changes_nothing(engine: Engine) -> None:
    from workflows.transitions import Failure

    job = AtTheKiosk.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(21)
    supervision.expire(claimed.step_id)
    engine.drain()
    engine.pass_time(60)
    before = states(job)
    assert not reports.fail(claimed, Failure(kind="permanent", code="x", message="no"), sent=None)
    assert states(job) == before
    assert history(job)[-1] == "attempt.late a"


def test_a_recheck_that_will_not_succeed_stands_before_a_person_while_the_job_stays_compensated(
    engine: Engine,
) -> None:
    engine.says("shop.a", LOST)

    class OnceMore(Workflow):
        a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=1))

    job = OnceMore.start()
    engine.drain()
    assert state_of(job) == "Compensated"
    engine.says("shop.undo_a", Permanent("no such desk"))
    engine.pass_time(70)
    assert named(job, "a.recheck").remedy == "escalate"
    assert state_of(job) == "Compensated"
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    engine.says("shop.undo_a", {"cancelled": False})
    verbs.retry_step(job.pk, "a.recheck", actor="operator:x", reason="desk is back")
    engine.drain()
    assert states(job)["a.recheck"] == "Completed"
    assert not Job.objects.needs_person().exists()
    check_books(job)
