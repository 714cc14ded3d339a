"""What the job page shows, put together from rows: two lanes, why it waits, who is needed, which buttons, the history."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Max, Q
from django.http import Http404

from supervisor.console.cards import StepView, cards, surroundings
from workflows import compensation, explanations
from workflows.allowed import job_verbs
from workflows.clock import SagNow, now
from workflows.explanations import Circumstances
from workflows.models import Event, Job, Step
from workflows.plans.plan import Plan
from workflows.states import LIVE_JOB_STATES, JobState, Role, StepState

EVENTS = 200


@dataclass(frozen=True, kw_only=True)
class JobView:
    """Everything on a job's page. `mark` changes when something on it does; `moves` says whether it still may.

    `pivot`: the step behind which there is no way back, once it is done. `earlier`: rows that were undone and done anew.
    `needy_items`: the first items of fan-outs that stand in front of a person.
    `parent`: the step of another job that started this one.
    """

    job: Job
    now: datetime
    mark: str
    summary: str
    moves: bool
    because: str | None
    needs_person: Sequence[str]
    needy_items: Sequence[StepView]
    receipt: dict[str, Any] | None
    progress: dict[str, Any]
    forward: Sequence[StepView]
    undo: Sequence[StepView]
    earlier: Sequence[StepView]
    parent: Step | None
    pivot: str | None
    verbs: Sequence[str]
    live_effects: Sequence[str]
    events: Sequence[Event]
    more_events: bool

    @property
    def undo_is_incomplete(self) -> bool:
        failed = any(card.step.state != StepState.COMPLETED for card in self.undo)
        return self.job.state == JobState.FAILED and bool(self.undo) and (failed or not self.job.partial)


@dataclass(frozen=True)
class Mark:
    """`text` changes when something on a job's page does; `moves` says whether anything still may by itself."""

    text: str
    moves: bool


def mark_of(job_id: uuid.UUID) -> Mark:
    """Beside the job's own number, the mark counts what happens without an event: heartbeats, and moments that pass.

    Read before the rows, so that a change in between is seen by the next look. Http404 when there is no such job.
    """
    waits, runs = Q(steps__state=StepState.NOT_STARTED), Q(steps__state=StepState.RUNNING)
    # Without a lease a step waits until its deadline.
    ends = Q(steps__complete_by__lte=SagNow()) | Q(steps__complete_by=None, steps__deadline__lte=SagNow())
    # A recheck may run behind the end of its job.
    rechecks = waits & Q(steps__role=Role.RECHECK) & ~Q(state=JobState.COMPLETED)
    found = (
        Job.objects.filter(pk=job_id, steps__parent=None)  # not the items, of which there may be thousands
        .values("seq", "state")
        .annotate(
            beat=Max("steps__heartbeat_at"),
            due=Count("steps", filter=waits & Q(steps__run_after__lte=SagNow())),
            late=Count("steps", filter=runs & ends),
            moving=Count("steps", filter=runs | rechecks),
        )
        .order_by("pk")
        .first()
    )
    if found is None:
        raise Http404(f"There is no job {job_id}.")
    beat = int(found["beat"].timestamp() * 1000) if found["beat"] else 0
    text = f"{found['seq']}.{beat}.{found['due']}.{found['late']}"
    return Mark(text, moves=found["state"] in LIVE_JOB_STATES or found["moving"] > 0)


def view_of(job_id: uuid.UUID, mark: Mark | None = None) -> JobView:
    """The page of a job, or Http404. `mark`: one that was just read."""
    mark = mark or mark_of(job_id)
    present = now()
    job = Job.objects.select_related("client").get(pk=job_id)
    plan = Plan.from_json(job.plan)
    steps = _of_job(job, Step.objects.filter(job=job).for_documents())
    replaced = _replaced(job) if any(step.generation > 1 for step in steps) else []
    pivot, allowed = compensation.pivot_passed(plan, steps), job_verbs(job)
    undoable = pivot is None and "compensation" in allowed
    known = explanations.around([job], [*steps, *replaced])
    needy_items = _of_job(job, known.in_need[job.pk].first) if job.pk in known.in_need else []
    around = surroundings(job, plan, [*steps, *replaced], known, present, undoable=undoable)
    shown = cards(around, steps)
    events = list(Event.objects.filter(job=job).order_by("-seq")[: EVENTS + 1])
    return JobView(
        job=job,
        now=present,
        mark=mark.text,
        summary=summary(job, steps, known),
        moves=mark.moves,
        because=explanations.waiting_because(job, steps, present, known),
        needs_person=explanations.needs_person(job, steps, known),
        needy_items=cards(around, needy_items),
        receipt=explanations.receipt(job, steps, known),
        progress=explanations.progress(steps, known),
        forward=[card for card in shown if card.step.role == Role.FORWARD],
        undo=[card for card in shown if card.step.role != Role.FORWARD],
        earlier=cards(around, replaced),
        parent=_parent(job),
        pivot=pivot,
        verbs=allowed,
        live_effects=_live_effects(shown),
        events=events[:EVENTS],
        more_events=len(events) > EVENTS,
    )


def _of_job(job: Job, rows: Iterable[Step]) -> list[Step]:
    steps = list(rows)
    for step in steps:
        step.job = job
    return steps


def _replaced(job: Job) -> list[Step]:
    """The rows of earlier generations, each with its undo behind it."""
    rows = Step.objects.filter(job=job, superseded=True, parent__isnull=True).select_related("undoes")
    return _of_job(job, rows.prefetch_related("attempts").order_by("generation", "seq"))


def _parent(job: Job) -> Step | None:
    if job.parent_step_id is None:
        return None
    return Step.objects.select_related("job").filter(pk=job.parent_step_id).first()


def summary(job: Job, steps: Sequence[Step], known: Circumstances) -> str:
    """The job's state in words."""
    progress = explanations.progress(steps, known)
    if job.state == JobState.RUNNING and job.stopping_at is not None:
        return "Stopping, then everything done is undone" if job.stopping_undo else "Stopping, without undo"
    if job.state == JobState.RUNNING:
        return f"{'Paused, ' if job.paused_at else ''}{progress['done']} of {progress['total']} steps done"
    if job.state == JobState.COMPLETED:
        left = any(step.state == StepState.FAILED for step in steps if step.role == Role.FORWARD)
        return "Done, without what was allowed to fail" if left else "Every step is done"
    if job.state == JobState.COMPENSATING:
        part = ", a part" if job.partial else ""
        return f"{'Paused while undoing' if job.paused_at else 'Undoing'}{part}, {progress['message']}"
    undos = [step for step in steps if step.role == Role.UNDO]
    if job.state == JobState.COMPENSATED:
        return "Everything done has been undone" if undos else "Nothing had been done, so nothing was to be undone"
    if job.partial and all(step.state == StepState.COMPLETED for step in undos):
        return "A part is undone; Retry goes forward again from there"
    return "The undo is incomplete" if undos else "It ended without undo"


def _live_effects(shown: Iterable[StepView]) -> list[str]:
    """What a cancellation with undo would undo now, and one without would leave behind."""
    return [
        f"{card.step.name} ({card.reference})" if card.reference else card.step.name
        for card in shown
        if card.had_effect
    ]
