"""Outages, as the overview and the agents' page tell of them: those that go on first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from supervisor import storms
from supervisor.models import Incident

_LATELY = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Outage:
    """`waiting`: {"steps", "jobs", "oldest"} of what is parked because of it; none once it is over."""

    incident: Incident
    waiting: dict[str, Any]


def lately(now: datetime, limit: int) -> list[Outage]:
    """All that go on, and after them the newest that ended in the last day, up to `limit`."""
    going_on = list(Incident.objects.filter(closed_at__isnull=True))
    room = max(limit - len(going_on), 0)
    over = Incident.objects.filter(closed_at__gt=now - _LATELY)[:room]
    found = [Outage(incident=incident, waiting=storms.waiting(incident.agent)) for incident in going_on]
    return found + [Outage(incident=incident, waiting={}) for incident in over]
