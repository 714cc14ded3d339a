"""Parameters of the query. Unknown ones are ignored, as everywhere on the web; known ones are refused when they are wrong."""

from collections.abc import Collection

from rest_framework.request import Request

from workflows.api.problems import InvalidParameter
from workflows.plans.json_values import fault_in_text
from workflows.plans.nearest import did_you_mean


def text(request: Request, name: str) -> str | None:
    """The parameter, if it was given and is not empty."""
    values = texts(request, name)
    return values[-1] if values else None


def texts(request: Request, name: str) -> list[str]:
    """The parameter as often as it was given."""
    values = [value for value in request.query_params.getlist(name) if value]
    for value in values:
        if fault := fault_in_text(value):
            raise _invalid(name, f"{fault}.")
    return values


def choices(request: Request, name: str, allowed: Collection[str]) -> list[str]:
    """The parameter as often as it was given, each time one of `allowed`."""
    values = texts(request, name)
    for value in values:
        if value not in allowed:
            raise _invalid(name, f"cannot be {value!r}.{did_you_mean(value, allowed)}")
    return values


def number(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    """A whole number within bounds."""
    value = text(request, name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and least <= int(value) <= most):
        raise _invalid(name, f"must be a whole number from {least} to {most}.")
    return int(value)


def _invalid(name: str, fault: str) -> InvalidParameter:
    return InvalidParameter(f"The parameter {name} {fault}", errors=[{"parameter": name, "message": fault}])
