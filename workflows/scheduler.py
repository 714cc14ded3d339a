"""What comes next. Opens jobs, goes on behind each step that has ended, and moves each job to its next state.

Every function here is one short transaction (or takes part in the caller's): the job locked first, then read, then a
pure decision (`next_move`), then the verbs of `transitions`. No function makes a remote call; doorbells ring after the
commit. Nothing depends on the process that runs it: any worker, web server or supervisor is the scheduler for a moment.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from enum import Enum, auto
from typing import Any

from django.db import OperationalError, connection, transaction
from django.db.models import Q, QuerySet
from psycopg.errors import LockNotAvailable

from workflows import broker, compensation, fanouts, gates, transitions
from workflows.clock import now
from workflows.exceptions import KeyConflict, KeyInUse, SagError
from workflows.models import Agent, Attempt, Job, Step
from workflows.opening import new_job
from workflows.plans.plan import Plan, PlanStep
from workflows.states import ErrorKind, JobState, Outcome, Reason, Remedy, Role, SettledBy, StepKind, StepState
from workflows.transitions import Failure, in_transaction

# --- opening ---------------------------------------------------------------------------------------------------------


def open_job(
    *,
    plan: Plan,
    input: Any,
    key: str | None = None,
    client_id: int | None = None,
    actor: str = "application",
    start_at: datetime | None = None,
) -> Job:
    """Write a job and all its steps, and ring for the first ones on commit.

    Inside the caller's `atomic()` the job commits or vanishes with the caller's rows. The same client, workflow and key
    give the same job; with another input KeyConflict; KeyInUse while another start of that key has not committed yet.
    """
    job = new_job(plan, input, key=key, client_id=client_id)
    # A start that waits for another one of its key gives up after `lock_timeout`; a savepoint keeps the caller's rows.
    keeps_callers_rows = key is not None and connection.in_atomic_block
    guard = transaction.atomic() if keeps_callers_rows or plan.gated else nullcontext()
    try:
        with guard:
            opened = transitions.start(job, plan=plan, actor=actor, start_at=start_at)
            if opened is not None and opened.gated:
                move_on(job)
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            raise KeyInUse(f"Another start of {plan.workflow} under the key {key!r} is being accepted.") from error
        raise
    if opened is None:
        return _job_of_key(plan, input, key, client_id)
    if start_at is None:
        broker.ring_on_commit(opened.first)
    return job


def _job_of_key(plan: Plan, input: Any, key: str | None, client_id: int | None) -> Job:
    job = Job.objects.filter(client_id=client_id, workflow=plan.workflow, key=key).first()
    if job is None:
        raise KeyInUse(f"The job of {plan.workflow} under the key {key!r} was just removed; start again.")
    # Compared where it is stored: Python takes true for 1, and reads a large number back as another.
    if not Job.objects.filter(pk=job.pk, input=input).exists():
        raise KeyConflict(f"The key {key!r} already started job {job.pk} of {plan.workflow} with another input.")
    return job


# --- behind a step that has ended ------------------------------------------------------------------------------------


def go_on_behind(job: Job, step: Step) -> None:
    """A step of a locked job has ended well, or without mattering: count it off, and move the job on."""
    offer_place(step)
    if step.parent_id is not None:
        _item_ended(job, step, failed=step.state == StepState.FAILED)
    transitions.release_successors(job, step)
    move_on(job)


def offer_place(step: Step) -> None:
    """A step under a limit has let go: who waits for its place is found by the worker that is rung."""
    if step.limited:
        broker.ring_on_commit([(None, step.queue)])


def resolve_doubts_by_success(job: Job, step: Step, by_probe: bool) -> None:
    """What resolves doubt: the probe's "done", an answer under the same key where the agent honours keys, the undo."""
    agents = announced_agents()
    agent = agents.get(step.agent)
    if step.role == Role.FORWARD:
        if by_probe:
            transitions.resolve_doubts(job, step, Attempt.Resolution.PROBE)
        elif agent is not None and agent.honours_keys:
            transitions.resolve_doubts(job, step, Attempt.Resolution.ANSWER)
        return
    original = step.undoes
    if original is None:
        raise AssertionError(f"step {step.name} undoes nothing")
    answer_is_final = step.role == Role.RECHECK or compensation.closes_keys(original, agents)
    if answer_is_final or not original.attempts.filter(in_doubt=True).exists():
        transitions.resolve_doubts(job, original, Attempt.Resolution.UNDO)
    if agent is not None and agent.honours_keys:
        transitions.resolve_doubts(job, step, Attempt.Resolution.ANSWER)


