"""The car rental."""

from typing import Any

from agents import Agent, Call
from agents.travel.reservations import Reservations

car = Agent("car", honours_keys=True, closes_keys=True)
rental = Reservations("the car rental", "cars", keeps=("reference", "confirmation", "class", "days", "price"))


@car.operation
def reserve(call: Call) -> dict[str, Any]:
    """{"rental": {"city", "pick_up", "drop_off", "class"}}
    → {"reference", "confirmation", "class", "days", "price"}."""
    return rental.make(call)


@car.operation
def cancel(call: Call) -> dict[str, Any]:
    """→ {"cancelled": whether there was a reservation, "reference": if there was}."""
    return rental.cancel(call)


@car.operation
def find(call: Call) -> dict[str, Any] | None:
    """What `reserve` answered, or None."""
    return rental.find(call)
