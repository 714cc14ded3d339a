"""What clears a doubt up, and what brings a new one: a probe, an answer, an undo; and a word that comes too late."""

from typing import Any

from workflows import broker, compensation, fanouts, transitions
from workflows.models import Attempt, Job, Step
from workflows.plans.plan import Plan
from workflows.scenes import announced_agents
from workflows.states import UNENDED, Outcome, Role, StepState


def resolve_by_success(job: Job, step: Step, by_probe: bool) -> None:
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
    asked_again = [undo for undo in undos if undo.role == Role.RECHECK and undo.state in UNENDED]
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
