"""What waits for the clock, or for somebody outside: timers, signals, approvals, callbacks."""

from datetime import timedelta
from typing import Any

import pytest

from agents import Defer, Permanent
from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, locked, named, start, state_of, states
from workflows import Workflow, errands, findings, given, signal, signals, step, timer, transitions, verbs
from workflows.clock import now
from workflows.exceptions import InvalidInput, NotAllowed, NotFound, WrongState
from workflows.models import Attempt, Job, Signal, Step

MINUTE = timedelta(seconds=60)


def outcomes(job: Job) -> list[str]:
    return list(Signal.objects.filter(job=job).order_by("id").values_list("outcome", flat=True))


def send(job: Job, name: str, payload: Any = None, actor: str = "client:x", **options: Any) -> Signal:
    return signals.send(job.pk, name, payload, actor=actor, **options)


# --- timers ----------------------------------------------------------------------------------------------------------


class WaitNap(Workflow):
    a = step("shop.a")
    t = timer(given["delay"], after=[a])
    b = step("shop.b", after=[t])


def test_a_timer_of_seconds_counts_from_the_end_of_what_it_waits_for(engine: Engine) -> None:
    job = start(WaitNap, {"delay": 60})
    engine.ahead(30)
    engine.drain()
    assert states(job) == {"a": "Completed", "t": "Running", "b": "NotStarted"}
    engine.pass_time(50)
    assert named(job, "t").state == "Running"
    engine.pass_time(11)
    assert state_of(job) == "Completed"
    assert (named(job, "t").settled_by, named(job, "t").result) == ("timer", None)
    check_books(job)


def test_a_timer_of_an_instant_is_due_then(engine: Engine) -> None:
    job = start(WaitNap, {"delay": (now() + timedelta(hours=2)).isoformat()})
    engine.drain()
    engine.pass_time(3600)
    assert named(job, "t").state == "Running"
    engine.pass_time(3601)
    assert state_of(job) == "Completed"


@pytest.mark.parametrize("delay", ["2001-02-03T04:05:06Z", 0, 0.0], ids=repr)
def test_a_timer_whose_time_is_past_is_done_as_soon_as_it_is_looked_at(engine: Engine, delay: Any) -> None:
    job = start(WaitNap, {"delay": delay})
    engine.drain()
    engine.pass_time(1)
    assert state_of(job) == "Completed"


@pytest.mark.parametrize(
    "delay",
    [None, True, "tomorrow", "2027-01-02", "2027-13-45T99:00:00Z", "2027-01-02T03:04:05", "0001-01-01T00:00:00+14:00",
     "9999-12-31T23:59:59-14:00", 1e300, 10**30, -1e300, [1], {}],
    ids=repr,
)  # fmt: skip
def test_a_timer_that_is_told_no_time_fails_with_what_it_was_told(engine: Engine, delay: Any) -> None:
    job = start(WaitNap, {"delay": delay})
    engine.drain()
    assert (named(job, "t").state, named(job, "t").error_code) == ("Failed", "unresolved_reference")
    assert "a timer " in named(job, "t").error_message
    assert state_of(job) == "Failed"
    assert engine.sweep().failed == 0
    check_books(job)


