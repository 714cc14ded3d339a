"""A plan as data: what is stored with every job, drawn before it runs, and followed until it ends."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Self

from workflows.exceptions import UnknownReference
from workflows.plans.nearest import did_you_mean
from workflows.plans.retry import Retry
from workflows.plans.templates import Template


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    """One unit of a plan."""

    name: str
    operation: str
    """"agent.operation"."""

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

    def to_json(self) -> dict[str, Any]:
        """The step as stored; durations in seconds."""
        return {
            "name": self.name,
            "operation": self.operation,
            "compensation": self.compensation,
            "probe": self.probe,
            "input": deepcopy(self.input),
            "after": list(self.after),
            "timeout": self.timeout.total_seconds(),
            "retry": self.retry.to_json(),
            "undo_retry": self.undo_retry.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`."""
        return cls(
            name=document["name"],
            operation=document["operation"],
            compensation=document["compensation"],
            probe=document["probe"],
            input=document["input"],
            after=tuple(document["after"]),
            timeout=timedelta(seconds=document["timeout"]),
            retry=Retry.from_json(document["retry"]),
            undo_retry=Retry.from_json(document["undo_retry"]),
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps of one version of a workflow, each behind all those it waits for."""

    workflow: str
    version: int
    compensate_within: timedelta | None
    """How long after it completed a job may still be undone; None: it may not."""

    steps: tuple[PlanStep, ...]

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

    def to_json(self) -> dict[str, Any]:
        """The plan as stored; durations in seconds."""
        return {
            "workflow": self.workflow,
            "version": self.version,
            "compensate_within": None if self.compensate_within is None else self.compensate_within.total_seconds(),
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`, for documents that it wrote: they were checked when the class was made."""
        within = document["compensate_within"]
        return cls(
            workflow=document["workflow"],
            version=document["version"],
            compensate_within=None if within is None else timedelta(seconds=within),
            steps=tuple(PlanStep.from_json(step) for step in document["steps"]),
        )

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
                }
                for seq, step in enumerate(self.steps)
            ]
        )

    @cached_property
    def _by_name(self) -> dict[str, PlanStep]:
        return {step.name: step for step in self.steps}

    @cached_property
    def _dependents(self) -> dict[str, tuple[str, ...]]:
        return {
            earlier.name: tuple(step.name for step in self.steps if earlier.name in step.after)
            for earlier in self.steps
        }
