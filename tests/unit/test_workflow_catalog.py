"""The shipped trip: the documented booking, and what it refuses."""

import ast
import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import workflows
from workflows import Retry
from workflows.catalog import TripBooking, trip
from workflows.exceptions import InvalidInput
from workflows.plans.plan import Plan
from workflows.plans.templates import resolve

BOOKING: dict[str, Any] = {
    "traveller": {"name": "Ada Okafor", "email": "ada@example.com"},
    "flight": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 1},
    "hotel": {"city": "Lisbon", "check_in": "2027-03-04", "check_out": "2027-03-07", "guests": 1},
    "car": {"city": "Lisbon", "pick_up": "2027-03-04", "drop_off": "2027-03-07", "class": "compact"},
}


def booking(part: str, field: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(BOOKING)
    changed[part][field] = value
    return changed


def test_the_documented_booking_is_taken_as_it_is() -> None:
    assert TripBooking.validate(BOOKING) == BOOKING


def test_a_trip_can_be_written_in_python() -> None:
    request = trip.TripRequest(
        traveller=trip.Traveller(name="Ada Okafor", email="ada@example.com"),
        flight=trip.Flight(origin="BER", destination="LIS", date="2027-03-04", seats=1),
        hotel=trip.Hotel(**BOOKING["hotel"]),
        car=trip.Car(city="Lisbon", pick_up="2027-03-04", drop_off="2027-03-07", category="compact"),
    )
    assert TripBooking.validate(request) == BOOKING


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("traveller", "name", ""),
        ("traveller", "name", "   "),
        ("traveller", "name", "x" * 201),
        ("traveller", "email", "ada"),
        ("traveller", "email", "ada@"),
        ("traveller", "email", "a da@example.com"),
        ("traveller", "email", "ada@example..com"),
        ("flight", "date", "2027-02-30"),
        ("flight", "date", "tomorrow"),
        ("flight", "date", 0),
        ("flight", "seats", 0),
        ("flight", "seats", 10),
        ("flight", "seats", "2"),
        ("flight", "seats", True),
        ("flight", "from", None),
        ("flight", "via", "CDG"),
        ("hotel", "guests", -1),
        ("hotel", "check_out", "2027-03-04"),
        ("car", "drop_off", "2027-03-03"),
        ("car", "class", "x" * 41),
        ("car", "class", ""),
    ],
)
def test_a_fault_is_refused_at_its_place(part: str, field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        TripBooking.validate(booking(part, field, value))
    assert [error["pointer"] for error in caught.value.errors] == [f"/{part}/{field}"]


def test_a_car_may_be_returned_on_the_day_it_was_picked_up() -> None:
    same_day = booking("car", "drop_off", "2027-03-04")
    assert TripBooking.validate(same_day) == same_day


def test_a_message_is_for_people() -> None:
    with pytest.raises(InvalidInput, match="TripBooking: /hotel/check_out: must be after check_in$"):
        TripBooking.validate(booking("hotel", "check_out", "2027-03-04"))


def test_a_trip_is_a_chain_of_three_that_can_be_undone_for_a_month() -> None:
    plan = TripBooking.plan
    assert [(planned.name, planned.after) for planned in plan.steps] == [
        ("flight", ()),
        ("hotel", ("flight",)),
        ("car", ("hotel",)),
    ]
    assert plan.compensate_within == timedelta(days=30)
    assert plan.step("hotel").timeout == timedelta(seconds=45)
    assert plan.step("car").retry == Retry(attempts=5, cap=timedelta(minutes=1))
    for planned in plan.steps:
        assert planned.operation == f"{planned.name}.reserve"
        assert planned.compensation == f"{planned.name}.cancel"
        assert planned.probe == f"{planned.name}.find"
    assert Plan.from_json(plan.to_json()) == plan


def test_each_service_gets_its_own_part_of_the_booking() -> None:
    results = {"flight": {"arrives_at": "2027-03-04T12:00:00Z"}}
    inputs = {planned.name: resolve(planned.input, BOOKING, results) for planned in TripBooking.plan.steps}
    assert inputs == {
        "flight": {"traveller": BOOKING["traveller"], "leg": BOOKING["flight"]},
        "hotel": {"stay": BOOKING["hotel"], "arrives_at": "2027-03-04T12:00:00Z"},
        "car": {"rental": BOOKING["car"]},
    }


def test_the_catalogue_uses_only_the_public_api() -> None:
    for path in Path(trip.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "workflows":
                names = {alias.name for alias in node.names}
                assert node.module.startswith("workflows.catalog") or (
                    node.module == "workflows" and names <= set(workflows.__all__)
                )
