"""The page of what needs a person: by cause, the oldest first, with what to do about each and what was done."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from supervisor import needs
from supervisor.console import attention
from supervisor.models import Case, Incident, Need, Note
from tests import console_data as data
from tests.integration.test_console_buttons import client, notice
from workflows.clock import now
from workflows.models import Agent, Job, Step

__all__ = ["client"]

pytestmark = pytest.mark.django_db


def read(client: Client, query: str = "") -> str:
    answer = client.get("/attention/" + query)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def card(page: str, need: Need) -> str:
    found = page.partition(f'id="need-{need.pk}"')[2]
    return re.split(r'id="need-\d|<nav class="pager"', found)[0]


def noted(*messages: str) -> list[Need]:
    """Trips whose undo failed with these messages, and the needs that they are grouped under, the oldest first."""
    for number, message in enumerate(messages):
        data.failed_undo(f"stuck-{number}", message)
    needs.note_needs()
    return list(Need.objects.open().order_by("since"))


def press(client: Client, noun: str, need: Need, **fields: str) -> str:
    answer = client.post(reverse(noun, args=[need.pk]), fields, follow=True)
    assert answer.status_code == 200
    need.refresh_from_db()
    return answer.content.decode()


def test_an_empty_list_says_when_it_was_last_checked(client: Client) -> None:
    page = read(client)
    assert "Nobody is needed." in page
    assert "The supervisor has not looked yet." in page


def test_the_way_to_what_needs_a_person_says_how_much_there_is(client: Client) -> None:
    data.failed_undo("stuck-1")
    data.failed_undo("stuck-2")
    data.completed("fine")
    for address in ("/", "/jobs/", "/attention/"):
        assert 'Needs a person <span class="number">2</span>' in client.get(address).content.decode()


@pytest.mark.parametrize("looked", [False, True])
def test_every_job_in_need_has_its_reasons_and_since_when(client: Client, looked: bool) -> None:
    job = data.failed_undo("stuck-1")
    data.completed("fine")
    if looked:
        needs.note_needs()
    page = read(client)
    assert "stuck-1" in page
    assert "REF-hotel, made by hotel.reserve, may still be live" in page
    assert "fine" not in page
    given_up = data.step(job, "hotel.undo").finished_at
    assert given_up
    assert given_up.isoformat()[:19] in page
    assert ("Found since the supervisor last looked" in page) is not looked


def test_a_cause_shows_what_to_do_how_many_jobs_and_whose_it_is(client: Client) -> None:
    hotel, flight = noted("Booking 1 is unknown.", "The desk is closed.", "Booking 2 is unknown.")
    Agent.objects.create(name="hotel", queue="agents", operations=[], runbook="https://wiki.example.com/hotel")
    page = read(client)
    assert page.index(f"need-{hotel.pk}") < page.index(f"need-{flight.pk}")
    shown = card(page, hotel)
    assert "TripBooking, hotel.undo: Booking … is unknown." in shown
    assert "<dt>Jobs</dt><dd>2</dd>" in shown
    assert "nobody&#x27;s yet" in shown or "nobody's yet" in shown
    assert "Look up at the service whether what was done is still there." in shown
    assert '<a href="https://wiki.example.com/hotel"' in shown
    assert ["stuck-0" in shown, "stuck-1" in shown, "stuck-2" in shown] == [True, False, True]


def test_a_thousand_jobs_of_one_cause_are_a_few_and_the_way_to_all(client: Client) -> None:
    [need] = noted(*["The desk is closed."] * 7)
    Need.objects.filter(pk=need.pk).update(jobs=1000)
    shown = card(read(client), need)
    assert sum(f"stuck-{number}" in shown for number in range(7)) == attention.JOBS_OF_A_CAUSE
    link = f"/jobs/?cause={need.pk}"
    assert f'<a href="{link}">All 1,000 jobs</a>' in shown
    page = client.get(link).content.decode()
    assert all(f"stuck-{number}" in page for number in range(7))
    assert "TripBooking, hotel.undo: The desk is closed." in page
    assert "stuck-0" in client.get(link + "&state=Failed").content.decode()
    assert "stuck-0" not in client.get(f"/jobs/?cause={need.pk + 1}").content.decode()


def test_the_list_of_causes_is_paged(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ON_A_PAGE", 2)
    found = noted("One.", "Two.", "Three.")
    first = read(client)
    assert [f'id="need-{need.pk}"' in first for need in found] == [True, True, False]
    link = re.search(r'<a href="(\?after=[^"]*)" rel="next">', first)
    assert link
    second = read(client, link[1])
    assert [f'id="need-{need.pk}"' in second for need in found] == [False, False, True]
    assert read(client, "?after=nonsense").count('class="panel cause') == 2


def test_more_needs_do_not_mean_more_queries(client: Client) -> None:
    costs = []
    for round in ("first", "second"):
        for word in ("alpha", "beta", "gamma"):
            data.failed_undo(message=f"{round} {word}.")
        needs.note_needs()
        with CaptureQueriesContext(connection) as queries:
            client.get("/attention/")
        costs.append(len(queries))
    assert costs[0] == costs[1]


def test_who_has_it_in_hand_is_shown_and_a_second_click_changes_nothing(client: Client) -> None:
    [need] = noted("The desk is closed.")
    assert "You have it in hand" in notice(press(client, "cause-acknowledgement", need))
    assert need.acknowledged_by == "operator:ada"
    assert "operator:ada, " in card(read(client), need)
    assert "Nothing was done." in notice(press(client, "cause-acknowledgement", need))


def test_it_is_given_to_somebody_and_noted(client: Client) -> None:
    [need] = noted("The desk is closed.")
    press(client, "cause-assignment", need, assignee="bo")
    press(client, "cause-notes", need, text="They open at nine.\n<b>Call first.</b>")
    shown = card(read(client), need)
    assert "<bdi>bo</bdi>" in shown
    assert "gave it to bo" in shown
    assert "They open at nine. &lt;b&gt;Call first.&lt;/b&gt;" in shown
    assert client.post(reverse("cause-notes", args=[need.pk]), {"text": " "}).status_code == 400


def test_what_is_put_off_stands_below_the_others_until_its_time(client: Client) -> None:
    first, second = noted("One.", "Two.")
    press(client, "cause-snooze", first, hours="4", reason="closed until noon")
    assert first.snoozed_until
    page = read(client)
    assert (
        page.index(f'id="need-{second.pk}"') < page.index("Put off until later") < page.index(f'id="need-{first.pk}"')
    )
    press(client, "cause-snooze", first, hours="")
    assert first.snoozed_until is None
    assert "Put off until later" not in read(client)
    assert client.post(reverse("cause-snooze", args=[first.pk]), {"hours": "5"}).status_code == 400


def test_all_jobs_of_a_cause_are_tried_again(client: Client) -> None:
    [need] = noted("The desk is closed.", "The desk is closed.")
    said = notice(press(client, "cause-retries", need, reason="opened"))
    assert "2 of its jobs are tried again." in said
    assert not Job.objects.needs_person().exists()
    assert need.closed_at is not None
    assert not Case.objects.exists()
    assert client.post(reverse("cause-retries", args=[need.pk]), {"reason": "again"}).status_code == 404


def test_a_verdict_is_given_job_by_job(client: Client) -> None:
    [need] = noted("The desk is closed.")
    Need.objects.filter(pk=need.pk).update(kind="verdict")
    assert "Retry all" not in card(read(client), need)
    assert "Nothing was done." in notice(press(client, "cause-retries", need, reason="try"))


@pytest.mark.parametrize("noun", ["acknowledgement", "assignment", "snooze", "notes", "retries"])
def test_who_only_reads_pushes_no_button_and_get_changes_nothing_sas_117(client: Client, noun: str) -> None:
    [need] = noted("The desk is closed.")
    address = reverse(f"cause-{noun}", args=[need.pk])
    assert client.get(address).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(data.person("eve", operator=True), backend="django.contrib.auth.backends.ModelBackend")
    assert strict.post(address, {"text": "x", "hours": "4"}).status_code == 403
    reading = Client()
    assert reading.post(address).status_code == 302
    reading.force_login(data.person("bo"), backend="django.contrib.auth.backends.ModelBackend")
    assert reading.post(address, {"text": "x", "hours": "4"}).status_code == 403
    assert "<button" not in card(" ".join(reading.get("/attention/").content.decode().split()), need)
    assert not Note.objects.exists()


def test_a_cause_that_is_gone_is_not_found(client: Client) -> None:
    assert client.post(reverse("cause-acknowledgement", args=[4711])).status_code == 404


def test_a_jobs_page_leads_to_its_cause_and_says_what_only_the_clock_shows(client: Client) -> None:
    [need] = noted("The desk is closed.", "The desk is closed.")
    needs.assign(need.pk, "bo", actor="operator:bo")
    [job] = Job.objects.filter(key="stuck-1")
    page = " ".join(client.get(f"/jobs/{job.pk}").content.decode().split())
    assert (
        f'One of 2 jobs of <a href="/attention/#need-{need.pk}">this cause</a>, in the hands of <bdi>bo</bdi>.' in page
    )
    waiting = data.trip("waiting")
    Step.objects.filter(job=waiting, name="flight").update(run_after=now() - timedelta(minutes=6))
    needs.note_needs()
    page = client.get(f"/jobs/{waiting.pk}").content.decode()
    assert "No living worker serves the queue agents." in page
    assert "No living worker serves the queue agents." in read(client)
    assert "waiting" in client.get("/jobs/?state=needs_person").content.decode()


def test_an_outage_is_taken_in_hand(client: Client) -> None:
    evidence = {"failures": 6, "calls": 6, "steps": 6, "window": 30.0}
    incident: Any = Incident.objects.create(
        agent="shop", cause="unavailable", message="503", evidence=evidence, opened_at=now() - timedelta(minutes=1)
    )
    address = reverse("incident-acknowledgement", args=[incident.pk])
    assert address in client.get("/agents/").content.decode()
    page = reverse("incident", args=[incident.pk])
    assert address in client.get(page).content.decode()
    answer = client.post(address, follow=True)
    assert answer.redirect_chain == [(page, 302)]
    assert "in hand" in notice(answer.content.decode())
    assert address not in answer.content.decode()
    incident.refresh_from_db()
    assert incident.acknowledged_by == "operator:ada"
    assert address not in client.get("/agents/").content.decode()
    assert client.post(reverse("incident-acknowledgement", args=[4711])).status_code == 404


def test_the_place_of_an_exception_stands_at_its_attempt(client: Client) -> None:
    job = data.trip()
    failure = data.Failure(
        kind="transient", code="KeyError", message="KeyError: 'fare'", frame="airline/agents.py:7 reserve"
    )
    data.reports.fail(data.run(job, "flight"), failure, sent="{}")
    assert "airline/agents.py:7 reserve" in client.get(f"/jobs/{job.pk}").content.decode()
