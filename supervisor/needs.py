"""What jobs need a person for: one need for each cause, the jobs of each, and what people do about it.

Every few seconds the store is asked what stands in front of a person now. Only what differs from the last look is read
and written, a bounded number of rows at a time, so that a hundred thousand such jobs cost little while nothing changes.
"""

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from django.db import connection, transaction
from django.db.models import Count, Exists, Min, OuterRef

from supervisor.advice import OVERDUE, UNDECIDED
from supervisor.models import Case, Incident, Need, Note
from workflows import standing, verbs
from workflows.clock import SagNow, now
from workflows.conf import conf
from workflows.exceptions import InvalidInput, NotFound, SagError, StaleVersion, UnknownWorkflow, WrongState
from workflows.models import Agent, Job, Step
from workflows.plans import registry
from workflows.querysets import JobQuerySet

Kind = Need.Kind
Matter = Incident | Need
M = TypeVar("M", Incident, Need)

# Found by looking at the clock and at workers, not at what failed.
WAITING = (Kind.STALLED_GATE, Kind.NO_WORKER)
RETRIED = (Kind.EXHAUSTED, Kind.FAILED_UNDO, Kind.UNDONE_IN_PART)

EXAMPLES = 5
CHANGES_A_LOOK = 2000
MOST_WITHOUT_WORKER = 1000
MOST_CAUSES = 100
RETRIED_AT_ONCE = 50
LONGEST_SNOOZE = timedelta(days=90)
_LONGEST_MESSAGE = 300
_LOCK = 0x5A6_4EED

_DIFFERS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b(?=\w*\d)\w+\b|(?<=')[^']*(?=')|(?<=\")[^\"]*(?=\")", re.IGNORECASE
)


def normalised(message: str) -> str:
    """Without what differs from job to job: ids, numbers, dates, and what stands in quotes."""
    return " ".join(_DIFFERS.sub("…", message).split())[:_LONGEST_MESSAGE]


# --- looking ---------------------------------------------------------------------------------------------------------

