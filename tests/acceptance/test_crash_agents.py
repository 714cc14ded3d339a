"""Agents that die, freeze or are restarted in the middle of their work: another takes over, and nothing is done twice."""

import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.operators import Operator
from tests.acceptance.system import RunningSystem, is_alive, send
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

SLOW_HOTEL: dict[str, Any] = {"latency_ms": 14_000, "times": 1, "operations": ["reserve"]}
RUNS_AGAIN_WITHIN = 20.0  # seconds after the death of a worker, with the default settings


@pytest.fixture
def second_worker(system: RunningSystem) -> Iterator[None]:
    """Another agent worker beside the system's own."""
    beside = RunningSystem(
        system.folder,
        servers=system.servers,
        variables={"SIMULATORS_PORT": system.simulators_url.rpartition(":")[2]},
        arguments=("--agents", "--concurrency", "2"),
    )
    beside.output = system.folder / f"beside-{uuid.uuid4().hex}.txt"
    process = beside.spawn()
    try:
        wait_until(lambda: re.search(r"agents-\d+@\S+ ready", beside.said), 90, what="the second worker listens")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


@pytest.mark.usefixtures("second_worker")
def test_when_a_whole_worker_is_killed_in_a_slow_call_another_takes_over_within_twenty_seconds(
    system: RunningSystem,
) -> None:
    killed_in_a_slow_call(system, parent_of)


def test_when_a_pool_child_is_killed_in_a_slow_call_another_takes_over_within_twenty_seconds(
    system: RunningSystem,
) -> None:
    """SAS-002 and SAS-027: the attempt is taken for lost when its lease is over, with nothing else going on."""
    killed_in_a_slow_call(system, lambda child: child)


def killed_in_a_slow_call(system: RunningSystem, victim: Callable[[int], int]) -> None:
    system.fault("hotels", **SLOW_HOTEL)
    with Trips(system) as trips:
        trip = trips.book()
        trips.wait_for_call(trip, "hotels", "reserve")
        child = trips.worker_pid(trip, "hotel")
        killed_at = trips.now()
        kill(victim(child))
        wait_until(lambda: not is_alive(child), 10, what="the child goes with its main process")
        assert trips.end(trip)["state"] == "Completed"
        lost, second = trips.attempts("step.name = 'hotel'")[:2]
        assert (lost["outcome"], lost["in_doubt"]) == ("lost", True)
        assert lost["resolved_by"] in ("probe", "answer")
        assert (second["started_at"] - killed_at).total_seconds() < RUNS_AGAIN_WITHIN
        assert lost["worker"] != second["worker"]
        assert {attempt["outcome"] for attempt in trips.attempts("step.name <> 'hotel'")} == {"completed"}


def kill(pid: int) -> None:
    send(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 10, what="the process is gone")


def parent_of(pid: int) -> int:
    """The main process of a pool child."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_worker_frozen_past_its_lease_has_its_late_result_refused_and_kept(system: RunningSystem) -> None:
    """SAS-014, SAS-016: one outcome; what the thawed worker says changes nothing and can be read."""
    system.fault("hotels", latency_ms=3000, times=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        trips.wait_for_call(trip, "hotels", "reserve")
        pid = trips.worker_pid(trip, "hotel")
        send(pid, signal.SIGSTOP)
        try:
            assert trips.end(trip)["state"] == "Completed"
        finally:
            send(pid, signal.SIGCONT)
        before = trips.step(trip, "hotel")
        late = wait_until(lambda: trips.step(trip, "hotel")["attempts"][0]["late"], 30, what="the late word is kept")
        after = trips.step(trip, "hotel")
        first, second = after["attempts"]
        assert (first["outcome"], second["outcome"]) == ("lost", "completed")
        assert late["outcome"] == "completed"
        assert late["result"]["reference"] == after["result"]["reference"] == before["result"]["reference"]
        assert after["state"] == before["state"] == "Completed"
        assert ("attempt.late", "hotel", 1) in [(e["kind"], e["step"], e["attempt"]) for e in trips.events(trip)]
        assert trips.job(trip)["state"] == "Completed"
        with Operator(system) as operator:
            assert "Late word" in operator.read(f"/jobs/{trip}")


def test_workers_killed_in_every_undo_still_leave_nothing_live(system: RunningSystem) -> None:
    """SAS-074: the undo of each step loses its worker once; each is done in its order all the same."""
    system.fault("cars", sold_out=True)
    for service in ("hotels", "flights"):
        system.fault(service, latency_ms=3000, times=1, operations=["cancel"])
    with Trips(system) as trips:
        trip = trips.book()
        for service, undo in (("hotels", "hotel.undo"), ("flights", "flight.undo")):
            trips.wait_for_call(trip, service, "cancel")
            kill(trips.worker_pid(trip, undo))
        booking = trips.end_without_waiting(trip)
        assert booking["state"] == "Compensated"
        assert trips.live(trip) == []
        undos = trips.attempts("step.role = 'undo'")
        assert [(attempt["step"], attempt["outcome"]) for attempt in undos] == [
            ("hotel.undo", "lost"),
            ("hotel.undo", "completed"),
            ("flight.undo", "lost"),
            ("flight.undo", "completed"),
        ]


def test_pool_children_killed_at_random_lose_and_double_nothing(system: RunningSystem) -> None:
    """SAS-020: wherever a worker dies between two steps, the trip is nobody's only for a moment."""
    someone = "SELECT worker FROM sag_workflows_step WHERE state = 'Running' ORDER BY random() LIMIT 1"
    system.fault("hotels", latency_ms=100, jitter_ms=200)
    with Trips(system) as trips:
        trips.book_many(25)
        for _ in range(6):
            victim = wait_until(lambda: system.sql(someone), what="a step runs")[0]["worker"]
            kill(int(victim.split(":")[1]))
        assert trips.wait_for_end(timeout=90) == {"Completed": 25}


