"""What the API answers about the supervisor's own record."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field

from supervisor import storms
from supervisor.models import Incident, Sweep
from workflows.api.documents import Document, Page


class DecisionDocument(Document):
    """What was found of a job or a step, and what became of it, or would have."""

    job: str
    step: str | None
    found: str
    remedy: str = Field(
        description="`retry`, `park`, `compensate`, `escalate`, `ignore`, `otherwise`; `fail`: its wait was ended; "
        "`end`: its job is being brought to its end; of jobs `stop`, `tell`, `attend`, `heal`."
    )
    reason: str
    acted: bool = Field(description="False where the supervisor only observed.")


class SweepDocument(Document):
    """One pass of the supervisor: what it found and did. The age of the newest is the supervisor's own health."""

    id: str
    by: str | None = Field(description="Which process.")
    started_at: datetime
    finished_at: datetime | None
    observed: bool = Field(description="It changed nothing: its decisions are what would have been done.")
    looked_at: int = Field(description="Rows that it read.")
    found: int = Field(description="Those of them that wanted something done.")
    acted: int = Field(description="Those of them that it changed: expired, remedied or moved.")
    expired: int = Field(description="Steps taken from workers whose lease was over, or that no worker took in time.")
    remedied: int = Field(description="Failed steps that were given a remedy.")
    moved: int = Field(description="Jobs that nobody moved, or whose time was over.")
    failed: int = Field(description="Rows that could not be handled; see `problems`.")
    problems: list[str]
    counts: dict[str, int] = Field(description="How many decisions of each remedy.")
    decisions: list[DecisionDocument] = Field(description="The first fifty, and some of each remedy.")
    grace_until: datetime | None = Field(
        description="Until then nothing expires, because sweeps had been missing before."
    )

    @classmethod
    def of(cls, sweep: Sweep) -> Self:
        return cls(
            id=str(sweep.pk),
            by=sweep.by or None,
            started_at=sweep.started_at,
            finished_at=sweep.finished_at,
            observed=sweep.observed,
            looked_at=sweep.looked_at,
            found=sweep.found,
            acted=sweep.acted,
            expired=sweep.expired,
            remedied=sweep.remedied,
            moved=sweep.moved,
            failed=sweep.failed,
            problems=sweep.problems,
            counts=sweep.counts,
            decisions=[DecisionDocument.model_validate(decision) for decision in sweep.decisions],
            grace_until=sweep.grace_until,
        )


class WaitingDocument(Document):
    """What is parked because of it now."""

    steps: int
    jobs: int
    oldest: datetime | None


class IncidentDocument(Document):
    """One outage of one service. It closes by itself once the service answers again."""

    id: str
    agent: str
    cause: str
    message: str
    evidence: dict[str, Any]
    opened_at: datetime
    closed_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    waiting: WaitingDocument | None = Field(description="Null once it is closed.")

    @classmethod
    def of(cls, incident: Incident) -> Self:
        waiting = None
        if incident.closed_at is None:
            waiting = WaitingDocument.model_validate(storms.waiting(incident.agent))
        return cls(
            id=str(incident.pk),
            agent=incident.agent,
            cause=incident.cause,
            message=incident.message,
            evidence=incident.evidence,
            opened_at=incident.opened_at,
            closed_at=incident.closed_at,
            acknowledged_at=incident.acknowledged_at,
            acknowledged_by=incident.acknowledged_by or None,
            waiting=waiting,
        )


class SweepPage(Page):
    results: list[SweepDocument]


class IncidentPage(Page):
    results: list[IncidentDocument]