def hear_late_word(job: Job, step: Step, *, number: int, outcome: Outcome, result: Any, message: str) -> None:
    """Keep it as evidence. Where an effect came to light behind a finished undo, the undo is asked once more."""
    transitions.keep_late_word(job, step, number=number, outcome=outcome, result=result, message=message)
    if outcome != Outcome.COMPLETED or step.role != Role.FORWARD:
        return
    undos = list(Step.objects.filter(undoes=step).order_by("seq"))
    undone = [undo for undo in undos if undo.state == StepState.COMPLETED]
    asked_again = [undo for undo in undos if undo.role == Role.RECHECK and undo.state in _UNENDED]
    if undone and not asked_again:
        _add_recheck(job, step, ordinal=sum(undo.role == Role.RECHECK for undo in undos) + 1)


def _add_recheck(job: Job, step: Step, ordinal: int) -> None:
    planned = Plan.from_json(job.plan).steps[step.place]
    row = compensation.recheck_row(
        job, step, planned, compensation.NO_EVIDENCE, announced_agents(), fanouts.next_seq(job)
    )
    if ordinal > 1:
        row.name = f"{row.name}.{ordinal}"
        row.idempotency_key = f"{row.idempotency_key}.{ordinal}"
    transitions.add_recheck(job, row, reason="A late answer shows an effect behind the finished undo.")
    broker.ring_on_commit([(row.pk, row.queue)])


def after_failure(job: Job, step: Step) -> None:
    """In an ordinary job the supervisor chooses a remedy, at once; a stopping job was only waiting for this end."""
    offer_place(step)
    if job.stopping_at is not None:
        move_on(job)
    else:
        broker.ring_supervisor_on_commit(step.pk)


def _item_ended(job: Job, item: Step, *, failed: bool) -> None:
    """Count an item off its fan-out, let the next one go, and end the fan-out if that was the last, or one too many."""
    fan = _fan_of(item)
    transitions.count_item(fan, failed=failed)
    go_on_with_items(job, item)


def go_on_with_items(job: Job, item: Step) -> None:
    """Its fan-out has an item more, or less, that is open."""
    fan = _fan_of(item)
    if fan.state == StepState.RUNNING:
        _see_to_items(job, fan, Plan.from_json(job.plan).steps[fan.place])


def _see_to_items(job: Job, fan: Step, planned: PlanStep) -> None:
    """Let go the items whose turn it is; end the fan-out when none is open any more, or when too many have failed."""
    total = fan.items_total or 0
    over = fan.items_open == 0 and fan.items_made == total
    if over and fan.role != Role.FORWARD:
        _end_undo_of_items(job, fan)
    elif fan.role == Role.FORWARD and fan.items_failed > fanouts.tolerated(planned, total):
        said = f"{fan.items_failed} of {total} items failed; {fanouts.tolerated(planned, total)} may."
        _fail_fan_out(job, fan, Failure(kind=ErrorKind.PERMANENT, code="too_many_failed", message=said))
    elif over:
        gates.complete_fan_out(job, fan)
    elif job.paused_at is None and job.stopping_at is None:
        broker.ring_on_commit(transitions.admit_items(fan, at_once=fanouts.at_once(planned, fan))[:_MOST_RINGS])


def _fail_fan_out(job: Job, fan: Step, failure: Failure) -> None:
    """No further item starts. Those under way go on to their end, and are counted, but not tried again."""
    transitions.wait_ended_badly(job, fan, failure, actor="scheduler")
    transitions.hold_items(fan)
    after_failure(job, fan)


