"""What the API answers with: exactly these fields, in OpenAPI and on the wire. Times are RFC 3339 in UTC."""

from collections.abc import Sequence
from datetime import datetime
from inspect import cleandoc
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from workflows import explanations
from workflows.allowed import step_verbs
from workflows.conf import conf
from workflows.explanations import Circumstances
from workflows.models import Attempt, Event, Job, Signal, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.plans.retry import Retry
from workflows.states import ErrorKind, JobState, Outcome, Reason, Role, SettledBy, StepKind, StepState
from workflows.undo import MOST_CALLS, Preview
from workflows.workflow import Workflow

JOBS = "/api/v1/jobs"
BOOKINGS = "/api/v1/bookings"

MOST_ATTEMPTS = 100
MOST_WAITS = 100


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
    """One step as it is now. A fan-out is one step with `counts` of its items by state; an item has its `index`."""

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
    progress: dict[str, Any] | None = Field(description="What the running call last told of itself.")
    result: Any
    error: ErrorDocument | None
    in_doubt: bool = Field(description="An attempt, or one of an item, ended of which nobody knows what it did.")
    undoes: str | None
    started_at: datetime | None
    finished_at: datetime | None
    waiting_because: str | None
    counts: dict[str, int] | None = Field(description="Of a fan-out whose list is known: its items by state.")

    @classmethod
    def of(cls, job: Job, step: Step, steps: Sequence[Step], now: datetime, known: Circumstances) -> Self:
        """From a step of the job, and `steps`, all that stand for its plan, as `for_documents` gives them."""
        return cls(**_fields_of(job, step, steps, now, known))


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
    frame: str | None = Field(
        description="Where an exception that nobody expected was raised: file, line and function."
    )
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
            frame=attempt.error_frame or None,
            in_doubt=attempt.in_doubt and not attempt.resolved_by,
            resolved_by=Attempt.Resolution(attempt.resolved_by) if attempt.resolved_by else None,
            late=late,
        )


class RetryDocument(Document):
    """How often a step is tried, and how long it is waited in between; in seconds."""

    attempts: int
    first: float
    factor: float
    cap: float
    waits: list[float] = Field(
        description="The longest wait before each further attempt; the real one is drawn below it."
    )

    @classmethod
    def of(cls, policy: Retry) -> Self:
        bounds = [policy.bound(failures) for failures in range(1, min(policy.attempts, MOST_WAITS + 1))]
        return cls(**policy.to_json(), waits=[bound.total_seconds() for bound in bounds])


class TimeoutsDocument(Document):
    """How long things may take, in seconds; null for as long as it takes."""

    queue: float | None = Field(description="To stand ready without a worker.")
    attempt: float = Field(description="One attempt.")
    lease: float = Field(description="An attempt without a heartbeat of its worker.")
    total: float | None = Field(description="All attempts together, with what is waited in between.")

    @classmethod
    def of(cls, step: Step, planned: PlanStep) -> Self:
        # An undo takes the time that it needs.
        total = planned.total_timeout if step.role == Role.FORWARD else None
        return cls(
            queue=None if step.queue_timeout is None else step.queue_timeout.total_seconds(),
            attempt=step.timeout.total_seconds(),
            lease=conf.lease,
            total=None if total is None else total.total_seconds(),
        )


class StepWithAttempts(StepDocument):
    """One step with its attempts, and what may be asked of it."""

    kind: StepKind
    generation: int = Field(description="2 and more for a row that goes forward again over one that was undone.")
    item: Any = Field(description="Of an item: what it is about.")
    child: str | None = Field(description="The job that this step started, or undoes.")
    settled_by: SettledBy | None = Field(description="Who completed it, where that was not the answer of its call.")
    skip_reason: str | None
    retry: RetryDocument
    timeouts: TimeoutsDocument
    verbs: list[str] = Field(description="What may be asked for now, as the last part of the address to POST to.")
    attempts: list[AttemptDocument] = Field(description=f"The last {MOST_ATTEMPTS} at most, oldest first.")

    @classmethod
    def of(cls, job: Job, step: Step, steps: Sequence[Step], now: datetime, known: Circumstances) -> Self:
        planned = Plan.from_json(job.plan).steps[step.place]
        child = known.children.get(step.pk)
        attempts = list(step.attempts.all())[-MOST_ATTEMPTS:]
        return cls(
            **_fields_of(job, step, steps, now, known),
            kind=StepKind(step.kind),
            generation=step.generation,
            item=step.item,
            child=str(child.pk) if child else None,
            settled_by=SettledBy(step.settled_by) if step.settled_by else None,
            skip_reason=step.skip_reason or None,
            retry=RetryDocument.of(planned.retry if step.role == Role.FORWARD else planned.undo_retry),
            timeouts=TimeoutsDocument.of(step, planned),
            verbs=step_verbs(job, step),
            attempts=[AttemptDocument.of(attempt) for attempt in attempts],
        )


