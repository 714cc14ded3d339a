"""The system checks on plans: operations that no agent has, and children that cannot be started."""

from collections.abc import Collection, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, register

from workflows.plans import registry
from workflows.plans.nearest import did_you_mean
from workflows.plans.plan import Plan

if TYPE_CHECKING:
    from workflows.workflow import Workflow


def check_operations(workflows: "Iterable[type[Workflow]]", operations: Collection[str]) -> list[CheckMessage]:
    """One error for each operation that a plan names and that is not among `operations` ("agent.operation")."""
    return [
        Error(
            f"The {place} names the {role} {name!r}, which no agent has.",
            hint=did_you_mean(name, sorted(operations)).strip() or "No agent was found at all.",
            obj=workflow,
            id="sag_workflows.E001",
        )
        for workflow in workflows
        for place, role, name in _operations_of(workflow.plan)
        if name not in operations
    ]


def _operations_of(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for step in plan.steps:
        roles = (("operation", step.operation), ("compensation", step.compensation), ("probe", step.probe))
        yield from ((f"step {step.name!r}", role, name) for role, name in roles if name)
    for hook, name in (("after_success", plan.after_success), ("after_failure", plan.after_failure)):
        if name is not None:
            yield f"option {hook}", "operation", name


@register
def children_can_be_started(app_configs: Any, **_: Any) -> list[CheckMessage]:
    return check_children(registry.all())


def check_children(workflows: "Iterable[type[Workflow]]") -> list[CheckMessage]:
    """One error for each child that is no workflow, and one if workflows start each other in a circle."""
    by_name = {workflow.name: workflow for workflow in workflows}
    unknown: list[CheckMessage] = [
        Error(
            f"The step {step.name!r} starts the workflow {step.child!r}, which does not exist.",
            hint=did_you_mean(step.child, sorted(by_name)).strip(),
            obj=workflow,
            id="sag_workflows.E002",
        )
        for workflow in by_name.values()
        for step in workflow.plan.steps
        if step.child is not None and step.child not in by_name
    ]
    starts = {name: [step.child for step in workflow.plan.steps if step.child] for name, workflow in by_name.items()}
    try:
        TopologicalSorter(starts).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        return [
            *unknown,
            Error(
                f"These workflows start each other for ever: {' → '.join(circle)}.",
                hint="Take one child out of the circle.",
                obj=by_name[circle[0]],
                id="sag_workflows.E003",
            ),
        ]
    return unknown
