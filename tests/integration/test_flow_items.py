"""Fan-outs: one step over a list that only the run knows."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents import Defer, InDoubt, Permanent, Transient
from supervisor import sweep as supervision
from tests.integration.engine import Engine, check_books, history, named, start, state_of, states
from workflows import (
    Limit,
    Retry,
    Workflow,
    broker,
    child,
    given,
    item,
    reports,
    scheduler,
    signals,
    step,
    transitions,
    verbs,
)
from workflows.conf import conf
from workflows.models import Attempt, Job, Step


class ItemsSpread(Workflow):
    a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"is": item})
    b = step("shop.b", input={"all": a})


class ItemsTwo(Workflow):
    a = step("shop.a", compensation="shop.undo_a", each=given["list"], at_once=2, tolerate=2, input={"is": item})
    b = step("shop.b", input={"all": a})


def items(job: Job, name: str = "a") -> list[Step]:
    return list(Step.objects.filter(job=job, name=name, index__isnull=False, superseded=False).order_by("index"))


def item_states(job: Job, name: str = "a") -> list[str]:
    return [one.state for one in items(job, name)]


def fan(job: Job, name: str = "a") -> Step:
    return Step.objects.of_plan().get(job=job, name=name)


def small_batches(settings: Any, size: int) -> None:
    settings.SAG = {"batch": size}


def fails_for(*values: Any, error: type[Exception] = Permanent) -> Callable[[Any], Any]:
    def answer(call: Any) -> Any:
        if call.input["is"] in values:
            raise error(f"not {call.input['is']}")
        return {"did": call.input["is"]}

    return answer


# --- the list --------------------------------------------------------------------------------------------------------


def test_every_item_is_done_and_the_results_keep_the_order_of_the_list(engine: Engine) -> None:
    """SAS-002: the join runs once, with all results."""
    engine.says("shop.a", lambda call: call.input["is"] * 10)
    job = start(ItemsSpread, {"list": [3, 1, 2]})
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"all": [30, 10, 20]}
    assert engine.asked().count("shop.b") == 1
    check_books(job)


def test_an_empty_list_completes_at_once_with_an_empty_result(engine: Engine) -> None:
    job = start(ItemsSpread, {"list": []})
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.b"]
    assert engine.calls_of("shop.b")[0].input == {"all": []}
    check_books(job)


def test_a_job_that_is_nothing_but_an_empty_list_completes_when_it_is_started(engine: Engine) -> None:
    class ItemsNothing(Workflow):
        a = step("shop.a", each=given["list"])

    job = start(ItemsNothing, {"list": []})
    assert state_of(job) == "Completed"
    check_books(job)


@pytest.mark.parametrize(
    ("value", "what"), [(None, "null"), ("abc", "a str"), ({"a": 1}, "a dict"), (7, "a int")], ids=repr
)
def test_what_is_no_list_fails_the_step_with_what_it_was(engine: Engine, value: Any, what: str) -> None:
    job = start(ItemsSpread, {"list": value})
    engine.drain()
    failed = named(job, "a")
    assert (failed.state, failed.error_kind, failed.error_code) == ("Failed", "permanent", "unresolved_reference")
    assert failed.error_message == f"each= of a is {what}, and no list."
    assert state_of(job) == "Compensated"
    assert engine.asked() == []
    check_books(job)


def test_a_list_that_is_not_there_fails_the_step(engine: Engine) -> None:
    job = start(ItemsSpread, {})
    engine.drain()
    assert named(job, "a").error_message == 'given["list"] leads to nothing: given is empty.'
    assert state_of(job) == "Compensated"


def test_a_fan_out_that_found_no_list_never_runs_as_a_single_call_when_it_is_tried_again(engine: Engine) -> None:
    class ItemsHeld(Workflow):
        on_failure = "hold"
        a = step("shop.a", each=given["list"])

    job = start(ItemsHeld, {"list": None})
    engine.drain()
    assert named(job, "a").remedy == "escalate"
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="again")
    engine.pass_time(2, times=3)
    assert engine.asked() == []
    assert named(job, "a").state == "Failed"
    check_books(job)


def test_the_results_of_one_fan_out_are_the_list_of_the_next(engine: Engine) -> None:
    class ItemsNested(Workflow):
        a = step("shop.a", each=given["list"], input={"is": item})
        b = step("shop.b", each=a, input={"of": item["did"]})
        c = step("shop.c", input={"all": b})

    engine.says("shop.a", fails_for())
    engine.says("shop.b", lambda call: call.input["of"] + call.index)
    job = start(ItemsNested, {"list": [5, 6]})
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.c")[0].input == {"all": [5, 7]}
    check_books(job)


def test_the_list_is_the_one_that_was_there_when_the_fan_out_began(engine: Engine, settings: Any) -> None:
    """SAS-114: who joins or leaves meanwhile changes nothing; the list is part of the job."""

    class ItemsSnapshot(Workflow):
        a = step("shop.a")
        b = step("shop.b", each=a["hosts"], at_once=1, input={"is": item})

    hosts = ["h1", "h2", "h3"]

    def all_leave(call: Any) -> Any:
        hosts[:] = ["h9"]
        return {}

    small_batches(settings, 1)
    engine.says("shop.a", lambda call: {"hosts": hosts})
    engine.says("shop.b", all_leave)
    job = start(ItemsSnapshot)
    engine.drain()
    engine.pass_time(6, times=2)
    assert [call.input["is"] for call in engine.calls_of("shop.b")] == ["h1", "h2", "h3"]
    assert engine.asked().count("shop.a") == 1
    assert state_of(job) == "Completed"
    check_books(job)


def test_each_item_has_a_key_an_index_and_a_history_of_its_own(engine: Engine) -> None:
    job = start(ItemsSpread, {"list": ["x", "y"]})
    engine.drain()
    calls = {call.index: call for call in engine.calls_of("shop.a")}
    assert {index: call.idempotency_key for index, call in calls.items()} == {
        0: f"{job.pk}:a:0",
        1: f"{job.pk}:a:1",
    }
    assert {index: call.item for index, call in calls.items()} == {0: "x", 1: "y"}
    assert {"step.claimed a:0", "step.claimed a:1", "step.completed a:0", "step.completed a:1"} <= set(history(job))


# --- how many at once ------------------------------------------------------------------------------------------------


def under_way(job: Job) -> int:
    """Items that hold a place: that may start, run, or wait for another attempt."""
    ended = transitions.ended_item("forward")
    return Step.objects.filter(job=job, index__isnull=False, held=False).exclude(ended).count()


def test_no_more_items_than_at_once_are_let_go_and_each_end_lets_one_go(engine: Engine) -> None:
    job = start(ItemsTwo, {"list": [0, 1, 2, 3, 4]})
    engine.rings.clear()
    for done in range(5):
        ready = [one for one in items(job) if one.state == "NotStarted" and not one.held]
        assert under_way(job) == len(ready) == min(2, 5 - done)
        engine.settle(engine.claim(ready[0]))
        check_books(job)
    assert fan(job).state == "Completed"


def test_no_doorbell_is_rung_for_an_item_that_waits_for_its_turn(engine: Engine) -> None:
    job = start(ItemsTwo, {"list": list(range(50))})
    supervision.ring_due()
    rung = {arguments[1] for task, _, arguments in engine.rings if task == broker.WORK}
    assert rung == {one.pk for one in items(job)[:2]}
    engine.drain()
    assert state_of(job) == "Completed"


@pytest.mark.parametrize("how", ["fail", "expire", "skip", "cancel"])
def test_an_item_that_ends_badly_lets_the_next_one_go(engine: Engine, how: str) -> None:
    job = start(ItemsTwo, {"list": list(range(6))})
    engine.rings.clear()
    first = items(job)[0]
    claimed = engine.claim(first)
    if how == "fail":
        reports.fail(claimed, transitions.Failure(kind="permanent", code="x", message="no"), sent=None)
    elif how == "expire":
        Step.objects.filter(pk=first.pk).update(attempts_allowed=1)
        engine.ahead(11)
        engine.sweep()
    elif how == "cancel":
        verbs.cancel_step(job.pk, "a:0", actor="operator:x", reason="stop it")
    else:
        reports.fail(claimed, transitions.Failure(kind="transient", code="x", message="no"), sent=None)
        engine.rings.clear()
        verbs.skip(job.pk, "a:0", actor="operator:x", reason="not needed")
    engine.rings.clear()
    supervision.decide(first.pk)
    assert under_way(job) == 2
    assert [one.held for one in items(job)[:4]] == [False, False, False, True]
    check_books(job)


def test_an_item_that_waits_for_its_next_attempt_keeps_its_place(engine: Engine) -> None:
    job = start(ItemsTwo, {"list": list(range(6))})
    engine.rings.clear()
    claimed = engine.claim(items(job)[0])
    reports.fail(claimed, transitions.Failure(kind="transient", code="x", message="no"), sent=None)
    supervision.decide(claimed.step_id)
    assert items(job)[0].state == "NotStarted"
    assert under_way(job) == 2
    check_books(job)


def poisoned(engine: Engine, one: Step) -> None:
    """Its worker dies, until it is set aside for a person."""
    while Step.objects.get(pk=one.pk).remedy != "escalate":
        engine.claim(one)
        engine.ahead(11)
        engine.sweep()
        engine.ahead(70)
        engine.rings.clear()


def test_an_item_in_front_of_a_person_keeps_its_place_and_so_does_one_tried_again(engine: Engine) -> None:
    job = start(ItemsTwo, {"list": list(range(6))})
    engine.rings.clear()
    poisoned(engine, items(job)[0])
    assert under_way(job) == 2
    verbs.retry_step(job.pk, "a:0", actor="operator:x", reason="mended")
    assert under_way(job) == 2
    assert not items(job)[0].held
    check_books(job)
    engine.settle(engine.claim(items(job)[1]))
    assert under_way(job) == 2
    check_books(job)
    engine.pass_time(2, times=3)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_fan_out_tried_again_never_runs_more_items_than_at_once(engine: Engine) -> None:
    class ItemsOne(Workflow):
        on_failure = "hold"
        a = step("shop.a", each=given["list"], at_once=2, input={"is": item})

    engine.says("shop.a", fails_for(0, 1))
    job = start(ItemsOne, {"list": list(range(8))})
    engine.drain()
    assert fan(job).remedy == "escalate"
    engine.rings.clear()
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="mended")
    assert under_way(job) == 2
    check_books(job)
    engine.says("shop.a", {"did": True})
    seen = set()
    while ready := [one for one in items(job) if one.state == "NotStarted" and not one.held]:
        seen.add(under_way(job))
        engine.settle(engine.claim(ready[0]))
        check_books(job)
    assert max(seen) == 2
    assert state_of(job) == "Completed"


# --- how many may fail -----------------------------------------------------------------------------------------------


def test_tolerated_failures_leave_null_in_their_place(engine: Engine) -> None:
    engine.says("shop.a", fails_for(1, 3))
    job = start(ItemsTwo, {"list": [0, 1, 2, 3]})
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"all": [{"did": 0}, None, {"did": 2}, None]}
    assert [one.remedy for one in items(job)] == ["", "ignore", "", "ignore"]
    check_books(job)


@pytest.mark.parametrize(("failing", "ends"), [(1, "Completed"), (2, "Failed")])
def test_a_share_is_rounded_down(engine: Engine, failing: int, ends: str) -> None:
    class ItemsShare(Workflow):
        a = step("shop.a", each=given["list"], tolerate=0.19, input={"is": item})

    engine.says("shop.a", fails_for(*range(failing)))
    job = start(ItemsShare, {"list": list(range(10))})
    engine.drain()
    assert state_of(job) == ends
    check_books(job)


def test_one_failure_too_many_fails_the_fan_out_and_undoes_the_items_that_were_done(engine: Engine) -> None:
    """SAS-060: with a limit on what runs at once the rest is never started, and shown as skipped."""

    class ItemsFailFast(Workflow):
        a = step("shop.a", compensation="shop.undo_a", each=given["list"], at_once=1, input={"is": item})
        b = step("shop.b", after=[a])

    engine.says("shop.a", fails_for(2))
    job = start(ItemsFailFast, {"list": list(range(20))})
    engine.drain()
    assert state_of(job) == "Compensated"
    assert item_states(job) == ["Completed", "Completed", "Failed", *["Skipped"] * 17]
    assert fan(job).error_code == "too_many_failed"
    assert fan(job).error_message == "1 of 20 items failed; 0 may."
    assert {call.undoes.idempotency_key for call in engine.calls_of("shop.undo_a")} == {
        f"{job.pk}:a:0",
        f"{job.pk}:a:1",
    }
    assert engine.asked().count("shop.a") == 3
    check_books(job)


def test_an_item_in_doubt_is_undone_with_those_that_were_done(engine: Engine) -> None:
    engine.says("shop.a", lambda call: (_ for _ in ()).throw(InDoubt("no answer")) if call.index == 1 else {"ok": 1})

    class ItemsDoubtful(Workflow):
        a = step("shop.a", compensation="shop.undo_a", each=given["list"], retry=Retry(attempts=1))

    job = start(ItemsDoubtful, {"list": [0, 1, 2]})
    engine.drain()
    engine.pass_time(70, times=3)
    assert state_of(job) == "Compensated"
    assert sorted({call.undoes.idempotency_key for call in engine.calls_of("shop.undo_a")}) == [
        f"{job.pk}:a:{index}" for index in range(3)
    ]
    assert not Attempt.objects.filter(in_doubt=True, resolved_by="").exists()
    check_books(job)


def test_nothing_more_starts_while_a_failed_fan_out_waits_for_a_person(engine: Engine) -> None:
    class ItemsHeld(Workflow):
        a = step("shop.a", each=given["list"], at_once=3, on_failure="hold", input={"is": item})

    job = start(ItemsHeld, {"list": list(range(6))})
    engine.rings.clear()
    failing, running = [engine.claim(one) for one in items(job)[:2]]
    reports.fail(failing, transitions.Failure(kind="permanent", code="x", message="no"), sent=None)
    engine.drain()
    assert fan(job).remedy == "escalate"
    engine.settle(running)
    engine.pass_time(10, times=3)
    engine.sweep()
    assert item_states(job) == ["Failed", "Completed", *["NotStarted"] * 4]
    check_books(job)
    verbs.skip(job.pk, "a", actor="operator:x", reason="enough of them")
    engine.drain()
    assert state_of(job) == "Completed"
    assert item_states(job) == ["Failed", "Completed", *["Skipped"] * 4]
    check_books(job)


@pytest.mark.parametrize("in_doubt", [True, False], ids=["in the middle of its call", "to be called later"])
def test_an_item_that_is_given_back_after_its_fan_out_failed_is_not_called_again_and_not_left_behind(
    engine: Engine, in_doubt: bool
) -> None:
    class ItemsGivenBack(Workflow):
        a = step("shop.a", each=given["list"], on_failure="ignore")
        b = step("shop.b", after=[a])

    engine.says("shop.a", Permanent("no"))
    job = start(ItemsGivenBack, {"list": [0, 1]})
    held = engine.claim(items(job)[0])
    engine.drain()
    assert fan(job).state == "Failed"
    reports.release(held, delay=timedelta(0), reason="Its worker had to stop.", in_doubt=in_doubt)
    calls = len(engine.calls_of("shop.a"))
    engine.drain()
    engine.pass_time(6, times=2)
    assert len(engine.calls_of("shop.a")) == calls
    assert state_of(job) == "Completed"
    assert "NotStarted" not in item_states(job, "a")
    check_books(job)


def test_a_job_that_ignores_a_failed_fan_out_does_not_complete_while_an_item_runs(engine: Engine) -> None:
    class ItemsIgnored(Workflow):
        a = step("shop.a", each=given["list"], on_failure="ignore")
        b = step("shop.b")

    job = start(ItemsIgnored, {"list": [0, 1, 2]})
    engine.rings.clear()
    failing, running = [engine.claim(one) for one in items(job)[:2]]
    reports.fail(failing, transitions.Failure(kind="permanent", code="x", message="no"), sent=None)
    supervision.decide(failing.step_id)
    supervision.decide(fan(job).pk)
    engine.rings.clear()
    assert item_states(job) == ["Failed", "Running", "Skipped"]
    engine.settle(engine.claim(named(job, "b")))
    assert state_of(job) == "Running"
    engine.settle(running)
    assert state_of(job) == "Completed"
    check_books(job)


def test_an_item_of_a_failed_fan_out_is_not_tried_again(engine: Engine) -> None:
    class ItemsIgnored(Workflow):
        a = step("shop.a", each=given["list"], on_failure="ignore")
        b = step("shop.b", after=[a])

    job = start(ItemsIgnored, {"list": [0, 1, 2]})
    engine.rings.clear()
    claims = [engine.claim(one) for one in items(job)]
    for claimed, kind in zip(claims, ["transient", "permanent", "transient"], strict=True):
        reports.fail(claimed, transitions.Failure(kind=kind, code="x", message="no"), sent=None)
        supervision.decide(claimed.step_id)
        engine.rings.clear()
        if kind == "permanent":
            supervision.decide(fan(job).pk)
    engine.pass_time(6)
    assert item_states(job) == ["Skipped", "Failed", "Failed"]
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.b"]
    check_books(job)


# --- a person --------------------------------------------------------------------------------------------------------


def test_a_tolerated_item_that_a_person_skips_or_completes_is_not_counted_twice(engine: Engine) -> None:
    engine.says("shop.a", fails_for(0, 1))
    job = start(ItemsTwo, {"list": list(range(4))})
    for one in items(job)[:2]:
        claimed = engine.claim(one)
        reports.fail(claimed, transitions.Failure(kind="permanent", code="x", message="no"), sent=None)
        supervision.decide(one.pk)
    engine.rings.clear()
    verbs.skip(job.pk, "a:0", actor="operator:x", reason="not needed")
    check_books(job)
    verbs.give_result(job.pk, "a:1", result={"by": "hand"}, actor="operator:x", reason="done by hand")
    check_books(job)
    engine.rings.clear()
    for one in items(job)[2:]:
        engine.settle(engine.claim(one))
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"all": [None, {"by": "hand"}, {}, {}]}
    check_books(job)


def test_an_item_in_front_of_a_person_keeps_the_fan_out_open_until_they_decide(engine: Engine) -> None:
    job = start(ItemsTwo, {"list": [0, 1]})
    engine.rings.clear()
    poisoned(engine, items(job)[0])
    assert items(job)[0].remedy == "escalate"
    engine.settle(engine.claim(items(job)[1]))
    assert fan(job).state == "Running"
    check_books(job)
    verbs.verdict(job.pk, "a:0", done=True, result={"found": 1}, actor="operator:x", reason="seen at the desk")
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"all": [{"found": 1}, {}]}
    check_books(job)


def test_a_failed_job_tried_again_does_only_the_items_that_are_missing(engine: Engine) -> None:
    class ItemsPlain(Workflow):
        a = step("shop.a", each=given["list"], input={"is": item})
        b = step("shop.b", input={"all": a})

    engine.says("shop.a", fails_for(1))
    job = start(ItemsPlain, {"list": [0, 1, 2]})
    engine.drain()
    assert state_of(job) == "Failed"
    check_books(job)
    engine.says("shop.a", fails_for())
    verbs.retry_job(job.pk, actor="operator:x", reason="mended")
    engine.drain()
    assert state_of(job) == "Completed"
    assert [call.index for call in engine.calls_of("shop.a")].count(0) == 1
    assert engine.calls_of("shop.b")[0].input == {"all": [{"did": 0}, {"did": 1}, {"did": 2}]}
    check_books(job)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_items_come_in_batches_and_the_join_waits_for_the_last(engine: Engine, settings: Any) -> None:
    """SAS-058: the first start while others are still to be written; the join fires once."""
    small_batches(settings, 4)
    job = start(ItemsSpread, {"list": list(range(10))})
    engine.rings.clear()
    assert (fan(job).items_total, fan(job).items_made) == (10, 4)
    for one in items(job):
        engine.settle(engine.claim(one), hand_over=False)
        check_books(job)
    assert fan(job).state == "Running"
    engine.pass_time(2)
    engine.sweep()
    engine.pass_time(2, times=2)
    assert state_of(job) == "Completed"
    assert len(items(job)) == 10
    assert engine.asked().count("shop.b") == 1
    check_books(job)


def test_a_scheduler_that_dies_between_two_batches_is_replaced_by_the_sweep(engine: Engine, settings: Any) -> None:
    """SAS-058, SAS-112: exactly as many items as the list has, whoever dies."""
    small_batches(settings, 3)
    job = start(ItemsSpread, {"list": list(range(8))})
    engine.rings.clear()  # the word to go on is lost
    engine.sweep()
    assert [one.index for one in items(job)] == list(range(8))
    engine.pass_time(6, times=2)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_scheduler_that_dies_before_it_ends_the_fan_out_is_replaced_by_the_sweep(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(ItemsSpread, {"list": [0]})
    engine.rings.clear()
    with monkeypatch.context() as dying:
        dying.setattr(scheduler, "attend_to_all", lambda job_id: None)
        engine.settle(engine.claim(items(job)[0]))
    assert (fan(job).state, fan(job).items_open) == ("Running", 0)
    engine.sweep()
    assert fan(job).state == "Completed"
    engine.pass_time(1)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_place_that_was_not_filled_is_found_by_the_sweep(engine: Engine) -> None:
    job = start(ItemsTwo, {"list": list(range(4))})
    engine.rings.clear()
    Step.objects.filter(job=job, index=1).update(held=True)
    engine.sweep()
    assert not items(job)[1].held
    engine.pass_time(6, times=2)
    assert state_of(job) == "Completed"


def test_an_item_that_cannot_be_written_fails_the_fan_out_whatever_batch_it_is_in(
    engine: Engine, settings: Any
) -> None:
    """A limit's key that leads to nothing for one item: no sweep may stumble over it for ever."""

    class ItemsLimited(Workflow):
        a = step("shop.a", each=given["list"], limit=Limit(key=item["city"], at_once=1))

    small_batches(settings, 2)
    job = start(ItemsLimited, {"list": [{"city": "x"}, {"city": "y"}, {"town": "z"}]})
    engine.rings.clear()
    swept = engine.sweep()
    assert swept.failed == 0
    engine.drain()
    assert fan(job).error_code == "unresolved_reference"
    assert state_of(job) == "Failed"
    check_books(job)


