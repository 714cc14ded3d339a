"""What the job page shows, put together from rows: two lanes, why it waits, who is needed, which buttons, the history."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Q
from django.http import Http404

from workflows import explanations, verbs
from workflows.clock import SagNow, now
from workflows.models import Attempt, Event, Job, Step
from workflows.states import LIVE_JOB_STATES, JobState, Reason, Role, StepState

EVENTS = 200


@dataclass(frozen=True, kw_only=True)
class StepView:
    """A step as a card in its lane. `word` is its state as people say it; `verbs` name the buttons it has."""

    step: Step
    attempts: Sequence[Attempt]
    word: str
    in_doubt: bool
    reference: str | None
    because: str | None
    verbs: Sequence[str]
    starts_at: datetime | None
    open: bool

    @property
    def sent(self) -> Any:
        """The input that the last attempt with one really sent."""
        return next((attempt.input for attempt in reversed(self.attempts) if attempt.input is not None), None)


@dataclass(frozen=True, kw_only=True)
class JobView:
    """Everything on a job's page. `mark` changes when something on it does; `moves` says whether it still may."""

    job: Job
    now: datetime
    mark: str
    summary: str
    moves: bool
    because: str | None
    needs_person: Sequence[str]
    receipt: dict[str, Any] | None
    progress: dict[str, Any]
    forward: Sequence[StepView]
    undo: Sequence[StepView]
    verbs: Sequence[str]
    live_effects: Sequence[str]
    events: Sequence[Event]
    more_events: bool

    @property
    def until(self) -> datetime:
        """Until when its time runs."""
        return self.job.finished_at or self.now

    @property
    def undo_is_incomplete(self) -> bool:
        return self.job.state == JobState.FAILED and bool(self.undo)


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
    # A recheck may run behind the end of its job.
    rechecks = waits & Q(steps__role=Role.RECHECK) & ~Q(state=JobState.COMPLETED)
    found = (
        Job.objects.filter(pk=job_id)
        .values("seq", "state")
        .annotate(
            beat=Max("steps__heartbeat_at"),
            due=Count("steps", filter=waits & Q(steps__run_after__lte=SagNow())),
            late=Count("steps", filter=runs & Q(steps__complete_by__lte=SagNow())),
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


def view_of(job_id: uuid.UUID) -> JobView:
    """The page of a job, or Http404."""
    mark = mark_of(job_id)
    present = now()
    job = Job.objects.select_related("client").get(pk=job_id)
    steps = list(Step.objects.filter(job=job).for_timeline())
    for step in steps:
        step.job = job
    by_kind = _verbs_by_kind(job, steps)
    cards = [_card(job, step, steps, by_kind, present) for step in steps]
    events = list(Event.objects.filter(job=job).order_by("-seq")[: EVENTS + 1])
    return JobView(
        job=job,
        now=present,
        mark=mark.text,
        summary=summary(job, steps),
        moves=mark.moves,
        because=explanations.waiting_because(job, steps, present),
        needs_person=explanations.needs_person(job, steps),
        receipt=explanations.receipt(job, steps),
        progress=explanations.progress(steps),
        forward=[card for card in cards if card.step.role == Role.FORWARD],
        undo=[card for card in cards if card.step.role != Role.FORWARD],
        verbs=verbs.job_verbs(job),
        live_effects=_live_effects(cards),
        events=events[:EVENTS],
        more_events=len(events) > EVENTS,
    )


def summary(job: Job, steps: Sequence[Step]) -> str:
    """The job's state in words."""
    progress = explanations.progress(steps)
    if job.state == JobState.RUNNING and job.stopping_at is not None:
        return "Stopping, then everything done is undone" if job.stopping_undo else "Stopping, without undo"
    if job.state == JobState.RUNNING:
        return f"{'Paused, ' if job.paused_at else ''}{progress['done']} of {progress['total']} steps done"
    if job.state == JobState.COMPLETED:
        return "Every step is done"
    if job.state == JobState.COMPENSATING:
        return f"{'Paused while undoing' if job.paused_at else 'Undoing'}, {progress['message']}"
    undone = any(step.role == Role.UNDO for step in steps)
    if job.state == JobState.COMPENSATED:
        return "Everything done has been undone" if undone else "Nothing had been done, so nothing was to be undone"
    return "The undo is incomplete" if undone else "It ended without undo"


def reason_in_words(job: Job) -> str:
    """Why a job stopped short, one sentence or an empty text."""
    words = {
        Reason.STEP_FAILED: "A step failed",
        Reason.CANCELLED: "It was cancelled",
        Reason.DEADLINE: "Its time was over",
        Reason.OPERATOR: "A person had it undone",
        Reason.PARENT: "The job that started it ended",
    }
    if not job.reason:
        return ""
    said = words[Reason(job.reason)]
    return f"{said}: {job.reason_detail}" if job.reason_detail else f"{said}."


def _verbs_by_kind(job: Job, steps: Iterable[Step]) -> dict[tuple[str, str], list[str]]:
    """What may be asked of steps: the same for all of one role in one state, so asked of the store once for each."""
    one_of_each = {(step.role, step.state): step for step in steps}
    return {kind: verbs.step_verbs(job, step) for kind, step in one_of_each.items()}


def _card(
    job: Job, step: Step, steps: Sequence[Step], verbs: dict[tuple[str, str], list[str]], present: datetime
) -> StepView:
    undone = any(
        other.undoes_id == step.pk and other.state == StepState.COMPLETED for other in steps
    ) and not explanations.in_doubt(step)
    waits = step.state == StepState.NOT_STARTED and not step.waiting_for and step.run_after > present
    return StepView(
        step=step,
        attempts=list(step.attempts.all()),
        word="Undone" if undone else _word(step),
        in_doubt=explanations.in_doubt(step),
        reference=explanations.known_reference(step),
        because=explanations.step_waiting_because(job, step, steps, present),
        verbs=verbs[step.role, step.state],
        starts_at=step.run_after if waits and not job.is_terminal else None,
        open=step.state in (StepState.RUNNING, StepState.FAILED) and not undone,
    )


def _word(step: Step) -> str:
    if step.state == StepState.NOT_STARTED:
        return "Retrying" if step.attempt else "Waiting"
    return StepState(step.state).value


def _live_effects(cards: Iterable[StepView]) -> list[str]:
    """What a cancellation with undo would undo now, and one without would leave behind."""
    return [
        f"{card.step.name} ({card.reference})" if card.reference else card.step.name
        for card in cards
        if card.step.role == Role.FORWARD
        and card.word != "Undone"
        and (card.step.state == StepState.COMPLETED or card.in_doubt)
    ]


def took(step: Step, present: datetime) -> timedelta | None:
    """How long a step has been at it, or was."""
    return (step.finished_at or present) - step.started_at if step.started_at else None
