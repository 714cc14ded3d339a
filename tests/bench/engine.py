"""Our side: trips on the engine as it is shipped, with events, attempts, leases and fences."""

import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection
from django.db.models import Count

from sagsite.runner import roles
from tests.bench.processes import PATIENCE, child, wait_until
from tests.bench.workflows import TripOfNoops
from workflows import statements
from workflows.models import Agent, Attempt, Event, Job, Step

name = "engine"

# The chain's driver hears of the end by a push, and does not ask meanwhile; each look would take time from the trip that it
# asks after. So ours hears of it too: the database tells it, at the engine's expense, as part of the commit.
_TELL = """
CREATE FUNCTION bench_tell() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('bench_ended', NEW.id::text); RETURN NULL; END $$;
CREATE TRIGGER bench_tell AFTER UPDATE OF state ON sag_workflows_job FOR EACH ROW
    WHEN (NEW.state = 'Completed') EXECUTE FUNCTION bench_tell();
"""
_TELL_NO_MORE = "DROP TRIGGER bench_tell ON sag_workflows_job; DROP FUNCTION bench_tell()"

_HISTORY = Counter({"job.opened": 1, "step.claimed": 3, "step.completed": 3, "job.completed": 1})


@contextmanager
def worker(logs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agents' worker, as `manage.py up --agents` starts it."""
    environment = roles.environment(SAG_ROLE="agents", DJANGO_SETTINGS_MODULE="tests.bench.settings")
    with child(roles.agents("agents-bench", 2), logs / "agents.log", environment=environment) as process:
        announced = Agent.objects.filter(name="noop").exists
        wait_until(announced, "The agents' worker does not announce its agents", process=process)
        yield process


@contextmanager
def supervisor(logs: Path) -> Iterator[None]:
    """The supervisor's worker, and beat that drives it: it goes on where there is more to do than fits one transaction."""
    environment = roles.environment(SAG_ROLE="supervisor", DJANGO_SETTINGS_MODULE="tests.bench.settings")
    log = logs / "supervisor.log"
    with (
        child(roles.supervisor("supervisor-bench"), log, environment=environment) as process,
        child(roles.beat(), logs / "beat.log", environment=environment),
    ):
        wait_until(lambda: b" ready." in log.read_bytes(), "The supervisor's worker does not listen", process=process)
        yield


def all_at_once(trips: int) -> float:
    """Start the trips one after the other, wait for the last to complete; the seconds that took."""
    began = time.perf_counter()
    jobs = [TripOfNoops.start({"n": n}).pk for n in range(trips)]
    wait_until(lambda: not _some_live(), "Some trips do not end", every=0.01)
    took = time.perf_counter() - began
    _check(jobs)
    return took


def one_at_a_time(trips: int) -> list[float]:
    """The seconds that each trip takes from its start until its driver hears that it is completed."""
    took, jobs = [], []
    with _listening() as ended:
        for n in range(trips):
            began = time.perf_counter()
            job = TripOfNoops.start({"n": n}).pk
            ended(job)
            took.append(time.perf_counter() - began)
            jobs.append(job)
    _check(jobs)
    return took


@contextmanager
def _listening() -> Iterator[Callable[[uuid.UUID], None]]:
    """A function that waits for the end of a job, on a session of its own."""
    with connection.cursor() as cursor:
        cursor.execute(_TELL)
    session = connection.get_new_connection(connection.get_connection_params())
    session.autocommit = True
    session.execute("LISTEN bench_ended")

    def ended(job: uuid.UUID) -> None:
        heard = [told.payload for told in session.notifies(timeout=PATIENCE, stop_after=1)]
        if heard != [str(job)]:
            raise SystemExit(f"A trip does not end, or another one did: {heard}")

    try:
        yield ended
    finally:
        session.close()
        with connection.cursor() as cursor:
            cursor.execute(_TELL_NO_MORE)


def _some_live() -> bool:
    return bool(
        statements.fetch("SELECT FROM sag_workflows_job WHERE state IN ('Running', 'Compensating') LIMIT 1", {})
    )


def is_completed(job: uuid.UUID) -> bool:
    [row] = statements.fetch("SELECT state FROM sag_workflows_job WHERE id = %(job)s", {"job": job})
    return bool(row.state == "Completed")


def _check(jobs: list[uuid.UUID]) -> None:
    """A figure counts only when each trip is complete, with one attempt a step and its whole history."""
    trips = len(jobs)
    found = {
        "jobs": Counter(Job.objects.filter(pk__in=jobs).values_list("state", flat=True)),
        "steps": Counter(Step.objects.filter(job__in=jobs).values_list("state", "attempt")),
        "attempts": Counter(Attempt.objects.filter(step__job__in=jobs).values_list("outcome", "number")),
        "events": Counter(
            dict(Event.objects.filter(job__in=jobs).values_list("kind").annotate(Count("pk")).order_by())
        ),
    }
    expected = {
        "jobs": Counter({"Completed": trips}),
        "steps": Counter({("Completed", 1): 3 * trips}),
        "attempts": Counter({("completed", 1): 3 * trips}),
        "events": Counter({kind: times * trips for kind, times in _HISTORY.items()}),
    }
    if found != expected:
        raise SystemExit(f"The engine left something else behind than {trips} complete trips: {found}")
