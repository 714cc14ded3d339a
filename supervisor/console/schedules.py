"""Schedules: what starts by itself when, what became of the last due times, and how to make, change, pause and run one."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.db.models import OuterRef, Subquery
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render

from supervisor.console import schedule_forms as forms
from supervisor.console.access import actor, is_operator, operator, reader
from supervisor.console.actions import NOT_DONE
from supervisor.templatetags.console import duration
from workflows import schedules as verbs
from workflows import tick_records
from workflows.clock import now
from workflows.exceptions import NotFound, SagError, StaleVersion
from workflows.models import Job, Schedule, Tick
from workflows.plans import registry
from workflows.timing.policy import Policy
from workflows.timing.timetable import Timetable
from workflows.timing.zones import ZONES

SIZE = 50
TICKS = 20
TIMES = 5
AROUND_A_CHANGE = 2
CHANGES = 10
_GAPS_OF = timedelta(days=1)

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
    present, known = now(), {workflow.name for workflow in registry.all()}
    shown = [
        {
            "schedule": row,
            "in_words": row.times.in_words(),
            "due": row.next_due.astimezone(ZoneInfo(row.times.timezone)) if row.next_due else None,
            "last": described(ticks[row.last_tick]) if row.last_tick in ticks else None,
            "is_late": tick_records.is_late(row, present),
            "is_gone": row.workflow not in known,
        }
        for row in found[:SIZE]
    ]
    older = found[SIZE - 1].pk if len(found) > SIZE else None
    context = {"now": present, "rows": shown, "older": older, "after": after, "may_act": is_operator(request.user)}
    return render(request, "console/schedules.html", context)


@reader
def schedule(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """One schedule: its next times, what became of the last ones, its rules, and who changed what."""
    found = _kept(schedule_id)
    present = now()
    ticks = list(found.ticks.newest_first()[:TICKS])
    context = {
        "now": present,
        "schedule": found,
        **_upcoming(found.times, present),
        "ticks": [described(tick) for tick in ticks],
        "jobs": Job.objects.only("state", "key").in_bulk([tick.job_id for tick in ticks if tick.job_id]),
        "is_late": tick_records.is_late(found, present),
        "is_gone": found.workflow not in {workflow.name for workflow in registry.all()},
        "missing": tick_records.missing(found, present - _GAPS_OF),
        "backfilling": found.ticks.filter(kind=Tick.Kind.BACKFILL).waiting().count(),
        "policies": in_words(found.policy),
        "changes": found.changes.order_by("-pk")[:CHANGES],
        "may_act": is_operator(request.user),
    }
    return render(request, "console/schedule.html", context)


def _kept(schedule_id: uuid.UUID) -> Schedule:
    found = Schedule.objects.kept().filter(pk=schedule_id).first()
    if found is None:
        raise Http404(f"There is no schedule {schedule_id}.")
    return found


def _upcoming(times: Timetable, present: datetime) -> dict[str, Any]:
    """The next due times, and those round the next change of the clocks; each in the zone and as the moment it is."""
    zone = ZoneInfo(times.timezone)
    change = times.around_next_change(present, AROUND_A_CHANGE)
    return {
        "in_words": times.in_words(),
        "zone": times.timezone,
        "times": [(due.astimezone(zone), due) for due in islice(times.after(present), TIMES)],
        "change": change[0].astimezone(zone) if change else None,
        "around": [(due.astimezone(zone), due) for due in change[1]] if change else [],
    }


# --- make one, change one ---------------------------------------------------------------------------------------------


@reader
def schedule_new(request: HttpRequest) -> HttpResponse:
    """A form; with what was typed so far, its next times or what is wrong with it. Makes nothing."""
    return _form(request, request.GET, None)


@operator
def schedule_create(request: HttpRequest) -> HttpResponse:
    """Make it; what is wrong with it is said in the form."""
    typed = request.POST
    try:
        made = verbs.create(
            workflow=typed.get("workflow", ""),
            input=forms.input_of(typed),
            timetable=forms.timetable_of(typed),
            policy=forms.policy_of(typed),
            client_id=None,
            actor=actor(request),
        )
    except SagError as refusal:
        return _form(request, typed, None, refusal)
    messages.success(request, "Made: it starts with the first of its next times.")
    return redirect("schedule", made.pk)


@reader
def schedule_edit(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """The form of one that there is."""
    found = _kept(schedule_id)
    return _form(request, request.GET or forms.typed_of(found), found)


@operator
def schedule_change(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Change it; a new timetable counts from now on."""
    found, typed, seen = _kept(schedule_id), request.POST, _seen(request)
    if seen is None:
        return _without_version()
    try:
        timetable, policy = forms.timetable_of(typed), forms.policy_of(typed)
        rules = policy.to_json()
        changes = {name: rules[name] for name in ("catch_up", "overlap", "jitter", "pause_on_failure")}
        times = {field: getattr(timetable, field) for field in Timetable.__dataclass_fields__}
        changes |= times | {"input": forms.input_of(typed)}
        verbs.change(schedule_id, changes, actor=actor(request), reason=_note(request), seen=seen)
    except StaleVersion as refusal:
        messages.warning(request, f"{NOT_DONE} {refusal.message}")
        return redirect("schedule", schedule_id)
    except SagError as refusal:
        return _form(request, typed, found, refusal)
    messages.success(request, "Changed: a new timetable counts from now on, and nothing of the past is started.")
    return redirect("schedule", schedule_id)


