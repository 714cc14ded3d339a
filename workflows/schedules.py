"""What people, programs and the code ask of schedules. Each is one transaction under the lock of the schedule's row.

Whatever was due before is decided on first, by the rules as they were; a new timetable counts from now on. So an edit
neither loses a due time nor starts anything of the past.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from django.db import IntegrityError, transaction

from workflows.clock import now
from workflows.exceptions import InvalidInput, NotFound, StaleVersion
from workflows.models import Job, Schedule, Tick
from workflows.plans import registry
from workflows.plans.nearest import did_you_mean
from workflows.states import JobState
from workflows.ticks import Desk, Kind, Outcome, note_change, pause
from workflows.timing.policy import POLICY_FIELDS, Policy
from workflows.timing.timetable import KINDS, Timetable
from workflows.transitions import in_transaction
from workflows.workflow import Workflow

MOST_BACKFILLED = 1000
_MOST_LEFT = 5000
_FORGOTTEN = "no longer stored"

_TIMETABLE_FIELDS = (*KINDS, "timezone", "exclude", "start_at", "end_at")


@in_transaction
def create(
    *,
    workflow: str,
    input: Any,
    timetable: Timetable,
    policy: Policy,
    paused: bool = False,
    note: str = "",
    client_id: int | None,
    actor: str,
) -> Schedule:
    """A schedule whose first due time lies ahead. Raises UnknownWorkflow and InvalidInput."""
    present = now()
    schedule = Schedule(
        client_id=client_id,
        workflow=workflow,
        input=registry.get(workflow).validate(input),
        timetable=timetable.to_json(),
        next_due=_first_due(timetable, present),
        revision=1,
        created_at=present,
        **policy.to_json(),
    )
    schedule.save(force_insert=True)
    note_change(schedule, "created", actor=actor)
    if paused:
        pause(schedule, present, actor=actor, note=note)
    return schedule


def _first_due(timetable: Timetable, present: datetime) -> datetime:
    first = timetable.next_after(present)
    if first is None:
        field = next(name for name in KINDS if getattr(timetable, name))
        fault = "never falls due: all of its times are past or left out."
        raise InvalidInput(f"This timetable {fault}", errors=[{"pointer": f"/{field}", "message": fault}])
    return first


@in_transaction
def change(
    schedule_id: uuid.UUID, changes: Mapping[str, Any], *, actor: str, reason: str = "", seen: int | None = None
) -> Schedule:
    """Change what `changes` names: fields of Timetable and Policy, `input`, and `paused`.

    To give one of cron, every, at and calendar takes the others away.
    """
    schedule = _locked(schedule_id, seen)
    present = now()
    Desk(schedule, present).bring_up_to_date()
    old = _changeable(schedule)
    _take_over(schedule, changes, present)
    changed = {name: [old[name], value] for name, value in _changeable(schedule).items() if value != old[name]}
    if changed:
        schedule.revision += 1
        schedule.save()
        note_change(schedule, "changed", actor=actor, reason=reason, data=changed)
    if "paused" in changes and changes["paused"] != (schedule.paused_at is not None):
        if changes["paused"]:
            pause(schedule, present, actor=actor, note=reason)
        else:
            _resume(schedule, actor=actor, reason=reason)
    return schedule


def _changeable(schedule: Schedule) -> dict[str, Any]:
    return {**schedule.timetable, **schedule.policy.to_json(), "input": schedule.input}


def _take_over(schedule: Schedule, changes: Mapping[str, Any], present: datetime) -> None:
    times = {name: changes[name] for name in _TIMETABLE_FIELDS if name in changes}
    if any(times.get(name) for name in KINDS):
        times = {"cron": (), "every": None, "at": (), "calendar": ()} | times
    old = schedule.times
    timetable = replace(old, **times)
    if timetable != old:
        schedule.next_due = _first_due(timetable, present)
        schedule.timetable = timetable.to_json()
    policy = replace(schedule.policy, **{name: changes[name] for name in POLICY_FIELDS if name in changes})
    for name, value in policy.to_json().items():
        setattr(schedule, name, value)
    if "input" in changes:
        schedule.input = registry.get(schedule.workflow).validate(changes["input"])


def _resume(schedule: Schedule, *, actor: str, reason: str) -> None:
    schedule.paused_at, schedule.paused_by, schedule.pause_note = None, "", ""
    schedule.revision += 1
    schedule.save(update_fields=["paused_at", "paused_by", "pause_note", "revision"])
    note_change(schedule, "resumed", actor=actor, reason=reason)


@in_transaction
def remove(schedule_id: uuid.UUID, *, actor: str, reason: str = "", seen: int | None = None) -> None:
    """Nothing falls due any more, from this moment; its ticks stay, and the jobs that run go on."""
    _remove(_locked(schedule_id, seen), actor=actor, reason=reason)


def _remove(schedule: Schedule, *, actor: str, reason: str) -> None:
    present = now()
    ticks = Tick.objects.filter(schedule=schedule)
    why = {"reason": "removed", "detail": f"The schedule was removed by {actor}."}
    ticks.waiting().order_by().update(outcome=Outcome.DROPPED, open=False, **why)
    if schedule.next_due is not None:
        left = schedule.times.between(schedule.next_due, present, _MOST_LEFT)
        rows = [Tick(schedule=schedule, due_at=due, kind=Kind.DUE, outcome=Outcome.SKIPPED, **why) for due in left]
        Tick.objects.bulk_create(rows, ignore_conflicts=True)
    schedule.deleted_at, schedule.next_due = present, None
    schedule.revision += 1
    schedule.save()
    note_change(schedule, "removed", actor=actor, reason=reason)


@in_transaction
def trigger(schedule_id: uuid.UUID, *, actor: str, reason: str = "") -> Tick:
    """Run now, by the schedule's rule for overlaps; also while it is paused. Its due times stay what they are."""
    schedule = _locked(schedule_id)
    desk = Desk(schedule, now())
    tick = Tick(schedule=schedule, due_at=desk.present, kind=Kind.TRIGGER)
    desk.admit(tick, schedule.overlap)
    note_change(schedule, "triggered", actor=actor, reason=reason)
    return tick