def test_workers_restarted_in_order_end_their_calls_and_nothing_is_charged(system: RunningSystem) -> None:
    """SAS-008: a deploy's SIGTERM lets what runs end, hands nothing over, and the next worker goes on at once."""
    system.fault("hotels", latency_ms=1500)
    with Trips(system) as trips:
        trips.book_many(8)
        running = "step.name = 'hotel' AND attempt.outcome = ''"
        wait_until(lambda: len(trips.attempts(running)) >= 3, 40, what="calls are in flight")
        former = system.pid("agents")
        send(former, signal.SIGTERM)
        system.wait_for_restart("agents", former)
        assert trips.wait_for_end() == {"Completed": 8}
        assert {attempt["outcome"] for attempt in trips.attempts()} <= {"completed", "released"}


def test_trips_cancelled_while_no_worker_is_there_call_nobody(system: RunningSystem) -> None:
    """SAS-065: what was cancelled in the queue, or before its time, is never begun, also not after another restart."""
    system.freeze("agents")
    with Trips(system) as trips:
        queued = trips.book_many(15)
        later = trips.book_many(5, lambda: trips.start_later(2))
        for trip in (*queued, *later):
            assert trips.cancel(trip).status_code == 202
        assert trips.wait_for_end() == {"Compensated": 20}
        assert trips.booking(queued[0])["reason"] == "cancelled"
        system.thaw("agents")
        trips.end(trips.book())  # the workers have come to what was behind the cancelled ones
        former = system.kill("agents")
        system.wait_for_restart("agents", former)
        wait_until(lambda: trips.now() > max_start(system, later), what="the delayed ones are due")
        trips.end(trips.book())
        called = {call["key"].partition(":")[0] for call in system.ledger()["calls"]}
        assert called.isdisjoint({*queued, *later})
        assert trips.states() == {"Compensated": 20, "Completed": 2}
        assert trips.attempts("step.state = 'Skipped'") == []


def max_start(system: RunningSystem, trips: list[str]) -> Any:
    query = "SELECT max(run_after) AS due FROM sag_workflows_step WHERE job_id = ANY(%s::uuid[])"
    return system.sql(query, trips)[0]["due"]


def test_trips_wait_for_workers_that_are_away_and_then_run(system: RunningSystem) -> None:
    """Ten seconds without workers: nothing piles up in the broker, nothing is charged, all of it runs afterwards."""
    assert system.servers
    system.freeze("agents")
    with Trips(system) as trips:
        trips.book_many(10)
        since = trips.now()
        wait_until(lambda: (trips.now() - since).total_seconds() >= 10, 30, what="ten seconds have passed", every=0.5)
        assert trips.attempts() == []
        with system.servers.valkey_server.connect() as broker:
            assert broker.llen("agents") <= 40  # each may be rung for again, more and more rarely
        system.thaw("agents")
        assert trips.wait_for_end() == {"Completed": 10}
        assert {attempt["number"] for attempt in trips.attempts()} == {1}
