"""The Scheduler's public names: everything a team needs to declare and start a workflow.

They are loaded on first use (PEP 562), because Django imports this package before models may exist.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workflows.exceptions import SagError
    from workflows.plans.children import child
    from workflows.plans.limit import Limit
    from workflows.plans.references import given, item
    from workflows.plans.retry import Retry
    from workflows.plans.steps import step
    from workflows.plans.waits import signal, timer
    from workflows.timing.declared import At, Calendar, Cron, Every
    from workflows.workflow import Workflow

__all__ = [
    "At",
    "Calendar",
    "Cron",
    "Every",
    "Limit",
    "Retry",
    "SagError",
    "Workflow",
    "child",
    "given",
    "item",
    "signal",
    "step",
    "timer",
]

_HOMES = {
    "At": "workflows.timing.declared",
    "Calendar": "workflows.timing.declared",
    "Cron": "workflows.timing.declared",
    "Every": "workflows.timing.declared",
    "Limit": "workflows.plans.limit",
    "Retry": "workflows.plans.retry",
    "SagError": "workflows.exceptions",
    "Workflow": "workflows.workflow",
    "child": "workflows.plans.children",
    "given": "workflows.plans.references",
    "item": "workflows.plans.references",
    "signal": "workflows.plans.waits",
    "step": "workflows.plans.steps",
    "timer": "workflows.plans.waits",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
