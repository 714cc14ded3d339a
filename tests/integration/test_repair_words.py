"""What people know: verdicts on what is in doubt, results by hand, late words taken up, steps skipped, new keys."""

from datetime import timedelta
from typing import Any

import pytest

from agents import InDoubt, Permanent, Transient
from supervisor import sweep as supervision
from tests.integration.engine import Engine, check_books, history, state_of
from tests.integration.test_undo_preview import ONE_TRY, compensate, undos
from workflows import Retry, Workflow, given, item, reports, signal, step, verbs
from workflows.allowed import job_verbs, step_verbs
from workflows.exceptions import InvalidInput, NotFound, StaleVersion, WrongState
from workflows.models import Attempt, Event, Job, Step
from workflows.transitions import Failure

LOST = InDoubt("the connection was lost")


class HeldTold(Workflow):
    """What fails for good waits for a person, so that the job stays Running."""

    on_failure = "hold"

    a = step("shop.a", compensation="shop.undo_a", retry=ONE_TRY)
    b = step("shop.b", compensation="shop.undo_b", input={"a": a}, retry=ONE_TRY)


class PatientTold(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", after=[a])


class UndoableTold(Workflow):
    """b fails the job; what becomes of its undo is the story."""

    a = step("shop.a", compensation="shop.undo_a", retry=ONE_TRY)
    b = step("shop.b", after=[a], retry=ONE_TRY)


class AtTheStallTold(Workflow):
    """The stall promises nothing."""

    a = step("stall.a", compensation="stall.undo_a", retry=Retry(attempts=2))


class AtTheKioskTold(Workflow):
    a = step("kiosk.a", compensation="kiosk.undo_a", retry=ONE_TRY, timeout=timedelta(seconds=20))


class OneWayTold(Workflow):
    a = step("shop.a", retry=ONE_TRY)
    b = step("shop.b", input={"a": a}, retry=ONE_TRY)
    c = step("shop.c", after=[b])


class SpreadTold(Workflow):
    on_failure = "hold"

    a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"i": item}, retry=ONE_TRY)
    b = step("shop.b", input={"all": a})


class TolerantTold(Workflow):
    a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"i": item}, tolerate=2, retry=ONE_TRY)
    word = signal(after=[a])


def at(job: Job, address: str) -> Step:
    return verbs.step_at(Job.objects.get(pk=job.pk), address)


def offered(job: Job, address: str) -> list[str]:
    return step_verbs(Job.objects.get(pk=job.pk), at(job, address))


def verdict(job: Job, name: str, done: bool, **options: Any) -> Step:
    options = {"actor": "operator:ada", "reason": "I called them"} | options
    return verbs.verdict(job.pk, name, done=done, **options)


def give(job: Job, name: str, **options: Any) -> Step:
    options = {"actor": "operator:ada", "reason": "done by hand"} | options
    return verbs.give_result(job.pk, name, **options)


def skip(job: Job, name: str, **options: Any) -> Step:
    options = {"actor": "operator:ada", "reason": "not needed"} | options
    return verbs.skip(job.pk, name, **options)


def _run(workflow: type[Workflow], engine: Engine, input: Any = None) -> Job:
    job = workflow.start(input)
    engine.pass_time(1)
    return job


# --- verdicts: the job still runs --------------------------------------------------------------------------------------


