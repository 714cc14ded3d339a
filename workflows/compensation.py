"""What has to be undone, and in what order. Decided here on rows alone; written by `transitions`, run by the agents.

To be undone: every forward step that is Completed, and every one with an attempt in doubt, whatever its state; of a
fan-out, its items of that kind, side by side, behind one row that stands for them; of a child, all that its job did. The undo
of X waits for the undo of every step that depends on X, also through steps that need none; independent branches undo
side by side.

A fence in the database does not fence the network: a call that was in doubt may land after its undo was answered. Its
undo is therefore asked once more, under a key of its own, when no call can be travelling any more (the quiet time). For
an agent that promises to refuse a cancelled key (`closes_keys`) the first answer is final for the job, and the recheck
only makes sure; for any other the job stays Compensating until the recheck has its answer.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from workflows.conf import conf
from workflows.models import Agent, Job, Once, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.states import Role, SettledBy, StepKind, StepState

# Why a step never began: what is done forward again does those as well.
BEFORE_UNDO = "Undo began before this step."


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the attempts of one forward step say: any doubt still open, any there ever was, when the last one began.

    `called_once`: an attempt made a call, or was about to, that later ones know not to make again.
    """

    open_doubt: bool = False
    called_once: bool = False
    ever_in_doubt: bool = False
    last_started_at: datetime | None = None


NO_EVIDENCE = Evidence()


def evidence_of(steps: Sequence[Step]) -> dict[int, Evidence]:
    """{step id: evidence} from prefetched attempts, and from the calls that were made once."""
    found = {}
    unended = [
        step.pk for step in steps if step.role == Role.FORWARD and step.state != StepState.COMPLETED and step.attempt
    ]
    once = set(Once.objects.filter(step__in=unended).values_list("step_id", flat=True)) if unended else set()
    for step in steps:
        attempts = list(step.attempts.all())
        found[step.pk] = Evidence(
            open_doubt=any(attempt.in_doubt and not attempt.resolved_by for attempt in attempts),
            called_once=step.pk in once,
            ever_in_doubt=any(attempt.in_doubt for attempt in attempts),
            last_started_at=max((attempt.started_at for attempt in attempts), default=None),
        )
    return found


def needs_undo(step: Step, evidence: Evidence, behind: Collection[int]) -> bool:
    """`behind`: the ids of the steps behind whose row others have done something (`effects_behind`)."""
    if step.role != Role.FORWARD:
        return False
    if step.is_fan_out:
        return step.pk in behind
    done = step.state == StepState.COMPLETED or evidence.open_doubt or evidence.called_once
    return done or step.pk in behind


def effects_behind(job: Job) -> set[int]:
    """The fan-outs of this job with an item that did something, or may have, and the Failed steps whose own job
    was not undone: it may have left behind what it did.
    """
    rows = Step.objects.filter(job=job, superseded=False).with_effects().order_by()
    fans = rows.filter(parent__isnull=False).values_list("parent_id", flat=True).distinct()
    children = rows.filter(parent__isnull=True, kind=StepKind.CHILD, state=StepState.FAILED).values_list(
        "pk", flat=True
    )
    return {*fans, *children}


def can_be_undone(planned: PlanStep) -> bool:
    """Whether the plan says how: by an operation, or for a child by undoing its job."""
    return planned.compensation is not None or planned.kind == "child"


def pivot_passed(plan: Plan, steps: Sequence[Step], names: Collection[str] | None = None) -> str | None:
    """The step behind which there is no way back, once it is done or may be: from then on a job only goes forward.

    `names`: those that an undo of a part would take back, in which the pivot then has to be.
    """
    for step in steps:
        if step.role != Role.FORWARD or not plan.steps[step.place].pivot or (names and step.name not in names):
            continue
        doubt = any(attempt.in_doubt and not attempt.resolved_by for attempt in step.attempts.all())
        if step.state == StepState.COMPLETED or doubt:
            return step.name
    return None


def behind(plan: Plan, name: str) -> set[str]:
    """The step, and every step that depends on it: what an undo down to it takes back."""
    found, frontier = {name}, {name}
    while frontier:
        frontier = {dependent for name in frontier for dependent in plan.dependents(name)} - found
        found |= frontier
    return found