# What stands in front of a person now, each part by a small index of its own: step_escalated, attempt_in_doubt,
# job_undone_in_part, step_waits_for_ever, step_waiting, step_ready. Against it the cases that are known (FULL JOIN): what
# is left on one side only has come, or gone. The first three parts are those of `JobQuerySet.needs_person`.
_CHANGES = """
WITH RECURSIVE doubts AS MATERIALIZED (
    SELECT step_id, bool_or(late_outcome = 'completed') AS late
    FROM sag_workflows_attempt WHERE in_doubt AND resolved_by = '' GROUP BY step_id
),
queues AS (  -- those with ready steps, found by as many looks into the index
    (SELECT queue FROM sag_workflows_step WHERE state = 'NotStarted' AND waiting_for = 0 AND NOT held ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT step.queue FROM sag_workflows_step step
            WHERE step.state = 'NotStarted' AND step.waiting_for = 0 AND NOT step.held AND step.queue > queues.queue
            ORDER BY step.queue LIMIT 1)
    FROM queues WHERE queues.queue IS NOT NULL
),
found AS MATERIALIZED (
    SELECT step.job_id, step.id AS step_id, step.version, step.finished_at AS since,
           CASE WHEN step.role <> 'forward' THEN 'failed_undo' WHEN doubts.late THEN 'late_result'
                WHEN doubts.step_id IS NOT NULL THEN 'verdict' ELSE 'exhausted' END AS kind
    FROM sag_workflows_step step LEFT JOIN doubts ON doubts.step_id = step.id
    WHERE step.state = 'Failed' AND step.remedy = 'escalate' AND (NOT step.superseded OR step.role = 'recheck')
    UNION ALL
    SELECT step.job_id, step.id, step.version, job.finished_at,
           CASE WHEN doubts.late THEN 'late_result' ELSE 'verdict' END
    FROM doubts JOIN sag_workflows_step step ON step.id = doubts.step_id JOIN sag_workflows_job job ON job.id = step.job_id
    WHERE job.state IN ('Failed', 'Completed')
      AND NOT (step.state = 'Failed' AND step.remedy = 'escalate' AND (NOT step.superseded OR step.role = 'recheck'))
      AND NOT EXISTS (SELECT FROM sag_workflows_step undo WHERE undo.undoes_id = step.id AND undo.state = 'Failed'
                      AND undo.remedy = 'escalate' AND (NOT undo.superseded OR undo.role = 'recheck'))
    UNION ALL
    SELECT job.id, 0, 0, job.finished_at, 'undone_in_part'
    FROM sag_workflows_job job WHERE job.state = 'Failed' AND job.partial
    UNION ALL
    SELECT step.job_id, step.id, step.version, step.started_at, 'stalled_gate'
    FROM sag_workflows_step step JOIN sag_workflows_job job ON job.id = step.job_id
    WHERE step.state = 'Running' AND step.kind = 'signal' AND step.complete_by IS NULL AND step.deadline IS NULL
      AND step.started_at < sag_now() - %(gate_wait)s AND job.paused_at IS NULL AND job.stopping_at IS NULL
    UNION ALL
    SELECT step.job_id, step.id, step.version, step.deadline, 'stalled_gate'
    FROM sag_workflows_step step JOIN sag_workflows_job job ON job.id = step.job_id
    WHERE step.state = 'Running' AND step.complete_by IS NULL AND step.deadline < sag_now() - %(stalled_after)s
      AND job.paused_at IS NULL AND job.stopping_at IS NULL
    UNION ALL
    SELECT ready.job_id, ready.id, ready.version, ready.run_after, 'no_worker'
    FROM queues, LATERAL (
        SELECT step.job_id, step.id, step.version, step.run_after FROM sag_workflows_step step
        WHERE step.state = 'NotStarted' AND step.waiting_for = 0 AND NOT step.held AND step.queue = queues.queue
          AND step.run_after < sag_now() - %(stalled_after)s
        ORDER BY step.run_after, step.id LIMIT %(most_without_worker)s) ready
    WHERE queues.queue <> ALL (%(served)s::text[])
),
changed AS (
    SELECT known.id AS case_id, known.need_id, found.job_id, found.step_id, found.version, found.since, found.kind
    FROM found FULL JOIN sag_supervisor_case known
      ON known.job_id = found.job_id AND known.step_id = found.step_id AND known.version = found.version
     AND known.kind = found.kind
    WHERE known.id IS NULL OR found.job_id IS NULL
    LIMIT %(most)s
)
SELECT changed.case_id, changed.need_id, changed.job_id, changed.step_id, changed.version, changed.since, changed.kind,
       job.workflow, step.name, step.agent, step.queue, step.kind, step.deadline IS NOT NULL,
       COALESCE((job.plan -> 'steps' -> step.place::int ->> 'approval')::boolean, false),
       failed.error_kind, failed.error_code, failed.message, failed.error_frame
FROM changed
-- OFFSET: looked up one by one, however many the planner expects.
LEFT JOIN LATERAL (SELECT job.* FROM sag_workflows_job job WHERE job.id = changed.job_id OFFSET 0) job ON true
LEFT JOIN LATERAL (SELECT step.* FROM sag_workflows_step step WHERE step.id = changed.step_id OFFSET 0) step ON true
LEFT JOIN LATERAL (
    (SELECT attempt.error_kind, attempt.error_code, left(attempt.error_message, 2000) AS message, attempt.error_frame
     FROM sag_workflows_attempt attempt
     WHERE changed.kind IN ('verdict', 'late_result') AND attempt.step_id = step.id AND attempt.in_doubt
       AND attempt.resolved_by = ''
     ORDER BY attempt.number DESC LIMIT 1)
    UNION ALL
    (SELECT step.error_kind, step.error_code, left(step.error_message, 2000), COALESCE(attempt.error_frame, '')
     FROM (VALUES (1)) one
     LEFT JOIN sag_workflows_attempt attempt ON attempt.step_id = step.id AND attempt.number = step.attempt
       AND attempt.error_message = step.error_message
     WHERE changed.kind IN ('exhausted', 'failed_undo'))
) failed ON true
"""