@pytest.mark.parametrize("delay", [-5, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", 3e9], ids=repr)
def test_a_timer_at_the_edge_of_time_stops_nobody(engine: Engine, delay: Any) -> None:
    job = start(WaitNap, {"delay": delay})
    engine.drain()
    engine.pass_time(1)
    assert engine.sweep().failed == 0
    assert named(job, "t").state in ("Running", "Completed")
    check_books(job)


def test_a_timer_may_be_declared_in_the_plan(engine: Engine) -> None:
    class WaitSoak(Workflow):
        t = timer(timedelta(minutes=5))
        b = step("shop.b", after=[t])

    job = start(WaitSoak)
    assert states(job) == {"t": "Running", "b": "NotStarted"}
    engine.pass_time(301)
    assert state_of(job) == "Completed"


def test_the_time_of_a_pause_does_not_count_for_a_timer(engine: Engine) -> None:
    """SAS-067: overdue timers do not fire at once on resume."""
    job = start(WaitNap, {"delay": 60})
    engine.drain()
    engine.ahead(40)
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.pass_time(120, times=3)
    assert named(job, "t").state == "Running"
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.pass_time(10)
    assert named(job, "t").state == "Running"
    engine.pass_time(11)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_timer_for_an_instant_is_due_then_although_its_job_was_paused(engine: Engine) -> None:
    job = start(WaitNap, {"delay": (now() + timedelta(seconds=60)).isoformat()})
    engine.drain()
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.pass_time(120)
    assert named(job, "t").state == "Running"
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.pass_time(1)
    assert state_of(job) == "Completed"


def test_a_cancelled_job_waits_for_no_timer(engine: Engine) -> None:
    job = start(WaitNap, {"delay": 3600})
    engine.drain()
    verbs.cancel(job.pk, undo=False, actor="operator:x", reason="stop")
    assert state_of(job) == "Failed"
    assert named(job, "t").error_kind == "cancelled"
    check_books(job)


def test_of_two_who_wake_a_timer_one_completes_it(engine: Engine) -> None:
    job = start(WaitNap, {"delay": 1})
    engine.drain()
    engine.ahead(2)
    due = named(job, "t")
    with locked(job):
        assert Beside(lambda: errands.wake(due.pk)).result() is None
    assert errands.wake(due.pk) is True
    assert errands.wake(due.pk) is False
    assert history(job).count("step.completed t") == 1


# --- signals ---------------------------------------------------------------------------------------------------------


class WaitPaid(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    paid = signal(timeout=MINUTE, after=[a])
    b = step("shop.b", input={"paid": paid})


def test_a_signal_completes_the_step_that_waits_for_it_and_is_its_result(engine: Engine) -> None:
    job = start(WaitPaid)
    engine.drain()
    assert named(job, "paid").state == "Running"
    assert send(job, "paid", {"amount": 12}).outcome == "taken"
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"paid": {"amount": 12}}
    assert named(job, "paid").settled_by == "signal"
    check_books(job)


def test_a_signal_that_comes_early_is_kept_until_its_step_waits(engine: Engine) -> None:
    """SAS-077"""
    job = start(WaitPaid)
    assert send(job, "paid", 1).outcome == "kept"
    assert send(job, "paid", 2).outcome == "lost"
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"paid": 1}
    assert outcomes(job) == ["taken", "lost"]
    check_books(job)


def test_a_second_signal_is_recorded_and_changes_nothing(engine: Engine) -> None:
    job = start(WaitPaid)
    engine.drain()
    send(job, "paid", 1)
    assert send(job, "paid", 2).outcome == "lost"
    assert named(job, "paid").result == 1
    assert history(job).count("signal.received") == 2


def test_a_signal_that_does_not_come_in_time_is_an_outcome_that_undoes_the_job(engine: Engine) -> None:
    """SAS-076: what comes later is told that it is too late, and recorded."""
    job = start(WaitPaid)
    engine.drain()
    engine.pass_time(61)
    waited = named(job, "paid")
    assert (waited.state, waited.error_kind, waited.error_code) == ("Failed", "expired_waiting", "signal_timeout")
    assert state_of(job) == "Compensated"
    with pytest.raises(WrongState):
        send(job, "paid", 1)
    check_books(job)


def test_a_job_may_go_on_without_a_signal(engine: Engine) -> None:
    class WaitLax(Workflow):
        paid = signal(timeout=MINUTE, on_failure="ignore")
        b = step("shop.b", input={"paid": paid})

    job = start(WaitLax)
    engine.pass_time(61)
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"paid": None}
    check_books(job)


def test_a_signal_without_a_time_out_is_waited_for_for_ever(engine: Engine) -> None:
    class WaitEver(Workflow):
        s = signal()

    job = start(WaitEver)
    engine.pass_time(86_400 * 20)
    engine.sweep()
    assert named(job, "s").state == "Running"
    send(job, "s", "at last")
    assert state_of(job) == "Completed"


def test_a_signal_for_a_skipped_step_or_a_job_that_is_stopping_is_refused_or_lost(engine: Engine) -> None:
    class WaitSome(Workflow):
        a = step("shop.a")
        s = signal(when=given["x"])
        b = step("shop.b", after=[s])

    job = start(WaitSome, {})
    assert send(job, "s").outcome == "lost"
    running = engine.claim(named(job, "a"))
    verbs.cancel(job.pk, undo=False, actor="operator:x", reason="stop")
    with pytest.raises(WrongState, match="stopping"):
        send(job, "s")
    engine.settle(running)


