"""Ending has two phases: nothing starts any more, and the end comes when nothing runs. Then the undo, which no cancel stops."""

from typing import Any

import pytest

from tests.integration.engine import Engine, check_books, history, named, state_of, states
from workflows import Retry, Workflow, reports, step, verbs
from workflows.exceptions import InvalidInput, WrongState
from workflows.models import Job


class Forked(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])
    c = step("shop.c", compensation="shop.undo_c", after=[a])
    d = step("shop.d", compensation="shop.undo_d", after=[b, c])


def _cancel(job: Job, *, undo: bool = True, reason: str = "no more") -> Job:
    return verbs.cancel(job.pk, undo=undo, actor="client:x", reason=reason)


def _both_branches_running(engine: Engine) -> Any:
    job = Forked.start()
    b = engine.settle(engine.claim(named(job, "a"))).handed_over
    c = engine.claim(named(job, "c"))
    engine.rings.clear()
    return job, b, c


def test_a_step_that_settles_after_the_cancel_is_recorded_and_then_undone(engine: Engine) -> None:
    """SAS-064"""
    job, b, c = _both_branches_running(engine)
    assert _cancel(job).stopping_at is not None
    engine.settle(b, '{"reference": "B"}')
    assert state_of(job) == "Running"
    engine.settle(c, '{"reference": "C"}')
    assert state_of(job) == "Compensating"
    assert named(job, "b").result == {"reference": "B"}
    engine.drain()
    assert sorted(engine.asked()) == ["shop.undo_a", "shop.undo_b", "shop.undo_c"]
    assert states(job)["d"] == "Skipped"
    assert state_of(job) == "Compensated"
    assert Job.objects.get(pk=job.pk).reason == "cancelled"
    check_books(job)


def test_a_cancelled_job_waits_for_all_its_running_branches_and_starts_nothing(engine: Engine) -> None:
    job, b, c = _both_branches_running(engine)
    _cancel(job)
    engine.settle(b)
    engine.pass_time(5)
    engine.sweep()
    assert state_of(job) == "Running"
    assert states(job) == {"a": "Completed", "b": "Completed", "c": "Running", "d": "NotStarted"}
    assert engine.asked() == []
    from workflows.transitions import Failure

    reports.fail(c, Failure(kind="transient", code="busy", message="busy"), sent=None)
    assert state_of(job) == "Compensating"
    assert named(job, "c").attempt == 1
    engine.drain()
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_cancelled_job_whose_worker_died_ends_when_the_lease_does(engine: Engine) -> None:
    """SAS-069"""
    job, b, _ = _both_branches_running(engine)
    _cancel(job)
    engine.settle(b)
    engine.ahead(11)
    assert engine.sweep().expired == 1
    engine.drain()
    assert "shop.undo_c" in engine.asked()
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_second_cancel_gets_the_same_answer_and_changes_nothing(engine: Engine) -> None:
    """SAS-069: a cancel does not cancel the undo."""
    job, b, c = _both_branches_running(engine)
    first = _cancel(job)
    second = _cancel(job, reason="again")
    assert (second.seq, second.reason_detail) == (first.seq, first.reason_detail)
    engine.settle(b), engine.settle(c)
    third = _cancel(job, reason="and again")
    assert third.state == "Compensating"
    undoing = engine.rings.popleft()
    from agents import worker

    worker.work(*undoing[2])
    fourth = _cancel(job, undo=False, reason="leave it")
    assert fourth.state == "Compensating"
    engine.drain()
    assert state_of(job) == "Compensated"
    assert len(engine.asked()) == 3
    assert history(job).count("job.stopping") == 1
    check_books(job)


def test_a_cancel_without_undo_leaves_everything_as_it_is(engine: Engine) -> None:
    job, b, c = _both_branches_running(engine)
    _cancel(job, undo=False, reason="we keep it")
    engine.settle(b), engine.settle(c)
    engine.drain()
    assert engine.asked() == []
    stopped = Job.objects.get(pk=job.pk)
    assert (stopped.state, stopped.reason, stopped.reason_detail) == ("Failed", "cancelled", "we keep it")
    assert states(job) == {"a": "Completed", "b": "Completed", "c": "Completed", "d": "NotStarted"}
    engine.pass_time(70)
    engine.sweep()
    assert states(job)["d"] == "NotStarted"
    check_books(job)


