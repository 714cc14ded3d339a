"""What can befall a breaker: trials that end nowhere, two supervisors, undo and doubt in the park, time that passes."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from agents import InDoubt, Permanent, Transient
from supervisor import storms
from supervisor import sweep as supervision
from supervisor.models import Incident
from tests.integration.engine import Beside, Engine, check_books, named, state_of
from workflows import Retry, Workflow, reports, step, transitions, verbs
from workflows.clock import now
from workflows.exceptions import WrongState
from workflows.models import Breaker, Job, Step
from workflows.states import ErrorKind
from workflows.transitions import Failure

AWAY = Transient("The depot does not answer.", code="unavailable")
LOST = InDoubt("The answer was lost.", code="no_answer")
WELL = {"ok": True}


class Errand(Workflow):
    """A step that may be tried twice."""

    a = step("shop.a", retry=Retry(attempts=2, first=timedelta(seconds=1)))


class ErrandUndone(Workflow):
    """A step with an undo and a probe, and one at another agent behind it."""

    a = step(
        "shop.a", compensation="shop.undo_a", probe="shop.find", retry=Retry(attempts=2, first=timedelta(seconds=1))
    )
    b = step("kiosk.b", after=[a])


class ErrandInHaste(Workflow):
    """A step with a time of its own as a whole, and in the queue."""

    a = step("shop.a", queue_timeout=timedelta(seconds=20), total_timeout=timedelta(minutes=5))


def tend(engine: Engine, seconds: float = 1.0, times: int = 1) -> None:
    for _ in range(times):
        engine.ahead(seconds)
        storms.tend()
        engine.pass_time(0.0)


def outage_of(engine: Engine, workflow: type[Workflow] = Errand, trips: int = 6, says: Exception = AWAY) -> list[Job]:
    engine.says("shop.a", says)
    jobs = [workflow.start() for _ in range(trips)]
    engine.drain()
    assert shop().phase == "open"
    storms.tend()
    return jobs


def shop() -> Breaker:
    return Breaker.objects.get(agent="shop")


def trial_of(engine: Engine) -> Step:
    """Time for a trial: one step is let through, and has not been claimed."""
    engine.ahead(2.5)
    storms.tend()
    assert shop().phase == "trial"
    return Step.objects.get(pk=shop().trial_step_id)


# --- trials that end nowhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_a_trial_whose_job_is_stopped_before_it_began_gives_way_to_another(engine: Engine, verb: str) -> None:
    outage_of(engine)
    engine.says("shop.a", WELL)
    trial = trial_of(engine)
    if verb == "pause":
        verbs.pause(trial.job_id, actor="operator:ada", reason="wait")
    else:
        verbs.cancel(trial.job_id, undo=True, actor="operator:ada", reason="enough")
    engine.rings.clear()
    tend(engine, times=8)
    assert shop().parks is False
    done = [state_of(job) for job in Job.objects.exclude(pk=trial.job_id)]
    assert done == ["Completed"] * 5


def test_a_trial_whose_worker_died_gives_way_to_another_without_a_longer_wait(engine: Engine) -> None:
    outage_of(engine)
    trial = trial_of(engine)
    engine.claim(trial)
    engine.rings.clear()
    tend(engine, times=3)
    assert shop().phase == "trial"  # its lease is not over
    engine.ahead(11)
    engine.sweep()
    engine.says("shop.a", WELL)
    tend(engine, times=8)
    assert shop().parks is False
    assert shop().cooldown == timedelta(seconds=2)
    engine.pass_time(5)
    assert {state_of(job) for job in Job.objects.all()} == {"Completed"}


def test_a_trial_that_failed_is_not_given_up_before_its_failure_is_decided_on(engine: Engine) -> None:
    outage_of(engine)
    trial = trial_of(engine)
    away = Failure(kind=ErrorKind.TRANSIENT, code="unavailable", message="It does not answer.")
    reports.fail(engine.claim(trial), away, sent=None)
    engine.rings.clear()
    storms.tend()
    assert shop().phase == "trial"
    supervision.decide(trial.pk)
    assert (shop().phase, shop().cooldown) == ("open", timedelta(seconds=4))


def test_an_open_breaker_with_nobody_waiting_closes(engine: Engine) -> None:
    jobs = outage_of(engine)
    for job in jobs:
        verbs.cancel(job.pk, undo=True, actor="operator:ada", reason="enough")
    engine.drain()
    tend(engine, 2.5)
    assert shop().parks is False
    assert Incident.objects.get().closed_at is not None


def test_where_only_paused_jobs_wait_the_incident_ends_and_they_go_on_once_resumed(engine: Engine) -> None:
    jobs = outage_of(engine)
    for job in jobs:
        verbs.pause(job.pk, actor="operator:ada", reason="wait")
    tend(engine, 2.5)
    assert shop().parks is False
    engine.says("shop.a", WELL)
    tend(engine, times=2)
    assert len(engine.calls_of("shop.a")) == 6
    for job in jobs:
        verbs.resume(job.pk, actor="operator:ada", reason="go")
    tend(engine, times=2)
    assert {state_of(job) for job in jobs} == {"Completed"}


# --- two supervisors -------------------------------------------------------------------------------------------------


def test_two_supervisors_let_one_trial_through(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    outage_of(engine)
    engine.ahead(2.5)
    with transaction.atomic():
        storms.tend()
        Beside(storms.tend).result()  # it neither waits nor admits a second one
        assert Step.objects.filter(admitted=True, held=False).count() == 1
    assert Step.objects.filter(admitted=True, held=False).count() == 1
    assert shop().trials == 1
    assert "could not be tended" not in caplog.text


def test_what_is_parked_behind_a_breaker_that_closes_at_that_moment_is_let_go(engine: Engine) -> None:
    jobs = outage_of(engine)
    engine.says("shop.a", WELL)
    transitions.set_breaker("shop", phase="closed", parks=False)
    tend(engine)
    assert {state_of(job) for job in jobs} == {"Completed"}
    assert not Step.objects.filter(parked=True).exists()


def test_two_that_open_an_agents_first_breaker_at_once_open_it_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no row yet that the second could wait for."""
    engine.says("shop.a", AWAY)
    jobs = [Errand.start() for _ in range(6)]
    engine.drain()
    Breaker.objects.all().delete()
    Incident.objects.all().delete()
    Step.objects.filter(job__in=jobs[:2]).update(parked=False, held=False)
    first, second = (Step.objects.get(job=job) for job in jobs[:2])
    caplog.clear()
    with transaction.atomic():
        opened = storms.parks(first)
        other = Beside(lambda: storms.parks(second)).until_blocked()
        engine.ahead(1)
    found = other.result()
    assert opened is not None
    assert found is not None
    assert (found.opened_at, found.trial_at) == (opened.opened_at, opened.trial_at)
    assert caplog.text.count("the breaker of agent shop opens") == 1
    assert Incident.objects.count() == 1


