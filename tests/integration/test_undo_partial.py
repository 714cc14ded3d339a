"""Undone down to a step, and forward again from there: new rows with new keys, and what was done before is reused."""

from datetime import timedelta
from typing import Any

import pytest

from agents import InDoubt, Permanent, Transient
from tests.integration.engine import Beside, Engine, check_books, history, locked, state_of
from tests.integration.test_undo_preview import (
    ONE_TRY,
    HeldShown,
    InnerShown,
    OuterShown,
    TreeShown,
    compensate,
    shown,
    undos,
)
from workflows import Retry, Workflow, given, item, signal, signals, step, timer, undo, verbs
from workflows.allowed import job_verbs, step_verbs
from workflows.exceptions import DigestMismatch, WrongState
from workflows.models import Event, Job, Signal, Step


class LineInPart(Workflow):
    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", input={"a": a})
    c = step("shop.c", compensation="shop.undo_c", input={"b": b})


class RolloutInPart(Workflow):
    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", each=given["list"], input={"item": item, "a": a}, after=[a])
    c = step("shop.c", compensation="shop.undo_c", input={"all": b})


class WaitingInPart(Workflow):
    on_failure = "hold"
    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a")
    soak = timer(30, after=[a])
    approval = signal(after=[soak])
    b = step("shop.b", compensation="shop.undo_b", after=[approval])


class HalfInPart(Workflow):
    """b cannot be undone."""

    on_failure = "hold"

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", after=[a], retry=ONE_TRY)


def retry(job: Job, **options: Any) -> Job:
    return verbs.retry_job(job.pk, actor="operator:x", reason="mended", **options)


def at(job: Job, address: str) -> Step:
    return verbs.step_at(Job.objects.get(pk=job.pk), address)


def keys(engine: Engine, operation: str) -> list[str]:
    return [call.idempotency_key for call in engine.calls_of(operation)]


def of_plan(job: Job) -> dict[str, tuple[str, int]]:
    rows = Step.objects.of_plan().filter(job=job, role="forward").order_by("place")
    return {row.name: (row.state, row.generation) for row in rows}


def _undone_but_for_a_doubt(engine: Engine) -> Job:
    engine.says("shop.b", InDoubt("lost"), {})
    job = HalfInPart.start()
    engine.drain()
    compensate(job, down_to="a")
    engine.drain()
    return job


def _done(engine: Engine, workflow: type[Workflow] = LineInPart, input: Any = None) -> Job:
    job = workflow.start(input)
    engine.pass_time(1)
    assert state_of(job) == "Completed"
    return job


# --- back --------------------------------------------------------------------------------------------------------------


def test_the_step_and_all_that_depends_on_it_are_undone_and_nothing_else(engine: Engine) -> None:
    job = _done(engine, TreeShown)
    assert shown(job, down_to="b") == ["e", "b"]
    compensate(job, down_to="b")
    assert state_of(job) == "Compensating"
    engine.drain()
    assert undos(engine) == ["e", "b"]
    ended = Job.objects.get(pk=job.pk)
    assert (ended.state, ended.partial, ended.reason) == ("Failed", True, "operator")
    assert ended.reason_detail == "Undone down to b: they asked"
    assert set(job_verbs(ended)) == {"retries", "compensation"}
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)


def test_the_digest_of_a_part_is_not_that_of_the_whole(engine: Engine) -> None:
    job = _done(engine)
    whole, part = undo.preview(job.pk), undo.preview(job.pk, down_to="a")
    assert [call["step"] for call in whole.steps] == [call["step"] for call in part.steps]
    with pytest.raises(DigestMismatch):
        compensate(job, whole.digest, down_to="a")


def test_a_part_of_a_running_job_is_undone_while_nothing_of_it_runs(engine: Engine) -> None:
    engine.says("shop.c", Permanent("no"), {})
    job = HeldShown.start()
    engine.drain()
    compensate(job, down_to="b")
    engine.drain()
    assert undos(engine) == ["b"]
    assert state_of(job) == "Failed"
    assert not Step.objects.escalated().exists()
    retry(job)
    engine.drain()
    assert not Job.objects.needs_person().exists()
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.a", "shop.b", "shop.c", "shop.undo_b", "shop.b", "shop.c"]
    check_books(job)


