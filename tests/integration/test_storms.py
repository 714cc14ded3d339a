"""One outage is one incident: steps are parked and nothing is charged, and all of it ends by itself (protocol 8, 16)."""

from datetime import timedelta
from typing import Any

import pytest

from agents import Permanent, Transient
from agents.heartbeat import heart
from supervisor import storms
from supervisor import sweep as supervision
from supervisor.budget import Counts, outage, retry_is_within_budget
from supervisor.models import Incident
from tests.integration.engine import Engine, check_books, named, state_of
from tests.integration.outages import poisoned
from workflows import Retry, Workflow, broker, step, transitions, verbs
from workflows.clock import SagNow, now
from workflows.models import Breaker, Job, Step

AWAY = Transient("The depot does not answer.", code="unavailable")


class Trip(Workflow):
    """One step that may be tried twice."""

    a = step("shop.a", retry=Retry(attempts=2, first=timedelta(seconds=1)))


class StormPair(Workflow):
    """Two agents."""

    a = step("shop.a", retry=Retry(attempts=2))
    b = step("kiosk.b", after=[a])


def tend(engine: Engine, seconds: float = 1.0, times: int = 1) -> None:
    """What the supervisor does every second, and what the workers make of it."""
    for _ in range(times):
        engine.ahead(seconds)
        storms.tend()
        engine.pass_time(0.0)


def outage_of(engine: Engine, trips: int = 6) -> list[Job]:
    """So many trips meet a service that is away, and its breaker opens."""
    engine.says("shop.a", AWAY)
    jobs = [Trip.start() for _ in range(trips)]
    engine.drain()
    assert Breaker.objects.get(agent="shop").phase == "open"
    return jobs


def test_different_steps_that_fail_alike_open_the_breaker_and_one_incident(engine: Engine) -> None:
    outage_of(engine)
    breaker = Breaker.objects.get(agent="shop")
    assert (breaker.parks, breaker.cause) == (True, "unavailable")
    assert breaker.evidence == {"failures": 6, "calls": 6, "steps": 6, "window": 30.0}
    incident = Incident.objects.get()
    assert (incident.agent, incident.cause, incident.closed_at) == ("shop", "unavailable", None)


def test_a_service_that_answered_well_a_thousand_times_just_before_is_found_to_be_away_all_the_same(
    engine: Engine,
) -> None:
    transitions.count_calls("shop", "ok", 1000)
    engine.ahead(transitions.CALL_SLICE)
    outage_of(engine)
    assert Breaker.objects.get(agent="shop").evidence["calls"] < 20


def test_a_few_failures_among_many_answers_of_the_same_moments_are_no_outage(engine: Engine) -> None:
    transitions.count_calls("shop", "ok", 1000)
    engine.says("shop.a", AWAY)
    for _ in range(6):
        Trip.start()
    engine.drain()
    assert not Breaker.objects.exists()


def test_one_step_that_fails_again_and_again_is_no_outage(engine: Engine) -> None:
    engine.says("shop.a", AWAY)
    jobs = [Trip.start() for _ in range(4)]
    engine.drain()
    engine.pass_time(60)
    assert not Breaker.objects.exists()
    assert {state_of(job) for job in jobs} == {"Failed"}  # two attempts each, and nothing to undo


def test_a_service_that_refuses_for_good_is_not_away(engine: Engine) -> None:
    engine.says("shop.a", Permanent("Sold out.", code="sold_out"))
    for _ in range(10):
        Trip.start()
    engine.drain()
    assert not Breaker.objects.exists()


def test_while_it_is_open_nothing_is_claimed_and_nothing_charged(engine: Engine) -> None:
    jobs = outage_of(engine)
    asked = len(engine.calls_of("shop.a"))
    late = [Trip.start() for _ in range(3)]
    engine.drain()
    storms.tend()
    engine.drain()
    assert len(engine.calls_of("shop.a")) == asked
    assert Step.objects.filter(parked=True).count() == len(jobs) + len(late)
    last = named(jobs[-1], "a")
    assert (last.attempt, last.charged) == (1, 0)  # the one that opened it, and those after it
    for job in [*jobs, *late]:
        check_books(job)


