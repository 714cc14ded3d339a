"""A plan as data: what is stored with every job, drawn before it runs, and followed until it ends."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, Self

from workflows.conf import conf
from workflows.exceptions import UnknownReference
from workflows.plans.nearest import did_you_mean
from workflows.plans.retry import Retry
from workflows.plans.templates import Template

Kind = Literal["call", "timer", "signal", "child"]
"""Who does a step: an agent, the clock, somebody outside, another job."""

Unmet = Literal["skip", "cascade", "fail"]
OnFailure = Literal["compensate", "hold", "ignore"]
OnParentEnd = Literal["cancel", "wait", "abandon"]


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    """One unit of a plan."""

    name: str
    operation: str
    """"agent.operation"; empty unless `kind` is "call"."""

    compensation: str | None
    """The operation that undoes it."""

    probe: str | None
    """The operation that asks what became of an attempt in doubt."""

    input: Template
    after: tuple[str, ...]
    """All steps it waits for itself, in the order of the plan: those it reads and those it is told to follow."""

    timeout: timedelta
    retry: Retry
    undo_retry: Retry

    kind: Kind = "call"
    each: Template = None
    """The list of which every item is done by a row of its own; None: the step is done once."""

    at_once: int | None = None
    """So many items at the same time; None: all."""

    tolerate: int | float = 0
    """So many items may fail; below one, as a float, this share of them."""

    when: Template = None
    """A reference, or `{"$not": reference}`: the step is done if it is true; None: always."""

    unmet: Unmet = "skip"
    """What an untrue `when` means: this step is skipped, or all that wait for it too, or the step fails."""

    on_failure: OnFailure = "compensate"
    """What its final failure means: the job is undone, or waits for a person, or goes on."""

    instead_of: str | None = None
    """The step that has to fail before this one is done in its place."""

    pivot: bool = False
    """Once this is done, there is no way back."""

    undo_unnecessary: bool = False
    """Declared to leave nothing behind that would have to be undone."""

    queue_timeout: timedelta | None = None
    """How long it may stand ready without a worker that takes it."""

    total_timeout: timedelta | None = None
    """How long all its attempts may take together."""

    delay: Template = None
    """Of a timer: seconds from when it could begin, or the instant as RFC 3339 text."""

    wait: timedelta | None = None
    """Of a signal: how long it is waited for; None: for ever."""

    approval: bool = False
    """Of a signal: it carries a person's decision."""

    approvers: tuple[str, ...] = ()
    """Whose decision counts: user names and "group:NAME"; empty: every operator's."""

    child: str | None = None
    """The workflow that is started."""

    on_parent_end: OnParentEnd = "cancel"
    """What becomes of a child that is still open when this job ends."""

    limit: dict[str, Any] | None = None
    """`{"key": template, "at_once": int}`: over all jobs, so many steps with this key run at the same time."""

    @property
    def gated(self) -> bool:
        """The scheduler has to look at it before it may start."""
        return self.kind != "call" or any(
            part is not None for part in (self.each, self.when, self.instead_of, self.limit)
        )

    def to_json(self) -> dict[str, Any]:
        """The step as stored; durations in seconds. What only few steps have is left out of all others."""
        return _stored(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`."""
        return cls(**_restored(cls, document))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps of one version of a workflow, each behind all those it waits for."""

    workflow: str
    version: int
    compensate_within: timedelta | None
    """How long after it completed a job may still be undone; None: it may not."""

    steps: tuple[PlanStep, ...]

    on_failure: OnFailure = "compensate"
    """What the final failure of a step means that says nothing of its own."""

    deadline: timedelta | None = None
    """How long a job may take as a whole."""

    after_success: str | None = None
    """The operation that is called when a job has completed; `after_failure` the same for every other end."""

    after_failure: str | None = None

    def step(self, name: str) -> PlanStep:
        """The step of this name, or UnknownReference."""
        try:
            return self._by_name[name]
        except KeyError:
            hint = did_you_mean(name, self._by_name)
            raise UnknownReference(f"{self.workflow} has no step {name!r}.{hint}") from None

    def prerequisites(self, name: str) -> tuple[str, ...]:
        """The steps that this one itself waits for."""
        return self.step(name).after

    def dependents(self, name: str) -> tuple[str, ...]:
        """The steps that themselves wait for this one."""
        return self._dependents[self.step(name).name]

    def hook(self, name: Literal["after_success", "after_failure"]) -> "Plan":
        """The plan of the job that is opened when one of this plan has ended: one call with the facts of that end."""
        operation = getattr(self, name)
        hook = PlanStep(
            name="hook",
            operation=operation,
            compensation=None,
            probe=None,
            input={"$given": []},
            after=(),
            timeout=timedelta(seconds=conf.step_timeout),
            retry=conf.undo_retry,
            undo_retry=conf.undo_retry,
            on_failure="hold",
        )
        return Plan(workflow=f"{self.workflow}.{name}", version=self.version, compensate_within=None, steps=(hook,))

    def to_json(self) -> dict[str, Any]:
        """The plan as stored; durations in seconds."""
        return _stored(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`, for documents that it wrote: they were checked when the class was made."""
        return cls(**_restored(cls, document))

    @cached_property
    def document(self) -> str:
        """`to_json` as text, written once: it is the same for every job of this plan."""
        return json.dumps(self.to_json())

    @cached_property
    def rows(self) -> str:
        """The rows of the steps as JSON text, as the statement that opens a job reads them. Written once too."""
        place = {step.name: seq for seq, step in enumerate(self.steps)}
        return json.dumps(
            [
                {
                    "seq": seq,
                    "name": step.name,
                    "operation": step.operation,
                    "agent": step.operation.partition(".")[0],
                    "waiting_for": len(step.after),
                    "releases": sorted(place[dependent] for dependent in self.dependents(step.name)),
                    "timeout": step.timeout.total_seconds(),
                    "attempts": step.retry.attempts,
                    "place": seq,
                    "kind": step.kind,
                    "gated": step.gated,
                    "queue_timeout": _seconds(step.queue_timeout),
                }
                for seq, step in enumerate(self.steps)
            ]
        )

    @cached_property
    def gated(self) -> bool:
        """Whether the scheduler has to look before some step may start."""
        return any(step.gated for step in self.steps)

    @cached_property
    def _by_name(self) -> dict[str, PlanStep]:
        return {step.name: step for step in self.steps}

    @cached_property
    def _dependents(self) -> dict[str, tuple[str, ...]]:
        return {
            earlier.name: tuple(step.name for step in self.steps if earlier.name in step.after)
            for earlier in self.steps
        }


_DURATIONS = frozenset({"timeout", "queue_timeout", "total_timeout", "wait", "compensate_within", "deadline"})
_RETRIES = frozenset({"retry", "undo_retry"})
_NAMES = frozenset({"after", "approvers"})


def _stored(part: PlanStep | Plan) -> dict[str, Any]:
    """The fields as JSON, without those that have their default: a plan is read with every claim."""
    values = ((field, getattr(part, field.name)) for field in fields(part))
    return {field.name: _json(value) for field, value in values if field.default is MISSING or value != field.default}


def _json(value: Any) -> Any:
    match value:
        case timedelta():
            return value.total_seconds()
        case Retry():
            return value.to_json()
        case tuple():
            return [_json(item) for item in value]
        case PlanStep():
            return value.to_json()
    return deepcopy(value)


def _restored(part: type[PlanStep | Plan], document: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: _field(field.name, document[field.name]) for field in fields(part) if field.name in document}


def _field(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _DURATIONS:
        return timedelta(seconds=value)
    if name in _RETRIES:
        return Retry.from_json(value)
    if name in _NAMES:
        return tuple(value)
    return tuple(map(PlanStep.from_json, value)) if name == "steps" else value


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
