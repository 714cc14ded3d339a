"""The legal states and edges, in one table. The documents draw it, the store checks it, `transitions.py` obeys it.

Every other word that people use for a job or a step (ready, overdue, exhausted, in doubt, undone, needs a person) is a
question asked of rows, never a stored state: see `querysets.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import TextChoices


class JobState(TextChoices):
    RUNNING = "Running"
    COMPLETED = "Completed"
    COMPENSATING = "Compensating"
    COMPENSATED = "Compensated"
    FAILED = "Failed"


class StepState(TextChoices):
    NOT_STARTED = "NotStarted"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    SKIPPED = "Skipped"


UNENDED = (StepState.NOT_STARTED, StepState.RUNNING)


class StepKind(TextChoices):
    """What has to happen for a step to be done: a worker calls, a time comes, a signal comes, another job ends."""

    CALL = "call"
    TIMER = "timer"
    SIGNAL = "signal"
    CHILD = "child"


class Role(TextChoices):
    """What a step is there for."""

    FORWARD = "forward"
    UNDO = "undo"
    RECHECK = "recheck"


class ErrorKind(TextChoices):
    """Why an attempt failed."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    IN_DOUBT = "in_doubt"
    LOST = "lost"
    CANCELLED = "cancelled"
    EXPIRED_WAITING = "expired_waiting"


class Reason(TextChoices):
    """Why a job stopped short of Completed."""

    STEP_FAILED = "step_failed"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    OPERATOR = "operator"
    PARENT = "parent"


class Outcome(TextChoices):
    """What became of one attempt."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    RELEASED = "released"


class SettledBy(TextChoices):
    """Who completed a step, where it was not simply the answer of the call that ran."""

    CALLBACK = "callback"
    SIGNAL = "signal"
    TIMER = "timer"
    CHILD = "child"
    PERSON = "person"
    PROBE = "probe"
    LATE = "late"


class Remedy(TextChoices):
    """What the supervisor, or a person, chose for a failed step."""

    RETRY = "retry"
    PARK = "park"
    COMPENSATE = "compensate"
    ESCALATE = "escalate"
    IGNORE = "ignore"
    OTHERWISE = "otherwise"
    WAIT = "wait"


ENDED_STEP_STATES = (StepState.COMPLETED, StepState.FAILED, StepState.SKIPPED)
TERMINAL_JOB_STATES = (JobState.COMPLETED, JobState.COMPENSATED, JobState.FAILED)
LIVE_JOB_STATES = (JobState.RUNNING, JobState.COMPENSATING)


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One legal change of state: which verb makes it, who may ask for it, and what has to be true."""

    source: str
    target: str
    verb: str
    who: str
    guard: str


