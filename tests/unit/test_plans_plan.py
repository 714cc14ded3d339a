"""A plan as data: exactly this JSON is stored, and the same plan comes back from it."""

import json
from datetime import timedelta

import pytest
from django.test import override_settings
from hypothesis import given as forall
from hypothesis import strategies as st

from workflows import Limit, Retry, Workflow, child, given, item, signal, step, timer
from workflows.exceptions import UnknownReference
from workflows.plans import registry
from workflows.plans.plan import Plan, PlanStep


@pytest.fixture
def plan(monkeypatch) -> Plan:
    monkeypatch.setattr(registry, "_workflows", {})

    class Outing(Workflow):
        version = 3
        compensate_within = timedelta(days=30)

        flight = step(
            "flight.reserve",
            compensation="flight.cancel",
            probe="flight.find",
            input={"who": given["traveller"]["name"]},
        )
        hotel = step(
            "hotel.reserve",
            input={"at": flight["arrives_at"], "$raw": 1},
            timeout=timedelta(milliseconds=1500),
            retry=Retry(attempts=2, first=timedelta(seconds=3), factor=1, cap=timedelta(seconds=9)),
        )
        car = step("car.reserve", after=[hotel, flight])

    return Outing.plan


def test_a_plan_is_stored_as_documented(plan: Plan) -> None:
    retry = {"attempts": 5, "first": 1.0, "factor": 2.0, "cap": 60.0}
    undo_retry = {"attempts": 10, "first": 2.0, "factor": 2.0, "cap": 300.0}
    waiting = {"queue_timeout": 86_400.0, "total_timeout": 604_800.0}
    assert plan.to_json() == {
        "workflow": "Outing",
        "version": 3,
        "compensate_within": 2592000.0,
        "steps": [
            {
                "name": "flight",
                "operation": "flight.reserve",
                "compensation": "flight.cancel",
                "probe": "flight.find",
                "input": {"who": {"$given": ["traveller", "name"]}},
                "after": [],
                "timeout": 30.0,
                "retry": retry,
                "undo_retry": undo_retry,
                **waiting,
            },
            {
                "name": "hotel",
                "operation": "hotel.reserve",
                "compensation": None,
                "probe": None,
                "input": {"$literal": {"at": {"$result": ["flight", "arrives_at"]}, "$raw": 1}},
                "after": ["flight"],
                "timeout": 1.5,
                "retry": {"attempts": 2, "first": 3.0, "factor": 1.0, "cap": 9.0},
                "undo_retry": undo_retry,
                **waiting,
            },
            {
                "name": "car",
                "operation": "car.reserve",
                "compensation": None,
                "probe": None,
                "input": {},
                "after": ["flight", "hotel"],
                "timeout": 30.0,
                "retry": retry,
                "undo_retry": undo_retry,
                **waiting,
            },
        ],
    }


def test_the_same_plan_comes_back_from_its_json(plan: Plan) -> None:
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.dependents("flight") == ("hotel", "car")


def test_a_start_writes_the_plan_and_a_row_for_each_step(plan: Plan) -> None:
    assert json.loads(plan.document) == plan.to_json()
    assert [tuple(row.values()) for row in json.loads(plan.rows)] == [
        (0, "flight", "flight.reserve", "flight", 0, [1, 2], 30.0, 5, 0, "call", False, 86_400.0),
        (1, "hotel", "hotel.reserve", "hotel", 1, [2], 1.5, 2, 1, "call", False, 86_400.0),
        (2, "car", "car.reserve", "car", 2, [], 30.0, 5, 2, "call", False, 86_400.0),
    ]
    assert list(json.loads(plan.rows)[0]) == [
        *("seq", "name", "operation", "agent", "waiting_for", "releases", "timeout", "attempts"),
        *("place", "kind", "gated", "queue_timeout"),
    ]


def test_changing_the_json_does_not_change_the_plan(plan: Plan) -> None:
    plan.to_json()["steps"][0]["input"]["who"]["$given"].append("x")
    assert plan.step("flight").input == {"who": {"$given": ["traveller", "name"]}}


def test_a_plan_cannot_be_changed(plan: Plan) -> None:
    with pytest.raises(AttributeError):
        plan.version = 4  # type: ignore[misc]
    with pytest.raises(AttributeError):
        plan.steps[0].operation = "x.y"  # type: ignore[misc]


