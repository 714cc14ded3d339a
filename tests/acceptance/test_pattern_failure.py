"""The pattern's worked failure, with its numbers: a worker falls silent in a call that was made, and another goes on.

A lease lasts 10 s and is renewed every 3 s, the supervisor looks every 5 s, a step has 3 attempts with a back-off of up to
2 s and then 4 s, and the hotel must have answered within 30 s.
"""

import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.acceptance.conftest import SYSTEM, build
from tests.acceptance.jobs import Jobs
from tests.acceptance.system import RunningSystem, send
from tests.acceptance.trips import BOOKING, Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

LEASE, BEAT, SWEEP = 10, 3, 5  # seconds
BACK_OFF = 2
QUEUE_WAIT = 2  # a due step is rung for every second
A_MOMENT = 1  # what a sweep, or a busy machine, takes for itself

RETRY = {"attempts": 3, "first": BACK_OFF, "factor": 2}
CARELESS = {"honours_keys": False, "closes_keys": False}  # what it knows of a key only its probe says
SETTINGS = {"lease": LEASE, "heartbeat": BEAT, "sweep": SWEEP, "retry": RETRY, "agents": {"hotel": CARELESS}}
START = """
from dataclasses import replace
from datetime import timedelta
from workflows import scheduler
from workflows.catalog import TripBooking
from workflows.conf import conf
steps = tuple(replace(step, timeout=timedelta(seconds={timeout}), retry=conf.retry) for step in TripBooking.plan.steps)
print(scheduler.open_job(plan=replace(TripBooking.plan, steps=steps), input={booking!r}).pk)
"""


@pytest.fixture(scope="module")
def numbered() -> Iterator[RunningSystem]:
    """A system with the numbers of the text."""
    system = build(settings=SETTINGS)
    try:
        system.start()
        yield system
    finally:
        system.stop()


@pytest.fixture
def system(numbered: RunningSystem, request: pytest.FixtureRequest) -> RunningSystem:
    numbered.heal()
    request.node.stash[SYSTEM] = numbered
    return numbered


def start(trips: Trips, timeout: int = 30) -> str:
    """A trip whose steps each have so many seconds and 3 attempts."""
    code = START.format(timeout=timeout, booking=BOOKING)
    said = trips.system.manage("shell", "--no-imports", "-c", code)
    assert said.returncode == 0, said.stderr
    trip = said.stdout.split()[-1]
    trips.ids.append(trip)
    return trip


def freeze_after_two_beats(trips: Trips, trip: str) -> tuple[int, datetime]:
    """Wait until the hotel's lease was renewed twice, and stop its worker: (its pid, when the lease ends)."""
    query = "SELECT complete_by FROM sag_workflows_step WHERE job_id = %s AND name = 'hotel' AND state = 'Running'"
    leases: set[datetime] = set()

    def renewed_twice() -> bool:
        leases.update(row["complete_by"] for row in trips.system.sql(query, trip))
        return len(leases) >= 3

    wait_until(renewed_twice, what="two heartbeats of the hotel")
    first, *others = [(after - before).total_seconds() for before, after in pairwise(sorted(leases))]
    assert first < BEAT + A_MOMENT  # a heart that beats already goes on in its own time
    assert all(BEAT - A_MOMENT < renewal < BEAT + A_MOMENT for renewal in others), others
    pid = trips.worker_pid(trip, "hotel")
    send(pid, signal.SIGSTOP)
    return pid, trips.system.sql(query, trip)[0]["complete_by"]


def attempts_at_the_hotel(trips: Trips) -> list[dict[str, Any]]:
    return trips.attempts("step.name = 'hotel'")


def late_word(trips: Trips, trip: str) -> dict[str, Any]:
    return wait_until(lambda: trips.step(trip, "hotel")["attempts"][0]["late"], what="the late word is kept")


