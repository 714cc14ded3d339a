"""Opens ticks: what becomes of each due time of a schedule, decided once, in one row.

Each schedule is one short transaction under the lock of its row, which is read again there: any number of processes at
once is harmless, and a process that dies leaves either all of it or nothing. `next_due` moves on with the rows of what was
due, so that a due time is never passed over. What happened while nobody looked is found by it, and its policy decides.
"""

import logging
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import Error, connection, transaction
from django.db.models import QuerySet

from workflows import transitions, verbs
from workflows.clock import now
from workflows.exceptions import KeyInUse, SagError
from workflows.models import Job, Schedule, ScheduleChange, Tick
from workflows.plans import registry
from workflows.states import JobState, Reason
from workflows.timing.policy import ON_TIME
from workflows.transitions import in_transaction

logger = logging.getLogger(__name__)

Kind, Outcome = Tick.Kind, Tick.Outcome

PACE = 50
"""Of what is late, made up for or of a backfill, one look at all schedules starts no more than this."""

MOST_WAITING = 1000

_ROWS_AT_ONCE = 5000
_PAGE = 200
_TIME_A_PASS = 10.0
_MOMENT = timedelta(microseconds=1)


@dataclass
class Pace:
    """How much of what is late may be started yet, by one look at all schedules."""

    left: int = PACE


def open_due() -> int:
    """One look at all schedules of which something is due, or where a turn has come. How many ticks were decided on."""
    until, pace = time.monotonic() + _TIME_A_PASS, Pace()
    decided = 0
    for schedules in (Schedule.objects.due(), Schedule.objects.to_attend()):
        for schedule_id in _ids(schedules):
            if time.monotonic() > until:
                return decided
            try:
                decided += _look_at(schedule_id, pace)
            except Exception as error:  # one poison row must not stop the others
                logger.error("schedule %s could not be looked at", schedule_id, exc_info=error)
                if isinstance(error, Error):
                    connection.close_if_unusable_or_obsolete()
    return decided


def _ids(schedules: QuerySet[Schedule]) -> Iterator[uuid.UUID]:
    """Ids by keyset, a page at a time, without a lock."""
    last = uuid.UUID(int=0)
    while page := list(schedules.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:_PAGE]):
        yield from page
        last = page[-1]


def _look_at(schedule_id: uuid.UUID, pace: Pace) -> int:
    desk = _at_the_desk(schedule_id, pace)
    if desk is None:
        return 0
    for job_id in desk.to_cancel():  # each a transaction of its own, since none may lock two jobs
        try:
            verbs.cancel(
                job_id, undo=True, actor="schedule", reason="A later due time of its schedule takes its place."
            )
        except SagError as error:
            logger.info("job %s is not stopped for a later due time, which waits for its end: %s", job_id, error)
    return desk.decided


@in_transaction
def _at_the_desk(schedule_id: uuid.UUID, pace: Pace) -> "Desk | None":
    """None when somebody else is looking at it, or it is gone."""
    rows = Schedule.objects.kept().select_for_update(no_key=True, skip_locked=True)
    schedule = rows.filter(pk=schedule_id).first()
    if schedule is None:
        return None
    desk = Desk(schedule, now(), pace)
    desk.look()
    return desk


