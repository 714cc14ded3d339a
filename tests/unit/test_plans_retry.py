"""Retry: nonsense is refused, and the waits are known before anything fails."""

from datetime import timedelta

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from workflows import Retry
from workflows.exceptions import InvalidRetry


def seconds(retry: Retry) -> list[float]:
    return [wait.total_seconds() for wait in retry.schedule()]


def test_the_default_is_five_attempts_that_back_off_from_one_second() -> None:
    assert seconds(Retry()) == [1, 2, 4, 8]


def test_no_wait_is_longer_than_the_cap() -> None:
    assert seconds(Retry(attempts=9)) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_single_attempt_has_no_waits() -> None:
    assert seconds(Retry(attempts=1)) == []


def test_a_factor_of_one_keeps_the_waits_equal() -> None:
    assert seconds(Retry(attempts=4, first=timedelta(seconds=3), factor=1)) == [3, 3, 3]


def test_the_wait_is_drawn_from_zero_to_the_bound() -> None:
    retry = Retry(first=timedelta(seconds=2))
    assert retry.delay(3, 0.0) == timedelta(0)
    assert retry.delay(3, 0.5) == timedelta(seconds=4)


@forall(failures=st.integers(1, 10**6), random=st.floats(0, 1, exclude_max=True), factor=st.floats(1, 1e300))
def test_a_wait_is_never_negative_and_never_past_the_cap(failures: int, random: float, factor: float) -> None:
    retry = Retry(factor=factor)
    assert timedelta(0) <= retry.delay(failures, random) <= retry.cap


def test_a_wait_before_the_first_failure_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one failure"):
        Retry().delay(0, 0.5)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"attempts": 0}, "attempts=0"),
        ({"attempts": -1}, "attempts=-1"),
        ({"attempts": True}, "attempts=True"),
        ({"attempts": 2.5}, "attempts=2.5"),
        ({"first": timedelta(0)}, "first="),
        ({"first": 1}, "timedelta"),
        ({"cap": 60}, "timedelta"),
        ({"cap": timedelta(seconds=-1)}, "cap="),
        ({"first": timedelta(minutes=2)}, "shorter than first"),
        ({"factor": 0.5}, "factor=0.5"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"factor": float("inf")}, "factor=inf"),
        ({"factor": "2"}, "factor='2'"),
        ({"atempts": 3}, "Did you mean 'attempts'"),
    ],
)
def test_nonsense_is_refused_by_name(arguments, fault: str) -> None:
    with pytest.raises(InvalidRetry, match=fault):
        Retry(**arguments)


def test_a_policy_survives_json_and_cannot_be_changed() -> None:
    retry = Retry(attempts=3, first=timedelta(milliseconds=250), factor=1.5, cap=timedelta(seconds=7))
    assert retry.to_json() == {"attempts": 3, "first": 0.25, "factor": 1.5, "cap": 7.0}
    assert Retry.from_json(retry.to_json()) == retry
    assert Retry.from_json({"first": 0.5}) == Retry(first=timedelta(seconds=0.5))
    with pytest.raises(AttributeError):
        retry.attempts = 9  # type: ignore[misc]
