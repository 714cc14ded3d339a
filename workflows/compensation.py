"""What has to be undone, and in what order. Decided here on rows alone; written by `transitions`, run by the agents.

To be undone: every forward step that is Completed, and every one with an attempt in doubt, whatever its state. The undo
of X waits for the undo of every step that depends on X, also through steps that need none; independent branches undo
side by side.

A fence in the database does not fence the network: a call that was in doubt may land after its undo was answered. Its
undo is therefore asked once more, under a key of its own, when no call can be travelling any more (the quiet time). For
an agent that promises to refuse a cancelled key (`closes_keys`) the first answer is final for the job, and the recheck
only makes sure; for any other the job stays Compensating until the recheck has its answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from workflows.conf import conf
from workflows.models import Agent, Job, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.states import Role, StepState


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the attempts of one forward step say: any doubt still open, any there ever was, when the last one began."""

    open_doubt: bool = False
    ever_in_doubt: bool = False
    last_started_at: datetime | None = None


NO_EVIDENCE = Evidence()


def evidence_of(steps: Sequence[Step]) -> dict[int, Evidence]:
    """{step id: evidence} from prefetched attempts."""
    found = {}
    for step in steps:
        attempts = list(step.attempts.all())
        found[step.pk] = Evidence(
            open_doubt=any(attempt.in_doubt and not attempt.resolved_by for attempt in attempts),
            ever_in_doubt=any(attempt.in_doubt for attempt in attempts),
            last_started_at=max((attempt.started_at for attempt in attempts), default=None),
        )
    return found


def needs_undo(step: Step, evidence: Evidence) -> bool:
    return step.role == Role.FORWARD and (step.state == StepState.COMPLETED or evidence.open_doubt)


def undo_order(plan: Plan, names: set[str]) -> dict[str, set[str]]:
    """{step to undo: the steps whose undo it waits for}: its nearest dependents in `names`, through all the others."""
    order: dict[str, set[str]] = {}
    for name in names:
        nearest: set[str] = set()
        frontier = set(plan.dependents(name))
        seen: set[str] = set()
        while frontier:
            dependent = frontier.pop()
            if dependent in seen:
                continue
            seen.add(dependent)
            if dependent in names:
                nearest.add(dependent)
            else:
                frontier |= set(plan.dependents(dependent))
        order[name] = nearest
    return order


def quiet_time(step: Step, evidence: Evidence, agent: Agent | None) -> datetime | None:
    """When no call of this step can land any more; None when no attempt of it began."""
    if evidence.last_started_at is None:
        return None
    lands_within = agent.lands_within if agent else timedelta(seconds=conf.lands_within)
    return evidence.last_started_at + step.timeout + lands_within


def plan_undo(
    job: Job, plan: Plan, steps: Sequence[Step], evidence: Mapping[int, Evidence], agents: Mapping[str, Agent]
) -> list[Step]:
    """The rows that undo this job, unsaved, numbered behind its steps. Empty when there is nothing to undo."""
    planned = {step.name: step for step in plan.steps}
    originals = {
        step.name: step
        for step in steps
        if needs_undo(step, evidence[step.pk]) and planned[step.name].compensation is not None
    }
    order = undo_order(plan, set(originals))
    seq = max(step.seq for step in steps) + 1
    rows: dict[str, Step] = {}
    # Latest steps first: undo begins at the end, and the numbers break ties in that order.
    for name in sorted(originals, key=lambda name: originals[name].seq, reverse=True):
        rows[name] = _undo_row(job, originals[name], planned[name], agents, seq, waiting_for=len(order[name]))
        seq += 1
    for name, waited_for in order.items():
        for other in waited_for:
            rows[other].releases.append(rows[name].seq)
    for row in rows.values():
        row.releases.sort()
    rechecks = []
    for name, row in rows.items():
        if evidence[originals[name].pk].ever_in_doubt:
            recheck = recheck_row(job, originals[name], planned[name], evidence[originals[name].pk], agents, seq)
            recheck.waiting_for = 1
            row.releases.append(seq)
            rechecks.append(recheck)
            seq += 1
    return [*rows.values(), *rechecks]


def recheck_row(
    job: Job, original: Step, planned: PlanStep, evidence: Evidence, agents: Mapping[str, Agent], seq: int
) -> Step:
    """The second asking, due at the quiet time."""
    row = _undo_row(job, original, planned, agents, seq, waiting_for=0, role=Role.RECHECK)
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


def _undo_row(
    job: Job,
    original: Step,
    planned: PlanStep,
    agents: Mapping[str, Agent],
    seq: int,
    *,
    waiting_for: int,
    role: Role = Role.UNDO,
) -> Step:
    operation = planned.compensation
    if operation is None:
        raise AssertionError(f"step {original.name} declares no compensation")
    agent_name = operation.partition(".")[0]
    agent = agents.get(agent_name)
    name = f"{original.name}.{role}"
    fields: dict[str, Any] = {
        "job": job,
        "seq": seq,
        "name": name,
        "role": role,
        "undoes": original,
        "operation": operation,
        "agent": agent_name,
        "queue": agent.queue if agent else conf.queue,
        "idempotency_key": f"{job.pk}:{name}",
        "waiting_for": waiting_for,
        "releases": [],
        "timeout": original.timeout,
        "attempts_allowed": planned.undo_retry.attempts,
        "version": job.seq,
    }
    return Step(**fields)