def test_what_depends_on_an_undone_step_waits_for_its_new_row_and_has_a_new_one_too(engine: Engine) -> None:
    """c had failed, was never undone, and must not start before b is done again; nor under a key that knows b's old result."""
    engine.says("shop.c", Permanent("no"), {})
    job = HeldShown.start()
    engine.drain()
    compensate(job, down_to="b")
    engine.drain()
    retry(job)
    assert (at(job, "c").generation, at(job, "c").waiting_for) == (2, 1)
    engine.drain()
    first, second = keys(engine, "shop.c")
    assert (first, second) == (f"{job.pk}:c", f"{job.pk}:c:g2")


def test_a_paused_job_is_undone_in_part_without_being_resumed_first(engine: Engine) -> None:
    job = LineInPart.start()
    handed = engine.settle(engine.claim(at(job, "a"))).handed_over
    verbs.pause(job.pk, actor="operator:x", reason="look")
    engine.settle(handed)
    engine.rings.clear()
    compensate(job, down_to="b")
    engine.drain()
    assert undos(engine) == ["b"]
    ended = Job.objects.get(pk=job.pk)
    assert (ended.state, ended.paused_at) == ("Failed", None)
    retry(job)
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_while_a_call_is_under_way_no_part_is_undone(engine: Engine) -> None:
    job = LineInPart.start()
    engine.settle(engine.claim(at(job, "a")))
    before = history(job)
    with pytest.raises(WrongState, match="b runs"):
        compensate(job, down_to="a")
    assert history(job) == before
    assert state_of(job) == "Running"


