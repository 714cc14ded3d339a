"""A vendor that is away for a while, under a stream of trips: one incident, nothing burnt, and all of it ends by itself."""

import time
from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

RECOVERS_WITHIN = 120.0


@pytest.mark.parametrize(
    ("number", "seconds"), [(150, 20.0), pytest.param(500, 60.0, marks=pytest.mark.slow)], ids=["scaled", "whole"]
)
def test_a_hotel_that_is_down_is_one_incident_and_costs_no_trip(
    system: RunningSystem, number: int, seconds: float
) -> None:
    with Trips(system) as trips:
        begun = trips.now()
        trips.book_many(number // 10)
        system.fault("hotels", down=True)
        until = time.monotonic() + seconds
        trips.book_many(number - number // 10)
        wait_until(lambda: time.monotonic() >= until, seconds + 60, what="the outage has lasted")
        asked = [call for call in system.ledger()["calls"] if call["outcome"] == "down"]
        system.fault("hotels")
        assert trips.wait_for_end(timeout=RECOVERS_WITHIN) == {"Completed": number}

        # Those that met it before the breaker opened, one for each trial, and the first calls of an outage are in flight
        # at once: a handful, for trips by the hundred.
        assert 5 <= len(asked) <= 30, len(asked)
        hotel = [attempt for attempt in trips.attempts() if attempt["step"] == "hotel"]
        assert len(hotel) <= number + len(asked)
        charged = system.sql(
            "SELECT max(charged) AS most, sum(charged) AS all FROM sag_workflows_step "
            "WHERE job_id = ANY(%s::uuid[]) AND name = 'hotel'",
            trips.ids,
        )[0]
        assert charged["most"] <= 2
        assert charged["all"] <= number + 10

        one_incident_is_over(trips, begun, "unavailable")


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
