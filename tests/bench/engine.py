"""Our side: trips on the engine as it is shipped, with events, attempts, leases and fences."""

import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from django.db.models import Count

from sagsite.runner import roles
from tests.bench.processes import child, wait_until
from tests.bench.workflows import TripOfNoops
from workflows import statements
from workflows.models import Agent, Attempt, Event, Job, Step

name = "engine"

# Each look takes time from the trip that it asks after, so there is none until a trip could possibly have ended: this share
# of the quickest so far. A trip that was quicker still counts as having taken until the first look.
_QUIET = 0.9

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
    """The seconds that each trip takes from its start until it is seen to be completed."""
    took, jobs = [], []
    quiet = 0.0
    for n in range(trips):
        began = time.perf_counter()
        job = TripOfNoops.start({"n": n}).pk
        time.sleep(max(0.0, began + quiet - time.perf_counter()))
        too_quiet = is_completed(job)
        if not too_quiet:
            wait_until(partial(is_completed, job), "A trip does not end", every=0.0001)
        took.append(time.perf_counter() - began)
        jobs.append(job)
        quiet = quiet / 2 if too_quiet else _QUIET * min(took)
    _check(jobs)
    return took


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
