"""Answers that are lost, effects that come late: nothing is done twice, and nothing that nobody heard of stays live."""

from typing import Any

import pytest

from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

ALL_ANSWERS: dict[str, Any] = {"lose_answer_rate": 1, "operations": ["reserve", "find"]}


def test_a_lost_answer_leads_to_one_reservation_under_one_key(system: RunningSystem) -> None:
    system.fault("hotels", lose_answer_rate=1, times=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        assert trips.end(trip)["state"] == "Completed"
        heard = trips.calls(trip, "hotels")
        assert [(call["operation"], call["outcome"]) for call in heard] == [
            ("reserve", "answer_lost"),
            ("find", "found"),
        ]
        hotel = trips.step(trip, "hotel")
        assert {call["key"] for call in heard} == {hotel["idempotency_key"]}
        first, second = hotel["attempts"]
        assert (first["outcome"], first["error"]["kind"], first["resolved_by"]) == ("failed", "in_doubt", "probe")
        assert second["outcome"] == "completed"
        (reservation,) = [it for it in system.ledger()["reservations"] if it["service"] == "hotels"]
        assert hotel["result"]["reference"] == reservation["reference"]


def test_a_probe_whose_answer_is_lost_too_is_asked_again(system: RunningSystem) -> None:
    """The probe's answer is lost as well: the third attempt hears what the first one booked."""
    system.fault("hotels", **ALL_ANSWERS, times=2)
    with Trips(system) as trips:
        trip = trips.book()
        assert trips.end(trip)["state"] == "Completed"
        heard = trips.calls(trip, "hotels")
        assert [(call["operation"], call["outcome"]) for call in heard] == [
            ("reserve", "answer_lost"),
            ("find", "answer_lost"),
            ("find", "found"),
        ]
        assert trips.step(trip, "hotel")["attempt"] == 3


def test_reserve_answers_lost_for_ever_are_made_good_by_the_probe(system: RunningSystem) -> None:
    system.fault("hotels", lose_answer_rate=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        assert trips.end(trip)["state"] == "Completed"
        assert len(trips.calls(trip, "hotels", "reserve")) == 1


def test_a_hotel_that_nobody_ever_heard_of_is_cancelled_too(system: RunningSystem) -> None:
    """SAS-071: attempts run out in doubt, one last look is lost as well, and the undo knows the key only."""
    system.fault("hotels", **ALL_ANSWERS)
    with Trips(system) as trips:
        trip = trips.book()
        booking = trips.end_without_waiting(trip)
        assert (booking["state"], booking["reason"]) == ("Compensated", "step_failed")
        hotel = trips.step(trip, "hotel")
        assert hotel["state"] == "Failed"
        assert hotel["result"] is None
        assert hotel["attempt"] == hotel["attempts_allowed"] + 1  # the last one only asked
        assert [call["outcome"] for call in trips.calls(trip, "hotels", "cancel")] == ["cancelled"]
        assert trips.live(trip) == []
        assert {entry["step"] for entry in booking["receipt"]["undone"]} == {"flight", "hotel"}
        assert trips.job(trip)["needs_person"] == []


def test_requests_that_never_arrive_are_undone_without_harm(system: RunningSystem) -> None:
    """The other side did nothing at all; we cannot know, ask for the undo, and hear that there was nothing."""
    system.fault("hotels", lose_request_rate=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        booking = trips.end_without_waiting(trip)
        assert booking["state"] == "Compensated"
        assert [call["outcome"] for call in trips.calls(trip, "hotels", "cancel")] == ["nothing_found"]
        assert trips.live(trip) == []


def test_a_trip_cancelled_during_the_back_off_after_a_lost_answer_leaves_nothing_live(system: RunningSystem) -> None:
    system.fault("hotels", **ALL_ANSWERS)
    waiting = """SELECT version FROM sag_workflows_step WHERE job_id = %s AND name = 'hotel' AND state = 'NotStarted'
                 AND attempt > 0 AND run_after > sag_now() + interval '0.7 seconds'"""
    with Trips(system) as trips:
        trip = trips.book()
        wait_until(lambda: system.sql(waiting, trip), 60, what="the hotel waits for its next attempt", every=0.02)
        assert trips.live(trip) == ["flights", "hotels"]
        assert trips.cancel(trip).status_code == 202
        booking = trips.end(trip)
        assert (booking["state"], booking["reason"]) == ("Compensated", "cancelled")
        history = [(event["kind"], event["step"]) for event in trips.events(trip)]
        stopped = history.index(("job.stopping", None))
        last_of_hotel = [kind for kind, step in history[:stopped] if step == "hotel"][-1]
        assert last_of_hotel == "step.retried"  # so it was in the back-off
        assert trips.step(trip, "hotel")["state"] == "Failed"  # never Skipped, which would hide the booking
        assert trips.live(trip) == []


def test_a_step_stopped_by_a_person_while_its_call_is_on_its_way_is_undone_too(system: RunningSystem) -> None:
    """The undo overtakes the call, and closes the key before it lands."""
    system.fault("cars", latency_ms=3000, times=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        trips.wait_for_call(trip, "cars", "reserve")
        assert trips.post(f"/jobs/{trip}/steps/car/cancellation", {"reason": "wrong car"}).status_code == 202
        booking = trips.end(trip)
        assert booking["state"] == "Compensated"
        assert [call["outcome"] for call in trips.calls(trip, "cars", "cancel")] == ["nothing_found"]
        trips.wait_for_call(trip, "cars", "reserve", "key_closed")
        assert trips.live(trip) == []


def test_a_late_effect_meets_a_cancelled_key_and_changes_nothing(system: RunningSystem) -> None:
    """SAS-070, with a vendor that keeps its promise: what lands after the undo is refused."""
    system.fault("hotels", apply_after_ms=4000, times=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        trips.wait_for_call(trip, "hotels", "reserve", "late")
        system.fault("hotels", **ALL_ANSWERS)
        assert trips.cancel(trip).status_code == 202
        assert trips.end(trip)["state"] == "Compensated"
        trips.wait_for_call(trip, "hotels", "reserve", "late_ignored")
        assert trips.live(trip) == []


def test_a_careless_vendors_late_effect_is_found_and_cancelled_at_the_quiet_time(system: RunningSystem) -> None:
    """SAS-070, with a vendor that books after the undo although its key was cancelled: the undo is asked once more."""
    with Trips(system) as trips:
        trip = undone_before_it_landed(system, trips)
        assert trips.live(trip) == ["hotels"]
        (pending,) = trips.booking(trip)["receipt"]["pending"]
        assert pending["step"] == "hotel"
        trips.until(trip, lambda: trips.step(trip, "hotel.recheck")["state"] == "Completed")
        assert trips.live(trip) == []
        assert trips.job(trip)["needs_person"] == []
        assert trips.booking(trip)["receipt"]["pending"] == []


def test_a_late_effect_that_cannot_be_cancelled_is_named_to_a_person(system: RunningSystem) -> None:
    with Trips(system) as trips:
        trip = undone_before_it_landed(system, trips)
        system.fault("hotels", error_rate=1, operations=["cancel"])
        trips.until(trip, lambda: trips.job(trip)["needs_person"])
        assert trips.step(trip, "hotel.recheck")["state"] == "Failed"
        assert trips.live(trip) == ["hotels"]
        (told,) = trips.job(trip)["needs_person"]
        assert trips.step(trip, "hotel")["idempotency_key"] in told


def undone_before_it_landed(system: RunningSystem, trips: Trips) -> str:
    """A trip that is Compensated while its hotel, whose answer was lost, lands behind the undo."""
    system.fault("hotels", apply_after_ms=5000, honour_keys=False, times=1, operations=["reserve"])
    trip = trips.book()
    trips.wait_for_call(trip, "hotels", "reserve", "late")
    assert trips.cancel(trip).status_code == 202
    assert trips.end(trip)["state"] == "Compensated"
    trips.wait_for_call(trip, "hotels", "reserve", "late_applied")
    return trip


def test_a_vendor_that_is_down_for_a_while_delays_the_trip_and_no_more(system: RunningSystem) -> None:
    system.fault("hotels", down=True, times=2)
    with Trips(system) as trips:
        trip = trips.book()
        assert trips.end(trip)["state"] == "Completed"
        outcomes = [call["outcome"] for call in trips.calls(trip, "hotels")]
        assert outcomes[:2] == ["down", "down"]
        assert outcomes[-1] == "booked"
        assert not any(attempt["in_doubt"] for attempt in trips.attempts())


@pytest.mark.parametrize("service", ["flights", "hotels", "cars"])
def test_errors_of_any_vendor_are_outlived(system: RunningSystem, service: str) -> None:
    """A 500 says nothing about what was done: the doubt is asked about, and the trip goes on."""
    system.fault(service, error_rate=1, times=2, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        assert trips.end_without_waiting(trip)["state"] == "Completed"