STEP_EDGES = (
    Edge(source="NotStarted", target="Running", verb="claim", who="agent", guard="ready; attempt + 1, token, lease"),
    Edge(
        source="NotStarted",
        target="Running",
        verb="open",
        who="scheduler",
        guard="a timer, signal, child or fan-out whose prerequisites ended; no lease",
    ),
    Edge(
        source="Running", target="Running", verb="heartbeat", who="agent", guard="fence; the lease only moves forward"
    ),
    Edge(
        source="Running",
        target="Running",
        verb="defer",
        who="agent",
        guard="fence; the lease ends, a callback is waited for",
    ),
    Edge(
        source="Running",
        target="Completed",
        verb="complete",
        who="agent, callback, signal, timer, child, scheduler, operator",
        guard="fence, or first under the job's lock",
    ),
    Edge(
        source="Running",
        target="Failed",
        verb="fail",
        who="agent, callback, signal, child, scheduler",
        guard="fence, or first under the job's lock; error kind",
    ),
    Edge(
        source="Running",
        target="Failed",
        verb="expire",
        who="supervisor",
        guard="lease past, or waited too long; seen again under the lock",
    ),
    Edge(
        source="Running",
        target="Failed",
        verb="cancel",
        who="operator, client, scheduler",
        guard="the attempt is fenced out, in doubt",
    ),
    Edge(
        source="Running",
        target="NotStarted",
        verb="release",
        who="agent",
        guard="fence; snoozed or handed back, not charged",
    ),
    Edge(
        source="NotStarted",
        target="Completed",
        verb="settle",
        who="callback, operator",
        guard="an attempt was made, and is known to have done it",
    ),
    Edge(
        source="NotStarted",
        target="Failed",
        verb="expire",
        who="supervisor, scheduler",
        guard="nobody took it within its queue time-out; a condition that had to be met was not",
    ),
    Edge(
        source="NotStarted",
        target="Failed",
        verb="doubt",
        who="scheduler",
        guard="undo begins and an attempt is in doubt",
    ),
    Edge(
        source="NotStarted",
        target="Skipped",
        verb="skip",
        who="scheduler, operator",
        guard="condition not met, not needed, or undo began; nothing in doubt",
    ),
    Edge(
        source="Failed",
        target="NotStarted",
        verb="retry",
        who="supervisor, operator, client",
        guard="allowance left, or granted",
    ),
    Edge(
        source="Failed",
        target="Completed",
        verb="settle",
        who="operator, callback",
        guard="a verdict, a result or a late answer; marked so for ever",
    ),
    Edge(source="Failed", target="Skipped", verb="skip", who="operator", guard="nothing in doubt; reason stored"),
)

JOB_EDGES = (
    Edge(
        source="Running",
        target="Completed",
        verb="close",
        who="scheduler",
        guard="every step Completed, Skipped, or Failed and ignored",
    ),
    Edge(
        source="Running",
        target="Compensating",
        verb="compensate",
        who="scheduler",
        guard="stopping with undo, no step Running",
    ),
    Edge(
        source="Running",
        target="Compensated",
        verb="close",
        who="scheduler",
        guard="stopping with undo, nothing to undo",
    ),
    Edge(
        source="Running",
        target="Failed",
        verb="close",
        who="scheduler",
        guard="stopping without undo, or nothing can be undone",
    ),
    Edge(
        source="Completed",
        target="Compensating",
        verb="compensate",
        who="operator, client, parent",
        guard="within compensate_within; exactly what was previewed",
    ),
    Edge(
        source="Compensating", target="Compensated", verb="close", who="scheduler", guard="every compensation Completed"
    ),
    Edge(
        source="Compensating",
        target="Failed",
        verb="close",
        who="scheduler",
        guard="a compensation is exhausted, or only a part was to be undone; the others ended",
    ),
    Edge(
        source="Failed",
        target="Running",
        verb="retry",
        who="operator, client",
        guard="same rows; new rows for what was undone or skipped",
    ),
    Edge(
        source="Failed",
        target="Compensating",
        verb="retry, compensate",
        who="operator, client, parent",
        guard="an undo had failed, or an undo is asked for",
    ),
)

STEP_MOVES = frozenset((edge.source, edge.target) for edge in STEP_EDGES)
JOB_MOVES = frozenset((edge.source, edge.target) for edge in JOB_EDGES)


def drawing(edges: tuple[Edge, ...], ends: Iterable[str]) -> str:
    """The edges as a Mermaid state diagram, for the documents. All begins where the first edge does."""
    lines = [f"    [*] --> {edges[0].source}"]
    lines += [f"    {edge.source} --> {edge.target}: {edge.verb}" for edge in edges]
    lines += [f"    {state} --> [*]" for state in ends]
    return "\n".join(["stateDiagram-v2", *lines])


def table(edges: tuple[Edge, ...]) -> str:
    """The edges as a Markdown table: who asks for each, and what has to be true."""
    rows = [f"| {edge.source} → {edge.target} | {edge.verb} | {edge.who} | {edge.guard} |" for edge in edges]
    return "\n".join(["| from → to | verb | who | guard and effect |", "|---|---|---|---|", *rows])
