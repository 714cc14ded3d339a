"""Children: steps that are jobs of another workflow."""

from typing import Any

import pytest
from pydantic import BaseModel

from workflows import Workflow, child, given, item, step
from workflows.exceptions import InvalidStep, UnknownReference
from workflows.plans import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})


def make(name: str = "Parent", /, **body: object) -> type[Workflow]:
    return type(Workflow)(name, (Workflow,), body)  # type: ignore[return-value]


def test_a_child_is_stored_by_name_whether_given_by_class_or_by_name() -> None:
    trip = make("Trip", a=step("x.a"))
    plan = make(a=child(trip), b=child("Trip"), c=child("NotYetDeclared")).plan
    assert [planned.child for planned in plan.steps] == ["Trip", "Trip", "NotYetDeclared"]
    assert {(planned.kind, planned.operation, planned.on_parent_end) for planned in plan.steps} == {
        ("child", "", "cancel")
    }


def test_a_child_starts_with_its_input_or_with_its_item() -> None:
    class Parent(Workflow):
        plain = child("Trip")
        told = child("Trip", input={"who": given["who"], "after": plain["id"]})
        passed = child("Trip", input=given["trip"])
        many = child("Trip", each=given["trips"], at_once=5, tolerate=1)
        dressed = child("Trip", each=given["trips"], input={"trip": item})

    assert [planned.input for planned in Parent.plan.steps] == [
        {},
        {"who": {"$given": ["who"]}, "after": {"$result": ["plain", "id"]}},
        {"$given": ["trip"]},
        {"$item": []},
        {"trip": {"$item": []}},
    ]
    many = Parent.plan.step("many")
    assert (many.each, many.at_once, many.tolerate) == ({"$given": ["trips"]}, 5, 1)
    assert Parent.plan.prerequisites("told") == ("plain",)


def test_the_items_of_a_child_follow_the_input_schema() -> None:
    class Trips(BaseModel):
        trips: list[str]

    with pytest.raises(UnknownReference, match=r'given\["trips"\]\[0\]\["to"\] cannot exist'):
        make(input=Trips, a=child("Trip", each=given["trips"], input={"to": item["to"]}))


@pytest.mark.parametrize("workflow", [Workflow, "Not a name", "", None, 7, given["x"], int, BaseModel], ids=repr)
def test_a_child_is_a_workflow_that_has_steps(workflow: Any) -> None:
    with pytest.raises(InvalidStep, match="starts no workflow. Give a workflow class that has steps, or its name"):
        child(workflow)


@pytest.mark.parametrize("value", [[1], "x", 7, True], ids=repr)
def test_a_child_is_started_with_an_object(value) -> None:
    with pytest.raises(InvalidStep, match="must be an object or a reference to one"):
        child("Trip", input=value)


@pytest.mark.parametrize("policy", ["cancel", "wait", "abandon"])
def test_what_becomes_of_a_child_is_chosen(policy: Any) -> None:
    assert make(a=child("Trip", on_parent_end=policy)).plan.steps[0].on_parent_end == policy


@pytest.mark.parametrize(
    ("policy", "advice"),
    [("cancle", "Did you mean 'cancel'"), (None, "There is: cancel, wait, abandon"), (given["x"], "There is")],
    ids=repr,
)
def test_an_unknown_policy_is_answered_with_the_nearest(policy: Any, advice: str) -> None:
    with pytest.raises(InvalidStep, match=f"on_parent_end=.* is unknown. {advice}"):
        child("Trip", on_parent_end=policy)


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("compensation", "A child is undone by its own plan"),
        ("retry", "The steps of its own plan are tried again"),
        ("timeout", "Its own plan has a deadline="),
        ("on_parent_ends", "Did you mean 'on_parent_end'"),
        ("delay", r"It belongs to timer\(…\)"),
    ],
)
def test_what_a_child_cannot_have_is_refused_with_the_reason(keyword: str, advice: str) -> None:
    with pytest.raises(InvalidStep, match=rf"child\('Trip'\) has no {keyword}=.*{advice}"):
        child("Trip", **{keyword: None})
