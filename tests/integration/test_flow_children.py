"""Children: jobs that a step of another job starts. No transaction locks two jobs; each errand may come twice."""

import uuid
from typing import Any

import pytest
from django.db import connection

from agents import Permanent
from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, locked, named, start, state_of, states
from workflows import (
    Retry,
    Workflow,
    broker,
    child,
    errands,
    given,
    signal,
    signals,
    step,
    timer,
    transitions,
    verbs,
)
from workflows.models import Job, Step


class KinInner(Workflow):
    c = step("shop.c", compensation="shop.undo_c", input={"who": given["who"]}, retry=Retry(attempts=1))
    d = step("shop.d", after=[c])


class KinOuter(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    kid = child(KinInner, input={"who": given["who"]}, after=[a])
    b = step("shop.b", input={"kid": kid})


class KinWaiting(Workflow):
    c = step("shop.c", compensation="shop.undo_c")
    s = signal(after=[c])


def kid_of(job: Job, name: str = "kid") -> Job:
    return Job.objects.filter(parent_step_id=named(job, name).pk).order_by("-id")[0]


def outer_with(policy: str) -> type[Workflow]:
    return type(Workflow)(
        f"Outer{uuid.uuid4().hex[:6]}",
        (Workflow,),
        {
            "__module__": __name__,
            "a": (a := step("shop.a", compensation="shop.undo_a")),
            "kid": child(KinWaiting, on_parent_end=policy, after=[a]),
        },
    )


# --- a life ----------------------------------------------------------------------------------------------------------


def test_a_child_runs_under_its_own_id_and_leaves_its_results_to_its_parent(engine: Engine) -> None:
    job = start(KinOuter, {"who": "ada"})
    engine.drain()
    kid = kid_of(job)
    assert (state_of(job), state_of(kid)) == ("Completed", "Completed")
    assert kid.input == {"who": "ada"}
    [last] = engine.calls_of("shop.b")
    assert last.input["kid"]["job"] == str(kid.pk)
    assert last.input["kid"]["state"] == "Completed"
    assert last.input["kid"]["results"]["c"]["from"] == "c"
    assert named(job, "kid").settled_by == "child"
    assert Job.objects.get(pk=kid.pk).told_parent_at is not None
    check_books(job)
    check_books(kid)


def test_a_child_that_fails_fails_the_step_and_undoes_the_parent(engine: Engine) -> None:
    engine.says("shop.d", Permanent("no"))
    job = start(KinOuter, {"who": "ada"})
    engine.drain()
    assert state_of(kid_of(job)) == "Compensated"
    failed = named(job, "kid")
    assert (failed.state, failed.error_kind, failed.error_code) == ("Failed", "permanent", "child_failed")
    assert "ended Compensated" in failed.error_message
    assert state_of(job) == "Compensated"
    assert engine.asked() == ["shop.a", "shop.c", "shop.d", "shop.undo_c", "shop.undo_a"]
    check_books(job)


def test_an_undo_crosses_into_the_child_in_its_order(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    job = start(KinOuter, {"who": "ada"})
    engine.drain()
    assert (state_of(job), state_of(kid_of(job))) == ("Compensated", "Compensated")
    assert engine.asked()[-2:] == ["shop.undo_c", "shop.undo_a"]
    assert kid_of(job).reason == "parent"
    check_books(job)
    check_books(kid_of(job))


def test_an_undo_that_fails_in_the_child_leaves_the_parent_failed_and_a_person_told(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_c", Permanent("no desk"))
    job = start(KinOuter, {"who": "ada"})
    engine.drain()
    kid = kid_of(job)
    assert (state_of(job), state_of(kid)) == ("Failed", "Failed")
    assert "shop.undo_a" in engine.asked()
    assert set(Job.objects.needs_person()) == {job, kid}
    check_books(job)
    engine.says("shop.undo_c", {})
    verbs.retry_job(kid.pk, actor="operator:x", reason="the desk is open")
    engine.drain()
    assert state_of(kid) == "Compensated"
    verbs.retry_job(job.pk, actor="operator:x", reason="the child is undone")
    engine.drain()
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_a_child_that_left_nothing_to_undo_does_not_stop_the_undo(engine: Engine) -> None:
    class KinQuiet(Workflow):
        c = step("shop.c", compensation=False)
        t = timer(0)

    class KinLoud(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        kid = child(KinQuiet, after=[a])
        b = step("shop.b", after=[kid])

    engine.says("shop.b", Permanent("no"))
    job = start(KinLoud)
    engine.drain()
    engine.pass_time(2, times=2)
    assert state_of(job) == "Compensated"
    assert state_of(kid_of(job)) == "Completed"
    check_books(job)


def test_a_child_past_its_point_of_no_return_is_not_undone_and_a_person_is_told(engine: Engine) -> None:
    class KinFinal(Workflow):
        c = step("shop.c", compensation="shop.undo_c", pivot=True)

    class KinLoud(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        kid = child(KinFinal, after=[a])
        b = step("shop.b", after=[kid])

    engine.says("shop.b", Permanent("no"))
    job = start(KinLoud)
    engine.drain()
    assert state_of(kid_of(job)) == "Completed"
    assert state_of(job) == "Failed"
    assert named(job, "kid.undo").error_code == "child_not_undone"
    assert "shop.undo_c" not in engine.asked()
    assert "shop.undo_a" in engine.asked()
    check_books(job)


# --- one stops -------------------------------------------------------------------------------------------------------


def cancelled_parent(engine: Engine, policy: str) -> tuple[Job, Job]:
    """A parent that is cancelled while its child waits, and that child."""
    job = start(outer_with(policy))
    engine.drain()
    kid = kid_of(job)
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    engine.drain()
    return job, kid


def test_a_cancelled_parent_cancels_its_child_and_both_are_undone(engine: Engine) -> None:
    job, kid = cancelled_parent(engine, "cancel")
    assert (state_of(job), state_of(kid)) == ("Compensated", "Compensated")
    assert engine.asked() == ["shop.a", "shop.c", "shop.undo_c", "shop.undo_a"]
    check_books(job)
    check_books(kid)


def test_a_parent_cancelled_without_undo_stops_its_child_without_undo(engine: Engine) -> None:
    job = start(outer_with("cancel"))
    engine.drain()
    verbs.cancel(job.pk, undo=False, actor="client:x", reason="no")
    engine.drain()
    assert (state_of(job), state_of(kid_of(job))) == ("Failed", "Failed")
    assert engine.asked() == ["shop.a", "shop.c"]


def test_a_parent_that_waits_for_its_child_ends_when_that_has_ended(engine: Engine) -> None:
    job, kid = cancelled_parent(engine, "wait")
    assert (state_of(job), state_of(kid)) == ("Running", "Running")
    signals.send(kid.pk, "s", None, actor="client:x")
    engine.drain()
    assert (state_of(job), state_of(kid)) == ("Compensated", "Compensated")
    assert "shop.undo_c" in engine.asked()
    check_books(job)


def test_an_abandoned_child_goes_on_alone(engine: Engine) -> None:
    job, kid = cancelled_parent(engine, "abandon")
    assert (state_of(job), state_of(kid)) == ("Compensated", "Running")
    signals.send(kid.pk, "s", None, actor="client:x")
    engine.drain()
    assert state_of(kid) == "Completed"
    assert not Job.objects.owe_parent().exists()
    check_books(job)
    check_books(kid)


def test_a_child_cancelled_by_itself_fails_its_parents_step(engine: Engine) -> None:
    job = start(outer_with("cancel"))
    engine.drain()
    verbs.cancel(kid_of(job).pk, undo=True, actor="operator:x", reason="not this one")
    engine.drain()
    assert named(job, "kid").error_code == "child_failed"
    assert state_of(job) == "Compensated"


def test_a_pause_reaches_the_child_and_its_resumption_too(engine: Engine) -> None:
    """SAS-067: nothing new starts in a sub-job either."""
    job = start(outer_with("cancel"))
    engine.rings.clear()
    engine.settle(engine.claim(named(job, "a")))
    kid = kid_of(job)
    engine.rings.clear()
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.drain()
    engine.pass_time(6, times=3)
    engine.sweep()
    assert states(kid)["c"] == "NotStarted"
    assert Job.objects.get(pk=kid.pk).paused_at is not None
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    assert states(kid) == {"c": "Completed", "s": "Running"}
    check_books(job)
    check_books(kid)


def test_a_cancel_of_a_paused_parent_lets_the_child_that_it_waits_for_go_on(engine: Engine) -> None:
    job = start(outer_with("wait"))
    engine.drain()
    kid = kid_of(job)
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.drain()
    assert Job.objects.get(pk=kid.pk).paused_at is not None
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    engine.drain()
    assert Job.objects.get(pk=kid.pk).paused_at is None
    assert (state_of(job), state_of(kid)) == ("Running", "Running")
    signals.send(kid.pk, "s", None, actor="client:x")
    engine.drain()
    assert (state_of(job), state_of(kid)) == ("Compensated", "Compensated")


def test_a_child_that_somebody_paused_stays_paused_when_its_parent_goes_on(engine: Engine) -> None:
    job = start(outer_with("cancel"))
    engine.rings.clear()
    engine.settle(engine.claim(named(job, "a")))
    kid = kid_of(job)
    verbs.pause(kid.pk, actor="operator:y", reason="not this one")
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.drain()
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    engine.pass_time(6)
    assert Job.objects.get(pk=kid.pk).paused_at is not None
    verbs.resume(kid.pk, actor="operator:y", reason="now")
    engine.drain()
    assert states(kid)["c"] == "Completed"


def test_a_pause_beside_the_end_of_a_child_that_failed_does_not_try_it_again(engine: Engine) -> None:
    engine.says("shop.c", Permanent("no"))
    job = start(outer_with("cancel"))
    while engine.rings:
        ring = engine.rings.popleft()
        if ring[0] != broker.TELL_PARENT:
            engine.answer(*ring)
    kid = kid_of(job)
    assert state_of(kid) in ("Compensated", "Failed")
    Job.objects.filter(pk=kid.pk).update(state="Failed")
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.drain()
    assert state_of(kid) == "Failed"
    assert named(job, "kid").error_code == "child_failed"


# --- words that are lost, doubled, late ------------------------------------------------------------------------------


def test_a_word_to_the_parent_that_was_lost_is_brought_by_the_sweep(engine: Engine) -> None:
    job = start(KinOuter, {"who": "ada"})
    while engine.rings:
        ring = engine.rings.popleft()
        if ring[0] != broker.TELL_PARENT:
            engine.answer(*ring)
    assert named(job, "kid").state == "Running"
    engine.sweep()
    engine.pass_time(6)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_parent_is_told_once_although_two_tell_it(engine: Engine) -> None:
    job = start(KinOuter, {"who": "ada"})
    kid = None
    while engine.rings:
        ring = engine.rings.popleft()
        if ring[0] == broker.TELL_PARENT:
            kid = uuid.UUID(ring[2][0])
        else:
            engine.answer(*ring)
    assert kid is not None
    told = [Beside(lambda: errands.tell_parent(kid)) for _ in range(2)]
    outcomes = [one.result() for one in told]
    assert True in outcomes
    assert errands.tell_parent(kid) is True
    assert history(job).count("step.completed kid") == 1
    check_books(job)


def test_a_parent_that_is_locked_is_told_later(engine: Engine) -> None:
    job = start(outer_with("cancel"))
    engine.drain()
    kid = kid_of(job)
    verbs.cancel(kid.pk, undo=False, actor="operator:x", reason="stop")
    engine.rings.clear()
    with locked(job):
        assert Beside(lambda: errands.tell_parent(kid.pk)).result() is None
    assert Job.objects.owe_parent().filter(pk=kid.pk).exists()
    assert errands.tell_parent(kid.pk) is True
    assert not Job.objects.owe_parent().exists()


def test_a_child_that_was_opened_again_while_its_end_was_told_tells_its_next_end_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KinHeld(Workflow):
        kid = child(KinInner, input={"who": "x"}, on_failure="hold")

    class KinBare(Workflow):
        c = step("shop.c")

    class KinParent(Workflow):
        kid = child(KinBare, on_failure="hold")

    engine.says("shop.c", Permanent("no"))
    job = start(KinParent)
    engine.drain()
    kid = kid_of(job)
    assert (state_of(kid), named(job, "kid").remedy) == ("Failed", "escalate")
    Job.objects.filter(pk=kid.pk).update(told_parent_at=None)
    answer = errands._answer

    def opened_meanwhile(step_id: int, job_id: uuid.UUID, one: Job | None) -> bool | None:
        verbs.retry_job(kid.pk, actor="operator:x", reason="mended")
        return answer(step_id, job_id, one)

    Step.objects.filter(job=job).update(state="Running", finished_at=None, remedy="", error_kind="")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(errands, "_answer", opened_meanwhile)
        errands.tell_parent(kid.pk)
    assert Job.objects.get(pk=kid.pk).told_parent_at is None
    assert KinHeld.plan


def test_a_step_tried_again_takes_up_the_child_that_it_has(engine: Engine) -> None:
    class KinBare(Workflow):
        c = step("shop.c")
        d = step("shop.d", after=[c])

    class KinParent(Workflow):
        kid = child(KinBare, on_failure="hold")
        b = step("shop.b", after=[kid])

    engine.says("shop.d", Permanent("no"))
    job = start(KinParent)
    engine.drain()
    assert named(job, "kid").remedy == "escalate"
    engine.says("shop.d", {})
    verbs.retry_step(job.pk, "kid", actor="operator:x", reason="mended")
    engine.drain()
    assert state_of(job) == "Completed"
    assert Job.objects.filter(workflow="KinBare").count() == 1
    assert engine.asked().count("shop.c") == 1
    check_books(job)


def test_a_failed_child_that_is_retried_after_its_parent_moved_on_completes_alone(engine: Engine) -> None:
    """Until the step that started it is tried again: that one takes up what the child left."""

    class KinAlone(Workflow):
        c = step("shop.c")
        d = step("shop.d", after=[c])

    class KinGoneOn(Workflow):
        kid = child(KinAlone, on_failure="hold")
        b = step("shop.b", input={"kid": kid})

    engine.says("shop.d", Permanent("no"))
    job = start(KinGoneOn)
    engine.drain()
    kid, before = kid_of(job), history(job)
    engine.says("shop.d", {})
    verbs.retry_job(kid.pk, actor="operator:x", reason="mended")
    engine.drain()
    assert (state_of(kid), state_of(job), named(job, "kid").state) == ("Completed", "Running", "Failed")
    assert history(job) == before
    verbs.retry_step(job.pk, "kid", actor="operator:x", reason="mended")
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input["kid"]["job"] == str(kid.pk)
    check_books(job)


@pytest.mark.parametrize("underway", [False, True])
def test_what_a_child_did_alone_is_undone_with_its_parent(engine: Engine, underway: bool) -> None:
    """Whether it has ended meanwhile, or is in the middle of it."""

    class KinAloneUndone(Workflow):
        c = step("shop.c", compensation="shop.undo_c", retry=Retry(attempts=1))
        d = step("shop.d", after=[c], compensation="shop.undo_d", on_failure="hold")

    class KinUndone(Workflow):
        kid = child(KinAloneUndone, on_failure="hold")
        b = step("shop.b", input={"kid": kid})

    engine.says("shop.d", Permanent("no"))
    job = start(KinUndone)
    engine.drain()
    kid = kid_of(job)
    verbs.cancel(kid.pk, actor="operator:x", reason="later", undo=False)
    engine.drain()
    assert (state_of(kid), named(job, "kid").state) == ("Failed", "Failed")
    engine.says("shop.d", {})
    verbs.retry_job(kid.pk, actor="operator:x", reason="mended")
    if not underway:
        engine.drain()
        assert state_of(kid) == "Completed"
    verbs.cancel(job.pk, actor="operator:x", reason="enough", undo=True)
    engine.drain()
    assert (state_of(job), state_of(kid)) == ("Compensated", "Compensated")
    assert engine.asked().count("shop.undo_c") == 1
    check_books(job)


def test_a_step_tried_again_whose_child_was_undone_starts_another_one(engine: Engine) -> None:
    class KinParent(Workflow):
        kid = child(KinInner, input={"who": "x"}, on_failure="hold")
        b = step("shop.b", after=[kid])

    engine.says("shop.d", Permanent("no"))
    job = start(KinParent)
    engine.drain()
    first = kid_of(job)
    assert state_of(first) == "Compensated"
    engine.says("shop.d", {})
    verbs.retry_step(job.pk, "kid", actor="operator:x", reason="mended")
    assert errands.tell_parent(first.pk) is True  # its end, told once more
    assert named(job, "kid").state == "Running"
    engine.drain()
    assert state_of(job) == "Completed"
    second = kid_of(job)
    assert second.pk != first.pk
    assert named(job, "kid").result["job"] == str(second.pk)
    check_books(job)


def test_an_errand_to_a_child_that_was_lost_is_done_by_whoever_looks_for_what_is_due(engine: Engine) -> None:
    job = start(outer_with("cancel"))
    engine.drain()
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    engine.rings.clear()
    engine.pass_time(1)
    engine.sweep()
    engine.pass_time(6, times=3)
    assert (state_of(job), state_of(kid_of(job))) == ("Compensated", "Compensated")
    check_books(job)


def test_a_child_and_its_parent_are_never_locked_by_one_transaction(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protocol 5: an effect on another job is a row that another transaction applies."""
    locks: dict[int, set[uuid.UUID]] = {}
    lock = transitions.lock

    def counted(job_id: uuid.UUID, **options: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()::text::bigint")
            locks.setdefault(cursor.fetchone()[0], set()).add(job_id)
        return lock(job_id, **options)

    monkeypatch.setattr(transitions, "lock", counted)
    engine.says("shop.b", Permanent("no"))
    job = start(KinOuter, {"who": "ada"})
    engine.drain()
    cancelled = start(outer_with("cancel"))
    engine.drain()
    verbs.cancel(cancelled.pk, undo=True, actor="client:x", reason="no")
    engine.drain()
    supervision.sweep(engine.memory)
    assert state_of(job) == state_of(cancelled) == "Compensated"
    assert max(map(len, locks.values())) == 1


def test_a_child_of_a_workflow_that_is_gone_fails_the_step_with_its_name(engine: Engine) -> None:
    class KinLost(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        kid = child("NoSuchWorkflow", after=[a])

    job = start(KinLost)
    engine.drain()
    assert "NoSuchWorkflow" in named(job, "kid").error_message
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_child_that_is_gone_fails_its_step(engine: Engine) -> None:
    class KinGone(Workflow):
        kid = child(KinInner, input={"who": "x"})

    job = start(KinGone)
    engine.rings.clear()
    Job.objects.filter(workflow="KinInner").delete()
    transitions.look_again_at(named(job, "kid"), job.created_at)
    engine.pass_time(1)
    assert named(job, "kid").error_code == "child_gone"
    assert state_of(job) == "Compensated"


def test_a_child_belongs_to_the_client_of_its_parent(engine: Engine) -> None:
    job = start(KinOuter, {"who": "ada"}, client_id=41, key="k")
    engine.drain()
    assert kid_of(job).client_id == 41
    assert states(job)["kid"] == "Completed"
