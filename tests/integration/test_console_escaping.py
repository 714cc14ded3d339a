"""SAS-103: whatever others write into a job is shown as text, on every page and in every part of one."""

import json
import re
from html.parser import HTMLParser

import pytest
from django.test import Client
from django.utils import timezone

from tests import console_data as data
from workflows import signals, transitions
from workflows.models import Agent, Attempt, Event, Job, Once, Signal, Step

pytestmark = pytest.mark.django_db

HOSTILE = (
    """"'><script>alert(1)</script><img src=x onerror=alert(2)><a href="javascript:alert(3)" hx-get="//evil.example/" """
    """hx-trigger="load">{{ 7|add:7 }}</textarea></pre>"""
)


class Elements(HTMLParser):
    """The elements of a page with the attributes that could do harm."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            leads = name in ("href", "src", "action") or name.startswith("hx-")
            elsewhere = (value or "").strip().lower().startswith(("javascript:", "data:", "http", "//"))
            if name.startswith("on") or (leads and elsewhere):
                self.found.append(f"<{tag} {name}={value}>")
        source = dict(attributes).get("src") or ""
        if tag in ("script", "img", "iframe") and not source.startswith(("/static/", "/admin/jsi18n/")):
            self.found.append(f"<{tag} src={source}>")


def hostile_job() -> Job:
    job = data.failed_undo(HOSTILE, HOSTILE)
    payload = {HOSTILE: [HOSTILE, {"reference": HOSTILE}], "reference": HOSTILE}
    plan = json.loads(json.dumps(job.plan).replace('"hotel"', json.dumps(HOSTILE[:80])))
    Job.objects.filter(pk=job.pk).update(input=payload, reason_detail=HOSTILE, workflow=HOSTILE[:100], plan=plan)
    Step.objects.filter(job=job, name="flight").update(result=payload)
    Step.objects.filter(job=job, name="hotel").update(name=HOSTILE[:80], operation=HOSTILE[:100])
    Step.objects.filter(job=job).update(idempotency_key=HOSTILE[:150], queue=HOSTILE[:60], remedy_reason="")
    Step.objects.filter(job=job, state="Failed").update(
        error_message=HOSTILE, remedy_reason=HOSTILE, error_code=HOSTILE[:60]
    )
    Attempt.objects.filter(step__job=job).update(
        worker=HOSTILE[:150], error_message=HOSTILE, error_code=HOSTILE[:60], input=payload, late_at=timezone.now(),
        late_outcome="completed", late_message=HOSTILE, late_result=payload, in_doubt=True,
    )  # fmt: skip
    Event.objects.filter(job=job).update(
        actor=HOSTILE[:200], reason=HOSTILE, data={HOSTILE: HOSTILE}, kind=HOSTILE[:40], step=HOSTILE[:80]
    )
    Agent.objects.create(name=HOSTILE[:60], queue="agents", operations=[HOSTILE[:100]])
    job.refresh_from_db()
    return job


@pytest.fixture
def client() -> Client:
    client = Client()
    person = data.person("ada", operator=True)
    person.is_staff = person.is_superuser = True
    person.save()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_hostile_text_never_becomes_an_element(client: Client) -> None:
    job = hostile_job()
    step = job.steps.order_by("seq").first()
    attempt = Attempt.objects.filter(step__job=job).first()
    assert step
    assert attempt
    signal = Signal.objects.create(
        job=job, name=HOSTILE[:100], payload=[HOSTILE], actor=HOSTILE[:200], outcome=Signal.Outcome.LOST
    )
    once = Once.objects.create(step=step, name=HOSTILE[:100], attempt=1, result={HOSTILE: HOSTILE})
    addresses = [
        "/",
        "/jobs/",
        f"/jobs/{job.pk}",
        f"/jobs/{job.pk}/live",
        f"/jobs/{job.pk}/undo",
        "/attention/",
        *(f"/admin/sag_workflows/{model}/" for model in ("job", "step", "attempt", "event", "agent", "signal", "once")),
        f"/admin/sag_workflows/signal/{signal.pk}/change/",
        f"/admin/sag_workflows/once/{once.pk}/change/",
        f"/admin/sag_workflows/job/{job.pk}/change/",
        f"/admin/sag_workflows/step/{step.pk}/change/",
        f"/admin/sag_workflows/attempt/{attempt.pk}/change/",
    ]
    for address in addresses:
        page = client.get(address).content.decode()
        assert "alert(1)" in page or "&lt;script" in page or "agent" in address, f"{address} does not show it at all"
        assert Elements(page).found == [], address
        assert "<script>alert" not in page


def test_hostile_words_of_every_new_kind_stay_text(client: Client) -> None:
    job = data.showcase()
    signals.send(job.pk, "news", {"reference": HOSTILE}, actor=HOSTILE[:200])
    signals.send(job.pk, "approval", {"approved": True, "reason": HOSTILE}, actor=HOSTILE[:200])
    claimed = data.run(job, "flight")
    progress = json.dumps({"done": HOSTILE, "total": HOSTILE, "message": HOSTILE, HOSTILE: HOSTILE})
    transitions.heartbeat({claimed.token: (claimed.step_id, progress)})
    Step.objects.filter(job=job, name="car").update(skip_reason=HOSTILE)
    page = client.get(f"/jobs/{job.pk}").content.decode()
    assert "&lt;script" in page
    assert Elements(page).found == []
    fan = data.rollout(2)
    Step.objects.filter(job=fan, index=0).update(item={HOSTILE: HOSTILE})
    Step.objects.filter(job=fan, index=1).update(item=HOSTILE)
    page = client.get(f"/jobs/{fan.pk}/steps/deploy/").content.decode()
    assert "&lt;script" in page
    assert Elements(page).found == []


def test_hostile_words_in_the_url_come_back_as_text(client: Client) -> None:
    for name in ("state", "q", "workflow", "after", "list"):
        page = client.get("/jobs/", {name: HOSTILE}).content.decode()
        assert Elements(page).found == [], name
    fan = data.rollout(2)
    for name in ("state", "after", "before", "generation", "list"):
        page = client.get(f"/jobs/{fan.pk}/steps/deploy/", {name: HOSTILE}).content.decode()
        assert Elements(page).found == [], name
    assert Elements(client.get("/attention/", {"after": HOSTILE}).content.decode()).found == []
    assert Elements(client.get(f"/jobs/{fan.pk}/undo", {"down_to": HOSTILE}).content.decode()).found == []
    job = data.trip()
    assert Elements(client.get(f"/jobs/{job.pk}", {"list": HOSTILE}).content.decode()).found == []


def test_a_hostile_refusal_comes_back_as_text(client: Client) -> None:
    job = hostile_job()
    failed = job.steps.filter(state="Completed", name__startswith='"').first()
    assert failed
    answer = client.post(
        f"/jobs/{job.pk}/steps/{failed.name}/retries".replace("?", "%3F"),
        {"seen": failed.version},
        headers={"HX-Request": "true"},
    )
    assert answer.status_code == 409
    assert Elements(answer.content.decode()).found == []


def test_templates_hold_no_inline_script_style_or_handler(client: Client) -> None:
    page = client.get(f"/jobs/{hostile_job().pk}").content.decode()
    assert not re.search(r"<script(?![^>]* src=)", page)
    assert "<style" not in page
    assert not re.search(r"<[^>\"']+\sstyle=", page)


def test_a_huge_payload_is_cut_and_said_so(client: Client) -> None:
    job = data.trip(traveller={"name": "x" * 500_000, "email": "a@b.c"})
    page = client.get(f"/jobs/{job.pk}").content.decode()
    assert len(page) < 60_000
    assert "more characters; the API has all of it" in page


def test_payloads_of_every_json_kind_are_shown(client: Client) -> None:
    for value in (0, False, "", [], {}, [None], "line\nline", 1.5, {"ü": "\u202e"}):
        job = data.trip()
        data.complete(job, "flight", {"arrives_at": value})
        Step.objects.filter(job=job, name="flight").update(result=value)
        assert client.get(f"/jobs/{job.pk}").status_code == 200, json.dumps(value)
