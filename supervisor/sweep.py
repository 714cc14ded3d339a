"""The sweep: looks for what is overdue, failed or forgotten, and has it put right. It never does the work itself.

Candidates are read without locks, page by page; then one short transaction for each: the job locked unless it is
locked already, everything looked at again, one remedy. A row that raises is recorded and passed over, and stops nothing.
Any number of sweeps at once is harmless.
"""

import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import Error, connection
from django.db.models import QuerySet

from supervisor import storms
from supervisor.models import Sweep
from supervisor.remedies import Choice, Facts, choose
from workflows import broker, compensation, errands, findings, scheduler, transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.models import Job, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.states import ENDED_STEP_STATES, ErrorKind, Outcome, Remedy, Role, StepKind
from workflows.transitions import in_transaction

logger = logging.getLogger(__name__)

PAGE = 200
_LIVE_JOBS_A_SWEEP = 500
_TIME_A_SWEEP = 10.0
_KEEP_SWEEPS = timedelta(hours=24)
_SKIPS_TO_REPORT = 3
_GRACES_RUNNING = 3


class Memory:
    """What a supervisor process remembers between sweeps; losing it costs nothing but time."""

    def __init__(self) -> None:
        self.live_cursor: uuid.UUID | None = None
        self.skipped: Counter[int] = Counter()


_memory = Memory()


def sweep(memory: Memory = _memory) -> Sweep:
    """One pass. Its row says what was found and done, and its age is the supervisor's health."""
    begun = now()
    row = Sweep(started_at=begun, grace_until=_grace(begun))
    _forget_old_sweeps(begun)
    until = time.monotonic() + _TIME_A_SWEEP
    if row.grace_until is None or row.grace_until <= begun:
        row.expired = _each(row, memory, Step.objects.overdue(), expire, until)
        row.expired += _each(row, memory, Step.objects.queued_too_long(), findings.refuse_queued, until)
    row.remedied = _each(row, memory, Step.objects.without_remedy(), decide, until)
    transitions.set_deadlines()
    until = time.monotonic() + _TIME_A_SWEEP
    row.moved = _each_job(row, _ids(Job.objects.past_deadline()), findings.pass_deadline, until)
    row.moved += _each_job(row, _ids(Job.objects.owe_parent()), errands.tell_parent, until)
    # Gates that nobody looked at, and fan-outs that nobody went on with: whoever should have, died.
    row.moved += _each_job(row, _ids(Step.objects.at_gate(), "job_id"), _attend, until)
    row.moved += _each_job(row, _ids(Step.objects.to_spread(), "job_id"), _attend, until)
    row.moved += _each_job(row, _stranded(memory), findings.heal, until)
    row.finished_at = now()
    row.save(force_insert=True)
    return row


def _grace(begun: datetime) -> datetime | None:
    """After a gap nothing expires for the length of one lease: everything looks overdue then, and almost nothing is.

    A grace is not prolonged by further gaps, nor one begun after another without end, or a supervisor that is always
    slow would never expire anything.
    """
    last = Sweep.objects.order_by("-finished_at").first()
    lease = timedelta(seconds=conf.lease)
    if last is None or last.finished_at is None:
        return begun + lease
    had_grace_lately = last.grace_until is not None and begun < last.grace_until + lease
    newest = list(Sweep.objects.order_by("-finished_at").values_list("grace_until", flat=True)[:_GRACES_RUNNING])
    if len(set(newest) - {None}) == _GRACES_RUNNING:
        return last.grace_until
    gap = begun - last.finished_at > 2 * timedelta(seconds=conf.sweep)
    if gap and (not had_grace_lately or begun - last.finished_at > lease):
        return begun + lease
    return last.grace_until


def _forget_old_sweeps(begun: datetime) -> None:
    old = Sweep.objects.filter(finished_at__lt=begun - _KEEP_SWEEPS).order_by("finished_at").values("pk")[:PAGE]
    Sweep.objects.filter(pk__in=list(old.values_list("pk", flat=True))).delete()


def _each(row: Sweep, memory: Memory, steps: QuerySet[Step], act: Callable[[int], bool | None], until: float) -> int:
    """Apply `act` to each step found. How many it changed."""
    changed = 0
    for step_id in _ids(steps):
        if time.monotonic() > until:
            break
        try:
            done = act(step_id)
        except Exception as error:  # one poison row must not stop the sweep
            _report(row, f"step {step_id}", error)
            continue
        if done is None:
            memory.skipped[step_id] += 1
            if memory.skipped[step_id] == _SKIPS_TO_REPORT:
                _report(
                    row, f"step {step_id}", TimeoutError(f"its job was locked in {_SKIPS_TO_REPORT} sweeps running")
                )
        else:
            memory.skipped.pop(step_id, None)
            changed += done
    return changed