def _form(
    request: HttpRequest, typed: forms.Typed, schedule: Schedule | None, refusal: SagError | None = None
) -> HttpResponse:
    context: dict[str, Any] = {
        "now": now(),
        "schedule": schedule,
        "typed": typed,
        "workflows": sorted(workflow.name for workflow in registry.all()),
        "zones": ZONES,
        "overlaps": forms.OVERLAPS,
        "catch_ups": forms.CATCH_UPS,
        "may_act": is_operator(request.user),
    }
    if typed:
        try:
            context |= _upcoming(forms.timetable_of(typed), context["now"])
        except SagError as fault:
            refusal = refusal or fault
    context["faults"] = forms.faults_in(refusal) if refusal else []
    status = 422 if refusal and request.method == "POST" else 200
    return render(request, "console/schedule_form.html", context, status=status)


# --- run the past -----------------------------------------------------------------------------------------------------


@reader
def schedule_backfill(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """A form; with a range, what a backfill of it would run. Runs nothing."""
    found, typed = _kept(schedule_id), request.GET
    context: dict[str, Any] = {"faults": []}
    if typed:
        try:
            context = {"faults": [], **_backfilled(request, found, typed, dry_run=True)}
        except SagError as refusal:
            context = {"faults": forms.faults_in(refusal)}
    return _backfill_page(request, found, typed, context)


@operator
def schedule_backfills(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Run what the form had shown, as far as it has not been started meanwhile."""
    found, typed = _kept(schedule_id), request.POST
    try:
        ran = _backfilled(request, found, typed, dry_run=False)["backfill"]
    except SagError as refusal:
        return _backfill_page(request, found, typed, {"faults": forms.faults_in(refusal)}, status=422)
    messages.success(request, f"Due times of the past that are run: {len(ran.ticks)}.")
    return redirect("schedule", schedule_id)


@operator
def schedule_backfills_withdrawal(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Start nothing more of it. Takes no version: whatever waits is dropped."""

    def withdraw() -> str:
        number = verbs.withdraw_backfills(schedule_id, actor=actor(request), reason=_note(request))
        return f"Withdrawn: of the backfill {number} more would have been started."

    return _act(request, schedule_id, withdraw)


def _backfilled(request: HttpRequest, found: Schedule, typed: forms.Typed, *, dry_run: bool) -> dict[str, Any]:
    start, end = forms.range_of(typed, found.times.timezone)
    done = verbs.backfill(
        found.pk, start, end, dry_run=dry_run, actor=actor(request), reason=_note(request), **forms.manner_of(typed)
    )
    zone = ZoneInfo(found.times.timezone)
    return {
        "backfill": done,
        "would_run": [(tick.due_at.astimezone(zone), tick) for tick in done.ticks],
        "left_out": [(tick.due_at.astimezone(zone), described(tick)) for tick in done.left_out],
    }


def _backfill_page(
    request: HttpRequest, found: Schedule, typed: forms.Typed, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    fixed = {
        "now": now(),
        "schedule": found,
        "in_words": found.times.in_words(),
        "typed": typed,
        "overlaps": forms.OVERLAPS,
        "reprocesses": forms.REPROCESSES,
        "may_act": is_operator(request.user),
    }
    return render(request, "console/schedule_backfill.html", fixed | context, status=status)


# --- the buttons ------------------------------------------------------------------------------------------------------


@operator
def schedule_pause(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Start nothing more of it; the note says why."""
    return _change(request, schedule_id, paused=True, said="Paused: nothing more is started until somebody resumes it.")


@operator
def schedule_resumption(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Go on with the next due time."""
    return _change(request, schedule_id, paused=False, said="Resumed: it goes on with the next due time.")


@operator
def schedules_pause(request: HttpRequest) -> HttpResponse:
    """Of all that are ticked start nothing more. Takes no versions: whatever they are now is paused."""
    return _change_several(request, paused=True, said="Paused")


@operator
def schedules_resumption(request: HttpRequest) -> HttpResponse:
    """All that are ticked go on with their next due times."""
    return _change_several(request, paused=False, said="Resumed")


def _change_several(request: HttpRequest, *, paused: bool, said: str) -> HttpResponse:
    """Each in a transaction of its own; one that is gone stops no other."""
    changed = 0
    for text in request.POST.getlist("schedule")[:SIZE]:
        with suppress(ValueError, NotFound):
            verbs.change(uuid.UUID(text), {"paused": paused}, actor=actor(request), reason=_note(request))
            changed += 1
    messages.success(request, f"{said}: {changed}.")
    return redirect("schedules")


@operator
def schedule_triggers(request: HttpRequest, schedule_id: uuid.UUID) -> HttpResponse:
    """Run now. Takes no version: whatever the schedule is now is run."""

    def run() -> str:
        tick = verbs.trigger(schedule_id, actor=actor(request), reason=_note(request))
        word = OUTCOMES[tick.outcome][1]
        return f"{word}. {tick.detail}".strip()

    return _act(request, schedule_id, run)


def _change(request: HttpRequest, schedule_id: uuid.UUID, *, paused: bool, said: str) -> HttpResponse:
    seen = _seen(request)
    if seen is None:
        return _without_version()

    def change() -> str:
        verbs.change(schedule_id, {"paused": paused}, actor=actor(request), reason=_note(request), seen=seen)
        return said

    return _act(request, schedule_id, change)


def _seen(request: HttpRequest) -> int | None:
    seen = request.POST.get("seen", "")
    return int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 10 else None


def _without_version() -> HttpResponse:
    return HttpResponseBadRequest("The field “seen”, the version that was looked at, is missing.")


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