def test_a_breaker_that_cannot_be_tended_stops_no_other(engine: Engine, monkeypatch: Any) -> None:
    outage_of(engine)
    transitions.set_breaker("aaa", phase="open", parks=True)
    tended = storms._tend

    def fails(agent: str) -> None:
        if agent == "aaa":
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
        tended(agent)

    monkeypatch.setattr(storms, "_tend", fails)
    engine.says("shop.a", WELL)
    tend(engine, 2.5)
    tend(engine, times=5)
    assert shop().parks is False


# --- letting go ------------------------------------------------------------------------------------------------------


def test_no_more_are_let_go_than_the_workers_take(engine: Engine, settings: Any) -> None:
    settings.SAG = {"breaker_steps": 5, "release_rate": 3}
    outage_of(engine, trips=12)
    engine.says("shop.a", WELL)
    tend(engine, 2.5)
    storms.tend()
    for _ in range(4):
        engine.ahead(1)
        storms.tend()  # and no worker comes
    assert Step.objects.admitted("shop").count() == 3


def test_who_was_let_go_and_has_not_started_is_parked_again_when_it_opens_again(engine: Engine) -> None:
    outage_of(engine, trips=12)
    engine.says("shop.a", WELL)
    tend(engine, 2.5)
    storms.tend()
    storms.tend()
    assert Step.objects.admitted("shop").count() == 11
    transitions.set_breaker("shop", phase="open", trial_at=now() + timedelta(seconds=60))
    storms.tend()
    assert not Step.objects.filter(admitted=True, state="NotStarted").exists()
    assert Step.objects.parked("shop").count() == 11


