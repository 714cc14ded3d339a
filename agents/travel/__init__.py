"""The agents of a trip, one file for each vendor."""

from agents.travel import car, flight, hotel

__all__ = ["car", "flight", "hotel"]
