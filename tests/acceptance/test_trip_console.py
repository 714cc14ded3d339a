"""Operators at the console of a running system: what two of them see and do at once."""

from tests.acceptance.operators import Operator
from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import Trips


def test_a_second_operators_stale_retry_changes_nothing_and_is_told_what_is_now_true(system: RunningSystem) -> None:
    """SAS-104: both saw the failed job; the first one's retry has already set it going."""
    system.fault("hotels", latency_ms=1500, times=1, operations=["reserve"])
    with Trips(system) as trips, Operator(system) as first, Operator(system) as second:
        trip = trips.book()
        trips.wait_for_call(trip, "hotels", "reserve")
        assert trips.cancel(trip, undo=False, reason="not wanted").status_code == 202
        assert trips.end(trip)["state"] == "Failed"
        seen = second.version_seen(trip)
        assert first.version_seen(trip) == seen

        assert "What failed is tried again." in first.send(
            f"/jobs/{trip}/retries", seen=seen, reason="wanted after all"
        )
        assert trips.end(trip)["state"] == "Completed"
        before = trips.job(trip)
        page = second.send(f"/jobs/{trip}/retries", seen=seen, reason="me too")
        assert "Nothing was done." in page
        assert "Completed" in page
        assert trips.job(trip) == before
        asked = [event for event in trips.events(trip) if event["kind"] == "job.reopened"]
        assert [(event["actor"], event["reason"]) for event in asked] == [("operator:operator", "wanted after all")]
