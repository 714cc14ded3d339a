"""The questions that the engine and its faces ask of the store. Each names the index that answers it.

`READY` is the one predicate of what may start. The hot statements, the candidates of a queue, the doorbells and the
sentence "why is it not moving" are all made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.apps import apps
from django.contrib.postgres.aggregates import StringAgg
from django.db import models
from django.db.models import Count, Exists, F, Func, Max, OuterRef, Q, Subquery, Value
from django.db.models.functions import MD5

from workflows.clock import SagNow
from workflows.states import (
    LIVE_JOB_STATES,
    TERMINAL_JOB_STATES,
    ErrorKind,
    JobState,
    Remedy,
    Role,
    StepKind,
    StepState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

# What a step must be, of itself. {step} is the alias of the step's row, {waiting_for} what its counter must show: "= 0"
# to be found, "< 1" for a claim by id (the same, in words that no partial index offers itself for), "= 1" for a hand-over
# that settles the last prerequisite in the same statement.
READY_STEP = """{step}.state = 'NotStarted' AND {step}.waiting_for {waiting_for} AND NOT {step}.held"""

# What its job must be. {job} is the alias of the job's row, in the hot statements the locked one. A recheck is due
# whatever has become of the job since: completed in a second pass as well.
JOB_LETS_START = """{job}.paused_at IS NULL AND {job}.stopping_at IS NULL AND (
    ({step}.role = 'forward' AND {job}.state = 'Running')
    OR ({step}.role = 'undo' AND {job}.state = 'Compensating')
    OR {step}.role = 'recheck')"""

# Its agent's service answers, or it is let through to try. The few rows of breakers are read once a statement.
NOT_PARKED = """({step}.admitted OR {step}.agent <> ALL (ARRAY(SELECT agent FROM sag_workflows_breaker WHERE parks)))"""

READY = f"({READY_STEP} AND {{step}}.run_after <= {{now}} AND {NOT_PARKED} AND {JOB_LETS_START})"

# `READY` without the clock, for the ORM. `job_moves` is the state of a job that neither stops nor is paused, else none.
MAY_START = Q(state=StepState.NOT_STARTED, waiting_for=0, held=False) & (
    Q(role=Role.FORWARD, job_moves=JobState.RUNNING)
    | Q(role=Role.UNDO, job_moves=JobState.COMPENSATING)
    | Q(role=Role.RECHECK, job_moves__isnull=False)
)

# A step that failed at least once and has not ended.
FAILING = (
    Q(state=StepState.NOT_STARTED, attempt__gte=1)
    | Q(state=StepState.RUNNING, attempt__gte=2)
    | Q(state=StepState.FAILED, remedy="")
)


class StepQuerySet(models.QuerySet):
    def overdue(self) -> StepQuerySet:
        """Whose lease is over? (step_running)"""
        return self.filter(state=StepState.RUNNING, complete_by__lt=SagNow())

    def without_remedy(self) -> StepQuerySet:
        """Which failed steps has nobody decided on? (step_without_remedy)"""
        return self.filter(state=StepState.FAILED, remedy="")

    def to_ring(self) -> StepQuerySet:
        """Which ready steps wait for a doorbell, or have waited too long for an answer to the last? (step_to_ring)"""
        return self.filter(
            state=StepState.NOT_STARTED, waiting_for=0, held=False, run_after__lte=SagNow(), ring_after__lte=SagNow()
        ).order_by("ring_after", "id")

    def due(self) -> StepQuerySet:
        """Which wait without a lease for something whose time has come? (step_waiting)"""
        return self.filter(state=StepState.RUNNING, complete_by__isnull=True, deadline__lte=SagNow())

    def queued_too_long(self) -> StepQuerySet:
        """Which stand ready, and nobody took them in time? (step_queued_too_long)"""
        return self.filter(state=StepState.NOT_STARTED, waiting_for=0, held=False, queue_by__lte=SagNow())

    def at_gate(self) -> StepQuerySet:
        """Where has the scheduler to look, and may? (step_at_gate)"""
        its_turn = Q(parent__isnull=True) | Q(index__lt=F("parent__items_admitted"), parent__state=StepState.RUNNING)
        lets_start = Q(role=Role.FORWARD, job__state=JobState.RUNNING) | Q(
            role=Role.UNDO, job__state=JobState.COMPENSATING
        )
        return self.filter(
            its_turn,
            lets_start,
            state=StepState.NOT_STARTED,
            waiting_for=0,
            gated=True,
            run_after__lte=SagNow(),
            job__paused_at__isnull=True,
            job__stopping_at__isnull=True,
        )

    def to_write(self) -> StepQuerySet:
        """Which fan-outs have items that are not written yet? (step_fan_outs)"""
        return self.filter(state=StepState.RUNNING, items_total__gt=F("items_made"))

    def telling(self) -> StepQuerySet:
        """Which look another way without an event: by what a running call tells of itself, or by how its items do?"""
        by_itself = Q(progress__isnull=False) | Q(items_total__isnull=False)
        return self.filter(by_itself, state=StepState.RUNNING)

    def to_spread(self) -> StepQuerySet:
        """Which fan-outs have items to be written, to be let go, or none open any more? (step_fan_outs, step_items_held)"""
        their_turn = self.model._default_manager.filter(
            parent_id=OuterRef("pk"),
            index__lt=OuterRef("items_admitted"),
            state=StepState.NOT_STARTED,
            held=True,
            gated=False,
        )
        waiting = Q(Exists(their_turn), job__paused_at__isnull=True)
        return self.filter(
            Q(items_total__gt=F("items_made")) | Q(items_open=0) | waiting,
            state=StepState.RUNNING,
            items_total__isnull=False,
            job__stopping_at__isnull=True,
        )

    def of_plan(self) -> StepQuerySet:
        """The rows that stand for the plan as it is now, with their undos; without items and earlier generations."""
        return self.filter(parent__isnull=True, superseded=False)

    def of_items(self) -> StepQuerySet:
        """The items of fan-outs, their undos, and the rechecks of those."""
        recheck = Q(role=Role.RECHECK, undoes__index__isnull=False)
        return self.filter(Q(parent__isnull=False) | recheck, superseded=False)

    def results(
        self, job_id: UUID, plan: Sequence[Mapping[str, Any]], names: Iterable[str]
    ) -> tuple[dict[str, Any], set[str]]:
        """{name: result} of steps of one job, and the names of those that left none.

        A fan-out's is the list of its items' results in order; where an alternative was done, its result counts.
        """
        wanted = set(names)
        instead = {step["name"]: step["instead_of"] for step in plan if step.get("instead_of")}
        rows = self.of_plan().filter(job_id=job_id, role=Role.FORWARD, name__in=_with_alternatives(wanted, instead))
        rows = rows.only("name", "state", "result", "items_total")
        found: dict[str, Any] = {}
        for row in rows:
            if row.state != StepState.COMPLETED:
                continue
            primary = row.name
            while primary not in wanted:
                primary = instead[primary]
            found[primary] = row.items_results() if row.is_fan_out else row.result
        return found, wanted - found.keys()

    def with_effects(self) -> StepQuerySet:
        """Forward steps that did something, or may have: Completed, in doubt, or Failed with a job of their own that was not
        undone. One that was let go as this job stopped is its own affair, unless it Failed too.
        """
        attempt: Any = self.model._meta.get_field("attempts").related_model
        job: Any = self.model._meta.get_field("job").related_model
        once: Any = self.model._meta.get_field("calls_once").related_model
        doubt = attempt.objects.filter(step_id=OuterRef("pk"), in_doubt=True, resolved_by="")
        called = once.objects.filter(step_id=OuterRef("pk"))
        child = job.objects.filter(parent_step_id=OuterRef("pk"))
        failed_child = Exists(child.filter(state=JobState.FAILED))
        child_alone = Exists(child.exclude(state=JobState.COMPENSATED)) & ~Q(error_kind=ErrorKind.CANCELLED)
        return self.filter(
            Q(state=StepState.COMPLETED)
            | Exists(doubt)
            | Q(Exists(called), attempt__gt=0)
            | (Q(kind=StepKind.CHILD, state=StepState.FAILED) & (failed_child | child_alone)),
            role=Role.FORWARD,
        )

    def ready(self) -> StepQuerySet:
        """Which may start now? (step_ready, or those of one job)"""
        job: Any = self.model._meta.get_field("job").related_model
        moving = job.objects.filter(pk=OuterRef("job_id"), paused_at__isnull=True, stopping_at__isnull=True)
        breakers: Any = apps.get_model("sag_workflows", "Breaker")
        parks = breakers.objects.filter(parks=True).values("agent")
        answers = Q(admitted=True) | ~Q(agent__in=parks)
        # Looked up step by step: a recheck is due in a job of any state, and a join would read all jobs for it.
        ready = self.alias(job_moves=Subquery(moving.values("state"))).filter(MAY_START, run_after__lte=SagNow())
        return ready.filter(answers)

    def in_line(self, queue: str) -> StepQuerySet:
        """Which stand in this queue and are due, the oldest first; all but a few of them are ready. (step_ready)"""
        return self.filter(
            state=StepState.NOT_STARTED, waiting_for=0, held=False, queue=queue, run_after__lte=SagNow()
        ).order_by("run_after", "id")

    def queues(self) -> list[str]:
        """Where steps stand in line, or will once they are due; a look at the index for each queue. (step_ready)"""
        found: list[str] = []
        names = self.filter(state=StepState.NOT_STARTED, waiting_for=0, held=False).order_by("queue")
        while name := names.filter(queue__gt=found[-1] if found else "").values_list("queue", flat=True).first():
            found.append(name)
        return found

    def queues_that_want(self, limit_key: str) -> list[str]:
        """In which queues do steps wait for a place under this key? (step_wants_key, once for each agent)"""
        waiting = self.filter(
            limit_key=limit_key,
            queue=OuterRef("queue"),
            state=StepState.NOT_STARTED,
            waiting_for=0,
            held=False,
            run_after__lte=SagNow(),
        )
        agents: Any = apps.get_model("sag_workflows", "Agent")
        return list(agents.objects.filter(Exists(waiting)).order_by().values_list("queue", flat=True).distinct())

    def parked(self, agent: str) -> StepQuerySet:
        """Which wait until this agent's service answers again? (step_parked)"""
        return self.filter(state=StepState.NOT_STARTED, parked=True, agent=agent).order_by("run_after", "id")

    def parked_for_nothing(self) -> StepQuerySet:
        """Which are parked although their agent's breaker is closed? (step_parked)"""
        breakers: Any = apps.get_model("sag_workflows", "Breaker")
        closed = breakers.objects.filter(parks=False).values_list("agent", flat=True)
        return self.filter(state=StepState.NOT_STARTED, parked=True, agent__in=list(closed))

    def to_park(self, agent: str) -> StepQuerySet:
        """Which ready steps of this agent are not parked yet? (step_ready)"""
        return self.filter(
            state=StepState.NOT_STARTED, waiting_for=0, held=False, parked=False, admitted=False, agent=agent
        )

    def admitted(self, agent: str) -> StepQuerySet:
        """Which were let through to this agent's service, and have not started? (step_ready)"""
        return self.filter(state=StepState.NOT_STARTED, waiting_for=0, held=False, admitted=True, agent=agent)

    def due_to_start(self) -> StepQuerySet:
        return self.filter(run_after__lte=SagNow())

    def of_moving_jobs(self) -> StepQuerySet:
        """Whose jobs let them start, were they ready?"""
        return self.filter(
            Q(role=Role.FORWARD, job__state=JobState.RUNNING)
            | Q(role=Role.UNDO, job__state=JobState.COMPENSATING)
            | Q(role=Role.RECHECK),
            job__paused_at__isnull=True,
            job__stopping_at__isnull=True,
        )

    def escalated(self) -> StepQuerySet:
        """Which stand in front of a person? (step_escalated)"""
        in_use = Q(superseded=False) | Q(role=Role.RECHECK)
        return self.filter(in_use, state=StepState.FAILED, remedy=Remedy.ESCALATE)

    def in_doubt(self) -> StepQuerySet:
        """Which have an attempt whose outcome nobody knows? (attempt_in_doubt)"""
        return self.filter(attempts__in_doubt=True, attempts__resolved_by="").distinct()

    def fingerprint(self) -> tuple[int, str]:
        """How many they are, and a digest of all: it changes with the state and the attempts of each, and with what is
        known of these, doubts and late words. Made where they are stored, so that ten thousand need not be read.
        """
        attempt: Any = self.model._meta.get_field("attempts").related_model
        attempts = attempt.objects.filter(step_id=OuterRef("pk")).order_by().values("step_id")
        doubts = Count("pk", filter=Q(in_doubt=True, resolved_by=""))
        known = attempts.annotate(known=_text(doubts, Max("late_at"))).values("known")
        each = _text("pk", "version", "state", "attempt", Subquery(known))
        rows = self.order_by().annotate(each=each)
        found = rows.aggregate(count=Count("pk"), digest=MD5(StringAgg("each", delimiter=",", order_by="pk")))
        return found["count"], found["digest"] or ""

    def undoing(self) -> StepQuerySet:
        return self.exclude(role=Role.FORWARD)

    def for_documents(self) -> StepQuerySet:
        """The timeline without the rechecks of items, of which there may be as many as there are items."""
        return self.for_timeline().exclude(role=Role.RECHECK, undoes__index__isnull=False)

    def for_timeline(self) -> StepQuerySet:
        """A job's steps as its plan is now, with their attempts, in the order of the plan; not the items."""
        return self.of_plan().select_related("undoes").prefetch_related("attempts").order_by("seq")


