"""Workers that are known, that stop in order, that end themselves when they are deaf, and that stand in for the supervisor."""

import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from sagsite.settings import BASE_DIR
from tests.acceptance.system import RunningSystem, send
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

SLOW_HOTEL: dict[str, Any] = {"latency_ms": 14_000, "times": 1, "operations": ["reserve"]}


def worker_of(system: RunningSystem, pid: int) -> dict[str, Any]:
    """The newest row of the worker whose main process this is, with how long ago it was seen."""
    rows = system.sql(
        """SELECT *, extract(epoch FROM sag_now() - seen_at) AS unseen_for FROM sag_workflows_worker
           WHERE pid = %s ORDER BY started_at DESC LIMIT 1""",
        pid,
    )
    return rows[0]


def sweeps(system: RunningSystem) -> int:
    return int(system.sql("SELECT count(*) AS number FROM sag_supervisor_sweep")[0]["number"])


@contextmanager
def beside(system: RunningSystem, role: str) -> Iterator[None]:
    """Another `manage.py up` for one role, as on a second machine."""
    variables = {"SIMULATORS_PORT": system.simulators_url.rpartition(":")[2]}
    other = RunningSystem(system.folder, servers=system.servers, variables=variables, arguments=(f"--{role}",))
    other.output = system.folder / f"beside-{uuid.uuid4().hex}.txt"
    process = other.spawn()
    try:
        wait_until(lambda: re.search(rf"{role}-\d+@\S+ ready", other.said), 90, what=f"the second {role} listens")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


# --- known ---------------------------------------------------------------------------------------------------------------


def test_an_idle_worker_goes_on_being_seen_and_one_that_stopped_says_so(system: RunningSystem) -> None:
    """Nothing is to be done, so it is seen only because it answers when it is asked."""
    former = system.pid("agents")
    first = wait_until(lambda: worker_of(system, former), 30, what="the worker has told of itself")
    assert first["queues"] == ["agents"]
    later = first["seen_at"] + timedelta(seconds=12)  # it has answered twice by then
    wait_until(lambda: worker_of(system, former)["seen_at"] > later, 60, what="it goes on being seen")
    send(former, signal.SIGTERM)
    present = system.wait_for_restart("agents", former)
    row = wait_until(lambda: worker_of(system, present), 30, what="the next worker has told of itself")
    assert row["name"] != first["name"]
    assert row["stopped_at"] is None
    stopped = worker_of(system, former)
    assert stopped["draining_at"] <= stopped["stopped_at"]


def test_a_trip_shows_which_worker_made_its_calls(system: RunningSystem) -> None:
    with Trips(system) as trips:
        trips.end(trips.book())
        mark = worker_of(system, system.pid("agents"))["name"].split(":")[2]
        assert {attempt["worker"].split(":")[2].split("-")[0] for attempt in trips.attempts()} == {mark}
        wait_until(lambda: worker_of(system, system.pid("agents"))["last_claim_at"], 30, what="the claim is told of")


# --- deploys -------------------------------------------------------------------------------------------------------------


def test_agents_restarted_under_load_lose_no_attempt_and_charge_none(system: RunningSystem) -> None:
    """SAS-008: what runs is ended, what had not begun is handed back, and no step waits until a lease is over."""
    system.fault("hotels", latency_ms=1500)
    with Trips(system) as trips:
        trips.book_many(30)
        in_flight = "step.name = 'hotel' AND attempt.outcome = ''"
        for _ in range(2):
            wait_until(lambda: len(trips.attempts(in_flight)) >= 3, 60, what="calls are in flight")
            former = system.pid("agents")
            send(former, signal.SIGTERM)
            system.wait_for_restart("agents", former)
        assert trips.wait_for_end(timeout=120) == {"Completed": 30}
        assert {attempt["outcome"] for attempt in trips.attempts()} <= {"completed", "released"}
        charged = "SELECT count(*) AS number FROM sag_workflows_step WHERE job_id = ANY(%s::uuid[]) AND charged > 1"
        assert system.sql(charged, trips.ids)[0]["number"] == 0


def test_a_call_that_a_deploy_cannot_wait_for_is_handed_back_and_waits_for_no_lease(system: RunningSystem) -> None:
    """SAS-008: the hotel takes 14 s, the worker that has to stop three; the next one asks what became of the call."""
    system.fault("hotels", **SLOW_HOTEL)
    with Trips(system) as trips:
        trip = trips.book()
        trips.wait_for_call(trip, "hotels", "reserve")
        former = system.pid("agents")
        send(former, signal.SIGTERM)
        system.wait_for_restart("agents", former)
        assert trips.end(trip)["state"] == "Completed"
        first, *others = trips.attempts("step.name = 'hotel'")
        assert (first["outcome"], first["in_doubt"]) == ("released", True)
        assert {attempt["outcome"] for attempt in others} == {"completed"}
        charged = "SELECT charged FROM sag_workflows_step WHERE job_id = %s AND name = 'hotel'"
        assert system.sql(charged, trip) == [{"charged": 0}]


