"""The sweep: one row at a time; what is locked is passed over, what raises stops nobody, what is stranded moves again."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, locked, named, state_of, states
from workflows import Retry, Workflow, findings, reports, step, timer, transitions, verbs
from workflows.clock import now
from workflows.models import Attempt, Event, Job, Step


class SweptInTime(Workflow):
    """One that is over soon."""

    deadline = timedelta(minutes=1)

    a = step("shop.a")


class SweptAtGate(Workflow):
    """One that the scheduler has to look at before it begins."""

    a = timer(timedelta(hours=1))


class Swept(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])


def _many_running(engine: Engine, count: int) -> list[Job]:
    jobs = [Swept.start() for _ in range(count)]
    for job in jobs:
        engine.claim(named(job, "a"))
    engine.rings.clear()
    return jobs


@pytest.fixture
def poison(engine: Engine) -> Any:
    """From then on the store refuses any change of these steps."""

    def make(steps: list[int]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE poison (id bigint PRIMARY KEY)")
            cursor.executemany("INSERT INTO poison VALUES (%s)", [(one,) for one in steps])
            cursor.execute(
                "CREATE FUNCTION poisoned() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " IF EXISTS (SELECT FROM poison WHERE id = NEW.id) THEN RAISE EXCEPTION 'poison'; END IF;"
                " RETURN NEW; END $$;"
                "CREATE TRIGGER poisoned BEFORE UPDATE ON sag_workflows_step FOR EACH ROW EXECUTE FUNCTION poisoned()"
            )

    yield make
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION IF EXISTS poisoned() CASCADE; DROP TABLE IF EXISTS poison")


def test_the_row_behind_twice_a_page_of_poison_is_handled_in_the_same_sweep(
    engine: Engine, poison: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-024: one bad row must not kill the whole sweep."""
    monkeypatch.setattr(supervision, "PAGE", 5)
    jobs = _many_running(engine, 2 * supervision.PAGE + 1)
    *bad, good = [named(job, "a").pk for job in jobs]
    assert good > max(bad)
    poison(bad)
    engine.ahead(11)
    row = engine.sweep()
    assert (row.expired, row.failed) == (1, len(bad))
    assert Step.objects.get(pk=good).state == "NotStarted"
    assert all("poison" in problem for problem in row.problems)
    assert row.finished_at is not None
    for job in jobs:
        check_books(job)


