"""The system check that finds plans which name operations that no agent has."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Error

from workflows.plans.nearest import did_you_mean
from workflows.plans.plan import PlanStep

if TYPE_CHECKING:
    from workflows.workflow import Workflow


def check_operations(workflows: "Iterable[type[Workflow]]", operations: Collection[str]) -> list[CheckMessage]:
    """One error for each operation, compensation or probe that is not among `operations` ("agent.operation")."""
    return [
        Error(
            f"The step {step.name!r} names the {role} {name!r}, which no agent has.",
            hint=did_you_mean(name, sorted(operations)).strip() or "No agent was found at all.",
            obj=workflow,
            id="sag_workflows.E001",
        )
        for workflow in workflows
        for step in workflow.plan.steps
        for role, name in _operations_of(step)
        if name not in operations
    ]


def _operations_of(step: PlanStep) -> list[tuple[str, str]]:
    roles = (("operation", step.operation), ("compensation", step.compensation), ("probe", step.probe))
    return [(role, name) for role, name in roles if name is not None]
