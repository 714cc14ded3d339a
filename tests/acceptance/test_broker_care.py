"""A broker that takes no more writes, and one that is used for days: it holds doorbells, and nothing hangs on them."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.system import RunningSystem, send
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def broker(system: RunningSystem) -> Iterator[Any]:
    """A client of the system's broker, which takes writes again afterwards."""
    assert system.servers
    with system.servers.valkey_server.connect() as client:
        yield client
        client.config_set("maxmemory", 0)
        client.delete("foreign")


def test_a_broker_that_is_full_delays_trips_and_loses_none(system: RunningSystem, broker: Any) -> None:
    """SAS-094: what runs keeps its outcome, what is booked meanwhile is stored, and all go on once there is room."""
    system.fault("hotels", latency_ms=2000)
    with Trips(system) as trips:
        trips.book_many(4)
        for trip in trips.ids:
            trips.wait_for_call(trip, "hotels", "reserve")
        broker.set("foreign", os.urandom(4_000_000))
        broker.config_set("maxmemory", 1_000_000)
        with pytest.raises(Exception, match="maxmemory"):
            broker.set("refused", "x")
        trips.book_many(10)
        assert {attempt["outcome"] for attempt in trips.attempts()} <= {"completed", ""}
        broker.config_set("maxmemory", 0)
        system.fault("hotels")
        assert trips.wait_for_end(timeout=90) == {"Completed": 14}
        assert {attempt["outcome"] for attempt in trips.attempts()} == {"completed"}


def test_after_many_trips_and_some_deaths_the_broker_holds_what_it_held_before(
    system: RunningSystem, broker: Any
) -> None:
    """SAS-096: no results, no events, no replies; a doorbell that was heard is gone."""

    def held() -> set[bytes]:
        return set(broker.keys("*")) - {b"agents", b"supervisor"}

    with Trips(system) as trips:
        trips.end(trips.book())
        before = held()
        trips.book_many(30)
        for pid in system.pool()[:2]:
            send(pid, signal.SIGKILL)
        trips.book_many(30)
        assert trips.wait_for_end(timeout=90) == {"Completed": 61}
        wait_until(lambda: broker.llen("agents") == 0, 30, what="every doorbell was heard")
        wait_until(lambda: held() <= before, 30, what="the broker holds no more than before")
