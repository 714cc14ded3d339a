"""Results and error texts on their way into the store."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.results import Unstorable, clean_text, to_store

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def _is_storable(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return "\x00" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, list):
        return all(map(_is_storable, value))
    if isinstance(value, dict):
        return all(_is_storable(name) and _is_storable(item) for name, item in value.items())
    return True


@given(values)
def test_json_values_come_back_as_they_went_in_and_all_others_are_refused(value: object) -> None:
    if _is_storable(value):
        assert json.loads(to_store(value)) == value
    else:
        with pytest.raises(Unstorable):
            to_store(value)


@given(st.text(st.sampled_from('\\u0"nN')))
def test_texts_that_look_like_escapes_are_not_mistaken_for_them(text: str) -> None:
    assert json.loads(to_store({"text": text})) == {"text": text}


@pytest.mark.parametrize("text", ["NaN", "-Infinity", 'say "NaN"', "\\u0000", "\\\\u0000", "9" * 5000])
def test_words_that_stand_for_what_cannot_be_stored_are_only_words_in_a_text(text: str) -> None:
    assert json.loads(to_store([text, {text: text}])) == [text, {text: text}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "NaN"),
        ({"x": [float("-inf")]}, "-Infinity"),
        ("a\x00", "NUL"),
        ({"a\x00": 1}, "NUL"),
        ("\\\x00", "NUL"),
        ("\ud800", "surrogate|UnicodeEncodeError"),
        (object(), "unknown type"),
        (10**5000, "too long"),
        ("x" * 2_000_000, "2,000,002 bytes; 1,000,000 are allowed"),
        ("é" * 500_001, "1,000,004 bytes"),
    ],
    ids=[
        "NaN",
        "infinity",
        "NUL",
        "NUL in a name",
        "NUL behind a backslash",
        "surrogate",
        "object",
        "number",
        "large",
        "é",
    ],
)
def test_a_refusal_says_why(value: object, reason: str) -> None:
    with pytest.raises(Unstorable, match=reason):
        to_store(value)


def test_the_largest_result_that_is_allowed_is_stored() -> None:
    assert len(to_store("x" * 999_998)) == 1_000_000


def test_an_error_text_is_cut_and_cleaned() -> None:
    assert clean_text("a\x00b") == "a\N{REPLACEMENT CHARACTER}b"
    assert clean_text("\ud800") == "\\ud800"
    assert clean_text("x" * 5_000_000) == "x" * 10_000 + " …"
    assert clean_text("x" * 10_000) == "x" * 10_000
    assert clean_text(ValueError("no seat")) == "no seat"


@given(st.text())
def test_a_cleaned_text_can_be_stored_and_read_whatever_it_was(text: str) -> None:
    cleaned = clean_text(text)
    assert json.loads(to_store(cleaned)) == cleaned


def test_an_error_that_cannot_be_printed_still_has_a_text() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert clean_text(Unprintable()) == "(a Unprintable that cannot be printed)"