def test_a_timer_and_a_signal_that_are_waited_for_are_ended_and_waited_for_anew(engine: Engine) -> None:
    job = WaitingInPart.start()
    engine.drain()
    engine.pass_time(31)
    assert at(job, "approval").state == "Running"
    compensate(job, down_to="a")
    engine.drain()
    assert undos(engine) == ["a"]
    assert (state_of(job), at(job, "approval").state) == ("Failed", "Failed")
    retry(job)
    engine.drain()
    assert of_plan(job)["soak"] == ("Running", 2)
    assert of_plan(job)["approval"] == ("NotStarted", 2)
    engine.pass_time(31)
    assert signals.send(job.pk, "approval", {"ok": 1}, actor="operator:x").outcome == Signal.Outcome.TAKEN
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_what_waits_beside_the_part_keeps_it_from_being_undone(engine: Engine) -> None:
    class BesidesInPart(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        word = signal()

    job = BesidesInPart.start()
    engine.pass_time(1)
    with pytest.raises(WrongState, match="word runs"):
        compensate(job, down_to="a")
    assert state_of(job) == "Running"


def test_a_step_that_left_nothing_is_no_place_to_undo_down_to(engine: Engine) -> None:
    job = WaitingInPart.start()
    engine.drain()
    engine.pass_time(31)
    signals.send(job.pk, "approval", {}, actor="operator:x")
    engine.drain()
    assert state_of(job) == "Completed"
    before = history(job)
    with pytest.raises(WrongState, match="name a step before it, or one behind it"):
        compensate(job, down_to="soak")
    assert history(job) == before


def test_failed_steps_outside_the_part_are_left_alone_by_the_supervisor_and_tried_again_with_it(engine: Engine) -> None:
    class SidesInPart(Workflow):
        on_failure = "hold"

        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", retry=ONE_TRY)

    engine.says("shop.b", Permanent("no"), {})
    job = SidesInPart.start()
    engine.pass_time(1)
    compensate(job, down_to="a")
    swept = engine.sweep()
    assert swept.problems == []
    engine.drain()
    assert state_of(job) == "Failed"
    assert at(job, "b").remedy == "wait"
    retry(job)
    engine.drain()
    assert state_of(job) == "Completed"
    assert of_plan(job) == {"a": ("Completed", 2), "b": ("Completed", 1)}
    check_books(job)


# --- and forward again -------------------------------------------------------------------------------------------------


def test_going_forward_again_makes_new_rows_with_new_keys_and_reuses_what_was_kept(engine: Engine) -> None:
    """Protocol 22."""
    engine.says("shop.a", {"reference": "A"})
    engine.says("shop.b", {"reference": "B1"}, {"reference": "B2"})
    job = _done(engine)
    compensate(job, down_to="b")
    engine.drain()
    assert undos(engine) == ["c", "b"]
    retried = retry(job)
    assert (retried.state, retried.open_steps, retried.partial, retried.reason) == ("Running", 2, False, "")
    check_books(job)
    engine.drain()
    assert state_of(job) == "Completed"
    assert of_plan(job) == {"a": ("Completed", 1), "b": ("Completed", 2), "c": ("Completed", 2)}
    assert keys(engine, "shop.a") == [f"{job.pk}:a"]
    assert keys(engine, "shop.b") == [f"{job.pk}:b", f"{job.pk}:b:g2"]
    assert engine.calls_of("shop.b")[1].input == {"a": {"reference": "A"}}
    assert engine.calls_of("shop.c")[1].input == {"b": {"reference": "B2"}}
    old = Step.objects.filter(job=job, superseded=True).order_by("seq")
    assert [row.name for row in old] == ["b", "c", "c.undo", "b.undo"]
    assert not Step.objects.filter(job=job, superseded=False, generation=1).exclude(name="a").exists()
    check_books(job)


def test_the_whole_undo_afterwards_undoes_the_second_generation_and_not_the_first_again(engine: Engine) -> None:
    job = _done(engine)
    compensate(job, down_to="b")
    engine.drain()
    retry(job)
    engine.drain()
    assert shown(job) == ["c", "b", "a"]
    compensate(job)
    engine.drain()
    assert undos(engine) == ["c", "b", "c", "b", "a"]
    assert [call.undoes.idempotency_key for call in engine.calls_of("shop.undo_b")] == [
        f"{job.pk}:b",
        f"{job.pk}:b:g2",
    ]
    assert len({call.idempotency_key for call in engine.calls_of("shop.undo_b")}) == 2
    assert (state_of(job), Job.objects.get(pk=job.pk).partial) == ("Compensated", False)
    check_books(job)


def test_a_part_can_be_undone_and_done_again_twice(engine: Engine) -> None:
    job = _done(engine)
    for _ in range(2):
        compensate(job, down_to="b")
        engine.drain()
        retry(job)
        engine.drain()
        assert state_of(job) == "Completed"
    assert of_plan(job)["b"] == ("Completed", 3)
    assert len(set(keys(engine, "shop.b"))) == 3
    check_books(job)


def test_two_parts_undone_one_after_the_other_are_done_again_together(engine: Engine) -> None:
    job = _done(engine, TreeShown)
    compensate(job, down_to="c")
    engine.drain()
    assert undos(engine) == ["e", "c"]
    assert shown(job, down_to="b") == ["b"]
    compensate(job, down_to="b")
    engine.drain()
    assert state_of(job) == "Failed"
    retry(job)
    engine.drain()
    assert state_of(job) == "Completed"
    again = of_plan(job)
    assert [name for name, (_, generation) in again.items() if generation == 2] == ["b", "c", "e"]
    check_books(job)


def test_the_rest_of_a_job_undone_in_part_can_be_undone_too(engine: Engine) -> None:
    job = _done(engine)
    compensate(job, down_to="c")
    engine.drain()
    assert shown(job) == ["b", "a"]
    compensate(job)
    engine.drain()
    assert undos(engine) == ["c", "b", "a"]
    assert state_of(job) == "Compensated"
    check_books(job)


def test_an_undo_that_failed_in_a_part_comes_first_when_the_rest_is_undone(engine: Engine) -> None:
    engine.says("shop.undo_c", Permanent("closed"), Transient("busy"), {})
    job = _done(engine)
    compensate(job, down_to="c")
    engine.drain()
    assert (state_of(job), job_verbs(Job.objects.get(pk=job.pk))) == ("Failed", ["retries", "compensation"])
    assert shown(job) == ["c", "b", "a"]
    compensate(job)
    engine.drain()
    assert undos(engine) == ["c", "c"]
    assert at(job, "b.undo").waiting_for == 1
    engine.pass_time(300)
    assert undos(engine) == ["c", "c", "c", "b", "a"]
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_failed_undo_of_a_part_is_tried_again_before_the_job_goes_forward(engine: Engine) -> None:
    engine.says("shop.undo_c", Permanent("closed"), {})
    job = _done(engine)
    compensate(job, down_to="c")
    engine.drain()
    assert retry(job).state == "Compensating"
    engine.drain()
    assert (state_of(job), Job.objects.get(pk=job.pk).partial) == ("Failed", True)
    assert retry(job).state == "Running"
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_what_could_not_be_undone_is_not_done_twice_and_what_follows_waits_through_it(engine: Engine) -> None:
    """b sends a letter: it cannot be taken back, so it is not sent again; c still waits for a."""

    class LetterInPart(Workflow):
        compensate_within = timedelta(days=1)

        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a])
        c = step("shop.c", compensation="shop.undo_c", after=[b])

    job = _done(engine, LetterInPart)
    assert [entry["step"] for entry in undo.preview(job.pk, down_to="a").not_undone] == ["b"]
    compensate(job, down_to="a")
    engine.drain()
    retry(job)
    assert at(job, "c").waiting_for == 1
    engine.drain()
    assert engine.asked().count("shop.b") == 1
    assert engine.asked()[-2:] == ["shop.a", "shop.c"]
    assert of_plan(job) == {"a": ("Completed", 2), "b": ("Completed", 1), "c": ("Completed", 2)}
    assert state_of(job) == "Completed"
    check_books(job)


