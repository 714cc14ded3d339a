"""The sweep: looks for what is overdue, failed or forgotten, and has it put right. It never does the work itself.

Candidates are read without locks, page by page; then one short transaction for each: the job locked unless it is
locked already, everything looked at again, one remedy. A row that raises is recorded and passed over, and stops nothing.
Any number of sweeps at once is harmless.
"""

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from supervisor import leadership, storms
from supervisor.models import Sweep
from supervisor.record import Decision, Record, pass_over
from supervisor.remedies import Choice, Facts, choose
from workflows import broker, compensation, errands, findings, scheduler, transitions
from workflows.clock import SagNow, now
from workflows.conf import conf
from workflows.models import Job, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.states import ENDED_STEP_STATES, ErrorKind, Outcome, Remedy, Role, StepKind, StepState
from workflows.transitions import in_transaction

PAGE = 200
_LIVE_JOBS_A_SWEEP = 500
_OBSERVED_A_QUESTION = 200
_TIME_A_HALF = 10.0
_KEEP_SWEEPS = timedelta(hours=24)
_SKIPS_TO_REPORT = 3
_LATEST = 3


class Memory:
    """What a supervisor process remembers between sweeps; losing it costs nothing but time."""

    def __init__(self) -> None:
        self.live_cursor: uuid.UUID | None = None
        self.skipped: Counter[int] = Counter()


_memory = Memory()


def _for_ever() -> bool:
    return True


@dataclass(kw_only=True)
class _Round:
    """One sweep under way: it ends when its time is over, or when `is_ours` says that somebody else has taken over."""

    record: Record
    memory: Memory
    is_ours: Callable[[], bool]
    until: float
    observes: bool

    def goes_on(self) -> bool:
        return time.monotonic() < self.until and self.is_ours()


def sweep(memory: Memory = _memory, is_ours: Callable[[], bool] = _for_ever) -> Sweep:
    """One pass. Its row says what was found and done, and its age is the supervisor's health.

    Where the supervisor only observes, the row says what would have been done. The time of jobs begins all the same.
    """
    begun, observes = now(), conf.observe_only
    _forget_old_sweeps(begun)
    row = Sweep(by=leadership.me(), started_at=begun, grace_until=_grace(begun), observed=observes)
    until = time.monotonic() + _TIME_A_HALF
    this = _Round(record=Record(row), memory=memory, is_ours=is_ours, until=until, observes=observes)
    if row.grace_until is None or row.grace_until <= begun:
        row.expired = _each(this, Step.objects.overdue(), expire)
        row.expired += _each(this, Step.objects.queued_too_long(), refuse_queued)
        if observes:  # else they are ended within a second of their time
            row.expired += _each(this, Step.objects.due().exclude(kind__in=_TO_GO_ON), end_wait)
    row.remedied = _each(this, Step.objects.without_remedy(), decide)
    transitions.set_deadlines()
    this.until = time.monotonic() + _TIME_A_HALF
    row.moved = sum(
        (
            _each_job(this, _ids(Job.objects.past_deadline()), findings.pass_deadline, "stop"),
            _each_job(this, _ids(Job.objects.owe_parent()), errands.tell_parent, "tell"),
            # Gates that nobody looked at, and fan-outs that nobody went on with: whoever should have, died.
            _each_job(this, _ids(Step.objects.at_gate(), "job_id"), _attend, "attend"),
            _each_job(this, _ids(Step.objects.to_spread(), "job_id"), _attend, "attend"),
            _each_job(this, _stranded(this), findings.heal, "heal"),
        )
    )
    row.finished_at = now()
    row.save(force_insert=True)
    return row


def _grace(begun: datetime) -> datetime | None:
    """After a gap nothing expires for the length of one lease: everything looks overdue then, and almost nothing is.

    A grace is not prolonged by further gaps, nor one begun after another without end, or a supervisor that is always
    slow would never expire anything. A sweep that was frozen in its middle is a gap too; and since it writes its row when
    it thaws, without the grace that another may have begun meanwhile, the latest rows together tell of that.
    """
    latest = list(Sweep.objects.order_by("-finished_at")[:_LATEST])
    lease, interval = timedelta(seconds=conf.lease), timedelta(seconds=conf.sweep)
    if not latest or latest[0].finished_at is None:
        return begun + lease
    silence, took = begun - latest[0].finished_at, latest[0].finished_at - latest[0].started_at
    graces = {row.grace_until for row in latest if row.grace_until is not None}
    known = max(graces, default=None)
    if len(graces) == _LATEST:
        return known
    had_grace_lately = known is not None and begun < known + lease
    gap = silence > 2 * interval or took > 3 * timedelta(seconds=_TIME_A_HALF)
    return begun + lease if gap and (not had_grace_lately or silence > lease) else known