class _Change(NamedTuple):
    """A row of `_CHANGES`. Without a `job_id` the case is gone; without a `case_id` it is new."""

    case_id: int | None
    need_id: int | None
    job_id: Any  # a UUID, or none
    step_id: int
    version: int
    since: datetime
    kind: str
    workflow: str
    step: str | None
    agent: str | None
    queue: str | None
    step_kind: str | None
    has_end: bool | None
    approval: bool
    error_kind: str | None
    code: str | None
    message: str | None
    frame: str | None


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What makes two jobs stand there for the same need."""

    kind: str
    cause: str
    workflow: str = ""
    step: str = ""
    agent: str = ""
    error_kind: str = ""
    code: str = ""
    frame: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.cause, self.kind, self.code, self.frame

    @property
    def place(self) -> tuple[str, str, str]:
        return self.kind, self.workflow, self.step


def cause_of(change: Any) -> Cause:
    """Pure. Why a row of `_CHANGES` stands in front of a person."""
    if change.kind == Kind.NO_WORKER:
        said = f"No living worker serves the queue {change.queue}."
        return Cause(kind=change.kind, cause=said, code=change.queue)
    if change.kind == Kind.UNDONE_IN_PART:
        said = f"{change.workflow}: only a part of it was undone."
        return Cause(kind=change.kind, cause=said, workflow=change.workflow)
    code = change.code or ""
    message = normalised(change.message or code)
    if change.kind == Kind.STALLED_GATE:
        code, message = _of_gate(change)
    elif change.kind == Kind.VERDICT:
        message = f"nobody knows whether it was done. {message}".strip()
    elif change.kind == Kind.LATE_RESULT:
        message = f"its answer came too late, and nobody took it up. {message}".strip()
    return Cause(
        kind=change.kind,
        cause=f"{change.workflow}, {change.step}: {message}",
        workflow=change.workflow,
        step=change.step,
        agent=change.agent or "",
        error_kind=change.error_kind or "",
        code=code,
        frame=change.frame or "",
    )


def _of_gate(change: Any) -> tuple[str, str]:
    """(code, message) of a wait that goes on for longer than it should."""
    if change.has_end:
        return OVERDUE, "its time is over, and nothing moved it on."
    if change.approval:
        return UNDECIDED, "nobody has decided, and no time-out ends the wait."
    return "", "its signal has not come, and no time-out ends the wait."


@transaction.atomic
def note_needs() -> int:
    """Write down for which causes jobs need a person now, and close those for which none does any more.

    How many cases came or went. Of two supervisors that look at once, one passes by.
    """
    if not _alone():
        return 0
    changes = _changes()
    gone = [change for change in changes if change.job_id is None]
    come = sorted((change for change in changes if change.job_id is not None), key=lambda change: change.since)
    Case.objects.filter(pk__in=[change.case_id for change in gone]).delete()
    touched = {change.need_id for change in gone if change.need_id is not None} | _add(come)
    _measure(touched)
    if len(changes) < CHANGES_A_LOOK:  # else somebody of the same cause may be among those that are still to be read
        empty = Need.objects.open().filter(~Exists(Case.objects.filter(need_id=OuterRef("pk"))))
        empty.update(closed_at=SagNow())
    return len(changes)


def _alone() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


def _changes() -> list[_Change]:
    asked: dict[str, Any] = {
        "gate_wait": timedelta(seconds=conf.gate_wait),
        "stalled_after": timedelta(seconds=conf.stalled_after),
        "served": sorted(standing.served_queues()),
        "most_without_worker": MOST_WITHOUT_WORKER,
        "most": CHANGES_A_LOOK,
    }
    with connection.cursor() as cursor:
        cursor.execute(_CHANGES, asked)
        return [_Change(*row) for row in cursor.fetchall()]


def _add(come: Sequence[_Change]) -> set[int]:
    """Enter what is new under its needs; the ids of those."""
    if not come:
        return set()
    known = {(need.cause, need.kind, need.code, need.frame): need.pk for need in Need.objects.open()}
    crowd = Counter(Need.objects.open().values_list("kind", "workflow", "step"))
    present = now()
    cases = []
    for change in come:
        cause = cause_of(change)
        if cause.key not in known and crowd[cause.place] >= MOST_CAUSES:
            cause = _among_many(cause)
        if cause.key not in known:
            known[cause.key] = Need.objects.create(**vars(cause), since=change.since, opened_at=present).pk
            crowd[cause.place] += 1
        cases.append(
            Case(
                need_id=known[cause.key],
                kind=change.kind,
                job_id=change.job_id,
                step_id=change.step_id,
                version=change.version,
                since=change.since,
            )
        )
    Case.objects.bulk_create(cases, batch_size=1000)
    return {case.need_id for case in cases}


def _among_many(cause: Cause) -> Cause:
    """Where hardly two messages of a step are alike, the rest of them count as one."""
    return Cause(
        kind=cause.kind,
        cause=f"{cause.workflow}, {cause.step}: many different messages.",
        workflow=cause.workflow,
        step=cause.step,
        agent=cause.agent,
    )


def _measure(needs: Iterable[int]) -> None:
    """Count the jobs of these needs anew, and choose the examples that are told."""
    touched = sorted(needs)
    counted = Case.objects.filter(need_id__in=touched).order_by().values("need_id")
    for row in counted.annotate(jobs=Count("job_id", distinct=True), since=Min("since")):
        newest = Case.objects.filter(need_id=row["need_id"]).order_by("-job_id").values_list("job_id", flat=True)
        examples = sorted(map(str, newest.distinct()[:EXAMPLES]))
        Need.objects.filter(pk=row["need_id"]).update(jobs=row["jobs"], since=row["since"], examples=examples)


def forget() -> None:
    """Needs that were closed long ago, with what was noted about them."""
    Need.objects.filter(closed_at__lt=now() - timedelta(seconds=conf.keep_failures)).delete()


# --- asking ----------------------------------------------------------------------------------------------------------


def jobs(among: JobQuerySet | None = None) -> JobQuerySet:
    """The jobs that need a person: those that failed so, at once; those that wait too long, from the last look on."""
    waiting = Case.objects.filter(kind__in=WAITING).values("job_id")
    return (Job.objects.all() if among is None else among).needs_person(waiting)


def cases_of(job_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, list[Case]]:
    """The cases of each of these jobs with their needs, the oldest first; several of one need count once."""
    found: dict[uuid.UUID, dict[int, Case]] = {}
    for case in Case.objects.filter(job_id__in=list(job_ids)).select_related("need").order_by("since", "need_id"):
        found.setdefault(case.job_id, {}).setdefault(case.need_id, case)
    return {job_id: list(cases.values()) for job_id, cases in found.items()}


def reasons(own: Sequence[str], cases: Iterable[Case]) -> list[str]:
    """The sentences that a job's rows say of themselves, and those that only a look at the clock and the workers finds."""
    return [*own, *(case.need.cause for case in cases if case.kind in WAITING)]