def test_what_leaves_nothing_to_undo_is_done_again_with_the_new_results(engine: Engine) -> None:
    class ReadingInPart(Workflow):
        compensate_within = timedelta(days=1)

        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", compensation=False, input={"a": a})
        c = step("shop.c", compensation="shop.undo_c", input={"b": b})

    engine.says("shop.a", "A1", "A2")
    job = _done(engine, ReadingInPart)
    compensate(job, down_to="a")
    engine.drain()
    retry(job)
    engine.drain()
    assert [call.input for call in engine.calls_of("shop.b")] == [{"a": "A1"}, {"a": "A2"}]
    assert state_of(job) == "Completed"
    check_books(job)


def test_steps_skipped_by_their_condition_or_as_needless_alternatives_are_decided_on_anew(engine: Engine) -> None:
    class EitherInPart(Workflow):
        compensate_within = timedelta(days=1)

        a = step("shop.a", compensation="shop.undo_a")
        b = step(
            "shop.b",
            compensation="shop.undo_b",
            after=[a],
            retry=ONE_TRY,
            otherwise=step("shop.d", compensation="shop.undo_d"),
        )
        c = step("shop.c", compensation="shop.undo_c", when=a["wanted"], input={"b": b})

    engine.says("shop.a", {"wanted": False}, {"wanted": True})
    engine.says("shop.b", {}, Permanent("sold out"))
    job = _done(engine, EitherInPart)
    assert {name: state for name, (state, _) in of_plan(job).items()} == {
        "a": "Completed",
        "b": "Completed",
        "b.otherwise": "Skipped",
        "c": "Skipped",
    }
    compensate(job, down_to="a")
    engine.drain()
    retry(job)
    engine.drain()
    assert {name: state for name, (state, _) in of_plan(job).items()} == {
        "a": "Completed",
        "b": "Failed",
        "b.otherwise": "Completed",
        "c": "Completed",
    }
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_fan_out_is_undone_item_by_item_and_spread_again(engine: Engine) -> None:
    job = _done(engine, RolloutInPart, {"list": [1, 2]})
    compensate(job, down_to="b")
    engine.drain()
    assert undos(engine) == ["c", "b", "b"]
    assert state_of(job) == "Failed"
    retry(job)
    engine.pass_time(1)
    assert state_of(job) == "Completed"
    assert sorted(keys(engine, "shop.b")) == sorted(
        [f"{job.pk}:b:0", f"{job.pk}:b:1", f"{job.pk}:b:g2:0", f"{job.pk}:b:g2:1"]
    )
    assert Step.objects.filter(job=job, name="b", parent__isnull=False, superseded=True).count() == 2
    compensate(job)
    engine.drain()
    assert undos(engine) == ["c", "b", "b", "c", "b", "b", "a"]
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_fan_out_half_way_in_a_paused_job_is_undone_and_spread_again(engine: Engine) -> None:
    class SlowInPart(Workflow):
        a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"item": item}, at_once=1)

    job = SlowInPart.start({"list": [1, 2, 3]})
    claimed = engine.claim(at(job, "a:0"))
    verbs.pause(job.pk, actor="operator:x", reason="look")
    with pytest.raises(WrongState, match="a runs"):
        compensate(job, down_to="a")
    engine.settle(claimed)
    engine.rings.clear()
    compensate(job, down_to="a")
    engine.drain()
    assert undos(engine) == ["a"]
    assert {row.address: row.state for row in Step.objects.filter(job=job, role="forward")} == {
        "a": "Failed",
        "a:0": "Completed",
        "a:1": "Skipped",
        "a:2": "Skipped",
    }
    retry(job)
    engine.pass_time(1)
    assert state_of(job) == "Completed"
    assert len(keys(engine, "shop.a")) == 3
    check_books(job)


