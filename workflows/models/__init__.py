"""The durable store: what did happen. Rows are read here and written by `workflows.transitions` alone.

Those of schedules and ticks are written by `workflows.ticks` and `workflows.schedules`.
"""

from workflows.models.agent import Agent
from workflows.models.attempt import Attempt
from workflows.models.breaker import Breaker, CallCount
from workflows.models.clock import ClockOffset
from workflows.models.event import Event
from workflows.models.idempotency import IdempotencyRecord
from workflows.models.job import Job
from workflows.models.once import Once
from workflows.models.schedule import Schedule, ScheduleChange
from workflows.models.signal import Signal
from workflows.models.step import Step
from workflows.models.tick import Tick
from workflows.models.token import ApiToken
from workflows.models.worker import Worker

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
    "Schedule",
    "ScheduleChange",
    "Signal",
    "Step",
    "Tick",
    "Worker",
]
