"""Many processes that open due times, some of them frozen, killed or without their database: one job for each due time."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.acceptance.clockwork import Clockwork
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def running() -> Iterator[Clockwork]:
    clockwork = Clockwork()
    try:
        clockwork.start(machines=2)
        yield clockwork
    finally:
        clockwork.stop()


@pytest.fixture
def clockwork(running: Clockwork) -> Iterator[Clockwork]:
    yield running
    running.remove_schedules()


def each_due_time_has_one_row_and_one_job(clockwork: Clockwork, schedules: list[str]) -> None:
    for schedule in schedules:
        made_at, next_due = clockwork.bounds(schedule)
        due_times = clockwork.due_times(schedule)
        first = made_at.replace(second=0, microsecond=0) + MINUTE
        assert due_times == [first + n * MINUTE for n in range((next_due - first) // MINUTE)]
        [found] = clockwork.system.sql(
            """SELECT count(*) AS ticks, count(DISTINCT tick.job_id) AS jobs, bool_and(tick.outcome = 'started') AS started,
                      (SELECT count(*) FROM sag_workflows_job WHERE key LIKE 'schedule:' || %s || ':%%') AS all_jobs
               FROM sag_workflows_tick tick WHERE tick.schedule_id = %s::uuid""",
            *(schedule, schedule),
        )
        assert found == {"ticks": len(due_times), "jobs": len(due_times), "all_jobs": len(due_times), "started": True}


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_two_supervisors_and_two_beats_in_turn_frozen_open_each_due_time_once(
    clockwork: Clockwork, seconds: int
) -> None:
    """SAS-028, SAS-029: both supervisors even have one name."""
    schedules = clockwork.make_schedules(20)
    clockwork.pass_time(2)
    for machine in (0, 1):
        clockwork.freeze(machine)
        before = clockwork.decided()
        clockwork.pass_time(seconds)
        wait_until(lambda: clockwork.decided() > before, 30, what="the other one goes on")  # noqa: B023
        clockwork.thaw(machine)
    clockwork.pass_time(1)
    clockwork.wait_until_up_to_date()
    each_due_time_has_one_row_and_one_job(clockwork, schedules)


def test_a_database_that_was_restarted_is_asked_again_by_the_same_processes(clockwork: Clockwork) -> None:
    """SAS-034; that nobody is told all is well meanwhile, the tests of health show."""
    schedules = clockwork.make_schedules(5)
    clockwork.pass_time(1)
    servers = clockwork.system.servers
    assert servers
    assert servers.postgres
    servers.postgres.restart()
    before = clockwork.decided()
    clockwork.pass_time(1)
    wait_until(lambda: clockwork.decided() > before, 60, what="due times are opened again")
    clockwork.wait_until_up_to_date()
    each_due_time_has_one_row_and_one_job(clockwork, schedules)
    assert [name for name, process in clockwork.processes.items() if process.poll() is not None] == []


def test_one_killed_just_before_its_due_times_leaves_them_to_the_other(clockwork: Clockwork) -> None:
    """SAS-033. The last one here, since nobody starts it again."""
    schedules = clockwork.make_schedules(5)
    clockwork.pass_time(1)
    clockwork.kill(0)
    before = clockwork.decided()
    clockwork.pass_time(1)
    wait_until(lambda: clockwork.decided() > before, 30, what="the other one goes on")
    clockwork.wait_until_up_to_date()
    each_due_time_has_one_row_and_one_job(clockwork, schedules)
