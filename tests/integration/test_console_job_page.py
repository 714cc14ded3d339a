"""The page of one job: what it shows, and how it follows the job."""

import re
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests import console_data as data
from workflows import reports, transitions, verbs
from workflows.models import Job, Step
from workflows.states import ErrorKind, Outcome
from workflows.transitions import Failure

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(data.person("ada", operator=True), backend="django.contrib.auth.backends.ModelBackend")
    return client


def read(client: Client, job: Job) -> str:
    answer = client.get(f"/jobs/{job.pk}")
    assert answer.status_code == 200
    return answer.content.decode()


def cards(page: str) -> dict[str, str]:
    """{step name: its card}"""
    found = re.findall(r'<li id="step-\d+".*?(?=<li id="step-|</ol>\s*</section>)', page, re.DOTALL)
    return {re.search(r"<h3><bdi>(.*?)</bdi>", card)[1]: card for card in found}  # type: ignore[index]


def buttons(page: str) -> list[str]:
    return sorted(set(re.findall(r'hx-post="/jobs/[0-9a-f-]{36}/([^"?]*)', page)))


def live_address(page: str) -> str:
    """Where the page asks for news; empty when it does not ask."""
    found = re.search(r'id="live"[^>]* hx-get="([^"]*)"', page)
    return found[1].replace("&amp;", "&") if found else ""


def locked(job: Job) -> Job:
    found = transitions.lock(job.pk)
    assert found
    return found


# --- what it shows -------------------------------------------------------------------------------------------------


def test_a_running_job_tells_what_it_waits_for(client: Client) -> None:
    job = data.trip("trip-1")
    data.complete(job, "flight")
    data.run(job, "hotel", worker="worker-7")
    page = read(client, job)
    assert "trip-1" in page
    assert "1 of 3 steps done" in page
    assert "hotel runs on worker-7, attempt 1, under a lease until" in page
    assert "car waits for hotel." in page
    assert f"{job.pk}:hotel" in page, "the idempotency key"


def test_a_step_shows_its_attempts_input_result_and_reference(client: Client) -> None:
    job = data.trip()
    data.fail(job, "flight", "The airline did not answer.", kind=ErrorKind.IN_DOUBT)
    data.decide(job, "flight")
    Step.objects.filter(job=job, name="flight").update(run_after=timezone.now())
    data.complete(job, "flight", {"reference": "FL-77", "arrives_at": "x"})
    card = cards(read(client, job))["flight"]
    assert "2 attempts" in card
    assert "The airline did not answer." in card
    assert "in_doubt" in card
    assert "&quot;asked&quot;: &quot;flight&quot;" in card, "the input really sent"
    assert "FL-77" in card


def test_a_late_word_is_shown_as_evidence(client: Client) -> None:
    job = data.trip()
    claimed = data.run(job, "flight")
    transitions.expire(locked(job), data.step(job, "flight"))
    data.settle(claimed, {"reference": "LATE-1"})
    card = cards(read(client, job))["flight"]
    assert "Late word" in card
    assert Outcome.COMPLETED in card
    assert "LATE-1" in card


def test_undo_has_a_lane_of_its_own_in_the_order_of_unwinding(client: Client) -> None:
    page = read(client, data.failed_undo("stuck"))
    assert list(cards(page)) == ["flight", "hotel", "car", "hotel.undo", "flight.undo"]
    assert "rollback incomplete" in page
    assert "rolled back" not in page
    assert "Undone" in cards(page)["flight"]
    assert "Undone" not in cards(page)["hotel"]


def test_a_clean_undo_is_told_from_an_incomplete_one_in_words(client: Client) -> None:
    page = read(client, data.compensated())
    assert "rolled back" in page
    assert "rollback incomplete" not in page
    assert "Everything done has been undone" in page
    assert "It is safe to start again under a new key." in page


def test_what_needs_a_person_names_what_is_still_live(client: Client) -> None:
    page = read(client, data.failed_undo())
    assert "Needs a person" in page
    assert "REF-hotel, made by hotel.reserve, may still be live" in page


def test_the_history_says_who_did_what_and_why(client: Client) -> None:
    job = data.trip()
    verbs.cancel(job.pk, undo=True, actor="operator:ada", reason="The traveller has fallen ill.")
    page = read(client, job)
    assert "job.stopping" in page
    assert "operator:ada" in page
    assert "The traveller has fallen ill." in page


