"""`child(…)`: a line of a class body that starts another workflow's job, and waits for it."""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Never

from workflows.conf import conf
from workflows.exceptions import InvalidStep
from workflows.plans.arguments import checked_choice, checked_flow, checked_spread, refuse_unknown
from workflows.plans.declared import Step, StepOptions
from workflows.plans.plan import OnFailure, OnParentEnd, Plan, Unmet
from workflows.plans.references import Negation, Reference, item

if TYPE_CHECKING:
    from workflows.workflow import Workflow

_WORKFLOW_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")

_NOT_OF_A_CHILD = {
    "compensation": "A child is undone by its own plan.",
    "retry": "The steps of its own plan are tried again.",
    "timeout": "Its own plan has a deadline=.",
}


def child(
    workflow: "type[Workflow] | str",
    *,
    input: object = None,
    each: object = None,
    at_once: int | None = None,
    tolerate: int | float = 0,
    after: Iterable[Step] = (),
    when: Reference | Negation | None = None,
    unmet: Unmet | None = None,
    on_failure: OnFailure | None = None,
    otherwise: Step | None = None,
    on_parent_end: OnParentEnd = "cancel",
    **unknown: Never,
) -> Step:
    """Declare a step that is done when a job of `workflow` (the class, or its name) has completed.

    `input`          what that job is started with; with `each` the item itself if left out, otherwise an empty object
    `on_parent_end`  what becomes of it if this job ends first: "cancel" it, "wait" for it, or "abandon" it

    The others are those of `step`. Where this job is undone, so is the child.
    """
    name = _name_of(workflow)
    where = f"child({name!r})"
    refuse_unknown(where, unknown, child, _NOT_OF_A_CHILD)
    spread = checked_spread(where, each=each, at_once=at_once, tolerate=tolerate)
    if input is not None and not isinstance(input, Mapping | Reference):
        raise InvalidStep(
            f"{where}: input={input!r} must be an object or a reference to one: a job is started with it."
        )
    if input is None:
        input = {} if spread.each is None else item
    return Step(
        StepOptions(
            declaration=where,
            kind="child",
            flow=checked_flow(
                where,
                after=after,
                when=when,
                unmet=unmet,
                on_failure=on_failure,
                otherwise=otherwise,
                spread=spread,
            ),
            spread=spread,
            input=input,
            child=name,
            on_parent_end=checked_choice(where, "on_parent_end", on_parent_end, OnParentEnd),
            timeout=timedelta(seconds=conf.step_timeout),
            retry=conf.retry,
            undo_retry=conf.undo_retry,
        )
    )


def _name_of(workflow: object) -> str:
    if isinstance(workflow, str) and _WORKFLOW_NAME.fullmatch(workflow):
        return workflow
    if isinstance(workflow, type) and isinstance(plan := getattr(workflow, "plan", None), Plan):
        return plan.workflow
    raise InvalidStep(f"child({workflow!r}) starts no workflow. Give a workflow class that has steps, or its name.")
