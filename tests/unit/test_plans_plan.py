"""A plan as data: exactly this JSON is stored, and the same plan comes back from it."""

import json
from datetime import timedelta

import pytest
from django.test import override_settings

from workflows import Retry, Workflow, given, step
from workflows.exceptions import UnknownReference
from workflows.plans import registry
from workflows.plans.plan import Plan


@pytest.fixture
def plan(monkeypatch) -> Plan:
    monkeypatch.setattr(registry, "_workflows", {})

    class Outing(Workflow):
        version = 3
        compensate_within = timedelta(days=30)

        flight = step(
            "flight.reserve",
            compensation="flight.cancel",
            probe="flight.find",
            input={"who": given["traveller"]["name"]},
        )
        hotel = step(
            "hotel.reserve",
            input={"at": flight["arrives_at"], "$raw": 1},
            timeout=timedelta(milliseconds=1500),
            retry=Retry(attempts=2, first=timedelta(seconds=3), factor=1, cap=timedelta(seconds=9)),
        )
        car = step("car.reserve", after=[hotel, flight])

    return Outing.plan


def test_a_plan_is_stored_as_documented(plan: Plan) -> None:
    retry = {"attempts": 5, "first": 1.0, "factor": 2.0, "cap": 60.0}
    undo_retry = {"attempts": 10, "first": 2.0, "factor": 2.0, "cap": 300.0}
    assert plan.to_json() == {
        "workflow": "Outing",
        "version": 3,
        "compensate_within": 2592000.0,
        "steps": [
            {
                "name": "flight",
                "operation": "flight.reserve",
                "compensation": "flight.cancel",
                "probe": "flight.find",
                "input": {"who": {"$given": ["traveller", "name"]}},
                "after": [],
                "timeout": 30.0,
                "retry": retry,
                "undo_retry": undo_retry,
            },
            {
                "name": "hotel",
                "operation": "hotel.reserve",
                "compensation": None,
                "probe": None,
                "input": {"$literal": {"at": {"$result": ["flight", "arrives_at"]}, "$raw": 1}},
                "after": ["flight"],
                "timeout": 1.5,
                "retry": {"attempts": 2, "first": 3.0, "factor": 1.0, "cap": 9.0},
                "undo_retry": undo_retry,
            },
            {
                "name": "car",
                "operation": "car.reserve",
                "compensation": None,
                "probe": None,
                "input": {},
                "after": ["flight", "hotel"],
                "timeout": 30.0,
                "retry": retry,
                "undo_retry": undo_retry,
            },
        ],
    }


def test_the_same_plan_comes_back_from_its_json(plan: Plan) -> None:
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.dependents("flight") == ("hotel", "car")


def test_a_start_writes_the_plan_and_a_row_for_each_step(plan: Plan) -> None:
    assert json.loads(plan.document) == plan.to_json()
    assert [tuple(row.values()) for row in json.loads(plan.rows)] == [
        (0, "flight", "flight.reserve", "flight", 0, [1, 2], 30.0, 5, 0, "call", False, None),
        (1, "hotel", "hotel.reserve", "hotel", 1, [2], 1.5, 2, 1, "call", False, None),
        (2, "car", "car.reserve", "car", 2, [], 30.0, 5, 2, "call", False, None),
    ]
    assert list(json.loads(plan.rows)[0]) == [
        *("seq", "name", "operation", "agent", "waiting_for", "releases", "timeout", "attempts"),
        *("place", "kind", "gated", "queue_timeout"),
    ]


def test_changing_the_json_does_not_change_the_plan(plan: Plan) -> None:
    plan.to_json()["steps"][0]["input"]["who"]["$given"].append("x")
    assert plan.step("flight").input == {"who": {"$given": ["traveller", "name"]}}


def test_a_plan_cannot_be_changed(plan: Plan) -> None:
    with pytest.raises(AttributeError):
        plan.version = 4  # type: ignore[misc]
    with pytest.raises(AttributeError):
        plan.steps[0].operation = "x.y"  # type: ignore[misc]


@pytest.mark.parametrize("ask", [Plan.step, Plan.prerequisites, Plan.dependents])
def test_a_step_that_the_plan_has_not_is_answered_with_the_nearest_name(plan: Plan, ask) -> None:
    with pytest.raises(UnknownReference, match="Outing has no step 'fligth'. Did you mean 'flight'"):
        ask(plan, "fligth")


@override_settings(SAG={"step_timeout": 7, "retry": {"attempts": 2}, "undo_retry": {"attempts": 3, "first": 0.5}})
def test_what_a_step_leaves_out_comes_from_the_settings(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})

    class Quick(Workflow):
        a = step("x.a", compensation="x.b")

    planned = Quick.plan.step("a")
    assert planned.timeout == timedelta(seconds=7)
    assert planned.retry == Retry(attempts=2)
    assert planned.undo_retry == Retry(attempts=3, first=timedelta(seconds=0.5), cap=timedelta(minutes=5))