def _forget_old_sweeps(begun: datetime) -> None:
    """And those that ended in what is still to come: the clock was set back since. What they say holds no more."""
    Sweep.objects.filter(finished_at__gt=SagNow() + timedelta(seconds=conf.lease)).delete()
    old = Sweep.objects.filter(finished_at__lt=begun - _KEEP_SWEEPS).order_by("finished_at").values("pk")[:PAGE]
    Sweep.objects.filter(pk__in=list(old.values_list("pk", flat=True))).delete()


Looked = Decision | bool | None
"""What became of a row: a decision; False where nothing was to be done any more, None where its job is locked."""


def _each(this: _Round, steps: QuerySet[Step], act: Callable[[int], Looked]) -> int:
    """Apply `act` to each step found. How many it changed; where the supervisor only observes, none."""
    changed = 0
    for number, step_id in enumerate(_ids(steps)):
        if not this.goes_on():
            break
        this.record.looked_at(1)
        this.record.found()
        if this.observes and number >= _OBSERVED_A_QUESTION:
            continue
        try:
            looked = _would(act, step_id) if this.observes else act(step_id)
        except Exception as error:  # one poison row must not stop the sweep
            this.record.failed(f"step {step_id}", error)
            continue
        if looked is None:
            _note_skip(this, step_id)
            continue
        this.memory.skipped.pop(step_id, None)
        if isinstance(looked, Decision):
            this.record.decided(looked)
            changed += not this.observes
    return changed


def _would(act: Callable[[int], Looked], step_id: int) -> Looked:
    """What it would do: it does it, in a transaction that is undone."""
    with transaction.atomic():
        looked = act(step_id)
        transaction.set_rollback(True)
    return looked


def _note_skip(this: _Round, step_id: int) -> None:
    skipped = this.memory.skipped
    skipped[step_id] += 1
    if skipped[step_id] == _SKIPS_TO_REPORT:
        said = TimeoutError(f"its job was locked in {_SKIPS_TO_REPORT} sweeps running")
        this.record.failed(f"step {step_id}", said)


def _ids(rows: QuerySet[Any], column: str = "pk") -> Iterator[Any]:
    """Ids by keyset, a page at a time, without a lock; `column` names them where they are not those of the rows."""
    page = rows.order_by("pk").values_list("pk", column)
    found = list(page[:PAGE])
    while found:
        yield from (wanted for _, wanted in found)
        found = list(page.filter(pk__gt=found[-1][0])[:PAGE])


@in_transaction
def expire(step_id: int) -> Looked:
    """Take a step whose lease is over from its worker, and choose its remedy."""
    job = _lock_job_of(step_id)
    if job is None:
        return None
    # Its row is locked as well: a heartbeat takes no job's lock, and may be just about to commit a longer lease.
    # By its id alone: with the lease in the condition each of thousands would be looked for among all that are overdue.
    step = Step.objects.filter(pk=step_id).select_for_update(no_key=True).first()
    if step is None or step.state != StepState.RUNNING or step.complete_by is None or step.complete_by >= now():
        return False
    transitions.expire(job, step)
    scheduler.offer_place(step)
    return _decide(job, step, found=step.error_message)


@in_transaction
def decide(step_id: int) -> Looked:
    """Choose the remedy of a failed step, and apply it."""
    job = _lock_job_of(step_id)
    if job is None:
        return None
    step = Step.objects.without_remedy().filter(pk=step_id).first()
    if step is None:
        return False
    return _decide(job, step, found=f"Failed ({step.error_kind}): {step.error_message}")


def _decide(job: Job, step: Step, *, found: str) -> Decision:
    if job.stopping_at is not None:
        scheduler.move_on(job)
        return Decision(
            job=job.pk, step=step.address, found=found, remedy="end", reason="Its job is being brought to its end."
        )
    choice = _choose(job, step)
    _apply(job, step, choice)
    return Decision(job=job.pk, step=step.address, found=found, remedy=choice.remedy, reason=choice.reason)