def leave_items(job: Job, fan: Step, *, reason: str) -> None:
    """A job goes on without this fan-out that failed: nothing more of it is begun. What runs may end."""
    transitions.skip_items(job, fan, reason=reason)
    items = Step.objects.filter(parent=fan)
    for item in items.filter(state=StepState.NOT_STARTED):
        in_doubt = item.attempts.filter(in_doubt=True, resolved_by="").exists()
        _end_forward_step(job, item, in_doubt=in_doubt, reason=reason)
        transitions.count_item(fan, failed=in_doubt)
    for item in items.without_remedy():
        transitions.decide_remedy(job, item, Remedy.IGNORE, actor="scheduler", reason=reason)
        transitions.count_item(fan, failed=True)
    if items.filter(state=StepState.RUNNING).exists():
        transitions.leave_the_close(job)


def _fan_of(item: Step) -> Step:
    return Step.objects.get(items=item.pk)


def _end_undo_of_items(job: Job, fan: Step) -> None:
    if fan.items_failed == 0:
        gates.complete_fan_out(job, fan)
        return
    said = f"{fan.items_failed} of {fan.items_total} undos failed."
    transitions.wait_ended_badly(
        job, fan, Failure(kind=ErrorKind.PERMANENT, code="undos_failed", message=said), actor="scheduler"
    )
    transitions.decide_remedy(job, fan, Remedy.ESCALATE, actor="scheduler", reason=said)
    transitions.release_successors(job, fan)


# --- moving a job to its next state ----------------------------------------------------------------------------------


class Move(Enum):
    """What a job is ready for."""

    NOTHING = auto()
    COMPLETE = auto()
    UNDO = auto()
    FAIL = auto()
    END_UNDO = auto()


_MOST_RINGS = 20
_UNENDED = (StepState.NOT_STARTED, StepState.RUNNING)


def next_move(job: Job, steps: Sequence[Step], agents: Mapping[str, Agent], *, items_run: bool = False) -> Move:
    """Pure. A stopping job waits for what still runs; an undo ends when every row that holds the close has ended."""
    forward = [step for step in steps if step.role == Role.FORWARD]
    if job.state == JobState.RUNNING:
        if items_run or any(step.state == StepState.RUNNING for step in forward):
            return Move.NOTHING
        if job.stopping_at is not None:
            return Move.UNDO if job.stopping_undo else Move.FAIL
        return Move.COMPLETE if all(_is_done_with(step) for step in forward) else Move.NOTHING
    if job.state == JobState.COMPENSATING:
        holding = [step for step in steps if compensation.holds_the_close(step, agents)]
        return Move.END_UNDO if all(_has_ended(step) for step in holding) else Move.NOTHING
    return Move.NOTHING


def _is_done_with(step: Step) -> bool:
    """Whether a forward step does not keep its job from completing."""
    if step.state == StepState.FAILED:
        return step.remedy in transitions.COUNTED_OFF
    return step.state not in _UNENDED


def _has_ended(step: Step) -> bool:
    """Failed is an end only once the machine, or a person, has given up on it."""
    if step.state == StepState.FAILED:
        return step.remedy == Remedy.ESCALATE
    return step.state not in _UNENDED


def move_on(job: Job) -> None:
    """Open what gates may open, then move a locked job to its next state, if it is ready for one."""
    if gates.open_gates(job):
        ring_for_ready(job)
    agents = announced_agents()
    steps = timeline(job)
    if job.stopping_at is not None and _end_waits(job, steps):
        steps = timeline(job)
    items_run = any(step.is_fan_out for step in steps) and _running_items(job).exists()
    match next_move(job, steps, agents, items_run=items_run):
        case Move.COMPLETE:
            _close(job, JobState.COMPLETED)
        case Move.UNDO:
            _begin_undo(job, scene_of(job, steps, agents))
        case Move.FAIL:
            end_failed_steps(job, steps, Remedy.WAIT, "The job ended without undo.")
            _close(job, JobState.FAILED, detail=job.reason_detail)
        case Move.END_UNDO:
            _end_undo(job, steps)


def timeline(job: Job) -> list[Step]:
    return list(Step.objects.filter(job=job).for_timeline())