def test_a_name_that_is_no_signal_is_not_found_and_the_known_ones_are_named(engine: Engine) -> None:
    job = start(WaitPaid)
    with pytest.raises(NotFound, match="it knows paid"):
        send(job, "b")
    with pytest.raises(NotFound):
        signals.send(Job(workflow="x").pk, "paid", 1, actor="x")


def test_a_signal_is_kept_while_its_job_is_paused(engine: Engine) -> None:
    job = start(WaitPaid)
    engine.drain()
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    assert send(job, "paid", 1).outcome == "taken"
    engine.drain()
    assert named(job, "b").state == "NotStarted"
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_signal_step_tried_again_waits_anew(engine: Engine) -> None:
    class WaitHeld(Workflow):
        s = signal(timeout=MINUTE, on_failure="hold")

    job = start(WaitHeld)
    engine.pass_time(61)
    assert named(job, "s").remedy == "escalate"
    assert send(job, "s", 1).outcome == "lost"
    verbs.retry_step(job.pk, "s", actor="operator:x", reason="they promised")
    assert named(job, "s").state == "Running"
    engine.pass_time(30)
    assert send(job, "s", 2).outcome == "taken"
    assert state_of(job) == "Completed"
    check_books(job)


@pytest.mark.parametrize("first", ["signal", "time-out"])
def test_time_out_against_signal_has_one_outcome_and_the_loser_is_recorded(engine: Engine, first: str) -> None:
    """SAS-076: both wait for the job's lock; whoever has it first wins."""
    for _ in range(20):
        job = start(WaitPaid)
        engine.drain()
        engine.ahead(61)
        waiting = named(job, "paid").pk
        with locked(job):
            beside = Beside(lambda job=job: send(job, "paid", 1)).until_blocked()
            if first == "time-out":
                assert findings.wait_is_over(waiting) is True
        sent = beside.result()
        late = findings.wait_is_over(waiting)
        assert (sent.outcome, late) == (("taken", False) if first == "signal" else ("lost", False))
        assert history(job).count("signal.received") == 1
        assert named(job, "paid").state == ("Completed" if first == "signal" else "Failed")
        engine.rings.clear()
        check_books(job)


def test_a_thousand_races_of_time_out_against_signal_have_one_outcome_each(engine: Engine) -> None:
    """SAS-076: unstaged, on two sessions, the one or the other a few milliseconds ahead."""

    class WaitBare(Workflow):
        s = signal(timeout=MINUTE, on_failure="hold")

    jobs = [start(WaitBare) for _ in range(1000)]
    engine.ahead(61)
    waiting = {job.pk: named(job, "s").pk for job in jobs}

    def time_out() -> list[Any]:
        return [findings.wait_is_over(waiting[job.pk]) for job in jobs]

    beside = Beside(time_out)
    sent = [send(job, "s", 1).outcome for job in jobs]
    beside.result()
    expired = [findings.wait_is_over(waiting[job.pk]) for job in jobs]
    assert not any(expired)
    ends = dict(Step.objects.filter(name="s").values_list("job_id", "state"))
    for job, outcome in zip(jobs, sent, strict=True):
        assert (outcome, ends[job.pk]) in (("taken", "Completed"), ("lost", "Failed"))
    assert Signal.objects.count() == 1000


def test_a_signal_that_waits_for_a_cancel_is_refused(engine: Engine) -> None:
    job = start(WaitPaid)
    engine.drain()
    with locked(job):
        beside = Beside(lambda: send(job, "paid", 1)).until_blocked()
        verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    with pytest.raises(WrongState):
        beside.result()
    engine.drain()
    assert state_of(job) == "Compensated"
    assert outcomes(job) == []
    check_books(job)


def test_a_signal_that_comes_while_its_step_begins_to_wait_is_not_forgotten(engine: Engine) -> None:
    """The settle that opens the wait holds the lock; the signal waits for it, and finds the step waiting."""
    job = start(WaitPaid)
    engine.rings.clear()
    claimed = engine.claim(named(job, "a"))
    with locked(job):
        beside = Beside(lambda: send(job, "paid", 1)).until_blocked()
        engine.settle(claimed)
    assert beside.result().outcome in ("taken", "kept")
    engine.drain()
    engine.pass_time(6)
    assert state_of(job) == "Completed"
    check_books(job)


