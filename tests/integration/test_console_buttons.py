"""The buttons: one effect each, in the person's name, and a late click answered with what is now true."""

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tests import console_data as data
from workflows import verbs
from workflows.models import Event, Job
from workflows.states import JobState, StepState

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(data.person("ada", operator=True), backend="django.contrib.auth.backends.ModelBackend")
    return client


def press(client: Client, noun: str, job: Job, *step: str, seen: int, htmx: bool = True, **fields: str) -> Any:
    address = reverse(noun, args=[job.pk, *step])
    return client.post(address, {"seen": seen, **fields}, headers=HTMX if htmx else {}, follow=not htmx)


def notice(page: str) -> str:
    found = re.search(r'<div class="notice[^>]*>(.*?)</div>', page, re.DOTALL)
    assert found, "no notice on the page"
    return re.sub(r"<[^>]+>", " ", found[1])


def last_event(job: Job) -> tuple[str, str, str]:
    return Event.objects.filter(job=job).order_by("-seq").values_list("kind", "actor", "reason")[0]


def test_pause_and_resume_are_written_in_the_operators_name(client: Client) -> None:
    job = data.trip()
    answer = press(client, "job-pause", job, seen=job.seq)
    assert answer.status_code == 200
    assert "Paused" in notice(answer.content.decode())
    assert last_event(job)[:2] == ("job.paused", "operator:ada")
    job.refresh_from_db()
    press(client, "job-resumption", job, seen=job.seq)
    assert last_event(job)[:2] == ("job.resumed", "operator:ada")
    job.refresh_from_db()
    assert job.paused_at is None


def test_cancel_with_undo_is_what_the_button_does(client: Client) -> None:
    job = data.trip()
    data.complete(job, "flight")
    job.refresh_from_db()
    press(client, "job-cancellation", job, seen=job.seq, undo="yes", reason="Ill")
    job.refresh_from_db()
    assert job.state == JobState.COMPENSATING
    assert data.undo_names(job) == ["flight.undo"]
    stopping = Event.objects.get(job=job, kind="job.stopping")
    assert (stopping.actor, stopping.reason) == ("operator:ada", "Ill")


def test_cancel_without_undo_leaves_everything_as_it_is(client: Client) -> None:
    job = data.trip()
    data.complete(job, "flight")
    job.refresh_from_db()
    press(client, "job-cancellation", job, seen=job.seq, undo="no", reason="They keep the flight")
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert data.undo_names(job) == []


def test_cancel_without_undo_needs_a_reason(client: Client) -> None:
    job = data.trip()
    answer = press(client, "job-cancellation", job, seen=job.seq, undo="no", reason="  ")
    assert answer.status_code == 422
    assert "Nothing was done" in notice(answer.content.decode())
    assert Job.objects.get(pk=job.pk).seq == job.seq


def test_retry_of_a_job_tries_its_failed_undo_again(client: Client) -> None:
    job = data.failed_undo()
    answer = press(client, "job-retries", job, seen=job.seq)
    assert answer.status_code == 200
    job.refresh_from_db()
    assert job.state == JobState.COMPENSATING
    assert data.step(job, "hotel.undo").state == StepState.NOT_STARTED
    data.complete(job, "hotel.undo")
    job.refresh_from_db()
    assert job.state == JobState.COMPENSATED


def test_retry_of_a_step_tries_only_that_one(client: Client) -> None:
    job = data.failed_undo()
    press(client, "step-retries", job, "hotel.undo", seen=data.step(job, "hotel.undo").version)
    assert data.step(job, "hotel.undo").state == StepState.NOT_STARTED
    assert Event.objects.get(job=job, kind="step.retried", actor="operator:ada").step == "hotel.undo"