def _running_items(job: Job) -> QuerySet[Step]:
    return Step.objects.filter(job=job, parent__isnull=False, role=Role.FORWARD, state=StepState.RUNNING)


def scene_of(job: Job, steps: Sequence[Step], agents: Mapping[str, Agent]) -> compensation.Scene:
    """All that an undo of this job is decided on."""
    return compensation.Scene(
        job=job,
        plan=Plan.from_json(job.plan),
        steps=steps,
        evidence=compensation.evidence_of(steps),
        behind=compensation.effects_behind(job),
        agents=agents,
        seq=fanouts.next_seq(job),
    )


def scene_now(job: Job) -> compensation.Scene:
    """The same, as it is read now."""
    return scene_of(job, timeline(job), announced_agents())


def _end_waits(job: Job, steps: Sequence[Step]) -> bool:
    """A stopping job waits no more for times, signals and callbacks; children are told. Whether a step was changed."""
    plan = Plan.from_json(job.plan)
    waiting = [step for step in steps if step.role == Role.FORWARD and step.state == StepState.RUNNING]
    fans = [step for step in waiting if step.is_fan_out]
    items = _running_items(job).filter(parent__in=fans, complete_by__isnull=True)
    ended = [_end_wait(job, step, plan) for step in [*items, *waiting] if step.complete_by is None and step not in fans]
    for fan in fans:
        if not _running_items(job).filter(parent=fan).exists():
            transitions.wait_ended_badly(job, fan, STOPPED, actor="scheduler")
            ended.append(True)
    return any(ended)


def _end_wait(job: Job, step: Step, plan: Plan) -> bool:
    if step.kind == StepKind.CHILD:
        policy = plan.steps[step.place].on_parent_end
        if policy == "cancel":
            transitions.look_again_at(step, now())
            broker.ring_wake_on_commit(step.pk)
        if policy != "abandon":
            return False
    if step.kind == StepKind.CALL:
        transitions.cancel_step(job, step, actor="scheduler", reason="The job is stopping; no callback is waited for.")
    else:
        transitions.wait_ended_badly(job, step, STOPPED, actor="scheduler")
    if step.parent_id is not None:
        transitions.count_item(_fan_of(step), failed=True)
    return True


STOPPED = Failure(kind=ErrorKind.CANCELLED, code="cancelled", message="The job is stopping.")


def send_to_children(job: Job) -> None:
    """A locked job was paused or resumed: so are the jobs that its steps have started, each by an errand of its own."""
    for step in Step.objects.filter(job=job, kind=StepKind.CHILD, state=StepState.RUNNING, items_total__isnull=True):
        transitions.look_again_at(step, now())
        broker.ring_wake_on_commit(step.pk)


def _begin_undo(job: Job, scene: compensation.Scene) -> None:
    """Undo what was done. Where nothing can be, the job fails as it stands, so that a person may take it on from here."""
    pivot = compensation.pivot_passed(scene.plan, scene.steps)
    if pivot is not None:
        # It ended after this undo had been asked for.
        why = f"{pivot} is done, the point of no return; nothing was undone."
        end_failed_steps(job, scene.steps, Remedy.WAIT, why)
        _close(job, JobState.FAILED, detail=f"{job.reason_detail} {why}".strip())
        return
    rows = compensation.plan_undo(scene).rows
    reversible = any(compensation.can_be_undone(step) for step in scene.plan.steps)
    if not rows and (is_touched(scene) or not reversible):
        end_failed_steps(job, scene.steps, Remedy.WAIT, "Nothing that was done can be undone.")
        _close(job, JobState.FAILED, detail=job.reason_detail)
        return
    end_forward_steps(job, scene.steps, scene.evidence)
    if rows:
        transitions.begin_undo(job, rows, why=job.reason_detail)
        move_on(job)
        ring_for_ready(job)
    else:
        _close(job, JobState.COMPENSATED, detail=job.reason_detail)


def is_touched(scene: compensation.Scene) -> bool:
    """Whether the job did something, or may have, that would have to be undone."""
    planned = {step.name: step for step in scene.plan.steps}
    return any(
        compensation.needs_undo(step, scene.evidence[step.pk], scene.behind)
        and step.kind in (StepKind.CALL, StepKind.CHILD)
        and not planned[step.name].undo_unnecessary
        for step in scene.steps
    )


