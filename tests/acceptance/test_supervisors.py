"""The supervisor itself in trouble: its database restarts in the middle of a sweep over many stuck rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import Trips
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

MANY = 300

_STUCK = """
WITH job AS (
    INSERT INTO sag_workflows_job (id, workflow, version, plan, input, seq, open_steps)
    SELECT gen_random_uuid(), 'StuckTrip', 1, plan, input, 0, 1
    FROM sag_workflows_job, generate_series(1, %s) WHERE id = %s RETURNING id
), step AS (
    INSERT INTO sag_workflows_step (job_id, seq, name, operation, agent, queue, idempotency_key, releases, timeout,
        attempts_allowed, state, attempt, token, worker, complete_by, deadline, started_at)
    SELECT id, 0, 'flight', 'flight.reserve', 'flight', 'agents', id || ':flight', ARRAY[]::int[], interval '30 s', 5,
           'Running', 1, gen_random_uuid(), 'dead', sag_now() - interval '1 s', sag_now() + interval '20 s', sag_now()
    FROM job RETURNING id, token
)
INSERT INTO sag_workflows_attempt (step_id, number, token, worker, started_at)
SELECT id, 1, token, 'dead', sag_now() FROM step"""

_FORGET = """
CREATE TEMPORARY TABLE stuck AS SELECT id FROM sag_workflows_job WHERE workflow = 'StuckTrip';
DELETE FROM sag_workflows_attempt WHERE step_id IN
    (SELECT step.id FROM sag_workflows_step step JOIN stuck ON stuck.id = step.job_id);
DELETE FROM sag_workflows_event WHERE job_id IN (SELECT id FROM stuck);
DELETE FROM sag_workflows_step WHERE job_id IN (SELECT id FROM stuck);
DELETE FROM sag_workflows_job WHERE id IN (SELECT id FROM stuck);
DROP TABLE stuck"""


@contextmanager
def stuck_trips(system: RunningSystem) -> Iterator[None]:
    """So many trips whose worker died in the middle of their flight, and no worker that would take them up again."""
    with Trips(system) as trips:
        known = trips.book()
        trips.end(known)
    system.freeze("agents")
    system.sql(_STUCK, MANY, known)
    try:
        yield
    finally:
        system.sql(_FORGET)
        system.thaw("agents")


def taken_over(system: RunningSystem) -> list[dict[str, Any]]:
    """[attempt, charged, how often it was expired] of those that were taken from their dead worker."""
    return system.sql(
        """SELECT step.attempt, step.charged, count(*) AS expired FROM sag_workflows_event event
           JOIN sag_workflows_step step ON step.job_id = event.job_id JOIN sag_workflows_job job ON job.id = event.job_id
           WHERE event.kind = 'step.expired' AND job.workflow = 'StuckTrip' GROUP BY step.id"""
    )


def test_a_database_restarted_in_the_middle_of_a_sweep_leaves_no_row_behind_and_doubles_none(
    system: RunningSystem,
) -> None:
    """SAS-018, SAS-034: the loops go on by themselves."""
    assert system.servers
    assert system.servers.postgres
    with stuck_trips(system):
        wait_until(lambda: taken_over(system), 40, what="a sweep has begun", every=0.01)
        system.servers.postgres.kill()
        system.servers.postgres.start()
        begun = len(taken_over(system))
        assert 0 < begun < MANY, "it was to happen in the middle"
        wait_until(lambda: len(taken_over(system)) == MANY, 90, what="all are taken over", every=0.2)
        assert {tuple(row.values()) for row in taken_over(system)} == {(1, 1, 1)}
        wait_until(lambda: httpx2.get(f"{system.base_url}/health/ready").status_code == 200, 30, what="it is ready")
        figures = httpx2.get(f"{system.base_url}/metrics").raise_for_status().text
        assert 'sag_duty_age_seconds{duty="ticks"}' in figures