def undo_order(plan: Plan, names: Collection[str]) -> dict[str, set[str]]:
    """{step to undo: the steps whose undo it waits for}: its nearest dependents in `names`, through all the others."""
    return {name: _nearest(name, plan.dependents, names) for name in names}


def forward_order(plan: Plan, names: Collection[str]) -> dict[str, set[str]]:
    """{step to do again: the steps it waits for}: its nearest prerequisites in `names`, through all the others."""
    return {name: _nearest(name, plan.prerequisites, names) for name in names}


def _nearest(name: str, neighbours: Callable[[str], Collection[str]], names: Collection[str]) -> set[str]:
    nearest: set[str] = set()
    frontier = set(neighbours(name))
    seen: set[str] = set()
    while frontier:
        neighbour = frontier.pop()
        if neighbour in seen:
            continue
        seen.add(neighbour)
        if neighbour in names:
            nearest.add(neighbour)
        else:
            frontier |= set(neighbours(neighbour))
    return nearest


def taken_back(plan: Plan, steps: Sequence[Step]) -> set[str]:
    """The steps over which a job goes forward again after an undo: those undone, those skipped as it began, and all
    that depend on them.
    """
    back = {
        step.name
        for step in steps
        if step.role == Role.FORWARD and (undo_of(step, steps) is not None or step.skip_reason == BEFORE_UNDO)
    }
    return {name for step in back for name in behind(plan, step)}


def stays(planned: PlanStep, step: Step, steps: Sequence[Step]) -> bool:
    """Whether a step among those taken back is not done again: its effect could not be undone, or a person skipped it."""
    if step.state == StepState.SKIPPED:
        return step.settled_by == SettledBy.PERSON
    has_effects = planned.kind in (StepKind.CALL, StepKind.CHILD) and not planned.undo_unnecessary
    return step.state == StepState.COMPLETED and has_effects and undo_of(step, steps) is None


def quiet_time(step: Step, evidence: Evidence, agent: Agent | None) -> datetime | None:
    """When no call of this step can land any more; None when no attempt of it began."""
    if evidence.last_started_at is None:
        return None
    lands_within = agent.lands_within if agent else timedelta(seconds=conf.lands_within)
    return evidence.last_started_at + step.timeout + lands_within


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What an undo is decided on: the job, its plan, the rows of it, and what is known of them. `seq` is the next number."""

    job: Job
    plan: Plan
    steps: Sequence[Step]
    evidence: Mapping[int, Evidence]
    behind: Collection[int]
    agents: Mapping[str, Agent]
    seq: int

    def originals(self, names: Collection[str] | None = None) -> dict[str, Step]:
        """{name: step} of what is to be undone, can be, and has no undo yet; among `names`, or in the whole job."""
        return {
            step.name: step
            for step in self.steps
            if needs_undo(step, self.evidence[step.pk], self.behind)
            and can_be_undone(self.plan.step(step.name))
            and (names is None or step.name in names)
            and undo_of(step, self.steps) is None
        }

    def failed_undos(self, names: Collection[str] | None = None) -> dict[str, Step]:
        """{name of the original: the row that was to undo it}, where that has failed."""
        undos = [step for step in self.steps if step.role == Role.UNDO and step.state == StepState.FAILED]
        found = {undo.undoes.name: undo for undo in undos if undo.undoes is not None}
        return {name: undo for name, undo in found.items() if names is None or name in names}


def is_touched(scene: Scene) -> bool:
    """Whether the job did something, or may have, that would have to be undone."""
    planned = {step.name: step for step in scene.plan.steps}
    return any(
        needs_undo(step, scene.evidence[step.pk], scene.behind)
        and step.kind in (StepKind.CALL, StepKind.CHILD)
        and not planned[step.name].undo_unnecessary
        for step in scene.steps
    )


def undo_of(step: Step, steps: Sequence[Step]) -> Step | None:
    """The row that undoes it, if there is one already."""
    return next((other for other in steps if other.undoes_id == step.pk and other.role == Role.UNDO), None)


@dataclass(frozen=True, kw_only=True)
class Again:
    """A failed undo that is asked for again, and its place among the others: how many it waits for, whom it releases."""

    undo: Step
    waiting_for: int
    releases: list[int]


@dataclass(frozen=True, kw_only=True)
class UndoPlan:
    """`rows`: what is to be written, unsaved, numbered behind the job's steps. `again`: the failed ones, asked once more."""

    rows: list[Step]
    again: list[Again]


