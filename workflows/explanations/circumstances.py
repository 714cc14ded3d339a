"""What stands around the rows of some jobs: the items of their fan-outs, other jobs, limits. Loaded in a fixed number of
queries, and a bounded number of rows, however many items there are.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from workflows.models import Agent, Job, Step
from workflows.states import TERMINAL_JOB_STATES, JobState, Role, StepKind, StepState

MOST_IN_NEED = 20
MOST_IN_RECEIPT = 100


@dataclass(frozen=True, kw_only=True)
class Many:
    """The first of many rows, and how many there are."""

    first: Sequence[Step] = ()
    total: int = 0

    @property
    def more(self) -> int:
        return self.total - len(self.first)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """By fan-out: `counts` of its items by state, how many are in doubt, and what an ended job `undone` and `left`.
    By job: its items (and their rechecks) that stand in front of a person, its `rechecks` of items that are still to come.
    By step: the `children`. By agent or limit key: how many calls are `running`.
    """

    counts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    doubts: Mapping[int, int] = field(default_factory=dict)
    undone: Mapping[int, Many] = field(default_factory=dict)
    left: Mapping[int, Many] = field(default_factory=dict)
    in_need: Mapping[uuid.UUID, Many] = field(default_factory=dict)
    rechecks: Mapping[uuid.UUID, Many] = field(default_factory=dict)
    children: Mapping[int, Job] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)


NOTHING_KNOWN = Circumstances()


def around(jobs: Sequence[Job], steps: Iterable[Step], *, receipts: bool = True) -> Circumstances:
    """What is around these jobs and these rows of theirs. Only `receipts` ask what became of each item of ended ones."""
    steps = list(steps)
    fans = {step.pk: step for step in steps if step.is_fan_out}
    spread = {fan.job_id for fan in fans.values()}
    ended = {job.pk for job in jobs if job.state in TERMINAL_JOB_STATES and job.state != JobState.COMPLETED}
    told = [fan.pk for fan in fans.values() if receipts and fan.role == Role.FORWARD and fan.job_id in ended]
    agents, running = _limits(steps)
    return Circumstances(
        counts=_counts(fans),
        doubts=_doubts(fans),
        undone=_first_of_each(_items(told).filter(_undone()), "parent_id", MOST_IN_RECEIPT),
        left=_first_of_each(_items(told).with_effects().exclude(_undone()), "parent_id", MOST_IN_RECEIPT),
        in_need=_first_of_each(_in_need(spread), "job_id", MOST_IN_NEED),
        rechecks=_first_of_each(_rechecks(spread), "job_id", MOST_IN_NEED),
        children=_children(steps),
        agents=agents,
        running=running,
    )


def _items(fans: Iterable[int]) -> Any:
    return Step.objects.filter(parent__in=list(fans))


def _counts(fans: Mapping[int, Step]) -> dict[int, dict[str, int]]:
    """All states for each fan-out; items that are not written yet have not started."""
    found = {
        pk: dict.fromkeys(StepState.values, 0) | {StepState.NOT_STARTED.value: (fan.items_total or 0) - fan.items_made}
        for pk, fan in fans.items()
    }
    grouped = _items(fans).order_by().values_list("parent_id", "state").annotate(count=Count("pk")) if fans else []
    for pk, state, count in grouped:
        found[pk][state] += count
    return found


def _doubts(fans: Mapping[int, Step]) -> dict[int, int]:
    if not fans:
        return {}
    in_doubt = _items(fans).filter(attempts__in_doubt=True, attempts__resolved_by="")
    return dict(in_doubt.order_by().values_list("parent_id").annotate(count=Count("pk", distinct=True)))


def _undone() -> Q:
    """An undo was answered, and no doubt is open."""
    answered = Step.objects.filter(undoes=OuterRef("pk"), state=StepState.COMPLETED)
    in_doubt = Step.objects.filter(pk=OuterRef("pk")).in_doubt()
    return Q(Exists(answered), ~Exists(in_doubt))


def _in_need(jobs: Iterable[uuid.UUID]) -> Any:
    """Agrees with `JobQuerySet.needs_person`. An item whose undo was given up is told by that one."""
    items = Step.objects.of_items().filter(job__in=list(jobs))
    ended = [JobState.FAILED, JobState.COMPLETED]
    in_doubt = items.filter(job__state__in=ended, attempts__in_doubt=True, attempts__resolved_by="")
    given_up = Step.objects.escalated().filter(undoes=OuterRef("pk"))
    return items.filter(Q(pk__in=items.escalated().values("pk")) | Q(~Exists(given_up), pk__in=in_doubt.values("pk")))


def _rechecks(jobs: Iterable[uuid.UUID]) -> Any:
    unended = [StepState.NOT_STARTED, StepState.RUNNING]
    return Step.objects.of_items().filter(job__in=list(jobs), role=Role.RECHECK, state__in=unended)


def _first_of_each(rows: "QuerySet[Step]", group: str, most: int) -> dict[Any, Many]:
    """For each group the first rows in the order of their numbers, and how many there are."""
    totals = dict(rows.order_by().values_list(group).annotate(total=Count("pk")))
    if not totals:
        return {}
    numbered = rows.annotate(number=Window(RowNumber(), partition_by=F(group), order_by="seq"))
    first = defaultdict(list)
    found = numbered.filter(number__lte=most).select_related("undoes").order_by("seq")
    for row in found.prefetch_related("attempts", "undos", "undoes__attempts"):
        first[getattr(row, group)].append(row)
    return {key: Many(first=first[key], total=total) for key, total in totals.items()}


def _children(steps: Iterable[Step]) -> dict[int, Job]:
    """{step: the job that it, or the step that it undoes, started}."""
    waiting = {step.pk: step.undoes_id or step.pk for step in steps if step.kind == StepKind.CHILD}
    if not waiting:
        return {}
    started = Job.objects.filter(parent_step_id__in=waiting.values()).defer("plan", "input")
    jobs = {job.parent_step_id: job for job in started}
    return {pk: jobs[parent] for pk, parent in waiting.items() if parent in jobs}


def _limits(steps: Iterable[Step]) -> tuple[dict[str, Agent], dict[str, int]]:
    """Of the agents and keys whose limits steps may wait for: the agents, and how many calls run."""
    ready = [step for step in steps if step.limited and step.state == StepState.NOT_STARTED]
    if not ready:
        return {}, {}
    agents = {agent.name: agent for agent in Agent.objects.filter(name__in={step.agent for step in ready})}
    running = Step.objects.filter(state=StepState.RUNNING, limited=True).order_by()
    at_agents = running.filter(agent__in=agents).values_list("agent").annotate(count=Count("pk"))
    keys = {step.limit_key for step in ready} - {""}
    at_keys = running.filter(limit_key__in=keys).values_list("limit_key").annotate(count=Count("pk"))
    return agents, {**dict(at_agents), **dict(at_keys)}
