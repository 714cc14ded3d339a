"""A step as a card: what became of it, what it waits for, who settled it, and what may be asked of it.

What a card needs beside its own row is read once for all cards of a page, so that a job of a hundred steps costs as many
queries as one of three.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor.console import words
from workflows import explanations
from workflows.allowed import step_verbs
from workflows.explanations import Circumstances
from workflows.models import Attempt, Job, Signal, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.states import ErrorKind, JobState, Role, StepKind, StepState

ITEM_WORDS = {
    StepState.COMPLETED: "done",
    StepState.RUNNING: "running",
    StepState.FAILED: "failed",
    StepState.SKIPPED: "skipped",
    StepState.NOT_STARTED: "waiting",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """The items of a fan-out in one state; `left` and `width` are its place in the bar, in percent."""

    state: str
    word: str
    number: int
    left: float
    width: float


@dataclass(frozen=True, kw_only=True)
class StepView:
    """A step as a card in its lane. `word` is its state as people say it; `verbs` name the buttons it has.

    `waits`: what it waits for without a worker: "timer", "signal", "child", "items" or "callback"; or empty.
    `doubts`: how many of its items are in doubt. `had_effect`: something that it did is live, or may be.
    """

    step: Step
    planned: PlanStep
    attempts: Sequence[Attempt]
    word: str
    in_doubt: bool
    doubts: int
    reference: str | None
    because: str | None
    verbs: Sequence[str]
    starts_at: datetime | None
    open: bool
    waits: str
    parts: Sequence[Part]
    child: Job | None
    signals: Sequence[Signal]
    settled: str
    undone: bool
    had_effect: bool
    may_undo_down_to: bool

    @property
    def sent(self) -> Any:
        """The input that the last attempt with one really sent."""
        return next((attempt.input for attempt in reversed(self.attempts) if attempt.input is not None), None)

    @property
    def takes_signal(self) -> bool:
        """Whether a signal that came now would be heard, or kept for it."""
        if self.step.kind != StepKind.SIGNAL or self.step.superseded:
            return False
        return self.waits == "signal" or self.takes_early_signal

    @property
    def takes_early_signal(self) -> bool:
        """Whether a signal that came now would be kept. An approval ahead of what it decides on is nothing for a button."""
        job, kept = self.step.job, any(signal.outcome == Signal.Outcome.KEPT for signal in self.signals)
        ordinary = job.state == JobState.RUNNING and job.stopping_at is None
        waits_yet = self.step.kind == StepKind.SIGNAL and self.step.state == StepState.NOT_STARTED
        return ordinary and waits_yet and not kept and not self.planned.approval

    @property
    def may_take_new_key(self) -> bool:
        definite = self.step.error_kind == ErrorKind.PERMANENT and not self.in_doubt
        return "retries" in self.verbs and definite and self.step.kind == StepKind.CALL and not self.step.is_fan_out

    @property
    def has_long_item(self) -> bool:
        """Whether its item is more than fits behind its name."""
        return isinstance(self.step.item, dict | list) or (isinstance(self.step.item, str) and len(self.step.item) > 60)

    @property
    def holds(self) -> list[str]:
        """What is to be seen when the card is opened."""
        number = len(self.attempts)
        parts = {
            "item": self.has_long_item,
            f"{number} attempt{'' if number == 1 else 's'}": number > 0,
            "result": self.step.result is not None,
        }
        return [name for name, there in parts.items() if there]

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the running call last said of itself."""
        said = self.step.progress
        return said if isinstance(said, dict) and self.step.state == StepState.RUNNING else None

    @property
    def counters(self) -> dict[str, Any]:
        """The counters of its own that a running call reports."""
        known = ("done", "total", "message")
        return {name: value for name, value in (self.progress or {}).items() if name not in known}


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What cards are made from beside their own rows. `undone`: the ids of steps whose undo is done.

    `undoable`: the job may be undone now, as a whole or down to one of these steps.
    """

    job: Job
    plan: Plan
    steps: Sequence[Step]
    present: datetime
    known: Circumstances
    undone: Collection[int]
    signals: Mapping[str, Sequence[Signal]]
    undoable: bool


def surroundings(
    job: Job, plan: Plan, steps: Sequence[Step], known: Circumstances, present: datetime, *, undoable: bool = False
) -> Surroundings:
    """Of these steps, at a cost that does not grow with them."""
    return Surroundings(
        job=job,
        plan=plan,
        steps=steps,
        present=present,
        known=known,
        undone=_undone(steps),
        signals=_signals(job, steps),
        undoable=undoable,
    )


def _undone(steps: Sequence[Step]) -> set[int]:
    undone = {step.undoes_id for step in steps if step.undoes_id and step.state == StepState.COMPLETED}
    items = [step.pk for step in steps if step.parent_id is not None]
    if items:  # their undos are the items of another fan-out
        undone |= set(
            Step.objects.filter(undoes__in=items, state=StepState.COMPLETED).values_list("undoes_id", flat=True)
        )
    return undone


def parts_of(counts: Mapping[str, int]) -> list[Part]:
    """The bar of a fan-out."""
    total = sum(counts.values())
    parts, left = [], 0.0
    for state, word in ITEM_WORDS.items():
        number = counts.get(state, 0)
        if number:
            width = round(100 * number / total, 3)
            parts.append(Part(state=state, word=word, number=number, left=round(left, 3), width=width))
            left += width
    return parts


def _signals(job: Job, steps: Sequence[Step]) -> dict[str, list[Signal]]:
    """{name: what has come for it}. What came too late is told by the history."""
    found: dict[str, list[Signal]] = {}
    if any(step.kind == StepKind.SIGNAL for step in steps):
        for signal in Signal.objects.filter(job=job).exclude(outcome=Signal.Outcome.LOST):
            found.setdefault(signal.name, []).append(signal)
    return found


def cards(around: Surroundings, rows: Sequence[Step]) -> list[StepView]:
    """These rows, which are among the steps or are items of them, as cards."""
    asked: dict[tuple[Any, ...], list[str]] = {}
    return [_card(around, row, _verbs(around.job, row, asked)) for row in rows]


def _verbs(job: Job, step: Step, asked: dict[tuple[Any, ...], list[str]]) -> list[str]:
    """What may be asked of a step: the same for all that agree in what decides it, so asked of the store once for each."""
    like = (
        *(step.role, step.state, step.kind, step.remedy, step.error_kind, step.superseded),
        *(step.is_fan_out, step.parent_id is None, step.released_at is None, step.complete_by is None),
        *(step.attempt > 0, explanations.in_doubt(step)),
    )
    if like not in asked:
        asked[like] = step_verbs(job, step)
    return asked[like]


def _card(around: Surroundings, step: Step, allowed: Sequence[str]) -> StepView:
    doubts = around.known.doubts.get(step.pk, 0)
    in_doubt = explanations.in_doubt(step) or doubts > 0
    undone = step.pk in around.undone and not in_doubt
    later = step.state == StepState.NOT_STARTED and not step.waiting_for and step.run_after > around.present
    waits = _waits(step)
    parts = parts_of(around.known.counts.get(step.pk, {}))
    done = step.state == StepState.COMPLETED or any(part.state == StepState.COMPLETED for part in parts)
    had_effect = step.role == Role.FORWARD and not undone and not step.superseded and (done or in_doubt)
    return StepView(
        step=step,
        planned=around.plan.steps[step.place],
        attempts=list(step.attempts.all()),
        word="Undone" if undone else _word(step, waits),
        in_doubt=in_doubt,
        doubts=doubts,
        reference=explanations.known_reference(step),
        because=None
        if step.superseded
        else explanations.step_waiting_because(around.job, step, around.steps, around.present, around.known),
        verbs=allowed,
        starts_at=step.run_after if later and not around.job.is_terminal else None,
        open=step.state in (StepState.RUNNING, StepState.FAILED) and not undone and not step.superseded,
        waits=waits,
        parts=parts,
        child=around.known.children.get(step.pk),
        signals=around.signals.get(step.name, []) if step.kind == StepKind.SIGNAL and not step.superseded else [],
        settled=words.of_settling(step),
        undone=undone,
        had_effect=had_effect,
        may_undo_down_to=around.undoable and had_effect and step.parent_id is None,
    )


def _waits(step: Step) -> str:
    if step.state != StepState.RUNNING or step.complete_by is not None:
        return ""
    if step.is_fan_out:
        return "items"
    return "callback" if step.kind == StepKind.CALL else str(step.kind)


def _word(step: Step, waits: str) -> str:
    if step.state == StepState.NOT_STARTED:
        return "Retrying" if step.attempt and step.error_kind else "Waiting"
    if waits in ("timer", "signal", "callback"):
        return "Waiting"
    return StepState(step.state).value