def test_a_worker_falls_silent_in_a_call_and_another_takes_over_within_the_bounds(system: RunningSystem) -> None:
    system.fault("hotels", latency_ms=8000, times=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = start(trips)
        trips.wait_for_call(trip, "hotels", "reserve")
        silent, lease_ends = freeze_after_two_beats(trips, trip)
        try:
            wait_until(lambda: trips.step(trip, "hotel")["state"] == "Completed", 40, what="the hotel is done")
        finally:
            send(silent, signal.SIGCONT)
        first, second = attempts_at_the_hotel(trips)
        detected = first["finished_at"]
        assert (first["outcome"], first["in_doubt"]) == ("lost", True)
        assert lease_ends <= detected <= lease_ends + timedelta(seconds=SWEEP + A_MOMENT)
        assert second["started_at"] <= detected + timedelta(seconds=BACK_OFF + QUEUE_WAIT + A_MOMENT)
        assert second["started_at"] - lease_ends < timedelta(seconds=SWEEP + BACK_OFF + QUEUE_WAIT + A_MOMENT)
        assert second["finished_at"] - second["started_at"] < timedelta(seconds=2)
        assert second["token"] != first["token"]
        hotel = trips.step(trip, "hotel")
        (booked,) = [it for it in system.ledger()["reservations"] if it["key"] == hotel["idempotency_key"]]
        assert (booked["live"], booked["reference"]) == (True, hotel["result"]["reference"])

        late = late_word(trips, trip)
        assert (late["outcome"], late["result"]["reference"]) == ("completed", booked["reference"])
        assert trips.end(trip)["state"] == "Completed"
        after = trips.step(trip, "hotel")
        assert (after["state"], after["attempt"], after["result"]) == ("Completed", 2, hotel["result"])
        assert trips.live(trip) == ["cars", "flights", "hotels"]
        assert trips.job(trip)["needs_person"] == []


def test_where_the_service_forgets_keys_the_late_report_shows_two_confirmations_and_a_person_is_told(
    system: RunningSystem,
) -> None:
    system.fault("hotels", latency_ms=28_000, honour_keys=False, times=1, operations=["reserve"])
    with Jobs(system) as trips:
        trip = start(trips, timeout=60)
        trips.wait_for_call(trip, "hotels", "reserve")
        silent, _ = freeze_after_two_beats(trips, trip)
        try:
            wait_until(lambda: trips.step(trip, "hotel")["state"] == "Completed", 40, what="the hotel is done")
        finally:
            send(silent, signal.SIGCONT)
        late = late_word(trips, trip)
        assert trips.finish(trip)["state"] == "Completed"
        hotel = trips.step(trip, "hotel")
        confirmations = {late["result"]["reference"], hotel["result"]["reference"]}
        booked = [it for it in system.ledger()["reservations"] if it["key"] == hotel["idempotency_key"] and it["live"]]
        assert {it["reference"] for it in booked} == confirmations
        assert len(booked) == 2
        assert hotel["in_doubt"]
        (told,) = trips.job(trip)["needs_person"]
        assert told.startswith("hotel")


def test_each_step_becomes_ready_in_the_same_write_that_ends_the_one_before(system: RunningSystem) -> None:
    with Trips(system) as trips:
        trip = start(trips)
        trips.end(trip)
        query = """SELECT kind || ' ' || step AS what, xmin::text AS write FROM sag_workflows_event
                   WHERE job_id = %s AND kind IN ('step.claimed', 'step.completed')"""
        writes = {row["what"]: row["write"] for row in system.sql(query, trip)}
        assert writes["step.completed flight"] == writes["step.claimed hotel"]
        assert writes["step.completed hotel"] == writes["step.claimed car"]


def test_a_car_that_fails_for_good_undoes_the_hotel_and_then_the_flight(system: RunningSystem) -> None:
    system.fault("cars", down=True, operations=["reserve"])
    with Trips(system) as trips:
        trip = start(trips)
        booking = trips.end(trip)
        assert (booking["state"], booking["reason"]) == ("Compensated", "step_failed")
        assert [attempt["outcome"] for attempt in trips.attempts("step.name = 'car'")] == ["failed"] * 3
        cancels = [call for call in system.ledger()["calls"] if call["operation"] == "cancel"]
        assert [call["service"] for call in cancels] == ["hotels", "flights"]
        undos = [trips.step(trip, f"{name}.undo") for name in ("hotel", "flight")]
        assert [undo["idempotency_key"] for undo in undos] == [f"{trip}:hotel.undo", f"{trip}:flight.undo"]
        assert [(undo["attempt"], undo["attempts_allowed"]) for undo in undos] == [(1, 10), (1, 10)]
        assert trips.live(trip) == []
