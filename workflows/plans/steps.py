"""`step(…)`: a line of a class body that calls an agent's operation."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Literal, Never

from workflows.conf import conf
from workflows.exceptions import InvalidStep
from workflows.plans.arguments import (
    checked_duration,
    checked_flag,
    checked_flow,
    checked_retry,
    checked_spread,
    fault_in_operation,
    refuse_unknown,
)
from workflows.plans.declared import Step, StepOptions
from workflows.plans.limit import Limit
from workflows.plans.plan import OnFailure, Unmet
from workflows.plans.references import Negation, Reference
from workflows.plans.retry import Retry


def step(
    operation: str,
    *,
    input: object = None,
    compensation: str | Literal[False] | None = None,
    probe: str | None = None,
    after: Iterable[Step] = (),
    timeout: timedelta | None = None,
    retry: Retry | None = None,
    undo_retry: Retry | None = None,
    each: object = None,
    at_once: int | None = None,
    tolerate: int | float = 0,
    when: Reference | Negation | None = None,
    unmet: Unmet | None = None,
    on_failure: OnFailure | None = None,
    otherwise: Step | None = None,
    pivot: bool = False,
    queue_timeout: timedelta | None = None,
    total_timeout: timedelta | None = None,
    limit: Limit | None = None,
    **unknown: Never,
) -> Step:
    """Declare a step that calls `operation` ("agent.operation").

    `input`         what the operation gets: JSON with references in it at any depth; an empty object if left out
    `compensation`  the operation that undoes this one; False says that there is nothing to undo
    `probe`         the operation that asks the service what became of an attempt whose answer was lost
    `after`         steps that must be done first although nothing of theirs is read
    `timeout`       the hard cap of one attempt
    `retry`         how often and how patiently it is tried again; `undo_retry` the same for the compensation
    `each`          a list: the step is done for every `item` of it
    `at_once`       so many items at the same time; all if left out
    `tolerate`      so many items may fail, or as a float below one, this share of them
    `when`          a reference, or `~reference`: the step is done only if that is true
    `unmet`         if it is not: "skip" this step, "cascade" to all that wait for it, or "fail"
    `on_failure`    what the final failure means: "compensate", "hold" for a person, or "ignore"
    `otherwise`     another step, done in place of this one when this one has failed
    `pivot`         the point of no return: once it is done the job only goes forward
    `queue_timeout` how long it may stand ready without a worker; `total_timeout` how long all attempts may take together
    `limit`         how many steps with the same key run at the same time, over all jobs

    Time-outs and retries have their defaults from the settings table (`workflows.conf`), `on_failure` from the workflow.
    """
    where = f"step({operation!r})"
    refuse_unknown(where, unknown, step)
    _check_operations(operation, None if compensation is False else compensation, probe)
    if undo_retry is not None and not compensation:
        raise InvalidStep(f"{where} has undo_retry= but no compensation= to try again.")
    if limit is not None and not isinstance(limit, Limit):
        raise InvalidStep(f"{where}: limit={limit!r} must be a Limit, as Limit(key=given['city'], at_once=2).")
    spread = checked_spread(where, each=each, at_once=at_once, tolerate=tolerate)
    attempt = checked_duration(where, "timeout", timeout) or timedelta(seconds=conf.step_timeout)
    return Step(
        StepOptions(
            declaration=where,
            kind="call",
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
            operation=operation,
            input={} if input is None else input,
            compensation=compensation or None,
            undo_unnecessary=compensation is False,
            probe=probe,
            timeout=attempt,
            retry=checked_retry(where, "retry", retry) or conf.retry,
            undo_retry=checked_retry(where, "undo_retry", undo_retry) or conf.undo_retry,
            pivot=checked_flag(where, "pivot", pivot),
            queue_timeout=checked_duration(where, "queue_timeout", queue_timeout)
            or timedelta(seconds=conf.queue_timeout),
            total_timeout=_total_timeout(where, total_timeout, attempt),
            limit=limit,
        )
    )


def _check_operations(operation: str, compensation: str | None, probe: str | None) -> None:
    named = {"operation": operation, "compensation": compensation, "probe": probe}
    seen: dict[str, str] = {}
    for role, name in named.items():
        if name is None and role != "operation":
            continue
        if fault := fault_in_operation(name):
            raise InvalidStep(f"{role} {name!r} {fault}")
        if name in seen:
            raise InvalidStep(f"{name!r} cannot be both {seen[name]} and {role} of one step.")
        seen[str(name)] = role


def _total_timeout(where: str, total: timedelta | None, attempt: timedelta) -> timedelta:
    total = checked_duration(where, "total_timeout", total)
    if total is None:
        return max(timedelta(seconds=conf.total_timeout), attempt)
    if total < attempt:
        raise InvalidStep(f"{where}: total_timeout={total!r} is shorter than one attempt may take, {attempt!r}.")
    return total
