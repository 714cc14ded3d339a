"""The pages of the agents, of outages and of sweeps, and the buttons that end an outage."""

import uuid
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from supervisor import leadership, sweep
from supervisor.leadership import Duty
from supervisor.models import Incident, Sweep
from tests.integration import visitors
from tests.integration.engine import Engine, named
from tests.integration.outages import Delivery, outage_of_shop, tend
from workflows import transitions
from workflows.clock import now
from workflows.models import Breaker, Worker


@pytest.fixture
def operator(engine: Engine) -> Client:
    return visitors.operator()


@pytest.fixture
def reader(engine: Engine) -> Client:
    return visitors.reader()


def text(client: Client, name: str, query: str = "") -> str:
    answer = client.get(reverse(name) + query)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_an_agent_shows_what_it_offers_and_what_waits_for_it(reader: Client) -> None:
    Delivery.start()
    page = text(reader, "agents")
    card = page.partition('id="agent-shop"')[2].partition("</li>")[0]
    assert "Answers" in card
    assert "<dt>Ready</dt><dd>1</dd>" in card
    assert "<code>shop.a</code>" in card


def test_an_outage_shows_its_evidence_and_the_agent_comes_first(engine: Engine, reader: Client) -> None:
    outage_of_shop(engine)
    page = text(reader, "agents")
    first = page.partition('<ul class="cards">')[2].partition("</dl>")[0]
    assert 'id="agent-shop"' in first
    assert "Away" in first
    assert "6 of 6 calls within 30 s failed so, in 6 steps" in first
    assert "The depot does not answer." in first
    assert "<dt>Parked</dt><dd>6</dd>" in first


def test_an_operation_that_no_worker_offers_is_named_with_its_workflow(reader: Client) -> None:
    page = text(reader, "agents")
    assert "No worker offers these" in page
    assert "<bdi>TripBooking</bdi>: <code>car.cancel</code>" in page  # only the engine's own agents are announced here


def test_only_operators_have_buttons(engine: Engine, reader: Client) -> None:
    outage_of_shop(engine)
    address = reverse("agent-resumption", args=["shop"])
    assert address not in text(reader, "agents")
    for noun in ("agent-trial", "agent-resumption"):
        assert reader.post(reverse(noun, args=["shop"])).status_code == 403
    assert Breaker.objects.get().phase == "open"
    assert Incident.objects.get().acknowledged_at is None


def test_the_button_lets_all_go_and_says_so(engine: Engine, operator: Client) -> None:
    outage_of_shop(engine)
    engine.says("shop.a", {"ok": True})
    answer = operator.post(reverse("agent-resumption", args=["shop"]), follow=True)
    assert "is released" in answer.content.decode()
    assert Incident.objects.get().acknowledged_by.startswith("operator:operator-")
    tend(engine)
    assert "<dt>Parked</dt><dd>0</dd>" in text(operator, "agents")


def test_the_button_tries_one_at_once(engine: Engine, operator: Client) -> None:
    outage_of_shop(engine)
    engine.says("shop.a", {"ok": True})
    asked = len(engine.calls_of("shop.a"))
    operator.post(reverse("agent-trial", args=["shop"]))
    tend(engine)
    assert len(engine.calls_of("shop.a")) == asked + 1


def test_a_click_on_a_breaker_that_has_closed_meanwhile_changes_nothing_and_says_so(operator: Client) -> None:
    answer = operator.post(reverse("agent-resumption", args=["shop"]), follow=True)
    assert "Nothing was done." in answer.content.decode()
    assert not Breaker.objects.exists()
    assert operator.post(reverse("agent-resumption", args=["nobody"])).status_code == 404


def row_of(page: str, name: str) -> str:
    return page.partition(f'id="worker-{name}"')[2].partition("</tr>")[0]


