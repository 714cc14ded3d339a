"""The names of the time zones that this machine knows, or the package tzdata."""

from zoneinfo import available_timezones

ZONES = tuple(sorted(available_timezones() - {"localtime", "posixrules", "Factory"}))