@dataclass
class Desk:
    """One look at a schedule whose row is locked: what runs, what waits, and what is decided now."""

    schedule: Schedule
    present: datetime
    pace: Pace = field(default_factory=Pace)
    running: list[Tick] = field(init=False)
    waiting: list[Tick] = field(init=False)
    decided: int = 0

    def __post_init__(self) -> None:
        ticks = Tick.objects.filter(schedule=self.schedule)
        self._take_note_of_ends(list(ticks.of_ended_jobs()))
        self.running = list(ticks.running())
        self.waiting = list(ticks.waiting())

    def look(self) -> None:
        """Decide on what is due, one batch of it, and let those that wait have their turn."""
        self._let_wait_no_longer()
        self._open_due()
        self._let_wait_no_longer()

    def bring_up_to_date(self) -> None:
        """Decide on all that is due, by the rules as they still are. For who is about to change them."""
        self.look()
        while self.schedule.next_due is not None and self.schedule.next_due <= self.present:
            self._open_due()

    def to_cancel(self) -> list[uuid.UUID]:
        """The jobs that are to make room for a tick that waits."""
        if not any(tick.overlap == "cancel_other" for tick in self.waiting):
            return []
        return [tick.job_id for tick in _in_the_way(self.running) if tick.job_id]

    # --- what is due ---

    def _open_due(self) -> None:
        schedule, since = self.schedule, self.schedule.next_due
        if since is None or since > self.present:
            return
        if schedule.paused_at is None and not self._has_its_client():
            pause(schedule, since, actor="scheduler", note="Its client is gone, or may not sign in any more.")
        times, policy = schedule.times, schedule.policy
        to_make_up = policy.to_make_up(times, since, self.present)
        if policy.overlap == "cancel_other" and to_make_up:
            to_make_up = {max(to_make_up)}
        due_times = times.between(since, self.present + _MOMENT, _ROWS_AT_ONCE)
        known = set(
            Tick.objects.filter(schedule=schedule, kind=Kind.DUE, due_at__in=due_times).values_list("due_at", flat=True)
        )
        passed_over: list[Tick] = []
        for due in due_times:
            if due in known:
                continue
            tick = Tick(schedule=schedule, due_at=due, kind=Kind.DUE, decided_at=self.present)
            if schedule.paused_at is not None and due >= schedule.paused_at:
                passed_over.append(
                    _passed_over(tick, "paused", f"Paused by {schedule.paused_by}. {schedule.pause_note}")
                )
            elif due >= self.present - ON_TIME:
                self.admit(tick, policy.overlap)
            elif due in to_make_up:
                tick.made_up = True
                self.admit(tick, policy.overlap)
            else:
                passed_over.append(_passed_over(tick, *policy.why_not(due, self.present)))
        Tick.objects.bulk_create(passed_over)
        self.decided += len(passed_over)
        self._move_on(times.next_after(due_times[-1] if due_times else self.present))

    def _has_its_client(self) -> bool:
        """What belongs to nobody goes on; what belongs to somebody who is gone would start jobs that nobody may see."""
        client = self.schedule.client_id
        return client is None or get_user_model().objects.filter(pk=client, is_active=True).exists()

    def _move_on(self, next_due: datetime | None) -> None:
        self.schedule.next_due, self.schedule.scanned_at = next_due, self.present
        Schedule.objects.filter(pk=self.schedule.pk).update(next_due=next_due, scanned_at=self.present)

    # --- one tick ---

    def admit(self, tick: Tick, overlap: str) -> None:
        """Start it, or have it wait, or not, as the rule says for what finds another one at work."""
        tick.overlap = overlap
        # What is late would skip itself, but for the first; and what is on time is not skipped on its account.
        ahead = _in_the_way([*self.running, *self.waiting])
        behind_late_ones = overlap == "skip" and all(_is_late(other) for other in ahead)
        takes_turns = (
            overlap == "buffer_all" or behind_late_ones or (tick.made_up and overlap in ("skip", "buffer_one"))
        )
        if overlap == "allow" or not ahead:
            self._start_or_have_it_wait(tick)
        elif takes_turns:
            self._have_it_wait(tick)
        elif overlap == "skip":
            self._write(_passed_over(tick, "overlap", f"Job {_whose(ahead)} was still at work."))
        else:
            self._take_the_place_of_others(tick)

    def _start_or_have_it_wait(self, tick: Tick) -> None:
        if self._may_start(tick):
            self._start(tick)
        else:
            self._have_it_wait(tick)

    def _may_start(self, tick: Tick) -> bool:
        """Whether there is room for it now."""
        if _is_late(tick) and self.pace.left < 1:
            return False
        if tick.overlap != "allow":
            return not _in_the_way(self.running)
        of_backfills = sum(other.is_in_nobodys_way for other in self.running)
        return tick.max_active is None or of_backfills < tick.max_active

    def _take_the_place_of_others(self, tick: Tick) -> None:
        for other in list(self.waiting):
            if other.kind == tick.kind and other.overlap == tick.overlap and not other.made_up:
                self.waiting.remove(other)
                self._write(_passed_over(other, "buffer", "A later due time took its place.", Outcome.DROPPED))
        self._have_it_wait(tick)

    def _have_it_wait(self, tick: Tick) -> None:
        if len(self.waiting) >= MOST_WAITING:
            self._write(_passed_over(tick, "buffer", f"{MOST_WAITING} others were waiting already.", Outcome.DROPPED))
            return
        tick.outcome, tick.open = Outcome.WAITING, True
        self._write(tick)
        self.waiting.append(tick)

    def _let_wait_no_longer(self) -> None:
        for tick in list(self.waiting):
            if self._may_start(tick):
                self.waiting.remove(tick)
                self._start(tick)

    def _start(self, tick: Tick) -> None:
        """Its job, in this transaction; or the reason why there can be none."""
        try:
            with transaction.atomic():
                job = registry.get(self.schedule.workflow).start(
                    self.schedule.input,
                    key=_key(tick),
                    client_id=self.schedule.client_id,
                    actor="schedule",
                    start_at=self._start_at(tick),
                )
                transitions.stand_for(job, tick.due_at)
        except (KeyInUse, Error):
            raise  # it passes: all of this is undone, and done again at the next look
        except Exception as error:
            code = error.code if isinstance(error, SagError) else "error"
            self._write(_passed_over(tick, code, f"No job could be started: {error}", Outcome.DROPPED))
            return
        tick.outcome, tick.reason, tick.detail, tick.job, tick.open = Outcome.STARTED, "", "", job, True
        self._write(tick)
        self.running.append(tick)
        if _is_late(tick):
            self.pace.left -= 1

    def _start_at(self, tick: Tick) -> datetime | None:
        """With jitter a job is opened at its time and begins a little later: each due time by a length of its own."""
        if not self.schedule.jitter or tick.kind != Kind.DUE:
            return None
        begin = tick.due_at + timedelta(seconds=self.schedule.jitter) * random.Random(_key(tick)).random()
        return begin if begin > self.present else None

    def _write(self, tick: Tick) -> None:
        tick.decided_at = self.present
        tick.save()
        self.decided += 1

    # --- what has ended ---

    def _take_note_of_ends(self, ended: list[Tick]) -> None:
        Tick.objects.filter(pk__in=[tick.pk for tick in ended]).update(open=False)
        if not self.schedule.pause_on_failure or self.schedule.paused_at is not None:
            return
        jobs = Job.objects.filter(
            pk__in=[tick.job_id for tick in ended], state__in=[JobState.FAILED, JobState.COMPENSATED]
        )
        failed = jobs.exclude(reason=Reason.CANCELLED).order_by("pk").first()
        if failed is not None:  # paused from its end on, whenever that was noticed
            since = failed.finished_at or self.present
            pause(self.schedule, since, actor="scheduler", note=f"Job {failed.pk} ended {failed.state}.")


