"""What the API answers with: exactly these fields, in OpenAPI and on the wire. Times are RFC 3339 in UTC."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from workflows import explanations
from workflows.models import Attempt, Event, Job, Step
from workflows.states import ErrorKind, JobState, Outcome, Reason, StepState

JOBS = "/api/v1/jobs"
BOOKINGS = "/api/v1/bookings"


class Document(BaseModel):
    """Base of all documents: every field is always there."""

    model_config = ConfigDict(frozen=True, use_enum_values=True)

    def on_the_wire(self) -> dict[str, Any]:
        """As plain JSON."""
        return self.model_dump(mode="json", by_alias=True)


class ErrorDocument(Document):
    """Why an attempt failed."""

    kind: ErrorKind
    code: str
    message: str

    @classmethod
    def of(cls, row: Step | Attempt) -> Self | None:
        """The error of a step or attempt, if it has one."""
        if not row.error_kind:
            return None
        return cls(kind=ErrorKind(row.error_kind), code=row.error_code, message=row.error_message)


class StepDocument(Document):
    """One step as it is now. `index`, `progress` and `counts` are null for a step that is no fan-out."""

    name: str
    index: int | None
    operation: str
    agent: str
    state: StepState
    attempt: int = Field(description="The number of the last attempt; 0 before the first.")
    charged: int = Field(description="How many failures count against `attempts_allowed`.")
    attempts_allowed: int
    idempotency_key: str = Field(description="The key that every attempt presents to the other side.")
    complete_by: datetime | None = Field(description="Until when the running attempt holds its lease.")
    deadline: datetime | None = Field(description="The hard end of the running attempt.")
    run_after: datetime
    progress: None
    result: Any
    error: ErrorDocument | None
    in_doubt: bool = Field(description="An attempt ended of which nobody knows what it did.")
    undoes: str | None
    started_at: datetime | None
    finished_at: datetime | None
    waiting_because: str | None
    counts: None

    @classmethod
    def of(cls, job: Job, step: Step, steps: Sequence[Step], now: datetime) -> Self:
        """From a step of `steps`, which are all of the job's, as `for_timeline` gives them."""
        return cls(**_fields_of(job, step, steps, now))


class LateWord(Document):
    """What a worker reported after its step had been given to another: evidence, never an outcome."""

    at: datetime
    outcome: Outcome
    result: Any
    message: str


class AttemptDocument(Document):
    """One try at a step."""

    number: int
    worker: str
    started_at: datetime
    finished_at: datetime | None
    outcome: Outcome | None
    input: Any = Field(description="What was really sent.")
    error: ErrorDocument | None
    in_doubt: bool
    resolved_by: Attempt.Resolution | None
    late: LateWord | None

    @classmethod
    def of(cls, attempt: Attempt) -> Self:
        late = None
        if attempt.late_at is not None:
            late = LateWord(
                at=attempt.late_at,
                outcome=Outcome(attempt.late_outcome),
                result=attempt.late_result,
                message=attempt.late_message,
            )
        return cls(
            number=attempt.number,
            worker=attempt.worker,
            started_at=attempt.started_at,
            finished_at=attempt.finished_at,
            outcome=Outcome(attempt.outcome) if attempt.outcome else None,
            input=attempt.input,
            error=ErrorDocument.of(attempt),
            in_doubt=attempt.in_doubt and not attempt.resolved_by,
            resolved_by=Attempt.Resolution(attempt.resolved_by) if attempt.resolved_by else None,
            late=late,
        )


class StepWithAttempts(StepDocument):
    """One step with every attempt at it."""

    attempts: list[AttemptDocument]

    @classmethod
    def of(cls, job: Job, step: Step, steps: Sequence[Step], now: datetime) -> Self:
        attempts = [AttemptDocument.of(attempt) for attempt in step.attempts.all()]
        return cls(**_fields_of(job, step, steps, now), attempts=attempts)


class Progress(Document):
    """How far the forward steps are."""

    done: int
    total: int
    message: str


class Links(Document):
    """Where to go from here."""

    status: str
    events: str
    cancel: str


