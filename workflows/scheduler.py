"""What comes next. Opens jobs, goes on behind each step that has ended, and moves each job to its next state.

Every function here is one short transaction (or takes part in the caller's): the job locked first, then read, then a
pure decision (`next_move`), then the verbs of `transitions`. No function makes a remote call; doorbells ring after the
commit. Nothing depends on the process that runs it: any worker, web server or supervisor is the scheduler for a moment.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from enum import Enum, auto
from typing import Any

from django.db import OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

from workflows import broker, compensation, endings, fanouts, gates, scenes, transitions
from workflows.exceptions import KeyConflict, KeyInUse, SagError
from workflows.models import Agent, Job, Step
from workflows.opening import new_job
from workflows.plans.plan import Plan, PlanStep
from workflows.states import UNENDED, ErrorKind, JobState, Remedy, Role, StepState
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
        offer_key(step.limit_key, besides=step.queue)


def offer_key(limit_key: str, *, besides: str) -> None:
    """A place under a key is free: ring the other queues too in which steps wait for it.

    Looked for after the commit: whoever came before it found no place, and whoever comes behind it has a ring of its own.
    """

    def ring() -> None:
        others = set(Step.objects.queues_that_want(limit_key)) - {besides}
        broker.ring_on_commit((None, queue) for queue in sorted(others))

    if limit_key:
        transaction.on_commit(ring, robust=True)


def after_failure(job: Job, step: Step) -> None:
    """In an ordinary job the supervisor chooses a remedy, at once; a stopping job was only waiting for this end."""
    offer_place(step)
    if job.stopping_at is not None:
        move_on(job)
    else:
        broker.ring_supervisor_on_commit(step.pk)


def _item_ended(job: Job, item: Step, *, failed: bool) -> None:
    """Count an item off its fan-out, let the next one go, and end the fan-out if that was the last, or one too many."""
    fan = fanouts.fan_of(item)
    transitions.count_item(fan, failed=failed)
    go_on_with_items(job, item)


def go_on_with_items(job: Job, item: Step) -> None:
    """Its fan-out has an item more, or less, that is open."""
    fan = fanouts.fan_of(item)
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
    return step.state not in UNENDED


def _has_ended(step: Step) -> bool:
    """Failed is an end only once the machine, or a person, has given up on it."""
    if step.state == StepState.FAILED:
        return step.remedy == Remedy.ESCALATE
    return step.state not in UNENDED


def move_on(job: Job) -> None:
    """Open what gates may open, then move a locked job to its next state, if it is ready for one."""
    if gates.open_gates(job):
        ring_for_ready(job)
    agents = scenes.announced_agents()
    steps = scenes.timeline(job)
    if job.stopping_at is not None and endings.end_waits(job, steps):
        steps = scenes.timeline(job)
    items_run = any(step.is_fan_out for step in steps) and fanouts.running_items(job).exists()
    match next_move(job, steps, agents, items_run=items_run):
        case Move.COMPLETE:
            _close(job, JobState.COMPLETED)
        case Move.UNDO:
            _begin_undo(job, scenes.scene_of(job, steps, agents))
        case Move.FAIL:
            endings.end_failed_steps(job, steps, Remedy.WAIT, "The job ended without undo.")
            _close(job, JobState.FAILED, detail=job.reason_detail)
        case Move.END_UNDO:
            _end_undo(job, steps)


def _begin_undo(job: Job, scene: compensation.Scene) -> None:
    """Undo what was done. Where nothing can be, the job fails as it stands, so that a person may take it on from here."""
    pivot = compensation.pivot_passed(scene.plan, scene.steps)
    if pivot is not None:
        # It ended after this undo had been asked for.
        why = f"{pivot} is done, the point of no return; nothing was undone."
        endings.end_failed_steps(job, scene.steps, Remedy.WAIT, why)
        _close(job, JobState.FAILED, detail=f"{job.reason_detail} {why}".strip())
        return
    rows = compensation.plan_undo(scene).rows
    reversible = any(compensation.can_be_undone(step) for step in scene.plan.steps)
    if not rows and (compensation.is_touched(scene) or not reversible):
        endings.end_failed_steps(job, scene.steps, Remedy.WAIT, "Nothing that was done can be undone.")
        _close(job, JobState.FAILED, detail=job.reason_detail)
        return
    endings.end_forward_steps(job, scene.steps, scene.evidence)
    if rows:
        transitions.begin_undo(job, rows, why=job.reason_detail)
        move_on(job)
        ring_for_ready(job)
    else:
        _close(job, JobState.COMPENSATED, detail=job.reason_detail)


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
            fanouts.write_batch(job, fan, planned, scenes.announced_agents())
    except SagError as error:
        _fail_fan_out(job, fan, Failure(kind=ErrorKind.PERMANENT, code=error.code, message=error.message))
        return
    _see_to_items(job, fan, planned)
    if fan.state == StepState.COMPLETED:
        move_on(job)


def ring_for_ready(job: Job) -> list[tuple[int, str]]:
    """Ring on commit for the steps of this job that may start at once; for many items, for the first of them."""
    steps = list(Step.objects.filter(job=job).ready().order_by("seq").values_list("pk", "queue")[:_MOST_RINGS])
    broker.ring_on_commit(steps)
    return steps
