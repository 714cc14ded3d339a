"""Agents, incidents and sweeps, as client programs see them."""

from datetime import timedelta

import pytest

from supervisor import storms, sweep
from supervisor.models import Incident, Sweep
from tests.api import Program, newcomer
from tests.integration.engine import Engine
from tests.integration.outages import Delivery, outage_of_shop, tend
from workflows.clock import now
from workflows.models import Agent, Breaker


@pytest.fixture
def operator(engine: Engine) -> Program:
    return newcomer("jobs:operate")


def test_an_agent_is_shown_with_what_its_workers_announced(operator: Program) -> None:
    Agent.objects.filter(pk="shop").update(at_once=4, rate_count=10, rate_period=timedelta(seconds=60))
    shop = operator.get("agents/shop").json()
    assert (shop["name"], shop["queue"]) == ("shop", "agents")
    assert "shop.a" in shop["operations"]
    assert shop["traits"] == {"honours_keys": True, "closes_keys": True, "lands_within": 30.0}
    assert shop["limits"] == {"at_once": 4, "rate": {"count": 10, "period": 60.0}}
    assert shop["breaker"]["phase"] == "closed"
    assert shop["backlog"] == {"ready": 0, "running": 0, "parked": 0, "oldest": None}
    assert shop["calls"] == {}


def test_all_agents_are_listed_by_name_each_with_its_own_backlog(engine: Engine, operator: Program) -> None:
    Delivery.start()
    page = operator.get("agents").json()
    found = {agent["name"]: agent for agent in page["results"]}
    assert list(found) == sorted(found)
    assert (page["next"], page["prev"]) == (None, None)
    assert found["shop"]["backlog"]["ready"] == 1
    assert found["shop"]["backlog"]["oldest"] is not None
    assert found["kiosk"]["backlog"] == {"ready": 0, "running": 0, "parked": 0, "oldest": None}


def test_the_list_of_agents_takes_as_many_questions_however_many_there_are(
    operator: Program, django_assert_max_num_queries: object
) -> None:
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        assert len(operator.get("agents").json()["results"]) >= 4


def test_an_outage_shows_on_its_agent_with_its_evidence(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    shop = operator.get("agents/shop").json()
    breaker = shop["breaker"]
    assert (breaker["phase"], breaker["cause"], breaker["message"]) == (
        "open",
        "unavailable",
        "The depot does not answer.",
    )
    assert breaker["evidence"]["steps"] == 6
    assert breaker["opened_at"] < breaker["trial_at"]
    assert (shop["backlog"]["ready"], shop["backlog"]["parked"]) == (0, 6)
    assert shop["calls"]["unavailable"] == 6


def test_an_agent_that_no_worker_announced_is_not_found(operator: Program) -> None:
    response = operator.get("agents/nobody")
    assert (response.status_code, response.json()["type"]) == (404, "/problems/not-found")
    assert operator.post("agents/nobody/resumption", {}).status_code == 404


def test_an_incident_is_listed_with_what_waits_because_of_it(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    [incident] = operator.get("incidents").json()["results"]
    assert (incident["agent"], incident["cause"], incident["closed_at"]) == ("shop", "unavailable", None)
    assert (incident["waiting"]["steps"], incident["waiting"]["jobs"]) == (6, 6)
    Incident.objects.update(closed_at=now())
    [incident] = operator.get("incidents").json()["results"]
    assert incident["waiting"] is None


def test_the_parked_steps_are_let_go_on_a_programs_word_and_its_name_stays_on_the_incident(
    engine: Engine, operator: Program
) -> None:
    outage_of_shop(engine)
    engine.says("shop.a", {"ok": True})
    response = operator.post("agents/shop/resumption", {"reason": "The depot called."})
    assert response.status_code == 202
    assert response.json()["breaker"]["phase"] == "releasing"
    assert Incident.objects.get().acknowledged_by == f"client:{operator.user.get_username()}"
    tend(engine)
    assert operator.get("agents/shop").json()["backlog"] == {"ready": 0, "running": 0, "parked": 0, "oldest": None}
    assert len(engine.calls_of("shop.a")) == 12


def test_a_breaker_that_is_closed_has_nothing_to_let_go(operator: Program) -> None:
    response = operator.post("agents/shop/resumption", {})
    assert (response.status_code, response.json()["type"]) == (409, "/problems/wrong-state")
    assert not Breaker.objects.exists()


def test_a_second_word_changes_nothing(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    other = newcomer("jobs:operate")
    assert [program.post("agents/shop/resumption", {}).status_code for program in (operator, other)] == [202, 202]
    assert Incident.objects.get().acknowledged_by == f"client:{operator.user.get_username()}"


def test_who_may_read_agents_may_not_let_their_steps_go(engine: Engine) -> None:
    outage_of_shop(engine)
    reader = newcomer("jobs:read")
    assert {reader.get(path).status_code for path in ("agents", "agents/shop", "incidents", "sweeps")} == {200}
    assert reader.post("agents/shop/resumption", {}).status_code == 403
    assert Breaker.objects.get().phase == "open"
    starter = newcomer("jobs:write")
    assert {starter.get(path).status_code for path in ("agents", "incidents", "sweeps")} == {403}


def test_sweeps_are_walked_newest_first_each_once(operator: Program) -> None:
    for number in range(5):
        Sweep.objects.create(started_at=now(), finished_at=now(), remedied=number, problems=[f"step {number}: …"])
    first = operator.get("sweeps?limit=2").json()
    second = operator.get(first["next"]).json()
    last = operator.get(second["next"]).json()
    found = [found for page in (first, second, last) for found in page["results"]]
    assert [found["remedied"] for found in found] == [4, 3, 2, 1, 0]
    assert found[0]["problems"] == ["step 4: …"]
    assert last["next"] is None
    assert operator.get(last["prev"]).json()["results"] == second["results"]


def test_a_sweep_tells_what_it_did(operator: Program) -> None:
    row = sweep.sweep()
    [found] = operator.get("sweeps").json()["results"]
    assert found["id"] == str(row.pk)
    assert (found["expired"], found["failed"], found["problems"]) == (0, 0, [])
    assert found["grace_until"] is not None  # the first ever waits a lease before it takes anything from anybody


def test_a_step_is_let_through_at_once_when_a_person_wants_to_know(engine: Engine) -> None:
    outage_of_shop(engine)
    engine.says("shop.a", {"ok": True})
    asked = len(engine.calls_of("shop.a"))
    tend(engine)
    assert len(engine.calls_of("shop.a")) == asked  # it cools down
    storms.try_now("shop")
    tend(engine)
    assert len(engine.calls_of("shop.a")) == asked + 1
