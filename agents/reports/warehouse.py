"""The warehouse: it reads the vendors' ledger, and reckons over what was read. Nothing here changes anything."""

import functools
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings

from agents import Agent, Call, InDoubt, Permanent, Transient
from agents.http import Client

warehouse = Agent("warehouse", honours_keys=True, closes_keys=True)


@warehouse.operation
def extract(call: Call) -> dict[str, Any]:
    """{"day": "2027-03-04" or null, which is the day before it was due, or is made, in UTC}
    → {"day", "rows": every reservation made until the end of that day, as it stood then}."""
    day = call.input.get("day") or ((call.scheduled_for or datetime.now(UTC)) - timedelta(days=1)).date().isoformat()
    try:
        answer = _client(settings.SIMULATORS_URL.rstrip("/")).get(call, "/ledger")
    except InDoubt as error:
        # Whatever became of the question: reading does nothing.
        raise Transient(error.message, code=error.code) from error
    if answer.status_code != 200:
        raise Permanent(f"The ledger cannot be read: it answered {answer.status_code}.", code="no_ledger")
    try:
        return {"day": day, "rows": [_as_of(day, it) for it in answer.json()["reservations"] if _made_by(day, it)]}
    except (KeyError, TypeError, ValueError) as error:
        raise Transient("The ledger gave an answer that cannot be read.", code="unclear_answer") from error


@warehouse.operation
def totals(call: Call) -> dict[str, Any]:
    """{"rows"} → {"services": {name: {"made", "cancelled", "live"}}}."""
    rows = call.input["rows"]
    made = Counter(row["service"] for row in rows)
    cancelled = Counter(row["service"] for row in rows if row["cancelled_at"])
    return {
        "services": {
            name: {"made": made[name], "cancelled": cancelled[name], "live": made[name] - cancelled[name]}
            for name in made
        }
    }


@warehouse.operation
def audit(call: Call) -> dict[str, Any]:
    """{"rows"} → {"checked": how many, "findings": [{"service", "key", "finding"}]}."""
    rows = call.input["rows"]
    live = Counter((row["service"], row["key"]) for row in rows if not row["cancelled_at"])
    findings = [(service, key, f"booked {times} times") for (service, key), times in live.items() if times > 1]
    findings += [
        (row["service"], row["key"], "cancelled before it was made")
        for row in rows
        if row["cancelled_at"] and row["cancelled_at"] < row["created_at"]
    ]
    return {
        "checked": len(rows),
        "findings": [{"service": service, "key": key, "finding": found} for service, key, found in sorted(findings)],
    }


@functools.cache
def _client(address: str) -> Client:
    return Client("the ledger", address)


def _made_by(day: str, reservation: dict[str, Any]) -> bool:
    return str(reservation["created_at"])[:10] <= day


def _as_of(day: str, reservation: dict[str, Any]) -> dict[str, Any]:
    """What was cancelled only later still stood at the end of the day."""
    cancelled_at = reservation["cancelled_at"]
    if cancelled_at is not None and str(cancelled_at)[:10] > day:
        cancelled_at = None
    kept = {name: reservation[name] for name in ("service", "key", "reference", "created_at")}
    return kept | {"cancelled_at": cancelled_at}