# --- approvals -------------------------------------------------------------------------------------------------------


class WaitRelease(Workflow):
    go = signal(approvers=["ada", "group:release"], timeout=MINUTE)
    b = step("shop.b", after=[go])


YES = {"approved": True, "reason": "looks good"}
NO = {"approved": False, "reason": "not on a Friday"}


@pytest.mark.parametrize("names", [["ada"], ["bob", "group:release"]], ids=str)
def test_an_approver_decides(engine: Engine, names: list[str]) -> None:
    job = start(WaitRelease)
    send(job, "go", YES, actor="operator:ada", names=names)
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_nobody_else_decides_and_nothing_is_changed(engine: Engine) -> None:
    job = start(WaitRelease)
    before = history(job)
    with pytest.raises(NotAllowed, match="ada, group:release"):
        send(job, "go", YES, actor="operator:bob", names={"bob", "group:ada"})
    assert history(job) == before
    assert named(job, "go").state == "Running"


def test_a_refusal_fails_the_step_for_good_with_who_and_why(engine: Engine) -> None:
    job = start(WaitRelease)
    send(job, "go", NO, actor="operator:ada", names={"ada"})
    engine.drain()
    refused = named(job, "go")
    assert (refused.error_kind, refused.error_code) == ("permanent", "not_approved")
    assert refused.error_message == "Refused by operator:ada: not on a Friday"
    assert state_of(job) == "Failed"
    assert engine.asked() == []
    check_books(job)


def test_a_refusal_may_come_early_too(engine: Engine) -> None:
    class WaitLater(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        go = signal(approval=True, after=[a])
        b = step("shop.b", after=[go])

    job = start(WaitLater)
    assert send(job, "go", NO).outcome == "kept"
    engine.drain()
    assert named(job, "go").error_code == "not_approved"
    assert state_of(job) == "Compensated"
    assert outcomes(job) == ["taken"]
    check_books(job)


def test_an_approval_that_nobody_gives_expires(engine: Engine) -> None:
    job = start(WaitRelease)
    engine.pass_time(61)
    assert named(job, "go").error_code == "signal_timeout"
    assert state_of(job) == "Failed"


@pytest.mark.parametrize(
    "payload", [None, True, {}, {"approved": "yes"}, {"approved": False}, {"approved": False, "reason": " "},
                {"approved": True, "reason": 7}], ids=repr,
)  # fmt: skip
def test_what_is_no_decision_is_refused(engine: Engine, payload: Any) -> None:
    job = start(WaitRelease)
    with pytest.raises(InvalidInput):
        send(job, "go", payload)
    assert outcomes(job) == []


# --- callbacks -------------------------------------------------------------------------------------------------------


class WaitDeferred(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", input={"a": a})


def test_a_deferred_step_is_completed_by_its_callback(engine: Engine) -> None:
    engine.says("shop.a", Defer())
    job = start(WaitDeferred)
    engine.drain()
    waiting = named(job, "a")
    assert (waiting.state, waiting.token) == ("Running", None)
    called = signals.call_back(signals.token_of(waiting.pk), {"result": {"ok": 1}})
    assert called.outcome == "completed"
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"a": {"ok": 1}}
    assert signals.call_back(signals.token_of(waiting.pk), {"result": {"ok": 2}}).outcome == "ignored"
    assert named(job, "a").result == {"ok": 1}
    check_books(job)


def test_a_callback_before_the_defer_has_settled_wins_and_the_settle_is_not_called_late(engine: Engine) -> None:
    """SAS-077"""

    def answers_at_once(call: Any) -> Any:
        signals.call_back(call.callback_token, {"result": "fast"})
        raise Defer()

    engine.says("shop.a", answers_at_once)
    job = start(WaitDeferred)
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"a": "fast"}
    assert "attempt.late a" not in history(job)
    check_books(job)


