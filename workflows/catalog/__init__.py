"""The shipped workflows. They use nothing but the public API, as a project's own would."""

from workflows.catalog.trip import TripBooking

__all__ = ["TripBooking"]
