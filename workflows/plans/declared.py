"""A step as it was declared: checked on its own, and not yet a part of a plan."""

from dataclasses import dataclass, field
from datetime import timedelta

from workflows.plans.limit import Limit
from workflows.plans.plan import Kind, OnFailure, OnParentEnd, Unmet
from workflows.plans.references import Negation, Reference
from workflows.plans.retry import Retry


@dataclass(frozen=True, kw_only=True)
class Flow:
    """When a step is done, and what its failure means."""

    after: tuple["Step", ...]
    when: Reference | Negation | None
    unmet: Unmet
    on_failure: OnFailure | None
    otherwise: "Step | None"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Over which list a step is done, and how."""

    each: object = None
    at_once: int | None = None
    tolerate: int | float = 0


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What a step was declared with, checked and with the defaults filled in; nothing is encoded yet."""

    declaration: str
    """What it is called until it has a name: "step('flight.reserve')"."""

    kind: Kind
    flow: Flow
    spread: Spread = Spread()
    operation: str = ""
    compensation: str | None = None
    undo_unnecessary: bool = False
    probe: str | None = None
    input: object = field(default_factory=dict)
    timeout: timedelta
    retry: Retry
    undo_retry: Retry
    pivot: bool = False
    queue_timeout: timedelta | None = None
    total_timeout: timedelta | None = None
    limit: Limit | None = None
    delay: object = None
    wait: timedelta | None = None
    approval: bool = False
    approvers: tuple[str, ...] = ()
    child: str | None = None
    on_parent_end: OnParentEnd = "cancel"


class Step(Reference):
    """A declared step; used in another step's input it stands for this one's whole result."""

    _name: str | None
    _owner: str | None
    _options: StepOptions

    def __init__(self, options: StepOptions) -> None:
        super().__init__(self)
        self._options = options
        self._name = None
        self._owner = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._owner = owner.__name__

    def __repr__(self) -> str:
        return self._name or self._options.declaration


def options_of(declared: Step) -> StepOptions:
    """What the step was declared with."""
    return declared._options  # public attributes would pass for fields of the result


def owner_of(declared: Step) -> str | None:
    """The name of the workflow class that the step belongs to, once that is made."""
    return declared._owner  # as above
