"""Every page in a browser: hostile data executes nothing, a phone needs no sideways scrolling, light and dark differ."""

from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, expect

from supervisor import needs
from supervisor.models import Need
from tests import console_data as data
from tests.integration.test_console_escaping import hostile_job
from workflows.clock import now
from workflows.models import Agent


def addresses(job_id: object) -> list[str]:
    found = ["/", "/attention/", "/agents/", "/schedules/", "/sweeps/", "/nowhere"]
    found += [
        "/schedules/new?cron=0+0+30+2+*&timezone=%3Cb%3E",
        "/schedules/new?cron=30+2+*+*+*&timezone=Europe/Berlin",
    ]
    found += ["/jobs/", "/jobs/?state=Failed&state=needs_person", "/jobs/?q=%3Cb%3E"]
    return [*found, f"/jobs/{job_id}", f"/jobs/{job_id}/undo"]


def test_hostile_data_executes_nothing(operator_page: Page, site: str) -> None:
    """SAS-103."""
    job = hostile_job()
    seen: list[str] = []

    def answer(dialog: Dialog) -> None:
        seen.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def watch(request: Request) -> None:
        if not request.url.startswith(site):
            seen.append(f"request {request.url}")

    operator_page.on("dialog", answer)
    operator_page.on("request", watch)
    for address in addresses(job.pk):
        operator_page.goto(site + address)
        operator_page.wait_for_load_state("networkidle")
        for summary in operator_page.locator("summary").all():
            summary.click()
        injected = operator_page.locator("main img, main script, main iframe, main [onerror], main a[href^=javascript]")
        assert injected.count() == 0, address
    assert seen == []
    assert operator_page.complaints == []  # type: ignore[attr-defined]
    Agent.objects.all().delete()


@pytest.mark.parametrize("width", [360, 390, 768, 1400])
def test_no_page_is_wider_than_the_screen(operator_page: Page, site: str, width: int) -> None:
    long = "x" * 200
    job = data.failed_undo(f"a-very-long-key-{long}", f"No-space-in-this-message-{long}")
    data.failing("short")
    fan, every_kind = data.rollout(30), data.showcase()
    data.fail(fan, "deploy:0", long)
    data.swept(job, long)
    needs.note_needs()
    needs.add_note(Need.objects.get().pk, long, actor=f"client:{long}")
    operator_page.set_viewport_size({"width": width, "height": 800})
    for address in [*addresses(job.pk), f"/jobs/{every_kind.pk}", f"/jobs/{fan.pk}", f"/jobs/{fan.pk}/steps/deploy/"]:
        operator_page.goto(site + address)
        operator_page.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)")
        wide, screen = operator_page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= screen, f"{address} is {wide} px wide on {screen}"


def test_on_a_phone_the_dialog_fits_and_its_buttons_can_be_reached(operator_page: Page, site: str) -> None:
    job = data.trip()
    operator_page.set_viewport_size({"width": 360, "height": 640})
    operator_page.goto(f"{site}/jobs/{job.pk}")
    operator_page.get_by_role("button", name="Cancel…").click()
    box = operator_page.get_by_role("dialog").bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    operator_page.get_by_role("button", name="Cancel and undo").click(trial=True)
    operator_page.get_by_role("button", name="Cancel without undo").click(trial=True)


def test_on_a_phone_a_cause_is_taken_in_hand_and_put_off(operator_page: Page, site: str) -> None:
    data.failed_undo("stuck-1", "The desk is closed.")
    needs.note_needs()
    operator_page.set_viewport_size({"width": 390, "height": 800})
    operator_page.goto(f"{site}/attention/")
    operator_page.get_by_role("button", name="I have it in hand").click()
    expect(operator_page.get_by_role("status")).to_contain_text("not told again")
    operator_page.get_by_role("button", name="Put off, give, note…").click()
    dialog = operator_page.get_by_role("dialog")
    dialog.get_by_label("Note for whoever looks next").fill("They open at nine.")
    dialog.get_by_label("Put it off").select_option("for a day")
    need = Need.objects.get()
    needs.assign(need.pk, "bo", actor="operator:bo")
    # The page follows what happens, and leaves alone what is being written.
    expect(operator_page.locator(f"#need-{need.pk} .facts")).to_contain_text("bo")
    expect(dialog.get_by_label("Note for whoever looks next")).to_have_value("They open at nine.")
    dialog.get_by_role("button", name="Put off").click()
    expect(operator_page.get_by_role("heading", name="Put off until later")).to_be_visible()
    need.refresh_from_db()
    assert need.snoozed_until
    assert need.snoozed_until - now() > timedelta(hours=23)
    assert operator_page.complaints == []  # type: ignore[attr-defined]


def test_light_and_dark_follow_the_readers_system(browser: Browser, site: str, enter: Callable[..., None]) -> None:
    papers = {}
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for number, scheme in enumerate(schemes):
        context = browser.new_context(color_scheme=scheme)
        enter(context, f"reader{number}", operator=False)
        page = context.new_page()
        page.goto(f"{site}/")
        papers[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        context.close()
    assert papers["light"] != papers["dark"]


def test_the_keyboard_reaches_the_button_and_shows_where_it_is(operator_page: Page, site: str) -> None:
    job = data.failed_undo()
    operator_page.goto(f"{site}/jobs/{job.pk}")
    button = operator_page.locator(".head").get_by_role("button", name="Retry")
    for _ in range(12):
        operator_page.keyboard.press("Tab")
        if button.evaluate("it => it === document.activeElement"):
            break
    expect(button).to_be_focused()
    assert button.evaluate("it => getComputedStyle(it).outlineStyle") == "solid"


def test_every_state_has_a_shape_of_its_own(operator_page: Page, site: str) -> None:
    """No state is told by its colour alone."""
    for job in (data.completed(), data.compensated(), data.failed_undo(), data.failing()):
        operator_page.goto(f"{site}/jobs/{job.pk}")
        badge = operator_page.locator(".status .badge").first
        assert badge.inner_text().strip() in ("Completed", "Compensated", "Failed", "Running")
    operator_page.goto(f"{site}/jobs/")
    shapes = operator_page.locator(".chips .shape").evaluate_all("all => all.map(it => it.innerHTML)")
    assert len(set(shapes)) == len(shapes) == 7
