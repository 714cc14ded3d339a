"""What the job page shows of every kind of step, and of what has become of it."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests import console_data as data
from tests.integration.test_console_job_page import buttons, cards, locked, read
from workflows import reports, signals, transitions, undo, verbs
from workflows.models import Job, Step
from workflows.states import ErrorKind
from workflows.transitions import Failure

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(data.person("ada", operator=True), backend="django.contrib.auth.backends.ModelBackend")
    return client


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


def test_a_timer_says_when_it_is_due(client: Client) -> None:
    job = data.showcase()
    due = data.step(job, "cooling").deadline
    card = text(cards(read(client, job))["cooling"])
    assert due
    assert "timer Waiting" in card
    assert f"({due:%Y-%m-%d %H:%M:%S}" in card


def test_a_signal_says_how_long_it_is_waited_for_and_by_whom(client: Client) -> None:
    shown = cards(read(client, data.showcase()))
    assert "Waits for its signal, without a limit." in text(shown["news"])
    assert "Waits for an approval by the group operators, grace, until" in text(shown["approval"])
    assert "Decide…" in shown["approval"]


def test_only_an_approver_is_offered_the_decision(client: Client) -> None:
    job = data.showcase()
    Job.objects.filter(pk=job.pk).update(plan=with_approvers(job, ["grace"]))
    card = cards(read(client, job))["approval"]
    assert "Decide…" not in card
    assert "Not yours to decide." in card
    grace = Client()
    grace.force_login(data.person("grace", operator=True), backend="django.contrib.auth.backends.ModelBackend")
    assert "Decide…" in cards(read(grace, job))["approval"]


def with_approvers(job: Job, names: list[str]) -> Any:
    steps = [step | {"approvers": names} if step["name"] == "approval" else step for step in job.plan["steps"]]
    return job.plan | {"steps": steps}


def test_an_approval_names_who_gave_it_and_why(client: Client) -> None:
    job = data.showcase()
    signals.send(job.pk, "approval", {"approved": True, "reason": "All canaries sing."}, actor="operator:grace")
    card = text(cards(read(client, job))["approval"])
    assert re.search(r"Came .* from operator:grace : approved, All canaries sing\.", card)


def test_a_child_and_its_parent_lead_to_each_other(client: Client) -> None:
    job = data.showcase()
    child = Job.objects.get(parent_step_id=data.step(job, "trip").pk)
    assert f'href="/jobs/{child.pk}"' in cards(read(client, job))["trip"]
    page = read(client, child)
    assert "Started by" in page
    assert f'href="/jobs/{job.pk}"' in page


def test_a_child_whose_parent_is_gone_is_still_shown(client: Client) -> None:
    child = Job.objects.get(parent_step_id=data.step(data.showcase(), "trip").pk)
    Job.objects.filter(pk=child.pk).update(parent_step_id=2**40)
    assert "Started by" not in read(client, child)


def test_an_alternative_says_whose_place_it_takes(client: Client) -> None:
    job = data.showcase()
    data.fail(job, "hotel", "No room left.")
    data.decide(job, "hotel")
    shown = cards(read(client, job))
    assert "instead of hotel" in shown["hotel.otherwise"]
    assert "No room left." in shown["hotel"]


def test_a_skipped_step_says_why(client: Client) -> None:
    assert "Its condition given[&quot;has_car&quot;] is not met." in cards(read(client, data.showcase()))["car"]


def test_the_point_of_no_return_is_marked_before_and_after(client: Client) -> None:
    job = data.showcase()
    page = read(client, job)
    assert "point of no return" in cards(page)["charge"]
    assert "Cancel and undo" in page
    signals.send(job.pk, "approval", {"approved": True}, actor="x")
    data.complete(job, "charge")
    page = read(client, job)
    assert "charge</bdi>, passed" in page
    assert "Cancel and undo" not in page
    assert "Cancel without undo" in page


def test_a_running_call_shows_how_far_it_is(client: Client) -> None:
    job = data.chain()
    claimed = data.run(job, "one")
    said = '{"done": 3, "total": 8, "message": "pages read", "rows": 4711}'
    transitions.heartbeat({claimed.token: (claimed.step_id, said)})
    card = cards(read(client, job))["one"]
    assert "3 of 8 pages read" in text(card)
    assert "rows 4711" in text(card)
    assert 'width="37.5"' in card


@pytest.mark.parametrize("said", ['{"done": 5}', '{"message": "begun"}', '{"total": 0, "done": 0}', "[1]", '"words"'])
def test_progress_of_any_shape_is_shown(client: Client, said: str) -> None:
    job = data.chain()
    claimed = data.run(job, "one")
    transitions.heartbeat({claimed.token: (claimed.step_id, said)})
    assert "one" in cards(read(client, job))


def test_a_deferred_call_waits_for_its_callback(client: Client) -> None:
    job = data.chain()
    reports.defer(data.run(job, "one"), within=timedelta(hours=2), sent=None)
    card = text(cards(read(client, job))["one"])
    assert "shop.one Waiting" in card
    assert "Handed on; waits for a callback until" in card
    signals.call_back(signals.token_of(data.step(job, "one").pk), {"result": {"reference": "CB-1"}})
    card = text(cards(read(client, job))["one"])
    assert "settled by callback" in card
    assert "CB-1" in card


def test_a_fan_out_is_one_card_with_its_items_counted(client: Client) -> None:
    job = data.rollout(12)
    for number in range(3):
        data.complete(job, f"deploy:{number}")
    data.fail(job, "deploy:3")
    data.run(job, "deploy:4")
    page = read(client, job)
    assert list(cards(page)) == ["deploy", "report"]
    card = cards(page)["deploy"]
    assert "3 done 1 running 1 failed 7 waiting of 12" in text(card)
    assert f'href="/jobs/{job.pk}/steps/deploy/"' in card
    assert '<rect class="is-completed" x="0.0" width="25.0"' in card


def test_an_empty_list_is_said_to_be_one(client: Client) -> None:
    assert "An empty list: nothing to do." in cards(read(client, data.rollout(0)))["deploy"]


def test_earlier_generations_are_kept_apart(client: Client) -> None:
    job = data.chain("one", "two")
    shown = undo.preview(job.pk, down_to="two")
    undo.compensate(job.pk, digest=shown.digest, down_to="two", actor="x", reason="")
    data.complete(job, "two.undo")
    page = read(client, job)
    assert "rolled back in part" in page
    assert "A part is undone; Retry goes forward again from there" in page
    assert "Earlier generations" not in page
    verbs.retry_job(job.pk, actor="x", reason="")
    page = read(client, job)
    now, _, before = page.partition("Earlier generations")
    assert re.findall(r"<h3><bdi>(.*?)</bdi>", now) == ["one", "two", "three"]
    assert re.findall(r"<h3><bdi>(.*?)</bdi>", before) == ["two", "three", "two.undo"]
    assert "generation 2" in cards(now)["two"]
    assert 'class="verbs"' not in before


def test_what_a_person_settled_is_marked_for_ever(client: Client) -> None:
    job = data.chain()
    data.fail(job, "one")
    verbs.give_result(job.pk, "one", result={"reference": "BY-HAND"}, actor="operator:ada", reason="Seen at the desk.")
    for name in ("two", "three"):
        data.complete(job, name)
    assert "settled by hand" in cards(read(client, job))["one"]


def test_the_history_speaks_in_words(client: Client) -> None:
    page = text(read(client, data.rollout(2)))
    assert "Items known deploy" in page
    assert "Begins to wait deploy" in page


def test_a_step_in_doubt_is_offered_a_verdict_and_no_skip(client: Client) -> None:
    job = data.chain()
    data.lost(job, "one")
    page = read(client, job)
    assert "steps/one/verdict" in buttons(page)
    assert "steps/one/skip" not in buttons(page)
    assert "Evidence" in page


def test_a_new_key_is_offered_only_after_a_definite_refusal(client: Client) -> None:
    job = data.chain()
    data.fail(job, "one", kind=ErrorKind.PERMANENT)
    assert "Retry under a new key" in cards(read(client, job))["one"]
    other = data.chain()
    data.fail(other, "one", kind=ErrorKind.IN_DOUBT)
    assert "Retry under a new key" not in cards(read(client, other))["one"]


def test_a_late_word_can_be_taken_up_while_the_step_is_open(client: Client) -> None:
    job = data.chain()
    claimed = data.run(job, "one")
    transitions.expire(locked(job), data.step(job, "one"))
    data.settle(claimed, {"reference": "LATE-1"})
    assert "Take it up" in cards(read(client, job))["one"]
    verbs.give_result(job.pk, "one", attempt=1, actor="x", reason="It was there.")
    card = cards(read(client, job))["one"]
    assert "Take it up" not in card
    assert "settled by a late word" in card


def wide_job(size: int) -> Job:
    """A failed job of many steps of every sort, all of them failed or in need of something."""
    job = data.failed_undo()
    last = data.step(job, "car")
    Step.objects.bulk_create(
        Step(
            job=job, seq=100 + number, place=number % 3, name=f"more{number}", operation="car.reserve", agent="car",
            queue="agents", releases=[], timeout=last.timeout, attempts_allowed=1, idempotency_key=f"k{number}",
            state="Failed", error_kind="permanent", remedy="escalate", finished_at=last.finished_at, version=1,
        )
        for number in range(size)
    )  # fmt: skip
    return job


def test_a_hundred_steps_cost_as_many_queries_as_three(client: Client) -> None:
    costs = []
    for size in (3, 100):
        job = wide_job(size)
        with CaptureQueriesContext(connection) as queries:
            read(client, job)
        costs.append(len(queries))
    assert costs[0] == costs[1]


def test_six_hundred_items_cost_as_many_queries_as_three(client: Client) -> None:
    costs = []
    for size in (3, 600):
        job = data.rollout(size)
        with CaptureQueriesContext(connection) as queries:
            page = read(client, job)
        costs.append(len(queries))
        assert f"of {size}" in page
    assert costs[0] == costs[1]


def test_a_failed_wait_is_a_failure_as_any_other(client: Client) -> None:
    job = data.showcase()
    refused = Failure(kind=ErrorKind.PERMANENT, code="not_approved", message="Refused by operator:ada: too early")
    transitions.wait_ended_badly(locked(job), data.step(job, "approval"), refused, actor="operator:ada")
    assert "Refused by operator:ada: too early" in cards(read(client, job))["approval"]