def _ids(rows: QuerySet[Any], column: str = "pk") -> Iterator[Any]:
    """Ids by keyset, a page at a time, without a lock; `column` names them where they are not those of the rows."""
    page = rows.order_by("pk").values_list("pk", column)
    found = list(page[:PAGE])
    while found:
        yield from (wanted for _, wanted in found)
        found = list(page.filter(pk__gt=found[-1][0])[:PAGE])


def _report(row: Sweep, what: str, error: Exception) -> None:
    row.failed += 1
    row.problems = [*row.problems, f"{what}: {type(error).__name__}: {error}"][:20]
    _pass_over(what, error)


def _pass_over(what: str, error: Exception) -> None:
    logger.error("the supervisor could not handle %s", what, exc_info=error)
    if isinstance(error, Error):
        connection.close_if_unusable_or_obsolete()


@in_transaction
def expire(step_id: int) -> bool | None:
    """Take a step whose lease is over from its worker, and choose its remedy. None when its job is locked."""
    job = _lock_job_of(step_id)
    if job is None:
        return None
    # Its row is locked as well: a heartbeat takes no job's lock, and may be just about to commit a longer lease.
    step = Step.objects.overdue().filter(pk=step_id).select_for_update(no_key=True).first()
    if step is None:
        return False
    transitions.expire(job, step)
    scheduler.offer_place(step)
    if job.stopping_at is not None:
        scheduler.move_on(job)
    else:
        _apply(job, step, _choose(job, step))
    return True


@in_transaction
def decide(step_id: int) -> bool | None:
    """Choose the remedy of a failed step, and apply it. None when its job is locked."""
    job = _lock_job_of(step_id)
    if job is None:
        return None
    step = Step.objects.without_remedy().filter(pk=step_id).first()
    if step is None:
        return False
    if job.stopping_at is not None:
        scheduler.move_on(job)
        return True
    _apply(job, step, _choose(job, step))
    return True


def _lock_job_of(step_id: int) -> Job | None:
    job_id = Step.objects.filter(pk=step_id).values_list("job_id", flat=True).first()
    return transitions.lock(job_id, unless_locked=True) if job_id else None


def _facts(job: Job, step: Step) -> Facts:
    plan = Plan.from_json(job.plan)
    planned = plan.steps[step.place]
    forward = step.role == Role.FORWARD
    past_pivot = forward and compensation.pivot_passed(plan, list(Step.objects.filter(job=job).for_timeline()))
    attempts = list(step.attempts.all())
    return Facts(
        role=Role(step.role),
        kind=ErrorKind(step.error_kind),
        code=step.error_code,
        message=step.error_message,
        charged=step.charged,
        allowed=step.attempts_allowed,
        open_doubt=any(attempt.in_doubt and not attempt.resolved_by for attempt in attempts),
        has_probe=planned.probe is not None,
        was_probe_only=step.probe_only,
        retry=planned.retry if forward else planned.undo_retry,
        retry_after=step.retry_after,
        draw=random.random(),
        policy="hold" if past_pivot and planned.on_failure == "compensate" else planned.on_failure,
        has_alternative=any(other.instead_of == planned.name for other in plan.steps),
        is_item=step.parent_id is not None,
        too_late=forward and step.parent is not None and step.parent.state in ENDED_STEP_STATES,
        waits=step.kind != StepKind.CALL or step.is_fan_out,
        deaths=sum(attempt.outcome == Outcome.LOST for attempt in attempts),
        deaths_allowed=conf.poison_deaths,
        time_left=_time_left(step, planned),
    )


def _time_left(step: Step, planned: PlanStep) -> timedelta:
    """Of the step as a whole, over all its attempts; an undo takes the time that it needs."""
    if step.role != Role.FORWARD or step.started_at is None or planned.total_timeout is None or step.charged == 0:
        return timedelta.max
    return step.started_at + planned.total_timeout - now()