@pytest.mark.parametrize("ask", [Plan.step, Plan.prerequisites, Plan.dependents])
def test_a_step_that_the_plan_has_not_is_answered_with_the_nearest_name(plan: Plan, ask) -> None:
    with pytest.raises(UnknownReference, match="Outing has no step 'fligth'. Did you mean 'flight'"):
        ask(plan, "fligth")


@override_settings(
    SAG={
        "step_timeout": 7,
        "queue_timeout": 8,
        "total_timeout": 9,
        "retry": {"attempts": 2},
        "undo_retry": {"attempts": 3, "first": 0.5},
    }
)
def test_what_a_step_leaves_out_comes_from_the_settings(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})

    class Quick(Workflow):
        a = step("x.a", compensation="x.b")

    planned = Quick.plan.step("a")
    assert planned.timeout == timedelta(seconds=7)
    assert planned.queue_timeout == timedelta(seconds=8)
    assert planned.total_timeout == timedelta(seconds=9)
    assert planned.retry == Retry(attempts=2)
    assert planned.undo_retry == Retry(attempts=3, first=timedelta(seconds=0.5), cap=timedelta(minutes=5))


@pytest.fixture
def everything(monkeypatch) -> Plan:
    monkeypatch.setattr(registry, "_workflows", {})

    class Everything(Workflow):
        on_failure = "hold"
        deadline = timedelta(hours=2)
        after_success = "mail.thank"
        after_failure = "mail.apologise"

        hosts = step("fleet.hosts", on_failure="ignore", compensation=False)
        deploy = step(
            "host.deploy",
            each=hosts["all"],
            at_once=20,
            tolerate=0.02,
            when=~given["dry"],
            unmet="cascade",
            input={"host": item["name"]},
            queue_timeout=timedelta(minutes=5),
            total_timeout=timedelta(hours=1),
            limit=Limit(key=item["rack"], at_once=2),
        )
        soak = timer(given["soak"], after=[deploy])
        approved = signal(timeout=timedelta(days=1), approvers=["ada", "group:leads"], after=[soak])
        trips = child("TripBooking", each=given["trips"], on_parent_end="abandon", after=[approved])
        pay = step("bank.pay", pivot=True, otherwise=step("invoice.write"), after=[trips])

    return Everything.plan


def test_each_step_stores_what_it_has_and_nothing_that_it_has_not(everything: Plan) -> None:
    common = {"compensation", "probe", "input", "after", "timeout", "retry", "undo_retry"}
    stored = [
        {name: value for name, value in document.items() if name not in common}
        for document in everything.to_json()["steps"]
    ]
    waiting = {"queue_timeout": 86_400.0, "total_timeout": 604_800.0}
    held = {"on_failure": "hold"}
    assert stored == [
        {"name": "hosts", "operation": "fleet.hosts", "on_failure": "ignore", "undo_unnecessary": True, **waiting},
        {
            "name": "deploy",
            "operation": "host.deploy",
            "each": {"$result": ["hosts", "all"]},
            "at_once": 20,
            "tolerate": 0.02,
            "when": {"$not": {"$given": ["dry"]}},
            "unmet": "cascade",
            "queue_timeout": 300.0,
            "total_timeout": 3600.0,
            "limit": {"key": {"$item": ["rack"]}, "at_once": 2},
            **held,
        },
        {"name": "soak", "operation": "", "kind": "timer", "delay": {"$given": ["soak"]}, **held},
        {
            "name": "approved",
            "operation": "",
            "kind": "signal",
            "wait": 86_400.0,
            "approval": True,
            "approvers": ["ada", "group:leads"],
            **held,
        },
        {
            "name": "trips",
            "operation": "",
            "kind": "child",
            "each": {"$given": ["trips"]},
            "child": "TripBooking",
            "on_parent_end": "abandon",
            **held,
        },
        {"name": "pay", "operation": "bank.pay", "pivot": True, **held, **waiting},
        {"name": "pay.otherwise", "operation": "invoice.write", "instead_of": "pay", **held, **waiting},
    ]


def test_the_options_of_the_workflow_are_stored(everything: Plan) -> None:
    document = everything.to_json()
    del document["steps"]
    assert document == {
        "workflow": "Everything",
        "version": 1,
        "compensate_within": None,
        "on_failure": "hold",
        "deadline": 7200.0,
        "after_success": "mail.thank",
        "after_failure": "mail.apologise",
    }
    assert Plan.from_json(json.loads(everything.document)) == everything


