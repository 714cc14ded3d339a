"""What an agent may declare, and what an operation may raise: refused with the fault where it makes no sense."""

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pydantic
import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

import agents
from agents import Agent, Call, Defer, Snooze, registry
from agents.tasks import row_of


class Answer(pydantic.BaseModel):
    n: int
    text: str = ""


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no agent has, and none has afterwards."""
    yield "passing"
    registry._agents.pop("passing", None)


@pytest.mark.parametrize("at_once", [0, -1, 1.5, True, "3", math.nan])
def test_a_limit_of_calls_at_once_is_a_whole_number_above_zero(name: str, at_once: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="at_once= of the agent 'passing' must be a whole number"):
        Agent(name, at_once=at_once)
    assert name not in registry._agents


@pytest.mark.parametrize(
    "rate",
    [
        (0, timedelta(seconds=1)),
        (1, timedelta(0)),
        (1, timedelta(seconds=-1)),
        (1.5, timedelta(seconds=1)),
        (True, timedelta(seconds=1)),
        (1, math.nan),
        (1, math.inf),
        (1,),
        10,
        "10",
        ("a", "b"),
    ],
    ids=repr,
)
def test_a_rate_is_a_count_and_a_time_both_above_zero(name: str, rate: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"rate= of the agent 'passing' must be \(count, timedelta\)"):
        Agent(name, rate=rate)


NO_ADDRESSES = [
    "wiki",
    "javascript:alert(1)",
    "ftp://x.example",
    "https://",
    "https://a b",
    'https://a/"b',
    7,
    None,
    "https://[x",
    "https://x/" + "y" * 500,
]


@pytest.mark.parametrize("runbook", NO_ADDRESSES, ids=repr)
def test_a_runbook_is_the_address_of_a_page(name: str, runbook: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="runbook= of the agent 'passing'"):
        Agent(name, runbook=runbook)
    assert name not in registry._agents


def test_a_runbook_is_announced_and_an_installation_may_have_its_own(name: str, settings: Settings) -> None:
    assert (
        row_of(Agent(name, runbook="http://wiki.example.com/hotel#down")).runbook
        == "http://wiki.example.com/hotel#down"
    )
    registry._agents.pop(name)
    settings.SAG_AGENTS = {name: {"runbook": "https://ours.example.com"}}
    assert row_of(Agent(name, runbook="https://wiki.example.com")).runbook == "https://ours.example.com"


def test_limits_are_announced(name: str) -> None:
    agent = Agent(name, at_once=3, rate=(10, timedelta(seconds=2)))
    row = row_of(agent)
    assert (row.at_once, row.rate_count, row.rate_period) == (3, 10, timedelta(seconds=2))
    assert row.has_limit


def test_an_agent_without_limits_announces_none(name: str) -> None:
    row = row_of(Agent(name))
    assert (row.at_once, row.rate_count, row.rate_period, row.has_limit) == (None, None, None, False)


def test_an_installation_may_override_limits_and_lift_them(name: str, settings: Settings) -> None:
    settings.SAG_AGENTS = {name: {"at_once": 7, "rate": [5, 0.5]}}
    agent = Agent(name, at_once=3)
    assert (agent.at_once, agent.rate) == (7, (5, timedelta(seconds=0.5)))
    registry._agents.pop(name)
    settings.SAG_AGENTS = {name: {"at_once": None}}
    assert Agent(name, at_once=3).at_once is None
    registry._agents.pop(name)
    settings.SAG_AGENTS = {name: {"rate": [5]}}
    with pytest.raises(ImproperlyConfigured, match="rate="):
        Agent(name)


def test_an_operation_is_declared_plainly_or_with_options_and_stays_a_function(name: str) -> None:
    agent = Agent(name)

    @agent.operation
    def plain(call: Call) -> Any:
        return "plain"

    @agent.operation(atomic=True, output=Answer)
    def typed(call: Call) -> Any:
        return "typed"

    assert (plain(None), typed(None)) == ("plain", "typed")
    found = registry.find("passing.plain"), registry.find("passing.typed")
    assert [(one.atomic, one.output) for one in found] == [(False, None), (True, Answer)]


class Untold(pydantic.BaseModel):
    """Such as no JSON Schema can tell of."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    agent: Agent


class Lettered(pydantic.BaseModel):
    """Its pattern is none that Python's own expressions know."""

    name: str = pydantic.Field(pattern=r"^\p{L}+$")


def test_what_operations_promise_of_their_results_is_announced_as_it_is_stored(name: str) -> None:
    agent = Agent(name)
    for output in (Answer, Untold, Lettered):

        def perform(call: Call) -> Any:
            return None

        perform.__name__ = output.__name__.lower()
        agent.operation(output=output)(perform)
    outputs = row_of(agent).outputs
    assert list(outputs) == ["passing.answer"]
    assert (outputs["passing.answer"]["required"], outputs["passing.answer"]["properties"]["n"]["type"]) == (
        ["n", "text"],
        "integer",
    )


def test_what_is_no_plain_function_or_no_model_is_refused(name: str) -> None:
    agent = Agent(name)

    async def later(call: Call) -> Any:
        return None

    with pytest.raises(ImproperlyConfigured, match=r"passing\.later is async"):
        agent.operation(later)
    with pytest.raises(ImproperlyConfigured, match=r"output= of passing\.one must be a pydantic model"):

        @agent.operation(output=dict)
        def one(call: Call) -> Any:
            return None

    assert agent.operations == {}


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, 86_401, True, "5", None])
def test_a_snooze_takes_seconds_up_to_a_day(seconds: Any) -> None:
    with pytest.raises(ValueError, match="Snooze takes seconds from 0 to 86,400"):
        Snooze(seconds)


def test_a_snooze_of_nothing_and_of_a_day_are_both_taken() -> None:
    assert Snooze(0).delay == timedelta(0)
    assert (Snooze(86_400, "tomorrow").delay, Snooze(86_400, "tomorrow").message) == (timedelta(days=1), "tomorrow")


@pytest.mark.parametrize("within", [0, 5, timedelta(0), timedelta(seconds=-1), "1 h"])
def test_a_defer_takes_a_time_above_zero(within: Any) -> None:
    with pytest.raises(ValueError, match="Defer takes within= as a timedelta above zero"):
        Defer(within)


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(agents, name).__name__ == name for name in agents.__all__)
