"""Templates: what a declared input is stored as, and what it becomes when its step runs."""

import json

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from workflows import given, item, step
from workflows.exceptions import InvalidStep, UnresolvedReference
from workflows.plans.templates import encode, encode_condition, references_of, resolve

flight = step("flight.reserve")
NAMES = {id(flight): "flight"}
TRIP = {"traveller": {"name": "Ada"}, "legs": [{"to": "LIS"}], "note": None}
RESULTS = {"flight": {"arrives_at": "2027-03-04T10:00:00Z"}}


@pytest.mark.parametrize(
    ("declared", "stored", "value"),
    [
        ({}, {}, {}),
        ({"a": [1, 2.5, "x", None, True]}, {"a": [1, 2.5, "x", None, True]}, {"a": [1, 2.5, "x", None, True]}),
        ({"t": (1, 2)}, {"t": [1, 2]}, {"t": [1, 2]}),
        (given, {"$given": []}, TRIP),
        (given["traveller"]["name"], {"$given": ["traveller", "name"]}, "Ada"),
        ({"x": [{"y": given["legs"][0]["to"]}]}, {"x": [{"y": {"$given": ["legs", 0, "to"]}}]}, {"x": [{"y": "LIS"}]}),
        ({"n": given["note"]}, {"n": {"$given": ["note"]}}, {"n": None}),
        ({"f": flight}, {"f": {"$result": ["flight"]}}, {"f": RESULTS["flight"]}),
        (flight["arrives_at"], {"$result": ["flight", "arrives_at"]}, "2027-03-04T10:00:00Z"),
        ({"$given": ["a"]}, {"$literal": {"$given": ["a"]}}, {"$given": ["a"]}),
        ({"$literal": {"$x": 1}}, {"$literal": {"$literal": {"$literal": {"$x": 1}}}}, {"$literal": {"$x": 1}}),
        (
            {"$eq": given["legs"], "b": flight},
            {"$literal": {"$eq": {"$given": ["legs"]}, "b": {"$result": ["flight"]}}},
            {"$eq": [{"to": "LIS"}], "b": RESULTS["flight"]},
        ),
    ],
)
def test_an_input_is_stored_as_json_and_resolved_from_it(declared, stored, value) -> None:
    template = encode(declared, NAMES)
    assert template == stored
    assert resolve(json.loads(json.dumps(template)), TRIP, RESULTS) == value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$given", "$result", "$literal", "$", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@forall(json_values)
def test_every_literal_stands_for_itself_whatever_its_names(value) -> None:
    template = encode(value, {})
    assert references_of(template) == set()
    assert resolve(template, {}, {}) == value


def test_the_steps_that_a_template_reads_are_found_at_any_depth() -> None:
    hotel = step("hotel.reserve")
    declared = {"a": [{"$b": flight["x"]}], "c": hotel, "d": given["hotel"], "e": {"$result": ["car"]}}
    assert references_of(encode(declared, {**NAMES, id(hotel): "hotel"})) == {"flight", "hotel"}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"$given": ["travellr"]}, r'given\["travellr"\] leads to nothing: given has no .*Did you mean \'traveller\''),
        ({"$given": ["legs", 1]}, r'given\["legs"\] is a list of 1'),
        ({"$given": ["legs", "to"]}, r"is a list of 1"),
        ({"$given": ["note", "text"]}, r'given\["note"\] is null'),
        ({"$given": ["traveller", "name", "first"]}, r'given\["traveller"\]\["name"\] is a str'),
        ({"a": [{"$result": ["flight", "arrival"]}]}, r'flight\["arrival"\] leads to nothing: flight has no'),
        ({"$result": ["hotel"]}, "'hotel' has left no result"),
    ],
)
def test_a_reference_that_leads_to_nothing_says_what_was_there(template, message: str) -> None:
    with pytest.raises(UnresolvedReference, match=message) as caught:
        resolve(template, TRIP, RESULTS)
    assert "Ada" not in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"when": object()}, r'input\["when"\] is a object'),
        ({"x": [float("nan")]}, r'input\["x"\]\[0\] is nan'),
        ({"x": "a\0b"}, "NUL"),
        ({"x": "\ud800"}, "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        ({1: "x"}, "the name is no text"),
        ({"n": 10**400}, "too large"),
        ({"s": {1, 2}}, "is a set"),
    ],
)
def test_a_literal_that_cannot_be_stored_is_refused_with_its_place(declared, message: str) -> None:
    with pytest.raises(InvalidStep, match=message):
        encode(declared, {})