def test_an_outage_that_goes_on_after_a_lucky_trial_is_the_same_incident(engine: Engine) -> None:
    jobs = outage_of(engine, trips=12)
    engine.says("shop.a", WELL, AWAY)
    tend(engine, 2.5)
    storms.tend()  # it answered: the others are let go
    engine.ahead(6)  # the count of that answer lies in a slice before
    tend(engine, times=2)
    assert shop().phase == "open"
    assert Incident.objects.count() == 1
    engine.says("shop.a", WELL)
    tend(engine, 2.5, times=6)
    engine.pass_time(60)
    assert {state_of(job) for job in jobs} == {"Completed"}


def test_a_person_resumes_only_what_is_open(engine: Engine) -> None:
    with pytest.raises(WrongState):
        storms.resume("nobody", actor="operator:ada")
    jobs = outage_of(engine)
    engine.says("shop.a", WELL)
    storms.resume("shop", actor="operator:ada")
    tend(engine, times=3)
    assert {state_of(job) for job in jobs} == {"Completed"}
    with pytest.raises(WrongState):
        storms.resume("shop", actor="operator:ada")
    assert shop().phase == "closed"


# --- waits of other kinds --------------------------------------------------------------------------------------------


def test_the_time_in_the_park_is_no_time_in_the_queue(engine: Engine) -> None:
    jobs = outage_of(engine, ErrandInHaste)
    engine.ahead(100)
    storms.tend()
    engine.sweep()
    assert {named(job, "a").state for job in jobs} == {"NotStarted"}
    engine.says("shop.a", WELL)
    storms.tend()
    storms.tend()
    engine.sweep()
    tend(engine, times=5)
    assert {state_of(job) for job in jobs} == {"Completed"}


def test_what_fails_after_its_time_as_a_whole_is_not_parked_again(engine: Engine) -> None:
    outage_of(engine, ErrandInHaste)
    engine.ahead(400)
    tend(engine)
    engine.pass_time(0)
    ended = Job.objects.get(state="Failed")
    assert "step_timeout" in named(ended, "a").remedy_reason


def test_a_job_whose_deadline_passes_in_the_park_ends(engine: Engine) -> None:
    jobs = outage_of(engine, ErrandUndone)
    Job.objects.filter(pk=jobs[0].pk).update(time_limit=timedelta(seconds=1), deadline=now() - timedelta(seconds=1))
    engine.sweep()
    engine.drain()
    assert state_of(jobs[0]) == "Compensated"
    check_books(jobs[0])


# --- undo and doubt --------------------------------------------------------------------------------------------------


def test_an_undo_is_parked_and_never_left_out(engine: Engine) -> None:
    engine.says("kiosk.b", Permanent("No.", code="no"))
    done = ErrandUndone.start()
    engine.says("shop.a", WELL)
    engine.says("shop.undo_a", AWAY)
    engine.drain()
    outage_of(engine)
    tend(engine, 1.0)
    undo = Step.objects.get(job=done, role="undo", undoes__name="a")
    assert (state_of(done), undo.state, undo.parked) == ("Compensating", "NotStarted", True)
    engine.says("shop.a", WELL)
    engine.says("shop.undo_a", WELL)
    tend(engine, 2.5)
    tend(engine, times=5)
    assert state_of(done) == "Compensated"
    assert [call.attempt for call in engine.calls_of("shop.undo_a")][-1] >= 2
    check_books(done)


def test_an_undo_that_was_parked_too_long_stands_in_front_of_a_person(engine: Engine, settings: Any) -> None:
    settings.SAG = {"breaker_steps": 5, "park_timeout": 60}
    engine.says("kiosk.b", Permanent("No.", code="no"))
    engine.says("shop.undo_a", AWAY)
    job = ErrandUndone.start()
    engine.drain()
    transitions.set_breaker("shop", phase="open", parks=True, trial_at=now() + timedelta(hours=1))
    tend(engine)
    assert Step.objects.get(job=job, role="undo", undoes__name="a").parked
    tend(engine, 90)
    undo = Step.objects.get(job=job, role="undo", undoes__name="a")
    assert (undo.state, undo.error_code, undo.remedy) == ("Failed", "park_timeout", "escalate")
    assert list(Job.objects.needs_person()) == [Job.objects.get(pk=job.pk)]
    check_books(job)


