"""Schedules: what starts by itself when, what became of the last due times, and the buttons to pause, resume and run now."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.db.models import OuterRef, Subquery
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render

from supervisor.console.access import actor, is_operator, operator, reader
from supervisor.console.actions import NOT_DONE
from supervisor.templatetags.console import duration
from workflows import schedules as verbs
from workflows.clock import now
from workflows.exceptions import NotFound, StaleVersion
from workflows.models import Job, Schedule, Tick
from workflows.timing.policy import Policy

SIZE = 50
TICKS = 20
TIMES = 5
CHANGES = 10

# Of each outcome: the shape that stands for it, and its word.
OUTCOMES: dict[str, tuple[str, str]] = {
    Tick.Outcome.STARTED: ("completed", "Started"),
    Tick.Outcome.WAITING: ("waiting", "Waits its turn"),
    Tick.Outcome.SKIPPED: ("skipped", "Skipped"),
    Tick.Outcome.DROPPED: ("failed", "Dropped"),
}
_CATCH_UP = {
    "none": "What nobody opened in time is left out.",
    "latest": "Of what was missed, only the latest due time is made up for",
    "recent": "Of what was missed, the last {limit} due times are made up for",
    "all": "All that was missed is made up for, {limit} due times at most",
}
_OVERLAP = {
    "skip": "A due time that finds the job before it still at work is skipped.",
    "buffer_one": "Of the due times that find the job before them still at work, one waits its turn.",
    "buffer_all": "Due times that find the job before them still at work wait their turn, one after another.",
    "cancel_other": "A due time that finds the job before it still at work has it cancelled and undone first.",
    "allow": "Its jobs may run side by side.",
}


def in_words(policy: Policy) -> list[str]:
    """What a schedule does with what was missed, overlaps, or fails; a sentence each."""
    caught_up = _CATCH_UP[policy.catch_up].format(limit=policy.limit)
    if policy.catch_up != "none":
        caught_up += f", nothing older than {duration(timedelta(seconds=policy.catch_up_window))}."
    found = [_OVERLAP[policy.overlap], caught_up]
    if policy.jitter:
        found.append(f"A job begins up to {duration(timedelta(seconds=policy.jitter))} after its due time.")
    if policy.pause_on_failure:
        found.append("It pauses by itself when a job has ended badly.")
    return found


def described(tick: Tick) -> dict[str, Any]:
    """A tick with its shape and word."""
    shape, word = OUTCOMES[tick.outcome]
    return {"tick": tick, "shape": shape, "word": word}


@reader
def schedules(request: HttpRequest) -> HttpResponse:
    """All schedules, newest first, each with its last tick."""
    last = Tick.objects.filter(schedule=OuterRef("pk")).newest_first().values("pk")[:1]
    rows = Schedule.objects.kept().annotate(last_tick=Subquery(last)).order_by("-pk")
    after = request.GET.get("after", "")
    try:
        rows = rows.filter(pk__lt=uuid.UUID(after)) if after else rows
    except ValueError:
        after = ""
    found: list[Any] = list(rows[: SIZE + 1])
    ticks = Tick.objects.in_bulk([row.last_tick for row in found if row.last_tick])
    shown = [
        {
            "schedule": row,
            "in_words": row.times.in_words(),
            "due": row.next_due.astimezone(ZoneInfo(row.times.timezone)) if row.next_due else None,
            "last": described(ticks[row.last_tick]) if row.last_tick in ticks else None,
        }
        for row in found[:SIZE]
    ]
    older = found[SIZE - 1].pk if len(found) > SIZE else None
    return render(request, "console/schedules.html", {"now": now(), "rows": shown, "older": older, "after": after})


@reader
def schedule(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """One schedule: its next times, what became of the last ones, its rules, and who changed what."""
    found = Schedule.objects.kept().filter(pk=schedule_id).first()
    if found is None:
        raise Http404(f"There is no schedule {schedule_id}.")
    present = now()
    zone = ZoneInfo(found.times.timezone)
    ticks = list(found.ticks.newest_first()[:TICKS])
    context = {
        "now": present,
        "schedule": found,
        "in_words": found.times.in_words(),
        "times": [(due.astimezone(zone), due) for due in islice(found.times.after(present), TIMES)],
        "ticks": [described(tick) for tick in ticks],
        "jobs": Job.objects.only("state", "key").in_bulk([tick.job_id for tick in ticks if tick.job_id]),
        "policies": in_words(found.policy),
        "changes": found.changes.order_by("-pk")[:CHANGES],
        "may_act": is_operator(request.user),
    }
    return render(request, "console/schedule.html", context)


@operator
def schedule_pause(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Start nothing more of it; the note says why."""
    return _change(request, schedule_id, paused=True, said="Paused: nothing more is started until somebody resumes it.")


@operator
def schedule_resumption(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Go on with the next due time."""
    return _change(request, schedule_id, paused=False, said="Resumed: it goes on with the next due time.")


@operator
def schedule_triggers(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Run now. Takes no version: whatever the schedule is now is run."""

    def run() -> str:
        tick = verbs.trigger(schedule_id, actor=actor(request), reason=_note(request))
        word = OUTCOMES[tick.outcome][1]
        return f"{word}. {tick.detail}".strip()

    return _act(request, schedule_id, run)


def _change(request: HttpRequest, schedule_id: uuid.UUID, *, paused: bool, said: str) -> HttpResponse:
    seen = request.POST.get("seen", "")
    if not (seen.isascii() and seen.isdigit() and len(seen) < 10):
        return HttpResponseBadRequest("The field “seen”, the version that was looked at, is missing.")

    def change() -> str:
        verbs.change(schedule_id, {"paused": paused}, actor=actor(request), reason=_note(request), seen=int(seen))
        return said

    return _act(request, schedule_id, change)


def _act(request: HttpRequest, schedule_id: uuid.UUID, verb: Callable[[], str]) -> HttpResponse:
    try:
        messages.success(request, verb())
    except NotFound as error:
        raise Http404(error.message) from error
    except StaleVersion as refusal:
        messages.warning(request, f"{NOT_DONE} {refusal.message}")
    return redirect("schedule", schedule_id)


def _note(request: HttpRequest) -> str:
    return request.POST.get("reason", "").replace("\0", "").strip()[:2000]
