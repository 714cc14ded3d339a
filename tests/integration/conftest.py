"""Fixtures of the engine's tests: on a real database, whose sessions see each other."""

from collections import Counter
from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from agents import worker
from agents.heartbeat import heart
from supervisor.models import Incident, Need, Sweep, Telling, Term
from tests.integration import engine as playing
from tests.integration.engine import Engine
from workflows import broker
from workflows.models import (
    Agent,
    Attempt,
    Breaker,
    CallCount,
    ClockOffset,
    Event,
    IdempotencyRecord,
    Job,
    Schedule,
    Step,
    Worker,
)

_EMPTIED = (
    Sweep,
    Incident,
    Need,
    Term,
    Telling,
    Breaker,
    CallCount,
    Event,
    Attempt,
    Step,
    Job,
    Agent,
    ClockOffset,
    Schedule,
    Worker,
    IdempotencyRecord,
)


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """In place of pytest-django's: whose flush would stop at the table of knox, which our own token model replaces.

    What a test commits is committed, and the engine's tables are emptied behind it.
    """
    with django_db_blocker.unblock():
        yield
        _empty()
        connection.close()


def _empty() -> None:
    """To truncate a table costs new files even if it was empty, so only those with rows, and of the history its partitions."""
    tables = [model._meta.db_table for model in _EMPTIED if model is not Event]
    with_rows = [f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for table in tables]
    partitions = f"SELECT DISTINCT tableoid::regclass::text FROM {Event._meta.db_table}"
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([*with_rows, partitions]))
        if full := [table for (table,) in cursor.fetchall()]:
            cursor.execute(f"TRUNCATE {', '.join(full)} CASCADE")


@pytest.fixture
def engine(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine with its agents announced, its doorbells in the test's hand, and services that answer well."""
    engine = Engine()
    monkeypatch.setattr(broker, "_send", engine.send)
    monkeypatch.setattr(broker, "depth", lambda queue: 0)
    monkeypatch.setattr(worker, "_look_round", lambda queue: None)
    monkeypatch.setattr(heart, "_answered", Counter())  # of the test before
    playing.calls.clear()
    playing.answers.clear()
    playing.announce_all()
    return engine
