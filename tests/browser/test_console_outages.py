"""An outage in a browser: a person sees who waits because of it, and gives all of them up."""

import re

import pytest
from playwright.sync_api import Page, expect

from supervisor import cancellations
from supervisor.models import Incident
from tests import console_data as data
from workflows import transitions
from workflows.clock import now
from workflows.models import Agent, Step


def outage(jobs: int, message: str = "The hotel does not answer.") -> Incident:
    """An outage of the hotel, because of which so many trips wait."""
    Agent.objects.get_or_create(name="hotel", defaults={"queue": "agents", "operations": ["hotel.reserve"]})
    evidence = {"failures": 12, "calls": 14, "steps": 12, "window": 30.0}
    told = {"cause": "unavailable", "message": message, "evidence": evidence, "opened_at": now()}
    transitions.set_breaker("hotel", phase="open", parks=True, **told)
    trips = [data.trip(f"trip-{number}") for number in range(jobs)]
    Step.objects.filter(job__in=trips, name="hotel").update(parked=True, held=True, parked_since=now(), waiting_for=0)
    return Incident.objects.create(agent="hotel", **told)


def test_all_that_waits_is_given_up_by_two_clicks_and_the_page_follows(operator_page: Page, site: str) -> None:
    incident = outage(3)
    operator_page.goto(site)
    operator_page.get_by_role("link", name="Who waits, and what to do").click()
    expect(operator_page.get_by_role("heading", name="hotel is away")).to_be_visible()
    operator_page.get_by_role("link", name="Stop all…").click()
    expect(operator_page.get_by_role("heading", name="Stop 3 jobs")).to_be_visible()
    operator_page.get_by_label("Reason").fill("Nobody travels any more.")
    operator_page.get_by_role("button", name="Stop 3 jobs, and undo what they did").click()
    expect(operator_page.get_by_role("status")).to_contain_text("3 jobs will be stopped")
    expect(operator_page.get_by_text("Of 3 jobs: 0 stopped, 3 left.")).to_be_visible()
    cancellations.work_off()
    expect(operator_page.get_by_text("Of 3 jobs: 3 stopped.")).to_be_visible()
    expect(operator_page).to_have_url(re.compile(f"/incidents/{incident.pk}$"))
    assert operator_page.complaints == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [360, 1400])
def test_no_page_of_an_outage_is_wider_than_the_screen(operator_page: Page, site: str, width: int) -> None:
    incident = outage(2, "No-space-in-this-message-" + "x" * 200)
    cancellations.ask(incident.pk, undo=True, actor="operator:" + "a" * 150, reason="y" * 200)
    operator_page.set_viewport_size({"width": width, "height": 800})
    for address in (f"/incidents/{incident.pk}", f"/incidents/{incident.pk}/group"):
        operator_page.goto(site + address)
        wide, screen = operator_page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= screen, f"{address} is {wide} px wide on {screen}"
