"""What the API is asked with. A field that does not exist is refused: a misspelt `undo` must not undo a trip."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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


Moment = Annotated[AwareDatetime, BeforeValidator(_moment, json_schema_input_type=str)]


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


class Retry(Verb):
    """`new_key`: under a key of its own, where the service has definitely refused the old one."""

    new_key: bool = False


class Compensation(Verb):
    """Undo exactly what the preview of this digest showed; `down_to`: that step, and all that depends on it."""

    digest: str = Field(min_length=1, max_length=100)
    down_to: str | None = Field(default=None, min_length=1, max_length=120)


class Verdict(Body):
    """What a person has found out of a step in doubt; the reason says how."""

    verdict: Literal["done", "not_done"]
    result: Any = Field(default=None, description="What the step is to leave, where it was done.")
    reason: Reason

    @model_validator(mode="after")
    def _nothing_from_nothing(self) -> Self:
        if self.verdict == "not_done" and self.result is not None:
            raise ValueError("What was not done has left no result.")
        return self


class Result(Body):
    """A result given by hand: either a `result`, or the number of an `attempt` that said too late what it had done."""

    result: Any = None
    attempt: int | None = Field(default=None, ge=1, le=2_000_000_000)
    reason: Reason

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if ("result" in self.model_fields_set) is (self.attempt is not None):
            raise ValueError("Give either a result, or the number of an attempt.")
        return self


class CallbackError(Body):
    """Why the work failed. Left out, the kind is permanent."""

    kind: Literal["transient", "permanent"] = "permanent"
    code: str = ""
    message: str = ""


class Callback(Body):
    """What became of a deferred call: its result, or an error."""

    result: Any = None
    error: CallbackError | None = None