def test_the_scheduler_looks_at_all_but_plain_calls(everything: Plan) -> None:
    rows = json.loads(everything.rows)
    assert [(row["name"], row["agent"], row["kind"], row["gated"], row["queue_timeout"]) for row in rows] == [
        ("hosts", "fleet", "call", False, 86_400.0),
        ("deploy", "host", "call", True, 300.0),
        ("soak", "", "timer", True, None),
        ("approved", "", "signal", True, None),
        ("trips", "", "child", True, None),
        ("pay", "bank", "call", False, 86_400.0),
        ("pay.otherwise", "invoice", "call", True, 86_400.0),
    ]
    assert [row["place"] for row in rows] == list(range(7))


@pytest.mark.parametrize(
    ("part", "gated"),
    [
        ({}, False),
        ({"pivot": True, "on_failure": "hold"}, False),
        ({"kind": "timer"}, True),
        ({"each": []}, True),
        ({"when": {"$given": []}}, True),
        ({"instead_of": "a"}, True),
        ({"limit": {"key": "x", "at_once": 1}}, True),
    ],
    ids=str,
)
def test_a_step_is_gated_by_each_part_that_has_to_be_looked_at(plan: Plan, part: dict, gated: bool) -> None:
    assert PlanStep.from_json({**plan.step("car").to_json(), **part}).gated is gated


def test_a_plan_that_was_stored_by_an_earlier_release_is_still_read() -> None:
    """SAS-109: a job ends by the plan it was started with, and that plan may be older than our newest words."""
    retry = {"attempts": 5, "first": 1.0, "factor": 2.0, "cap": 60.0}
    stored = {
        "workflow": "Old",
        "version": 1,
        "compensate_within": None,
        "steps": [
            {
                "name": "a",
                "operation": "x.a",
                "compensation": "x.b",
                "probe": None,
                "input": {},
                "after": [],
                "timeout": 30.0,
                "retry": retry,
                "undo_retry": retry,
            }
        ],
    }
    plan = Plan.from_json(stored)
    assert (plan.on_failure, plan.deadline, plan.after_success) == ("compensate", None, None)
    planned = plan.step("a")
    assert (planned.kind, planned.gated, planned.unmet, planned.on_failure) == ("call", False, "skip", "compensate")
    assert (planned.queue_timeout, planned.total_timeout, planned.tolerate) == (None, None, 0)
    assert plan.to_json() == stored


names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
durations = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=400)).map(
    lambda duration: timedelta(milliseconds=duration // timedelta(milliseconds=1))
)
templates = st.recursive(
    st.booleans() | st.integers(-1000, 1000) | names | st.builds(lambda name: {"$given": [name]}, names),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
retries = st.builds(Retry, attempts=st.integers(1, 9), first=st.just(timedelta(seconds=1)))
maybe = {
    "compensation": names,
    "probe": names,
    "each": templates,
    "at_once": st.integers(1, 500),
    "when": templates,
    "instead_of": names,
    "queue_timeout": durations,
    "total_timeout": durations,
    "delay": templates,
    "wait": durations,
    "child": names,
    "limit": st.fixed_dictionaries({"key": templates, "at_once": st.integers(1, 9)}),
}
planned_steps = st.builds(
    PlanStep,
    name=names,
    operation=names,
    input=templates,
    after=st.lists(names, max_size=3).map(tuple),
    timeout=durations,
    retry=retries,
    undo_retry=retries,
    kind=st.sampled_from(["call", "timer", "signal", "child"]),
    tolerate=st.integers(0, 9) | st.floats(0, 1, exclude_max=True),
    unmet=st.sampled_from(["skip", "cascade", "fail"]),
    on_failure=st.sampled_from(["compensate", "hold", "ignore"]),
    pivot=st.booleans(),
    undo_unnecessary=st.booleans(),
    approval=st.booleans(),
    approvers=st.lists(names, max_size=2).map(tuple),
    on_parent_end=st.sampled_from(["cancel", "wait", "abandon"]),
    **{name: st.none() | some for name, some in maybe.items()},
)
plans = st.builds(
    Plan,
    workflow=names,
    version=st.integers(1, 99),
    compensate_within=st.none() | durations,
    steps=st.lists(planned_steps, max_size=3).map(tuple),
    on_failure=st.sampled_from(["compensate", "hold", "ignore"]),
    deadline=st.none() | durations,
    after_success=st.none() | names,
    after_failure=st.none() | names,
)


@forall(plans)
def test_any_plan_comes_back_from_its_json(whatever: Plan) -> None:
    assert Plan.from_json(json.loads(whatever.document)) == whatever
