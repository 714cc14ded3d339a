"""Who sees the console, and who may push its buttons."""

import uuid

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from supervisor.console.urls import urlpatterns
from tests import console_data as data
from workflows.models import Event, Job

pytestmark = pytest.mark.django_db

NOUNS = [str(pattern.name) for pattern in urlpatterns if pattern.callback.__module__ == "supervisor.console.actions"]


def address(pattern: URLPattern, job: Job) -> str:
    parts = {
        "job_id": job.pk,
        "schedule_id": uuid.uuid4(),
        "name": "flight",
        "cause_id": 1,
        "incident_id": 1,
        "queue": "q",
    }
    return reverse(str(pattern.name), kwargs={name: parts[name] for name in pattern.pattern.converters})


def signed_in(name: str, *, operator: bool = False, checks_csrf: bool = False) -> Client:
    client = Client(enforce_csrf_checks=checks_csrf)
    client.force_login(data.person(name, operator=operator), backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.mark.parametrize("pattern", urlpatterns, ids=lambda pattern: pattern.name)
def test_a_stranger_is_sent_to_the_login_and_changes_nothing(client: Client, pattern: URLPattern) -> None:
    job = data.trip("secret-key")
    before = Event.objects.count()
    for method in (client.get, client.post):
        answer = method(address(pattern, job), {"seen": job.seq})
        assert b"secret-key" not in answer.content
        if pattern.name not in ("login", "logout"):
            assert answer.status_code in (302, 405)
            if answer.status_code == 302:
                assert answer["Location"].startswith("/login/?next=")
    assert Event.objects.count() == before


def test_a_stranger_behind_htmx_is_led_to_the_login_as_a_whole_page(client: Client) -> None:
    answer = client.get(reverse("job-live", args=[data.trip().pk]), headers={"HX-Request": "true"})
    assert answer["HX-Redirect"] == "/login/"
    assert answer.content == b""


def test_a_reader_sees_everything_and_no_button() -> None:
    job = data.failed_undo("trip-9")
    client = signed_in("reader")
    for name in ("overview", "jobs"):
        assert "trip-9" in client.get(reverse(name)).content.decode()
    page = client.get(reverse("job", args=[job.pk])).content.decode()
    assert "REF-hotel" in page
    assert "/retries" not in page
    assert 'name="seen"' not in page


@pytest.mark.parametrize("noun", NOUNS)
def test_a_readers_post_is_refused_and_changes_nothing(noun: str) -> None:
    job = data.trip()
    data.run(job, "flight")
    job.refresh_from_db()
    arguments = [job.pk, "flight"] if noun.startswith("step") or noun == "job-signal" else [job.pk]
    answer = signed_in("reader").post(reverse(noun, args=arguments), {"seen": job.seq, "reason": "x"})
    assert answer.status_code == 403
    assert "operators" in answer.content.decode()
    after = Job.objects.get(pk=job.pk)
    assert (after.seq, after.state, after.stopping_at, after.paused_at) == (job.seq, job.state, None, None)


@pytest.mark.parametrize("noun", NOUNS)
def test_a_post_without_the_pages_csrf_token_is_refused(noun: str) -> None:
    job = data.trip()
    arguments = [job.pk, "flight"] if noun.startswith("step") or noun == "job-signal" else [job.pk]
    client = signed_in("ada", operator=True, checks_csrf=True)
    answer = client.post(reverse(noun, args=arguments), {"seen": job.seq})
    assert answer.status_code == 403
    assert Job.objects.get(pk=job.pk).seq == job.seq


@pytest.mark.parametrize("noun", NOUNS)
def test_a_get_of_a_button_does_nothing(noun: str) -> None:
    job = data.trip()
    arguments = [job.pk, "flight"] if noun.startswith("step") or noun == "job-signal" else [job.pk]
    assert signed_in("ada", operator=True).get(reverse(noun, args=arguments)).status_code == 405
    assert Job.objects.get(pk=job.pk).seq == job.seq


def test_pages_are_not_kept_by_caches_and_run_no_inline_script() -> None:
    answer = signed_in("reader").get(reverse("job", args=[data.trip().pk]))
    assert "no-store" in answer["Cache-Control"]
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_an_unknown_job_is_not_found() -> None:
    client = signed_in("ada", operator=True)
    unknown = "01a227af-f6fb-74e8-94cf-4902fc5bef7e"
    assert client.get(f"/jobs/{unknown}").status_code == 404
    assert client.get(f"/jobs/{unknown}/live").status_code == 404
    assert client.post(f"/jobs/{unknown}/retries", {"seen": 1}).status_code == 404
    job = data.trip()
    assert client.post(f"/jobs/{job.pk}/steps/nosuch/retries", {"seen": 1}).status_code == 404
