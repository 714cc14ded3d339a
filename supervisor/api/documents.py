"""What the API answers about the supervisor's own record."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field

from supervisor import cancellations, storms
from supervisor.models import GroupCancellation, GroupMember, Incident, Sweep
from workflows.api.bodies import Cancellation, Moment
from workflows.api.documents import Document, Page
from workflows.models import Worker


class SweepDocument(Document):
    """One pass of the supervisor: what it found and did. The age of the newest is the supervisor's own health."""

    id: str
    started_at: datetime
    finished_at: datetime | None
    expired: int = Field(description="Steps taken from workers whose lease was over, or that no worker took in time.")
    remedied: int = Field(description="Failed steps that were given a remedy.")
    moved: int = Field(description="Jobs that nobody moved, or whose time was over.")
    failed: int = Field(description="Rows that could not be handled; see `problems`.")
    problems: list[str]
    grace_until: datetime | None = Field(
        description="Until then nothing expires, because sweeps had been missing before."
    )

    @classmethod
    def of(cls, sweep: Sweep) -> Self:
        return cls(
            id=str(sweep.pk),
            started_at=sweep.started_at,
            finished_at=sweep.finished_at,
            expired=sweep.expired,
            remedied=sweep.remedied,
            moved=sweep.moved,
            failed=sweep.failed,
            problems=sweep.problems,
            grace_until=sweep.grace_until,
        )


class WaitingDocument(Document):
    """What is parked because of it now."""

    steps: int
    jobs: int
    oldest: datetime | None
    can_be_cancelled: int = Field(
        description="How many of these jobs a cancellation of the group is for: no paused ones, and none being undone."
    )


class GroupCancellationBody(Cancellation):
    """How to stop all jobs that wait because of an outage. Without undo a reason is needed."""

    as_of: Moment | None = Field(
        default=None, description="Only those that have waited since then or before: what was shown when one decided."
    )


class RefusalDocument(Document):
    """A job of the group that went on, and why."""

    job: str
    why: str

    @classmethod
    def of(cls, member: GroupMember) -> Self:
        return cls(job=str(member.job_id), why=member.why)


class GroupCancellationDocument(Document):
    """What was decided on the jobs that waited, and how far it is."""

    undo: bool
    actor: str
    reason: str
    asked_at: datetime
    finished_at: datetime | None = Field(description="When the last of them had its turn; null while some are left.")
    jobs: int
    cancelled: int
    ended: int = Field(description="These had ended, or were stopping, when it was their turn.")
    refused: int
    left: int
    refusals: list[RefusalDocument] = Field(description="The first 20 of those that were refused.")

    @classmethod
    def of(cls, asked: GroupCancellation) -> Self:
        progress = cancellations.progress(asked)
        return cls(
            undo=asked.undo,
            actor=asked.actor,
            reason=asked.reason,
            asked_at=asked.asked_at,
            finished_at=asked.finished_at,
            jobs=progress.jobs,
            cancelled=progress.cancelled,
            ended=progress.ended,
            refused=progress.refused,
            left=progress.left,
            refusals=[RefusalDocument.of(member) for member in progress.refusals],
        )


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
    cancellations: list[GroupCancellationDocument] = Field(description="Of the jobs that waited; newest first.")

    @classmethod
    def of(cls, incident: Incident) -> Self:
        waiting = None
        if incident.closed_at is None:
            number = cancellations.number_of_jobs(incident.agent)
            waiting = WaitingDocument.model_validate({**storms.waiting(incident.agent), "can_be_cancelled": number})
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
            cancellations=[GroupCancellationDocument.of(asked) for asked in incident.cancellations.all()],
        )


class WorkerDocument(Document):
    """One start of a worker of agents. It is seen when it answers a doorbell or keeps a lease."""

    name: str
    host: str
    pid: int
    queues: list[str]
    started_at: datetime
    seen_at: datetime
    last_claim_at: datetime | None
    drain_asked_at: datetime | None = Field(description="Somebody wants it to end, and another to be started.")
    drain_asked_by: str | None
    draining_at: datetime | None = Field(description="It takes nothing more, and ends.")
    stopped_at: datetime | None

    @classmethod
    def of(cls, worker: Worker) -> Self:
        return cls(
            name=worker.name,
            host=worker.host,
            pid=worker.pid,
            queues=worker.queues,
            started_at=worker.started_at,
            seen_at=worker.seen_at,
            last_claim_at=worker.last_claim_at,
            drain_asked_at=worker.drain_asked_at,
            drain_asked_by=worker.drain_asked_by or None,
            draining_at=worker.draining_at,
            stopped_at=worker.stopped_at,
        )


class WorkerPage(Page):
    results: list[WorkerDocument]


class DrainDocument(Document):
    """Which workers were asked to end now; those that were about to anyway are not among them."""

    workers: list[str]


class SweepPage(Page):
    results: list[SweepDocument]


class IncidentPage(Page):
    results: list[IncidentDocument]
