"""What the run decides: conditions, alternatives, and what a failure means."""

from datetime import timedelta
from typing import Any

import pytest

from agents import InDoubt, Permanent
from tests.integration.engine import Engine, check_books, history, named, start, state_of, states
from workflows import Retry, Workflow, given, scheduler, signal, step, verbs
from workflows.clock import now
from workflows.exceptions import WrongState
from workflows.models import Job, Step

ONCE = Retry(attempts=1)


# --- when ------------------------------------------------------------------------------------------------------------


class ChoiceMaybe(Workflow):
    a = step("shop.a", when=given["wanted"], compensation="shop.undo_a")
    b = step("shop.b", input={"a": a})
    c = step("shop.c", after=[b])


@pytest.mark.parametrize("value", [True, 1, "yes", [0], {"x": 0}], ids=repr)
def test_a_step_whose_condition_holds_is_done(engine: Engine, value: Any) -> None:
    job = start(ChoiceMaybe, {"wanted": value})
    engine.drain()
    assert states(job) == dict.fromkeys("abc", "Completed")
    check_books(job)


@pytest.mark.parametrize("input", [{"wanted": value} for value in (False, 0, "", [], {}, None)] + [{}], ids=repr)
def test_a_step_whose_condition_does_not_hold_is_skipped_with_the_reason_and_leaves_null(
    engine: Engine, input: Any
) -> None:
    job = start(ChoiceMaybe, input)
    engine.drain()
    assert states(job) == {"a": "Skipped", "b": "Completed", "c": "Completed"}
    assert named(job, "a").skip_reason == 'Its condition given["wanted"] is not met.'
    assert engine.asked() == ["shop.b", "shop.c"]
    assert engine.calls_of("shop.b")[0].input == {"a": None}
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_negated_condition_is_met_by_what_is_not_there(engine: Engine) -> None:
    class ChoiceUnless(Workflow):
        a = step("shop.a", when=~given["has_car"])
        b = step("shop.b", when=~given["other"])

    job = start(ChoiceUnless, {"other": True})
    engine.drain()
    assert states(job) == {"a": "Completed", "b": "Skipped"}
    assert named(job, "b").skip_reason == 'Its condition ~given["other"] is not met.'


def test_a_condition_may_read_a_result_and_is_looked_at_when_that_is_there(engine: Engine) -> None:
    class ChoiceRead(Workflow):
        a = step("shop.a")
        b = step("shop.b", when=a["ok"])
        c = step("shop.c", when=~a["ok"])

    engine.says("shop.a", {"ok": True})
    job = start(ChoiceRead)
    assert states(job) == dict.fromkeys("abc", "NotStarted")
    engine.drain()
    assert states(job) == {"a": "Completed", "b": "Completed", "c": "Skipped"}
    assert state_of(job) == "Completed"
    check_books(job)


def test_cascade_skips_all_that_depends_on_it_and_nothing_else(engine: Engine) -> None:
    class ChoiceCascade(Workflow):
        a = step("shop.a", when=given["wanted"], unmet="cascade")
        b = step("shop.b", after=[a])
        c = step("shop.c", input={"b": b})
        d = step("shop.d")
        e = step("shop.e", after=[d, c])

    job = start(ChoiceCascade, {})
    engine.drain()
    assert states(job) == {"a": "Skipped", "b": "Skipped", "c": "Skipped", "d": "Completed", "e": "Skipped"}
    assert named(job, "c").skip_reason == "It depends on b, which was skipped."
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_join_behind_skipped_steps_waits_for_the_others(engine: Engine) -> None:
    class ChoiceJoin(Workflow):
        a = step("shop.a", when=given["one"])
        b = step("shop.b", when=given["two"])
        c = step("shop.c")
        d = step("shop.d", input={"a": a, "b": b, "c": c["from"]})

    job = start(ChoiceJoin, {"two": True})
    engine.rings.clear()
    engine.settle(engine.claim(named(job, "c")), '{"from": "c"}')
    assert named(job, "d").state == "NotStarted"
    engine.settle(engine.claim(named(job, "b")), '"rb"', hand_over=False)
    engine.drain()
    engine.pass_time(6)
    assert state_of(job) == "Completed"
    assert [call.input for call in engine.calls_of("shop.d")] == [{"a": None, "b": "rb", "c": "c"}]
    check_books(job)


