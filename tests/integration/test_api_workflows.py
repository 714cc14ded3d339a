"""The plans as data, as client programs and drawings read them."""

from datetime import timedelta

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from tests.api import TRIP, Program
from workflows import Workflow, given, signal, step

pytestmark = pytest.mark.django_db


class Order(BaseModel):
    number: int = Field(alias="no", ge=1)


class ApiShown(Workflow):
    """What a plan looks like.

    In more than one line.
    """

    version = 3
    input = Order
    deadline = timedelta(hours=2)
    compensate_within = timedelta(days=1)
    a = step("shop.a", compensation="shop.undo_a", input={"n": given["no"]}, timeout=timedelta(seconds=7))
    go = signal(approvers=["ada"], timeout=timedelta(minutes=1), after=[a])


def test_a_plan_is_shown_with_its_steps_and_the_schema_of_its_input() -> None:
    shown = Program().get("workflows/ApiShown").json()
    assert list(shown) == [
        *("name", "version", "doc", "input", "steps", "on_failure", "deadline", "compensate_within"),
        *("after_success", "after_failure", "runbook"),
    ]
    assert (shown["name"], shown["version"], shown["deadline"], shown["compensate_within"]) == (
        "ApiShown",
        3,
        7200.0,
        86400.0,
    )
    assert shown["doc"] == "What a plan looks like.\n\nIn more than one line."
    first, second = shown["steps"]
    assert first == first | {
        "name": "a",
        "operation": "shop.a",
        "compensation": "shop.undo_a",
        "input": {"n": {"$given": ["no"]}},
        "after": [],
        "timeout": 7.0,
    }
    assert second == second | {"kind": "signal", "approvers": ["ada"], "wait": 60.0, "after": ["a"]}
    schema = Draft202012Validator(shown["input"])
    assert schema.is_valid({"no": 1})
    assert not schema.is_valid({"no": 0})


def test_all_workflows_are_listed_by_name_and_the_schema_of_each_fits_what_it_takes() -> None:
    page = Program().get("workflows").json()
    shown = {workflow["name"]: workflow for workflow in page["results"]}
    assert list(shown) == sorted(shown)
    assert (page["next"], page["prev"]) == (None, None)
    assert Draft202012Validator(shown["TripBooking"]["input"]).is_valid(TRIP)
    assert [step["name"] for step in shown["TripBooking"]["steps"]] == ["flight", "hotel", "car"]


def test_a_workflow_that_does_not_exist_and_the_nearest_that_does() -> None:
    response = Program().get("workflows/TripBokking")
    assert (response.status_code, response.json()["type"]) == (404, "/problems/not-found")
    assert "TripBooking" in response.json()["detail"]