@pytest.mark.parametrize("size", [3, 30])
def test_a_page_costs_the_same_queries_for_any_number_of_steps_and_attempts(client: Client, size: int) -> None:
    job = data.failed_undo()
    last = job.steps.order_by("-seq").first()
    assert last
    Step.objects.bulk_create(
        Step(job=job, seq=100 + number, name=f"more{number}", operation="a.b", agent="a", queue="a", releases=[],
             timeout=last.timeout, attempts_allowed=1, idempotency_key=f"k{number}", state="Failed", error_kind="permanent",
             remedy="wait", finished_at=timezone.now())
        for number in range(size)
    )  # fmt: skip
    with CaptureQueriesContext(connection) as queries:
        read(client, job)
    assert len(queries) <= 26, [query["sql"][:100] for query in queries]


# --- which buttons it has ------------------------------------------------------------------------------------------


def test_buttons_are_offered_only_where_they_are_valid(client: Client) -> None:
    running = data.trip()
    data.run(running, "flight")
    assert buttons(read(client, running)) == [
        *("cancellation", "pause", "steps/car/skip"),
        *("steps/flight/cancellation", "steps/flight/result", "steps/hotel/skip"),
    ]
    verbs.pause(running.pk, actor="x", reason="")
    assert "resumption" in buttons(read(client, running))
    assert "pause" not in buttons(read(client, running))
    assert buttons(read(client, data.completed())) == []
    assert buttons(read(client, data.compensated())) == []
    assert buttons(read(client, data.failed_undo())) == [
        *("retries", "steps/hotel.undo/result", "steps/hotel.undo/retries")
    ]


def test_what_is_stopping_already_offers_no_second_cancel(client: Client) -> None:
    job = data.trip()
    data.run(job, "flight")
    verbs.cancel(job.pk, undo=True, actor="x", reason="")
    assert "cancellation" not in buttons(read(client, job))


def test_a_cancel_names_what_it_undoes_before_it_is_pressed(client: Client) -> None:
    job = data.trip()
    data.complete(job, "flight")
    data.run(job, "hotel")
    assert "Undone: flight (REF-flight)." in read(client, job)


# --- how it follows the job ----------------------------------------------------------------------------------------


def test_the_live_part_answers_204_until_something_is_new(client: Client) -> None:
    job = data.trip()
    address = live_address(read(client, job))
    assert address
    assert client.get(address).status_code == 204
    data.complete(job, "flight")
    fresh = client.get(address)
    assert fresh.status_code == 200
    assert "1 of 3 steps done" in fresh.content.decode()
    assert "<html" not in fresh.content.decode()
    assert client.get(live_address(fresh.content.decode())).status_code == 204


def test_a_heartbeat_is_news_although_it_is_no_event(client: Client) -> None:
    job = data.trip()
    claimed = data.run(job, "flight")
    address = live_address(read(client, job))
    transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held
    assert client.get(address).status_code == 200


def test_a_moment_that_passes_is_news(client: Client) -> None:
    """The page says "starts at …"; once that time has come it must say that a worker is awaited."""
    job = data.failing()
    Step.objects.filter(job=job, name="flight").update(run_after=timezone.now() + timedelta(hours=1))
    address = live_address(read(client, job))
    assert client.get(address).status_code == 204
    Step.objects.filter(job=job, name="flight").update(run_after=timezone.now() - timedelta(seconds=1))
    fresh = client.get(address)
    assert fresh.status_code == 200
    assert "flight waits for a worker" in fresh.content.decode()


def test_an_ended_job_stops_the_polling(client: Client) -> None:
    job = data.trip()
    for name in ("flight", "hotel"):
        data.complete(job, name)
    address = live_address(read(client, job))
    data.complete(job, "car")
    last = client.get(address)
    assert last.status_code == 286
    assert "Every step is done" in last.content.decode()
    assert live_address(last.content.decode()) == ""
    assert live_address(read(client, job)) == ""


def test_a_failed_job_that_is_tried_again_is_followed_again(client: Client) -> None:
    job = data.failed_undo()
    assert live_address(read(client, job)) == ""
    answer = client.post(f"/jobs/{job.pk}/retries", {"seen": job.seq}, headers={"HX-Request": "true"})
    assert live_address(answer.content.decode())


def test_an_ended_job_with_an_undo_still_to_be_asked_again_is_followed(client: Client) -> None:
    job = data.trip()
    claimed = data.run(job, "flight")
    reports.fail(claimed, Failure(kind="permanent", code="x", message="x"), sent=None)
    data.decide(job, "flight")
    job.refresh_from_db()
    assert job.state == "Compensated"
    assert live_address(read(client, job)) == ""
    flight = data.step(job, "flight")
    recheck = Step(
        job=job, seq=9, name="flight.recheck", role="recheck", undoes=flight, operation="flight.cancel", agent="flight",
        queue="agents", releases=[], timeout=flight.timeout, attempts_allowed=1, idempotency_key=str(uuid.uuid4()),
    )  # fmt: skip
    transitions.add_recheck(locked(job), recheck, reason="test")
    assert live_address(read(client, job))
