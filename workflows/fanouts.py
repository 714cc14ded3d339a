"""Fan-outs: one step over a list that is known only at run time.

One row counts: `items_total` is written before the first item, `items_made` says how far the writing has come,
`items_admitted` how many may start, `items_open` and `items_failed` how they do. Each item is a row. Writing goes by
batches, each a transaction of its own, so that a long list holds its job's lock only for moments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Max, QuerySet

from workflows import compensation, transitions
from workflows.conf import conf
from workflows.exceptions import UnresolvedReference
from workflows.models import Agent, Job, Step
from workflows.plans.plan import PlanStep
from workflows.plans.templates import references_of, resolve
from workflows.states import Role, StepState


def tolerated(planned: PlanStep, total: int) -> int:
    """How many items may fail: a count, or a share of them rounded down."""
    return int(planned.tolerate * total) if isinstance(planned.tolerate, float) else planned.tolerate


def at_once(planned: PlanStep, fan: Step) -> int | None:
    """How many items may be under way. An undo is not held back."""
    return planned.at_once if fan.role == Role.FORWARD else None


def items_of(job: Job, planned: PlanStep) -> list[Any]:
    """The list that the fan-out goes over. Raises UnresolvedReference when there is none."""
    results, absent = Step.objects.results(job.pk, job.plan["steps"], references_of(planned.each))
    found = resolve(planned.each, job.input, results, absent=frozenset(absent))
    if not isinstance(found, list):
        what = "null" if found is None else f"a {type(found).__name__}"
        raise UnresolvedReference(f"each= of {planned.name} is {what}, and no list.")
    return found


def begin(job: Job, fan: Step, planned: PlanStep, agents: Mapping[str, Agent]) -> None:
    """Write how many items there are, and the first of them. The fan-out runs already."""
    if fan.role == Role.FORWARD:
        total = len(items_of(job, planned))
        admitted = min(total, planned.at_once or total)
    else:
        total = admitted = Step.objects.filter(parent=fan.undoes).with_effects().count()
        admitted = _ALL
    transitions.plan_items(job, fan, total=total, admitted=admitted)
    write_batch(job, fan, planned, agents)


_ALL = 2_000_000_000  # the index of an undo is that of its item, wherever that stands


def write_batch(job: Job, fan: Step, planned: PlanStep, agents: Mapping[str, Agent]) -> None:
    """Write the next items, or the next undos of items."""
    seq = next_seq(job)
    if fan.role == Role.FORWARD:
        values = items_of(job, planned)[fan.items_made : fan.items_made + conf.batch]
        transitions.write_items(fan, values, keys=limit_keys(planned, job, values), seq=seq)
        return
    last = Step.objects.filter(parent=fan).aggregate(last=Max("index"))["last"]
    originals = Step.objects.filter(parent=fan.undoes, index__gt=-1 if last is None else last).with_effects()
    batch = list(originals.prefetch_related("attempts").order_by("index")[: conf.batch])
    evidence = compensation.evidence_of(batch)
    rows, rechecks = [], []
    for original in batch:
        row = compensation.undo_row(job, original, planned, agents, seq, waiting_for=0)
        row.parent, row.index = fan, original.index
        rows.append(row)
        seq += 1
        if evidence[original.pk].ever_in_doubt and planned.kind == "call":
            recheck = compensation.recheck_row(job, original, planned, evidence[original.pk], agents, seq)
            recheck.waiting_for = 1
            row.releases.append(seq)
            rechecks.append(recheck)
            seq += 1
    transitions.add_undos(fan, rows)
    transitions.add_rechecks(rechecks)


def fan_of(item: Step) -> Step:
    return Step.objects.get(items=item.pk)


def running_items(job: Job) -> QuerySet[Step]:
    return Step.objects.filter(job=job, parent__isnull=False, role=Role.FORWARD, state=StepState.RUNNING)


def next_seq(job: Job) -> int:
    """The number of the next step of this job."""
    last = Step.objects.filter(job=job).aggregate(last=Max("seq"))["last"]
    return 0 if last is None else int(last) + 1


def limit_keys(planned: PlanStep, job: Job, items: Sequence[Any]) -> list[str]:
    """The text under which each item's limit is counted: that of its plan, and the key as it comes out; "" for none."""
    if planned.limit is None:
        return [""] * len(items)
    template: Any = planned.limit["key"]
    results, absent = Step.objects.results(job.pk, job.plan["steps"], references_of(template))
    values = [resolve(template, job.input, results, item=item, absent=frozenset(absent)) for item in items]
    return [f"{planned.limit['at_once']}:{value}"[:200] for value in values]
