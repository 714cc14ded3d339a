"""The names of the time zones that this machine knows, or the package tzdata."""

from zoneinfo import available_timezones

from workflows.plans.nearest import did_you_mean

ZONES = tuple(sorted(available_timezones() - {"localtime", "posixrules", "Factory"}))
_LONGEST_NAME = 100


def fault_in_zone(name: str) -> str | None:
    """Why this is no time zone, or None."""
    if name in ZONES:
        return None
    return f"{name!r} is no time zone.{did_you_mean(name, ZONES) if len(name) < _LONGEST_NAME else ''}"