def test_a_condition_that_must_hold_fails_the_step_and_undoes_the_job(engine: Engine) -> None:
    class ChoiceMust(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", when=a["ok"], unmet="fail")

    engine.says("shop.a", {"ok": False})
    job = start(ChoiceMust)
    engine.drain()
    assert (named(job, "b").error_kind, named(job, "b").error_code) == ("permanent", "condition_not_met")
    assert state_of(job) == "Compensated"
    assert engine.asked() == ["shop.a", "shop.undo_a"]
    check_books(job)


def test_a_condition_that_must_hold_is_looked_at_once_more_when_the_step_is_tried_again(engine: Engine) -> None:
    class ChoiceMust(Workflow):
        a = step("shop.a", when=given["ok"], unmet="fail", on_failure="hold")

    job = start(ChoiceMust, {})
    engine.drain()
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="again")
    engine.pass_time(6)
    assert engine.asked() == []
    assert named(job, "a").remedy == "escalate"
    check_books(job)


def test_a_job_of_nothing_but_skipped_steps_completes_when_it_is_started(engine: Engine) -> None:
    class ChoiceNothing(Workflow):
        a = step("shop.a", when=given["x"])
        b = step("shop.b", when=given["y"], after=[a])

    job = start(ChoiceNothing, {})
    assert state_of(job) == "Completed"
    assert history(job) == ["job.opened", "step.skipped a", "step.skipped b", "job.completed"]
    check_books(job)