def end_forward_steps(
    job: Job, steps: Sequence[Step], evidence: Mapping[int, compensation.Evidence], names: Collection[str] | None = None
) -> None:
    """Undo begins: what has not begun is skipped, what is in doubt has failed, what has failed is undone."""
    for step in steps:
        if step.role != Role.FORWARD or (names is not None and step.name not in names):
            continue
        if step.is_fan_out:
            transitions.skip_items(job, step, reason=compensation.BEFORE_UNDO)
            doubtful = Step.objects.filter(parent=step, state=StepState.NOT_STARTED)
            failed = Step.objects.filter(parent=step, state=StepState.FAILED, remedy__in=["", Remedy.ESCALATE])
            for item in [*doubtful, *failed]:
                _end_forward_step(job, item, in_doubt=Step.objects.filter(pk=item.pk).with_effects().exists())
        found = evidence[step.pk]
        _end_forward_step(job, step, in_doubt=found.open_doubt or found.called_once)


def _end_forward_step(job: Job, step: Step, *, in_doubt: bool, reason: str = compensation.BEFORE_UNDO) -> None:
    if step.state == StepState.NOT_STARTED and in_doubt:
        transitions.fail_in_doubt(job, step, reason="Nobody knows whether an earlier attempt did it.")
    elif step.state == StepState.NOT_STARTED:
        transitions.skip(job, step, reason=reason)
    elif step.state == StepState.FAILED and step.remedy in ("", Remedy.ESCALATE):
        transitions.decide_remedy(job, step, Remedy.COMPENSATE, actor="scheduler", reason="The job is being undone.")


def end_failed_steps(job: Job, steps: Sequence[Step], remedy: Remedy, reason: str) -> None:
    """Nobody has to decide any more on what failed: the job ends, or a person has taken it in hand."""
    for step in steps:
        if step.is_fan_out:
            undecided = Step.objects.filter(parent=step, state=StepState.FAILED, remedy__in=["", Remedy.ESCALATE])
            end_failed_steps(job, list(undecided), remedy, reason)
        if step.role == Role.FORWARD and step.state == StepState.FAILED and step.remedy in ("", Remedy.ESCALATE):
            transitions.decide_remedy(job, step, remedy, actor="scheduler", reason=reason)


def _end_undo(job: Job, steps: Sequence[Step]) -> None:
    undone = all(step.state != StepState.FAILED for step in steps if step.role == Role.UNDO)
    doubt = Step.objects.filter(job=job, role=Role.FORWARD, superseded=False).in_doubt().exists()
    clean = undone and not doubt and not job.partial
    _close(job, JobState.COMPENSATED if clean else JobState.FAILED, detail=job.reason_detail)


def _close(job: Job, state: JobState, *, detail: str = "") -> None:
    """To a terminal state, and with it what begins then: the hook's job, the word to the parent."""
    transitions.close(job, state, detail=detail)
    if not job.hooked:
        return
    if job.parent_step_id is not None:
        broker.ring_tell_parent_on_commit(job.pk)
    plan = Plan.from_json(job.plan)
    operation = plan.after_success if state == JobState.COMPLETED else plan.after_failure
    if operation is not None:
        hook = plan.hook("after_success" if state == JobState.COMPLETED else "after_failure")
        open_job(plan=hook, input=_facts_for_hook(job), key=f"{job.pk}:{job.seq}", actor="scheduler")


def _facts_for_hook(job: Job) -> dict[str, Any]:
    failed = Step.objects.of_plan().filter(job=job, role=Role.FORWARD, state=StepState.FAILED).order_by("seq")
    return {
        "job": str(job.pk),
        "seq": job.seq,
        "workflow": job.workflow,
        "version": job.version,
        "key": job.key,
        "state": job.state,
        "reason": job.reason,
        "reason_detail": job.reason_detail,
        "failed_steps": [
            {"step": step.name, "kind": step.error_kind, "code": step.error_code, "message": step.error_message}
            for step in failed
        ],
        "input": job.input,
    }