def test_a_paused_job_writes_its_items_and_starts_none_until_it_is_resumed(engine: Engine, settings: Any) -> None:
    """SAS-067"""
    small_batches(settings, 2)
    job = start(ItemsTwo, {"list": list(range(5))})
    engine.rings.clear()
    running = engine.claim(items(job)[0])
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.sweep()
    engine.settle(running)
    engine.pass_time(10, times=3)
    engine.sweep()
    engine.pass_time(1)
    assert item_states(job) == ["Completed", *["NotStarted"] * 4]
    assert under_way(job) == 0
    check_books(job)
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    assert under_way(job) == 2
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_cancel_in_the_middle_of_the_writing_ends_clean(engine: Engine, settings: Any) -> None:
    small_batches(settings, 2)
    job = start(ItemsSpread, {"list": list(range(5))})
    engine.rings.clear()
    done, running = [engine.claim(one) for one in items(job)]
    engine.settle(done)
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    assert state_of(job) == "Running"
    engine.settle(running)
    engine.drain()
    assert state_of(job) == "Compensated"
    assert len(engine.calls_of("shop.undo_a")) == 2
    check_books(job)


# --- undo ------------------------------------------------------------------------------------------------------------


def test_an_undo_over_many_items_is_written_in_batches_and_ends_once(engine: Engine, settings: Any) -> None:
    small_batches(settings, 3)

    class ItemsUndone(Workflow):
        a = step("shop.a", compensation="shop.undo_a", each=given["list"])
        b = step("shop.b", after=[a])

    engine.says("shop.b", Permanent("no"))
    job = start(ItemsUndone, {"list": list(range(8))})
    engine.drain()
    engine.sweep()
    engine.pass_time(6, times=2)
    assert state_of(job) == "Compensated"
    assert len(engine.calls_of("shop.undo_a")) == 8
    assert states(job)["a.undo"] == "Completed"
    check_books(job)


