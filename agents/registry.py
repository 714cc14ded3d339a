"""The agents of this installation: what each promises, and its operations by name."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, overload

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from pydantic import BaseModel

from agents.call import Call
from workflows.conf import conf
from workflows.plans.arguments import fault_in_address

Function = TypeVar("Function", bound=Callable[[Call], Any])
Rate = tuple[int, timedelta]

_agents: dict[str, "Agent"] = {}
_SETTINGS = {"queue", "honours_keys", "closes_keys", "lands_within", "at_once", "rate", "runbook"}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A function of an agent, and how it was declared.

    `atomic`: it writes to this database alone, and runs inside the transaction that settles its step. `output`: what
    its results have to fit.
    """

    name: str
    perform: Callable[[Call], Any]
    atomic: bool = False
    output: type[BaseModel] | None = None


class Agent:
    """The code that knows one unreliable service. Its operations are named "agent.operation" in plans.

    What the service promises: `honours_keys`, the same key is done once and answered the same; `closes_keys`, a
    cancelled key is refused for ever; `lands_within`, after this long no call that was sent can take effect any more.
    What it bears, over all workers together: `at_once` calls, and `rate=(count, period)` calls begun. A deferred call
    counts among those at once until its callback came; a snoozed one does not.
    `runbook` is the address of a page that says what to do when it fails.
    What is given here can be overridden in settings: SAG_AGENTS = {"hotel": {"closes_keys": False, "rate": (10, 1)}},
    with times in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        queue: str | None = None,
        honours_keys: bool = False,
        closes_keys: bool = False,
        lands_within: timedelta | None = None,
        at_once: int | None = None,
        rate: Rate | None = None,
        runbook: str = "",
    ) -> None:
        if name in _agents:
            raise ImproperlyConfigured(f"An agent named {name!r} exists already; names are unique.")
        overrides = getattr(settings, "SAG_AGENTS", {}).get(name, {})
        unknown = set(overrides) - _SETTINGS
        if unknown:
            raise ImproperlyConfigured(f"SAG_AGENTS[{name!r}] has no setting {sorted(unknown)[0]!r}.")
        self.name = name
        self.queue: str = overrides.get("queue", queue or conf.queue)
        self.honours_keys: bool = overrides.get("honours_keys", honours_keys)
        self.closes_keys: bool = overrides.get("closes_keys", closes_keys)
        declared = conf.lands_within if lands_within is None else lands_within.total_seconds()
        self.lands_within = timedelta(seconds=overrides.get("lands_within", declared))
        self.at_once = _checked_at_once(name, overrides.get("at_once", at_once))
        self.rate = _checked_rate(name, overrides.get("rate", rate))
        self.runbook = _checked_runbook(name, overrides.get("runbook", runbook))
        self.operations: dict[str, Operation] = {}
        _agents[name] = self

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @overload
    def operation(self, function: Function, /) -> Function: ...

    @overload
    def operation(
        self, /, *, atomic: bool = False, output: type[BaseModel] | None = None
    ) -> Callable[[Function], Function]: ...

    def operation(self, function: Any = None, /, *, atomic: bool = False, output: type[BaseModel] | None = None) -> Any:
        """Decorator: make a function this agent's operation of the same name.

        `atomic=True`: it only writes to this database, and runs inside the transaction that settles its step, so that
        it happens exactly once; an exception rolls all of it back. `output`: a pydantic model that its results fit.
        """

        def declare(function: Function) -> Function:
            name = f"{self.name}.{function.__name__}"
            if name in self.operations:
                raise ImproperlyConfigured(f"The operation {name} is defined twice.")
            if inspect.iscoroutinefunction(function):
                raise ImproperlyConfigured(f"The operation {name} is async; an operation is a plain function.")
            if output is not None and not (isinstance(output, type) and issubclass(output, BaseModel)):
                raise ImproperlyConfigured(f"output= of {name} must be a pydantic model, not {output!r}.")
            self.operations[name] = Operation(name=name, perform=function, atomic=atomic, output=output)
            return function

        return declare if function is None else declare(function)


def _checked_at_once(agent: str, at_once: Any) -> int | None:
    if at_once is None or (isinstance(at_once, int) and not isinstance(at_once, bool) and 0 < at_once < 2**31):
        return at_once
    raise ImproperlyConfigured(f"at_once= of the agent {agent!r} must be a whole number above zero, not {at_once!r}.")


def _checked_rate(agent: str, rate: Any) -> Rate | None:
    if rate is None:
        return None
    if isinstance(rate, tuple | list) and len(rate) == 2:
        count, period = rate
        seconds = period.total_seconds() if isinstance(period, timedelta) else period
        counts = isinstance(count, int) and not isinstance(count, bool) and 0 < count < 2**31
        lasts = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if counts and lasts and 0 < seconds < math.inf:
            return count, timedelta(seconds=seconds)
    raise ImproperlyConfigured(
        f"rate= of the agent {agent!r} must be (count, timedelta), both above zero, not {rate!r}."
    )


def _checked_runbook(agent: str, runbook: Any) -> str:
    if runbook == "":
        return ""
    if fault := fault_in_address(runbook):
        raise ImproperlyConfigured(f"runbook= of the agent {agent!r} {fault}")
    return str(runbook)


class UnknownOperation(LookupError):
    """No agent in this process offers the operation."""


def find(operation: str) -> Operation:
    """The operation "agent.operation"."""
    agent = _agents.get(operation.partition(".")[0])
    if agent is not None and operation in agent.operations:
        return agent.operations[operation]
    near = get_close_matches(operation, all_operations(), n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UnknownOperation(f"No agent here offers {operation}.{hint}")


def all_agents() -> list[Agent]:
    return list(_agents.values())


def all_operations() -> list[str]:
    return sorted(name for agent in _agents.values() for name in agent.operations)


def autodiscover() -> None:
    """Import the module `agents` of each installed app, and the shipped agents."""
    for shipped in ("agents.travel", "agents.reports", "agents.fleet"):
        import_module(shipped)
    for config in apps.get_app_configs():
        module = f"{config.name}.agents"
        if config.name != "agents" and find_spec(module) is not None:
            import_module(module)
