"""What a workflow may be started with, and what is handed to the scheduler."""

import logging
import sys
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import override_settings
from pydantic import BaseModel, Field

from workflows import Workflow, step
from workflows.exceptions import InputTooLarge, InvalidInput
from workflows.plans import registry


class Person(BaseModel):
    name: str
    born: date | None = None
    kind: str = Field(default="adult", alias="class")
    notes: Any = None


@pytest.fixture
def anything(monkeypatch) -> type[Workflow]:
    monkeypatch.setattr(registry, "_workflows", {})

    class Anything(Workflow):
        a = step("x.a")

    return Anything


@pytest.fixture
def typed(monkeypatch) -> type[Workflow]:
    monkeypatch.setattr(registry, "_workflows", {})

    class Typed(Workflow):
        input = Person
        a = step("x.a")

    return Typed


def faults(workflow: type[Workflow], value: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as caught:
        workflow.validate(value)
    assert caught.value.errors == caught.value.details["errors"]
    return [(error["pointer"], error["message"]) for error in caught.value.errors]


def test_a_workflow_knows_its_name(anything) -> None:
    assert anything.name == "Anything"
    assert anything.plan.workflow == "Anything"


def test_without_a_schema_any_json_object_is_taken_and_copied(anything) -> None:
    given = {"a": [1, {"b": None}], "t": (1,)}
    stored = anything.validate(given)
    assert stored == {"a": [1, {"b": None}], "t": [1]}
    given["a"].append(2)
    assert stored["a"] == [1, {"b": None}]
    assert anything.validate() == {}


@pytest.mark.parametrize("value", [[], "x", 1, True])
def test_an_input_is_an_object(anything, value) -> None:
    assert faults(anything, value) == [("", f"must be an object, not {type(value).__name__}")]


@pytest.mark.parametrize(
    ("value", "pointer", "message"),
    [
        ({"a": "x\0"}, "/a", "contains the character NUL"),
        ({"a": ["\ud83d"]}, "/a/0", "contains half of a surrogate pair, which is no character"),
        (
            {"a": {"b/c~\ud800": 1}},
            "/a/b~1c~0\\ud800",
            "the name contains half of a surrogate pair, which is no character",
        ),
        ({"\0": 1}, "/\\x00", "the name contains the character NUL"),
        ({"a": float("nan")}, "/a", "is nan, which JSON cannot express"),
        ({"a": -float("inf")}, "/a", "is -inf, which JSON cannot express"),
        ({"a": 10**400}, "/a", "is a number too large to be stored"),
        ({"a": {1: 2}}, "/a/1", "the name is no text"),
        ({"a": b"x"}, "/a", "is a bytes, which JSON cannot express; write it as text or as a number"),
        ({"a": date(2027, 3, 4)}, "/a", "is a date, which JSON cannot express; write it as text or as a number"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_a_pointer(anything, value, pointer: str, message: str) -> None:
    assert faults(anything, value) == [(pointer, message)]


def test_every_fault_is_reported_but_not_without_end(anything) -> None:
    assert len(faults(anything, {"a": "\0", "b": ["\0", "\0"]})) == 3
    assert len(faults(anything, {"many": ["\0"] * 1000})) == 50


def test_an_input_that_contains_itself_is_refused(anything, typed) -> None:
    endless: dict = {"name": "Ada"}
    endless["notes"] = endless
    assert "nested more than 100 levels deep" in faults(anything, endless)[0][1]
    assert "nested more than 100 levels deep" in faults(typed, endless)[0][1]


def test_a_typed_input_is_stored_as_json_under_its_aliases_with_defaults(typed) -> None:
    expected = {"name": "Ada", "born": "1815-12-10", "class": "adult", "notes": None}
    assert typed.validate({"name": "Ada", "born": date(1815, 12, 10)}) == expected
    assert typed.validate({"name": "Ada", "born": "1815-12-10"}) == expected
    assert typed.validate(Person(name="Ada", born=date(1815, 12, 10))) == expected


def test_the_faults_of_a_typed_input_have_pointers(typed) -> None:
    assert faults(typed, {"born": "soon"})[0] == ("/name", "Field required")
    assert faults(typed, {"born": "soon"})[1][0] == "/born"
    assert faults(typed, None) == [("/name", "Field required")]
    assert faults(typed, [1])[0][0] == ""


@pytest.mark.parametrize(
    ("notes", "pointer"),
    [("\0", "/notes"), ({"\udc00": 1}, "/notes/\\udc00"), ([float("nan")], "/notes/0"), ({"n": 10**400}, "/notes/n")],
)
def test_an_untyped_field_lets_nothing_through_that_json_cannot_hold(typed, notes, pointer: str) -> None:
    assert faults(typed, {"name": "Ada", "notes": notes})[0][0] == pointer
    assert faults(typed, Person(name="Ada", notes=notes)) != []


def test_a_broken_name_that_the_schema_does_not_know_is_refused_too(typed) -> None:
    assert faults(typed, {"name": "Ada", "\udc00": 1})[0][0] == "/\\udc00"


def test_a_schema_may_turn_other_types_into_json(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})

    class Counts(BaseModel):
        by_number: dict[int, date]

    class Counted(Workflow):
        input = Counts
        a = step("x.a")

    assert Counted.validate({"by_number": {7: date(2027, 3, 4)}}) == {"by_number": {"7": "2027-03-04"}}


def test_an_untyped_field_with_an_object_that_is_no_json_is_refused(typed) -> None:
    assert faults(typed, {"name": "Ada", "notes": object()}) != []


def test_an_input_over_the_limit_is_refused_and_one_below_is_not(anything) -> None:
    with override_settings(SAG={"payload_limit": 100, "payload_warning": 90}):
        just_fits = {"a": "ü" * 46}  # {"a":"…"} is 8 bytes, an ü is two
        assert anything.validate(just_fits) == just_fits
        with pytest.raises(InputTooLarge, match="101 bytes; a job carries at most 100") as caught:
            anything.validate({"a": "ü" * 46 + "x"})
    assert caught.value.http_status == 413
    assert caught.value.details == {"size": 101, "limit": 100}


def test_a_large_input_is_logged(anything, caplog) -> None:
    with override_settings(SAG={"payload_limit": 100, "payload_warning": 50}), caplog.at_level(logging.WARNING):
        anything.validate({"a": "x" * 10})
        assert caplog.records == []
        anything.validate({"a": "x" * 60})
    assert "The input of Anything is 68 bytes" in caplog.text


def test_start_hands_the_validated_input_to_the_scheduler(typed, monkeypatch) -> None:
    opened: list[dict] = []
    stub = SimpleNamespace(open_job=lambda **arguments: opened.append(arguments) or "the job")
    monkeypatch.setitem(sys.modules, "workflows.scheduler", stub)
    tomorrow = datetime(2027, 3, 4, tzinfo=UTC)

    assert typed.start({"name": "Ada"}, key="k-1", client_id=7, actor="ada", start_at=tomorrow) == "the job"

    assert opened == [
        {
            "plan": typed.plan,
            "input": {"name": "Ada", "born": None, "class": "adult", "notes": None},
            "key": "k-1",
            "client_id": 7,
            "actor": "ada",
            "start_at": tomorrow,
        }
    ]


@pytest.mark.parametrize("key", ["", "k" * 256, "a\0b", "\ud800", 7])
def test_a_key_that_cannot_be_stored_never_reaches_the_scheduler(anything, monkeypatch, key) -> None:
    monkeypatch.setitem(sys.modules, "workflows.scheduler", SimpleNamespace())
    with pytest.raises(InvalidInput, match="The key") as caught:
        anything.start(key=key)
    assert caught.value.errors[0]["pointer"] == "/key"


def test_an_invalid_input_never_reaches_the_scheduler(typed, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "workflows.scheduler", SimpleNamespace())
    with pytest.raises(InvalidInput):
        typed.start({})
