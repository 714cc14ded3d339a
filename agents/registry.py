"""The agents of this installation: what each promises, and its operations by name."""

from collections.abc import Callable
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from agents.call import Call
from workflows.conf import conf

Operation = Callable[[Call], Any]

_agents: dict[str, "Agent"] = {}


class Agent:
    """The code that knows one unreliable service. Its operations are named "agent.operation" in plans.

    What the service promises: `honours_keys`, the same key is done once and answered the same; `closes_keys`, a
    cancelled key is refused for ever; `lands_within`, after this long no call that was sent can take effect any more.
    What is given here can be overridden in settings: SAG_AGENTS = {"hotel": {"closes_keys": False}}.
    """

    def __init__(
        self,
        name: str,
        *,
        queue: str | None = None,
        honours_keys: bool = False,
        closes_keys: bool = False,
        lands_within: timedelta | None = None,
    ) -> None:
        if name in _agents:
            raise ImproperlyConfigured(f"An agent named {name!r} exists already; names are unique.")
        overrides = getattr(settings, "SAG_AGENTS", {}).get(name, {})
        unknown = set(overrides) - {"queue", "honours_keys", "closes_keys", "lands_within"}
        if unknown:
            raise ImproperlyConfigured(f"SAG_AGENTS[{name!r}] has no setting {sorted(unknown)[0]!r}.")
        self.name = name
        self.queue: str = overrides.get("queue", queue or conf.queue)
        self.honours_keys: bool = overrides.get("honours_keys", honours_keys)
        self.closes_keys: bool = overrides.get("closes_keys", closes_keys)
        declared = conf.lands_within if lands_within is None else lands_within.total_seconds()
        self.lands_within = timedelta(seconds=overrides.get("lands_within", declared))
        self.operations: dict[str, Operation] = {}
        _agents[name] = self

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def operation(self, function: Operation) -> Operation:
        """Decorator: make `function` this agent's operation of the same name."""
        name = f"{self.name}.{function.__name__}"
        if name in self.operations:
            raise ImproperlyConfigured(f"The operation {name} is defined twice.")
        self.operations[name] = function
        return function


class UnknownOperation(LookupError):
    """No agent in this process offers the operation."""


def find(operation: str) -> Operation:
    """The function of "agent.operation"."""
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
