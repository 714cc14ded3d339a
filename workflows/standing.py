"""How each agent stands: what its workers announced, its breaker, what waits for it, and how its last calls went."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import QuerySet, Sum

from workflows.clock import now
from workflows.conf import conf
from workflows.models import Agent, Breaker, CallCount, Step, Worker
from workflows.plans import registry
from workflows.states import StepState

# A worker that has nothing to do is asked whether it is there, and answers, every ten seconds.
SEEN_WITHIN = timedelta(seconds=60)


COUNTED = 10_000
"""As far as rows are counted here: to count them all may take longer than anybody who asks is ready to wait."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`oldest`: since when the first of its ready and parked steps waits. `calls`: how many ended with which word lately.

    `ready` are those among the oldest `COUNTED` of its queue; `running` and `parked` are counted as far.
    """

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
    breakers = Breaker.objects.in_bulk(names)
    # Without a breaker that is open there is nothing parked, but for what is let go within the second.
    away = [name for name, breaker in breakers.items() if breaker.parks]
    ready = _ready({agent.queue for agent in found}, away)
    parked = {name: _parked(name) for name in away}
    running = _running()
    calls = _recent_calls(names)
    none = (0, None)
    return [
        Standing(
            agent=agent,
            breaker=breakers.get(agent.name),
            ready=ready.get(agent.name, none)[0],
            running=running[agent.name],
            parked=parked.get(agent.name, none)[0],
            oldest=min((since for table in (ready, parked) if (since := table.get(agent.name, none)[1])), default=None),
            calls=calls.get(agent.name, {}),
        )
        for agent in found
    ]


def counted(rows: QuerySet[Any]) -> int:
    """How many there are, as far as `COUNTED`."""
    return rows.values("pk")[:COUNTED].count()


def _ready(queues: Iterable[str], away: list[str]) -> dict[str, tuple[int, datetime | None]]:
    """{agent: (how many, since when the oldest waits)}. What an open breaker keeps back is about to be parked."""
    found: dict[str, tuple[int, datetime | None]] = {}
    for queue in queues:
        line = Step.objects.in_line(queue).exclude(agent__in=away, admitted=False).values("agent", "run_after")
        for agent, number, oldest in _by_agent(line[:COUNTED], "count(*), min(run_after)"):
            before, since = found.get(agent, (0, oldest))
            found[agent] = (before + number, min(since or oldest, oldest))
    return found


def _by_agent(rows: QuerySet[Any, Any], asked: str) -> list[tuple[Any, ...]]:
    """[agent, what is asked of its rows], of a queryset that is cut off: the ORM groups before it cuts."""
    sql, values = rows.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT agent, {asked} FROM ({sql}) AS row GROUP BY agent", values)  # noqa: S608  (our own words)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def _parked(agent: str) -> tuple[int, datetime | None]:
    parked = Step.objects.parked(agent)
    return counted(parked), parked.values_list("run_after", flat=True).first()


def _running() -> Counter[str]:
    """{agent: how many}, of those whose lease is the first to end. (step_running)"""
    held = Step.objects.filter(state=StepState.RUNNING, complete_by__isnull=False).order_by("complete_by")
    return Counter(dict(_by_agent(held.values("agent")[:COUNTED], "count(*)")))


def oldest_ready() -> dict[str, datetime]:
    """{queue: since when its oldest ready step waits}, of the queues that have one."""
    found = {}
    for queue in Step.objects.queues():
        ready = Step.objects.ready().filter(queue=queue).order_by("run_after", "id")
        if since := ready.values_list("run_after", flat=True).first():
            found[queue] = since
    return found


def _recent_calls(names: list[str]) -> dict[str, dict[str, int]]:
    since = now() - timedelta(seconds=conf.breaker_window)
    rows = CallCount.objects.filter(agent__in=names, slice_at__gte=since).values("agent", "word")
    found: dict[str, dict[str, int]] = {}
    for row in rows.annotate(number=Sum("count")).order_by("-number", "word"):
        found.setdefault(row["agent"], {})[row["word"]] = row["number"]
    return found


def served_queues() -> set[str]:
    """The queues of which a worker was heard lately."""
    return set(workers_alive())


def workers_alive() -> dict[str, int]:
    """{queue: how many workers of it were heard of lately}"""
    alive = Worker.objects.filter(stopped_at__isnull=True, seen_at__gt=now() - SEEN_WITHIN)
    return Counter(queue for worker in alive for queue in worker.queues)


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