def since(own: Sequence[str], own_since: datetime, cases: Iterable[Case]) -> datetime:
    """Since when it stands there: `own_since` for its own reasons, if it has any."""
    waits = [case.since for case in cases if case.kind in WAITING]
    return min([*([own_since] if own else []), *waits], default=own_since)


def first_jobs(needs: Iterable[Need], limit: int) -> dict[int, list[uuid.UUID]]:
    """{need: those of its jobs that stand there longest}, for each by a few steps along the index. (case_of_need)"""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT first.need_id, first.job_id FROM unnest(%s::bigint[]) AS asked (id), LATERAL (
                SELECT need_id, job_id FROM sag_supervisor_case WHERE need_id = asked.id ORDER BY since, job_id LIMIT %s
            ) first
            """,
            [[need.pk for need in needs], limit],
        )
        found: dict[int, dict[uuid.UUID, None]] = {}
        for need_id, job_id in cursor.fetchall():
            found.setdefault(need_id, {})[job_id] = None
    return {need_id: list(job_ids) for need_id, job_ids in found.items()}


def notes_of(needs: Iterable[Need]) -> dict[int, list[Note]]:
    """{need: what was done about it, and noted}"""
    found: dict[int, list[Note]] = {}
    for note in Note.objects.filter(need__in=list(needs)):
        found.setdefault(note.need_id, []).append(note)
    return found


def runbooks(needs: Iterable[Need]) -> dict[int, str]:
    """{need: the page that says what to do}: its agent's, else its workflow's."""
    needs = list(needs)
    agents = Agent.objects.exclude(runbook="").filter(name__in={need.agent for need in needs})
    of_agent = dict(agents.values_list("name", "runbook"))
    found = {need.pk: of_agent.get(need.agent) or _runbook_of(need.workflow) for need in needs}
    return {need: runbook for need, runbook in found.items() if runbook}


def _runbook_of(workflow: str) -> str | None:
    try:
        return registry.get(workflow).runbook
    except UnknownWorkflow:
        return None


# --- what people do --------------------------------------------------------------------------------------------------


@transaction.atomic
def acknowledge(matter: Matter, *, actor: str, reason: str = "") -> None:
    """Somebody has it in hand: it is not told again. Raises WrongState when it is over, or was acknowledged before."""
    open_one = type(matter)._default_manager.filter(pk=matter.pk, closed_at__isnull=True, acknowledged_at__isnull=True)
    if not open_one.update(acknowledged_at=now(), acknowledged_by=actor[:150]):
        raise WrongState("It is over, or somebody has acknowledged it before.")
    if isinstance(matter, Need):
        _note(matter.pk, actor, did="acknowledged it", text=reason)


@transaction.atomic
def assign(need_id: int, assignee: str, *, actor: str, reason: str = "") -> Need:
    """Say whose it is; nobody's where `assignee` is empty."""
    need = _open_need(need_id)
    need.assignee = assignee
    need.save(update_fields=["assignee"])
    _note(need.pk, actor, did=f"gave it to {assignee}" if assignee else "gave it to nobody", text=reason)
    return need