def test_a_callback_that_does_not_come_leaves_the_step_in_doubt_and_it_is_undone(engine: Engine) -> None:
    engine.says("shop.a", Defer(within=MINUTE))
    job = start(WaitDeferred)
    engine.drain()
    engine.pass_time(61)
    assert named(job, "a").error_code == "callback_timeout"
    assert Attempt.objects.get(step=named(job, "a")).in_doubt
    engine.pass_time(70, times=3)
    assert state_of(job) == "Compensated"
    assert "shop.undo_a" in engine.asked()
    check_books(job)


def test_a_callback_that_does_not_come_is_asked_for_where_there_is_a_probe(engine: Engine) -> None:
    class WaitProbed(Workflow):
        a = step("shop.a", compensation="shop.undo_a", probe="shop.find")

    engine.says("shop.a", Defer(within=MINUTE))
    engine.says("shop.find", {"found": True})
    job = start(WaitProbed)
    engine.drain()
    engine.pass_time(61)
    engine.pass_time(61)
    assert state_of(job) == "Completed"
    assert named(job, "a").result == {"found": True}
    check_books(job)


def test_a_callback_may_fail_the_step_so_that_it_is_tried_again(engine: Engine) -> None:
    engine.says("shop.a", Defer(), {"second": True})
    job = start(WaitDeferred)
    engine.drain()
    token = signals.token_of(named(job, "a").pk)
    assert signals.call_back(token, {"error": {"kind": "transient", "message": "busy"}}).outcome == "failed"
    engine.drain()
    engine.pass_time(61)
    assert state_of(job) == "Completed"
    assert named(job, "a").attempt == 2
    check_books(job)


def test_a_callback_after_its_time_out_is_recorded_and_undone(engine: Engine) -> None:
    """SAS-076: never both."""
    engine.says("shop.a", Defer(within=MINUTE))
    job = start(WaitDeferred)
    engine.drain()
    engine.pass_time(61)
    engine.pass_time(70, times=3)
    assert state_of(job) == "Compensated"
    undone = engine.asked().count("shop.undo_a")
    late = signals.call_back(signals.token_of(named(job, "a").pk), {"result": 1})
    assert late.outcome == "ignored"
    engine.drain()
    engine.pass_time(70, times=2)
    assert engine.asked().count("shop.undo_a") == undone + 1
    assert state_of(job) == "Compensated"


def test_a_token_that_is_none_opens_nothing(engine: Engine) -> None:
    engine.says("shop.a", Defer())
    job = start(WaitDeferred)
    engine.drain()
    token = signals.token_of(named(job, "a").pk)
    for forged in ("", "-", "1", token[:-1], token + "0", token.swapcase(), "é-" + token, "9" * 400):
        with pytest.raises(NotFound):
            signals.call_back(forged, {"result": 1})


def test_a_cancelled_job_waits_for_no_callback_and_undoes_what_may_have_been_done(engine: Engine) -> None:
    engine.says("shop.a", Defer())
    job = start(WaitDeferred)
    engine.drain()
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    engine.drain()
    engine.pass_time(70, times=3)
    assert state_of(job) == "Compensated"
    assert "shop.undo_a" in engine.asked()
    check_books(job)


def test_an_item_may_defer_and_holds_its_place(engine: Engine) -> None:
    class WaitMany(Workflow):
        a = step("shop.a", each=given["list"], at_once=1)
        b = step("shop.b", input={"a": a})

    engine.says("shop.a", Defer())
    job = start(WaitMany, {"list": [0, 1]})
    engine.drain()
    first, second = Step.objects.filter(job=job, index__isnull=False).order_by("index")
    assert (first.state, second.state, second.held) == ("Running", "NotStarted", True)
    signals.call_back(signals.token_of(first.pk), {"result": "x"})
    engine.drain()
    signals.call_back(signals.token_of(second.pk), {"error": {"kind": "permanent", "message": "no"}})
    engine.drain()
    assert state_of(job) == "Failed"
    check_books(job)


def test_an_undo_behind_a_signal_leaves_the_signal_alone(engine: Engine) -> None:
    job = start(WaitPaid)
    engine.says("shop.b", Permanent("no"))
    engine.drain()
    send(job, "paid", 1)
    engine.drain()
    assert state_of(job) == "Compensated"
    assert states(job) == {"a": "Completed", "paid": "Completed", "b": "Failed", "a.undo": "Completed"}
    assert supervision.wake_due() == 0
    assert not transitions.set_deadlines()