def test_an_undo_that_fails_for_one_item_leaves_the_others_undone_and_a_person_told(engine: Engine) -> None:
    class ItemsUndone(Workflow):
        a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"is": item})
        b = step("shop.b", after=[a])

    def undo(call: Any) -> Any:
        if call.undoes.idempotency_key.endswith(":1"):
            raise Permanent("no desk")
        return {}

    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_a", undo)
    job = start(ItemsUndone, {"list": [0, 1, 2]})
    engine.drain()
    assert state_of(job) == "Failed"
    assert item_states(job, "a.undo") == ["Completed", "Failed", "Completed"]
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)
    engine.says("shop.undo_a", {})
    verbs.retry_step(job.pk, "a.undo:1", actor="operator:x", reason="the desk is open")
    engine.drain()
    assert state_of(job) == "Compensated"
    assert len(engine.calls_of("shop.undo_a")) == 4
    check_books(job)


# --- children over a list --------------------------------------------------------------------------------------------


class ItemsRoom(Workflow):
    c = step("shop.c", compensation="shop.undo_c", input={"who": given["who"]})


def test_children_over_a_list_run_within_their_limit_and_leave_their_results(engine: Engine) -> None:
    class ItemsRooms(Workflow):
        a = child(ItemsRoom, each=given["list"], at_once=2)
        b = step("shop.b", input={"all": a})

    job = start(ItemsRooms, {"list": [{"who": who} for who in "pqrs"]})
    assert Job.objects.filter(workflow="ItemsRoom").count() == 2
    engine.drain()
    assert state_of(job) == "Completed"
    assert [call.input["who"] for call in engine.calls_of("shop.c")] == list("pqrs")
    [joined] = engine.calls_of("shop.b")
    assert [one["results"]["c"]["from"] for one in joined.input["all"]] == ["c"] * 4
    check_books(job)


