"""Gates: where the scheduler has to look before a step may start.

A condition, a list, a time, a signal, another job, an alternative, a limit's key: for these the plan needs values that
only the run knows. When the prerequisites of such a step have ended, the scheduler looks, under the job's lock, at what
they left, and decides: it may start, it is skipped, it cannot be begun, or it waits (Running, without a lease) for
something that will come. What has to be looked at is found in the store (`Step.objects.at_gate`), so that a process that
dies before it looked leaves nothing behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils.dateparse import parse_datetime

from workflows import broker, children, fanouts, scenes, transitions
from workflows.clock import now
from workflows.exceptions import SagError, UnresolvedReference
from workflows.models import Job, Signal, Step
from workflows.plans.plan import Plan, PlanStep
from workflows.plans.references import path_text
from workflows.plans.templates import references_of, resolve
from workflows.states import ErrorKind, Remedy, Role, SettledBy, StepKind, StepState
from workflows.transitions import Failure

_MOST_AT_ONCE = 100


def open_gates(job: Job) -> bool:
    """Look at what waits at the gates of a locked job, and at what comes to a gate by that. Whether there was any.

    A job with very many is looked at again, by the supervisor at the latest.
    """
    for looked_at in range(_MOST_AT_ONCE):
        step = Step.objects.filter(job=job).at_gate().order_by("seq").first()
        if step is None:
            return looked_at > 0
        _look(job, Plan.from_json(job.plan), step)
    broker.ring_attend_on_commit(job.pk)
    return True


@dataclass(frozen=True, kw_only=True)
class View:
    """What a gate is decided on: the plan's step, the job's input, and what its prerequisites left."""

    planned: PlanStep
    given: dict[str, Any]
    results: Mapping[str, Any]
    absent: frozenset[str]
    primary: Step | None = None
    item: Any = None

    def value(self, template: Any) -> Any:
        return resolve(template, self.given, self.results, item=self.item, absent=self.absent)


def reason_to_skip(view: View) -> str | None:
    """Pure. Why the step is not needed; None when it is. Raises UnresolvedReference."""
    planned = view.planned
    if view.primary is not None and view.primary.remedy != Remedy.OTHERWISE:
        return f"{view.primary.name} needs no alternative: it is {view.primary.state}."
    if planned.when is not None and not _holds(view):
        return f"Its condition {condition_text(planned.when)} is not met."
    return None


def _holds(view: View) -> bool:
    """A value that is not there is none: an optional field that was left out."""
    negated = "$not" in view.planned.when
    template = view.planned.when["$not"] if negated else view.planned.when
    try:
        value = view.value(template)
    except UnresolvedReference:
        value = None
    return bool(value) is not negated


def condition_text(template: Mapping[str, Any]) -> str:
    """A condition as it was written: ~given["has_car"]."""
    match template:
        case {"$not": inner}:
            return "~" + condition_text(inner)
        case {"$given": list(path)}:
            return path_text("given", path)
        case {"$result": [str(name), *path]}:
            return path_text(name, path)
    return "item"


def due_at(delay: Any, since: datetime) -> datetime:
    """Pure. When a timer is due: so many seconds from `since`, or at an instant. Raises UnresolvedReference."""
    if isinstance(delay, bool) or not isinstance(delay, int | float | str):
        raise UnresolvedReference(f"a timer needs seconds or an instant, not {delay!r}")
    if isinstance(delay, str):
        try:
            at = parse_datetime(delay)
            if at is not None and at.tzinfo is not None:
                return at.astimezone(UTC)
        except (OverflowError, ValueError):
            pass  # the form of an instant, but no day or hour that there is
        raise UnresolvedReference(f"a timer needs an instant with its offset, like 2027-03-04T05:06:07Z, not {delay!r}")
    try:
        return since + timedelta(seconds=delay)
    except (OverflowError, ValueError):
        raise UnresolvedReference(f"a timer cannot wait {delay!r} seconds") from None


def put_off_timers(job: Job) -> None:
    """The time of a pause that ends now does not count for timers of so many seconds; an instant stays what it is."""
    if job.paused_at is None:
        return
    paused_for = now() - job.paused_at
    plan = Plan.from_json(job.plan)
    for step in Step.objects.filter(job=job, kind=StepKind.TIMER, state=StepState.RUNNING, deadline__isnull=False):
        planned = plan.steps[step.place]
        if step.deadline is not None and not isinstance(_view(job, planned, step).value(planned.delay), str):
            transitions.look_again_at(step, step.deadline + paused_for)


def _look(job: Job, plan: Plan, step: Step) -> None:
    planned = plan.steps[step.place]
    if step.role != Role.FORWARD:
        _begin(job, step, planned, None)
        return
    try:
        view = _view(job, planned, step)
        reason = reason_to_skip(view) if step.parent_id is None else None
        if reason is None:
            _begin(job, step, planned, view)
        elif view.primary is None and planned.unmet == "fail":
            transitions.refuse(job, step, Failure(kind=ErrorKind.PERMANENT, code="condition_not_met", message=reason))
            broker.ring_supervisor_on_commit(step.pk)
        else:
            skip(job, plan, step, reason=reason, cascade=view.primary is None and planned.unmet == "cascade")
    except SagError as error:
        failure = Failure(kind=ErrorKind.PERMANENT, code=error.code, message=error.message)
        if step.state == StepState.RUNNING:
            transitions.wait_ended_badly(job, step, failure, actor="scheduler")
        else:
            transitions.refuse(job, step, failure)
        broker.ring_supervisor_on_commit(step.pk)


def _view(job: Job, planned: PlanStep, step: Step) -> View:
    names = references_of([planned.when, planned.each, planned.delay, planned.input if planned.child else None])
    results, absent = Step.objects.results(job.pk, job.plan["steps"], names)
    primary = None
    if planned.instead_of is not None:
        primary = Step.objects.of_plan().get(job=job, name=planned.instead_of)
    return View(
        planned=planned, given=job.input, results=results, absent=frozenset(absent), primary=primary, item=step.item
    )


def skip(job: Job, plan: Plan, step: Step, *, reason: str, cascade: bool = False, actor: str = "scheduler") -> None:
    """Skip a step that has not begun, and go on behind it; with `cascade` skip all that depends on it as well."""
    transitions.skip(job, step, reason=reason, actor=actor)
    if cascade:
        for name in plan.dependents(step.name):
            dependent = Step.objects.of_plan().get(job=job, name=name)
            if dependent.state == StepState.NOT_STARTED:
                skip(job, plan, dependent, reason=f"It depends on {step.name}, which was skipped.", cascade=True)
    transitions.release_successors(job, step)


def _begin(job: Job, step: Step, planned: PlanStep, view: View | None) -> None:
    """The step is needed: let it go to the workers, or open what it waits for."""
    spreads = planned.each is not None and step.parent_id is None
    if spreads:
        _begin_fan_out(job, step, planned)
    elif step.kind == StepKind.CALL:
        transitions.pass_gate(job, step, limit_key=fanouts.limit_keys(planned, job, [step.item])[0])
    elif step.kind == StepKind.TIMER and view is not None:
        transitions.open_waiting(job, step, until=due_at(view.value(planned.delay), now()))
    elif step.kind == StepKind.SIGNAL:
        _begin_waiting_for_signal(job, step, planned)
    elif step.role == Role.UNDO:
        transitions.open_waiting(job, step, until=now())
        broker.ring_wake_on_commit(step.pk)
    elif view is not None:
        children.begin(job, step, planned, view.value(planned.input))


def _begin_fan_out(job: Job, step: Step, planned: PlanStep) -> None:
    again = step.is_fan_out
    transitions.open_waiting(job, step, until=None)
    if again:
        transitions.recount_items(step, at_once=planned.at_once)
        transitions.hold_items(step)
        transitions.admit_items(step, at_once=fanouts.at_once(planned, step))
    else:
        fanouts.begin(job, step, planned, scenes.announced_agents())
        step.refresh_from_db()
    if step.items_open == 0 and step.items_made == step.items_total:
        complete_fan_out(job, step)
    elif step.items_made < (step.items_total or 0):
        broker.ring_attend_on_commit(job.pk)


def complete_fan_out(job: Job, fan: Step) -> None:
    """Every item has ended, and not too many of them badly."""
    transitions.complete(job, fan, result=None, actor="scheduler")
    transitions.release_successors(job, fan)


def _begin_waiting_for_signal(job: Job, step: Step, planned: PlanStep) -> None:
    transitions.open_waiting(job, step, until=None if planned.wait is None else now() + planned.wait)
    early = Signal.objects.filter(job=job, name=step.name, outcome=Signal.Outcome.KEPT).first()
    if early is not None:
        transitions.take_signal(early)
        hear_signal(job, step, planned, early.payload, actor=early.actor)


def hear_signal(job: Job, step: Step, planned: PlanStep, payload: Any, *, actor: str) -> None:
    """The signal that this step waits for: its payload is the result; an approval may refuse."""
    if planned.approval and payload.get("approved") is False:
        refused = Failure(
            kind=ErrorKind.PERMANENT, code="not_approved", message=f"Refused by {actor}: {payload.get('reason', '')}"
        )
        transitions.wait_ended_badly(job, step, refused, actor=actor)
        broker.ring_supervisor_on_commit(step.pk)
        return
    transitions.complete(job, step, result=payload, actor=actor, settled_by=SettledBy.SIGNAL)
    transitions.release_successors(job, step)