def test_other_agents_go_on(engine: Engine) -> None:
    outage_of(engine)
    engine.says("kiosk.b", {"ok": True})
    job = StormPair.start()
    transitions.skip(job, named(job, "a"), reason="test")
    transitions.release_successors(job, named(job, "a"))
    engine.pass_time(10)
    assert named(job, "b").state == "Completed"


def test_a_failed_trial_is_not_charged_and_the_next_one_comes_later(engine: Engine) -> None:
    outage_of(engine)
    asked = len(engine.calls_of("shop.a"))
    tend(engine, 2.5)
    assert len(engine.calls_of("shop.a")) == asked + 1
    breaker = Breaker.objects.get(agent="shop")
    assert (breaker.phase, breaker.cooldown) == ("open", timedelta(seconds=4))
    assert not Step.objects.filter(charged__gt=1).exists()
    tend(engine, 1.0, times=3)
    assert len(engine.calls_of("shop.a")) == asked + 1
    tend(engine, 1.5)
    assert len(engine.calls_of("shop.a")) == asked + 2


def test_once_a_trial_succeeds_the_others_follow_at_a_set_rate_and_the_incident_closes_by_itself(
    engine: Engine, settings: Any
) -> None:
    settings.SAG = {"breaker_steps": 5, "release_rate": 2}
    jobs = outage_of(engine, trips=7)
    engine.says("shop.a", {"ok": True})
    tend(engine, 2.5)  # the trial
    assert [state_of(job) for job in jobs].count("Completed") == 1
    tend(engine)  # it is seen to have succeeded
    done = []
    for _ in range(4):
        tend(engine)
        done.append([state_of(job) for job in jobs].count("Completed"))
    assert done == [3, 5, 7, 7]
    assert Breaker.objects.get(agent="shop").parks is False
    assert Incident.objects.get().closed_at is not None
    for job in jobs:
        check_books(job)


def test_a_trial_that_is_refused_for_good_shows_that_the_service_is_back(engine: Engine) -> None:
    outage_of(engine)
    engine.says("shop.a", Permanent("Sold out.", code="sold_out"))
    tend(engine, 2.5)
    tend(engine, 1.0)
    assert Breaker.objects.get(agent="shop").phase in ("releasing", "closed")


def test_a_parked_step_of_a_paused_job_waits_for_both(engine: Engine) -> None:
    jobs = outage_of(engine)
    storms.tend()
    verbs.pause(jobs[0].pk, actor="operator:ada", reason="wait")
    engine.says("shop.a", {"ok": True})
    tend(engine, 2.5)
    tend(engine, 1.0, times=5)
    assert named(jobs[0], "a").state == "NotStarted"
    assert {state_of(job) for job in jobs[1:]} == {"Completed"}
    assert Breaker.objects.get(agent="shop").parks is False  # who is paused waits for a person, not for the service
    verbs.resume(jobs[0].pk, actor="operator:ada", reason="go")
    tend(engine)
    assert state_of(jobs[0]) == "Completed"


def test_a_job_whose_step_is_parked_can_be_cancelled(engine: Engine) -> None:
    jobs = outage_of(engine)
    storms.tend()
    verbs.cancel(jobs[0].pk, undo=True, actor="operator:ada", reason="enough")
    engine.drain()
    assert state_of(jobs[0]) in ("Compensated", "Failed")
    check_books(jobs[0])


def test_a_step_is_not_parked_for_ever(engine: Engine, settings: Any) -> None:
    settings.SAG = {"breaker_steps": 5, "park_timeout": 60}
    jobs = outage_of(engine)
    storms.tend()
    tend(engine, 90, times=5)
    engine.drain()
    assert {state_of(job) for job in jobs} == {"Failed"}
    assert {step.error_code for step in Step.objects.filter(name="a")} <= {"park_timeout", "unavailable"}


