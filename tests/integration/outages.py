"""A service that is away, for the faces that tell of it; and a job that cannot be changed."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection

from agents import Transient
from supervisor import storms
from tests.integration.engine import Engine
from workflows import Retry, Workflow, step
from workflows.models import Breaker, Job

AWAY = Transient("The depot does not answer.", code="unavailable")


class Delivery(Workflow):
    """One call to a shop."""

    a = step("shop.a", retry=Retry(attempts=2, first=timedelta(seconds=1)))


def outage_of_shop(engine: Engine, jobs: int = 6) -> list[Job]:
    """So many jobs meet a shop that is away: its breaker opens, and all their steps are parked."""
    engine.says("shop.a", AWAY)
    started = [Delivery.start() for _ in range(jobs)]
    engine.drain()
    tend(engine)
    assert Breaker.objects.get(agent="shop").phase == "open"
    return started


def tend(engine: Engine) -> None:
    """What the supervisor does every second, and what the workers make of it."""
    storms.tend()
    engine.pass_time(0.0)


@contextmanager
def poisoned(job_id: uuid.UUID) -> Iterator[None]:
    """The database takes no more of this job's history."""
    with connection.cursor() as cursor:
        check = f"CHECK (job_id <> '{job_id}') NOT VALID"
        cursor.execute(f"ALTER TABLE sag_workflows_event ADD CONSTRAINT this_job_is_poison {check}")
        try:
            yield
        finally:
            cursor.execute("ALTER TABLE sag_workflows_event DROP CONSTRAINT this_job_is_poison")
