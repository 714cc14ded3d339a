"""The Scheduler's public names: everything a team needs to declare and start a workflow.

They are loaded on first use (PEP 562), because Django imports this package before models may exist.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workflows.exceptions import SagError
    from workflows.plans.references import given
    from workflows.plans.retry import Retry
    from workflows.plans.steps import step
    from workflows.workflow import Workflow

__all__ = ["Retry", "SagError", "Workflow", "given", "step"]

_HOMES = {
    "Retry": "workflows.plans.retry",
    "SagError": "workflows.exceptions",
    "Workflow": "workflows.workflow",
    "given": "workflows.plans.references",
    "step": "workflows.plans.steps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
