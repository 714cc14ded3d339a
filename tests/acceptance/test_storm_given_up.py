"""In an outage somebody gives up all that waits, and the supervisor that does it dies in the middle."""

from typing import Any

import pytest

from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(200)


def test_all_that_waits_for_the_hotel_is_undone_on_one_word_though_the_supervisor_dies(system: RunningSystem) -> None:
    with Trips(system) as trips:
        system.fault("hotels", down=True)
        trips.book_many(40)

        def waiting() -> list[int]:
            return [found["waiting"]["can_be_cancelled"] for found in outages() if not found["closed_at"]]

        def outages() -> list[dict[str, Any]]:
            return list(trips.api.get("/incidents").json()["results"])

        wait_until(lambda: waiting() == [40], 90, what="all trips wait")
        [incident] = [found for found in outages() if not found["closed_at"]]
        asked = trips.post(f"/incidents/{incident['id']}/cancellation", {"reason": "The season is over."})
        assert asked.status_code == 202, asked.text
        former = system.kill("supervisor")

        assert trips.wait_for_end(timeout=90) == {"Compensated": 40}
        system.wait_for_restart("supervisor", former)
        assert {trips.live(trip) == [] for trip in trips.ids} == {True}
        [decided] = trips.api.get(f"/incidents/{incident['id']}").json()["cancellations"]
        assert (decided["jobs"], decided["cancelled"], decided["left"]) == (40, 40, 0)

        def is_over() -> bool:
            return bool(trips.api.get(f"/incidents/{incident['id']}").json()["closed_at"])

        wait_until(is_over, 60, what="the outage is over, since nobody waits")
