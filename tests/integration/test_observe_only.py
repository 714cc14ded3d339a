"""Observe-only: the supervisor looks, decides, tells what it would have done, and changes no job."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from agents import Permanent, Transient
from supervisor import metrics, retention, storms, tasks
from supervisor.models import Incident, Sweep
from tests.integration import visitors
from tests.integration.engine import Engine, named, state_of, states
from tests.integration.outages import Delivery
from workflows import Retry, Workflow, signal, step, timer
from workflows.models import Attempt, Breaker, CallCount, Event, Job, Step


class Observed(Workflow):
    a = step(
        "shop.a",
        compensation="shop.undo_a",
        queue_timeout=timedelta(minutes=5),
        retry=Retry(attempts=3, first=timedelta(seconds=1)),
    )
    b = step("shop.b", after=[a])


class ObservedInTime(Workflow):
    deadline = timedelta(seconds=30)
    a = step("shop.a")


class ObservedWaits(Workflow):
    pause = timer(timedelta(seconds=5))
    word = signal(timeout=timedelta(seconds=30), after=[pause])


@pytest.fixture
def observing(engine: Engine, settings: Any) -> Engine:
    settings.SAG = {"observe_only": True, "breaker_steps": 5}
    return engine


_KEPT = (Job, Step, Attempt, Event, Breaker, CallCount, Incident)


def store() -> list[list[dict[str, Any]]]:
    """All rows of the engine."""
    return [list(model._base_manager.order_by("pk").values()) for model in _KEPT]


def work(engine: Engine) -> None:
    """Let the workers answer their doorbells; what the supervisor is rung for is answered as its task does."""
    while engine.rings:
        task, queue, arguments = engine.rings.popleft()
        if task == "supervisor.tasks.decide":
            tasks.decide(*arguments)
        else:
            engine.answer(task, queue, arguments)


def trouble(engine: Engine) -> dict[str, Job]:
    """One job in each trouble that a sweep looks for."""
    engine.says("shop.a", Transient("busy"))
    failed = Observed.start()
    work(engine)
    jobs = {"failed": failed, "overdue": Observed.start(), "late": ObservedInTime.start()}
    engine.claim(named(jobs["overdue"], "a"))
    jobs |= {"stranded": Observed.start(), "queued": Observed.start(), "unheard": ObservedWaits.start()}
    Step.objects.filter(job=jobs["stranded"]).update(held=True)
    engine.sweep()  # deadlines are set
    engine.ahead(6)
    tasks.supervision.wake_due()
    tasks.supervision.ring_due()
    engine.rings.clear()
    engine.ahead(400)
    return jobs


def test_each_trouble_is_found_and_decided_on_and_nothing_is_changed(observing: Engine) -> None:
    jobs = trouble(observing)
    before = store()
    tasks.supervision.wake_due()
    row = observing.sweep()
    assert store() == before
    told = {decision["job"]: (decision["remedy"], decision["acted"]) for decision in row.decisions}
    assert told == {
        str(jobs["failed"].pk): ("retry", False),
        str(jobs["overdue"].pk): ("retry", False),
        str(jobs["late"].pk): ("stop", False),
        str(jobs["stranded"].pk): ("heal", False),
        str(jobs["queued"].pk): ("fail", False),
        str(jobs["unheard"].pk): ("fail", False),
    }
    assert (row.observed, row.acted, row.failed) == (True, 0, 0)
    assert row.found == len(jobs)
    assert Sweep.objects.get(pk=row.pk).counts == {"retry": 2, "fail": 2, "stop": 1, "heal": 1}


def test_what_it_would_have_done_is_what_it_does_afterwards(observing: Engine, settings: Any) -> None:
    jobs = trouble(observing)
    would = {(decision["job"], decision["remedy"]) for decision in observing.sweep().decisions}
    settings.SAG = {"breaker_steps": 5}
    tasks.supervision.wake_due()
    assert named(jobs["unheard"], "word").state == "Failed"
    done = {(decision["job"], decision["remedy"]) for decision in observing.sweep().decisions}
    assert would - done == {(str(jobs["unheard"].pk), "fail")}
    # And it goes on at once with those whose wait it has ended.
    assert done - would == {(str(jobs[name].pk), "compensate") for name in ("queued", "unheard")}


def test_a_failures_doorbell_changes_nothing_either(observing: Engine) -> None:
    observing.says("shop.a", Permanent("no"))
    job = Observed.start()
    work(observing)
    assert (named(job, "a").state, named(job, "a").remedy, state_of(job)) == ("Failed", "", "Running")


def test_what_goes_well_goes_on(observing: Engine) -> None:
    job, waits = Observed.start(), ObservedWaits.start()
    observing.rings.clear()
    for _ in range(3):
        observing.ahead(6)
        tasks.ring_due()
        work(observing)
    assert state_of(job) == "Completed"
    assert states(waits) == {"pause": "Completed", "word": "Running"}


def test_no_breaker_opens(observing: Engine, caplog: pytest.LogCaptureFixture) -> None:
    observing.says("shop.a", Transient("away", code="unavailable"))
    for _ in range(8):
        Delivery.start()
    work(observing)
    observing.sweep()
    storms.tend()
    assert not Breaker.objects.filter(parks=True).exists()
    assert not Incident.objects.exists()
    assert "opens" not in caplog.text


def test_nothing_is_forgotten(observing: Engine, settings: Any) -> None:
    job = Observed.start()
    work(observing)
    assert state_of(job) == "Completed"
    observing.ahead(40 * 86_400)
    tasks.prune()
    assert Job.objects.filter(pk=job.pk).exists()
    assert retention.prune() == 1  # had it not been for that


def test_many_rows_are_looked_at_in_bounds_and_counted_all(observing: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.supervision, "_OBSERVED_A_QUESTION", 3)
    for _ in range(7):
        observing.claim(named(Observed.start(), "a"))
    observing.ahead(11)
    row = observing.sweep()
    assert (row.found, row.counts) == (7, {"retry": 3})


def test_a_row_that_cannot_be_handled_is_found_without_being_handled(observing: Engine) -> None:
    observing.claim(named(Observed.start(), "a"))
    observing.ahead(11)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE sag_workflows_event ADD CONSTRAINT poison CHECK (kind <> 'step.expired') NOT VALID")
    try:
        row = observing.sweep()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE sag_workflows_event DROP CONSTRAINT poison")
    assert (row.found, row.failed, row.decisions) == (1, 1, [])
    assert "poison" in row.problems[0]


def test_whoever_looks_is_told(observing: Engine) -> None:
    reader = visitors.reader()
    said = "The supervisor only observes"
    assert said not in reader.get(reverse("overview")).content.decode()
    observing.claim(named(Observed.start(), "a"))
    observing.ahead(11)
    observing.sweep()
    for page in ("overview", "jobs", "sweeps"):
        assert said in reader.get(reverse(page)).content.decode()
    assert "Would have decided: 1 retry" in " ".join(reader.get(reverse("sweeps")).content.decode().split())
    answer = Client().get("/health/ready").json()
    assert [note.startswith(said) for note in answer["notes"]] == [True]
    assert b"sag_observe_only 1.0" in metrics.exposed()