@transaction.atomic
def snooze(need_id: int, until: datetime | None, *, actor: str, reason: str = "") -> Need:
    """Keep it from the top of the list, and from being told, until then; None: no longer."""
    need, present = _open_need(need_id), now()
    if until is not None and not present < until <= present + LONGEST_SNOOZE:
        fault = f"must be a time that is still to come, within {LONGEST_SNOOZE.days} days"
        raise InvalidInput(f"until {fault}.", errors=[{"pointer": "/until", "message": fault}])
    need.snoozed_until = until
    need.save(update_fields=["snoozed_until"])
    _note(need.pk, actor, did=f"put it off until {until:%Y-%m-%d %H:%M} UTC" if until else "woke it", text=reason)
    return need


@transaction.atomic
def add_note(need_id: int, text: str, *, actor: str) -> Note:
    """Write something down for the next one who looks."""
    return _note(_open_need(need_id).pk, actor, text=text)


def _open_need(need_id: int) -> Need:
    """Locked. Raises NotFound, or WrongState when it is over."""
    need = Need.objects.select_for_update(no_key=True).filter(pk=need_id).first()
    if need is None:
        raise NotFound(f"There is no cause {need_id}.")
    if need.closed_at is not None:
        raise WrongState("It is over: no job stands there for it any more.")
    return need


def _note(need_id: int, author: str, *, did: str = "", text: str = "") -> Note:
    return Note.objects.create(need_id=need_id, author=author[:150], did=did[:200], text=text, at=now())


# --- all jobs of one cause -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What became of one job: `refusal` is empty where it is tried again."""

    job_id: uuid.UUID
    step: str
    refusal: str = ""


def retry_all(need_id: int, *, actor: str, reason: str) -> list[Tried]:
    """Try the jobs of a need again, those first that stand there longest, each by its own verb in its own transaction.

    At most so many at a time; the next look closes the cases of those, so that asking again goes on behind them. Raises
    WrongState where only a person's word about each job leads on.
    """
    need = Need.objects.open().filter(pk=need_id).first()
    if need is None:
        raise NotFound(f"There is no cause {need_id} that is still open.")
    if need.kind not in RETRIED:
        raise WrongState("Trying again does not help here: each job needs a word of its own.")
    cases = list(need.cases.order_by("since", "job_id")[:RETRIED_AT_ONCE])
    steps = Step.objects.in_bulk([case.step_id for case in cases])
    done = [tried for case in cases if (tried := _retry(case, steps.get(case.step_id), actor=actor, reason=reason))]
    note_needs()
    with transaction.atomic():
        refused = sum(bool(tried.refusal) for tried in done)
        _note(need.pk, actor, did=f"had {len(done) - refused} tried again, {refused} refused", text=reason)
    return done


def _retry(case: Case, step: Step | None, *, actor: str, reason: str) -> Tried | None:
    """None where it has moved on by itself."""
    address = step.address if step else ""
    try:
        if step is not None:
            verbs.retry_step(case.job_id, address, actor=actor, reason=reason, seen=case.version)
        elif case.step_id == 0:
            verbs.retry_job(case.job_id, actor=actor, reason=reason)
        else:
            return None
    except StaleVersion:
        return None
    except SagError as refusal:
        return Tried(job_id=case.job_id, step=address, refusal=refusal.message)
    return Tried(job_id=case.job_id, step=address)
