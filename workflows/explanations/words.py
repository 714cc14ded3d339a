"""The small words of the sentences: names, times, failures."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from workflows.models import Job, Step


def failure(step: Step) -> str:
    return (step.error_message or step.error_code or step.error_kind).rstrip(".")


def doer(step: Step) -> str:
    """What was called; for a step that calls nobody, what it waited for."""
    return step.operation or {"child": "its job", "signal": "its signal", "timer": "its time"}.get(step.kind, step.name)


def joined(names: Iterable[str], last_with: str = "and") -> str:
    *first, last = list(names) or ["its prerequisites"]
    return f"{', '.join(first)} {last_with} {last}" if first else last


def time_of(moment: datetime | None, now: datetime | None = None) -> str:
    """The time of day, with the date unless it is today's."""
    if moment is None:
        return "an unknown time"
    moment = moment.astimezone(UTC)
    same_day = now is not None and now.astimezone(UTC).date() == moment.date()
    return f"{moment:%H:%M:%S} UTC" if same_day else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def planned(job: Job, step: Step) -> dict[str, Any]:
    """What the plan says of this step, or of the one that it undoes. What has its default is not in it."""
    name = step.undoes.name if step.undoes else step.name
    return next((entry for entry in job.plan["steps"] if entry["name"] == name), {})
