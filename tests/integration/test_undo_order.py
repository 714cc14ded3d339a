"""Undo: everything that was done, in the reverse order of dependence; one that cannot be done stops nobody else's."""

from agents import Permanent, Transient
from tests.integration.engine import Engine, check_books, history, named, state_of, states
from workflows import Retry, Workflow, step, verbs
from workflows.models import Job, Step

ONE_TRY = Retry(attempts=1)


class Tree(Workflow):
    """a, then b and c side by side, d after b without an undo, e after d and c, f after e fails."""

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])
    c = step("shop.c", compensation="shop.undo_c", after=[a])
    d = step("shop.d", after=[b])
    e = step("shop.e", compensation="shop.undo_e", after=[c, d])
    f = step("shop.f", after=[e])


def _undos(engine: Engine) -> list[str]:
    return [name.removeprefix("shop.undo_") for name in engine.asked() if ".undo_" in name]


def test_all_that_was_done_is_undone_in_reverse_order_also_through_steps_without_an_undo(engine: Engine) -> None:
    """SAS-074"""
    engine.says("shop.f", Permanent("no"))
    job = Tree.start()
    engine.drain()
    assert state_of(job) == "Compensated"
    order = _undos(engine)
    assert sorted(order) == ["a", "b", "c", "e"]
    assert order[0] == "e"
    assert order[-1] == "a"
    check_books(job)


def test_an_undo_waits_for_the_undo_of_every_step_that_depends_on_its_step(engine: Engine) -> None:
    """b's dependent d has no undo; behind it stands e, whose undo b waits for."""
    engine.says("shop.f", Permanent("no"))
    engine.says("shop.undo_e", Transient("busy"), {})
    job = Tree.start()
    engine.drain()
    assert _undos(engine) == ["e"]
    waiting = {name: named(job, name).waiting_for for name in ("a.undo", "b.undo", "c.undo")}
    assert waiting == {"a.undo": 2, "b.undo": 1, "c.undo": 1}
    engine.pass_time(300)
    assert state_of(job) == "Compensated"
    check_books(job)


def test_independent_branches_are_undone_side_by_side(engine: Engine) -> None:
    engine.says("shop.f", Permanent("no"))
    engine.says("shop.undo_b", Transient("busy"), {})
    job = Tree.start()
    engine.drain()
    assert sorted(_undos(engine)) == ["b", "c", "e"]
    assert states(job)["c.undo"] == "Completed"
    assert states(job)["a.undo"] == "NotStarted"
    engine.pass_time(300)
    assert state_of(job) == "Compensated"


def test_an_undo_that_fails_for_good_stops_no_other_and_the_job_waits_for_them_all(engine: Engine) -> None:
    """SAS-072"""
    engine.says("shop.f", Permanent("no"))
    engine.says("shop.undo_e", Permanent("desk closed"))
    engine.says("shop.undo_c", Transient("busy"), {})
    job = Tree.start()
    engine.drain()
    assert state_of(job) == "Compensating"
    assert named(job, "e.undo").remedy == "escalate"
    assert sorted(_undos(engine)) == ["b", "c", "e"]
    engine.pass_time(300)
    assert sorted(_undos(engine)) == ["a", "b", "c", "c", "e"]
    assert state_of(job) == "Failed"
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    assert list(Step.objects.escalated().values_list("name", flat=True)) == ["e.undo"]
    assert history(job)[-1] == "job.failed"
    check_books(job)


def test_an_undo_is_tried_as_often_as_its_own_policy_says(engine: Engine) -> None:
    """SAS-072: bounded, with back-off."""

    class ShortUndo(Workflow):
        a = step("shop.a", compensation="shop.undo_a", undo_retry=Retry(attempts=3))
        b = step("shop.b", after=[a], retry=ONE_TRY)

    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_a", Transient("busy"))
    job = ShortUndo.start()
    engine.drain()
    engine.pass_time(70, times=6)
    assert len(_undos(engine)) == 3
    assert state_of(job) == "Failed"
    engine.pass_time(70, times=3)
    assert len(_undos(engine)) == 3