def test_workers_that_are_asked_to_end_do_so_and_others_take_their_place(system: RunningSystem) -> None:
    """A drain from outside: asked over REST, read by the worker, and nothing is lost or charged."""
    system.fault("hotels", latency_ms=1500)
    with Trips(system) as trips:
        trips.book_many(12)
        wait_until(lambda: trips.attempts("step.name = 'hotel'"), 60, what="calls are in flight")
        former = system.pid("agents")
        answer = trips.post("/queues/agents/draining", {"reason": "a new version"})
        assert answer.status_code == 202, answer.text
        assert worker_of(system, former)["name"] in answer.json()["workers"]
        system.wait_for_restart("agents", former, timeout=60)
        assert trips.wait_for_end(timeout=90) == {"Completed": 12}
        assert {attempt["outcome"] for attempt in trips.attempts()} <= {"completed", "released"}
        charged = "SELECT max(charged) AS most FROM sag_workflows_step WHERE job_id = ANY(%s::uuid[])"
        assert system.sql(charged, trips.ids)[0]["most"] == 0
        gone = worker_of(system, former)
        assert gone["drain_asked_at"] <= gone["draining_at"] <= gone["stopped_at"]


# --- deafness ------------------------------------------------------------------------------------------------------------


def make_deaf(system: RunningSystem, name: str) -> None:
    """Let this worker consume nothing any more, as after some losses of a broker: it answers pings all the same."""
    where = ["--destination", f"{name}@{socket.gethostname()}", "--timeout", "5"]
    command = [sys.executable, "-m", "celery", "-A", "sagsite", "control", *where, "cancel_consumer", "agents"]
    done = subprocess.run(command, cwd=BASE_DIR, env=system.environment, capture_output=True, text=True, timeout=60)
    assert "no longer consuming from agents" in done.stdout, done.stdout + done.stderr


def test_a_worker_that_no_longer_consumes_ends_itself_and_work_goes_on(system: RunningSystem) -> None:
    """SAS-005"""
    former, said = system.pid("agents"), len(system.said)
    make_deaf(system, "agents")
    with Trips(system) as trips:
        trip = trips.book()
        system.wait_for_restart("agents", former, timeout=90)
        assert "this worker hears none although it is not busy" in system.said[said:]
        assert "agents ended with exit code 1" in system.said[said:]  # a keeper that restarts failures restarts it too
        assert trips.end(trip)["state"] == "Completed"
        assert {attempt["outcome"] for attempt in trips.attempts()} == {"completed"}


@pytest.mark.slow
def test_a_deaf_worker_beside_one_that_works_ends_itself_too(system: RunningSystem) -> None:
    """SAS-005: no doorbell waits, since the other hears them all; what it misses is being asked after."""
    with beside(system, "agents"):
        former = system.pid("agents")
        make_deaf(system, "agents")
        with Trips(system) as trips:
            trips.end(trips.book())
            system.wait_for_restart("agents", former, timeout=150)
            assert trips.end(trips.book())["state"] == "Completed"


def test_a_worker_that_stood_still_for_long_is_seen_again_and_not_taken_for_deaf(system: RunningSystem) -> None:
    """SAS-023: a host that slept. Doorbells wait when it wakes, and it hears them."""
    with Trips(system) as trips:
        trips.end(trips.book())
        pid = system.pid("agents")
        system.freeze("agents")
        trip = trips.book()
        wait_until(lambda: worker_of(system, pid)["unseen_for"] > 40, 60, what="it was not seen for long", every=0.5)
        system.thaw("agents")
        assert trips.end(trip)["state"] == "Completed"
        wait_until(lambda: worker_of(system, pid)["unseen_for"] < 5, 30, what="it is seen again")
        assert system.pid("agents") == pid
        assert worker_of(system, pid)["draining_at"] is None


# --- the supervisor's rounds ---------------------------------------------------------------------------------------------


def test_a_lost_step_is_recovered_while_beat_and_supervisor_stand_still(system: RunningSystem) -> None:
    system.fault("hotels", **SLOW_HOTEL)
    said = len(system.said)
    for role in ("beat", "supervisor"):
        system.freeze(role)
    with Trips(system) as trips:
        trip = trips.book()
        trips.wait_for_call(trip, "hotels", "reserve")
        send(trips.worker_pid(trip, "hotel"), signal.SIGKILL)
        assert trips.end(trip, timeout=120)["state"] == "Completed"
        assert [attempt["outcome"] for attempt in trips.attempts("step.name = 'hotel'")] == ["lost", "completed"]
        assert "this worker does their rounds meanwhile" in system.said[said:]
        stood_in = len(system.said)
        for role in ("supervisor", "beat"):
            system.thaw(role)
        wait_until(
            lambda: "the supervisor's rounds are done again" in system.said[stood_in:], 30, what="the worker steps back"
        )


def test_a_second_supervisor_beside_the_first_takes_its_place(system: RunningSystem) -> None:
    system.fault("hotels", **SLOW_HOTEL)
    with beside(system, "supervisor"):
        system.freeze("supervisor")
        known, said = sweeps(system), len(system.said)
        with Trips(system) as trips:
            trip = trips.book()
            trips.wait_for_call(trip, "hotels", "reserve")
            send(trips.worker_pid(trip, "hotel"), signal.SIGKILL)
            assert trips.end(trip, timeout=60)["state"] == "Completed"
        assert sweeps(system) > known
        assert "rounds meanwhile" not in system.said[said:]