def test_an_input_that_contains_itself_is_refused() -> None:
    endless: dict = {}
    endless["again"] = endless
    with pytest.raises(InvalidStep, match="contains itself"):
        encode(endless, {})


def test_resolving_changes_neither_the_template_nor_what_it_reads() -> None:
    template = {"list": [1], "trip": {"$given": ["traveller"]}}
    resolved = resolve(template, TRIP, {})
    resolved["list"].append(2)
    assert template == {"list": [1], "trip": {"$given": ["traveller"]}}


HOST = {"name": "web-1", "tags": ["a", "b"], "owner": None}


@pytest.mark.parametrize(
    ("declared", "stored", "value"),
    [
        (item, {"$item": []}, HOST),
        ({"host": item["name"]}, {"host": {"$item": ["name"]}}, {"host": "web-1"}),
        ([item["tags"][1], given["note"]], [{"$item": ["tags", 1]}, {"$given": ["note"]}], ["b", None]),
        ({"$x": item["owner"]}, {"$literal": {"$x": {"$item": ["owner"]}}}, {"$x": None}),
    ],
)
def test_an_item_is_read_like_an_input(declared, stored, value) -> None:
    template = encode(declared, NAMES)
    assert template == stored
    assert references_of(template) == set()
    assert resolve(template, TRIP, RESULTS, HOST) == value


def test_an_item_that_has_not_what_is_read_says_so() -> None:
    with pytest.raises(
        UnresolvedReference, match=r"item\[\"nam\"\] leads to nothing: item has no 'nam'. Did you mean 'name'"
    ):
        resolve({"$item": ["nam"]}, TRIP, RESULTS, HOST)


@pytest.mark.parametrize(("value", "met"), [(True, True), (1, True), ("no", True), (False, False), (0, False)])
def test_a_condition_is_the_truth_of_what_it_reads_or_the_opposite(value, met: bool) -> None:
    template = encode_condition(given["go"], NAMES)
    opposite = encode_condition(~given["go"], NAMES)
    assert template == {"$given": ["go"]}
    assert opposite == {"$not": {"$given": ["go"]}}
    assert bool(resolve(template, {"go": value}, {})) is met
    assert resolve(opposite, {"go": value}, {}) is not met


def test_a_condition_names_the_step_that_it_reads() -> None:
    assert references_of(encode_condition(~flight["seats"], NAMES)) == {"flight"}
    assert encode_condition(None, NAMES) is None


def test_what_is_read_of_an_absent_step_is_null_at_any_depth() -> None:
    template = encode({"all": flight, "deep": [flight["legs"][0]["to"]], "name": given["traveller"]["name"]}, NAMES)
    assert resolve(template, TRIP, {}, absent={"flight"}) == {"all": None, "deep": [None], "name": "Ada"}
    assert resolve({"$not": {"$result": ["flight", "x"]}}, TRIP, {}, absent={"flight"}) is True
    with pytest.raises(UnresolvedReference, match="'flight' has left no result"):
        resolve(template, TRIP, {}, absent={"hotel"})


def test_an_absent_step_counts_as_absent_although_it_left_something() -> None:
    assert resolve({"$result": ["flight", "arrives_at"]}, TRIP, RESULTS, absent={"flight"}) is None


def test_an_opposite_is_refused_anywhere_but_in_a_condition() -> None:
    with pytest.raises(InvalidStep, match=r'input\["a"\]\[0\] is ~given\["x"\], but ~ is for when= alone'):
        encode({"a": [~given["x"]]}, NAMES)
