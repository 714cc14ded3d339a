"""The durable store: what did happen. Rows are read here and written by `workflows.transitions` alone."""

from workflows.models.agent import Agent
from workflows.models.attempt import Attempt
from workflows.models.breaker import Breaker, CallCount
from workflows.models.clock import ClockOffset
from workflows.models.event import Event
from workflows.models.idempotency import IdempotencyRecord
from workflows.models.job import Job
from workflows.models.once import Once
from workflows.models.signal import Signal
from workflows.models.step import Step
from workflows.models.token import ApiToken

__all__ = [
    "Agent",
    "ApiToken",
    "Attempt",
    "Breaker",
    "CallCount",
    "ClockOffset",
    "Event",
    "IdempotencyRecord",
    "Job",
    "Once",
    "Signal",
    "Step",
]