def _text(*values: Any) -> Func:
    """The values as one text."""
    return Func(Value(":"), *values, function="CONCAT_WS", output_field=models.TextField())


def _with_alternatives(names: set[str], instead: Mapping[str, str]) -> set[str]:
    found = set(names)
    for alternative, primary in instead.items():  # in the order of the plan: an alternative's alternative comes later
        if primary in found:
            found.add(alternative)
    return found


class JobQuerySet(models.QuerySet):
    def live(self) -> JobQuerySet:
        return self.filter(state__in=LIVE_JOB_STATES)

    def of_client(self, client_id: int) -> JobQuerySet:
        """The jobs that one client program started. (job_newest_of_client)"""
        return self.filter(client_id=client_id)

    def called(self, name: str) -> JobQuerySet:
        """The one with exactly this id, or those with this key."""
        try:
            return self.filter(Q(pk=UUID(name)) | Q(key=name))
        except ValueError:
            return self.filter(key=name)

    def past_deadline(self) -> JobQuerySet:
        """Whose time is over? (job_with_deadline)"""
        return self.filter(
            state=JobState.RUNNING, stopping_at__isnull=True, time_limit__isnull=False, deadline__lte=SagNow()
        )

    def owe_parent(self) -> JobQuerySet:
        """Which have ended, and the step that waits for them has not heard of it? (job_owes_parent)"""
        return self.filter(parent_step_id__isnull=False, told_parent_at__isnull=True, state__in=TERMINAL_JOB_STATES)

    def to_prune(self, ended_before: datetime, failed_before: datetime) -> JobQuerySet:
        """Which ended jobs are old enough to be forgotten, the oldest first; never one that needs a person. (job_newest)

        A child is kept as long as the job that started it, for its undo.
        """
        ended = Q(state__in=[JobState.COMPLETED, JobState.COMPENSATED], finished_at__lt=ended_before)
        failed = Q(state=JobState.FAILED, finished_at__lt=failed_before)
        parent = self._all_steps().filter(pk=OuterRef("parent_step_id"))
        old = self.filter(ended | failed, ~Exists(parent), created_at__lt=ended_before)
        return old.exclude(pk__in=self.all().needs_person().values("pk")).order_by("created_at", "id")

    def newest_first(self) -> JobQuerySet:
        return self.order_by("-created_at", "-id")

    def next_live(self, after: UUID | None, limit: int) -> list[UUID]:
        """The ids of the live jobs behind `after`, a slice of them. (job_live)"""
        jobs = self.live().filter(id__gt=after) if after else self.live()
        return list(jobs.order_by("id").values_list("id", flat=True)[:limit])

    def stranded(self) -> JobQuerySet:
        """Live jobs with nothing running, nothing that may start now or later, and nothing that waits for a remedy."""
        moving = self._steps().filter(
            Q(state=StepState.RUNNING)
            | Q(state=StepState.NOT_STARTED, waiting_for=0, held=False)
            | Q(state=StepState.NOT_STARTED, parked=True)
            | Q(state=StepState.FAILED, remedy="")
        )
        stopping = Q(stopping_at__isnull=False)
        return self.live().filter(Q(paused_at__isnull=True) | stopping).filter(~Exists(moving))

    def needs_person(self, *found: models.QuerySet) -> JobQuerySet:
        """Jobs with a step that the machine gave up on (step_escalated), or that ended with a doubt open (attempt_in_doubt),
        or with only a part undone (job_undone_in_part). `found`: ids of jobs that somebody else says need one too.
        """
        ended = [JobState.FAILED, JobState.COMPLETED]
        doubtful = Q(attempts__in_doubt=True, attempts__resolved_by="", job__state__in=ended)
        # A union, since PostgreSQL answers each part from its own small index and an OR of them from the whole table.
        escalated = self._all_steps().escalated().values("job_id")
        doubts = self._all_steps().filter(doubtful).values("job_id")
        in_part = self.model._default_manager.filter(state=JobState.FAILED, partial=True).values("pk")
        return self.filter(pk__in=escalated.union(doubts, in_part, *found))

    def failing(self) -> JobQuerySet:
        """Live jobs with a step that failed and has not ended. (step_failing)"""
        return self.live().filter(pk__in=self._all_steps().filter(FAILING).values("job_id"))

    def _all_steps(self) -> StepQuerySet:
        step: Any = self.model._meta.get_field("steps").related_model
        steps: StepQuerySet = step.objects.all()
        return steps

    def _steps(self) -> models.QuerySet:
        """The steps of the job at hand, for `Exists`."""
        return self._all_steps().filter(job_id=OuterRef("pk"))
