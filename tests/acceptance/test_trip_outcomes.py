"""One trip on a healthy system, and trips that cannot be had: what is booked, what is undone, what is told."""

import base64
import json
import threading
from typing import Self

import redis

from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import Trips
from tests.waiting import wait_until


class Doorbells:
    """Hears every message that is put into the agents' queue while the block runs."""

    END = "the test has heard enough"

    def __init__(self, system: RunningSystem) -> None:
        assert system.servers
        self.client = system.servers.valkey_server.connect()
        self.listener = redis.Redis(unix_socket_path=str(system.servers.valkey_server.socket))
        self.steps: list[int] = []

    def __enter__(self) -> Self:
        self.monitor = self.listener.monitor()  # type: ignore[no-untyped-call]
        self.monitor.__enter__()
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.echo(self.END)
        self.thread.join(timeout=10)
        self.client.close()
        self.listener.close()

    def _listen(self) -> None:
        for heard in self.monitor.listen():
            command = heard["command"]
            if command.startswith("LPUSH agents "):
                message = json.loads(command.removeprefix("LPUSH agents "))
                (_queue, step), *_ = json.loads(base64.b64decode(message["body"]))
                self.steps.append(step)
            if self.END in command:
                return


def test_a_happy_trip_completes_with_one_doorbell_and_one_commit_a_step(system: RunningSystem) -> None:
    said_before = len(system.said)
    with Doorbells(system) as doorbells, Trips(system) as trips:
        trip = trips.book()
        booking = trips.end(trip)
        assert booking["state"] == "Completed"
        assert [step["state"] for step in booking["steps"]] == ["Completed"] * 3
        assert booking["receipt"] == {
            "outcome": "Completed",
            "undone": [],
            "not_undone": [],
            "pending": [],
            "safe_to_retry_with_new_key": False,
        }
        assert trips.live(trip) == ["cars", "flights", "hotels"]

    mine = {row["id"] for row in system.sql("SELECT id FROM sag_workflows_step WHERE job_id = %s", trip)}
    assert len([step for step in doorbells.steps if step in mine]) == 1

    query = "SELECT kind, step, xmin::text AS commit FROM sag_workflows_event WHERE job_id = %s ORDER BY seq"
    told = system.sql(query, trip)
    by_commit: dict[str, list[str]] = {}
    for event in told:
        by_commit.setdefault(event["commit"], []).append(f"{event['kind']} {event['step']}".strip())
    assert list(by_commit.values()) == [
        ["job.opened"],
        ["step.claimed flight"],
        ["step.completed flight", "step.claimed hotel"],
        ["step.completed hotel", "step.claimed car"],
        ["step.completed car", "job.completed"],
    ]
    rows = """SELECT xmin::text AS commit FROM sag_workflows_job WHERE id = %s
              UNION SELECT xmin::text FROM sag_workflows_step WHERE job_id = %s
              UNION SELECT attempt.xmin::text FROM sag_workflows_attempt attempt
                    JOIN sag_workflows_step step ON step.id = attempt.step_id WHERE step.job_id = %s"""
    assert {row["commit"] for row in system.sql(rows, trip, trip, trip)} <= set(by_commit)
    assert "Traceback" not in system.said[said_before:]


def test_what_the_flight_answered_goes_into_the_hotels_request(system: RunningSystem) -> None:
    with Trips(system) as trips:
        trip = trips.book()
        trips.end(trip)
        arrives_at = trips.step(trip, "flight")["result"]["arrives_at"]
        assert trips.step(trip, "hotel")["attempts"][0]["input"]["arrives_at"] == arrives_at


def test_a_sold_out_car_undoes_the_hotel_and_then_the_flight(system: RunningSystem) -> None:
    system.fault("cars", sold_out=True)
    with Trips(system) as trips:
        trip = trips.book()
        booking = trips.end(trip)
        assert (booking["state"], booking["reason"]) == ("Compensated", "step_failed")
        assert trips.live(trip) == []
        cancels = [call for call in system.ledger()["calls"] if call["operation"] == "cancel"]
        assert [call["service"] for call in cancels] == ["hotels", "flights"]
        assert {call["outcome"] for call in cancels} == {"cancelled"}
        assert {entry["step"] for entry in booking["receipt"]["undone"]} == {"flight", "hotel"}
        assert booking["receipt"]["not_undone"] == []
        assert booking["receipt"]["safe_to_retry_with_new_key"]
        assert trips.job(trip)["needs_person"] == []
        assert trips.step(trip, "car")["error"]["code"] == "sold_out"


def test_a_trip_cancelled_while_the_hotel_is_asked_is_undone_once_the_hotel_has_answered(system: RunningSystem) -> None:
    system.fault("hotels", latency_ms=2000, times=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        trips.wait_for_call(trip, "hotels", "reserve")
        answer = trips.cancel(trip)
        assert answer.status_code == 202
        assert trips.step(trip, "hotel")["state"] == "Running"
        assert trips.cancel(trip, reason="once more").status_code == 202  # asking again changes nothing
        booking = trips.end(trip)
        assert (booking["state"], booking["reason"]) == ("Compensated", "cancelled")
        kinds = [(event["kind"], event["step"]) for event in trips.events(trip)]
        assert kinds.index(("job.stopping", None)) < kinds.index(("step.completed", "hotel"))
        assert trips.live(trip) == []
        assert trips.calls(trip, "cars") == []


def test_an_undo_that_keeps_failing_stops_nobody_elses_and_is_done_after_a_persons_retry(system: RunningSystem) -> None:
    """SAS-072: bounded attempts, the hotel still undone, the flight named to a person, one retry makes all clean."""
    system.fault("cars", sold_out=True)
    system.fault("flights", error_rate=1, operations=["cancel"])
    with Trips(system) as trips:
        trip = trips.book()
        booking = trips.end_without_waiting(trip)
        assert booking["state"] == "Failed"
        assert trips.live(trip) == ["flights"]
        undo = trips.step(trip, "flight.undo")
        assert undo["state"] == "Failed"
        assert len(trips.calls(trip, "flights", "cancel")) == undo["attempts_allowed"] == 10
        reference = trips.step(trip, "flight")["result"]["reference"]
        (told,) = trips.job(trip)["needs_person"]
        assert told.startswith("flight: ")
        assert reference in told
        (left,) = booking["receipt"]["not_undone"]
        assert (left["step"], left["reference"]) == ("flight", reference)

        system.fault("flights")
        asked = trips.post(f"/jobs/{trip}/steps/flight.undo/retries", {"reason": "the airline is well again"})
        assert asked.status_code == 202
        wait_until(lambda: trips.job(trip)["state"] == "Compensated", what="the undo is done")
        assert trips.live(trip) == []
        assert trips.job(trip)["needs_person"] == []
