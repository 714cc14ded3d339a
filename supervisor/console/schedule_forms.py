"""Forms of schedules: what somebody typed, as a timetable, a policy and an input; or what is wrong with it."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, get_args
from zoneinfo import ZoneInfo

from workflows.exceptions import InvalidInput, SagError
from workflows.models import Schedule
from workflows.schedules import Reprocess
from workflows.timing import local
from workflows.timing.calendars import CalendarEntry, fault_in_entry
from workflows.timing.policy import CatchUp, Overlap, Policy
from workflows.timing.timetable import Timetable
from workflows.timing.zones import fault_in_zone

OVERLAPS, CATCH_UPS, REPROCESSES = get_args(Overlap), get_args(CatchUp), get_args(Reprocess)
Typed = Mapping[str, str]


def timetable_of(typed: Typed) -> Timetable:
    """Raises InvalidInput."""
    zone = typed.get("timezone", "").strip() or "UTC"
    return Timetable(
        cron=tuple(_lines(typed, "cron")),
        every=_whole(typed, "every"),
        at=tuple(_moment(text, zone, "at") for text in _lines(typed, "at")),
        calendar=tuple(_entry(line) for line in _lines(typed, "calendar")),
        timezone=zone,
        exclude=tuple(typed.get("exclude", "").replace(",", " ").split()),
        start_at=_moment_or_none(typed, "start_at", zone),
        end_at=_moment_or_none(typed, "end_at", zone),
    )


def policy_of(typed: Typed) -> Policy:
    """Raises InvalidInput."""
    return Policy(
        catch_up=typed.get("catch_up", "latest"),  # type: ignore[arg-type]  # checked there
        overlap=typed.get("overlap", "skip"),  # type: ignore[arg-type]
        jitter=_whole(typed, "jitter") or 0,
        pause_on_failure="pause_on_failure" in typed,
    )


def input_of(typed: Typed) -> Any:
    """Raises InvalidInput."""
    text = typed.get("input", "").strip()
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise _refused("input", f"is no JSON: {error}.") from error


def range_of(typed: Typed, zone: str) -> tuple[datetime, datetime]:
    """Raises InvalidInput."""
    start, end = (_moment_or_none(typed, name, zone) for name in ("from", "to"))
    if start is None or end is None:
        raise _refused("to" if start else "from", "must be given.")
    return start, end


def manner_of(typed: Typed) -> dict[str, Any]:
    """How a backfill goes about it. Raises InvalidInput."""
    return {
        "overlap": typed.get("overlap", "buffer_all"),
        "reprocess": typed.get("reprocess", "none"),
        "reverse": "reverse" in typed,
        "max_active": _whole(typed, "max_active"),
    }


def typed_of(schedule: Schedule) -> dict[str, str]:
    """A schedule as somebody would have typed it."""
    times, policy = schedule.times, schedule.policy
    typed = {
        "workflow": schedule.workflow,
        "input": "" if schedule.input is None else json.dumps(schedule.input, indent=2, ensure_ascii=False),
        "cron": "\n".join(times.cron),
        "every": str(times.every or ""),
        "at": "\n".join(moment.isoformat() for moment in times.at),
        "calendar": "\n".join(
            " ".join(f"{name}={value}" for name, value in entry.to_json().items()) for entry in times.calendar
        ),
        "timezone": times.timezone,
        "exclude": " ".join(times.exclude),
        "start_at": times.start_at.isoformat() if times.start_at else "",
        "end_at": times.end_at.isoformat() if times.end_at else "",
        "catch_up": policy.catch_up,
        "overlap": policy.overlap,
        "jitter": str(policy.jitter or ""),
    }
    return typed | ({"pause_on_failure": "on"} if policy.pause_on_failure else {})


def faults_in(refusal: SagError) -> list[str]:
    """Each with the name of its field, as people read it."""
    named = [
        (fault["pointer"].strip("/").replace("_", " "), fault["message"]) for fault in refusal.details.get("errors", ())
    ]
    return [f"{name} {message}" for name, message in named] or [refusal.message]


def _entry(line: str) -> CalendarEntry:
    """ "day=13 weekday=FRI hour=9"."""
    said = dict(part.partition("=")[::2] for part in line.split())
    if fault := fault_in_entry(said):
        raise _refused("calendar", fault)
    return CalendarEntry.read(said)


def _lines(typed: Typed, name: str) -> Iterator[str]:
    return (line.strip() for line in typed.get(name, "").splitlines() if line.strip())


def _whole(typed: Typed, name: str) -> int | None:
    text = typed.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _refused(name, f"must be a whole number, not {text[:40]!r}.")
    return int(text)


def _moment_or_none(typed: Typed, name: str, zone: str) -> datetime | None:
    text = typed.get(name, "").strip()
    return _moment(text, zone, name) if text else None


def _moment(text: str, zone: str, name: str) -> datetime:
    """Without an offset it is what clocks in the zone show."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise _refused(name, f"{text[:40]!r} is no moment; write 2027-03-04T08:00.") from error
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    if fault := fault_in_zone(zone):
        raise _refused("timezone", fault)
    return local.first_moment(moment, ZoneInfo(zone))


def _refused(name: str, fault: str) -> InvalidInput:
    return InvalidInput(f"{name} {fault}", errors=[{"pointer": f"/{name}", "message": fault}])
