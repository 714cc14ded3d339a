"""Everything Sag refuses, as one tree of exceptions.

SagError
├── PlanError (also a TypeError)   a declaration is wrong; raised while the class is being made
│   ├── InvalidWorkflow            the class as a whole
│   ├── InvalidStep                one step's arguments
│   ├── InvalidRetry               numbers that make no retry policy
│   ├── UnknownReference           a reference to something that is not there
│   ├── ReferenceMisused           a reference used as if it were already a value
│   └── PlanCycle                  steps that wait for each other
├── UnknownWorkflow
├── InvalidInput
├── InputTooLarge
├── KeyConflict
├── KeyInUse
├── WrongState
│   └── DigestMismatch             an undo that is no longer what was shown
├── NotAllowed                     an approval by somebody who is not among the approvers
├── StaleVersion
├── NotFound
├── UnresolvedReference            a reference that found nothing when its step was about to run
└── LateWrite

Each class has a stable `code` and the HTTP status it is answered with; its docstring is its default message.
`details` holds what a program may want to read besides the sentence. All of them survive pickling.
"""

import inspect
from collections.abc import Iterable
from typing import Any, ClassVar


class SagError(Exception):
    """The request could not be carried out."""

    code: ClassVar[str] = "sag_error"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.message = message or " ".join((inspect.getdoc(type(self)) or "").split())
        self.details = details
        super().__init__(self.message)


class PlanError(SagError, TypeError):
    """The plan is not declared correctly."""

    code = "plan_error"


class InvalidWorkflow(PlanError):
    """The workflow class is not declared correctly."""

    code = "invalid_workflow"


class InvalidStep(PlanError):
    """The step is not declared correctly."""

    code = "invalid_step"


class InvalidRetry(PlanError):
    """These numbers make no retry policy."""

    code = "invalid_retry"


class UnknownReference(PlanError):
    """The plan refers to something that does not exist."""

    code = "unknown_reference"


class ReferenceMisused(PlanError):
    """A reference has no value while the plan is being declared."""

    code = "reference_misused"


class PlanCycle(PlanError):
    """Steps of the plan wait for each other."""

    code = "plan_cycle"


class UnknownWorkflow(SagError):
    """No workflow has this name."""

    code = "unknown_workflow"
    http_status = 422


class InvalidInput(SagError):
    """The input does not fit what the workflow asks for."""

    code = "invalid_input"
    http_status = 422

    def __init__(self, message: str | None = None, *, errors: Iterable[dict[str, str]] = ()) -> None:
        """`errors`: one `{"pointer": "/flight/date", "message": "…"}` for each fault."""
        self.errors = list(errors)
        super().__init__(message, errors=self.errors)


class InputTooLarge(SagError):
    """The input is larger than a job may carry."""

    code = "input_too_large"
    http_status = 413


class KeyConflict(SagError):
    """This key already belongs to a job with another input."""

    code = "key_conflict"
    http_status = 422


class KeyInUse(SagError):
    """A request with this key is being accepted right now; ask again in a moment."""

    code = "key_in_use"
    http_status = 409


class WrongState(SagError):
    """This cannot be done in the present state."""

    code = "wrong_state"
    http_status = 409

    def __init__(self, message: str | None = None, *, state: str = "", allowed: Iterable[str] = ()) -> None:
        """`state` is what is now true, `allowed` the verbs that are possible in it."""
        self.state = state
        self.allowed = list(allowed)
        super().__init__(message, state=self.state, allowed=self.allowed)


class DigestMismatch(WrongState):
    """What was shown is no longer what would be done; nothing was done."""

    code = "digest_mismatch"


class NotAllowed(SagError):
    """This is not for you to decide."""

    code = "not_allowed"
    http_status = 403


class StaleVersion(SagError):
    """It has changed since you looked; nothing was done."""

    code = "stale_version"
    http_status = 412


class NotFound(SagError):
    """There is nothing here by this name."""

    code = "not_found"
    http_status = 404


class UnresolvedReference(SagError):
    """A reference of the step's input leads to nothing."""

    code = "unresolved_reference"


class LateWrite(SagError):
    """The attempt no longer owns its step; what it reports is kept as evidence only."""

    code = "late_write"
    http_status = 409
