"""The one table of defaults, and how a project changes them: `SAG = {"lease": 20}` in its settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from typing import Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from workflows.plans.nearest import did_you_mean
from workflows.plans.retry import Retry


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Durations are seconds, sizes are bytes."""

    heartbeat: float = 3.0
    """How often a worker renews the leases of its running steps."""

    lease: float = 10.0
    """How long an attempt owns its step without a heartbeat."""

    drain_within: float = 3.0
    """So long after the word to stop a call may go on; then one that the next worker can ask after is handed back."""

    sweep: float = 2.0
    """How often the supervisor looks for what is stuck, failed or forgotten."""

    ring_old: float = 5.0
    """A ready step whose last ring is older than this is rung again."""

    ring_cap: float = 60.0
    """Rings of a step that nobody takes become rarer, but not rarer than this."""

    step_timeout: float = 30.0
    """The hard cap of an attempt, for steps that name none."""

    queue_timeout: float = 86_400.0
    """How long a step may stand ready without a worker that takes it, for steps that name no `queue_timeout`."""

    total_timeout: float = 604_800.0
    """How long a step may take over all its attempts, for steps that name no `total_timeout`."""

    job_timeout: float = 2_592_000.0
    """How long a job may take as a whole, for workflows that name no `deadline`."""

    defer_within: float = 86_400.0
    """How long a deferred step waits for its callback, for operations that name no `within`."""

    breaker_window: float = 30.0
    """Over how long the calls of an agent are counted to tell an outage from bad luck."""

    breaker_steps: int = 10
    """So many different steps must have failed alike in that time before their agent's breaker opens."""

    breaker_share: float = 0.5
    """And so large a share of all its calls."""

    breaker_cooldown: float = 2.0
    """How long an open breaker waits before its first trial; after each failed one twice as long."""

    breaker_cooldown_cap: float = 30.0
    """But never longer than this."""

    release_rate: int = 50
    """Once a trial has succeeded, so many parked steps are let go a second."""

    park_timeout: float = 86_400.0
    """How long a step may be parked."""

    retry_share: float = 0.5
    """Retries may be at most this share of an agent's recent calls; what is more waits."""

    retry_least: int = 20
    """So many retries in `breaker_window` are allowed whatever their share."""

    notify_again: float = 14_400.0
    """An outage, or a cause for which jobs need a person, is told of again after so long, until somebody acknowledges it."""

    gate_wait: float = 604_800.0
    """A signal or an approval without a time-out that was waited for so long is put before a person."""

    stalled_after: float = 300.0
    """So is a wait whose end is overdue for so long, and a step that is ready for so long in a queue without a living worker."""

    keep_history: float = 2_592_000.0
    """How long a job that ended well, or cleanly undone, is kept."""

    keep_failures: float = 7_776_000.0
    """How long a job that ended Failed is kept, unless it needs a person: those are kept until somebody has seen to them."""

    keep_keys: float = 172_800.0
    """How long the answer to a request under an Idempotency-Key is kept."""

    keep_ticks: float = 7_776_000.0
    """How long it is known what became of a due time; of a schedule that goes on the last one is always kept."""

    keep_changes: float = 31_536_000.0
    """How long it is known who changed what of a schedule, and how long one is kept that is over and has no tick left."""

    poison_deaths: int = 3
    """A step whose worker died this often in the middle of it is put in front of a person."""

    batch: int = 500
    """Items of a fan-out are written this many at a time."""

    retry: Retry = Retry()
    """For steps that name none. In settings a dict, for example {"attempts": 3, "first": 0.5}."""

    undo_retry: Retry = Retry(attempts=10, first=timedelta(seconds=2), cap=timedelta(minutes=5))
    """For compensations whose step names none; written like `retry`."""

    lands_within: float = 30.0
    """How long after its time-out a call may still take effect, for agents that promise nothing better."""

    queue: str = "agents"
    """The queue of agents that name none."""

    payload_limit: int = 1_000_000
    """Larger inputs are refused; larger results are dealt with as doubt."""

    payload_warning: int = 256_000
    """Payloads above this size are logged."""

    rings_per_queue: int = 100
    """A queue that holds this many doorbells is not rung for: its workers look round it when they are done."""

    observe_only: bool = False
    """The supervisor looks and decides, writes down what it would have done, and changes no job."""


def _overridden(default: Any, name: str, value: Any) -> Any:
    """The value in the type of its default, or ImproperlyConfigured."""
    if isinstance(default, Retry):
        try:
            return Retry.from_json({**default.to_json(), **value})
        except (TypeError, ValueError, OverflowError) as error:
            raise ImproperlyConfigured(f"SAG[{name!r}] is no retry policy: {error}") from error
    if isinstance(default, str):
        if isinstance(value, str) and value:
            return value
        raise ImproperlyConfigured(f"SAG[{name!r}] must be a non-empty text, not {value!r}.")
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise ImproperlyConfigured(f"SAG[{name!r}] must be True or False, not {value!r}.")
    kinds, wanted = ((int, float), "a number") if isinstance(default, float) else ((int,), "a whole number")
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        raise ImproperlyConfigured(f"SAG[{name!r}] must be {wanted} above zero, not {value!r}.")
    return type(default)(value)


@cache
def _table() -> Defaults:
    overrides = getattr(settings, "SAG", {})
    if not isinstance(overrides, Mapping):
        raise ImproperlyConfigured(f"SAG must be a dict of settings, not {overrides!r}.")
    defaults = {field.name: field.default for field in fields(Defaults)}
    for name in overrides:
        if name not in defaults:
            raise ImproperlyConfigured(f"SAG[{name!r}] is no setting.{did_you_mean(name, defaults)}")
    table = Defaults(**{name: _overridden(defaults[name], name, value) for name, value in overrides.items()})
    if table.heartbeat >= table.lease:
        raise ImproperlyConfigured(
            f"SAG: heartbeat ({table.heartbeat} s) must be shorter than lease ({table.lease} s), "
            "or every running step is taken for lost."
        )
    return table


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "SAG":
        _table.cache_clear()


setting_changed.connect(_forget)


class _Conf:
    """Reads the settings at first use, so that this module can be imported before they are ready."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_table(), name)


conf = cast(Defaults, _Conf())