Reprocess = Literal["none", "failed", "completed"]
"""Which due times that were started before a backfill runs again: none, those whose job ended badly, or all that ended."""

_ENDED: dict[str, tuple[str, ...]] = {
    "none": (),
    "failed": (JobState.FAILED, JobState.COMPENSATED),
    "completed": (JobState.FAILED, JobState.COMPENSATED, JobState.COMPLETED, _FORGOTTEN),
}


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """`ticks`: one for each due time that is, or was, to be run. `left_out`: what the others had been started as."""

    ticks: list[Tick]
    left_out: list[Tick]


@in_transaction
def backfill(
    schedule_id: uuid.UUID,
    start: datetime,
    end: datetime,
    *,
    overlap: str,
    dry_run: bool,
    actor: str,
    reason: str = "",
    reverse: bool = False,
    reprocess: str = "none",
    max_active: int | None = None,
) -> Backfill:
    """Run the due times from `start` on and before `end` that were never started, or that are to be reprocessed.

    Oldest first, unless it is to be in reverse. A dry run only tells them. They follow an overlap rule of their own, since
    most schedules' would skip nearly all of them; with `allow`, at most `max_active` of them run at once.
    """
    schedule = _locked(schedule_id)
    Policy(overlap=overlap)  # type: ignore[arg-type]  # checks it
    desk = Desk(schedule, now())
    _check_range(start, end, desk.present)
    _check_manner(overlap, reprocess, max_active)
    due_times = schedule.times.between(start, end, MOST_BACKFILLED + 1)
    if len(due_times) > MOST_BACKFILLED:
        fault = f"holds more than {MOST_BACKFILLED} due times; ask for it in parts."
        raise InvalidInput(f"The range {fault}", errors=[{"pointer": "/to", "message": fault}])
    left_out, runs = _known(schedule, due_times, reprocess)
    ticks = [
        Tick(schedule=schedule, due_at=due, kind=Kind.BACKFILL, run=runs.get(due, 0) + 1, max_active=max_active)
        for due in sorted(due_times, reverse=reverse)
        if due not in left_out
    ]
    if not dry_run:
        for tick in ticks:
            desk.admit(tick, overlap)
        data = {"from": start.isoformat(), "to": end.isoformat(), "overlap": overlap, "reprocess": reprocess}
        note_change(schedule, "backfilled", actor=actor, reason=reason, data=data)
    return Backfill(ticks=ticks, left_out=list(left_out.values()))


@in_transaction
def withdraw_backfills(schedule_id: uuid.UUID, *, actor: str, reason: str = "") -> int:
    """Of backfills start nothing more; what they have started goes on. How many waited."""
    schedule = _locked(schedule_id)
    waiting = Tick.objects.filter(schedule=schedule, kind=Kind.BACKFILL).waiting().order_by()
    detail = f"The backfill was withdrawn by {actor}. {reason}".strip()
    number = waiting.update(outcome=Outcome.DROPPED, open=False, reason="withdrawn", detail=detail)
    if number:
        note_change(schedule, "withdrawn", actor=actor, reason=reason, data={"due_times": number})
    return number


