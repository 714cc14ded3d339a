"""The trip's three agents against the pretend vendors."""

import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from pytest_django import Settings

from agents import Call, InDoubt, Permanent, Transient
from agents.call import Undoes
from agents.simulators.ledger import Ledger
from agents.simulators.server import Simulators
from agents.travel import car, flight, hotel

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # an empty one: reading the system's takes long
TRIP: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "flights": (
        flight,
        {"traveller": {"name": "Ada"}, "leg": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 1}},
    ),
    "hotels": (
        hotel,
        {
            "stay": {"city": "Lisbon", "check_in": "2027-03-04", "check_out": "2027-03-07", "guests": 1},
            "arrives_at": "2027-03-04T11:35:00Z",
        },
    ),
    "cars": (
        car,
        {"rental": {"city": "Lisbon", "pick_up": "2027-03-04", "drop_off": "2027-03-07", "class": "estate"}},
    ),
}
each_service = pytest.mark.parametrize("service", TRIP)


@pytest.fixture
def vendors(tmp_path: Path, settings: Settings) -> Iterator[httpx2.Client]:
    server = Simulators(("127.0.0.1", 0), Ledger(tmp_path / "ledger.db"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    settings.SIMULATORS_URL = f"http://127.0.0.1:{server.server_port}"
    yield httpx2.Client(base_url=settings.SIMULATORS_URL, verify=NO_TLS, trust_env=False)
    server.shutdown()
    server.server_close()
    thread.join()


def call(*, key: str = "job-1:step", input: Any = None, undoes: Undoes | None = None) -> Call:
    now = time.monotonic()
    return Call(
        job_id=uuid.uuid4(),
        workflow="TripBooking",
        step="step",
        attempt=1,
        idempotency_key=key,
        input=input or {},
        undoes=undoes,
        ends_at=now + 20,
        may_send_until=now + 10,
    )


def undoing(key: str) -> Call:
    """A compensation's call: a key of its own, and the original's."""
    return call(key=f"{key}.undo", undoes=Undoes(name="step", idempotency_key=key, input={}, result=None))


def live(vendors: httpx2.Client) -> list[str]:
    return [it["reference"] for it in vendors.get("/ledger").json()["reservations"] if it["live"]]


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (
            "flights",
            {
                "departs_at": "2027-03-04T07:40:00Z",
                "arrives_at": "2027-03-04T11:35:00Z",
                "price": {"amount": "189.00", "currency": "EUR"},
            },
        ),
        ("hotels", {"nights": 3, "price": {"amount": "336.00", "currency": "EUR"}}),
        ("cars", {"days": 3, "class": "estate", "price": {"amount": "141.00", "currency": "EUR"}}),
    ],
)
def test_a_reservation_is_made_under_the_steps_key(
    vendors: httpx2.Client, service: str, expected: dict[str, Any]
) -> None:
    agent, trip = TRIP[service]
    booking = agent.reserve(call(key="job/1:step", input=trip))
    kept = vendors.get("/ledger").json()["reservations"][0]
    assert (kept["service"], kept["key"], kept["reference"]) == (service, "job/1:step", booking.pop("reference"))
    assert booking.pop("confirmation")
    assert booking == expected


@each_service
def test_the_probe_finds_what_reserve_answered_and_none_when_there_is_nothing(
    vendors: httpx2.Client, service: str
) -> None:
    agent, trip = TRIP[service]
    assert agent.find(call()) is None
    assert agent.find(call()) is None
    booking = agent.reserve(call(input=trip))
    assert agent.find(call()) == booking


@each_service
def test_cancel_undoes_the_original_by_its_key_and_may_be_repeated(vendors: httpx2.Client, service: str) -> None:
    agent, trip = TRIP[service]
    reference = agent.reserve(call(input=trip))["reference"]
    assert agent.cancel(undoing("job-1:step")) == {"cancelled": True, "reference": reference}
    assert live(vendors) == []
    assert agent.cancel(undoing("job-1:step")) == {"cancelled": True, "reference": reference}
    assert agent.find(call()) is None


@each_service
def test_cancel_says_when_there_was_nothing(vendors: httpx2.Client, service: str) -> None:
    agent, _ = TRIP[service]
    assert agent.cancel(undoing("job-1:step")) == {"cancelled": False}


def test_cancel_without_an_original_is_permanent(vendors: httpx2.Client) -> None:
    with pytest.raises(Permanent) as raised:
        hotel.cancel(call())
    assert raised.value.code == "nothing_to_undo"
    assert vendors.get("/ledger").json()["calls"] == []


@each_service
def test_sold_out_is_permanent_with_the_vendors_code(vendors: httpx2.Client, service: str) -> None:
    agent, trip = TRIP[service]
    vendors.put(f"/faults/{service}", json={"sold_out": True})
    with pytest.raises(Permanent) as raised:
        agent.reserve(call(input=trip))
    assert raised.value.code == "sold_out"


def test_a_cancelled_key_is_permanent(vendors: httpx2.Client) -> None:
    hotel.cancel(undoing("job-1:step"))
    with pytest.raises(Permanent) as raised:
        hotel.reserve(call())
    assert raised.value.code == "key_closed"


def test_a_lost_answer_is_in_doubt_and_the_next_attempt_hears_the_first_answer(vendors: httpx2.Client) -> None:
    vendors.put("/faults/hotels", json={"lose_answer_rate": 1, "times": 1})
    with pytest.raises(InDoubt):
        hotel.reserve(call())
    assert hotel.find(call()) == hotel.reserve(call())
    assert len(live(vendors)) == 1


@pytest.mark.parametrize(
    "act", [lambda: hotel.find(call()), lambda: hotel.cancel(undoing("k"))], ids=["find", "cancel"]
)
@pytest.mark.parametrize(
    ("faults", "kind"), [({"down": True}, Transient), ({"error_rate": 1}, InDoubt), ({"lose_answer_rate": 1}, InDoubt)]
)
def test_a_probe_or_an_undo_that_is_not_answered_says_so(
    vendors: httpx2.Client, act: Callable[[], Any], faults: dict[str, Any], kind: type[Exception]
) -> None:
    vendors.put("/faults/hotels", json=faults)
    with pytest.raises(kind):
        act()


def test_a_404_of_something_else_is_not_taken_for_nothing_there(vendors: httpx2.Client, settings: Settings) -> None:
    settings.SIMULATORS_URL += "/elsewhere"
    with pytest.raises(InDoubt) as raised:
        hotel.find(call())
    assert raised.value.code == "unclear_answer"


def test_an_answer_without_what_is_needed_is_in_doubt(vendors: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hotel.rooms, "keeps", ("reference", "stars"))
    with pytest.raises(InDoubt) as raised:
        hotel.reserve(call())
    assert raised.value.code == "unclear_answer"
    assert len(live(vendors)) == 1


def test_operations_and_promises_are_announced_by_name() -> None:
    for module, name in ((flight, "flight"), (hotel, "hotel"), (car, "car")):
        agent = getattr(module, name)
        assert sorted(agent.operations) == [f"{name}.{verb}" for verb in ("cancel", "find", "reserve")]
        assert (agent.honours_keys, agent.closes_keys) == (True, True)
