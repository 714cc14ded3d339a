"""The hotel."""

from typing import Any

from agents import Agent, Call
from agents.travel.reservations import Reservations

hotel = Agent("hotel", honours_keys=True, closes_keys=True)
rooms = Reservations("the hotel", "hotels", keeps=("reference", "confirmation", "nights", "price"))


@hotel.operation
def reserve(call: Call) -> dict[str, Any]:
    """{"stay": {"city", "check_in", "check_out", "guests"}, "arrives_at": …}
    → {"reference", "confirmation", "nights", "price"}."""
    return rooms.make(call)


@hotel.operation
def cancel(call: Call) -> dict[str, Any]:
    """→ {"cancelled": whether there was a reservation, "reference": if there was}."""
    return rooms.cancel(call)


@hotel.operation
def find(call: Call) -> dict[str, Any] | None:
    """What `reserve` answered, or None."""
    return rooms.find(call)