def test_children_over_a_list_are_undone_with_their_parent(engine: Engine) -> None:
    class ItemsRooms(Workflow):
        a = child(ItemsRoom, each=given["list"])
        b = step("shop.b", after=[a])

    engine.says("shop.b", Permanent("no"))
    job = start(ItemsRooms, {"list": [{"who": "p"}, {"who": "q"}]})
    engine.drain()
    engine.pass_time(2, times=3)
    assert state_of(job) == "Compensated"
    assert set(Job.objects.filter(workflow="ItemsRoom").values_list("state", flat=True)) == {"Compensated"}
    assert len(engine.calls_of("shop.undo_c")) == 2
    check_books(job)


def test_a_child_of_a_list_whose_input_is_refused_counts_as_a_failed_item(engine: Engine) -> None:
    class ItemsRooms(Workflow):
        a = child(ItemsRoom, each=given["list"], tolerate=1)
        b = step("shop.b", input={"all": a})

    job = start(ItemsRooms, {"list": [{"who": "p"}, "no object", {"who": "q"}]})
    engine.drain()
    assert state_of(job) == "Completed"
    assert item_states(job) == ["Completed", "Failed", "Completed"]
    assert engine.calls_of("shop.b")[0].input["all"][1] is None
    check_books(job)


def test_no_further_child_begins_once_the_fan_out_has_failed(engine: Engine) -> None:
    """SAS-060"""

    class ItemsHeldRooms(Workflow):
        a = child(ItemsRoom, each=given["list"], at_once=2, on_failure="hold")

    def answer(call: Any) -> Any:
        raise Permanent("no") if call.input["who"] == "p" else Defer()

    engine.says("shop.c", answer)
    job = start(ItemsHeldRooms, {"list": [{"who": who} for who in "pqrs"]})
    engine.drain()
    assert fan(job).remedy == "escalate"
    deferred = Step.objects.get(name="c", state="Running")
    signals.call_back(signals.token_of(deferred.pk), {"result": 1})
    engine.drain()
    engine.sweep()
    engine.pass_time(6)
    assert item_states(job) == ["Failed", "Completed", "NotStarted", "NotStarted"]
    assert Job.objects.filter(workflow="ItemsRoom").count() == 2
    check_books(job)


