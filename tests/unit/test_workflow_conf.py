"""The table of defaults and how a project overrides it."""

from dataclasses import asdict, fields
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from workflows import Retry
from workflows.conf import Defaults, conf


@override_settings(SAG={})
def test_what_other_programs_count_on_has_the_documented_defaults() -> None:
    defaults = {field.name: getattr(conf, field.name) for field in fields(Defaults)}
    assert (
        defaults
        | {
            "heartbeat": 3.0,
            "lease": 10.0,
            "sweep": 2.0,
            "ring_old": 5.0,
            "ring_cap": 60.0,
            "step_timeout": 30.0,
            "retry": Retry(),
            "undo_retry": Retry(attempts=10, first=timedelta(seconds=2), cap=timedelta(minutes=5)),
            "lands_within": 30.0,
            "queue": "agents",
            "payload_limit": 1_000_000,
            "payload_warning": 256_000,
            "rings_per_queue": 100,
        }
        == defaults
    )


def test_an_override_counts_from_when_it_is_set_until_it_is_taken_back() -> None:
    with override_settings(SAG={}):
        assert conf.lease == 10.0
        with override_settings(SAG={"lease": 20}):
            assert conf.lease == 20.0
            assert isinstance(conf.lease, float)
            assert conf.heartbeat == 3.0
        assert conf.lease == 10.0


@override_settings(SAG={"observe_only": True})
def test_a_switch_is_switched() -> None:
    assert conf.observe_only is True


@override_settings(SAG={"undo_retry": {"attempts": 2, "first": 0.1}})
def test_a_retry_policy_is_overridden_in_part() -> None:
    assert conf.undo_retry == Retry(attempts=2, first=timedelta(seconds=0.1), cap=timedelta(minutes=5))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"leese": 5}, r"SAG\['leese'\] is no setting. Did you mean 'lease'"),
        ({"lease": "10"}, r"SAG\['lease'\] must be a number above zero, not '10'"),
        ({"lease": 0}, "above zero"),
        ({"sweep": -1}, "above zero"),
        ({"sweep": True}, "above zero"),
        ({"sweep": float("nan")}, "above zero"),
        ({"payload_limit": 1.5}, "a whole number above zero"),
        ({"queue": ""}, "non-empty text"),
        ({"observe_only": 1}, r"SAG\['observe_only'\] must be True or False, not 1"),
        ({"observe_only": "true"}, "must be True or False"),
        ({"queue": 3}, "non-empty text"),
        ({"retry": {"attempts": 0}}, "is no retry policy: attempts=0"),
        ({"retry": {"atempts": 3}}, "Did you mean 'attempts'"),
        ({"retry": 3}, "is no retry policy"),
        ({"retry": {"first": "1"}}, "is no retry policy"),
        ({"heartbeat": 10}, r"heartbeat \(10.0 s\) must be shorter than lease"),
        ([("lease", 1)], "must be a dict"),
    ],
)
def test_a_wrong_override_is_refused_by_name(overrides, message: str) -> None:
    with override_settings(SAG=overrides), pytest.raises(ImproperlyConfigured, match=message):
        conf.lease  # reading is what is tested


def test_a_value_that_is_not_in_the_table_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="colour"):
        conf.colour  # type: ignore[attr-defined]
    assert "colour" not in asdict(Defaults())
