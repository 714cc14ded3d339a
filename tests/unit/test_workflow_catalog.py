"""The shipped workflows: what they are made of, and what they refuse."""

import ast
import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import workflows
from workflows import Retry, Workflow
from workflows.catalog import FleetRollout, NightlyReport, TripBooking, trip
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


def test_the_documented_roll_out_is_taken_as_it_is() -> None:
    documented = {"release": "2.1.0", "hosts": ["h001", "h017"], "soak_seconds": 2, "refuse": ["h017"]}
    assert FleetRollout.validate(documented) == documented


def test_a_roll_out_needs_a_release_and_hosts_alone() -> None:
    least = {"release": "2.1.0", "hosts": ["h001"]}
    assert FleetRollout.validate(least) == least | {"soak_seconds": 60, "refuse": []}


@pytest.mark.parametrize(
    ("field", "value", "pointer"),
    [
        ("release", "", "/release"),
        ("release", "2.1.0\n", "/release"),
        ("release", "../2.1.0", "/release"),
        ("hosts", [], "/hosts"),
        ("hosts", ["h001", ".."], "/hosts/1"),
        ("hosts", ["h001", "a/b"], "/hosts/1"),
        ("hosts", ["h001", "/etc"], "/hosts/1"),
        ("hosts", ["h001", ".ssh"], "/hosts/1"),
        ("hosts", ["h001", "h002\n"], "/hosts/1"),
        ("hosts", ["h001", "h\u0000"], "/hosts/1"),
        ("hosts", ["h001", "x" * 101], "/hosts/1"),
        ("hosts", ["h001", "H001"], "/hosts"),
        ("hosts", "h001", "/hosts"),
        ("soak_seconds", -1, "/soak_seconds"),
        ("soak_seconds", float("nan"), "/soak_seconds"),
        ("refuse", ["../h001"], "/refuse/0"),
        ("wave", 3, "/wave"),
    ],
)
def test_a_fault_in_a_roll_out_is_refused_at_its_place(field: str, value: object, pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        FleetRollout.validate({"release": "2.1.0", "hosts": ["h001"]} | {field: value})
    assert [error["pointer"] for error in caught.value.errors] == [pointer]


def test_a_roll_out_goes_from_the_canary_over_a_persons_word_to_the_rest() -> None:
    plan = FleetRollout.plan
    assert [(planned.name, planned.kind, planned.after) for planned in plan.steps] == [
        ("waves", "call", ()),
        ("canary", "call", ("waves",)),
        ("soak", "timer", ("canary",)),
        ("approval", "signal", ("soak",)),
        ("early", "call", ("waves", "approval")),
        ("rest", "call", ("waves", "early")),
    ]
    assert plan.step("approval").approval
    assert plan.step("approval").wait == timedelta(hours=24)
    for name, at_once, tolerate in (("canary", None, 0), ("early", 20, 0), ("rest", 100, 0.02)):
        planned = plan.step(name)
        assert (planned.operation, planned.compensation) == ("host.deploy", "host.rollback")
        assert (planned.each, planned.at_once, planned.tolerate) == ({"$result": ["waves", name]}, at_once, tolerate)
    assert plan.step("waves").undo_unnecessary


def test_a_report_reads_once_and_reckons_side_by_side() -> None:
    assert [(planned.name, planned.operation, planned.after) for planned in NightlyReport.plan.steps] == [
        ("extract", "warehouse.extract", ()),
        ("totals", "warehouse.totals", ("extract",)),
        ("audit", "warehouse.audit", ("extract",)),
        ("publish", "report.publish", ("extract", "totals", "audit")),
    ]
    read_only = [planned.name for planned in NightlyReport.plan.steps if planned.undo_unnecessary]
    assert read_only == ["extract", "totals", "audit"]


def test_a_report_is_asked_for_by_its_day_or_without_one() -> None:
    assert NightlyReport.validate({"day": "2027-03-04"}) == {"day": "2027-03-04"}
    assert NightlyReport.validate() == {"day": None}


@pytest.mark.parametrize("day", ["2027-02-30", "../..", 0, ""])
def test_a_report_on_no_day_is_refused(day: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        NightlyReport.validate({"day": day})
    assert {error["pointer"] for error in caught.value.errors} == {"/day"}


@pytest.mark.parametrize("workflow", [FleetRollout, NightlyReport])
def test_a_shipped_plan_is_stored_as_it_is(workflow: type[Workflow]) -> None:
    assert Plan.from_json(workflow.plan.to_json()) == workflow.plan


def test_the_catalogue_uses_only_the_public_api() -> None:
    for path in Path(trip.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "workflows":
                names = {alias.name for alias in node.names}
                assert node.module.startswith("workflows.catalog") or (
                    node.module == "workflows" and names <= set(workflows.__all__)
                )