# --- size ------------------------------------------------------------------------------------------------------------


def test_an_item_costs_the_same_number_of_statements_however_long_the_list(engine: Engine) -> None:
    """SAS-058"""

    def cost(length: int) -> int:
        job = start(ItemsTwo, {"list": list(range(length))})
        engine.rings.clear()
        claims = [engine.claim(one) for one in items(job)[:1]]
        with CaptureQueriesContext(connection) as asked:
            engine.settle(claims[0])
        return len(asked.captured_queries)

    assert cost(400) == cost(20)


def test_ten_thousand_items_are_written_with_few_statements_and_none_is_missing(engine: Engine) -> None:
    """SAS-058"""

    class ItemsMany(Workflow):
        a = step("shop.a", each=given["list"], at_once=50)
        b = step("shop.b", after=[a])

    with CaptureQueriesContext(connection) as asked:
        job = start(ItemsMany, {"list": list(range(10_000))})
        engine.rings.clear()
        scheduler.attend_to_all(job.pk)
    assert Step.objects.filter(job=job, index__isnull=False).count() == 10_000
    assert len(asked.captured_queries) < 60 * 10_000 / conf.batch
    assert len(engine.rings) <= 50
    assert under_way(job) == 50


def test_the_deadline_of_a_fan_out_is_that_of_its_items(engine: Engine) -> None:
    class ItemsSlow(Workflow):
        a = step(
            "shop.a", each=given["list"], timeout=timedelta(seconds=5), retry=Retry(attempts=2), input={"is": item}
        )

    engine.says("shop.a", fails_for(1, error=Transient))
    job = start(ItemsSlow, {"list": [0, 1]})
    engine.drain()
    engine.pass_time(70, times=2)
    assert [one.attempt for one in items(job)] == [1, 2]
    assert fan(job).error_code == "too_many_failed"
    assert state_of(job) == "Failed"
    check_books(job)
