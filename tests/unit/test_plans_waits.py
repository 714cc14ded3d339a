"""Timers and signals: how they are declared, what is stored of them, and what is refused."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel

from workflows import Workflow, given, item, signal, step, timer
from workflows.exceptions import InvalidStep, UnknownReference
from workflows.plans import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})


class Soaking(BaseModel):
    seconds: float
    until: datetime | None = None
    hosts: list[str] = []


def make(**body: object) -> type[Workflow]:
    return type(Workflow)("Example", (Workflow,), body)  # type: ignore[return-value]


# --- timers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "stored"),
    [
        (90, 90),
        (0, 0),
        (1.5, 1.5),
        (timedelta(minutes=2), 120.0),
        (datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "2030-01-02T03:04:05Z"),
        (datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))), "2030-01-02T01:04:05Z"),
        (given["seconds"], {"$given": ["seconds"]}),
    ],
    ids=repr,
)
def test_a_timer_stores_seconds_an_instant_or_a_reference(delay, stored) -> None:
    planned = make(soak=timer(delay)).plan.step("soak")
    assert (planned.kind, planned.operation, planned.delay) == ("timer", "", stored)


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (-1, "no less than zero"),
        (timedelta(seconds=-1), "no less than zero"),
        (timedelta.max, "no more than a hundred years"),
        (10**30, "no more than a hundred years"),
        (float("nan"), "waits for seconds"),
        (float("inf"), "waits for seconds"),
        (True, "waits for seconds"),
        (None, "waits for seconds"),
        ("60", "waits for seconds"),
        (date(2030, 1, 2), "waits for seconds"),
        (~given["x"], "waits for seconds"),
        (datetime(2030, 1, 2), "needs its timezone"),
    ],
    ids=repr,
)
def test_a_delay_that_is_no_time_to_wait_is_refused(delay, message: str) -> None:
    with pytest.raises(InvalidStep, match=message):
        timer(delay)


def test_a_timer_waits_for_what_its_delay_reads() -> None:
    class Soak(Workflow):
        choose = step("fleet.choose")
        canary = step("fleet.canary")
        soak = timer(choose["seconds"], after=[canary])
        rest = step("fleet.rest", after=[soak])

    assert Soak.plan.prerequisites("soak") == ("choose", "canary")
    assert Soak.plan.prerequisites("rest") == ("soak",)


def test_the_delay_of_a_timer_follows_the_input_schema() -> None:
    make(input=Soaking, a=timer(given["seconds"]), b=timer(given["until"]))
    with pytest.raises(UnknownReference, match=r"step 'a': .*Did you mean 'seconds'"):
        make(input=Soaking, a=timer(given["second"]))
    with pytest.raises(UnknownReference, match=r'given\["hosts"\] is of type array where number or integer or string'):
        make(input=Soaking, a=timer(given["hosts"]))


def test_a_timer_has_no_items() -> None:
    with pytest.raises(InvalidStep, match=r'delay= reads item\["seconds"\]'):
        make(a=timer(item["seconds"]))


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("otherwise", "A timer cannot fail: there is nothing to do in its place."),
        ("on_failure", "A timer cannot fail."),
        ("timeout", "It waits as long as its delay says."),
        ("compensation", "nothing behind that could be undone"),
        ("each", "declare one"),
        ("input", "It calls nothing."),
        ("approval", r"It belongs to signal\(…\)"),
        ("wehn", "Did you mean 'when'"),
        ("delay_", "There is: after, when, unmet"),
    ],
)
def test_what_a_timer_cannot_have_is_refused_with_the_reason(keyword: str, advice: str) -> None:
    with pytest.raises(InvalidStep, match=rf"timer\(5\) has no {keyword}=.*{advice}"):
        timer(5, **{keyword: None})


# --- signals ---------------------------------------------------------------------------------------------------------


def test_a_signal_stores_how_long_it_is_waited_for() -> None:
    class Signals(Workflow):
        paid = signal(timeout=timedelta(hours=24))
        confirmed = signal(after=[paid], on_failure="ignore")

    paid, confirmed = Signals.plan.steps
    assert (paid.kind, paid.operation, paid.wait, paid.approval) == ("signal", "", timedelta(hours=24), False)
    assert (confirmed.wait, confirmed.after, confirmed.on_failure) == (None, ("paid",), "ignore")


def test_what_a_signal_carried_is_read_like_a_result() -> None:
    class Paying(Workflow):
        paid = signal()
        book = step("ledger.book", input={"amount": paid["amount"]})

    assert Paying.plan.step("book").input == {"amount": {"$result": ["paid", "amount"]}}
    assert Paying.plan.prerequisites("book") == ("paid",)


def test_naming_approvers_makes_a_signal_an_approval() -> None:
    plan = make(a=signal(approvers=["ada", "group:leads", "ada"]), b=signal(approval=True)).plan
    assert (plan.step("a").approval, plan.step("a").approvers) == (True, ("ada", "group:leads"))
    assert (plan.step("b").approval, plan.step("b").approvers) == (True, ())


@pytest.mark.parametrize(
    ("approvers", "message"),
    [
        ("ada", r"takes a list: approvers=\['ada'\]"),
        (None, "must be a list"),
        (given["who"], "must be a list"),
        ([given["who"]], "neither a user's name"),
        ([""], "neither a user's name"),
        (["group:"], "neither a user's name"),
        (["a\0b"], "neither a user's name"),
        ([7], "neither a user's name"),
        (["a" * 157], "longer than any name"),
    ],
    ids=repr,
)
def test_approvers_are_names_of_users_and_groups(approvers: Any, message: str) -> None:
    with pytest.raises(InvalidStep, match=message):
        signal(approvers=approvers)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), timedelta.max, 30, given["x"]], ids=repr)
def test_a_signal_is_waited_for_a_duration_or_for_ever(timeout) -> None:
    with pytest.raises(InvalidStep, match="timeout="):
        signal(timeout=timeout)


def test_approval_is_true_or_false() -> None:
    with pytest.raises(InvalidStep, match="approval='ada' must be True or False"):
        signal(approval="ada")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("compensation", "A signal does nothing that could be undone. Undo what follows it."),
        ("each", "declare a signal for each"),
        ("retry", "timeout= says how long"),
        ("input", "what it carries is its result"),
        ("approver", "Did you mean 'approvers'"),
        ("on_parent_end", r"It belongs to child\(…\)"),
    ],
)
def test_what_a_signal_cannot_have_is_refused_with_the_reason(keyword: str, advice: str) -> None:
    with pytest.raises(InvalidStep, match=rf"signal\(\) has no {keyword}=.*{advice}"):
        signal(**{keyword: None})
