"""All that waits because of an outage is given up on one word: each job by its own verb, each once, whoever dies meanwhile."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from supervisor import cancellations, storms, tasks
from supervisor.models import GroupCancellation, GroupMember, Incident
from tests.integration.engine import Beside, Engine, check_books, locked, named, state_of
from tests.integration.outages import Delivery, outage_of_shop, poisoned
from workflows import Workflow, step, verbs
from workflows.clock import now
from workflows.exceptions import InvalidInput, NotFound, WrongState
from workflows.models import Breaker, Event, Job, Step


class DeliveryUndone(Workflow):
    """A call that can be undone at another agent, and then one at the shop."""

    first = step("kiosk.a", compensation="kiosk.undo_a")
    a = step("shop.a", after=[first])


class DeliveryPastReturn(Workflow):
    """Once it was paid for there is no way back."""

    paid = step("kiosk.a", pivot=True)
    a = step("shop.a", after=[paid])


def ask(undo: bool = True, reason: str = "They moved away.", **options: Any) -> GroupCancellation:
    incident = Incident.objects.get()
    return cancellations.ask(incident.pk, undo=undo, actor="operator:ada", reason=reason, **options)


def progress() -> cancellations.Progress:
    return cancellations.progress(GroupCancellation.objects.get())


def waiting(engine: Engine, workflow: type[Workflow], number: int = 2) -> list[Job]:
    """Jobs that come while the shop is away, and wait."""
    jobs = [workflow.start() for _ in range(number)]
    engine.drain()
    storms.tend()
    assert all(named(job, "a").parked for job in jobs)
    return jobs


def word_on(job: Job) -> tuple[str, str]:
    event = Event.objects.get(job=job, kind="job.stopping")
    return event.actor, event.reason


def test_each_job_is_undone_in_the_name_of_who_asked_and_the_incident_ends(engine: Engine) -> None:
    met_it = outage_of_shop(engine)
    came_later = waiting(engine, DeliveryUndone)
    jobs = met_it + came_later
    assert ask().undo
    assert {state_of(job) for job in jobs} == {"Running"}  # to ask is quick, however many they are
    assert cancellations.work_off() == len(jobs)
    engine.drain()
    assert {state_of(job) for job in met_it} == {"Failed"}  # their plan has no undo
    assert {state_of(job) for job in came_later} == {"Compensated"}
    assert engine.asked().count("kiosk.undo_a") == 2
    assert {word_on(job) for job in jobs} == {("operator:ada", "They moved away.")}
    for job in jobs:
        check_books(job)
    assert (progress().jobs, progress().cancelled, progress().left) == (8, 8, 0)
    assert GroupCancellation.objects.get().finished_at is not None
    assert Incident.objects.get().acknowledged_by == "operator:ada"
    engine.ahead(2.5)
    storms.tend()
    assert Incident.objects.get().closed_at is not None


def test_without_undo_they_fail_and_what_was_done_stays(engine: Engine) -> None:
    outage_of_shop(engine)
    jobs = waiting(engine, DeliveryUndone)
    with pytest.raises(InvalidInput):
        ask(undo=False, reason=" ")
    ask(undo=False)
    cancellations.work_off()
    engine.drain()
    assert {state_of(job) for job in jobs} == {"Failed"}
    assert "kiosk.undo_a" not in engine.asked()


def test_without_a_reason_the_history_names_the_outage(engine: Engine) -> None:
    [job, *_] = outage_of_shop(engine)
    ask(reason="")
    cancellations.work_off()
    assert word_on(job) == ("operator:ada", "shop is away (unavailable).")


def test_paused_jobs_and_those_that_are_undone_already_are_left_alone(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    verbs.pause(jobs[0].pk, actor="operator:bob", reason="wait")
    verbs.cancel(jobs[1].pk, undo=True, actor="operator:bob", reason="enough")
    assert cancellations.number_of_jobs("shop") == 4
    ask()
    cancellations.work_off()
    assert state_of(jobs[0]) == "Running"
    assert progress().jobs == 4
    assert word_on(jobs[1])[0] == "operator:bob"


def test_who_came_after_the_person_looked_is_not_cancelled(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    shown_at = now()
    engine.ahead(1)
    late = waiting(engine, Delivery)
    ask(as_of=shown_at)
    cancellations.work_off()
    engine.drain()
    assert {state_of(job) for job in jobs} == {"Failed"}
    assert {state_of(job) for job in late} == {"Running"}


def test_who_waited_when_it_was_asked_is_cancelled_also_where_the_service_came_back_meanwhile(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    ask()
    storms.resume("shop", actor="operator:bob")
    storms.tend()
    cancellations.work_off()
    engine.drain()
    assert {state_of(job) for job in jobs} == {"Failed"}
    assert len(engine.calls_of("shop.a")) == len(jobs)  # those before the outage was seen


def test_the_one_that_is_just_being_tried_is_among_them(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    engine.ahead(2.5)
    storms.tend()
    trial = Step.objects.get(pk=Breaker.objects.get().trial_step_id)
    under_way = engine.claim(trial)
    engine.rings.clear()
    assert cancellations.number_of_jobs("shop") == len(jobs)
    ask()
    cancellations.work_off()
    assert state_of(trial.job) == "Running"  # its call may end
    engine.settle(under_way)
    engine.drain()
    assert {state_of(job) for job in jobs} == {"Failed"}
    assert progress().cancelled == len(jobs)


def test_who_will_be_parked_within_a_second_is_among_them(engine: Engine) -> None:
    jobs = [*outage_of_shop(engine), Delivery.start()]
    engine.drain()
    assert Step.objects.filter(parked=True).count() == 6
    engine.ahead(1)
    ask(as_of=now())
    cancellations.work_off()
    assert {state_of(job) for job in jobs} == {"Failed"}


def test_to_ask_twice_is_to_ask_once_and_another_wish_is_refused_meanwhile(engine: Engine) -> None:
    outage_of_shop(engine)
    assert ask() == ask()
    with pytest.raises(WrongState, match="operator:ada has these jobs cancelled with undo"):
        ask(undo=False)
    assert GroupMember.objects.count() == 6


def test_there_is_nothing_to_ask_where_nobody_waits(engine: Engine) -> None:
    with pytest.raises(NotFound):
        cancellations.ask(1, undo=True, actor="operator:ada")
    outage_of_shop(engine)
    with pytest.raises(WrongState, match="No job that could be cancelled waits for shop"):
        ask(as_of=now() - timedelta(hours=1))
    Incident.objects.update(closed_at=now())
    with pytest.raises(WrongState, match="is over"):
        ask()
    assert not GroupCancellation.objects.exists()


def test_a_job_that_cannot_be_cancelled_so_is_named_with_its_reason_and_stops_no_other(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    [past_return] = waiting(engine, DeliveryPastReturn, 1)
    ended, stored_no_more = jobs[:2]
    ask()
    verbs.cancel(ended.pk, undo=True, actor="operator:bob", reason="enough")
    GroupMember.objects.filter(job_id=stored_no_more.pk).update(job_id=uuid.uuid4())
    cancellations.work_off()
    found = progress()
    assert (found.jobs, found.cancelled, found.ended, found.refused, found.left) == (7, 4, 2, 1, 0)
    [refusal] = found.refusals
    assert refusal.job_id == past_return.pk
    assert "paid is the point of no return" in refusal.why
    assert GroupCancellation.objects.get().finished_at is not None


def test_a_job_that_is_locked_has_its_turn_later(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    ask()
    with locked(jobs[2]):
        assert Beside(cancellations.work_off).result() == 5
        assert GroupCancellation.objects.get().finished_at is None
    assert cancellations.work_off() == 1
    assert GroupCancellation.objects.get().finished_at is not None


def test_two_supervisors_cancel_each_job_once(engine: Engine) -> None:
    jobs = outage_of_shop(engine, jobs=30)
    ask()
    both = [Beside(cancellations.work_off) for _ in range(2)]
    assert sum(one.result() for one in both) + cancellations.work_off() == len(jobs)
    assert progress().cancelled == len(jobs)
    assert Event.objects.filter(kind="job.stopping").count() == len(jobs)


def test_who_dies_in_the_middle_leaves_the_rest_to_the_next(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = outage_of_shop(engine)
    ask()
    cancel, asked = verbs.cancel, []

    def dies(job_id: uuid.UUID, **options: Any) -> Job:
        asked.append(job_id)
        if len(asked) == 4:
            raise SystemExit
        return cancel(job_id, **options)

    monkeypatch.setattr(verbs, "cancel", dies)
    with pytest.raises(SystemExit):
        cancellations.work_off()
    assert (progress().cancelled, progress().left) == (3, 3)
    cancellations.work_off()
    engine.drain()
    assert progress().cancelled == len(jobs)
    assert {state_of(job) for job in jobs} == {"Failed"}


def test_a_job_that_fails_again_and_again_is_left_to_a_person_and_stops_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = outage_of_shop(engine)
    ask()
    cancel = verbs.cancel

    def fails(job_id: uuid.UUID, **options: Any) -> Job:
        if job_id == jobs[0].pk:
            raise ValueError("odd")
        return cancel(job_id, **options)

    monkeypatch.setattr(verbs, "cancel", fails)
    assert cancellations.work_off() == 5
    assert progress().left == 1
    for _ in range(4):
        cancellations.work_off()
    assert (progress().refused, progress().left) == (1, 0)
    assert progress().refusals[0].why == "ValueError: odd"
    assert state_of(jobs[0]) == "Running"


def test_a_job_that_the_database_refuses_to_change_stops_no_other(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    ask()
    with poisoned(jobs[0].pk):
        assert cancellations.work_off() == 5
        for _ in range(4):
            cancellations.work_off()
    assert (progress().cancelled, progress().refused, progress().left) == (5, 1, 0)
    assert "this_job_is_poison" in progress().refusals[0].why


def test_where_the_database_goes_away_that_is_no_fault_of_the_job(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = outage_of_shop(engine)
    ask()
    cancel = verbs.cancel

    def breaks(job_id: uuid.UUID, **options: Any) -> Job:
        if job_id == jobs[0].pk:
            connection.connection.close()
        return cancel(job_id, **options)

    monkeypatch.setattr(verbs, "cancel", breaks)
    for _ in range(6):
        cancellations.work_off()
    assert set(GroupMember.objects.values_list("failures", flat=True)) == {0}
    assert (progress().cancelled, progress().left) == (5, 1)
    monkeypatch.undo()
    assert cancellations.work_off() == 1


def test_the_supervisor_works_it_off_aside_and_only_where_there_is_something(engine: Engine) -> None:
    jobs = outage_of_shop(engine)
    assert cancellations.work_off_aside() is None
    ask()
    thread = cancellations.work_off_aside()
    assert thread is not None
    thread.join(20)
    assert progress().cancelled == len(jobs)
    assert cancellations.work_off_aside() is None


def test_each_second_the_supervisor_looks_whether_there_is_something(engine: Engine) -> None:
    outage_of_shop(engine)
    ask()
    with cancellations._under_way:  # so that no thread is begun
        tasks.ring_due()
        assert progress().cancelled == 0
    thread = cancellations.work_off_aside()
    assert thread is not None
    thread.join(20)


def test_what_is_left_to_do_is_found_by_its_index_among_very_many_that_are_done(engine: Engine) -> None:
    outage_of_shop(engine)
    asked = ask()
    GroupMember.objects.bulk_create(
        [GroupMember(cancellation=asked, job_id=uuid.uuid4(), outcome="cancelled") for _ in range(20_000)],
        batch_size=5000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE sag_supervisor_groupmember")
    assert len(list(cancellations._to_do())) == 6
    plan = GroupMember.objects.filter(outcome="", pk__gt=0).order_by("pk")[:200].explain()
    assert "group_member_to_do" in plan


def test_what_was_worked_off_long_ago_is_forgotten(engine: Engine) -> None:
    outage_of_shop(engine)
    ask()
    cancellations.work_off()
    engine.ahead(timedelta(days=89).total_seconds())
    cancellations.forget_old()
    assert GroupCancellation.objects.exists()
    engine.ahead(timedelta(days=2).total_seconds())
    cancellations.forget_old()
    assert not GroupMember.objects.exists()
