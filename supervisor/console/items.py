"""The items of one fan-out, a page at a time, by keyset: the last page of 10,000 costs what the first one does."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.http import Http404, QueryDict

from supervisor.console.cards import ITEM_WORDS, Part, StepView, cards, parts_of, surroundings
from workflows import explanations, verbs
from workflows.clock import now
from workflows.exceptions import NotFound
from workflows.models import Job, Step
from workflows.plans.plan import Plan
from workflows.states import LIVE_JOB_STATES, StepState

SIZE = 50


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A state as a link to the items in it."""

    state: str
    word: str
    number: int
    query: str
    on: bool


@dataclass(frozen=True, kw_only=True)
class ItemsView:
    """A page of items. `earlier` and `later` are the queries of the pages on either side, where there are any."""

    job: Job
    fan: Step
    now: datetime
    parts: Sequence[Part]
    chips: Sequence[Chip]
    cards: Sequence[StepView]
    state: str
    query: str
    earlier: str
    later: str

    @property
    def moves(self) -> bool:
        return self.job.state in LIVE_JOB_STATES

    @property
    def failed(self) -> int:
        return sum(part.number for part in self.parts if part.state == StepState.FAILED)


def view_of(job_id: uuid.UUID, name: str, asked: QueryDict) -> ItemsView:
    """The page that `?state=`, `?generation=` and `?after=` or `?before=` an index name, or Http404."""
    job, fan = _fan(job_id, name, _number(asked, "generation"))
    state = asked.get("state", "")
    state = state if state in ITEM_WORDS else ""
    after, before = _number(asked, "after"), _number(asked, "before")
    rows, less, more = _page(fan, state, after, before)
    for row in rows:
        row.job = job
    present = now()
    known = explanations.around([job], [fan, *rows])
    counts = known.counts[fan.pk]
    around = surroundings(job, Plan.from_json(job.plan), rows, known, present)
    return ItemsView(
        job=job,
        fan=fan,
        now=present,
        parts=parts_of(counts),
        chips=[
            Chip(state=known, word=word, number=counts[known], query=_query(fan, known), on=known == state)
            for known, word in ITEM_WORDS.items()
        ],
        cards=cards(around, rows),
        state=state,
        query=_query(fan, state, after=after, before=before),
        earlier=_query(fan, state, before=rows[0].index) if less and rows else "",
        later=_query(fan, state, after=rows[-1].index) if more and rows else "",
    )


def _fan(job_id: uuid.UUID, name: str, generation: int | None) -> tuple[Job, Step]:
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise Http404(f"There is no job {job_id}.")
    try:
        fan = verbs.step_at(job, name)
    except NotFound as error:
        raise Http404(error.message) from error
    if generation is not None and generation != fan.generation:
        found = Step.objects.filter(job=job, name=fan.name, index__isnull=True, generation=generation).first()
        if found is None:
            raise Http404(f"{name} has no generation {generation}.")
        fan = found
    if not fan.is_fan_out:
        raise Http404(f"{name} has no items.")
    return job, fan


def _page(fan: Step, state: str, after: int | None, before: int | None) -> tuple[list[Step], bool, bool]:
    """(items, whether there are some before them, whether there are some behind them)"""
    items = Step.objects.filter(parent=fan).select_related("undoes").prefetch_related("attempts")
    if state:
        items = items.filter(state=state)
    if before is not None and after is None:
        found = list(items.filter(index__lt=before).order_by("-index")[: SIZE + 1])
        return found[:SIZE][::-1], len(found) > SIZE, True
    if after is not None:
        items = items.filter(index__gt=after)
    found = list(items.order_by("index")[: SIZE + 1])
    return found[:SIZE], after is not None, len(found) > SIZE


def _number(asked: QueryDict, name: str) -> int | None:
    text = asked.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _query(fan: Step, state: str, *, after: int | None = None, before: int | None = None) -> str:
    generation = fan.generation if fan.superseded else None
    pairs = {"state": state or None, "generation": generation, "after": after, "before": before}
    return urlencode({name: value for name, value in pairs.items() if value is not None})