def test_a_worker_shows_what_it_has_in_its_hands_and_a_silent_one_stays_listed_with_its_work(reader: Client) -> None:
    present = now()
    for mark, seen in (
        ("aaaa", present),
        ("bbbb", present - timedelta(hours=1)),
        ("cccc", present - timedelta(hours=1)),
    ):
        Worker.objects.create(name=f"box:7:{mark}", host="box", pid=7, queues=["agents"], started_at=seen, seen_at=seen)
    jobs = [Delivery.start(), Delivery.start()]
    for job, name in zip(jobs, ("box:8:aaaa-1", "box:9:bbbb-2"), strict=True):
        assert transitions.claim(named(job, "a").pk, token=uuid.uuid4(), worker=name)
    page = text(reader, "agents")
    assert "At work" in row_of(page, "box:7:aaaa")
    assert reverse("job", args=[jobs[0].pk]) in row_of(page, "box:7:aaaa")
    assert reverse("job", args=[jobs[1].pk]) not in row_of(page, "box:7:aaaa")
    assert "Silent" in row_of(page, "box:7:bbbb")
    assert reverse("job", args=[jobs[1].pk]) in row_of(page, "box:7:bbbb")
    assert "box:7:cccc" not in page
    assert page.index("box:7:aaaa") < page.index("box:7:bbbb")


@pytest.mark.parametrize(("moment", "word"), [("draining_at", "Draining"), ("stopped_at", "Stopped")])
def test_a_worker_that_is_about_to_end_or_has_is_said_to(reader: Client, moment: str, word: str) -> None:
    present = now()
    told = {"queues": ["agents"], "started_at": present, "seen_at": present, moment: present}
    Worker.objects.create(name="box:7:aaaa", host="box", pid=7, **told)
    assert word in row_of(text(reader, "agents"), "box:7:aaaa")


def test_the_overview_says_which_service_is_away_and_what_waits(engine: Engine, reader: Client) -> None:
    outage_of_shop(engine)
    sweep.sweep()
    leadership.do(Duty.TICKS, lambda _: None)
    page = text(reader, "overview")
    assert "shop is away" in page
    assert "6 steps of 6 jobs wait;" in page
    assert "Healthy. Nobody is needed." not in page


def test_outages_that_go_on_come_before_those_that_are_over(engine: Engine, reader: Client) -> None:
    outage_of_shop(engine)
    over = Incident.objects.create(agent="kiosk", cause="timeout", evidence={}, opened_at=now(), closed_at=now())
    page = text(reader, "overview")
    assert page.index(">Goes on<") < page.index(f'id="incident-{over.pk}"') < page.index(">Over<")


def test_a_sweep_shows_what_it_could_not_handle(reader: Client) -> None:
    Sweep.objects.create(started_at=now(), finished_at=now(), failed=1, problems=["step 7: ValueError: <b>odd</b>"])
    page = text(reader, "sweeps")
    assert "step 7: ValueError: &lt;b&gt;odd&lt;/b&gt;" in page
    assert "The supervisor looks every" in page


def test_sweeps_can_be_narrowed_to_those_that_did_something(reader: Client) -> None:
    quiet = Sweep.objects.create(started_at=now(), finished_at=now())
    busy = Sweep.objects.create(started_at=now(), finished_at=now(), remedied=3)
    assert f'id="sweep-{quiet.pk}"' in text(reader, "sweeps")
    page = text(reader, "sweeps", "?show=busy")
    assert f'id="sweep-{busy.pk}"' in page
    assert f'id="sweep-{quiet.pk}"' not in page
    assert "No such sweep" in text(reader, "sweeps", "?show=problems")


def test_older_sweeps_are_one_link_away(reader: Client) -> None:
    rows = Sweep.objects.bulk_create([Sweep(started_at=now(), finished_at=now()) for _ in range(51)])
    page = text(reader, "sweeps")
    assert f"after={rows[1].pk}" in page
    assert f'id="sweep-{rows[0].pk}"' not in page
    assert f'id="sweep-{rows[0].pk}"' in text(reader, "sweeps", f"?after={rows[1].pk}")


def test_a_supervisor_that_never_swept_is_said_to_be_silent(reader: Client) -> None:
    page = text(reader, "sweeps")
    assert "The supervisor is silent" in page
    assert "<dd>never</dd>" in page
