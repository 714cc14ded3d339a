"""What the API answers about agents."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field

from workflows.api.documents import Document, Page
from workflows.models import Agent, Breaker
from workflows.standing import Standing


class TraitsDocument(Document):
    """What its service promises. `lands_within`: seconds after its time-out in which a call may still take effect."""

    honours_keys: bool
    closes_keys: bool
    lands_within: float


class RateDocument(Document):
    """So many calls may begin in so many seconds."""

    count: int
    period: float


class LimitsDocument(Document):
    """Over all workers; null for none."""

    at_once: int | None
    rate: RateDocument | None

    @classmethod
    def of(cls, agent: Agent) -> Self:
        rate = None
        if agent.rate_count is not None and agent.rate_period is not None:
            rate = RateDocument(count=agent.rate_count, period=agent.rate_period.total_seconds())
        return cls(at_once=agent.at_once, rate=rate)


class BreakerDocument(Document):
    """Open: the service is taken to be away, and steps for it are parked. Once closed it still tells of the last outage."""

    phase: Breaker.Phase
    cause: str | None
    message: str | None
    evidence: dict[str, Any] | None = Field(description="What was counted when it opened.")
    opened_at: datetime | None
    trial_at: datetime | None = Field(description="When the service is tried next.")
    trials: int

    @classmethod
    def of(cls, breaker: Breaker | None) -> Self:
        breaker = breaker or Breaker(phase=Breaker.Phase.CLOSED, cause="", message="", trials=0)
        return cls(
            phase=Breaker.Phase(breaker.phase),
            cause=breaker.cause or None,
            message=breaker.message or None,
            evidence=breaker.evidence,
            opened_at=breaker.opened_at,
            trial_at=breaker.trial_at,
            trials=breaker.trials,
        )


class BacklogDocument(Document):
    """Steps of this agent now."""

    ready: int = Field(description="May start, and wait for a worker.")
    running: int
    parked: int = Field(description="Would be ready, and wait for the service to answer again.")
    oldest: datetime | None = Field(description="Since when the first of the ready and the parked waits.")


class AgentDocument(Document):
    """What the workers announced of an agent, and how it stands now."""

    name: str
    queue: str
    operations: list[str]
    outputs: dict[str, dict[str, Any]] = Field(
        description="By operation, the JSON Schema that its results fit, also one given by hand; only those that promise one."
    )
    announced_at: datetime
    traits: TraitsDocument
    limits: LimitsDocument
    runbook: str | None = Field(description="Where to read what to do when it fails.")
    breaker: BreakerDocument
    backlog: BacklogDocument
    calls: dict[str, int] = Field(
        description="How its calls of the last half a minute ended: `ok`, `retry` (asked again), or an error's code."
    )

    @classmethod
    def of(cls, standing: Standing) -> Self:
        agent = standing.agent
        return cls(
            name=agent.name,
            queue=agent.queue,
            operations=agent.operations,
            outputs=agent.outputs,
            announced_at=agent.announced_at,
            traits=TraitsDocument(
                honours_keys=agent.honours_keys,
                closes_keys=agent.closes_keys,
                lands_within=agent.lands_within.total_seconds(),
            ),
            limits=LimitsDocument.of(agent),
            runbook=agent.runbook or None,
            breaker=BreakerDocument.of(standing.breaker),
            backlog=BacklogDocument(
                ready=standing.ready, running=standing.running, parked=standing.parked, oldest=standing.oldest
            ),
            calls=standing.calls,
        )


class AgentPage(Page):
    results: list[AgentDocument]
