"""Which remedy a failed step gets: a pure function of facts."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.remedies import Facts, choose
from workflows import Retry
from workflows.states import ErrorKind, Remedy, Role
from workflows.transitions import RESULT_NOT_STORABLE

POLICY = Retry(attempts=5, first=timedelta(seconds=1), factor=2, cap=timedelta(seconds=60))
BUSY = Facts(
    role=Role.FORWARD,
    kind=ErrorKind.TRANSIENT,
    code="busy",
    message="the desk is busy",
    charged=1,
    allowed=5,
    open_doubt=False,
    has_probe=False,
    was_probe_only=False,
    retry=POLICY,
    retry_after=None,
    draw=0.5,
)


def test_a_step_with_attempts_left_is_tried_again_after_its_back_off() -> None:
    choice = choose(replace(BUSY, charged=3))
    assert (choice.remedy, choice.delay, choice.probe_only) == (Remedy.RETRY, timedelta(seconds=2), False)
    assert choice.reason == "Attempt 3 of 5 failed (transient)."


@pytest.mark.parametrize("kind", [ErrorKind.TRANSIENT, ErrorKind.IN_DOUBT, ErrorKind.LOST])
def test_the_last_attempt_of_its_allowance_is_followed_by_the_undo(kind: ErrorKind) -> None:
    assert choose(replace(BUSY, kind=kind, charged=4)).remedy == Remedy.RETRY
    assert choose(replace(BUSY, kind=kind, charged=5)).remedy == Remedy.COMPENSATE
    assert choose(replace(BUSY, kind=kind, charged=6)).remedy == Remedy.COMPENSATE


@pytest.mark.parametrize(
    "facts",
    [
        replace(BUSY, kind=ErrorKind.PERMANENT),
        replace(BUSY, kind=ErrorKind.CANCELLED, open_doubt=True, has_probe=True),
        replace(BUSY, kind=ErrorKind.IN_DOUBT, code=RESULT_NOT_STORABLE, open_doubt=True, has_probe=True),
        replace(BUSY, kind=ErrorKind.PERMANENT, open_doubt=True, has_probe=True),
    ],
    ids=["permanent", "cancelled", "not storable", "permanent after a doubt"],
)
def test_what_another_attempt_cannot_help_is_undone_at_once(facts: Facts) -> None:
    assert choose(facts).remedy == Remedy.COMPENSATE
    assert choose(replace(facts, role=Role.UNDO)).remedy == Remedy.ESCALATE
    assert choose(replace(facts, role=Role.RECHECK)).remedy == Remedy.ESCALATE


def test_a_step_used_up_in_doubt_is_asked_after_once_if_there_is_a_probe() -> None:
    used_up = replace(BUSY, kind=ErrorKind.LOST, charged=5, open_doubt=True, has_probe=True)
    asking = choose(used_up)
    assert (asking.remedy, asking.probe_only) == (Remedy.RETRY, True)
    assert choose(replace(used_up, was_probe_only=True, charged=6)).remedy == Remedy.COMPENSATE
    assert choose(replace(used_up, has_probe=False)).remedy == Remedy.COMPENSATE
    assert choose(replace(used_up, open_doubt=False)).remedy == Remedy.COMPENSATE


@pytest.mark.parametrize("role", [Role.UNDO, Role.RECHECK])
def test_an_undo_that_will_not_succeed_is_put_before_a_person(role: Role) -> None:
    assert choose(replace(BUSY, role=role, charged=4)).remedy == Remedy.RETRY
    assert choose(replace(BUSY, role=role, charged=5)).remedy == Remedy.ESCALATE


def test_the_wait_that_the_other_side_asked_for_counts_instead_of_the_back_off_up_to_the_cap() -> None:
    assert choose(replace(BUSY, retry_after=timedelta(seconds=30))).delay == timedelta(seconds=30)
    assert choose(replace(BUSY, retry_after=timedelta(0))).delay == timedelta(0)
    assert choose(replace(BUSY, retry_after=timedelta(days=9))).delay == timedelta(seconds=60)


facts = st.builds(
    Facts,
    role=st.sampled_from(Role),
    kind=st.sampled_from(ErrorKind),
    code=st.sampled_from(["", "busy", RESULT_NOT_STORABLE]),
    message=st.text(max_size=5),
    charged=st.integers(0, 12),
    allowed=st.integers(1, 10),
    open_doubt=st.booleans(),
    has_probe=st.booleans(),
    was_probe_only=st.booleans(),
    retry=st.just(POLICY),
    retry_after=st.none() | st.timedeltas(timedelta(0), timedelta(days=1)),
    draw=st.floats(0, 1, exclude_max=True),
)


@given(facts)
def test_whatever_the_facts_there_is_a_remedy_with_a_reason_and_no_attempt_beyond_the_allowance(facts: Facts) -> None:
    choice = choose(facts)
    assert choice.reason
    assert timedelta(0) <= choice.delay <= POLICY.cap
    if choice.remedy == Remedy.RETRY:
        assert facts.charged < facts.allowed or choice.probe_only
        assert not facts.was_probe_only
        assert facts.kind not in (ErrorKind.PERMANENT, ErrorKind.CANCELLED)
    if choice.probe_only:
        assert facts.has_probe
        assert facts.open_doubt
    assert (choice.remedy == Remedy.ESCALATE) <= (facts.role != Role.FORWARD)
    assert (choice.remedy == Remedy.COMPENSATE) <= (facts.role == Role.FORWARD)
