"""The page of an outage: who waits because of it, and how all of them are given up."""

import re

import pytest
from django.test import Client
from django.urls import reverse

from supervisor import cancellations
from supervisor.models import GroupCancellation, Incident
from tests.integration import visitors
from tests.integration.engine import Engine, state_of
from tests.integration.outages import Delivery, outage_of_shop, tend
from workflows import verbs
from workflows.clock import now


@pytest.fixture
def operator(engine: Engine) -> Client:
    return visitors.operator()


@pytest.fixture
def reader(engine: Engine) -> Client:
    return visitors.reader()


def text(client: Client, name: str = "incident") -> str:
    answer = client.get(reverse(name, args=[Incident.objects.get().pk]))
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def give_up(client: Client, **fields: str) -> str:
    told = {"undo": "yes", "as_of": now().isoformat(), **fields}
    address = reverse("incident-cancellation", args=[Incident.objects.get().pk])
    return " ".join(client.post(address, told, follow=True).content.decode().split())


def test_an_outage_shows_its_evidence_and_who_waits(engine: Engine, reader: Client) -> None:
    jobs = outage_of_shop(engine)
    page = text(reader)
    assert "6 of 6 calls within 30 s failed so, in 6 steps" in page
    assert "6 steps of 6 jobs" in page
    assert all(reverse("job", args=[job.pk]) in page for job in jobs)
    assert "<form" not in page.partition("<main")[2]
    assert reverse("incident", args=[Incident.objects.get().pk]) in reader.get(reverse("agents")).content.decode()


def test_the_navigation_marks_the_page_that_is_shown_or_the_one_it_lies_below(engine: Engine, reader: Client) -> None:
    job = outage_of_shop(engine)[0]
    marked = re.compile(r'<a href="([^"]+)" aria-current="(\w+)"')
    addresses = {
        reverse("overview"): ("overview", "page"),
        reverse("agents"): ("agents", "page"),
        reverse("incident", args=[Incident.objects.get().pk]): ("agents", "true"),
        reverse("job", args=[job.pk]): ("jobs", "true"),
        reverse("undo", args=[job.pk]): ("jobs", "true"),
        reverse("schedule-new"): ("schedules", "true"),
    }
    for address, (page, how) in addresses.items():
        navigation = reader.get(address).content.decode().partition("</nav>")[0]
        assert marked.findall(navigation) == [(reverse(page), how)], address


def test_of_many_that_wait_the_first_are_shown_and_how_many_more(engine: Engine, reader: Client) -> None:
    outage_of_shop(engine, jobs=25)
    assert "… and 5 more." in text(reader)


def test_one_that_is_over_says_how_long_it_lasted_and_offers_nothing(engine: Engine, operator: Client) -> None:
    outage_of_shop(engine)
    engine.ahead(90)
    Incident.objects.update(closed_at=now())
    page = text(operator)
    assert "was away" in page
    assert "Stop all" not in page
    assert "The outage is over" in text(operator, "incident-group")


def test_before_they_are_given_up_a_person_sees_how_many_they_are(engine: Engine, operator: Client) -> None:
    jobs = outage_of_shop(engine)
    verbs.pause(jobs[0].pk, actor="operator:bob", reason="wait")
    assert reverse("incident-group", args=[Incident.objects.get().pk]) in text(operator)
    page = text(operator, "incident-group")
    assert "Stop 5 jobs, and undo what they did" in page
    assert "6 jobs wait; those that are paused or being undone already are left as they are." in page
    assert not GroupCancellation.objects.exists()


def test_the_button_stops_those_that_were_shown_and_the_page_follows(engine: Engine, operator: Client) -> None:
    jobs = outage_of_shop(engine)
    shown_at = now()
    engine.ahead(1)
    late = Delivery.start()
    engine.drain()
    tend(engine)
    page = give_up(operator, reason="Nobody travels.", as_of=shown_at.isoformat())
    assert "6 jobs will be stopped, one after another; what they did is undone." in page
    assert "Of 6 jobs: 0 stopped, 6 left." in page
    cancellations.work_off()
    engine.drain()
    assert {state_of(job) for job in jobs} == {"Failed"}
    assert state_of(late) == "Running"
    page = text(operator)
    assert "Of 6 jobs: 6 stopped." in page
    assert "Nobody travels." in page
    assert GroupCancellation.objects.get().actor.startswith("operator:operator-")


def test_without_undo_a_reason_is_asked_for(engine: Engine, operator: Client) -> None:
    outage_of_shop(engine)
    assert "Nothing was done. The request is refused: to cancel without undo needs a reason." in give_up(
        operator, undo="no"
    )
    assert not GroupCancellation.objects.exists()
    assert "nothing is undone" in give_up(operator, undo="no", reason="They know.")


@pytest.mark.parametrize("fields", [{"undo": ""}, {"as_of": ""}, {"as_of": "soon"}, {"as_of": "2026-99-01T00:00:00Z"}])
def test_a_form_that_does_not_say_what_is_meant_is_refused(
    engine: Engine, operator: Client, fields: dict[str, str]
) -> None:
    outage_of_shop(engine)
    assert "are needed" in give_up(operator, **fields)
    assert not GroupCancellation.objects.exists()


def test_who_may_only_read_gives_nothing_up(engine: Engine, reader: Client) -> None:
    outage_of_shop(engine)
    assert "<form" not in text(reader, "incident-group").partition("<main")[2]
    give_up(reader)
    assert not GroupCancellation.objects.exists()


def test_a_click_that_comes_after_its_end_changes_nothing_and_says_so(engine: Engine, operator: Client) -> None:
    outage_of_shop(engine)
    Incident.objects.update(closed_at=now())
    assert "Nothing was done. The outage of shop is over" in give_up(operator)


def test_an_outage_that_never_was_is_not_found(operator: Client) -> None:
    for name in ("incident", "incident-group"):
        assert operator.get(reverse(name, args=[7])).status_code == 404
    answer = operator.post(reverse("incident-cancellation", args=[7]), {"undo": "yes", "as_of": now().isoformat()})
    assert answer.status_code == 404