def test_cancel_of_a_step_fences_its_attempt_out(client: Client) -> None:
    job = data.trip()
    data.run(job, "flight")
    flight = data.step(job, "flight")
    answer = press(client, "step-cancellation", job, "flight", seen=flight.version, reason="It hangs")
    assert answer.status_code == 200
    flight.refresh_from_db()
    assert (flight.state, flight.error_kind) == (StepState.FAILED, "cancelled")
    assert last_event(job) == ("step.cancelled", "operator:ada", "It hangs")


# --- clicks that come too late -------------------------------------------------------------------------------------


def test_a_second_operators_retry_changes_nothing_and_says_what_is_now_true(client: Client) -> None:
    job = data.failed_undo()
    seen = job.seq
    verbs.retry_job(job.pk, actor="operator:grace", reason="")
    events = Event.objects.filter(job=job).count()
    answer = press(client, "job-retries", job, seen=seen)
    page = answer.content.decode()
    assert answer.status_code == 412
    assert "Nothing was done" in notice(page)
    assert "Compensating" in notice(page)
    assert 'id="live"' in page
    assert "operator:grace" in page, "the fresh page shows who was faster"
    assert Event.objects.filter(job=job).count() == events


def test_a_double_click_has_one_effect(client: Client) -> None:
    """SAS-104: the second click carries the version that the first one has used up."""
    job = data.failed_undo()
    first = press(client, "job-retries", job, seen=job.seq)
    second = press(client, "job-retries", job, seen=job.seq)
    assert (first.status_code, second.status_code) == (200, 412)
    assert Event.objects.filter(job=job, kind="step.retried", actor="operator:ada").count() == 1


@pytest.mark.parametrize(
    ("noun", "name", "state"),
    [
        ("step-retries", "flight", "Completed"),
        ("step-retries", "hotel", "Running"),
        ("step-retries", "car", "NotStarted"),
        ("step-cancellation", "flight", "Completed"),
        ("step-cancellation", "car", "NotStarted"),
    ],
)
def test_what_a_steps_state_does_not_allow_is_refused_with_the_reason(
    client: Client, noun: str, name: str, state: str
) -> None:
    """SAS-105: never two live attempts."""
    job = data.trip()
    data.complete(job, "flight")
    data.run(job, "hotel")
    events = Event.objects.filter(job=job).count()
    answer = press(client, noun, job, name, seen=data.step(job, name).version)
    assert answer.status_code == 409
    assert state in notice(answer.content.decode())
    assert Event.objects.filter(job=job).count() == events


def test_an_ended_job_cannot_be_cancelled_or_paused(client: Client) -> None:
    job = data.completed()
    for noun in ("job-cancellation", "job-pause", "job-retries"):
        answer = press(client, noun, job, seen=job.seq)
        assert answer.status_code == 409
        assert "Completed" in notice(answer.content.decode())
    assert Job.objects.get(pk=job.pk).seq == job.seq


@pytest.mark.parametrize("seen", ["", "x", "-1", "٣", "99999999999999999999"])
def test_a_click_without_the_version_that_was_seen_does_nothing(client: Client, seen: str) -> None:
    job = data.trip()
    answer = client.post(f"/jobs/{job.pk}/pause", {"seen": seen})
    assert answer.status_code == 400
    assert Job.objects.get(pk=job.pk).paused_at is None


# --- without a script ----------------------------------------------------------------------------------------------


def test_a_plain_form_leads_back_to_the_page_which_says_what_was_done(client: Client) -> None:
    job = data.trip()
    answer = press(client, "job-pause", job, seen=job.seq, htmx=False)
    assert answer.redirect_chain == [(f"/jobs/{job.pk}", 302)]
    assert "Paused" in notice(answer.content.decode())


def test_a_late_plain_form_leads_back_to_the_page_which_says_what_is_true(client: Client) -> None:
    job = data.failed_undo()
    seen = job.seq
    verbs.retry_job(job.pk, actor="operator:grace", reason="")
    answer = press(client, "job-retries", job, seen=seen, htmx=False)
    assert answer.redirect_chain == [(f"/jobs/{job.pk}", 302)]
    assert "Nothing was done" in notice(answer.content.decode())
