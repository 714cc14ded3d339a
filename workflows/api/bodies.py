"""What the API is asked with. A field that does not exist is refused: a misspelt `undo` must not undo a trip."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from workflows.api.idempotency import LONGEST


class Body(BaseModel):
    """Base of all bodies; values are taken as they are and never converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _moment(value: object) -> object:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be a time with its offset, like 2027-03-04T08:00:00Z")


class JobStart(Body):
    """Which workflow to start, and with what."""

    workflow: str = Field(min_length=1, max_length=100)
    input: dict[str, Any] | None = None
    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST,
        description="The job's own name, unique for this client and workflow as long as the job is stored.",
    )
    start_at: Annotated[AwareDatetime | None, BeforeValidator(_moment, json_schema_input_type=str | None)] = Field(
        default=None, description="Not before this time (RFC 3339 with its offset). A time that is past means now."
    )


Reason = Annotated[str, Field(max_length=2000)]


class Cancellation(Body):
    """How to stop a job. Without undo a reason is needed."""

    undo: bool = True
    reason: Reason = ""


class Verb(Body):
    """Why this is asked for; it stands in the job's history."""

    reason: Reason = ""
