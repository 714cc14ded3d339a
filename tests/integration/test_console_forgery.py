"""SAS-117: nothing that changes something can be set off from another site, by a mere link, or without a login."""

import json
import uuid

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from supervisor.console.urls import urlpatterns
from supervisor.models import GroupCancellation, Incident
from tests import console_data as data
from tests.api import TRIP, newcomer
from tests.integration import visitors
from tests.integration.engine import Engine
from tests.integration.outages import outage_of_shop
from tests.integration.test_console_access import signed_in
from workflows.clock import now
from workflows.models import Breaker, Event, Job, Worker

ACTIONS = [pattern for pattern in urlpatterns if pattern.name not in ("login", "logout")]
FOREIGN = {"Origin": "https://evil.example", "Referer": "https://evil.example/"}


@pytest.fixture
def incident(engine: Engine) -> Incident:
    """Something that each action would find."""
    outage_of_shop(engine)
    Worker.objects.create(name="w", host="box", pid=7, queues=["agents"], started_at=now(), seen_at=now())
    return Incident.objects.get()


def address(pattern: URLPattern, incident: Incident) -> str:
    job = Job.objects.order_by("pk").first()
    assert job
    parts = {"job_id": job.pk, "schedule_id": uuid.uuid4(), "incident_id": incident.pk, "cause_id": 1}
    parts["queue"] = "agents"
    of_worker = str(pattern.name).startswith("worker")
    parts["name"] = "w" if of_worker else "shop" if str(pattern.name).startswith("agent") else "a"
    return reverse(str(pattern.name), kwargs={name: parts[name] for name in pattern.pattern.converters})


def everything() -> tuple[object, ...]:
    """What any of the actions would change."""
    breaker = Breaker.objects.values_list("phase", "trial_at").get(agent="shop")
    asked = Worker.objects.filter(drain_asked_at__isnull=False).count()
    in_hand = Incident.objects.filter(acknowledged_at__isnull=False).count()
    return breaker, Event.objects.count(), GroupCancellation.objects.count(), asked, in_hand


FIELDS = {"seen": "1", "undo": "yes", "as_of": "2099-01-01T00:00:00Z", "reason": "x", "digest": "x", "verdict": "done"}


@pytest.mark.parametrize("kind", ["form", "htmx", "json as text"])
def test_what_another_site_posts_in_an_operators_browser_is_refused(incident: Incident, kind: str) -> None:
    client = signed_in(f"operator-{uuid.uuid4().hex}", operator=True, checks_csrf=True)
    before = everything()
    for pattern in ACTIONS:
        where = address(pattern, incident)
        match kind:
            case "form":
                answer = client.post(where, FIELDS, headers=FOREIGN)
            case "htmx":
                answer = client.post(where, FIELDS, headers=FOREIGN | {"HX-Request": "true"})
            case _:
                answer = client.post(where, json.dumps(FIELDS), content_type="text/plain", headers=FOREIGN)
        assert answer.status_code in (403, 405), pattern.name
        assert everything() == before, pattern.name


def test_no_link_changes_anything(incident: Incident) -> None:
    before, client = everything(), visitors.operator()
    for pattern in ACTIONS:
        client.get(address(pattern, incident), FIELDS)
        assert everything() == before, pattern.name


def test_the_session_cookie_is_for_this_site_and_no_script(engine: Engine) -> None:
    name = f"operator-{uuid.uuid4().hex}"
    data.person(name, operator=True)
    answer = Client().post(reverse("login"), {"username": name, "password": data.PASSWORD})
    cookie = answer.cookies["sessionid"]
    assert cookie["httponly"]
    assert cookie["samesite"] in ("Lax", "Strict")


def test_the_api_takes_no_cookie_for_a_token(engine: Engine) -> None:
    client: Client = visitors.operator()
    assert client.get("/api/v1/jobs").status_code == 401
    booked = client.post("/api/v1/bookings", TRIP, content_type="application/json", headers={"Idempotency-Key": "k"})
    assert booked.status_code == 401
    assert newcomer("jobs:read").get("jobs").status_code == 200
    assert not Job.objects.exists()