def _known(
    schedule: Schedule, due_times: list[datetime], reprocess: str
) -> tuple[dict[datetime, Tick], dict[datetime, int]]:
    """By due time: what it was last started as, unless that is to be run again; and how often it was backfilled."""
    known = list(Tick.objects.filter(schedule=schedule, due_at__in=due_times).exclude(kind=Kind.TRIGGER).order_by("id"))
    states: dict[uuid.UUID | None, str] = {
        job.pk: job.state for job in Job.objects.filter(pk__in=[tick.job_id for tick in known]).only("state")
    }
    last = {tick.due_at: tick for tick in known if tick.outcome in (Outcome.STARTED, Outcome.WAITING)}
    left_out = {
        due: tick
        for due, tick in last.items()
        if tick.outcome == Outcome.WAITING or states.get(tick.job_id, _FORGOTTEN) not in _ENDED[reprocess]
    }
    return left_out, {tick.due_at: tick.run for tick in known if tick.kind == Kind.BACKFILL}


def _check_manner(overlap: str, reprocess: str, max_active: int | None) -> None:
    faults = []
    if reprocess not in _ENDED:
        faults.append(("/reprocess", f"cannot be {reprocess!r}.{did_you_mean(reprocess, _ENDED)}"))
    if max_active is not None and not 1 <= max_active <= MOST_BACKFILLED:
        faults.append(("/max_active", f"must be a whole number from 1 to {MOST_BACKFILLED}, not {max_active}."))
    if max_active is not None and overlap != "allow":
        faults.append(("/max_active", "goes with overlap allow only: with any other rule one runs at a time."))
    if faults:
        raise InvalidInput(
            f"The backfill cannot be run: {faults[0][0][1:]} {faults[0][1]}",
            errors=[{"pointer": pointer, "message": fault} for pointer, fault in faults],
        )


def _check_range(start: datetime, end: datetime, present: datetime) -> None:
    for pointer, wrong, fault in (
        ("/to", end <= start, "must come after from."),
        ("/to", end > present, "lies ahead: only what is past can be run again."),
    ):
        if wrong:
            raise InvalidInput(f"The range cannot be run: to {fault}", errors=[{"pointer": pointer, "message": fault}])


def _locked(schedule_id: uuid.UUID, seen: int | None = None) -> Schedule:
    """Raises NotFound, and StaleVersion when it is no longer as it was `seen`."""
    schedule = Schedule.objects.kept().select_for_update(no_key=True).filter(pk=schedule_id).first()
    if schedule is None:
        raise NotFound(f"There is no schedule {schedule_id}.")
    if seen is not None and schedule.revision != seen:
        raise StaleVersion(f"The schedule is at revision {schedule.revision}, not {seen}. Nothing was done.")
    return schedule


# --- what the code declares --------------------------------------------------------------------------------------------


def register_declared() -> int:
    """A row for each workflow with a schedule, as the code says; how many were written.

    A schedule that people have changed since keeps their changes until the code declares another one.
    """
    return sum(_register(workflow) for workflow in registry.all())


@in_transaction
def _register(workflow: type[Workflow]) -> bool:
    declared = workflow.schedule.to_json() if workflow.schedule else None
    rows = Schedule.objects.select_for_update(no_key=True)
    schedule = rows.filter(workflow=workflow.name, declaration__isnull=False).first()
    if schedule is None:
        return declared is not None and _declare(workflow, declared)
    if declared is None:
        if schedule.deleted_at is None:
            _remove(schedule, actor="code", reason="The workflow declares no schedule any more.")
            return True
        return False
    if declared == schedule.declaration:
        return False
    present = now()
    if schedule.deleted_at is None:
        Desk(schedule, present).bring_up_to_date()
    timetable = Timetable.from_json(declared)
    schedule.timetable, schedule.declaration, schedule.deleted_at = timetable.to_json(), declared, None
    schedule.next_due = timetable.next_after(present)
    for name, value in Policy.from_json(declared).to_json().items():
        setattr(schedule, name, value)
    schedule.revision += 1
    schedule.save()
    note_change(schedule, "declared", actor="code")
    return True


def _declare(workflow: type[Workflow], declared: dict[str, Any]) -> bool:
    """False when another process was faster."""
    timetable, present = Timetable.from_json(declared), now()
    schedule = Schedule(
        workflow=workflow.name,
        input=workflow.validate(None),
        timetable=timetable.to_json(),
        declaration=declared,
        next_due=timetable.next_after(present),
        revision=1,
        created_at=present,
        **Policy.from_json(declared).to_json(),
    )
    try:
        with transaction.atomic():
            schedule.save(force_insert=True)
    except IntegrityError:
        return False
    note_change(schedule, "declared", actor="code")
    return True