def test_a_verdict_of_done_completes_a_held_step_and_the_job_goes_on(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    job = _run(HeldTold, engine)
    assert at(job, "a").remedy == "escalate"
    assert offered(job, "a") == ["retries", "result", "verdict"]
    settled = verdict(job, "a", True, result={"reference": "A7"})
    assert (settled.state, settled.settled_by, settled.result) == ("Completed", "person", {"reference": "A7"})
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.b"]
    assert engine.calls_of("shop.b")[0].input == {"a": {"reference": "A7"}}
    assert state_of(job) == "Completed"
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_a_verdict_of_not_done_has_a_held_step_tried_again_under_the_same_key(engine: Engine) -> None:
    engine.says("shop.a", LOST, {})
    job = _run(HeldTold, engine)
    verdict(job, "a", False)
    engine.drain()
    assert {call.idempotency_key for call in engine.calls_of("shop.a")} == {f"{job.pk}:a"}
    assert at(job, "a").attempt == 2
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_verdict_says_for_ever_who_found_it_out_and_how(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    job = _run(HeldTold, engine)
    seen = at(job, "a").version
    verdict(job, "a", True, seen=seen)
    told = Event.objects.filter(job=job, kind__in=["doubt.resolved", "step.settled"]).order_by("seq")
    assert [(event.kind, event.actor, event.reason) for event in told] == [
        ("doubt.resolved", "operator:ada", "I called them"),
        ("step.settled", "operator:ada", "I called them"),
    ]
    assert Attempt.objects.get(step=at(job, "a")).resolved_by == "person"


def test_a_verdict_needs_its_evidence(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    job = _run(HeldTold, engine)
    before = history(job)
    with pytest.raises(InvalidInput, match="a verdict needs a reason"):
        verdict(job, "a", True, reason=" ")
    assert history(job) == before


def test_a_verdict_on_an_old_view_changes_nothing(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    job = _run(HeldTold, engine)
    before = history(job)
    with pytest.raises(StaleVersion):
        verdict(job, "a", True, seen=at(job, "a").version - 1)
    assert history(job) == before


def test_where_nothing_is_in_doubt_there_is_nothing_to_decide(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"))
    job = _run(HeldTold, engine)
    assert "verdict" not in offered(job, "a")
    with pytest.raises(WrongState, match="not in doubt"):
        verdict(job, "a", True)


def test_a_verdict_during_the_back_off_completes_the_step_or_lets_it_wait(engine: Engine) -> None:
    engine.says("shop.a", LOST, {})
    done, not_done = PatientTold.start(), PatientTold.start()
    engine.says("shop.a", LOST)
    engine.drain()
    assert at(done, "a").state == at(not_done, "a").state == "NotStarted"
    engine.says("shop.a", {})
    assert verdict(done, "a", True).state == "Completed"
    assert verdict(not_done, "a", False).state == "NotStarted"
    engine.drain()
    assert state_of(done) == "Completed"
    assert Step.objects.in_doubt().count() == 0
    engine.pass_time(70)
    assert state_of(not_done) == "Completed"
    check_books(done)
    check_books(not_done)


def test_a_verdict_while_the_job_is_stopping_decides_what_is_undone(engine: Engine) -> None:
    class SidesTold(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", compensation="shop.undo_b")

    for done in (True, False):
        engine.says("shop.a", LOST)
        job = SidesTold.start()
        b = engine.claim(at(job, "b"))
        engine.drain()
        verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
        assert (state_of(job), at(job, "a").state) == ("Running", "NotStarted")
        verdict(job, "a", done, result="A")
        assert at(job, "a").state == ("Completed" if done else "NotStarted")
        engine.settle(b)
        engine.drain()
        assert state_of(job) == "Compensated"
        assert (at(job, "a").state, undos(engine).count("a")) == (("Completed", 1) if done else ("Skipped", 1))
        check_books(job)


# --- verdicts: the job is undone, or has ended -------------------------------------------------------------------------


def _failed_with_doubt(engine: Engine) -> Job:
    """a is undone, b declares no undo and is in doubt: nothing can be tried again, and only a person can find out."""
    engine.says("shop.b", LOST)
    job = _run(UndoableTold, engine)
    assert (state_of(job), undos(engine)) == ("Failed", ["a"])
    return job


def test_a_job_undone_but_for_a_doubt_offers_the_verdict_and_no_retry(engine: Engine) -> None:
    job = _failed_with_doubt(engine)
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    assert job_verbs(Job.objects.get(pk=job.pk)) == []
    assert offered(job, "b") == ["verdict"]
    with pytest.raises(WrongState, match="what became of b"):
        verbs.retry_job(job.pk, actor="operator:x", reason="try")
    with pytest.raises(WrongState):
        verbs.retry_step(job.pk, "b", actor="operator:x", reason="try")
    assert state_of(job) == "Failed"


@pytest.mark.parametrize("done", [True, False])
def test_the_verdict_on_the_last_doubt_ends_the_undo(engine: Engine, done: bool) -> None:
    job = _failed_with_doubt(engine)
    verdict(job, "b", done)
    assert state_of(job) == "Compensated"
    assert at(job, "b").state == ("Completed" if done else "Failed")
    assert not Job.objects.needs_person().exists()
    assert history(job)[-2:] == ["job.reopened", "job.compensated"]
    engine.drain()
    assert undos(engine) == ["a"]
    check_books(job)


def test_a_verdict_of_not_done_makes_a_failed_undo_needless(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    engine.says("shop.undo_a", Permanent("closed"))
    job = _run(UndoableTold, engine)
    engine.pass_time(60)
    assert (state_of(job), at(job, "a.undo").remedy) == ("Failed", "escalate")
    verdict(job, "a", False)
    assert (at(job, "a.undo").state, at(job, "a.undo").settled_by) == ("Skipped", "person")
    assert "nothing to undo" in at(job, "a.undo").skip_reason
    assert not Step.objects.escalated().filter(name="a.undo").exists()
    check_books(job)


def test_a_verdict_of_done_behind_a_failed_undo_leaves_the_undo_to_be_tried_again(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    engine.says("shop.undo_a", Permanent("closed"), {})
    job = UndoableTold.start()
    engine.drain()
    assert state_of(job) == "Failed"
    verdict(job, "a", True, result={"reference": "A7"})
    assert state_of(job) == "Failed"
    verbs.retry_job(job.pk, actor="operator:x", reason="open")
    engine.drain()
    assert state_of(job) == "Compensated"
    assert engine.calls_of("shop.undo_a")[-1].undoes.result == {"reference": "A7"}
    check_books(job)


def test_a_verdict_while_the_undo_waits_for_its_quiet_time_does_not_cut_it_short(engine: Engine) -> None:
    """Protocol 18: not done now is not: will not land."""
    engine.says("kiosk.a", LOST)
    job = AtTheKioskTold.start()
    engine.drain()
    assert (state_of(job), at(job, "a.undo").state) == ("Compensating", "Completed")
    verdict(job, "a", False)
    assert state_of(job) == "Compensating"
    engine.pass_time(60)
    assert engine.asked().count("kiosk.undo_a") == 2
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_doubt_behind_a_success_is_resolved_by_a_verdict_and_nothing_else_changes(engine: Engine) -> None:
    """Where keys are not honoured two bookings may be live; only a person can tell."""
    engine.says("stall.a", LOST, {"reference": "R"})
    job = _run(AtTheStallTold, engine)
    engine.pass_time(70)
    assert (state_of(job), offered(job, "a")) == ("Completed", ["verdict"])
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    verdict(job, "a", False)
    assert (at(job, "a").state, at(job, "a").result, at(job, "a").settled_by) == ("Completed", {"reference": "R"}, "")
    assert not Job.objects.needs_person().exists()
    assert history(job)[-2:] == ["doubt.resolved a", "step.verdict a"]
    check_books(job)


def test_a_job_ended_without_undo_takes_a_verdict_and_then_goes_on(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    job = PatientTold.start()
    engine.drain()
    verbs.cancel(job.pk, undo=False, actor="operator:x", reason="we call them")
    assert state_of(job) == "Failed"
    verdict(job, "a", True, result={"reference": "A7"})
    assert (state_of(job), at(job, "a").state) == ("Failed", "Completed")
    assert not Job.objects.needs_person().exists()
    verbs.retry_job(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.b"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_an_undo_whose_answers_were_lost_takes_a_verdict(engine: Engine) -> None:
    class LostUndoTold(Workflow):
        a = step("shop.a", compensation="stall.undo_a", undo_retry=Retry(attempts=1))
        b = step("shop.b", after=[a], retry=ONE_TRY)

    engine.says("shop.b", Permanent("no"))
    engine.says("stall.undo_a", LOST)
    job = _run(LostUndoTold, engine)
    assert (state_of(job), offered(job, "a.undo")) == ("Failed", ["retries", "result", "verdict"])
    verdict(job, "a.undo", True, reason="they show it as cancelled")
    assert (state_of(job), at(job, "a.undo").settled_by) == ("Compensated", "person")
    assert not Job.objects.needs_person().exists()
    check_books(job)


# --- results by hand ---------------------------------------------------------------------------------------------------


def test_a_result_by_hand_completes_a_failed_step_and_is_what_others_read(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"))
    job = _run(HeldTold, engine)
    given_by_hand = give(job, "a", result={"reference": "H"})
    assert (given_by_hand.state, given_by_hand.settled_by) == ("Completed", "person")
    engine.drain()
    assert engine.calls_of("shop.b")[0].input == {"a": {"reference": "H"}}
    assert state_of(job) == "Completed"
    event = Event.objects.get(job=job, kind="step.settled")
    assert (event.actor, event.reason, event.step) == ("operator:ada", "done by hand", "a")
    check_books(job)


def test_a_result_by_hand_fences_out_the_attempt_that_runs(engine: Engine) -> None:
    job = HeldTold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    give(job, "a", result="by hand")
    assert engine.settle(claimed, '"by the worker"') is None
    engine.drain()
    assert (at(job, "a").result, state_of(job)) == ("by hand", "Completed")
    attempt = Attempt.objects.get(step=at(job, "a"), number=1)
    assert (attempt.in_doubt, attempt.resolved_by, attempt.late_result) == (True, "person", "by the worker")
    check_books(job)


def test_a_call_that_was_under_way_when_a_person_gave_the_result_is_undone_twice(engine: Engine) -> None:
    """It may land after the first undo: the quiet time is kept."""

    class LateTold(Workflow):
        compensate_within = timedelta(days=1)

        a = step("kiosk.a", compensation="kiosk.undo_a", timeout=timedelta(seconds=20))

    job = LateTold.start()
    engine.rings.clear()
    engine.claim(at(job, "a"))
    give(job, "a", result={})
    compensate(job)
    engine.drain()
    assert state_of(job) == "Compensating"
    engine.pass_time(60)
    assert engine.asked() == ["kiosk.undo_a", "kiosk.undo_a"]
    assert state_of(job) == "Compensated"
    check_books(job)


def test_the_late_word_of_a_fenced_out_attempt_can_be_taken_up(engine: Engine) -> None:
    """B10"""

    class SlowTold(Workflow):
        on_failure = "hold"

        a = step("shop.a", compensation="shop.undo_a", retry=ONE_TRY)
        b = step("shop.b", input={"a": a})

    job = SlowTold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    engine.ahead(11)
    supervision.expire(claimed.step_id)
    engine.drain()
    assert engine.settle(claimed, '{"reference": "LATE"}') is None
    assert at(job, "a").state == "Failed"
    with pytest.raises(NotFound, match="Attempt 2"):
        give(job, "a", attempt=2)
    taken = give(job, "a", attempt=1, reason="it is what they booked")
    assert (taken.state, taken.result, taken.settled_by) == ("Completed", {"reference": "LATE"}, "late")
    assert Attempt.objects.get(step=taken).resolved_by == "person"
    engine.drain()
    assert engine.calls_of("shop.b")[0].input == {"a": {"reference": "LATE"}}
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_late_failure_is_no_result_to_take_up(engine: Engine) -> None:
    job = HeldTold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    engine.ahead(11)
    supervision.expire(claimed.step_id)
    engine.drain()
    reports.fail(claimed, Failure(kind="permanent", code="no", message="no"), sent=None)
    with pytest.raises(NotFound):
        give(job, "a", attempt=1)


def test_a_failed_job_takes_a_result_and_then_goes_on_behind_it(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    job = _run(OneWayTold, engine)
    assert (state_of(job), offered(job, "b")) == ("Failed", ["retries", "result", "skip"])
    give(job, "b", result="by hand")
    assert state_of(job) == "Failed"
    verbs.retry_job(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.b", "shop.c"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_an_undo_done_by_hand_ends_the_undo_of_the_job(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_a", Permanent("closed"))
    job = _run(UndoableTold, engine)
    assert state_of(job) == "Failed"
    undone = give(job, "a.undo", result={"cancelled": True}, reason="cancelled by telephone")
    assert (undone.state, undone.settled_by) == ("Completed", "person")
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_an_undo_by_hand_of_a_doubtful_step_resolves_its_doubt_where_keys_are_closed(engine: Engine) -> None:
    engine.says("shop.a", LOST)
    engine.says("shop.undo_a", Permanent("closed"))
    job = UndoableTold.start()
    engine.drain()
    assert state_of(job) == "Failed"
    give(job, "a.undo", result={}, reason="cancelled by telephone")
    assert state_of(job) == "Compensated"
    assert Attempt.objects.get(step=at(job, "a")).resolved_by == "undo"
    check_books(job)


def test_an_undo_is_completed_by_hand_while_others_still_run(engine: Engine) -> None:
    class PairTold(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", compensation="shop.undo_b")
        c = step("shop.c", after=[a, b], retry=ONE_TRY)

    engine.says("shop.c", Permanent("no"))
    engine.says("shop.undo_a", Permanent("closed"))
    engine.says("shop.undo_b", Transient("busy"), {})
    job = _run(PairTold, engine)
    assert (state_of(job), at(job, "a.undo").remedy) == ("Compensating", "escalate")
    give(job, "a.undo")
    assert state_of(job) == "Compensating"
    engine.pass_time(300)
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_result_that_cannot_be_stored_is_refused(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"))
    job = _run(HeldTold, engine)
    before = history(job)
    with pytest.raises(InvalidInput, match="/result/note contains the character NUL"):
        give(job, "a", result={"note": "\0"})
    with pytest.raises(InvalidInput, match="is larger than"):
        give(job, "a", result="x" * 1_000_001)
    assert history(job) == before


def test_a_result_needs_a_reason(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"))
    job = _run(HeldTold, engine)
    with pytest.raises(InvalidInput, match="needs a reason"):
        give(job, "a", reason="")


def test_a_step_that_has_not_begun_or_is_done_takes_no_result(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"), {})
    job = _run(HeldTold, engine)
    with pytest.raises(WrongState):
        give(job, "b")
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="mended")
    engine.drain()
    with pytest.raises(WrongState):
        give(job, "a")


def test_an_approval_of_named_people_is_theirs_alone(engine: Engine) -> None:
    class ApprovedTold(Workflow):
        word = signal(approvers=["ada"])
        free = signal()

    job = _run(ApprovedTold, engine)
    assert offered(job, "word") == ["cancellation"]
    assert "result" in offered(job, "free")
    with pytest.raises(WrongState):
        give(job, "word", result={"approved": True})
    assert give(job, "free", result={"any": 1}).state == "Completed"
    check_books(job)


# --- items -------------------------------------------------------------------------------------------------------------


def test_a_result_for_one_item_completes_the_fan_out(engine: Engine) -> None:
    engine.says("shop.a", "first", Permanent("no"), "third")
    job = _run(SpreadTold, engine, {"list": [1, 2, 3]})
    assert (state_of(job), at(job, "a").remedy) == ("Running", "escalate")
    failed = Step.objects.get(job=job, parent__isnull=False, state="Failed")
    assert "result" in offered(job, failed.address)
    give(job, failed.address, result="second")
    assert at(job, failed.address).settled_by == "person"
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="all are there")
    engine.drain()
    assert engine.asked().count("shop.a") == 3
    assert sorted(engine.calls_of("shop.b")[0].input["all"]) == ["first", "second", "third"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_an_item_that_was_tolerated_is_counted_once_when_a_person_completes_it(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"), {}, {})
    job = _run(TolerantTold, engine, {"list": [1, 2, 3]})
    failed = Step.objects.get(job=job, parent__isnull=False, state="Failed")
    assert (at(job, "a").state, at(job, "a").items_failed) == ("Completed", 1)
    give(job, failed.address, result="by hand")
    assert (at(job, "a").items_failed, at(job, "a").items_open) == (0, 0)
    check_books(job)


def test_an_item_tolerated_while_others_run_does_not_end_the_fan_out_too_early(engine: Engine) -> None:
    job = TolerantTold.start({"list": [1, 2]})
    first, second = (engine.claim(at(job, f"a:{n}")) for n in (0, 1))
    engine.rings.clear()
    reports.fail(first, Failure(kind="permanent", code="no", message="no"), sent=None)
    engine.drain()
    assert (at(job, "a").items_open, at(job, "a").items_failed) == (1, 1)
    give(job, "a:0", result="by hand")
    assert (at(job, "a").state, at(job, "a").items_open, at(job, "a").items_failed) == ("Running", 1, 0)
    check_books(job)
    engine.settle(second)
    engine.drain()
    assert at(job, "a").state == "Completed"
    check_books(job)


def test_an_item_in_doubt_takes_a_verdict_and_its_fan_out_cannot_be_skipped_before(engine: Engine) -> None:
    engine.says("shop.a", LOST, {})
    job = _run(SpreadTold, engine, {"list": [1]})
    assert at(job, "a").remedy == "escalate"
    assert "skip" not in offered(job, "a")
    assert offered(job, "a:0") == ["retries", "result", "verdict"]
    verdict(job, "a:0", True, result="A")
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="it is done")
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.b"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_the_failed_undo_of_an_item_is_mended_by_its_retry_alone(engine: Engine) -> None:
    class UndoneTold(Workflow):
        a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"i": item})
        b = step("shop.b", after=[a], retry=ONE_TRY)

    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_a", {}, Permanent("closed"), {})
    job = _run(UndoneTold, engine, {"list": [1, 2, 3]})
    assert (state_of(job), undos(engine)) == ("Failed", ["a"] * 3)
    failed = Step.objects.get(job=job, name="a.undo", parent__isnull=False, state="Failed")
    assert list(Step.objects.escalated().values_list("name", flat=True)) == ["a.undo", "a.undo"]
    verbs.retry_step(job.pk, failed.address, actor="operator:x", reason="open")
    engine.drain()
    assert undos(engine) == ["a"] * 4
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_the_failed_undo_of_an_item_done_by_hand_mends_the_whole(engine: Engine) -> None:
    class UndoneTold(Workflow):
        a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"i": item})
        b = step("shop.b", after=[a], retry=ONE_TRY)

    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_a", Permanent("closed"))
    job = _run(UndoneTold, engine, {"list": [1, 2]})
    assert state_of(job) == "Failed"
    give(job, "a.undo:0")
    assert (state_of(job), at(job, "a.undo").state) == ("Failed", "Failed")
    give(job, "a.undo:1")
    assert (state_of(job), at(job, "a.undo").state) == ("Compensated", "Completed")
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_an_item_in_doubt_is_undone_and_asked_once_more_when_its_quiet_time_is_over(engine: Engine) -> None:
    class DoubtfulTold(Workflow):
        a = step(
            "kiosk.a",
            compensation="kiosk.undo_a",
            each=given["list"],
            input={"i": item},
            retry=ONE_TRY,
            timeout=timedelta(seconds=20),
        )

    engine.says("kiosk.a", LOST, {})
    job = _run(DoubtfulTold, engine, {"list": [1, 2]})
    assert state_of(job) == "Compensating"
    engine.pass_time(60)
    assert engine.asked().count("kiosk.undo_a") == 3
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_late_success_of_an_item_behind_its_undo_has_it_undone_once_more(engine: Engine) -> None:
    """SAS-016, SAS-076"""

    class DoubtfulTold(Workflow):
        a = step(
            "kiosk.a",
            compensation="kiosk.undo_a",
            each=given["list"],
            input={"i": item},
            retry=ONE_TRY,
            timeout=timedelta(seconds=20),
        )

    job = DoubtfulTold.start({"list": [1]})
    claimed = engine.claim(at(job, "a:0"))
    engine.rings.clear()
    engine.ahead(21)
    supervision.expire(claimed.step_id)
    engine.drain()
    engine.pass_time(60)
    assert (state_of(job), engine.asked().count("kiosk.undo_a")) == ("Compensated", 2)
    assert engine.settle(claimed, '{"reference": "LATE"}') is None
    engine.drain()
    assert engine.asked().count("kiosk.undo_a") == 3
    assert len({call.idempotency_key for call in engine.calls_of("kiosk.undo_a")}) == 3
    assert state_of(job) == "Compensated"
    check_books(job)


# --- skipping ----------------------------------------------------------------------------------------------------------


def test_a_failed_step_that_is_skipped_lets_the_job_go_on_without_it(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"))
    job = _run(HeldTold, engine)
    skipped = skip(job, "a")
    assert (skipped.state, skipped.settled_by, skipped.skip_reason) == ("Skipped", "person", "not needed")
    engine.drain()
    assert engine.calls_of("shop.b")[0].input == {"a": None}
    assert state_of(job) == "Completed"
    assert Event.objects.get(job=job, kind="step.skipped").actor == "operator:ada"
    check_books(job)


def test_a_step_that_has_not_begun_is_skipped_before_its_turn(engine: Engine) -> None:
    job = HeldTold.start()
    skip(job, "b")
    engine.drain()
    assert engine.asked() == ["shop.a"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_nothing_in_doubt_is_skipped(engine: Engine) -> None:
    """Protocol 16."""
    engine.says("shop.a", LOST)
    held, waiting = _run(HeldTold, engine), PatientTold.start()
    engine.drain()
    for job in (held, waiting):
        assert "skip" not in offered(job, "a")
        with pytest.raises(WrongState, match="cannot be skipped now"):
            skip(job, "a")
    verdict(held, "a", False)
    assert at(held, "a").state == "NotStarted"
    assert skip(held, "a").state == "Skipped"
    check_books(held)


def test_what_a_person_skipped_stays_skipped_when_the_job_goes_forward_again(engine: Engine) -> None:
    class LineTold(Workflow):
        compensate_within = timedelta(days=1)

        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a])
        c = step("shop.c", compensation="shop.undo_c", after=[b])

    job = LineTold.start()
    skip(job, "b")
    engine.drain()
    compensate(job, down_to="a")
    engine.drain()
    verbs.retry_job(job.pk, actor="operator:x", reason="again")
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.a", "shop.c", "shop.undo_c", "shop.undo_a", "shop.a", "shop.c"]
    check_books(job)


def test_a_failed_fan_out_that_is_skipped_starts_no_further_item_and_what_it_did_is_still_undone(
    engine: Engine,
) -> None:
    class WaveTold(Workflow):
        on_failure = "hold"

        a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"i": item}, at_once=1, retry=ONE_TRY)
        b = step("shop.b", after=[a], retry=ONE_TRY)

    engine.says("shop.a", {}, Permanent("no"))
    engine.says("shop.b", Permanent("no"))
    job = _run(WaveTold, engine, {"list": [1, 2, 3, 4]})
    assert at(job, "a").remedy == "escalate"
    skip(job, "a")
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.a", "shop.b"]
    states = Step.objects.filter(job=job, name="a", parent__isnull=False).order_by("index")
    assert [row.state for row in states] == ["Completed", "Failed", "Skipped", "Skipped"]
    compensate(job)
    engine.drain()
    assert undos(engine) == ["a"]
    assert state_of(job) == "Compensated"
    check_books(job)


# --- trying again ------------------------------------------------------------------------------------------------------


def test_a_definite_refusal_may_be_tried_again_under_a_new_key(engine: Engine) -> None:
    """Protocol 22: the other side would repeat its refusal under the old one for ever."""
    engine.says("shop.a", Permanent("no"), Permanent("no"), {})
    job = _run(HeldTold, engine)
    for number in (1, 2):
        retried = verbs.retry_step(job.pk, "a", actor="operator:x", reason="other card", new_key=True)
        assert retried.idempotency_key == f"{job.pk}:a~{number}"
        engine.drain()
    assert [call.idempotency_key for call in engine.calls_of("shop.a")] == [
        f"{job.pk}:a",
        f"{job.pk}:a~1",
        f"{job.pk}:a~2",
    ]
    assert state_of(job) == "Completed"
    assert history(job).count("step.key_renewed a") == 2
    check_books(job)


def test_the_same_key_is_kept_unless_another_is_asked_for(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"), {})
    job = _run(HeldTold, engine)
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="again")
    engine.drain()
    assert {call.idempotency_key for call in engine.calls_of("shop.a")} == {f"{job.pk}:a"}


@pytest.mark.parametrize("answers", [[LOST], [Transient("busy")], [LOST, Permanent("sold out")]], ids=str)
def test_a_step_in_doubt_or_only_refused_for_now_never_gets_a_new_key(engine: Engine, answers: list[Exception]) -> None:
    """A definite no does not erase an earlier doubt."""

    class TwiceTold(Workflow):
        on_failure = "hold"

        a = step("shop.a", retry=Retry(attempts=2))

    engine.says("shop.a", *answers)
    job = _run(TwiceTold, engine)
    engine.pass_time(70)
    assert at(job, "a").remedy == "escalate"
    with pytest.raises(WrongState, match="keeps its key"):
        verbs.retry_step(job.pk, "a", actor="operator:x", reason="again", new_key=True)
    assert at(job, "a").idempotency_key == f"{job.pk}:a"
    assert at(job, "a").state == "Failed"


def test_a_fan_out_has_no_key_to_renew_and_an_item_has(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"), {})
    job = _run(SpreadTold, engine, {"list": [1]})
    with pytest.raises(WrongState, match="keeps its key"):
        verbs.retry_step(job.pk, "a", actor="operator:x", reason="again", new_key=True)
    verbs.retry_step(job.pk, "a:0", actor="operator:x", reason="again", new_key=True)
    engine.drain()
    assert [call.idempotency_key for call in engine.calls_of("shop.a")] == [f"{job.pk}:a:0", f"{job.pk}:a:0~1"]
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_retry_by_a_person_brings_a_fresh_allowance_and_the_number_of_attempts_only_grows(engine: Engine) -> None:
    class TwiceTold(Workflow):
        on_failure = "hold"

        a = step("shop.a", retry=Retry(attempts=2, first=timedelta(seconds=1)))

    engine.says("shop.a", Transient("busy"))
    job = _run(TwiceTold, engine)
    engine.pass_time(70, times=2)
    assert (at(job, "a").attempt, at(job, "a").charged, at(job, "a").state) == (2, 2, "Failed")
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="again")
    assert (at(job, "a").attempt, at(job, "a").charged) == (2, 0)
    engine.drain()
    engine.pass_time(70)
    assert (at(job, "a").attempt, at(job, "a").charged, at(job, "a").state) == (4, 2, "Failed")
    check_books(job)


def test_a_failed_item_of_a_failed_job_takes_the_whole_job_forward(engine: Engine) -> None:
    class BareTold(Workflow):
        a = step("shop.a", each=given["list"], input={"i": item}, retry=ONE_TRY)
        b = step("shop.b", retry=ONE_TRY)

    engine.says("shop.a", {}, Permanent("no"), {})
    job = _run(BareTold, engine, {"list": [1, 2]})
    assert state_of(job) == "Failed"
    failed = Step.objects.get(job=job, parent__isnull=False, state="Failed")
    verbs.retry_step(job.pk, failed.address, actor="operator:x", reason="mended")
    engine.pass_time(1)
    assert state_of(job) == "Completed"
    assert engine.asked().count("shop.a") == 3
    check_books(job)


def test_a_compensated_job_is_never_tried_again(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    job = _run(UndoableTold, engine)
    assert state_of(job) == "Compensated"
    assert job_verbs(Job.objects.get(pk=job.pk)) == []
    with pytest.raises(WrongState, match="only a Failed one"):
        verbs.retry_job(job.pk, actor="operator:x", reason="again")
    assert all(offered(job, name) == [] for name in ("a", "b", "a.undo"))
