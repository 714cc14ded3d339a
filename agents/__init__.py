"""Agents: the code that touches the unreliable world. What a team imports to write its own.

Lazy, so that the simulators, which are somebody else's system, can be started without Django.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.call import Call, Defer, InDoubt, LeaseLost, Permanent, Snooze, Stopped, Transient
    from agents.registry import Agent

__all__ = [
    "Agent",
    "Call",
    "Defer",
    "InDoubt",
    "LeaseLost",
    "Permanent",
    "Snooze",
    "Stopped",
    "Transient",
]

_HOME = {name: "agents.registry" if name == "Agent" else "agents.call" for name in __all__}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agents' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
