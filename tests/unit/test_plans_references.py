"""References refuse everything that would need a value, and say what to do instead."""

import copy
import math

import pytest

from workflows import SagError, given, item, step
from workflows.exceptions import PlanError, ReferenceMisused

flight = step("flight.reserve")

MISUSES = {
    "iterated": list,
    "unpacked": lambda reference: [*reference],
    "reversed": reversed,
    "measured": len,
    "searched": lambda reference: "x" in reference,
    "tested for truth": bool,
    "negated": lambda reference: not reference,
    "printed": str,
    "formatted": lambda reference: f"{reference}",
    "formatted with a width": lambda reference: f"{reference:>10}",
    "percent-formatted": lambda reference: "%s" % reference,  # noqa: UP031  # the old way is one of the ways
    "compared": lambda reference: reference == "compact",
    "compared from the right": lambda reference: "compact" == reference,  # noqa: SIM300  # the reflected method
    "compared for difference": lambda reference: reference != 1,
    "ordered": lambda reference: reference < 1,
    "sorted": lambda reference: sorted([reference, reference]),
    "used as a key": lambda reference: {reference: 1},
    "put into a set": lambda reference: {reference},
}


@pytest.mark.parametrize(
    "reference", [given, given["car"]["class"], item["host"], flight, flight["legs"][0], ~given["x"]], ids=repr
)
@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_reference_cannot_be_used_as_a_value(misuse, reference) -> None:
    with pytest.raises(ReferenceMisused, match="known only when the job runs") as caught:
        misuse(reference)
    assert repr(reference) in str(caught.value)


def test_a_misused_reference_is_a_type_error_and_a_plan_error() -> None:
    with pytest.raises(TypeError) as caught:
        bool(given)
    assert isinstance(caught.value, PlanError)
    assert isinstance(caught.value, SagError)


@pytest.mark.parametrize("compute", [lambda r: r + 1, lambda r: "to " + r, int, math.sqrt, lambda r: r()])
def test_a_reference_cannot_be_computed_with(compute) -> None:
    with pytest.raises(TypeError):
        compute(given["seats"])


def test_a_reference_shows_itself_as_it_is_written() -> None:
    assert repr(given["traveller"]["first name"]) == 'given["traveller"]["first name"]'
    assert repr(flight["legs"][0]["to"]) == 'step(\'flight.reserve\')["legs"][0]["to"]'


def test_an_attribute_of_a_reference_is_answered_with_the_right_spelling() -> None:
    with pytest.raises(AttributeError, match=r'Write given\["flight"\]\["date"\]'):
        given["flight"].date
    with pytest.raises(AttributeError, match="operation"):
        flight.operation
    assert not hasattr(given, "__wrapped__")


@pytest.mark.parametrize("key", [-1, True, None, 1.0, slice(0, 2), given["x"]], ids=repr)
def test_a_reference_is_entered_by_names_and_positions_only(key) -> None:
    with pytest.raises(ReferenceMisused):
        given["legs"][key]


def test_a_copied_input_refers_to_the_same_steps() -> None:
    shared = {"at": flight["arrives_at"], "all": flight}
    copied = copy.deepcopy(shared)
    assert copied is not shared
    assert all(copied[name] is shared[name] for name in shared)


def test_an_item_and_an_opposite_show_themselves_as_they_are_written() -> None:
    assert repr(item["host"][0]) == 'item["host"][0]'
    assert repr(~given["has_car"]) == '~given["has_car"]'


def test_an_opposite_has_nothing_inside_and_no_opposite() -> None:
    with pytest.raises(ReferenceMisused, match=r'Write ~given\["car"\]\["class"\]'):
        (~given["car"])["class"]
    with pytest.raises(ReferenceMisused, match=r'~~given\["car"\]: write given\["car"\] itself'):
        ~~given["car"]
