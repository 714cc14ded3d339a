"""An agent that does nothing, so that what is left is the engine."""

from typing import Any

from agents import Agent, Call

noop = Agent("noop", honours_keys=True, closes_keys=True)


@noop.operation
def flight(call: Call) -> dict[str, Any]:
    return {"flight": "F1", "n": call.input["n"]}


@noop.operation
def hotel(call: Call) -> dict[str, Any]:
    return {"hotel": "H1", "n": call.input["n"]}


@noop.operation
def car(call: Call) -> dict[str, Any]:
    return {"car": "C1", "n": call.input["n"]}


@noop.operation
def touch(call: Call) -> dict[str, Any]:
    return {"n": call.input["n"]}
