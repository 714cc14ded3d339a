"""The demo's check can fail: each way in which ledger and trips may disagree is seen."""

from typing import Any

import pytest

from sagsite.demo.verdict import judge

STEPS = ("flight", "hotel", "car")


def booking(number: int, state: str) -> dict[str, Any]:
    return {"state": state, "steps": [{"name": name, "idempotency_key": f"{number}:{name}"} for name in STEPS]}


def reservation(key: str, *, live: bool = True) -> dict[str, Any]:
    return {"key": key, "live": live}


def ledger(*reservations: dict[str, Any]) -> dict[str, Any]:
    return {"calls": [], "reservations": list(reservations)}


def whole(number: int) -> list[dict[str, Any]]:
    return [reservation(f"{number}:{name}") for name in STEPS]


def test_completed_with_three_live_and_compensated_with_none_is_right() -> None:
    trips = {"trip 01": booking(1, "Completed"), "trip 02": booking(2, "Compensated")}
    verdict = judge(trips, ledger(*whole(1), reservation("2:flight", live=False)))
    assert verdict.faults == []
    assert verdict.lines[1].split() == ["Compensated", "1", "0", "0"]
    assert verdict.lines[2].split() == ["Completed", "1", "3", "3"]


@pytest.mark.parametrize(
    ("trip", "reservations", "fault"),
    [
        (booking(1, "Completed"), whole(1)[:2], "trip 01 is Completed, and the ledger shows flight, hotel live"),
        (booking(1, "Compensated"), whole(1)[1:2], "trip 01 is Compensated, and the ledger shows hotel live"),
        (booking(1, "Failed"), whole(1)[:1], "trip 01 is Failed, and the ledger shows flight live"),
        (booking(1, "Running"), [], "trip 01 has not ended: it is Running"),
        (booking(1, "Completed"), [*whole(1), reservation("1:car")], "2 reservations under the one key 1:car"),
        (booking(1, "Completed"), [*whole(1), reservation("9:car")], "a live reservation that no trip knows of: 9:car"),
    ],
)
def test_each_disagreement_is_named(trip: dict[str, Any], reservations: list[dict[str, Any]], fault: str) -> None:
    assert judge({"trip 01": trip}, ledger(*reservations)).faults == [fault]
