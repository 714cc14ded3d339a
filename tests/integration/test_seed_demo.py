"""The demo's jobs: each trip meets the fault that was meant for it, and nothing is left behind."""

import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.core.management import call_command

from agents.simulators.ledger import Ledger
from agents.simulators.server import Simulators
from sagsite.home import Home
from supervisor.management.commands import seed_demo
from tests import console_data as data
from tests.integration.engine import Engine
from workflows import verbs
from workflows.catalog import FleetRollout, TripBooking
from workflows.models import Event, Job


@pytest.fixture
def simulators(tmp_path: Path, settings: Any) -> Iterator[httpx2.Client]:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    server = Simulators(("127.0.0.1", 0), ledger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings.SIMULATORS_URL = f"http://127.0.0.1:{server.server_port}"
    with httpx2.Client(base_url=settings.SIMULATORS_URL, trust_env=False) as client:
        yield client
    server.shutdown()
    server.server_close()


def faults(simulators: httpx2.Client) -> Any:
    return simulators.get("/faults").json()


def test_faults_last_for_one_trip_and_those_before_come_back(simulators: httpx2.Client) -> None:
    simulators.put("/faults/hotels", json={"latency_ms": 5})
    before = faults(simulators)
    with seed_demo.faults_of(simulators, {"hotels": {"down": True}, "cars": {"sold_out": True, "times": 1}}):
        assert faults(simulators)["hotels"]["down"]
        assert faults(simulators)["cars"]["sold_out"]
        assert faults(simulators)["flights"] == before["flights"]
    assert faults(simulators) == before


def test_faults_come_back_when_the_trip_goes_wrong(simulators: httpx2.Client) -> None:
    before = faults(simulators)
    with pytest.raises(SystemExit), seed_demo.faults_of(simulators, {"hotels": {"down": True}}):
        seed_demo._leave(15, None)
    assert faults(simulators) == before


@pytest.mark.django_db
def test_jobs_that_have_ended_are_left_alone(simulators: httpx2.Client) -> None:
    for story in seed_demo.STORIES:
        data.completed(story.key)
    for routine in seed_demo.ROUTINES:
        job = routine.workflow.start(routine.input(), key=routine.key)
        verbs.cancel(job.pk, undo=False, actor="test", reason="it is not to run")
    events = Event.objects.count()
    said = StringIO()
    call_command("seed_demo", stdout=said)
    assert said.getvalue().splitlines() == [
        *(f"{story.key}: Completed" for story in seed_demo.STORIES),
        *(f"{routine.key}: Failed" for routine in seed_demo.ROUTINES),
    ]
    jobs = len(seed_demo.STORIES) + len(seed_demo.ROUTINES)
    assert (Job.objects.count(), Event.objects.count()) == (jobs, events)


def test_a_roll_out_is_told_once_it_waits_for_its_approval(engine: Engine, tmp_path: Path, settings: Any) -> None:
    settings.HOME = Home(tmp_path)
    (rollout,) = [routine for routine in seed_demo.ROUTINES if routine.workflow is FleetRollout]
    job = FleetRollout.start(rollout.input(), key=rollout.key)
    engine.drain()
    assert not seed_demo.waits_for_a_person(job)
    engine.pass_time(2)
    engine.drain()
    assert seed_demo.waits_for_a_person(job)
    assert seed_demo.Command().begin(rollout).pk == job.pk
    assert [file.read_text() for file in tmp_path.glob("fleet/*/current")] == ["2.1.0"]


def test_every_story_is_a_valid_trip_with_a_key_of_its_own() -> None:
    assert len({story.key for story in seed_demo.STORIES}) == len(seed_demo.STORIES)
    for story in seed_demo.STORIES:
        assert TripBooking.validate(seed_demo.trip_of(story))["traveller"]["name"] == story.traveller
        assert [step.name for step in story.plan().steps] == ["flight", "hotel", "car"]
