"""What an operation is given, and the three ways in which it may fail."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any


class AgentError(Exception):
    """How an operation says that it did not succeed. `code` is a stable word for programs."""

    kind = ""
    default_code = ""
    # For subclasses whose own initialiser does not call this one.
    message: str = ""
    code: str = ""

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code


class Transient(AgentError):
    """Nothing was done, and trying again may help. `retry_after`: seconds that the other side asked us to wait."""

    kind = default_code = "transient"
    retry_after: float | None = None

    def __init__(self, message: str = "", *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Permanent(AgentError):
    """Nothing was done, and trying again cannot help."""

    kind = default_code = "permanent"


class InDoubt(AgentError):
    """Nobody knows whether it was done: a time-out after sending, a lost connection, an answer that makes no sense."""

    kind = default_code = "in_doubt"


class LeaseLost(Exception):
    """This worker may no longer act on the step: another attempt may already run it. Send nothing more."""


@dataclass(frozen=True, kw_only=True)
class Undoes:
    """The step that a compensation undoes. `result` is None when nobody heard its answer."""

    name: str
    idempotency_key: str
    input: Any
    result: Any


@dataclass(kw_only=True)
class Call:
    """One attempt at one step, as its operation sees it.

    `input` is what the plan says goes in, `results` the results of the steps that it refers to, by name. Send
    `idempotency_key` with the request: it is the same over all attempts. A compensation finds its original in `undoes`.
    `may_send_until` and `ends_at` are moments of this process's monotonic clock, in seconds.
    """

    job_id: uuid.UUID
    workflow: str
    step: str
    attempt: int
    idempotency_key: str
    input: Any
    results: dict[str, Any] = field(default_factory=dict)
    undoes: Undoes | None = None
    ends_at: float
    may_send_until: float

    def seconds_left(self) -> float:
        """How long this attempt may still take; zero when it is over."""
        return max(0.0, self.ends_at - time.monotonic())

    def check_may_send(self) -> None:
        """Raise LeaseLost once this worker cannot prove any more that the step is its own. Ask before each request."""
        if time.monotonic() >= self.may_send_until:
            raise LeaseLost(f"The lease of attempt {self.attempt} at {self.step} is over; nothing more may be sent.")
