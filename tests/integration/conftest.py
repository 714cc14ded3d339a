"""Fixtures of the engine's tests: on a real database, whose sessions see each other."""

from collections.abc import Iterator

import pytest
from django.db import connection

from agents import worker
from supervisor.models import Sweep
from tests.integration import engine as playing
from tests.integration.engine import Engine
from workflows import broker
from workflows.models import Agent, Attempt, ClockOffset, Event, Job, Step

_EMPTIED = (Sweep, Event, Attempt, Step, Job, Agent, ClockOffset)


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker) -> Iterator[None]:
    """In place of pytest-django's: whose flush would stop at the table of knox, which our own token model replaces.

    The engine's tables are emptied before and after; what a test commits is committed.
    """
    with django_db_blocker.unblock():
        _empty()
        yield
        _empty()
        connection.close()


def _empty() -> None:
    with connection.cursor() as cursor:
        for model in _EMPTIED:
            cursor.execute(f'DELETE FROM "{model._meta.db_table}"')


@pytest.fixture
def engine(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine with its agents announced, its doorbells in the test's hand, and services that answer well."""
    engine = Engine()
    monkeypatch.setattr(broker, "_send", engine.send)
    monkeypatch.setattr(broker, "depth", lambda queue: 0)
    monkeypatch.setattr(worker, "_may_look_round", lambda queue: False)
    playing.calls.clear()
    playing.answers.clear()
    playing.announce_all()
    return engine
