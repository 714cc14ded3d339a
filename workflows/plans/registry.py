"""All workflows of the project, by name."""

from importlib import import_module
from typing import TYPE_CHECKING

from django.utils.module_loading import autodiscover_modules

from workflows.exceptions import InvalidWorkflow, UnknownWorkflow
from workflows.plans.nearest import did_you_mean

if TYPE_CHECKING:
    from workflows.workflow import Workflow

_workflows: "dict[str, type[Workflow]]" = {}


def add(workflow: "type[Workflow]") -> None:
    """Enter a class under its name; a class of the same module and name is replaced."""
    other = _workflows.get(workflow.name)
    if other is not None and other.__module__ != workflow.__module__:
        raise InvalidWorkflow(
            f"{workflow.name} is declared in {other.__module__} and again in {workflow.__module__}. "
            "Jobs are stored under this name, so it must be unique: rename one of them."
        )
    _workflows[workflow.name] = workflow


def get(name: str) -> "type[Workflow]":
    """The class of this name, or UnknownWorkflow."""
    try:
        return _workflows[name]
    except KeyError:
        raise UnknownWorkflow(f"No workflow is called {name!r}.{did_you_mean(name, sorted(_workflows))}") from None


def all() -> "list[type[Workflow]]":
    """Every class, by name."""
    return [_workflows[name] for name in sorted(_workflows)]


def autodiscover() -> None:
    """Import the shipped workflows, and the module `workflows` of every installed app."""
    import_module("workflows.catalog")
    autodiscover_modules("workflows")
