"""Thousands of stuck rows, a supervisor frozen in the middle of them: all are seen to, each once, and nobody else waits."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from supervisor import sweep as supervision
from supervisor import tasks
from supervisor.models import Sweep, Term
from tests.integration.engine import Engine, check_books, named
from tests.waiting import wait_until
from workflows import Retry, Workflow, step, transitions
from workflows.clock import now
from workflows.models import Event, Job, Step
from workflows.transitions import Claimed

ROOT = Path(__file__).resolve().parents[2]


class Stuck(Workflow):
    a = step("shop.a", retry=Retry(attempts=3))


class Beating(Workflow):
    a = step("shop.a", timeout=timedelta(hours=1))


_STUCK = """
WITH job AS (
    INSERT INTO sag_workflows_job (id, workflow, version, plan, input, seq, open_steps)
    SELECT gen_random_uuid(), 'Stuck', 1, %(plan)s, '{}', 0, 1 FROM generate_series(1, %(number)s) RETURNING id
), step AS (
    INSERT INTO sag_workflows_step (job_id, seq, name, operation, agent, queue, idempotency_key, releases, timeout,
        attempts_allowed, state, attempt, token, worker, complete_by, deadline, started_at)
    SELECT id, 0, 'a', 'shop.a', 'shop', 'agents', id || ':a', ARRAY[]::int[], interval '30 s', 3, 'Running', 1,
           gen_random_uuid(), 'dead', sag_now() - interval '1 s', sag_now() + interval '20 s', sag_now()
    FROM job RETURNING id, token
)
INSERT INTO sag_workflows_attempt (step_id, number, token, worker, started_at)
SELECT id, 1, token, 'dead', sag_now() FROM step"""


def stuck(number: int) -> None:
    """So many jobs whose worker died in the middle of their only step."""
    with connection.cursor() as cursor:
        cursor.execute(_STUCK, {"plan": json.dumps(Stuck.plan.to_json()), "number": number})


def taken_over() -> int:
    return Event.objects.filter(kind="step.expired").count()


def swept_just_now() -> None:
    Sweep.objects.create(started_at=now(), finished_at=now())


@contextmanager
def beating(held: Claimed) -> Iterator[list[float]]:
    """A worker that renews its lease as fast as it can; how long each beat took."""
    took: list[float] = []
    over = threading.Event()

    def beat() -> None:
        try:
            while not over.wait(0.02):
                began = time.monotonic()
                assert transitions.heartbeat({held.token: (held.step_id, None)}).held == {held.token}
                took.append(time.monotonic() - began)
        finally:
            connection.close()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [200, pytest.param(5_000, marks=pytest.mark.slow)])
def test_however_many_are_stuck_all_are_remedied_and_no_heartbeat_waits_for_it(engine: Engine, number: int) -> None:
    beats = engine.claim(named(Beating.start(), "a"))
    stuck(number)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows: list[Sweep] = []
    with beating(beats) as took:
        while taken_over() < number:
            swept_just_now()
            began = time.monotonic()
            rows.append(supervision.sweep(engine.memory))
            assert time.monotonic() - began < 20  # its time is ten seconds, and the row that it is at
            assert rows[-1].expired > 0
            assert len(rows[-1].decisions) <= 60
    assert sum(row.expired for row in rows) == sum(row.counts["retry"] for row in rows) == number
    assert Step.objects.filter(state="NotStarted", remedy="", charged=1).count() == number
    assert len(took) > 10
    assert max(took) < 3  # a lease is ten seconds, and a beat is due every three
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 60, f"it grew by {grown:.0f} MB"


_ANOTHER = """
import django
from django.conf import settings
django.setup()
settings.SAG = {"sweep": 20}
from supervisor import tasks
from supervisor.models import Sweep
from workflows.clock import now
Sweep.objects.create(started_at=now(), finished_at=now())
tasks.sweep()
"""


@contextmanager
def another_supervisor() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does one sweep on the test's database, as a supervisor's worker does."""
    database = connection.settings_dict
    url = f"postgresql://{database['USER']}@/{database['NAME']}?host={database['HOST'] or database['OPTIONS']['host']}"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "TEST_DATABASE_URL": url}
    process = subprocess.Popen([sys.executable, "-c", _ANOTHER], cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.wait(timeout=60)


def test_a_supervisor_frozen_in_the_middle_of_a_sweep_is_replaced_and_thaws_without_harm(
    engine: Engine, settings: Any
) -> None:
    """SAS-028, SAS-033: the real thing, with SIGSTOP."""
    settings.SAG = {"sweep": 20}  # so that a term, which is a lease then, outlasts a look of a slow machine
    number = 150
    stuck(number)
    with another_supervisor() as other:
        wait_until(lambda: taken_over() >= 3, 60, what="it has begun", every=0.002)
        other.send_signal(signal.SIGSTOP)
        begun = taken_over()
        assert begun < number, "it was to be frozen in the middle"
        frozen = Term.objects.get(duty="sweep")
        assert f":{other.pid}:" in frozen.holder
        tasks.sweep()
        assert taken_over() == begun  # it still has its turn
        engine.ahead(11)
        swept_just_now()
        tasks.sweep()
        # One row may be locked by the frozen one, which then is the only one that waits for it.
        assert taken_over() >= number - 1
        assert Term.objects.get(duty="sweep").term == frozen.term + 1
        other.send_signal(signal.SIGCONT)
        assert other.wait(timeout=60) == 0
    engine.ahead(20)
    swept_just_now()
    tasks.sweep()
    assert taken_over() == number
    assert Step.objects.filter(state="NotStarted", attempt=1, charged=1).count() == number
    assert not Event.objects.filter(kind="step.expired", seq__gt=1).exists()
    for job in Job.objects.all()[:20]:
        check_books(job)
