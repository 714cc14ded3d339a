"""A real browser on a real server, with the test's database behind it."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axes.models import AccessAttempt, AccessLog
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from playwright.sync_api import BrowserContext, Page

from supervisor.models import Incident, Need, Sweep, Term
from tests import console_data as data
from workflows.models import Attempt, Breaker, CallCount, Event, Job, Step

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]

os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # playwright keeps an event loop in the thread of the tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        here = os.path.dirname(__file__)
        for item in items:
            if str(item.path).startswith(here):
                item.add_marker(pytest.mark.skip(reason="no Chromium is installed (apt-get install chromium)"))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": FLAGS}


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """In place of pytest-django's, whose flush would stop at the table of knox that our own token model replaces."""
    with django_db_blocker.unblock():
        _empty()
        yield
        _empty()
        connection.close()


def _empty() -> None:
    for model in (
        Sweep,
        Incident,
        Need,
        Term,
        Breaker,
        CallCount,
        Event,
        Attempt,
        Step,
        Job,
        Session,
        AccessAttempt,
        AccessLog,
    ):
        model._base_manager.all().delete()
    User.objects.all().delete()
    Group.objects.all().delete()


@pytest.fixture
def site(live_server: Any, transactional_db: None) -> str:
    return str(live_server.url)


@pytest.fixture
def enter(site: str) -> Callable[..., None]:
    """Sign a browser in, past the form."""

    def sign_in(context: BrowserContext, name: str = "ada", *, operator: bool = True) -> None:
        client = Client()
        client.force_login(data.person(name, operator=operator), backend="django.contrib.auth.backends.ModelBackend")
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site}])

    return sign_in


@pytest.fixture
def operator_page(page: Page, enter: Callable[..., None]) -> Page:
    """The browser of operator ada. A script's error, or anything that the security policy stops, fails the test."""
    page.set_default_timeout(15_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if "Content Security Policy" in said.text else None)
    page.complaints = complaints  # type: ignore[attr-defined]
    enter(page.context)
    return page