def plan_undo(scene: Scene, names: Collection[str] | None = None) -> UndoPlan:
    """What undoes this job, or the steps `names` of it; nothing where there is nothing to undo."""
    job, plan, agents, evidence = scene.job, scene.plan, scene.agents, scene.evidence
    planned = {step.name: step for step in plan.steps}
    originals = scene.originals(names)
    failed = scene.failed_undos(names)
    order = undo_order(plan, {*originals, *failed})
    seq = scene.seq
    rows: dict[str, Step] = {}
    # Latest steps first: undo begins at the end, and the numbers break ties in that order.
    for name in sorted(originals, key=lambda name: originals[name].seq, reverse=True):
        rows[name] = undo_row(job, originals[name], planned[name], agents, seq, waiting_for=len(order[name]))
        seq += 1
    number = {name: row.seq for name, row in {**failed, **rows}.items()}
    releases: dict[str, list[int]] = {name: [] for name in order}
    for name, waited_for in order.items():
        for other in waited_for:
            releases[other].append(number[name])
    for name, row in rows.items():
        row.releases = sorted(releases[name])
    rechecks = []
    for name, row in rows.items():
        if evidence[originals[name].pk].ever_in_doubt and not originals[name].is_fan_out:
            recheck = recheck_row(job, originals[name], planned[name], evidence[originals[name].pk], agents, seq)
            recheck.waiting_for = 1
            row.releases.append(seq)
            rechecks.append(recheck)
            seq += 1
    again = [
        Again(undo=undo, waiting_for=len(order[name]), releases=sorted(releases[name])) for name, undo in failed.items()
    ]
    return UndoPlan(rows=[*rows.values(), *rechecks], again=again)


def recheck_row(
    job: Job, original: Step, planned: PlanStep, evidence: Evidence, agents: Mapping[str, Agent], seq: int
) -> Step:
    """The second asking, due at the quiet time."""
    row = undo_row(job, original, planned, agents, seq, waiting_for=0, role=Role.RECHECK)
    due = quiet_time(original, evidence, agents.get(original.agent))
    if due is not None:
        row.run_after = row.ring_after = due
    return row


def holds_the_close(row: Step, agents: Mapping[str, Agent]) -> bool:
    """Whether a job may not leave Compensating before this row has ended."""
    if row.role == Role.RECHECK:
        return not closes_keys(row.undoes, agents)
    return row.role == Role.UNDO


def closes_keys(original: Step | None, agents: Mapping[str, Agent]) -> bool:
    """Whether the service that was called refuses a cancelled key: its promise, not that of another one that undoes."""
    agent = agents.get(original.agent) if original else None
    return agent is not None and agent.closes_keys


def undo_row(
    job: Job,
    original: Step,
    planned: PlanStep,
    agents: Mapping[str, Agent],
    seq: int,
    *,
    waiting_for: int,
    role: Role = Role.UNDO,
) -> Step:
    operation = planned.compensation or ""
    agent_name = operation.partition(".")[0]
    agent = agents.get(agent_name)
    name = f"{original.name}.{role}"
    if original.index is not None and role == Role.RECHECK:
        name = f"{original.name}.{original.index}.{role}"  # a row of its own, beside those that stand for the plan
    fields: dict[str, Any] = {
        "job": job,
        "seq": seq,
        "place": original.place,
        "name": name,
        "generation": original.generation,
        "kind": original.kind,
        "role": role,
        "undoes": original,
        "operation": operation,
        "agent": agent_name,
        "queue": agent.queue if agent else conf.queue,
        "idempotency_key": f"{original.idempotency_key}.{role}",
        "waiting_for": waiting_for,
        "releases": [],
        # An undo over many items, or of another job, is begun by the scheduler.
        "gated": original.is_fan_out or original.kind != StepKind.CALL,
        "limited": agent is not None and agent.has_limit,
        "timeout": original.timeout,
        "queue_timeout": None,
        "attempts_allowed": planned.undo_retry.attempts,
        "version": job.seq,
    }
    return Step(**fields)
