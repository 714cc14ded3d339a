"""What the API answers about the supervisor's own record."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from pydantic import Field

from supervisor import cancellations, needs, storms
from supervisor.advice import recommended
from supervisor.models import Case, GroupCancellation, GroupMember, Incident, Need, Note, Sweep
from workflows import explanations
from workflows.allowed import job_verbs
from workflows.api.bodies import Cancellation, Moment
from workflows.api.documents import JOBS, Document, Links, Page, links_of
from workflows.explanations import Circumstances
from workflows.models import Job, Step, Worker
from workflows.states import JobState

ATTENTION = "/api/v1/attention"
MOST_NOTES = 100


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


class AttentionDocument(Document):
    """A job that the machine may not go on with alone."""

    job: str
    workflow: str
    state: JobState
    reasons: list[str]
    since: datetime
    cause: str | None = Field(
        description="The id of the cause that it is grouped under, the oldest of several; null until the next look."
    )
    verbs: list[str] = Field(description="What may be asked of the job now; each step has its own.")
    links: Links

    @classmethod
    def of(cls, job: Job, steps: Sequence[Step], known: Circumstances, cases: Sequence[Case]) -> Self:
        own = explanations.needs_person(job, steps, known)
        return cls(
            job=str(job.pk),
            workflow=job.workflow,
            state=JobState(job.state),
            reasons=needs.reasons(own, cases),
            since=needs.since(own, explanations.needs_person_since(job, steps, known), cases),
            cause=str(cases[0].need_id) if cases else None,
            verbs=job_verbs(job),
            links=Links(**links_of(job, JOBS)),
        )


class CauseLinks(Document):
    """Where to go from here."""

    self: str
    jobs: str = Field(description="The jobs that stand there for it.")
    runbook: str | None = Field(description="The page that says what to do: the agent's own, else the workflow's.")


class CauseDocument(Document):
    """One cause for which jobs stand in front of a person: it closes by itself once none of them does any more."""

    id: str
    kind: Need.Kind
    cause: str = Field(description="One sentence: where, and why, without what differs from job to job.")
    recommended: str = Field(description="What to do about it, in words.")
    workflow: str | None
    step: str | None
    agent: str | None
    code: str | None
    frame: str | None = Field(description="Where the agent's own code raised what nobody expected.")
    jobs: int = Field(
        description="How many stand there; of jobs without a worker no more than 1,000 a queue are counted."
    )
    since: datetime = Field(description="Since when the first of them does.")
    examples: list[str] = Field(description="Some of the jobs.")
    opened_at: datetime
    closed_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    assignee: str | None
    snoozed_until: datetime | None
    links: CauseLinks

    @classmethod
    def of(cls, need: Need, runbooks: dict[int, str]) -> Self:
        return cls(**_fields_of(need, runbooks))


class NoteDocument(Document):
    """What somebody did about a cause, or wrote down."""

    author: str
    did: str | None = Field(description="Null for a mere note.")
    text: str
    at: datetime

    @classmethod
    def of(cls, note: Note) -> Self:
        return cls(author=note.author, did=note.did or None, text=note.text, at=note.at)


class CauseWithNotes(CauseDocument):
    """The same, with what was done about it: the last 100 notes, oldest first."""

    notes: list[NoteDocument]

    @classmethod
    def of(cls, need: Need, runbooks: dict[int, str]) -> Self:
        last = need.notes.order_by("-id")[:MOST_NOTES]
        return cls(**_fields_of(need, runbooks), notes=[NoteDocument.of(note) for note in reversed(last)])


def _fields_of(need: Need, runbooks: dict[int, str]) -> dict[str, Any]:
    return {
        "id": str(need.pk),
        "kind": Need.Kind(need.kind),
        "cause": need.cause,
        "recommended": recommended(need.kind, code=need.code, error_kind=need.error_kind, frame=need.frame),
        "workflow": need.workflow or None,
        "step": need.step or None,
        "agent": need.agent or None,
        "code": need.code or None,
        "frame": need.frame or None,
        "jobs": need.jobs,
        "since": need.since,
        "examples": need.examples,
        "opened_at": need.opened_at,
        "closed_at": need.closed_at,
        "acknowledged_at": need.acknowledged_at,
        "acknowledged_by": need.acknowledged_by or None,
        "assignee": need.assignee or None,
        "snoozed_until": need.snoozed_until,
        "links": CauseLinks(
            self=f"{ATTENTION}/causes/{need.pk}",
            jobs=f"{ATTENTION}?cause={need.pk}",
            runbook=runbooks.get(need.pk),
        ),
    }


class AttentionPage(Page):
    results: list[AttentionDocument]


class CausePage(Page):
    results: list[CauseDocument]


class SweepPage(Page):
    results: list[SweepDocument]


class IncidentPage(Page):
    results: list[IncidentDocument]