def test_steps_of_many_queues_are_parked_and_let_go_together(engine: Engine) -> None:
    jobs = outage_of(engine)
    Step.objects.filter(job__in=jobs[:3]).update(queue="other", parked=False, held=False)
    storms.tend()
    assert Step.objects.parked("shop").count() == 6
    storms.resume("shop", actor="operator:ada")
    storms.tend()
    supervision.ring_due()
    assert {queue for _, queue, _ in engine.rings} == {"agents", "other"}


def test_doubt_is_not_forgotten_in_the_park(engine: Engine) -> None:
    jobs = outage_of(engine, ErrandUndone, says=LOST)
    assert named(jobs[0], "a").parked
    verbs.cancel(jobs[0].pk, undo=True, actor="operator:ada", reason="enough")
    engine.drain()
    assert state_of(jobs[0]) == "Compensating"
    assert (named(jobs[0], "a").state, named(jobs[0], "a").error_kind) == ("Failed", "in_doubt")
    engine.says("shop.a", WELL)
    tend(engine, 2.5)
    tend(engine, times=6)
    engine.pass_time(60)
    assert state_of(jobs[0]) == "Compensated"
    assert len(engine.calls_of("shop.undo_a")) == 2  # and once more after the quiet time
    check_books(jobs[0])


def test_the_one_question_at_the_end_stays_a_question_over_an_outage(engine: Engine) -> None:
    """Attempts used up in doubt: what is left is to ask. An outage meanwhile grants no further attempt."""
    job = ErrandUndone.start()
    engine.says("shop.a", LOST)
    engine.says("shop.find", AWAY)
    engine.drain()
    engine.pass_time(5)
    assert named(job, "a").probe_only
    transitions.set_breaker("shop", phase="open", parks=True, trial_at=now(), cooldown=timedelta(seconds=2))
    asked = len(engine.calls_of("shop.a"))
    for _ in range(3):
        tend(engine, 5)
    assert len(engine.calls_of("shop.a")) == asked
    assert named(job, "a").probe_only
    engine.says("shop.find", {"found": True})
    tend(engine, 20)
    tend(engine, times=3)
    assert named(job, "a").state == "Completed"
    assert len(engine.calls_of("shop.a")) == asked


def test_ten_thousand_parked_rows_do_not_slow_the_sweep(engine: Engine) -> None:
    """None of its questions but those of the breaker look at them."""
    outage_of(engine)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO sag_workflows_job (id, workflow, version, plan, input, seq, open_steps, state)
            SELECT gen_random_uuid(), 'Errand', 1, '{"steps": []}', '{}', 1, 1, 'Running' FROM generate_series(1, 10000);
            INSERT INTO sag_workflows_step (job_id, seq, name, operation, agent, queue, idempotency_key, releases, timeout,
                   attempts_allowed, held, parked, parked_since)
            SELECT id, 0, 'a', 'shop.a', 'shop', 'agents', 'x' || id, ARRAY[]::int[], interval '30 s', 5,
                   true, true, sag_now()
            FROM sag_workflows_job WHERE open_steps = 1 AND seq = 1;
            ANALYZE sag_workflows_step, sag_workflows_job;
            SET enable_seqscan = off; -- as in the supervisor's processes
            """
        )
    try:
        for steps in (
            Step.objects.to_ring(),
            Step.objects.overdue(),
            Step.objects.queued_too_long(),
            Step.objects.due(),
        ):
            assert "step_parked" not in steps.explain()
            assert steps.count() == 0
        found = Step.objects.parked("shop").of_moving_jobs().due_to_start()[:50].explain(analyze=True)
        free = Step.objects.parked_for_nothing().of_moving_jobs().explain()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET enable_seqscan")
    assert "step_parked" in found
    assert "Sort" not in found
    assert "Seq Scan" not in free