def test_a_job_cancelled_without_undo_can_go_on(engine: Engine) -> None:
    job, b, c = _both_branches_running(engine)
    _cancel(job, undo=False, reason="by mistake")
    engine.settle(b), engine.settle(c)
    verbs.retry_job(job.pk, actor="operator:x", reason="it was a mistake")
    engine.drain()
    assert engine.asked() == ["shop.d"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_cancel_without_undo_asks_for_a_reason(engine: Engine) -> None:
    job = Forked.start()
    with pytest.raises(InvalidInput):
        _cancel(job, undo=False, reason="  ")
    assert history(job) == ["job.opened"]


def test_a_cancel_before_anything_began_calls_nobody(engine: Engine) -> None:
    """SAS-065"""
    job = Forked.start()
    _cancel(job)
    assert state_of(job) == "Compensated"
    engine.drain()
    engine.pass_time(60)
    assert engine.asked() == []
    assert set(states(job).values()) == {"Skipped"}
    check_books(job)


def test_a_cancel_of_an_ended_job_says_that_it_has_ended(engine: Engine) -> None:
    job = Forked.start()
    engine.drain()
    with pytest.raises(WrongState, match="Completed"):
        _cancel(job)
    check_books(job)


def test_a_paused_job_that_is_cancelled_is_undone_without_being_resumed_first(engine: Engine) -> None:
    job, b, c = _both_branches_running(engine)
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    _cancel(job)
    engine.settle(b), engine.settle(c)
    engine.drain()
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_paused_undo_starts_nothing_until_it_is_resumed(engine: Engine) -> None:
    job, b, c = _both_branches_running(engine)
    _cancel(job)
    engine.settle(b), engine.settle(c)
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.drain()
    engine.pass_time(120)
    engine.sweep()
    assert engine.asked() == []
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_step_that_fails_in_a_paused_job_is_not_tried_again_before_it_is_resumed(engine: Engine) -> None:
    from agents import Transient
    from workflows.models import Step

    engine.says("shop.a", lambda call: _pause_and_fail(call), {})

    def _pause_and_fail(call: Any) -> None:
        verbs.pause(call.job_id, actor="operator:x", reason="wait")
        raise Transient("busy")

    job = Forked.start()
    engine.drain()
    assert states(job)["a"] == "NotStarted"
    assert named(job, "a").held
    engine.ahead(120)
    assert not Step.objects.to_ring().exists()
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_cancelling_the_running_step_fences_its_attempt_out_and_undoes_the_job(engine: Engine) -> None:
    class Pair2(Workflow):
        a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=5))

    job = Pair2.start()
    engine.rings.clear()
    claimed = engine.claim(named(job, "a"))
    verbs.cancel_step(job.pk, "a", actor="operator:x", reason="it hangs")
    engine.drain()
    assert engine.settle(claimed, '{"reference": "LATE"}') is None
    engine.drain()
    assert engine.asked()[0] == "shop.undo_a"
    assert state_of(job) == "Compensated"
    engine.pass_time(70)
    check_books(job)


def test_a_pause_ends_with_its_job_and_does_not_keep_the_recheck_back(engine: Engine) -> None:
    from agents import InDoubt

    class PausedAtTheEnd(Workflow):
        a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=1))

    engine.says("shop.a", InDoubt("lost"))
    engine.says("shop.undo_a", lambda call: verbs.pause(call.job_id, actor="operator:x", reason="wait") and {})
    job = PausedAtTheEnd.start()
    engine.drain()
    assert state_of(job) == "Compensated"
    assert Job.objects.get(pk=job.pk).paused_at is None
    engine.says("shop.undo_a", {})
    engine.pass_time(70)
    assert states(job)["a.recheck"] == "Completed"
    check_books(job)


def test_a_paused_job_whose_last_running_step_ends_is_completed_and_paused_no_more(engine: Engine) -> None:
    class PausedLast(Workflow):
        a = step("shop.a")

    engine.says("shop.a", lambda call: verbs.pause(call.job_id, actor="operator:x", reason="wait") and {})
    job = PausedLast.start()
    engine.drain()
    ended = Job.objects.get(pk=job.pk)
    assert (ended.state, ended.paused_at) == ("Completed", None)
