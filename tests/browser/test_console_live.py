"""The console in a browser: it follows the job by itself, and a click has one effect."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests import console_data as data
from tests.waiting import wait_until
from workflows import verbs
from workflows.models import Event, Job


def open_job(page: Page, site: str, job: Job) -> None:
    """Open a job's page, and mark it so that a reload would show."""
    page.goto(f"{site}/jobs/{job.pk}")
    page.evaluate("window.opened = 'once'")


def was_not_reloaded(page: Page) -> bool:
    return bool(page.evaluate("window.opened") == "once")


def test_an_operator_signs_in_finds_a_job_and_opens_it(page: Page, site: str) -> None:
    data.person("ada", operator=True)
    data.failed_undo("trip-17")
    data.trip("trip-18")
    page.goto(f"{site}/jobs/?state=needs_person")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(data.PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{site}/jobs/?state=needs_person")
    expect(page.get_by_role("link", name="trip-18")).to_have_count(0)
    page.get_by_role("link", name="trip-17").click()
    expect(page.get_by_role("heading", name="trip-17")).to_be_visible()
    expect(page.get_by_text("REF-hotel, made by hotel.reserve, may still be live")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(f"{site}/jobs/?state=needs_person")


def test_the_page_follows_its_job_without_a_reload_until_it_ends(operator_page: Page, site: str) -> None:
    job = data.trip()
    open_job(operator_page, site, job)
    summary = operator_page.locator("#summary")
    expect(summary).to_have_text("0 of 3 steps done")
    data.complete(job, "flight")
    expect(summary).to_have_text("1 of 3 steps done")
    claimed = data.run(job, "hotel", worker="worker-9")
    expect(operator_page.locator(".because")).to_contain_text("hotel runs on worker-9")
    data.settle(claimed, {"reference": "HO-1"})
    data.complete(job, "car")
    expect(summary).to_have_text("Every step is done")
    expect(operator_page.locator("#live")).not_to_have_attribute("hx-get", re.compile("."))
    assert was_not_reloaded(operator_page)
    assert operator_page.complaints == []  # type: ignore[attr-defined]


def test_what_the_reader_opened_and_typed_stays_while_the_page_follows(operator_page: Page, site: str) -> None:
    job = data.trip()
    data.complete(job, "flight")
    open_job(operator_page, site, job)
    details = operator_page.locator("#more-0")
    details.locator("summary").click()
    operator_page.get_by_role("button", name="Cancel…").first.click()
    reason = operator_page.get_by_label("Reason, if you like").first
    reason.fill("half a sen")
    data.run(job, "hotel", worker="worker-9")
    expect(operator_page.locator(".because")).to_contain_text("worker-9")
    expect(details).to_have_attribute("open", "")
    expect(reason).to_be_visible()
    expect(reason).to_have_value("half a sen")
    expect(reason).to_be_focused()


def test_a_cancel_asks_first_and_then_undoes(operator_page: Page, site: str) -> None:
    job = data.trip()
    data.complete(job, "flight")
    open_job(operator_page, site, job)
    operator_page.get_by_role("button", name="Cancel…").click()
    dialog = operator_page.get_by_role("dialog")
    expect(dialog).to_contain_text("Undone: flight (REF-flight).")
    dialog.get_by_label("Reason, if you like").fill("The traveller is ill.")
    dialog.get_by_role("button", name="Cancel and undo").click()
    expect(dialog).to_have_count(0)
    expect(operator_page.get_by_role("heading", name="flight.undo")).to_be_visible()
    assert Event.objects.get(job=job, kind="job.stopping").actor == "operator:ada"
    assert was_not_reloaded(operator_page)


def test_leaving_the_question_does_nothing(operator_page: Page, site: str) -> None:
    job = data.trip()
    open_job(operator_page, site, job)
    operator_page.get_by_role("button", name="Cancel…").click()
    operator_page.get_by_role("button", name="Leave it running").click()
    expect(operator_page.get_by_role("dialog")).to_have_count(0)
    assert Job.objects.get(pk=job.pk).seq == job.seq


def test_a_second_operators_stale_retry_is_answered_with_what_is_now_true(operator_page: Page, site: str) -> None:
    job = data.failed_undo()
    open_job(operator_page, site, job)
    verbs.retry_job(job.pk, actor="operator:grace", reason="")
    events = Event.objects.filter(job=job).count()
    operator_page.locator(".head").get_by_role("button", name="Retry").click()
    alert = operator_page.locator("#notices").get_by_role("alert")
    expect(alert).to_contain_text("Nothing was done.")
    expect(alert).to_contain_text("Compensating")
    expect(operator_page.locator("#summary")).to_have_text("Undoing, 1 of 2 undone")
    assert Event.objects.filter(job=job).count() == events
    # The page follows the job again, and the answer stays to be read.
    data.complete(job, "hotel.undo")
    expect(operator_page.locator("#summary")).to_have_text("Everything done has been undone")
    expect(alert).to_be_visible()
    assert was_not_reloaded(operator_page)


def test_a_double_click_on_a_slow_server_has_one_effect(operator_page: Page, site: str) -> None:
    """SAS-104."""
    job = data.failed_undo()
    open_job(operator_page, site, job)
    waiting: list[Route] = []
    operator_page.route("**/retries", lambda route: waiting.append(route))
    button = operator_page.locator(".head").get_by_role("button", name="Retry")
    button.dblclick()
    expect(button).to_be_disabled()
    waiting[0].continue_()
    expect(operator_page.locator("#notices")).to_contain_text("tried again")
    assert len(waiting) == 1
    assert Event.objects.filter(job=job, kind="step.retried", actor="operator:ada").count() == 1


def test_two_operators_at_once_have_one_effect(
    operator_page: Page, browser: Browser, site: str, enter: Callable[..., None]
) -> None:
    """SAS-104."""
    job = data.failed_undo()
    other = browser.new_context()
    enter(other, "grace")
    second = other.new_page()
    for page in (operator_page, second):
        open_job(page, site, job)
    operator_page.locator(".head").get_by_role("button", name="Retry").click()
    second.locator(".head").get_by_role("button", name="Retry").click()
    expect(operator_page.locator("#notices")).to_contain_text("tried again")
    expect(second.locator("#notices")).to_contain_text("Nothing was done.")
    assert (
        Event.objects.filter(job=job, kind="step.retried", step="hotel.undo").exclude(actor="supervisor").count() == 1
    )
    other.close()


def test_a_server_that_cannot_be_reached_is_said_and_then_forgotten(operator_page: Page, site: str) -> None:
    job = data.trip()
    open_job(operator_page, site, job)
    trouble = operator_page.locator("#trouble")
    expect(trouble).to_be_hidden()
    operator_page.route("**/live*", lambda route: route.abort())
    expect(trouble).to_contain_text("cannot be reached")
    operator_page.unroute("**/live*")
    expect(trouble).to_be_hidden()
    data.complete(job, "flight")
    expect(operator_page.locator("#summary")).to_have_text("1 of 3 steps done")


def test_a_session_that_ended_leads_to_the_login(operator_page: Page, site: str) -> None:
    job = data.trip()
    open_job(operator_page, site, job)
    operator_page.context.clear_cookies()
    expect(operator_page).to_have_url(re.compile("/login/"))
    expect(operator_page.get_by_label("Password")).to_be_visible()


def test_the_overview_follows_the_jobs(operator_page: Page, site: str) -> None:
    operator_page.goto(f"{site}/")
    expect(operator_page.get_by_text("No job has been started yet.")).to_be_visible()
    data.failed_undo("trip-17")
    # The overview asks every five seconds.
    expect(operator_page.locator(".person").get_by_role("link", name="trip-17")).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("browser_context_args", [{"java_script_enabled": False}], indirect=True)
def test_without_a_script_it_can_be_read_and_used(operator_page: Page, site: str) -> None:
    job = data.failed_undo("trip-17")
    operator_page.goto(f"{site}/jobs/?state=Failed")
    operator_page.get_by_role("link", name="trip-17").click()
    operator_page.locator(".head").get_by_role("button", name="Retry").click()
    expect(operator_page.locator("#notices")).to_contain_text("tried again")
    wait_until(lambda: Event.objects.filter(job=job, kind="step.retried", actor="operator:ada").exists())
    operator_page.get_by_role("link", name="← Jobs, as filtered").click()
    expect(operator_page).to_have_url(f"{site}/jobs/?state=Failed")