class JobDocument(Document):
    """One execution of a workflow."""

    id: str
    key: str | None
    workflow: str
    version: int
    state: JobState
    reason: Reason | None = Field(description="Why it stopped short of Completed.")
    paused: bool
    created_at: datetime
    finished_at: datetime | None
    steps: list[StepDocument]
    needs_person: list[str]
    progress: Progress
    waiting_because: str | None
    links: Links

    @classmethod
    def of(cls, job: Job, steps: Sequence[Step], now: datetime) -> Self:
        return cls(
            id=str(job.pk),
            key=job.key,
            workflow=job.workflow,
            version=job.version,
            state=JobState(job.state),
            reason=Reason(job.reason) if job.reason else None,
            paused=job.paused_at is not None,
            created_at=job.created_at,
            finished_at=job.finished_at,
            steps=[StepDocument.of(job, step, steps, now) for step in steps],
            needs_person=explanations.needs_person(job, steps),
            progress=Progress(**explanations.progress(steps)),
            waiting_because=explanations.waiting_because(job, steps, now),
            links=Links(**_links(job, JOBS)),
        )


class Undone(Document):
    """A step whose effect was taken back."""

    step: str
    reference: str | None


class NotUndone(Undone):
    """A step whose effect is, or may be, still there."""

    why: str


class Receipt(Document):
    """What the world looks like after the end."""

    outcome: JobState
    undone: list[Undone]
    not_undone: list[NotUndone]
    pending: list[NotUndone] = Field(description="Undos to be asked once more, in case a lost call lands late.")
    safe_to_retry_with_new_key: bool


class BookingLinks(Links):
    """Where to go from here."""

    job: str


class BookingDocument(Document):
    """A trip, and how far it is. It is also a job, with the same id."""

    id: str
    state: JobState
    reason: Reason | None
    input: dict[str, Any]
    steps: list[StepDocument]
    receipt: Receipt | None = Field(description="Once it has ended.")
    links: BookingLinks

    @classmethod
    def of(cls, job: Job, steps: Sequence[Step], now: datetime) -> Self:
        receipt = explanations.receipt(job, steps)
        return cls(
            id=str(job.pk),
            state=JobState(job.state),
            reason=Reason(job.reason) if job.reason else None,
            input=job.input,
            steps=[StepDocument.of(job, step, steps, now) for step in steps],
            receipt=Receipt(**receipt) if receipt else None,
            links=BookingLinks(**_links(job, BOOKINGS), job=address(job)),
        )


class EventDocument(Document):
    """One line of a job's history."""

    seq: int = Field(description="The event's number within its job.")
    kind: str
    step: str | None
    attempt: int | None
    actor: str
    reason: str
    data: Any
    at: datetime

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(
            seq=event.seq,
            kind=event.kind,
            step=event.step or None,
            attempt=event.attempt,
            actor=event.actor,
            reason=event.reason,
            data=event.data,
            at=event.at,
        )


class Page(Document):
    """One page; `next` and `prev` are addresses, or null at the ends."""

    next: str | None
    prev: str | None


class JobPage(Page):
    results: list[JobDocument]


class BookingPage(Page):
    results: list[BookingDocument]


class EventPage(Page):
    results: list[EventDocument]


class FieldError(Document):
    """One fault, and where it is: in the body, in the query or in a header."""

    pointer: str | None = Field(default=None, description="A JSON Pointer into the body.")
    parameter: str | None = None
    header: str | None = None
    message: str


class Problem(Document):
    """An error (RFC 9457). There may be more fields than these."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = Field(description="`/problems/…`, stable; `about:blank` where the status says it all.")
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FieldError] = []
    allowed: list[str] = Field(default=[], description="On 409: what may be asked for now.")
    safe_to_retry_with_new_key: bool = Field(default=False, description="On POST: nothing was done.")


def address(job: Job) -> str:
    """The path of a job."""
    return f"{JOBS}/{job.pk}"


def _links(job: Job, collection: str) -> dict[str, str]:
    here = address(job)
    return {"status": f"{collection}/{job.pk}", "events": f"{here}/events", "cancel": f"{here}/cancellation"}


def _fields_of(job: Job, step: Step, steps: Sequence[Step], now: datetime) -> dict[str, Any]:
    return {
        "name": step.name,
        "index": None,
        "operation": step.operation,
        "agent": step.agent,
        "state": StepState(step.state),
        "attempt": step.attempt,
        "charged": step.charged,
        "attempts_allowed": step.attempts_allowed,
        "idempotency_key": step.idempotency_key,
        "complete_by": step.complete_by,
        "deadline": step.deadline,
        "run_after": step.run_after,
        "progress": None,
        "result": step.result,
        "error": ErrorDocument.of(step),
        "in_doubt": explanations.in_doubt(step),
        "undoes": step.undoes.name if step.undoes else None,
        "started_at": step.started_at,
        "finished_at": step.finished_at,
        "waiting_because": explanations.step_waiting_because(job, step, steps, now),
        "counts": None,
    }
