"""The items of a fan-out, a page at a time."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from supervisor.console import items, views
from tests import console_data as data
from tests.integration.test_console_buttons import client, notice, press
from tests.integration.test_console_job_page import buttons, cards
from workflows import undo
from workflows.models import Job
from workflows.states import StepState

__all__ = ["client"]

pytestmark = pytest.mark.django_db


def read(client: Client, job: Job, query: str = "", name: str = "deploy") -> str:
    answer = client.get(f"/jobs/{job.pk}/steps/{name}/{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def shown(page: str) -> list[str]:
    return re.findall(r"<h3><bdi>(.*?)</bdi>", page)


def link(page: str, text: str) -> str:
    found = re.search(rf'<a href="(\?[^"]*)"[^>]*>{text}', page)
    return found[1].replace("&amp;", "&") if found else ""


def test_items_come_in_pages_forth_and_back(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "SIZE", 4)
    job = data.rollout(10)
    pages = [read(client, job)]
    while further := link(pages[-1], "Later"):
        pages.append(read(client, job, further))
    assert [shown(page) for page in pages] == [
        [f"deploy:{n}" for n in part] for part in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])
    ]
    back = read(client, job, link(pages[-1], "← Earlier"))
    assert shown(back) == shown(pages[1])
    assert not link(read(client, job, link(back, "← Earlier")), "← Earlier")


def test_the_state_is_in_the_url(client: Client) -> None:
    job = data.rollout(6)
    data.complete(job, "deploy:1")
    data.fail(job, "deploy:4", "No such host.")
    page = read(client, job, "?state=Failed")
    assert shown(page) == ["deploy:4"]
    assert "No such host." in page
    assert shown(read(client, job, "?state=Completed")) == ["deploy:1"]
    assert len(shown(read(client, job, "?state=Whatever&after=x"))) == 6
    assert "No item is in this state." in read(client, job, "?state=Skipped")


def test_an_item_shows_what_it_is_and_its_attempts(client: Client) -> None:
    job = data.rollout(3)
    data.complete(job, "deploy:2", {"reference": "D-2"})
    card = cards(read(client, job))["deploy:2"]
    assert "h002" in card
    assert "1 attempt, result" in card
    assert "D-2" in card


def test_a_button_of_an_item_answers_with_the_same_page_of_items(client: Client) -> None:
    job = data.rollout(5)
    data.fail(job, "deploy:3")
    page = read(client, job, "?state=Failed")
    assert "steps/deploy:3/retries" in buttons(page)
    address = re.search(r'hx-post="([^"]*deploy:3/retries[^"]*)"', page)
    assert address
    step = data.step(job, "deploy:3")
    answer = client.post(address[1].replace("&amp;", "&"), {"seen": step.version}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "is tried again" in notice(answer.content.decode())
    assert "No item is in this state." in answer.content.decode(), "still those that failed"
    assert data.step(job, "deploy:3").state == StepState.NOT_STARTED
    plain = client.post(address[1].replace("&amp;", "&"), {"seen": step.version})
    assert plain["Location"] == f"/jobs/{job.pk}/steps/deploy/?state=Failed"


def test_the_live_part_alone_is_sent_to_htmx(client: Client) -> None:
    job = data.rollout(2)
    answer = client.get(f"/jobs/{job.pk}/steps/deploy/", headers={"HX-Request": "true"})
    assert answer.content.decode().startswith('<div id="live"')


def test_undone_items_say_so(client: Client) -> None:
    job = data.rollout(4)
    data.complete(job, "deploy:0")
    data.complete(job, "deploy:1")
    for number in (2, 3):
        data.fail(job, f"deploy:{number}")
        data.decide(job, f"deploy:{number}")
    data.fail(job, "report")
    data.decide(job, "report")
    data.attend(job)
    data.complete(job, "deploy.undo:0")
    page = read(client, job)
    assert "Undone" in cards(page)["deploy:0"]
    assert "Undone" not in cards(page)["deploy:1"]
    assert shown(read(client, job, name="deploy.undo")) == ["deploy.undo:0", "deploy.undo:1"]


@pytest.mark.parametrize("name", ["report", "nothing", "deploy:1"])
def test_what_has_no_items_is_not_found(client: Client, name: str) -> None:
    job = data.rollout(2)
    assert client.get(f"/jobs/{job.pk}/steps/{name}/").status_code == 404


def test_a_late_page_costs_what_the_first_one_does(client: Client) -> None:
    job = data.rollout(600)
    costs = []
    for query in ("", "?after=500", "?before=300", "?state=NotStarted&after=20"):
        with CaptureQueriesContext(connection) as queries:
            read(client, job, query)
        costs.append(len(queries))
    assert len(set(costs)) == 1
    assert costs[0] <= 15


def test_the_list_of_jobs_does_not_load_items(client: Client) -> None:
    job = data.rollout(300)
    page = client.get("/jobs/").content.decode()
    row = page.partition(f'id="job-{job.pk}"')[2].partition("</tr>")[0]
    assert row.count("<svg") == 3, "its state, and two steps"


def test_a_click_on_an_item_that_is_gone_is_not_found(client: Client) -> None:
    job = data.rollout(2)
    assert press(client, "step-retries", job, "deploy:7", seen=1).status_code == 404


def test_the_page_of_an_undo_counts_all_items_and_names_the_first(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SHOWN_OF_AN_UNDO", 2)
    monkeypatch.setattr(undo, "MOST_CALLS", 3)
    job = data.rollout(6)
    for index in range(5):
        data.complete(job, f"deploy:{index}")
    page = client.get(f"/jobs/{job.pk}/undo").content.decode()
    assert "5, in this order" in page
    assert re.findall(r"<strong><bdi>(.*?)</bdi></strong> <code", page) == ["deploy:0", "deploy:1"]
    assert "… and 3 more." in page