def test_a_child_is_undone_and_started_again_as_another_job(engine: Engine) -> None:
    job = _done(engine, OuterShown)
    compensate(job, down_to="inner")
    engine.drain()
    assert undos(engine) == ["b", "f"]
    assert state_of(job) == "Failed"
    retry(job)
    engine.drain()
    assert state_of(job) == "Completed"
    children = Job.objects.filter(workflow=InnerShown.name).order_by("created_at")
    assert [inner.state for inner in children] == ["Compensated", "Completed"]
    assert len({inner.key for inner in children}) == 2
    check_books(job)


def test_a_step_in_doubt_that_cannot_be_undone_wants_a_verdict_before_it_is_done_again(engine: Engine) -> None:
    """A step in doubt never gets a new key."""
    job = _undone_but_for_a_doubt(engine)
    ended = Job.objects.get(pk=job.pk)
    assert (ended.state, job_verbs(ended)) == ("Failed", [])
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    with pytest.raises(WrongState, match="record a verdict first"):
        retry(job)
    verbs.verdict(job.pk, "b", done=False, actor="operator:x", reason="they have no record of it")
    assert job_verbs(Job.objects.get(pk=job.pk)) == ["retries"]
    retry(job)
    engine.drain()
    assert keys(engine, "shop.b") == [f"{job.pk}:b", f"{job.pk}:b:g2"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_verdict_that_it_was_done_keeps_it_when_the_job_goes_forward_again(engine: Engine) -> None:
    job = _undone_but_for_a_doubt(engine)
    verbs.verdict(job.pk, "b", done=True, result={"reference": "B"}, actor="operator:x", reason="it is in their books")
    retry(job)
    engine.drain()
    assert engine.asked().count("shop.b") == 1
    assert (at(job, "b").result, at(job, "b").settled_by) == ({"reference": "B"}, "person")
    assert state_of(job) == "Completed"
    check_books(job)


def test_the_second_asking_after_a_doubt_is_made_although_the_job_went_forward_meanwhile(engine: Engine) -> None:
    """A call of the first generation may land as long as its quiet time is not over."""

    class DoubtfulInPart(Workflow):
        on_failure = "hold"

        a = step("shop.a", compensation="shop.undo_a", retry=ONE_TRY)

    engine.says("shop.a", InDoubt("lost"), {})
    job = DoubtfulInPart.start()
    engine.drain()
    compensate(job, down_to="a")
    engine.drain()
    retry(job)
    engine.drain()
    assert state_of(job) == "Completed"
    assert undos(engine) == ["a"]
    engine.ahead(120)
    assert [row.name for row in Step.objects.ready()] == ["a.recheck"]
    engine.pass_time(1)
    assert undos(engine) == ["a", "a"]
    assert {call.undoes.idempotency_key for call in engine.calls_of("shop.undo_a")} == {f"{job.pk}:a"}
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_second_asking_of_an_earlier_generation_that_fails_can_be_tried_again(engine: Engine) -> None:
    class DoubtfulInPart(Workflow):
        on_failure = "hold"

        a = step("shop.a", compensation="shop.undo_a", retry=ONE_TRY)

    engine.says("shop.a", InDoubt("lost"), {})
    engine.says("shop.undo_a", {}, Permanent("closed"), {})
    job = DoubtfulInPart.start()
    engine.drain()
    compensate(job, down_to="a")
    engine.drain()
    retry(job)
    engine.drain()
    engine.pass_time(120)
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    assert "retries" in step_verbs(Job.objects.get(pk=job.pk), at(job, "a.recheck"))
    verbs.retry_step(job.pk, "a.recheck", actor="operator:x", reason="open")
    engine.drain()
    assert not Job.objects.needs_person().exists()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_retry_and_another_undo_at_once_one_wins_and_the_other_changes_nothing(engine: Engine) -> None:
    job = _done(engine)
    compensate(job, down_to="b")
    engine.drain()
    digest = undo.preview(job.pk).digest
    with locked(job):
        undoing = Beside(lambda: compensate(job, digest)).until_blocked()
        retry(job)
    with pytest.raises(DigestMismatch):
        undoing.result()
    engine.drain()
    assert state_of(job) == "Completed"
    assert Event.objects.filter(job=job, kind="job.compensating").count() == 1
    check_books(job)


def test_the_old_rows_can_no_longer_be_acted_on(engine: Engine) -> None:
    engine.says("shop.c", Permanent("no"))
    job = HeldShown.start()
    engine.drain()
    old = at(job, "c")
    compensate(job, down_to="b")
    engine.drain()
    retry(job)
    old.refresh_from_db()
    assert old.superseded
    assert step_verbs(Job.objects.get(pk=job.pk), old) == []
    assert at(job, "c").pk != old.pk


def test_the_time_of_the_job_begins_anew_when_it_goes_forward_again(engine: Engine) -> None:
    class LimitedInPart(Workflow):
        compensate_within = timedelta(days=1)
        deadline = timedelta(minutes=5)

        a = step("shop.a", compensation="shop.undo_a")

    job = _done(engine, LimitedInPart)
    engine.ahead(1000)
    compensate(job, down_to="a")
    engine.drain()
    engine.rings.clear()
    retry(job)
    engine.sweep()
    ahead = Job.objects.get(pk=job.pk)
    assert ahead.state == "Running"
    assert ahead.deadline is not None
    engine.drain()
    assert state_of(job) == "Completed"


def test_a_retry_of_a_step_starts_its_time_as_a_whole_anew(engine: Engine) -> None:
    class WholeInPart(Workflow):
        on_failure = "hold"

        a = step("shop.a", total_timeout=timedelta(seconds=60), retry=Retry(attempts=2, first=timedelta(seconds=1)))

    engine.says("shop.a", Permanent("no"), Transient("busy"), {})
    job = WholeInPart.start()
    engine.drain()
    engine.ahead(3600)
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="mended")
    engine.drain()
    engine.pass_time(2)
    assert state_of(job) == "Completed"
    check_books(job)