def test_one_that_cannot_be_given_up_keeps_neither_the_others_nor_the_breaker_waiting(
    engine: Engine, settings: Any
) -> None:
    settings.SAG = {"breaker_steps": 5, "park_timeout": 60}
    jobs = outage_of(engine)
    storms.tend()
    engine.ahead(90)
    with poisoned(jobs[0].pk):
        storms.tend()
    refused = Step.objects.filter(error_code="park_timeout").values_list("job_id", flat=True)
    assert set(refused) == {job.pk for job in jobs[1:]}
    assert Breaker.objects.get(agent="shop").phase == "trial"


def test_a_stranded_job_is_not_what_a_parked_one_is(engine: Engine) -> None:
    outage_of(engine)
    storms.tend()
    assert not Job.objects.stranded().exists()


def test_an_agent_has_its_share_of_retries_and_what_is_more_waits(engine: Engine, settings: Any) -> None:
    settings.SAG = {"retry_least": 2, "retry_share": 0.1, "breaker_steps": 15}
    engine.says("shop.a", AWAY)
    for _ in range(6):
        Trip.start()
    engine.drain()
    far = Step.objects.filter(name="a", run_after__gt=SagNow() + timedelta(seconds=20)).count()
    assert far == 4


@pytest.mark.parametrize(
    ("calls", "steps", "found"),
    [
        ({"ok": 0, "x": 5}, {"x": 5}, "x"),
        ({"ok": 5, "x": 5}, {"x": 5}, "x"),
        ({"ok": 6, "x": 5}, {"x": 5}, None),
        ({"x": 50}, {"x": 4}, None),
        ({"x": 3, "y": 5}, {"x": 3, "y": 5}, "y"),
        ({"retry": 50, "ok": 1}, {}, None),
        ({}, {}, None),
    ],
)
def test_what_is_an_outage(calls: dict[str, int], steps: dict[str, int], found: str | None) -> None:
    counts = Counts(window=timedelta(seconds=30), calls=calls, steps=steps)
    outcome = outage(counts, steps=5, share=0.5)
    assert (outcome.cause if outcome else None) == found


def test_retries_have_a_budget() -> None:
    def within(calls: dict[str, int]) -> bool:
        return retry_is_within_budget(Counts(window=timedelta(seconds=30), calls=calls, steps={}), share=0.2, least=3)

    assert within({"retry": 2})
    assert not within({"retry": 3})
    assert within({"retry": 19, "ok": 90, "x": 10})
    assert not within({"retry": 20, "ok": 90, "x": 10})


def test_rings_for_the_admitted_go_to_their_queue(engine: Engine) -> None:
    outage_of(engine)
    engine.says("shop.a", {"ok": True})
    engine.ahead(2.5)
    storms.tend()
    supervision.ring_due()
    assert [(task, queue) for task, queue, _ in engine.rings] == [(broker.WORK, "agents")]


def test_answers_that_come_well_are_counted_with_the_heartbeat(engine: Engine) -> None:
    engine.says("shop.a", {"ok": True})
    for _ in range(3):
        Trip.start()
    engine.drain()
    heart._beat()
    assert storms.counts_of("shop", now() - timedelta(minutes=1)).ok == 3


def test_a_service_that_mostly_answers_is_not_away(engine: Engine) -> None:
    """Its good answers are counted before its failures, although they wait for no heartbeat."""
    engine.says("shop.a", *[{"ok": True}] * 7, AWAY)
    for _ in range(13):
        Trip.start()
        engine.drain()
    assert storms.counts_of("shop", now() - timedelta(minutes=1)).steps == {"ok": 0, "unavailable": 6, "retry": 0}
    assert not Breaker.objects.exists()


def test_refusals_for_good_are_answers_and_speak_against_an_outage(engine: Engine) -> None:
    engine.says("shop.a", *[Permanent("Sold out.", code="sold_out")] * 7, AWAY)
    for _ in range(13):
        Trip.start()
        engine.drain()
    assert not Breaker.objects.exists()
