"""The airline."""

from typing import Any

from agents import Agent, Call
from agents.travel.reservations import Reservations

flight = Agent("flight", honours_keys=True, closes_keys=True)
airline = Reservations("the airline", "flights", keeps=("reference", "confirmation", "departure", "arrival", "price"))


@flight.operation
def reserve(call: Call) -> dict[str, Any]:
    """{"traveller": {…}, "leg": {"from", "to", "date", "seats"}}
    → {"reference", "confirmation", "price", "departs_at", "arrives_at"}."""
    return _booking(airline.make(call))


@flight.operation
def cancel(call: Call) -> dict[str, Any]:
    """→ {"cancelled": whether there was a reservation, "reference": if there was}."""
    return airline.cancel(call)


@flight.operation
def find(call: Call) -> dict[str, Any] | None:
    """What `reserve` answered, or None."""
    found = airline.find(call)
    return None if found is None else _booking(found)


def _booking(reservation: dict[str, Any]) -> dict[str, Any]:
    """The airline's words for its times are not the trip's."""
    departs_at, arrives_at = reservation.pop("departure"), reservation.pop("arrival")
    return reservation | {"departs_at": departs_at, "arrives_at": arrives_at}