def test_a_step_skipped_by_its_condition_is_not_undone_and_its_neighbours_are_in_order(engine: Engine) -> None:
    class ChoiceAround(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", compensation="shop.undo_b", when=given["x"], after=[a])
        c = step("shop.c", compensation="shop.undo_c", after=[b])
        d = step("shop.d", after=[c])

    engine.says("shop.d", Permanent("no"))
    job = start(ChoiceAround, {})
    engine.drain()
    assert state_of(job) == "Compensated"
    assert engine.asked() == ["shop.a", "shop.c", "shop.d", "shop.undo_c", "shop.undo_a"]
    check_books(job)


def test_a_gate_that_nobody_looked_at_is_found_by_the_sweep(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SAS-020: the gap between two steps is nobody's."""

    class ChoiceGap(Workflow):
        a = step("shop.a")
        b = step("shop.b", when=a["from"])

    job = start(ChoiceGap)
    engine.rings.clear()
    with monkeypatch.context() as dying:
        dying.setattr(scheduler, "attend_to_all", lambda job_id: None)
        engine.settle(engine.claim(named(job, "a")), '{"from": 1}')
    assert named(job, "b").gated
    engine.sweep()
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_step_that_is_to_start_later_is_looked_at_then(engine: Engine) -> None:
    job = start(ChoiceMaybe, {"wanted": True}, start_at=now() + timedelta(hours=1))
    engine.drain()
    engine.sweep()
    assert named(job, "a").gated
    engine.ahead(3601)
    engine.sweep()
    engine.pass_time(6)
    assert state_of(job) == "Completed"
    check_books(job)


# --- otherwise -------------------------------------------------------------------------------------------------------


class ChoiceHotel(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a], retry=ONCE,
             otherwise=step("shop.c", compensation="shop.undo_c", retry=ONCE))  # fmt: skip
    d = step("shop.d", input={"b": b["from"]})


def test_the_alternative_is_done_where_the_first_failed_and_its_result_counts(engine: Engine) -> None:
    engine.says("shop.b", Permanent("full"))
    engine.says("shop.c", {"from": "inn"})
    job = start(ChoiceHotel)
    engine.drain()
    assert state_of(job) == "Completed"
    assert (named(job, "b").state, named(job, "b").remedy) == ("Failed", "otherwise")
    assert states(job)["b.otherwise"] == "Completed"
    assert engine.calls_of("shop.d")[0].input == {"b": "inn"}
    assert engine.asked() == ["shop.a", "shop.b", "shop.c", "shop.d"]
    check_books(job)


def test_the_alternative_is_skipped_where_the_first_was_done(engine: Engine) -> None:
    job = start(ChoiceHotel)
    engine.drain()
    assert state_of(job) == "Completed"
    assert states(job)["b.otherwise"] == "Skipped"
    assert named(job, "b.otherwise").skip_reason == "b needs no alternative: it is Completed."
    assert engine.calls_of("shop.d")[0].input == {"b": "b"}
    check_books(job)


def test_the_alternative_is_not_taken_while_nobody_knows_whether_the_first_was_done(engine: Engine) -> None:
    engine.says("shop.b", InDoubt("no answer"))
    job = start(ChoiceHotel)
    engine.drain()
    engine.pass_time(70, times=3)
    assert state_of(job) == "Compensated"
    assert "shop.c" not in engine.asked()
    assert states(job)["b.otherwise"] == "Skipped"
    assert {"shop.undo_a", "shop.undo_b"} <= set(engine.asked())
    check_books(job)


def test_where_both_fail_the_job_is_undone(engine: Engine) -> None:
    engine.says("shop.b", Permanent("full"))
    engine.says("shop.c", Permanent("full too"))
    job = start(ChoiceHotel)
    engine.drain()
    assert state_of(job) == "Compensated"
    assert engine.asked() == ["shop.a", "shop.b", "shop.c", "shop.undo_a"]
    check_books(job)


def test_what_the_alternative_did_is_undone_before_what_came_before_it(engine: Engine) -> None:
    engine.says("shop.b", Permanent("full"))
    engine.says("shop.c", {"from": "inn"})
    engine.says("shop.d", Permanent("no"))
    job = start(ChoiceHotel)
    engine.drain()
    assert state_of(job) == "Compensated"
    assert engine.asked()[-2:] == ["shop.undo_c", "shop.undo_a"]
    check_books(job)


def test_alternatives_are_tried_one_after_another(engine: Engine) -> None:
    class ChoiceChain(Workflow):
        a = step("shop.a", otherwise=step("shop.b", otherwise=step("shop.c")))
        d = step("shop.d", input={"a": a})

    engine.says("shop.a", Permanent("no"))
    engine.says("shop.b", Permanent("no"))
    engine.says("shop.c", "third")
    job = start(ChoiceChain)
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.d")[0].input == {"a": "third"}
    check_books(job)


def test_alternatives_of_a_step_that_is_skipped_are_skipped_with_it(engine: Engine) -> None:
    class ChoiceChain(Workflow):
        a = step("shop.a", when=given["x"], otherwise=step("shop.b", otherwise=step("shop.c")))
        d = step("shop.d", input={"a": a})

    job = start(ChoiceChain, {})
    engine.drain()
    assert states(job) == {
        "a": "Skipped",
        "a.otherwise": "Skipped",
        "a.otherwise.otherwise": "Skipped",
        "d": "Completed",
    }
    assert engine.calls_of("shop.d")[0].input == {"a": None}
    check_books(job)


def test_an_alternative_to_a_signal_is_taken_when_nobody_sends_it(engine: Engine) -> None:
    class ChoiceAsk(Workflow):
        a = signal(timeout=timedelta(seconds=60), otherwise=step("shop.a"))
        b = step("shop.b", input={"said": a})

    engine.says("shop.a", "nobody said anything")
    job = start(ChoiceAsk)
    engine.pass_time(61, times=2)
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"said": "nobody said anything"}
    check_books(job)


def test_an_alternative_that_a_person_stopped_the_first_for_is_not_taken(engine: Engine) -> None:
    """Who cancels a step wants the job stopped, not another way."""
    job = start(ChoiceHotel)
    engine.rings.clear()
    engine.settle(engine.claim(named(job, "a")))
    verbs.cancel_step(job.pk, "b", actor="operator:x", reason="stop")
    engine.drain()
    engine.pass_time(70, times=3)
    assert "shop.c" not in engine.asked()
    assert state_of(job) == "Compensated"