def attend_to_all(job_id: uuid.UUID) -> None:
    """Look at a job until there is nothing more to look at, a short transaction each time."""
    while attend(job_id):
        pass


@in_transaction
def attend(job_id: uuid.UUID) -> bool:
    """Go on with its fan-outs, open its gates, move it on. Whether there is more of this."""
    job = transitions.lock(job_id)
    if job is None or job.is_terminal:
        return False
    steps = Step.objects.filter(job=job)
    for fan in steps.to_spread().order_by("seq"):
        _spread(job, fan)
    move_on(job)
    if not job.is_terminal and job.stopping_at is None and (steps.to_write().exists() or steps.at_gate().exists()):
        return True
    ring_for_ready(job)
    return False


def _spread(job: Job, fan: Step) -> None:
    """Write the next items of a fan-out, let go those whose turn it is, and see whether it is over."""
    planned = Plan.from_json(job.plan).steps[fan.place]
    try:
        if fan.items_made < (fan.items_total or 0):
            fanouts.write_batch(job, fan, planned, announced_agents())
    except SagError as error:
        _fail_fan_out(job, fan, Failure(kind=ErrorKind.PERMANENT, code=error.code, message=error.message))
        return
    _see_to_items(job, fan, planned)
    if fan.state == StepState.COMPLETED:
        move_on(job)


@in_transaction
def heal(job_id: uuid.UUID) -> bool:
    """Set a stranded job moving again: its counters, its held steps, its next move. False when it is not stranded."""
    job = transitions.lock(job_id, unless_locked=True)
    if job is None or not Job.objects.filter(pk=job_id).stranded().exists():
        return False
    steps = list(Step.objects.filter(Q(parent__isnull=True) | Q(releases__len__gt=0), job=job))
    ended = {step.seq for step in steps if step.released_at is not None}
    counts: dict[int, int] = {}
    for step in steps:
        if step.state == StepState.NOT_STARTED:
            unfinished = sum(step.seq in other.releases for other in steps if other.seq not in ended)
            if unfinished != step.waiting_for:
                counts[step.pk] = unfinished
    if counts:
        transitions.recount(job, counts)
    if job.stopping_at is None:
        transitions.let_go(job)
    ring_for_ready(job)
    move_on(job)
    return True


# --- what the supervisor decided -------------------------------------------------------------------------------------


def give_up(job: Job, step: Step, remedy: Remedy, *, reason: str) -> None:
    """A step of a locked job will not succeed. What that means for its job is the remedy."""
    if step.parent_id is not None and step.role == Role.FORWARD and remedy != Remedy.ESCALATE:
        _give_up_item(job, step, reason=reason)
        return
    transitions.decide_remedy(job, step, remedy, actor="supervisor", reason=reason)
    if remedy in transitions.COUNTED_OFF:
        if step.is_fan_out:
            leave_items(job, step, reason=f"{step.name} failed, and the job goes on without it.")
        go_on_behind(job, step)
        ring_for_ready(job)
    elif remedy == Remedy.COMPENSATE:
        detail = f"{step.address}: {step.error_message}"
        if job.stopping_at is None:
            transitions.stop(job, reason=Reason.STEP_FAILED, detail=detail, undo=True, actor="supervisor")
        move_on(job)
    elif step.role != Role.FORWARD:  # an undo: a person is told; the undo of other steps goes on
        go_on_behind(job, step)
        ring_for_ready(job)


def _give_up_item(job: Job, item: Step, *, reason: str) -> None:
    """Tolerated, or one too many: then the fan-out itself fails."""
    fan = _fan_of(item)
    room = fan.items_failed < fanouts.tolerated(Plan.from_json(job.plan).steps[fan.place], fan.items_total or 0)
    remedy = Remedy.IGNORE if room else Remedy.COMPENSATE
    transitions.decide_remedy(job, item, remedy, actor="supervisor", reason=reason)
    go_on_behind(job, item)
    ring_for_ready(job)


