"""Somebody wants workers to end: asked of a row, which the worker reads; who keeps it starts another."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agents import presence, worker
from tests.api import Program, newcomer
from tests.integration import visitors
from tests.integration.engine import Engine
from workflows import transitions
from workflows.clock import now
from workflows.models import Worker


def there(name: str, queue: str = "agents", **told: Any) -> Worker:
    row = {"host": "box", "pid": 7, "queues": [queue], "started_at": now(), "seen_at": now()}
    return Worker.objects.create(name=name, **row | told)


def asked() -> list[str]:
    return sorted(Worker.objects.filter(drain_asked_at__isnull=False).values_list("name", flat=True))


@pytest.fixture
def three(engine: Engine) -> None:
    there("box:7:aaaa")
    there("box:8:bbbb")
    there("box:9:cccc", queue="depot")


@pytest.fixture
def this_worker(engine: Engine) -> Iterator[None]:
    """This process as a worker that has just told of itself."""
    presence.begin()
    worker._process.pid = 0
    presence.tell("seen_at")
    yield
    presence._start.name = presence._start.mark = ""
    worker._process.pid = 0


@pytest.mark.usefixtures("this_worker")
def test_a_worker_reads_in_its_row_who_wants_it_to_end_and_telling_of_itself_keeps_that() -> None:
    assert presence.is_asked_to_drain() == ""
    assert transitions.ask_to_drain(Worker.objects.all(), actor="operator:ada", reason="a deploy") != []
    presence.tell("seen_at")
    assert presence.is_asked_to_drain() == "operator:ada"
    assert Worker.objects.get().drain_reason == "a deploy"


@pytest.mark.usefixtures("three")
def test_who_stops_already_or_was_asked_before_is_passed_over() -> None:
    Worker.objects.filter(name="box:7:aaaa").update(stopped_at=now())
    Worker.objects.filter(name="box:8:bbbb").update(draining_at=now())
    assert transitions.ask_to_drain(Worker.objects.all(), actor="operator:ada", reason="") == ["box:9:cccc"]
    assert transitions.ask_to_drain(Worker.objects.all(), actor="operator:bob", reason="") == []
    assert Worker.objects.get(name="box:9:cccc").drain_asked_by == "operator:ada"


# --- over REST -------------------------------------------------------------------------------------------------------


@pytest.fixture
def program(engine: Engine) -> Program:
    return newcomer("jobs:operate")


@pytest.mark.usefixtures("three")
def test_programs_see_the_workers_and_have_one_or_all_of_a_queue_end(program: Program) -> None:
    found = program.get("workers").json()["results"]
    assert {row["name"]: row["queues"] for row in found} == {
        "box:7:aaaa": ["agents"],
        "box:8:bbbb": ["agents"],
        "box:9:cccc": ["depot"],
    }
    one = program.post("workers/box:7:aaaa/draining", {"reason": "It leaks."})
    assert (one.status_code, one.json()) == (202, {"workers": ["box:7:aaaa"]})
    assert program.post("queues/agents/draining", {}).json() == {"workers": ["box:8:bbbb"]}
    assert asked() == ["box:7:aaaa", "box:8:bbbb"]
    told = {row["name"]: row["drain_asked_by"] for row in program.get("workers").json()["results"]}
    assert told["box:7:aaaa"] == f"client:{program.user.get_username()}"
    assert told["box:9:cccc"] is None


@pytest.mark.usefixtures("three")
def test_a_worker_or_queue_that_is_not_there_is_not_found(program: Program) -> None:
    assert program.post("workers/nobody/draining", {}).status_code == 404
    assert program.post("queues/nothing/draining", {}).status_code == 404


@pytest.mark.usefixtures("three")
def test_who_may_only_read_ends_no_worker() -> None:
    reader = newcomer("jobs:read")
    assert reader.get("workers").status_code == 200
    for path in ("workers/box:7:aaaa/draining", "queues/agents/draining"):
        assert reader.post(path, {}).status_code == 403
    assert asked() == []


# --- in the console --------------------------------------------------------------------------------------------------


def page(client: Client) -> str:
    return " ".join(client.get(reverse("agents")).content.decode().split())


@pytest.mark.usefixtures("three")
def test_an_operator_has_one_worker_end_and_sees_by_whose_word() -> None:
    ada = visitors.operator()
    answer = ada.post(reverse("worker-draining", args=["box:7:aaaa"]), follow=True).content.decode()
    assert "1 worker will end within seconds." in answer
    assert asked() == ["box:7:aaaa"]
    row = page(ada).partition('id="worker-box:7:aaaa"')[2].partition("</tr>")[0]
    assert "Draining" in row
    assert "asked by operator:operator-" in row
    again = ada.post(reverse("worker-draining", args=["box:7:aaaa"]), follow=True).content.decode()
    assert "Nothing was done." in again


@pytest.mark.usefixtures("three")
def test_an_operator_has_all_workers_of_a_queue_end() -> None:
    ada = visitors.operator()
    assert reverse("queue-draining", args=["agents"]) in page(ada)
    ada.post(reverse("queue-draining", args=["agents"]))
    assert asked() == ["box:7:aaaa", "box:8:bbbb"]
    assert ada.post(reverse("queue-draining", args=["nothing"])).status_code == 404


@pytest.mark.usefixtures("three")
def test_a_reader_has_no_such_button() -> None:
    grace = visitors.reader()
    assert "/draining" not in page(grace)
    assert grace.post(reverse("queue-draining", args=["agents"])).status_code == 403
    assert asked() == []