def test_the_failed_undo_tried_again_by_a_person_leads_to_compensated(engine: Engine) -> None:
    """SAS-072"""
    engine.says("shop.f", Permanent("no"))
    engine.says("shop.undo_e", Permanent("desk closed"), {"cancelled": True})
    job = Tree.start()
    engine.drain()
    assert state_of(job) == "Failed"
    verbs.retry_job(job.pk, actor="operator:x", reason="the desk is open again")
    assert state_of(job) == "Compensating"
    engine.drain()
    assert state_of(job) == "Compensated"
    assert sorted(_undos(engine)) == ["a", "b", "c", "e", "e"]
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_one_failed_undo_of_two_tried_again_leaves_the_other_before_its_person(engine: Engine) -> None:
    engine.says("shop.f", Permanent("no"))
    engine.says("shop.undo_e", Permanent("desk closed"), {})
    engine.says("shop.undo_a", Permanent("desk closed"), {})
    job = Tree.start()
    engine.drain()
    verbs.retry_step(job.pk, "e.undo", actor="operator:x", reason="open")
    engine.drain()
    assert state_of(job) == "Failed"
    assert list(Step.objects.escalated().values_list("name", flat=True)) == ["a.undo"]
    verbs.retry_step(job.pk, "a.undo", actor="operator:x", reason="open")
    engine.drain()
    assert state_of(job) == "Compensated"
    check_books(job)


def test_where_nothing_was_done_the_job_is_compensated_at_once(engine: Engine) -> None:
    engine.says("shop.a", Permanent("no"))
    job = Tree.start()
    engine.drain()
    assert state_of(job) == "Compensated"
    assert Job.objects.get(pk=job.pk).reason == "step_failed"
    assert engine.asked() == ["shop.a"]
    assert set(states(job).values()) == {"Failed", "Skipped"}


def test_where_no_undo_is_declared_the_job_fails_and_a_retry_goes_forward(engine: Engine) -> None:
    class OneWay(Workflow):
        a = step("shop.a")
        b = step("shop.b", input={"a": a}, retry=ONE_TRY)
        c = step("shop.c", after=[b])

    engine.says("shop.b", Permanent("no"), {"ok": True})
    job = OneWay.start()
    engine.drain()
    assert state_of(job) == "Failed"
    assert states(job) == {"a": "Completed", "b": "Failed", "c": "NotStarted"}
    verbs.retry_job(job.pk, actor="operator:x", reason="mended")
    assert state_of(job) == "Running"
    assert Job.objects.get(pk=job.pk).reason == ""
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.a", "shop.b", "shop.b", "shop.c"]
    check_books(job)


def test_an_undo_whose_worker_died_is_taken_over(engine: Engine) -> None:
    """SAS-074: killing the worker at an undo."""
    engine.says("shop.f", Permanent("no"))
    job = Tree.start()
    while engine.rings and not Step.objects.filter(job=job, role="undo").exists():
        task, _, arguments = engine.rings.popleft()
        from agents import worker
        from supervisor import sweep

        worker.work(*arguments) if "work" in task else sweep.decide(*arguments)
    engine.rings.clear()
    engine.claim(named(job, "e.undo"), "the one that dies")
    engine.ahead(11)
    assert engine.sweep().expired == 1
    engine.pass_time(300)
    assert state_of(job) == "Compensated"
    assert named(job, "e.undo").attempt == 2
    check_books(job)


def test_a_lost_answer_of_an_undo_is_asked_again_under_its_own_key(engine: Engine) -> None:
    from agents import InDoubt

    engine.says("shop.f", Permanent("no"))
    engine.says("shop.undo_e", InDoubt("lost"), {"cancelled": True})
    job = Tree.start()
    engine.drain()
    engine.pass_time(300)
    assert state_of(job) == "Compensated"
    assert {call.idempotency_key for call in engine.calls_of("shop.undo_e")} == {f"{job.pk}:e.undo"}
    assert not Job.objects.needs_person().exists()


def test_the_undo_knows_what_went_in_and_what_came_out(engine: Engine) -> None:
    class Known(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", compensation="shop.undo_b", input={"from": a["reference"]})
        c = step("shop.c", after=[b], retry=ONE_TRY)

    engine.says("shop.a", {"reference": "A"})
    engine.says("shop.b", {"reference": "B"})
    engine.says("shop.c", Permanent("no"))
    Known.start()
    engine.drain()
    undo = engine.calls_of("shop.undo_b")[0].undoes
    assert (undo.name, undo.input, undo.result) == ("b", {"from": "A"}, {"reference": "B"})