class Progress(Document):
    """How far the forward steps are, each item of a fan-out counted as one."""

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
    def of(cls, job: Job, steps: Sequence[Step], now: datetime, known: Circumstances) -> Self:
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
            steps=[StepDocument.of(job, step, steps, now, known) for step in steps],
            needs_person=explanations.needs_person(job, steps, known),
            progress=Progress(**explanations.progress(steps, known)),
            waiting_because=explanations.waiting_because(job, steps, now, known),
            links=Links(**links_of(job, JOBS)),
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
    def of(cls, job: Job, steps: Sequence[Step], now: datetime, known: Circumstances) -> Self:
        receipt = explanations.receipt(job, steps, known)
        return cls(
            id=str(job.pk),
            state=JobState(job.state),
            reason=Reason(job.reason) if job.reason else None,
            input=job.input,
            steps=[StepDocument.of(job, step, steps, now, known) for step in steps],
            receipt=Receipt(**receipt) if receipt else None,
            links=BookingLinks(**links_of(job, BOOKINGS), job=address(job)),
        )


class PlannedUndo(Document):
    """One call that an undo would make."""

    step: str
    operation: str
    key: str = Field(description="The key under which the step was done.")
    reference: str | None
    in_doubt: bool = Field(description="Nobody knows whether it was done; it is undone in any case.")


class LeftAlone(Document):
    """A step that was done, and that an undo would not touch."""

    step: str
    why: str


class PreviewDocument(Document):
    """What an undo would do now. It does exactly this, or, if anything has moved since, nothing (409)."""

    digest: str = Field(description="Stands for all of this; to be sent with the POST.")
    down_to: str | None
    steps: list[PlannedUndo] = Field(description=f"In the order in which they begin; the first {MOST_CALLS} at most.")
    total: int = Field(description="How many calls it would make.")
    not_undone: list[LeftAlone]
    in_doubt: list[str] = Field(description=f"The first {MOST_CALLS} at most.")
    running: list[str] = Field(description="Still at work; what they turn out to have done is undone as well.")
    pivot: str | None = Field(description="The point of no return, once it is passed: then the POST is refused.")
    refused: str | None = Field(description="Why the job cannot be undone now; then the POST is refused as well.")

    @classmethod
    def of(cls, preview: Preview) -> Self:
        return cls(
            digest=preview.digest,
            down_to=preview.down_to,
            steps=[PlannedUndo(**call) for call in preview.steps],
            total=preview.total,
            not_undone=[LeftAlone(**step) for step in preview.not_undone],
            in_doubt=preview.in_doubt[:MOST_CALLS],
            running=preview.running,
            pivot=preview.pivot,
            refused=preview.refused,
        )


class SignalDocument(Document):
    """What became of a signal: taken by the step that waited for it, kept until it does, or lost to an earlier one."""

    name: str
    outcome: Literal["kept", "taken", "lost"]
    received_at: datetime

    @classmethod
    def of(cls, signal: Signal) -> Self:
        return cls.model_validate(signal, from_attributes=True)


class CallbackDocument(Document):
    """What a callback did to its step; `ignored` where that had ended already."""

    outcome: Literal["completed", "failed", "ignored"]


class WorkflowDocument(Document):
    """A plan as data. Durations are seconds."""

    name: str
    version: int
    doc: str
    input: dict[str, Any] | None = Field(description="The JSON Schema of the input; null where any object will do.")
    steps: list[dict[str, Any]] = Field(
        description="As they are stored with each job; what has its default is left out."
    )
    on_failure: str
    deadline: float | None = Field(description="How long a job may take as a whole.")
    compensate_within: float | None = Field(description="How long after it completed a job may still be undone.")
    after_success: str | None
    after_failure: str | None
    runbook: str | None = Field(description="Where to read what to do when its jobs need a person.")

    @classmethod
    def of(cls, workflow: type[Workflow]) -> Self:
        plan = workflow.plan
        return cls(
            name=workflow.name,
            version=plan.version,
            doc=cleandoc(workflow.__doc__ or ""),
            input=workflow.input.model_json_schema() if workflow.input else None,
            steps=plan.to_json()["steps"],
            on_failure=plan.on_failure,
            deadline=plan.deadline.total_seconds() if plan.deadline else None,
            compensate_within=plan.compensate_within.total_seconds() if plan.compensate_within else None,
            after_success=plan.after_success,
            after_failure=plan.after_failure,
            runbook=workflow.runbook,
        )


class EventDocument(Document):
    """One line of a job's history."""

    seq: int = Field(description="The event's number within its job.")
    kind: str
    step: str | None = Field(description="The step's address: a name, `name:index` for an item, `name.undo`.")
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


class ItemPage(Page):
    results: list[StepDocument]


class WorkflowPage(Page):
    results: list[WorkflowDocument]


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


def links_of(job: Job, collection: str) -> dict[str, str]:
    """Where to go from a job, or from the booking that it is."""
    here = address(job)
    return {"status": f"{collection}/{job.pk}", "events": f"{here}/events", "cancel": f"{here}/cancellation"}


def _fields_of(job: Job, step: Step, steps: Sequence[Step], now: datetime, known: Circumstances) -> dict[str, Any]:
    return {
        "name": step.name,
        "index": step.index,
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
        "progress": step.progress if step.state == StepState.RUNNING else None,
        "result": step.result,
        "error": ErrorDocument.of(step),
        "in_doubt": explanations.in_doubt(step) or step.pk in known.doubts,
        "undoes": step.undoes.address if step.undoes else None,
        "started_at": step.started_at,
        "finished_at": step.finished_at,
        "waiting_because": explanations.step_waiting_because(job, step, steps, now, known),
        "counts": known.counts.get(step.pk),
    }