# --- on_failure ------------------------------------------------------------------------------------------------------


def test_a_step_that_may_fail_leaves_null_and_the_job_goes_on(engine: Engine) -> None:
    class ChoiceLax(Workflow):
        a = step("shop.a", on_failure="ignore", compensation="shop.undo_a")
        b = step("shop.b", input={"a": a})

    engine.says("shop.a", Permanent("no"))
    job = start(ChoiceLax)
    engine.drain()
    assert state_of(job) == "Completed"
    assert (named(job, "a").state, named(job, "a").remedy) == ("Failed", "ignore")
    assert engine.calls_of("shop.b")[0].input == {"a": None}
    assert not Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)


def test_an_ignored_step_in_doubt_is_undone_with_the_job(engine: Engine) -> None:
    class ChoiceLax(Workflow):
        a = step("shop.a", on_failure="ignore", compensation="shop.undo_a", retry=ONCE)
        b = step("shop.b", after=[a])

    engine.says("shop.a", InDoubt("no answer"))
    engine.says("shop.b", Permanent("no"))
    job = start(ChoiceLax)
    engine.drain()
    engine.pass_time(70, times=3)
    assert state_of(job) == "Compensated"
    assert "shop.undo_a" in engine.asked()
    check_books(job)


def test_a_held_failure_stands_before_a_person_while_other_branches_go_on(engine: Engine) -> None:
    class ChoiceHold(Workflow):
        on_failure = "hold"
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a])
        c = step("shop.c", after=[a])

    engine.says("shop.b", Permanent("no"))
    job = start(ChoiceHold)
    engine.drain()
    engine.pass_time(6)
    assert states(job) == {"a": "Completed", "b": "Failed", "c": "Completed"}
    assert state_of(job) == "Running"
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)
    engine.says("shop.b", {})
    verbs.retry_step(job.pk, "b", actor="operator:x", reason="mended")
    engine.drain()
    assert state_of(job) == "Completed"
    assert not Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)


def test_a_step_that_says_compensate_overrides_a_workflow_that_holds(engine: Engine) -> None:
    class ChoiceMixed(Workflow):
        on_failure = "hold"
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a], on_failure="compensate")

    engine.says("shop.b", Permanent("no"))
    job = start(ChoiceMixed)
    engine.drain()
    assert state_of(job) == "Compensated"


def test_a_held_step_is_before_nobody_any_more_once_its_job_is_undone(engine: Engine) -> None:
    class ChoiceHold(Workflow):
        on_failure = "hold"
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a])

    engine.says("shop.b", Permanent("no"))
    job = start(ChoiceHold)
    engine.drain()
    verbs.cancel(job.pk, undo=True, actor="operator:x", reason="give it up")
    engine.drain()
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)


def test_a_failure_behind_the_point_of_no_return_is_held_and_cannot_be_undone(engine: Engine) -> None:
    class ChoicePivot(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a], pivot=True)
        c = step("shop.c", after=[b])

    engine.says("shop.c", Permanent("no"))
    job = start(ChoicePivot)
    engine.drain()
    assert named(job, "c").remedy == "escalate"
    with pytest.raises(WrongState, match="point of no return"):
        verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    verbs.skip(job.pk, "c", actor="operator:x", reason="done by hand")
    assert state_of(job) == "Completed"
    assert "shop.undo_a" not in engine.asked()
    check_books(job)


def test_a_skip_by_a_person_goes_on_behind_the_failed_step(engine: Engine) -> None:
    class ChoiceHold(Workflow):
        a = step("shop.a", on_failure="hold")
        b = step("shop.b", input={"a": a})
        c = step("shop.c", when=a)

    engine.says("shop.a", Permanent("no"))
    job = start(ChoiceHold)
    engine.drain()
    verbs.skip(job.pk, "a", actor="operator:x", reason="not needed")
    engine.drain()
    assert states(job) == {"a": "Skipped", "b": "Completed", "c": "Skipped"}
    assert state_of(job) == "Completed"
    assert Step.objects.filter(job=job, released_at__isnull=False).count() == 3
    check_books(job)
