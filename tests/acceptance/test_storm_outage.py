"""A vendor that is away for a while, under a stream of trips: one incident, nothing burnt, and all of it ends by itself."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

Maker = Callable[..., RunningSystem]

RECOVERS_WITHIN = 120.0
POOL = 4  # so many calls may be under way when the breaker opens
NO_BREAKER = {"breaker_steps": 1_000_000, "retry_least": 1_000_000}


@dataclass(frozen=True, kw_only=True)
class Storm:
    """What an outage was like. `calls`: those that the hotel heard while it was away, `again`: how many of them were for
    a step that had called before. `charged`: failures that count against their step's allowance. `last`: how many seconds
    after its return the last trip ended.
    """

    begun: datetime
    trips: dict[str, int]
    calls: int
    again: int
    charged: int
    last: float


def storm(trips: Trips, number: int, seconds: float) -> Storm:
    """A tenth of the trips, then an outage of the hotel under a steady stream of the others."""
    system = trips.system
    begun = trips.now()
    trips.book_many(number // 10)
    system.fault("hotels", down=True)
    book_steadily(trips, number - number // 10, seconds)
    asked = [call["key"] for call in system.ledger()["calls"] if call["outcome"] == "down"]
    system.fault("hotels")
    back = time.monotonic()
    ended = trips.wait_for_end(timeout=RECOVERS_WITHIN)
    last = time.monotonic() - back
    charged = "SELECT sum(charged) AS all FROM sag_workflows_step WHERE job_id = ANY(%s::uuid[]) AND name = 'hotel'"
    found = Storm(
        begun=begun,
        trips=ended,
        calls=len(asked),
        again=len(asked) - len(set(asked)),
        charged=int(system.sql(charged, trips.ids)[0]["all"]),
        last=last,
    )
    print(found, "load", os.getloadavg())
    return found


def book_steadily(trips: Trips, number: int, seconds: float) -> None:
    begun, booked = time.monotonic(), 0
    while booked < number:
        due = min(number, 1 + int(number * (time.monotonic() - begun) / seconds))
        trips.book_many(due - booked)
        booked = due
        time.sleep(0.1)


def test_a_hotel_that_is_down_is_one_incident_and_costs_no_trip(system: RunningSystem) -> None:
    with Trips(system) as trips:
        found = storm(trips, 150, 20.0)
        no_trip_is_lost_and_no_attempt_burnt(trips, found)
        one_incident_is_over(trips, found.begun, "unavailable")


@pytest.mark.slow
def test_a_hotel_that_is_down_for_a_minute_under_five_hundred_trips_is_one_incident_and_one_message(
    make_system: Maker,
) -> None:
    system = make_system()
    letters = system.folder / "letters"
    system.variables = {"SAG_NOTIFY": "ada@example.com", "EMAIL_URL": f"filemail:///{letters}"}
    system.start()
    with Trips(system) as trips:
        found = storm(trips, 500, 60.0)
        no_trip_is_lost_and_no_attempt_burnt(trips, found)
        one_incident_is_over(trips, found.begun, "unavailable")
        [letter] = letters.iterdir()
        assert "Subject: hotel is away: unavailable" in letter.read_text()
        assert system.sql("SELECT id FROM sag_supervisor_need") == []


@pytest.mark.slow
def test_the_same_minute_without_a_breaker_burns_attempts_and_undoes_trips(make_system: Maker) -> None:
    """For comparison: what the breaker saves."""
    system = make_system(settings=NO_BREAKER)
    system.start()
    with Trips(system) as trips:
        found = storm(trips, 500, 60.0)
        assert min(found.calls, found.charged) > 300
        assert found.trips["Compensated"] > 20
        assert system.sql("SELECT agent FROM sag_supervisor_incident") == []


def no_trip_is_lost_and_no_attempt_burnt(trips: Trips, found: Storm) -> None:
    """While it is open there is one call for each trial; before that, as many as it took to open it."""
    assert found.trips == {"Completed": len(trips.ids)}
    [incident] = trips.system.sql("SELECT * FROM sag_supervisor_incident WHERE opened_at >= %s", found.begun)
    trials = trips.system.sql("SELECT trials FROM sag_workflows_breaker WHERE agent = 'hotel'")[0]["trials"]
    hotel = trips.attempts("step.name = 'hotel'")
    needed = [
        attempt
        for attempt in hotel
        if attempt["outcome"] == "failed" and attempt["finished_at"] <= incident["opened_at"]
    ]
    assert 10 <= found.calls <= len(needed) + POOL + trials
    assert found.charged <= len(needed)  # once it is open nothing is charged
    assert len(hotel) <= len(trips.ids) + found.calls
    recent_calls = len(trips.ids) // 10 + found.calls
    assert found.again - trials <= max(20, recent_calls / 2)  # the agent's budget of retries


def one_incident_is_over(trips: Trips, begun: datetime, cause: str) -> None:
    def incidents() -> list[tuple[str, str, bool]]:
        rows = trips.system.sql("SELECT * FROM sag_supervisor_incident WHERE opened_at >= %s", begun)
        return [(row["agent"], row["cause"], row["closed_at"] is not None) for row in rows]

    wait_until(lambda: incidents() == [("hotel", cause, True)], 20, what="one incident, and it is closed")
    assert trips.system.sql("SELECT agent FROM sag_workflows_breaker WHERE parks") == []


def test_deaths_and_cancellations_in_a_storm_of_lost_answers_leave_nothing_half_done(system: RunningSystem) -> None:
    """Each call is done and its answer lost; whoever tends the breaker dies, and so does who makes the trials."""
    with Trips(system) as trips:
        begun = trips.now()
        system.fault("hotels", lose_answer_rate=1, operations=["reserve", "find"])
        trips.book_many(40)
        wait_until(
            lambda: system.sql("SELECT count(*) FROM sag_workflows_step WHERE parked")[0]["count"] > 20,
            60,
            what="most trips are parked",
        )
        unwanted = trips.ids[::4]
        for trip in unwanted[:5]:
            assert trips.cancel(trip).status_code == 202
        former = {role: system.kill(role) for role in ("agents", "supervisor", "beat")}
        for role, pid in former.items():
            system.wait_for_restart(role, pid)
        for trip in unwanted[5:]:
            assert trips.cancel(trip).status_code == 202
        system.fault("hotels")
        assert trips.wait_for_end(timeout=RECOVERS_WITHIN) == {"Completed": 30, "Compensated": 10}, undone_unasked(
            trips
        )
        one_incident_is_over(trips, begun, "no_answer")


def undone_unasked(trips: Trips) -> list[dict[str, Any]]:
    """The hotels of trips that nobody cancelled and that did not complete, each with the history of its trip."""
    query = """SELECT step.charged, step.attempts_allowed, step.error_code,
                      (SELECT array_agg(event.kind || ' ' || event.step || ' ' || event.reason ORDER BY event.seq)
                       FROM sag_workflows_event event WHERE event.job_id = job.id) AS history
               FROM sag_workflows_job job JOIN sag_workflows_step step ON step.job_id = job.id AND step.name = 'hotel'
               WHERE job.id = ANY(%s::uuid[]) AND job.state <> 'Completed' AND job.reason <> 'cancelled'"""
    return trips.system.sql(query, trips.ids)
