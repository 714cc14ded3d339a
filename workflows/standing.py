"""How each agent stands: what its workers announced, its breaker, what waits for it, and how its last calls went."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Min, Sum

from workflows.clock import now
from workflows.conf import conf
from workflows.models import Agent, Breaker, CallCount, Step, Worker
from workflows.plans import registry
from workflows.querysets import StepQuerySet
from workflows.states import StepKind, StepState

# A worker that has nothing to do is asked whether it is there, and answers, every ten seconds.
SEEN_WITHIN = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`oldest`: since when the first of its ready and parked steps waits. `calls`: how many ended with which word lately."""

    agent: Agent
    breaker: Breaker | None
    ready: int
    running: int
    parked: int
    oldest: datetime | None
    calls: dict[str, int]


def of_agents() -> list[Standing]:
    """All agents by name."""
    return _of(Agent.objects.order_by("name"))


def of_agent(name: str) -> Standing | None:
    """One agent, or None when no worker ever announced it."""
    return next(iter(_of(Agent.objects.filter(pk=name))), None)


def _of(agents: Iterable[Agent]) -> list[Standing]:
    found = list(agents)
    names = [agent.name for agent in found]
    steps = Step.objects.filter(agent__in=names).order_by()
    ready = _waiting(steps.ready())
    parked = _waiting(steps.filter(state=StepState.NOT_STARTED, parked=True))
    at_work = steps.filter(state=StepState.RUNNING, kind=StepKind.CALL).values("agent").annotate(number=Count("pk"))
    running = dict(at_work.values_list("agent", "number"))
    breakers = Breaker.objects.in_bulk(names)
    calls = _recent_calls(names)
    none = (0, None)
    return [
        Standing(
            agent=agent,
            breaker=breakers.get(agent.name),
            ready=ready.get(agent.name, none)[0],
            running=running.get(agent.name, 0),
            parked=parked.get(agent.name, none)[0],
            oldest=min((since for table in (ready, parked) if (since := table.get(agent.name, none)[1])), default=None),
            calls=calls.get(agent.name, {}),
        )
        for agent in found
    ]


def _waiting(steps: StepQuerySet) -> dict[str, tuple[int, datetime | None]]:
    """{agent: (how many, since when the oldest waits)}"""
    rows = steps.values("agent").annotate(number=Count("pk"), oldest=Min("run_after"))
    return {row["agent"]: (row["number"], row["oldest"]) for row in rows}


def _recent_calls(names: list[str]) -> dict[str, dict[str, int]]:
    since = now() - timedelta(seconds=conf.breaker_window)
    rows = CallCount.objects.filter(agent__in=names, slice_at__gte=since).values("agent", "word")
    found: dict[str, dict[str, int]] = {}
    for row in rows.annotate(number=Sum("count")).order_by("-number", "word"):
        found.setdefault(row["agent"], {})[row["word"]] = row["number"]
    return found


def served_queues() -> set[str]:
    """The queues of which a worker was heard lately."""
    alive = Worker.objects.filter(stopped_at__isnull=True, seen_at__gt=now() - SEEN_WITHIN)
    return {queue for worker in alive for queue in worker.queues}


def operations_without_worker() -> dict[str, list[str]]:
    """{workflow: those operations of its plan that no worker ever announced}"""
    announced = {operation for agent in Agent.objects.all() for operation in agent.operations}
    found = {}
    for workflow in registry.all():
        named = {
            name for step in workflow.plan.steps for name in (step.operation, step.compensation, step.probe) if name
        }
        if missing := sorted(named - announced):
            found[workflow.name] = missing
    return found
