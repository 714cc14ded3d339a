"""What decisions are taken on, read at one moment: a job's steps, the agents as announced, and all that an undo needs."""

from collections.abc import Mapping, Sequence

from workflows import compensation, fanouts
from workflows.models import Agent, Job, Step
from workflows.plans.plan import Plan


def announced_agents() -> dict[str, Agent]:
    return {agent.name: agent for agent in Agent.objects.all()}


def timeline(job: Job) -> list[Step]:
    return list(Step.objects.filter(job=job).for_timeline())


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
    """The same, from what is read now."""
    return scene_of(job, timeline(job), announced_agents())
