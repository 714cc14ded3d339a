"""The shipped workflows. They use nothing but the public API, as a project's own would."""

from workflows.catalog.report import NightlyReport
from workflows.catalog.rollout import FleetRollout
from workflows.catalog.trip import TripBooking

__all__ = ["FleetRollout", "NightlyReport", "TripBooking"]
