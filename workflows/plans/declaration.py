"""The making of a workflow class: its body is collected, its names and options are checked, and its plan is built.

Every fault is found here, at import, and never when a job is already running. The body is a mapping of its own
(`_Body`) because two faults are visible only while it runs: a name that nobody defined, and a step that is declared
twice, of which an ordinary class would keep the second alone.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, RootModel

from workflows.exceptions import InvalidInput, InvalidStep, InvalidWorkflow, PlanError, UnknownReference
from workflows.plans import registry
from workflows.plans.arguments import fault_in_address, fault_in_duration, fault_in_operation
from workflows.plans.building import build_plan
from workflows.plans.declared import Step
from workflows.plans.inputs import accepted
from workflows.plans.nearest import did_you_mean
from workflows.plans.plan import OnFailure, Plan
from workflows.plans.references import Pending
from workflows.timing.declared import Recurring

_STEP_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
_WORKFLOW_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_OPTIONS = (
    *("version", "input", "compensate_within", "on_failure", "deadline", "after_success", "after_failure"),
    *("schedule", "runbook"),
)


class WorkflowType(type):
    """The type of workflow classes."""

    plan: Plan

    @classmethod
    def __prepare__(mcls, name: str, bases: tuple[type, ...], /, **_: object) -> dict[str, object]:
        return _Body(name)

    def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> "WorkflowType":
        if not bases:
            return super().__new__(mcls, name, bases, dict(body))
        try:
            _check_bases(bases)
            _check_names(name, body, bases[0])
            cls = super().__new__(mcls, name, bases, dict(body))
            cls.name = name  # type: ignore[attr-defined]  # declared on Workflow
            _check_options(cls)
            cls.plan = build_plan(cls, _steps_of(body))
        except PlanError as error:
            raise type(error)(f"{name}: {error.message}") from error
        registry.add(cls)  # type: ignore[arg-type]  # every class with bases is a Workflow
        return cls


class _Body(dict[str, object]):
    """The namespace of a class body that is being run."""

    def __init__(self, workflow: str) -> None:
        super().__init__()
        self._workflow = workflow

    def __setitem__(self, name: str, value: object) -> None:
        if isinstance(value, Step) and isinstance(self.get(name), Step):
            raise InvalidWorkflow(f"{self._workflow}: the step {name!r} is declared twice. Rename one of them.")
        super().__setitem__(name, value)

    def __missing__(self, name: str) -> object:
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        if (
            caller is None
            or name.startswith("__")
            or name in caller.f_globals
            or name in caller.f_builtins
            or name in caller.f_code.co_freevars
        ):
            raise KeyError(name)  # Python goes on to look in these places
        hint = did_you_mean(name, _steps_of(self))
        raise UnknownReference(f"{self._workflow}: nothing is called {name!r} here.{hint}")


def _steps_of(body: Mapping[str, object]) -> dict[str, Step]:
    return {name: value for name, value in body.items() if isinstance(value, Step)}


def _check_bases(bases: tuple[type, ...]) -> None:
    for base in bases:
        if isinstance(base, WorkflowType) and hasattr(base, "plan"):
            raise InvalidWorkflow(
                f"{base.__name__} has steps and cannot be subclassed: jobs are stored under its plan. "
                "Declare a workflow of its own, or raise the version."
            )
    if len(bases) > 1:
        raise InvalidWorkflow("a workflow inherits from Workflow alone; steps of other bases would be lost.")


def _check_names(workflow: str, body: Mapping[str, object], base: type) -> None:
    if not _WORKFLOW_NAME.fullmatch(workflow):
        raise InvalidWorkflow("a workflow's name has only letters, digits and underscores, 100 at most.")
    for name, value in body.items():
        if isinstance(value, Step):
            _check_step_name(name, base)
        elif name in _OPTIONS or name.startswith("_"):
            continue
        elif hasattr(base, name) or name in base.__annotations__:
            raise InvalidWorkflow(f"{name!r} hides Workflow's own attribute. Choose another name.")
        elif isinstance(value, Pending):
            raise InvalidWorkflow(f"{name} = {value!r} is no step. Write the reference where it is used, as in input=.")
        elif not callable(value) and not isinstance(value, classmethod | staticmethod | property):
            raise InvalidWorkflow(f"{name!r} is neither a step nor an option.{did_you_mean(name, _OPTIONS)}")


def _check_step_name(name: str, base: type) -> None:
    if hasattr(base, name) or name in base.__annotations__:
        raise InvalidStep(f"the step {name!r} hides Workflow's own attribute. Choose another name.")
    if not _STEP_NAME.fullmatch(name):
        respelled = re.sub(r"[^a-z0-9_]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
        hint = f" Did you mean {respelled!r}?" if _STEP_NAME.fullmatch(respelled) else ""
        raise InvalidStep(
            f"a step cannot be called {name!r}: its name is stored. It begins with a small letter, "
            f"goes on with small letters, digits and underscores, and has at most 60 of them.{hint}"
        )


def _check_options(cls: Any) -> None:
    if isinstance(cls.version, bool) or not isinstance(cls.version, int) or cls.version < 1:
        raise InvalidWorkflow(f"version = {cls.version!r} must be a whole number of at least 1.")
    for option in ("compensate_within", "deadline"):
        duration = getattr(cls, option)
        if duration is not None and (fault := fault_in_duration(duration)):
            raise InvalidWorkflow(f"{option} = {duration!r} {fault}")
    if not isinstance(cls.on_failure, str) or cls.on_failure not in get_args(OnFailure):
        hint = did_you_mean(cls.on_failure if isinstance(cls.on_failure, str) else "", get_args(OnFailure))
        raise InvalidWorkflow(f"on_failure = {cls.on_failure!r} is unknown.{hint}")
    for option in ("after_success", "after_failure"):
        operation = getattr(cls, option)
        if operation is not None and (fault := fault_in_operation(operation)):
            raise InvalidWorkflow(f"{option} = {operation!r} {fault}")
    if cls.schedule is not None and not isinstance(cls.schedule, Recurring):
        raise InvalidWorkflow(f"schedule = {cls.schedule!r} must be Cron(…), Every(…) or At(…).")
    if cls.runbook is not None and (fault := fault_in_address(cls.runbook)):
        raise InvalidWorkflow(f"runbook = {cls.runbook!r} {fault}")
    model = cls.input
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise InvalidWorkflow(f"input = {model!r} must be a pydantic model class, or None for any JSON object.")
    if model is not None and issubclass(model, RootModel):
        raise InvalidWorkflow(f"input = {model.__name__} must be a model with fields, since an input is an object.")
    if cls.schedule is not None:
        _check_starts_without_input(cls)


def _check_starts_without_input(cls: Any) -> None:
    try:
        accepted(cls.name, cls.input, None)
    except InvalidInput as error:
        raise InvalidWorkflow(f"a workflow with a schedule is started without input. {error.message}") from error