def test_the_job_behind_twice_a_page_of_poison_is_handled_in_the_same_sweep(
    engine: Engine, poison: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PAGE", 5)
    jobs = [SweptInTime.start() for _ in range(2 * supervision.PAGE + 1)]
    engine.rings.clear()
    engine.sweep()  # the time of a job counts from when it is first seen
    *bad, good = sorted(jobs, key=lambda job: job.pk)
    poison([named(job, "a").pk for job in bad])
    engine.ahead(61)
    row = engine.sweep()
    assert row.failed == len(bad)
    assert state_of(good) == "Failed"


def test_a_job_that_is_locked_at_its_gate_does_not_keep_the_sweep_waiting(engine: Engine) -> None:
    job = SweptAtGate.start(start_at=now() + timedelta(minutes=1))
    engine.ahead(61)
    with transaction.atomic():
        transitions.lock(job.pk)
        row = Beside(engine.sweep).result()
        assert (row.moved, row.failed) == (0, 0)
    assert engine.sweep().moved == 1
    assert named(job, "a").state == "Running"


def test_a_failed_step_that_cannot_be_decided_on_stops_no_other(engine: Engine, poison: Any) -> None:
    """SAS-024"""
    jobs = _many_running(engine, 3)
    from workflows.transitions import Failure

    for job in jobs:
        claimed = reports.claimed_under(named(job, "a").pk, named(job, "a").token)
        assert claimed is not None
        reports.fail(claimed, Failure(kind="transient", code="busy", message="busy"), sent=None)
    engine.rings.clear()
    poison([named(jobs[0], "a").pk])
    row = engine.sweep()
    assert (row.remedied, row.failed) == (2, 1)
    assert [states(job)["a"] for job in jobs] == ["Failed", "NotStarted", "NotStarted"]


def test_a_connection_that_ends_in_the_middle_of_a_sweep_costs_one_row(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-018: the others are handled in this very sweep, and that one in the next."""
    jobs = _many_running(engine, 4)
    engine.ahead(11)
    real = transitions.expire
    cut: list[int] = []

    def cut_once(job: Any, step: Any) -> None:
        if len(cut) == 0:
            cut.append(step.pk)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        real(job, step)

    monkeypatch.setattr(transitions, "expire", cut_once)
    assert (lambda row: (row.expired, row.failed))(engine.sweep()) == (3, 1)
    assert engine.sweep().expired == 1
    assert [states(job)["a"] for job in jobs] == ["NotStarted"] * 4


def test_a_locked_row_is_passed_over_and_reported_when_it_is_so_three_times_running(engine: Engine) -> None:
    """SAS-026"""
    stuck, free = _many_running(engine, 2)
    engine.ahead(11)

    def sweep_beside() -> Any:
        return Beside(engine.sweep).result()

    with locked(stuck):
        first, second, third = sweep_beside(), sweep_beside(), sweep_beside()
    assert (first.expired, first.failed) == (1, 0)
    assert (second.expired, second.failed) == (0, 0)
    assert third.failed == 1
    assert "locked in 3 sweeps" in third.problems[0]
    assert states(free)["a"] == "NotStarted"
    assert engine.sweep().expired == 1
    assert states(stuck)["a"] == "NotStarted"


def test_two_sweeps_at_once_expire_a_step_once(engine: Engine) -> None:
    """SAS-030"""
    (job,) = _many_running(engine, 1)
    first = named(job, "a").pk
    engine.ahead(11)
    with locked(job):
        supervision.expire(first)
        assert Beside(lambda: supervision.expire(first)).result() is None
    assert supervision.expire(first) is False
    assert history(job).count("step.expired a") == 1
    assert named(job, "a").charged == 1
    check_books(job)


def test_an_overdue_attempt_of_an_idle_system_is_taken_over(engine: Engine) -> None:
    """SAS-027: no other activity is needed."""
    (job,) = _many_running(engine, 1)
    engine.ahead(9)
    assert engine.sweep().expired == 0
    engine.ahead(2)
    assert engine.sweep().expired == 1
    assert Attempt.objects.get().outcome == "lost"
    engine.pass_time(2)
    assert state_of(job) == "Completed"
    assert named(job, "a").attempt == 2


def test_a_failure_whose_doorbell_was_lost_is_decided_on_by_the_sweep(engine: Engine) -> None:
    from agents import Transient, worker

    engine.says("shop.a", Transient("busy"), {})
    job = Swept.start()
    _, _, arguments = engine.rings.popleft()
    worker.work(*arguments)
    engine.rings.clear()
    assert engine.sweep().remedied == 1
    engine.pass_time(2)
    assert state_of(job) == "Completed"


# --- stranded jobs -----------------------------------------------------------------------------------------------------------


def test_a_job_whose_counter_of_prerequisites_is_wrong_moves_again(engine: Engine) -> None:
    """SAS-020: the gap between two steps is nobody's."""
    job = Swept.start()
    engine.settle(engine.claim(named(job, "a")), hand_over=False)
    engine.rings.clear()
    Step.objects.filter(job=job, name="b").update(waiting_for=1)
    assert engine.sweep().moved == 1
    engine.drain()
    assert state_of(job) == "Completed"
    assert "job.recounted" in history(job)
    check_books(job)


def test_a_job_whose_steps_are_held_for_no_reason_moves_again(engine: Engine) -> None:
    """SAS-020"""
    job = Swept.start()
    engine.rings.clear()
    Step.objects.filter(job=job).update(held=True)
    assert engine.sweep().moved == 1
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_job_whose_last_step_ended_without_closing_it_is_closed(engine: Engine) -> None:
    """SAS-010, SAS-020"""
    job = Swept.start()
    engine.rings.clear()
    handed = engine.settle(engine.claim(named(job, "a"))).handed_over
    Job.objects.filter(pk=job.pk).update(open_steps=5)
    engine.settle(handed)
    assert state_of(job) == "Running"
    assert engine.sweep().moved == 1
    assert state_of(job) == "Completed"


def test_an_undo_whose_counter_is_wrong_moves_again(engine: Engine) -> None:
    from agents import Permanent

    engine.says("shop.b", Permanent("no"))
    job = Swept.start()
    while state_of(job) == "Running":
        task, _, arguments = engine.rings.popleft()
        from agents import worker

        worker.work(*arguments) if "work" in task else supervision.decide(*arguments)
    engine.rings.clear()
    Step.objects.filter(job=job, name="a.undo").update(waiting_for=3)
    assert engine.sweep().moved == 1
    engine.drain()
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_job_that_waits_for_its_back_off_or_is_paused_is_not_stranded(engine: Engine) -> None:
    from agents import Transient

    engine.says("shop.a", Transient("busy"))

    class Slow(Workflow):
        a = step("shop.a", retry=Retry(attempts=9))

    waiting = Slow.start()
    engine.drain()
    paused = Swept.start()
    verbs.pause(paused.pk, actor="operator:x", reason="wait")
    before = [Event.objects.filter(job=job).count() for job in (waiting, paused)]
    assert engine.sweep().moved == 0
    assert [Event.objects.filter(job=job).count() for job in (waiting, paused)] == before


def test_all_live_jobs_are_looked_at_in_turn_a_slice_a_sweep(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_LIVE_JOBS_A_SWEEP", 2)
    jobs = [Swept.start() for _ in range(5)]
    engine.rings.clear()
    Step.objects.update(held=True)
    assert sum(engine.sweep().moved for _ in range(3)) == 5
    engine.drain()
    assert [state_of(job) for job in jobs] == ["Completed"] * 5


def test_a_stranded_job_that_cannot_be_healed_stops_no_other(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Swept.start() for _ in range(3)]
    engine.rings.clear()
    Step.objects.update(held=True)
    real = findings.heal

    def heal(job_id: uuid.UUID) -> bool:
        if job_id == min(job.pk for job in jobs):
            raise RuntimeError("poison")
        return real(job_id)

    monkeypatch.setattr(findings, "heal", heal)
    row = engine.sweep()
    assert (row.moved, row.failed) == (2, 1)
