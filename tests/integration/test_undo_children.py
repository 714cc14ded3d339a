"""An undo crosses into the jobs that a job started, and what is left behind there keeps the whole from being called clean."""

from datetime import timedelta
from typing import Any

from agents import InDoubt, Permanent, Transient
from tests.integration.engine import Engine, check_books, history, state_of
from tests.integration.test_undo_preview import ONE_TRY, compensate, shown, undos
from workflows import Retry, Workflow, child, given, item, step, undo, verbs
from workflows.models import Job, Step


class CrossedBooking(Workflow):
    """No time in which it may be undone by itself: its parent may all the same."""

    e = step("shop.e", compensation="shop.undo_e")
    f = step("shop.f", compensation="shop.undo_f", after=[e], retry=Retry(attempts=9))


class CrossedLetter(Workflow):
    """A letter that cannot be taken back, then something that fails."""

    e = step("shop.e")
    f = step("shop.f", after=[e], retry=ONE_TRY)


class CrossedTrip(Workflow):
    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a")
    booking = child(CrossedBooking, after=[a])
    b = step("shop.b", compensation="shop.undo_b", after=[booking], retry=ONE_TRY)


class CrossedGroup(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    booking = child(CrossedBooking, each=given["people"], input={"who": item}, tolerate=1, after=[a])
    b = step("shop.b", after=[booking], retry=ONE_TRY)


class CrossedPost(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    letter = child(CrossedLetter, after=[a])


def children_of(job: Job) -> list[Job]:
    ids = Step.objects.filter(job=job, role="forward").values_list("pk", flat=True)
    return list(Job.objects.filter(parent_step_id__in=list(ids)).order_by("created_at", "id"))


def at(job: Job, address: str) -> Step:
    return verbs.step_at(Job.objects.get(pk=job.pk), address)


def _run(workflow: type[Workflow], engine: Engine, input: Any = None) -> Job:
    job = workflow.start(input)
    engine.pass_time(1)
    return job


def test_the_whole_chain_is_undone_through_the_child_in_order(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    job = _run(CrossedTrip, engine)
    assert undos(engine) == ["f", "e", "a"]
    [booking] = children_of(job)
    assert (state_of(job), booking.state, booking.reason) == ("Compensated", "Compensated", "parent")
    check_books(job)
    check_books(booking)


def test_an_undo_that_failed_in_the_child_is_mended_by_the_retry_of_the_parent(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_e", Permanent("closed"), {})
    job = _run(CrossedTrip, engine)
    [booking] = children_of(job)
    assert (state_of(job), booking.state) == ("Failed", "Failed")
    assert undos(engine) == ["f", "e", "a"]
    assert {row.pk for row in Job.objects.needs_person()} == {job.pk, booking.pk}
    verbs.retry_job(job.pk, actor="operator:x", reason="open")
    engine.drain()
    assert undos(engine) == ["f", "e", "a", "e"]
    assert (state_of(job), state_of(booking)) == ("Compensated", "Compensated")
    assert not Job.objects.needs_person().exists()
    check_books(job)
    check_books(booking)


def test_a_child_mended_by_itself_is_enough_for_the_parents_next_try(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_e", Permanent("closed"), {})
    job = _run(CrossedTrip, engine)
    [booking] = children_of(job)
    verbs.retry_job(booking.pk, actor="operator:x", reason="open")
    engine.drain()
    assert (state_of(job), state_of(booking)) == ("Failed", "Compensated")
    verbs.retry_step(job.pk, "booking.undo", actor="operator:x", reason="it is undone now")
    engine.drain()
    assert state_of(job) == "Compensated"
    assert undos(engine).count("e") == 2
    check_books(job)


def test_a_child_that_failed_and_left_something_keeps_its_parent_from_being_called_undone(engine: Engine) -> None:
    engine.says("shop.f", Permanent("no"))
    job = _run(CrossedPost, engine)
    [letter] = children_of(job)
    assert (letter.state, state_of(job)) == ("Failed", "Failed")
    assert undos(engine) == ["a"]
    assert at(job, "letter.undo").remedy == "escalate"
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)


def test_a_child_that_failed_before_it_did_anything_keeps_nobody(engine: Engine) -> None:
    engine.says("shop.e", Permanent("no"))
    job = _run(CrossedPost, engine)
    [letter] = children_of(job)
    assert letter.state == "Failed"
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_a_child_cancelled_without_undo_is_undone_with_its_parent(engine: Engine) -> None:
    engine.says("shop.f", Transient("busy"))
    job = _run(CrossedTrip, engine)
    [booking] = children_of(job)
    verbs.cancel(booking.pk, undo=False, actor="operator:x", reason="not this one")
    engine.drain()
    assert undos(engine) == ["e", "a"]
    assert (state_of(job), state_of(booking)) == ("Compensated", "Compensated")
    check_books(job)
    check_books(booking)


def test_a_doubt_in_the_child_is_undone_there_with_its_second_asking(engine: Engine) -> None:
    class CrossedKiosk(Workflow):
        a = step("kiosk.a", compensation="kiosk.undo_a", retry=ONE_TRY, timeout=timedelta(seconds=20))

    class CrossedAtTheKiosk(Workflow):
        visit = child(CrossedKiosk)
        b = step("shop.b", compensation="shop.undo_b")

    engine.says("kiosk.a", InDoubt("lost"))
    job = _run(CrossedAtTheKiosk, engine)
    assert state_of(job) == "Running"
    engine.pass_time(60)
    engine.drain()
    assert engine.asked().count("kiosk.undo_a") == 2
    assert undos(engine)[-1] == "b"
    assert (state_of(job), children_of(job)[0].state) == ("Compensated", "Compensated")


def test_of_children_over_a_list_each_is_undone_and_one_that_cannot_be_stops_no_other(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_e", {}, Permanent("closed"), {})
    job = _run(CrossedGroup, engine, {"people": ["ada", "bob", "eve"]})
    assert sorted(kid.state for kid in children_of(job)) == ["Compensated", "Compensated", "Failed"]
    assert (state_of(job), undos(engine).count("e"), undos(engine)[-1]) == ("Failed", 3, "a")
    failed = Step.objects.get(job=job, name="booking.undo", parent__isnull=False, state="Failed")
    assert shown(job) == [f"booking:{failed.index}"]
    verbs.retry_step(job.pk, failed.address, actor="operator:x", reason="open")
    engine.drain()
    assert state_of(job) == "Compensated"
    assert {kid.state for kid in children_of(job)} == {"Compensated"}
    check_books(job)


def test_a_tolerated_child_that_left_something_is_undone_with_the_others(engine: Engine) -> None:
    engine.says("shop.f", {}, Transient("busy"))
    engine.says("shop.b", Permanent("no"))
    job = CrossedGroup.start({"people": ["ada", "bob"]})
    engine.pass_time(1)
    [stuck] = [kid for kid in children_of(job) if kid.state != "Completed"]
    verbs.cancel(stuck.pk, undo=False, actor="operator:x", reason="not this one")
    engine.drain()
    assert undos(engine).count("e") == 2
    assert (state_of(job), state_of(stuck)) == ("Compensated", "Compensated")
    check_books(job)


def test_the_preview_of_the_parent_is_refused_once_its_child_has_been_undone_by_somebody(engine: Engine) -> None:
    """What the child does is its own; the parent's next try finds it undone and goes on."""

    class CrossedFree(Workflow):
        compensate_within = timedelta(days=1)

        f = step("shop.f", compensation="shop.undo_f")

    class CrossedOuter(Workflow):
        compensate_within = timedelta(days=1)

        inner = child(CrossedFree)

    job = _run(CrossedOuter, engine)
    [inner] = children_of(job)
    digest = undo.preview(job.pk).digest
    compensate(inner)
    engine.drain()
    assert (state_of(inner), state_of(job)) == ("Compensated", "Completed")
    compensate(job, digest)
    engine.drain()
    assert undos(engine) == ["f"]
    assert state_of(job) == "Compensated"
    assert history(inner).count("job.compensating") == 1
    check_books(job)


def test_an_undo_in_the_child_that_is_tried_again_by_its_policy_keeps_the_parent_waiting(engine: Engine) -> None:
    class CrossedSlow(Workflow):
        e = step("shop.e", compensation="shop.undo_e", undo_retry=Retry(attempts=3))

    class CrossedSlowTrip(Workflow):
        compensate_within = timedelta(days=1)

        a = step("shop.a", compensation="shop.undo_a")
        slow = child(CrossedSlow, after=[a])

    engine.says("shop.undo_e", Transient("busy"), Transient("busy"), {})
    job = _run(CrossedSlowTrip, engine)
    compensate(job)
    engine.drain()
    assert (state_of(job), undos(engine)) == ("Compensating", ["e"])
    engine.pass_time(70, times=2)
    assert undos(engine) == ["e", "e", "e", "a"]
    assert state_of(job) == "Compensated"
    check_books(job)
