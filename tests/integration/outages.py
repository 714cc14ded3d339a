"""A service that is away, for the faces that tell of it."""

from datetime import timedelta

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
