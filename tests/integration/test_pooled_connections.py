"""The site's pool of connections, after the database has cut them all."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from sagsite.pooled.base import DatabaseWrapper

pytestmark = pytest.mark.django_db

SIZE = 8
NAME = "sag pooled test"


@pytest.fixture
def settings_of_pool() -> Iterator[dict[str, Any]]:
    options = {
        **connection.settings_dict["OPTIONS"],
        "application_name": NAME,
        "pool": {"min_size": 1, "max_size": SIZE, "timeout": 5, "reconnect_timeout": 2},
    }
    settings = {**connection.settings_dict, "OPTIONS": options, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}
    yield settings
    DatabaseWrapper(settings, alias="pooled").close_pool()


def ask(settings: dict[str, Any], together: Barrier) -> int:
    """A request's way to its connection and back: all hold one at the same time."""
    wrapper = DatabaseWrapper(settings, alias="pooled")
    try:
        with wrapper.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            together.wait(10)
            return int(cursor.fetchone()[0])
    finally:
        wrapper.close()


def ask_at_once(settings: dict[str, Any], number: int = SIZE) -> set[int]:
    together = Barrier(number)
    with ThreadPoolExecutor(number) as threads:
        return {*threads.map(lambda _: ask(settings, together), range(number))}


def cut_all() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = %s", [NAME]
        )
        return int(cursor.fetchone()[0])


def test_after_a_restart_each_request_has_its_connection_at_once(settings_of_pool: dict[str, Any]) -> None:
    """A pool full of broken connections refuses nobody, however many are asked for together."""
    before = ask_at_once(settings_of_pool)
    assert len(before) == SIZE
    assert cut_all() == SIZE
    assert not ask_at_once(settings_of_pool) & before


def test_one_request_alone_does_not_try_the_broken_ones_in_turn(settings_of_pool: dict[str, Any]) -> None:
    ask_at_once(settings_of_pool)
    cut_all()
    wrapper = DatabaseWrapper(settings_of_pool, alias="pooled")
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    wrapper.close()