@in_transaction
def pass_deadline(job_id: uuid.UUID) -> bool | None:
    """The time of a job as a whole is over: stop it, and undo it where that is still possible. None when it is locked."""
    job = transitions.lock(job_id, unless_locked=True)
    if job is None:
        return None
    if not Job.objects.filter(pk=job_id).past_deadline().exists():
        return False
    if job.paused_at is not None:
        transitions.resume(job, actor="supervisor", reason="Its deadline lifts the pause.")
        send_to_children(job)
    undo = compensation.pivot_passed(Plan.from_json(job.plan), timeline(job)) is None
    detail = f"It did not end by {job.deadline:%Y-%m-%d %H:%M:%S} UTC, its deadline."
    transitions.stop(job, reason=Reason.DEADLINE, detail=detail, undo=undo, actor="supervisor")
    move_on(job)
    return True


@in_transaction
def wait_is_over(step_id: int) -> bool | None:
    """What a step without a lease waited for is here (a time), or did not come in time (a signal, a callback)."""
    job_id = Step.objects.filter(pk=step_id).values_list("job_id", flat=True).first()
    job = transitions.lock(job_id, unless_locked=True) if job_id else None
    if job is None:
        return None
    step = Step.objects.due().filter(pk=step_id).first()
    if step is None or (job.paused_at is not None and step.kind == StepKind.TIMER):
        return False
    if step.kind == StepKind.TIMER:
        transitions.complete(job, step, result=None, actor="scheduler", settled_by=SettledBy.TIMER)
        go_on_behind(job, step)
        ring_for_ready(job)
        return True
    if step.kind == StepKind.SIGNAL:
        said, code = f"No signal {step.name} came in time.", "signal_timeout"
    else:
        said, code = "No callback came in time.", transitions.CALLBACK_TIMEOUT
    expired = Failure(kind=ErrorKind.EXPIRED_WAITING, code=code, message=said, in_doubt=step.kind == StepKind.CALL)
    transitions.wait_ended_badly(job, step, expired, actor="supervisor")
    after_failure(job, step)
    return True


@in_transaction
def refuse_parked(step_id: int) -> bool | None:
    """A step's service was away for longer than it may be parked."""
    job_id = Step.objects.filter(pk=step_id).values_list("job_id", flat=True).first()
    job = transitions.lock(job_id, unless_locked=True) if job_id else None
    if job is None:
        return None
    step = Step.objects.filter(pk=step_id, state=StepState.NOT_STARTED, parked=True).first()
    if step is None:
        return False
    said = f"The service of agent {step.agent} was away for longer than a step may be parked."
    transitions.refuse(
        job,
        step,
        Failure(kind=ErrorKind.EXPIRED_WAITING, code="park_timeout", message=said),
        actor="supervisor",
    )
    after_failure(job, step)
    return True


@in_transaction
def refuse_queued(step_id: int) -> bool | None:
    """Nobody took a ready step within its queue time-out."""
    job_id = Step.objects.filter(pk=step_id).values_list("job_id", flat=True).first()
    job = transitions.lock(job_id, unless_locked=True) if job_id else None
    if job is None:
        return None
    step = Step.objects.queued_too_long().ready().filter(pk=step_id).first()
    if step is None:
        return False
    if step.rings == 0:
        transitions.note_rings([step])  # nobody was rung for it yet: this is when it is first seen
        return False
    said = f'No worker of queue "{step.queue}" took {step.address} within {step.queue_timeout}.'
    transitions.refuse(
        job,
        step,
        Failure(kind=ErrorKind.EXPIRED_WAITING, code="queue_timeout", message=said),
        actor="supervisor",
    )
    after_failure(job, step)
    return True


# --- reading under the lock ------------------------------------------------------------------------------------------


def announced_agents() -> dict[str, Agent]:
    return {agent.name: agent for agent in Agent.objects.all()}


def ring_for_ready(job: Job) -> list[tuple[int, str]]:
    """Ring on commit for the steps of this job that may start at once; for many items, for the first of them."""
    steps = list(Step.objects.filter(job=job).ready().order_by("seq").values_list("pk", "queue")[:_MOST_RINGS])
    broker.ring_on_commit(steps)
    return steps
