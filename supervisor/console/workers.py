"""The workers: which are there, what each is doing, and which went silent with work in their hands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from workflows.models import Step, Worker
from workflows.standing import SEEN_WITHIN
from workflows.states import StepState

SHOWN = 100
SHOWN_STEPS = 200
_GONE_LATELY = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class WorkerCard:
    """One start of a worker. `steps`: what it has in its hands, as far as they are shown."""

    worker: Worker
    shape: str
    word: str
    steps: list[Step]


def known(now: datetime) -> list[WorkerCard]:
    """Those that are there first; then those that stopped or went silent lately, or left work behind."""
    held = _steps_in_hands()
    cards = [_card(worker, held.get(_mark(worker.name), []), now) for worker in Worker.objects.order_by("-seen_at")]
    lately = now - _GONE_LATELY
    shown = [card for card in cards if card.steps or card.worker.seen_at > lately]
    return sorted(shown, key=lambda card: (card.word in ("Stopped", "Silent"), card.worker.name))[:SHOWN]


def _steps_in_hands() -> dict[str, list[Step]]:
    """{mark of a worker's start: the steps that its processes run}"""
    running = Step.objects.filter(state=StepState.RUNNING, complete_by__isnull=False).exclude(worker="")
    shown = running.only("id", "job_id", "name", "index", "attempt", "worker")
    held: dict[str, list[Step]] = {}
    for step in shown.order_by("id")[:SHOWN_STEPS]:
        held.setdefault(_mark(step.worker), []).append(step)
    return held


def _mark(name: str) -> str:
    """What a worker's name and those of its processes have in common: `host:pid:mark`, `host:pid:mark-…`."""
    return name.rpartition(":")[2].partition("-")[0]


def _card(worker: Worker, steps: list[Step], now: datetime) -> WorkerCard:
    if worker.stopped_at is not None:
        shape, word = "skipped", "Stopped"
    elif now - worker.seen_at > SEEN_WITHIN:
        shape, word = "failed", "Silent"
    elif worker.draining_at is not None or worker.drain_asked_at is not None:
        shape, word = "paused", "Draining"
    elif steps:
        shape, word = "running", "At work"
    else:
        shape, word = "completed", "Idle"
    return WorkerCard(worker=worker, shape=shape, word=word, steps=steps)
