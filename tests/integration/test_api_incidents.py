"""One outage over REST, and how all that waits because of it is given up."""

from typing import Any

import pytest

from supervisor import cancellations
from supervisor.models import GroupCancellation, Incident
from tests.api import Program, newcomer
from tests.integration.engine import Engine, state_of
from tests.integration.outages import Delivery, outage_of_shop, tend
from workflows.clock import now


@pytest.fixture
def operator(engine: Engine) -> Program:
    return newcomer("jobs:operate")


def path(*more: str) -> str:
    return "/".join(["incidents", str(Incident.objects.get().pk), *more])


def test_one_incident_is_told_as_in_the_list(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    found = operator.get(path()).json()
    assert found == operator.get("incidents").json()["results"][0]
    assert (found["agent"], found["waiting"]["jobs"], found["waiting"]["can_be_cancelled"]) == ("shop", 6, 6)
    assert found["cancellations"] == []
    assert operator.get("incidents/99").status_code == 404


def test_a_program_gives_up_all_that_waits_and_follows_how_far_it_is(engine: Engine, operator: Program) -> None:
    jobs = outage_of_shop(engine)
    answer = operator.post(path("cancellation"), {"reason": "The season is over."})
    assert answer.status_code == 202
    [asked] = answer.json()["cancellations"]
    assert (asked["undo"], asked["jobs"], asked["left"], asked["finished_at"]) == (True, 6, 6, None)
    assert asked["actor"] == f"client:{operator.user.get_username()}"
    cancellations.work_off()
    engine.drain()
    [asked] = operator.get(path()).json()["cancellations"]
    assert (asked["cancelled"], asked["left"], asked["refusals"]) == (6, 0, [])
    assert asked["finished_at"] is not None
    assert {state_of(job) for job in jobs} == {"Failed"}


def test_without_undo_a_reason_is_needed(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    refusal = operator.post(path("cancellation"), {"undo": False})
    assert (refusal.status_code, refusal.json()["errors"][0]["pointer"]) == (422, "/reason")
    assert operator.post(path("cancellation"), {"undo": False, "reason": "They know."}).status_code == 202


def test_only_those_that_waited_at_the_moment_that_is_named(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    shown_at = now()
    engine.ahead(1)
    Delivery.start()
    engine.drain()
    tend(engine)
    [asked] = operator.post(path("cancellation"), {"as_of": shown_at.isoformat()}).json()["cancellations"]
    assert asked["jobs"] == 6


def test_the_same_key_asks_once(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    first, second = (operator.post(path("cancellation"), {}, idempotency_key="k") for _ in range(2))
    assert first.json() == second.json()
    cancellations.work_off()
    assert operator.post(path("cancellation"), {}, idempotency_key="k").json() == first.json()
    assert GroupCancellation.objects.count() == 1


@pytest.mark.parametrize(
    "body", [{"undo": "no"}, {"undone": True}, {"as_of": "yesterday"}, {"as_of": "2027-01-01T00:00"}]
)
def test_a_body_that_is_not_understood_cancels_nothing(engine: Engine, operator: Program, body: dict[str, Any]) -> None:
    outage_of_shop(engine)
    assert operator.post(path("cancellation"), body).status_code == 422
    assert not GroupCancellation.objects.exists()


def test_where_nobody_waits_there_is_nothing_to_cancel(engine: Engine, operator: Program) -> None:
    outage_of_shop(engine)
    Incident.objects.update(closed_at=now())
    refusal = operator.post(path("cancellation"), {})
    assert (refusal.status_code, refusal.json()["type"]) == (409, "/problems/wrong-state")
    assert operator.post("incidents/99/cancellation", {}).status_code == 404


def test_who_reads_or_starts_jobs_may_not_give_up_a_group(engine: Engine) -> None:
    outage_of_shop(engine)
    reader, starter = newcomer("jobs:read"), newcomer("jobs:write")
    assert reader.get(path()).status_code == 200
    assert starter.get(path()).status_code == 403
    for program in (reader, starter):
        assert program.post(path("cancellation"), {}).status_code == 403
    assert not GroupCancellation.objects.exists()