def _choose(job: Job, step: Step) -> Choice:
    """The remedy of a failed step: parked where its service is away, and no sooner than its agent's budget of retries lets."""
    facts = _facts(job, step)
    breaker = storms.parks(step)
    if breaker is not None:
        # As if this attempt had not been. What would not be tried again even so is not parked.
        again = choose(replace(facts, charged=max(facts.charged - 1, 0), was_probe_only=False))
        if again.remedy == Remedy.RETRY:
            reason = f"{step.agent} is away ({breaker.cause}); the step is parked until it answers again, and nothing is charged."
            return replace(again, remedy=Remedy.PARK, reason=reason)
    choice = choose(facts)
    service = step.error_kind in storms.OF_SERVICE
    if choice.remedy == Remedy.RETRY and service and not storms.retry_within_budget(step.agent):
        wait = timedelta(seconds=conf.breaker_window) * (1 + random.random())  # not all of them at the same moment
        reason = f"{choice.reason} {step.agent} has had its share of retries for now, so this one waits."
        return replace(choice, delay=max(choice.delay, wait), reason=reason)
    return choice


def _apply(job: Job, step: Step, choice: Choice) -> None:
    match choice.remedy:
        case Remedy.RETRY:
            transitions.retry(
                job,
                step,
                delay=choice.delay,
                actor="supervisor",
                reason=choice.reason,
                probe_only=choice.probe_only,
            )
        case Remedy.PARK:
            transitions.retry(
                job,
                step,
                delay=timedelta(0),
                actor="supervisor",
                reason=choice.reason,
                probe_only=choice.probe_only,
                uncharged=True,
            )
        case remedy:
            findings.give_up(job, step, remedy, reason=choice.reason)


def _each_job(row: Sweep, jobs: Iterable[uuid.UUID], act: Callable[[uuid.UUID], bool | None], until: float) -> int:
    """Apply `act` to each job found, once. How many it changed."""
    changed, seen = 0, set[uuid.UUID]()
    for job_id in jobs:
        if time.monotonic() > until:
            break
        if job_id in seen:
            continue
        seen.add(job_id)
        try:
            changed += bool(act(job_id))
        except Exception as error:  # one poison row must not stop the sweep
            _report(row, f"job {job_id}", error)
    return changed


def _attend(job_id: uuid.UUID) -> bool:
    """Look at a job until there is nothing more to look at; not at one that is locked. Whether it was looked at."""
    more = _look_at(job_id)
    while more:
        more = _look_at(job_id)
    return more is not None


@in_transaction
def _look_at(job_id: uuid.UUID) -> bool | None:
    return scheduler.attend(job_id) if transitions.lock(job_id, unless_locked=True) else None


def wake_due() -> int:
    """Steps that wait for a time which has come, for somebody who is late, or want something of another job. How many."""
    woken = 0
    for step_id in _ids(Step.objects.due()):
        try:
            woken += bool(errands.wake(step_id))
        except Exception as error:  # one poison row must not stop the others
            _pass_over(f"step {step_id}", error)
    return woken


def _stranded(memory: Memory) -> Iterable[uuid.UUID]:
    """Jobs that nobody moves: of a slice of the live ones each sweep, of all of them in turn."""
    ids = Job.objects.next_live(memory.live_cursor, _LIVE_JOBS_A_SWEEP)
    memory.live_cursor = ids[-1] if len(ids) == _LIVE_JOBS_A_SWEEP else None
    return Job.objects.filter(pk__in=ids).stranded().values_list("pk", flat=True)


def ring_due() -> int:
    """Ring for ready steps that nobody was rung for, or whose ring is old. How many were rung for.

    At most `rings_per_queue` at a time, and none for a queue that holds as many: without workers the broker must not
    fill. Then those behind the steps of that queue are looked at, or it would keep all others from being rung for.
    """
    full: set[str] = set()
    room: dict[str, int] = {}
    count = 0
    while True:
        due = list(Step.objects.to_ring().exclude(queue__in=full).only("pk", "queue", "rings")[: conf.rings_per_queue])
        rung = [step for step in due if _ring_if_room(step, room, full)]
        transitions.note_rings(rung)
        count += len(rung)
        if len(rung) == len(due):
            return count


def _ring_if_room(step: Step, room: dict[str, int], full: set[str]) -> bool:
    """Whether it was rung for; if not, its queue is full from now on."""
    if step.queue not in room:
        room[step.queue] = conf.rings_per_queue - broker.depth(step.queue)
    if step.queue in full or room[step.queue] <= 0 or not broker.ring(step.queue, step.pk):
        full.add(step.queue)
        return False
    room[step.queue] -= 1
    return True