def pause(schedule: Schedule, since: datetime, *, actor: str, note: str) -> None:
    """Start nothing more of it; the row is locked. What waits for its turn is skipped, but for backfills and triggers."""
    schedule.paused_at, schedule.paused_by, schedule.pause_note = since, actor, note
    schedule.revision += 1
    schedule.save(update_fields=["paused_at", "paused_by", "pause_note", "revision"])
    waiting = Tick.objects.filter(schedule=schedule, kind=Kind.DUE).waiting().order_by()
    waiting.update(outcome=Outcome.SKIPPED, open=False, reason="paused", detail=f"Paused by {actor}. {note}".strip())
    note_change(schedule, "paused", actor=actor, reason=note)


def note_change(
    schedule: Schedule, kind: str, *, actor: str, reason: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """What was done to a schedule, in the transaction that does it."""
    ScheduleChange.objects.create(
        schedule=schedule, revision=schedule.revision, kind=kind, actor=actor, reason=reason, data=dict(data or {})
    )


def _passed_over(tick: Tick, reason: str, detail: str, outcome: Tick.Outcome = Outcome.SKIPPED) -> Tick:
    tick.outcome, tick.reason, tick.detail, tick.open = outcome, reason, detail.strip(), False
    return tick


def _is_late(tick: Tick) -> bool:
    return tick.made_up or tick.kind == Kind.BACKFILL


def _in_the_way(ticks: list[Tick]) -> list[Tick]:
    return [tick for tick in ticks if not tick.is_in_nobodys_way]


def _whose(ahead: list[Tick]) -> str:
    return next((str(tick.job_id) for tick in ahead if tick.job_id), "of an earlier due time")


def _key(tick: Tick) -> str:
    """The job's key: the schedule and the nominal time, so that even without the tick's row there could not be two."""
    due = tick.due_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    kind = "" if tick.kind == Kind.DUE else f":{tick.kind}"
    return f"schedule:{tick.schedule_id}:{due}{kind}" + (f":{tick.run}" if tick.run > 1 else "")
