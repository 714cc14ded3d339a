"""Workflow: a plan that can be started."""

from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from workflows.exceptions import InvalidInput
from workflows.plans.declaration import WorkflowType
from workflows.plans.inputs import accepted
from workflows.plans.json_values import fault_in_text
from workflows.plans.plan import OnFailure, Plan
from workflows.timing.declared import Recurring

if TYPE_CHECKING:
    from workflows.models import Job

_LONGEST_KEY = 255


class Workflow(metaclass=WorkflowType):
    """Subclass it and declare steps in the class body; the body is the plan.

    A step runs as soon as the steps that it reads, or is told to follow with `after=`, are done.
    Change `version` whenever the steps change: a job ends under the plan it was started with.
    """

    version: ClassVar[int] = 1
    input: ClassVar[type[BaseModel] | None] = None
    """The schema of the input; None takes any JSON object."""

    compensate_within: ClassVar[timedelta | None] = None
    """How long after it completed a job may still be undone; None: it may not."""

    on_failure: ClassVar[OnFailure] = "compensate"
    """What the final failure of a step means that says nothing of its own: "compensate", "hold" or "ignore"."""

    deadline: ClassVar[timedelta | None] = None
    """How long a job may take as a whole; None: as long as its steps take."""

    after_success: ClassVar[str | None] = None
    """The operation that is called when a job has completed."""

    after_failure: ClassVar[str | None] = None
    """The same for a job that has ended in any other way."""

    schedule: ClassVar[Recurring | None] = None
    """When jobs are started by themselves, without input; None: when somebody starts them."""

    runbook: ClassVar[str | None] = None
    """The address of a page that says what to do when its jobs need a person."""

    name: ClassVar[str]
    plan: ClassVar[Plan]

    @classmethod
    def validate(cls, input: object = None) -> dict[str, Any]:
        """The input as a job of this workflow would store it. Raises InvalidInput or InputTooLarge."""
        return accepted(cls.name, cls.input, input)

    @classmethod
    def start(
        cls,
        input: object = None,
        *,
        key: str | None = None,
        client_id: int | None = None,
        actor: str = "application",
        start_at: datetime | None = None,
    ) -> "Job":
        """Open a job, inside the caller's transaction if there is one; it begins on commit, or at `start_at`.

        `input` is an instance of the input model, or what validates as one. The same key and input of the same client
        give the same job again; the same key with another input raises KeyConflict. `client_id` is the user id of the
        client program, `actor` the name under which the start stands in the job's history.
        """
        validated = cls.validate(input)
        _check_key(key)
        scheduler = import_module("workflows.scheduler")  # it needs models, which a declaration must not
        job: Job = scheduler.open_job(
            plan=cls.plan,
            input=validated,
            key=key,
            client_id=client_id,
            actor=actor,
            start_at=start_at,
        )
        return job


def _check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        fault = f"must be a text of 1 to {_LONGEST_KEY} characters"
    else:
        fault = fault_in_text(key) or ""
    if fault:
        raise InvalidInput(f"The key {fault}.", errors=[{"pointer": "/key", "message": fault}])
