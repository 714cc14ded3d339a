"""What the three vendors sell: the answer each gives to a reservation it accepts."""

import secrets
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
PREFIXES = {"flights": "FL", "hotels": "HO", "cars": "CA"}
SERVICES = tuple(PREFIXES)


def reservation(service: str, key: str, request: Mapping[str, Any], created_at: str) -> dict[str, Any]:
    """The vendor's answer: what every service says, what this one adds, and the request as it was understood."""
    return {
        "reference": f"{PREFIXES[service]}-{_code(8)}",
        "confirmation": _code(6),
        "service": service,
        "key": key,
        "created_at": created_at,
        **SELLS[service](request),
        "request": dict(request),
    }


def _flight(request: Mapping[str, Any]) -> dict[str, Any]:
    leg = _part(request, "leg")
    departure = datetime.combine(_day(leg.get("date")), datetime.min.time(), UTC) + timedelta(hours=7, minutes=40)
    arrival = departure + timedelta(hours=3, minutes=55)
    return {"departure": _iso(departure), "arrival": _iso(arrival), "price": _euros(189 * _count(leg.get("seats")))}


def _hotel(request: Mapping[str, Any]) -> dict[str, Any]:
    stay = _part(request, "stay")
    nights = max(1, (_day(stay.get("check_out")) - _day(stay.get("check_in"))).days)
    return {"nights": nights, "check_in_from": "15:00", "price": _euros(112 * nights)}


def _car(request: Mapping[str, Any]) -> dict[str, Any]:
    rental = _part(request, "rental")
    days = max(1, (_day(rental.get("drop_off")) - _day(rental.get("pick_up"))).days)
    return {"days": days, "class": rental.get("class", "compact"), "price": _euros(47 * days)}


SELLS = {"flights": _flight, "hotels": _hotel, "cars": _car}


def _part(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The details may stand in a part of their own or at the top: a vendor's door is wide."""
    part = request.get(name)
    return part if isinstance(part, Mapping) else request


def _day(value: Any) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        return datetime.now(UTC).date()


def _count(value: Any) -> int:
    return value if type(value) is int and 1 <= value <= 1000 else 1


def _euros(amount: int) -> dict[str, str]:
    return {"amount": f"{amount}.00", "currency": "EUR"}


def _code(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
