"""What Celery asks of the supervisor while the database goes away: said in a line, and done the next time."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from supervisor import tasks
from supervisor.models import Sweep
from tests.integration.engine import Engine


def cut_own_connection() -> None:
    """As a restart of the server does, while nobody uses the connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    other.close()


@pytest.mark.parametrize(
    "task",
    [tasks.sweep, tasks.ring_due, tasks.open_due, tasks.prune, tasks.note_needs, tasks.tell_people],
    ids=lambda task: task.name.rpartition(".")[2],
)
def test_a_duty_that_finds_its_connection_cut_says_so_in_a_line(
    engine: Engine, caplog: pytest.LogCaptureFixture, task: Callable[[], Any]
) -> None:
    cut_own_connection()
    with caplog.at_level(logging.WARNING, logger="supervisor.tasks"):
        task()
    [said] = [record for record in caplog.records if record.name == "supervisor.tasks"]
    assert said.levelno == logging.WARNING
    assert said.exc_info is None
    assert said.getMessage().startswith("this time the database did not answer: ")


def test_the_next_sweep_is_a_whole_one(engine: Engine) -> None:
    cut_own_connection()
    tasks.sweep()
    assert not Sweep.objects.exists()
    tasks.sweep()
    assert Sweep.objects.get().finished_at is not None