def refuse_queued(step_id: int) -> Looked:
    """End the wait of a ready step that no worker took in time."""
    return _ended(step_id, findings.refuse_queued)


def end_wait(step_id: int) -> Looked:
    """End the wait for a signal or a callback that did not come in time."""
    return _ended(step_id, findings.wait_is_over)


def _ended(step_id: int, act: Callable[[int], bool | None]) -> Looked:
    if not (done := act(step_id)):
        return done
    step = Step.objects.only("job_id", "name", "index", "error_message").get(pk=step_id)
    return Decision(
        job=step.job_id, step=step.address, found=step.error_message, remedy="fail", reason="Its time to wait is over."
    )


def _lock_job_of(step_id: int) -> Job | None:
    job_id = Step.objects.filter(pk=step_id).values_list("job_id", flat=True).first()
    return transitions.lock(job_id, unless_locked=True) if job_id else None


def _facts(job: Job, step: Step) -> Facts:
    plan = Plan.from_json(job.plan)
    planned = plan.steps[step.place]
    forward = step.role == Role.FORWARD
    may_be_past_pivot = forward and any(other.pivot for other in plan.steps)
    past_pivot = may_be_past_pivot and compensation.pivot_passed(
        plan, list(Step.objects.filter(job=job).for_timeline())
    )
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


def _each_job(this: _Round, jobs: Iterable[uuid.UUID], act: Callable[[uuid.UUID], bool | None], remedy: str) -> int:
    """Apply `act` to each job found, once. How many it changed; where the supervisor only observes, none."""
    changed, seen = 0, set[uuid.UUID]()
    for job_id in jobs:
        if not this.goes_on():
            break
        if job_id in seen:
            continue
        seen.add(job_id)
        this.record.looked_at(1)
        this.record.found()
        try:
            done = this.observes or bool(act(job_id))
        except Exception as error:  # one poison row must not stop the sweep
            this.record.failed(f"job {job_id}", error)
            continue
        if done:
            found, reason = _MOVES[remedy]
            this.record.decided(Decision(job=job_id, found=found, remedy=remedy, reason=reason))
            changed += not this.observes
    return changed


# Of what is done to a job: what was found of it, and why it is done. It is the same for all that were found so.
_MOVES = {
    "stop": (
        "Its deadline has passed.",
        "A job whose time is over is stopped, and undone where that is still possible.",
    ),
    "tell": (
        "It has ended, and the step that waits for it had not heard.",
        "The step that waits for this job goes on with its outcome.",
    ),
    "attend": (
        "A gate or a fan-out that nobody went on with.",
        "The scheduler looks once more: whoever should have gone on with it died.",
    ),
    "heal": (
        "Nothing of it ran, could start, or waited for a remedy.",
        "Its counters are counted anew, and it is set moving.",
    ),
}


def _attend(job_id: uuid.UUID) -> bool:
    """Look at a job until there is nothing more to look at; not at one that is locked. Whether it was looked at."""
    more = _look_at(job_id)
    while more:
        more = _look_at(job_id)
    return more is not None


@in_transaction
def _look_at(job_id: uuid.UUID) -> bool | None:
    return scheduler.attend(job_id) if transitions.lock(job_id, unless_locked=True) else None


_TO_GO_ON = (StepKind.TIMER, StepKind.CHILD)
"""What ends these waits is no fault: a time that has come, another job that has ended."""


def wake_due() -> int:
    """Steps that wait for a time which has come, for somebody who is late, or want something of another job. How many.

    Who is late stays so where the supervisor only observes.
    """
    due = Step.objects.due()
    if conf.observe_only:
        due = due.filter(kind__in=_TO_GO_ON)
    woken = 0
    for step_id in _ids(due):
        try:
            woken += bool(errands.wake(step_id))
        except Exception as error:  # one poison row must not stop the others
            pass_over(f"step {step_id}", error)
    return woken


def _stranded(this: _Round) -> Iterable[uuid.UUID]:
    """Jobs that nobody moves: of a slice of the live ones each sweep, of all of them in turn."""
    memory = this.memory
    ids = Job.objects.next_live(memory.live_cursor, _LIVE_JOBS_A_SWEEP)
    memory.live_cursor = ids[-1] if len(ids) == _LIVE_JOBS_A_SWEEP else None
    found = list(Job.objects.filter(pk__in=ids).stranded().values_list("pk", flat=True))
    this.record.looked_at(len(ids) - len(found))  # those are counted when they are found
    return found


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
