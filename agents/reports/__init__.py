"""The agents of the nightly report: one reads and reckons, one publishes."""

from agents.reports import report, warehouse

__all__ = ["report", "warehouse"]
