"""What people decide in a browser: an approval, an undo exactly as shown, the repair of one item among many."""

from collections.abc import Callable

from playwright.sync_api import Browser, Page, expect

from tests import console_data as data
from workflows import signals
from workflows.models import Event, Job, Signal
from workflows.states import JobState, StepState


def test_an_approval_is_given_and_the_page_goes_on(operator_page: Page, site: str) -> None:
    job = data.showcase()
    operator_page.goto(f"{site}/jobs/{job.pk}")
    operator_page.get_by_role("button", name="Decide…").click()
    dialog = operator_page.get_by_role("dialog")
    dialog.get_by_label("Reason to approve, if you like").fill("All canaries sing.")
    dialog.get_by_role("button", name="Approve").click()
    expect(dialog).to_have_count(0)
    expect(operator_page.locator("#notices")).to_contain_text("Approved: approval.")
    expect(operator_page.get_by_text("approved, All canaries sing.")).to_be_visible()
    assert Signal.objects.get(job=job).payload == {"approved": True, "reason": "All canaries sing."}
    assert operator_page.complaints == []  # type: ignore[attr-defined]


def test_a_refusal_asks_for_its_reason(operator_page: Page, site: str) -> None:
    job = data.showcase()
    operator_page.goto(f"{site}/jobs/{job.pk}")
    operator_page.get_by_role("button", name="Decide…").click()
    dialog = operator_page.get_by_role("dialog")
    dialog.get_by_role("button", name="Refuse").click()
    expect(dialog.get_by_label("Reason to refuse")).to_be_focused()
    assert not Signal.objects.filter(job=job).exists()
    dialog.get_by_label("Reason to refuse").fill("Too early.")
    dialog.get_by_role("button", name="Refuse").click()
    expect(operator_page.get_by_text("Refused by operator:ada: Too early.").first).to_be_visible()


def test_an_undo_that_moved_on_is_shown_anew_and_then_done(operator_page: Page, site: str) -> None:
    job = data.chain("one")
    operator_page.goto(f"{site}/jobs/{job.pk}")
    operator_page.get_by_role("button", name="Cancel…").click()
    operator_page.get_by_role("link", name="See every call first").click()
    calls = operator_page.locator(".calls").first
    expect(calls.get_by_role("listitem")).to_have_count(1)
    data.complete(job, "two")
    operator_page.get_by_role("button", name="Stop the job and undo this").click()
    expect(operator_page.locator("#notices").get_by_role("alert")).to_contain_text("The job has moved on")
    expect(calls.get_by_role("listitem")).to_have_count(2)
    assert Job.objects.get(pk=job.pk).stopping_at is None
    operator_page.get_by_role("button", name="Stop the job and undo this").click()
    expect(operator_page).to_have_url(f"{site}/jobs/{job.pk}")
    expect(operator_page.locator("#notices")).to_contain_text("The undo begins.")
    expect(operator_page.get_by_role("heading", name="two.undo")).to_be_visible()
    assert Job.objects.get(pk=job.pk).state == JobState.COMPENSATING
    assert operator_page.complaints == []  # type: ignore[attr-defined]


def test_one_failed_item_is_found_and_tried_again(operator_page: Page, site: str) -> None:
    job = data.rollout(120)
    data.complete(job, "deploy:0")
    data.fail(job, "deploy:77", "No such host.")
    operator_page.goto(f"{site}/jobs/{job.pk}")
    operator_page.get_by_role("link", name="Items").click()
    expect(operator_page.get_by_role("heading", level=3)).to_have_count(50)
    operator_page.get_by_role("link", name="failed 1").click()
    expect(operator_page.get_by_role("heading", level=3)).to_have_text(["deploy:77"])
    expect(operator_page).to_have_url(f"{site}/jobs/{job.pk}/steps/deploy/?state=Failed")
    operator_page.get_by_role("button", name="Retry", exact=True).click()
    expect(operator_page.locator("#notices")).to_contain_text("Step deploy:77 is tried again.")
    expect(operator_page.get_by_text("No item is in this state.")).to_be_visible()
    assert data.step(job, "deploy:77").state == StepState.NOT_STARTED


def test_the_page_of_items_follows_them(operator_page: Page, site: str) -> None:
    job = data.rollout(3)
    operator_page.goto(f"{site}/jobs/{job.pk}/steps/deploy/")
    expect(operator_page.locator(".chip", has_text="done")).to_contain_text("0")
    data.complete(job, "deploy:1")
    expect(operator_page.locator(".chip", has_text="done")).to_contain_text("1")


def test_what_was_typed_stays_while_the_page_follows(operator_page: Page, site: str) -> None:
    job = data.showcase()
    data.run(job, "flight")
    operator_page.goto(f"{site}/jobs/{job.pk}")
    operator_page.get_by_role("button", name="More for flight").click()
    result = operator_page.get_by_role("dialog").get_by_label("Result as JSON")
    result.fill("{half a resu")
    signals.send(job.pk, "news", {}, actor="client:paper")
    expect(operator_page.locator(".events")).to_contain_text("client:paper")
    expect(result).to_have_value("{half a resu")
    expect(result).to_be_focused()


def test_a_refused_result_can_be_mended(operator_page: Page, site: str) -> None:
    job = data.chain()
    data.fail(job, "one")
    operator_page.goto(f"{site}/jobs/{job.pk}")
    more = operator_page.get_by_role("button", name="More for one")
    more.click()
    dialog = operator_page.get_by_role("dialog")
    dialog.get_by_label("Result as JSON").fill('{"a": 1')
    dialog.get_by_label("Reason").first.fill("By phone.")
    dialog.get_by_role("button", name="Set result").click()
    expect(operator_page.locator("#notices")).to_contain_text("is no JSON")
    more.click()
    expect(dialog.get_by_label("Result as JSON")).to_have_value('{"a": 1')
    dialog.get_by_label("Result as JSON").fill('{"a": 1}')
    dialog.get_by_role("button", name="Set result").click()
    expect(operator_page.get_by_text("settled by hand")).to_be_visible()
    assert data.step(job, "one").result == {"a": 1}


def test_a_verdict_is_given_once_by_two(
    operator_page: Page, browser: Browser, site: str, enter: Callable[..., None]
) -> None:
    job = data.chain()
    data.lost(job, "one")
    other = browser.new_context()
    enter(other, "grace")
    second = other.new_page()
    for page in (operator_page, second):
        page.goto(f"{site}/jobs/{job.pk}")
        page.get_by_role("button", name="Verdict…").click()
        page.get_by_label("Evidence: how you know").fill("Seen.")
    operator_page.get_by_role("button", name="It was done", exact=True).click()
    expect(operator_page.locator("#notices")).to_contain_text("Verdict on one: it was done.")
    expect(second.get_by_text("settled by hand")).to_be_visible()
    expect(second.get_by_role("dialog")).to_have_count(0)
    assert Event.objects.filter(job=job, kind="doubt.resolved").count() == 1
    other.close()
