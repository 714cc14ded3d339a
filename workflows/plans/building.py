"""From declared steps to a plan: each gets its name, its templates, and the names of all that it waits for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from workflows.exceptions import InvalidStep, InvalidWorkflow, PlanCycle, PlanError, UnknownReference
from workflows.plans.declared import Step, StepOptions, options_of, owner_of
from workflows.plans.nearest import did_you_mean
from workflows.plans.plan import Plan, PlanStep
from workflows.plans.references import Reference, is_item, path_of, source_of
from workflows.plans.schema import check_path, schema_of
from workflows.plans.templates import declared_references, encode, encode_condition, references_of

_ALTERNATIVE = ".otherwise"
_LONGEST_NAME = 95  # of the 100 that a row has for it; its undo needs the others

CheckGiven = Callable[[Reference, tuple[str, ...]], None]


def build_plan(workflow: Any, declared: Mapping[str, Step]) -> Plan:
    """The plan of a workflow class whose body declares these steps, or a PlanError that says what is wrong."""
    if not declared:
        raise InvalidWorkflow("it has no steps. Declare at least one: flight = step('flight.reserve').")
    steps = _Steps(workflow, declared)
    planned = tuple(map(steps.planned, steps.by_name))
    _check_order(planned)
    return Plan(
        workflow=workflow.name,
        version=workflow.version,
        compensate_within=workflow.compensate_within,
        steps=planned,
        on_failure=workflow.on_failure,
        deadline=workflow.deadline,
        after_success=workflow.after_success,
        after_failure=workflow.after_failure,
    )


class _Steps:
    """All declared steps, each alternative right behind the step that it may replace."""

    def __init__(self, workflow: Any, declared: Mapping[str, Step]) -> None:
        self.by_name: dict[str, Step] = {}
        self._names: dict[int, str] = {}
        self._on_failure = workflow.on_failure
        self._check_given = _given_checker(workflow)
        for name, primary in declared.items():
            for place, step in _with_alternatives(name, primary):
                if id(step) in self._names:
                    first = self._names[id(step)]
                    raise InvalidStep(f"{first!r} and {place!r} are the same step. Declare each with step(…).")
                self._names[id(step)] = place
                self.by_name[place] = step

    def planned(self, name: str) -> PlanStep:
        options = options_of(self.by_name[name])
        try:
            self._check_references(name, options)
            return self._encoded(name, options)
        except PlanError as error:
            raise type(error)(f"step {name!r}: {error.message}") from error

    def _encoded(self, name: str, options: StepOptions) -> PlanStep:
        input, each = encode(options.input, self._names), encode(options.spread.each, self._names, "each")
        when, delay = encode_condition(options.flow.when, self._names), encode(options.delay, self._names)
        limit = options.limit
        key = None if limit is None else encode(limit.key, self._names)
        instead_of = name.removesuffix(_ALTERNATIVE) if name.endswith(_ALTERNATIVE) else None
        awaited = references_of([input, each, when, delay, key])
        awaited |= {self._names[id(earlier)] for earlier in options.flow.after}
        if instead_of is not None and _primary(name) in awaited:
            raise InvalidStep(f"it reads or follows {_primary(name)!r}, but is done only where that has failed.")
        return PlanStep(
            name=name,
            kind=options.kind,
            operation=options.operation,
            compensation=options.compensation,
            undo_unnecessary=options.undo_unnecessary,
            probe=options.probe,
            input=input,
            after=self._in_order(awaited, instead_of),
            timeout=options.timeout,
            retry=options.retry,
            undo_retry=options.undo_retry,
            each=each,
            at_once=options.spread.at_once,
            tolerate=options.spread.tolerate,
            when=when,
            unmet=options.flow.unmet,
            on_failure=options.flow.on_failure or self._on_failure,
            instead_of=instead_of,
            pivot=options.pivot,
            queue_timeout=options.queue_timeout,
            total_timeout=options.total_timeout,
            delay=delay,
            wait=options.wait,
            approval=options.approval,
            approvers=options.approvers,
            child=options.child,
            on_parent_end=options.on_parent_end,
            limit=None if limit is None else {"key": key, "at_once": limit.at_once},
        )

    def _in_order(self, awaited: set[str], instead_of: str | None) -> tuple[str, ...]:
        """The names of all it waits for: with a step, also those that may be done in its place."""
        return tuple(name for name in self.by_name if name == instead_of or _primary(name) in awaited)

    def _check_references(self, name: str, options: StepOptions) -> None:
        for earlier in options.flow.after:
            self._check_known(earlier)
        for keyword, value, kinds in (
            ("each", options.spread.each, ("array",)),
            ("when", options.flow.when, ()),
            ("delay", options.delay, ("number", "integer", "string")),
        ):
            for reference in declared_references(value):
                if is_item(reference):
                    raise InvalidStep(f"{keyword}= reads {reference!r}, but is looked at before there are items.")
                self._check_reference(reference, None, kinds if reference is value else ())
        for value in (options.input, options.limit and options.limit.key):
            for reference in declared_references(value):
                self._check_reference(reference, options.spread.each)

    def _check_reference(self, reference: Reference, each: object, kinds: tuple[str, ...] = ()) -> None:
        if (source := source_of(reference)) is not None:
            self._check_known(source)
        elif not is_item(reference):
            self._check_given(reference, kinds)
        elif each is None:
            raise InvalidStep(f"it reads {reference!r}, but has no each= whose items that could be.")
        elif isinstance(each, Reference) and source_of(each) is None:
            first: Reference = each[0]
            for key in path_of(reference):
                first = first[key]
            self._check_given(first, ())

    def _check_known(self, source: Step) -> None:
        name = self._names.get(id(source))
        if name is None:
            owner = owner_of(source)
            where = f"a step of {owner}" if owner else "a step that has no name"
            advice = did_you_mean(repr(source), self.by_name) if owner else " Give it one: name = step(…)."
            raise UnknownReference(f"{source!r} is {where}, not of this workflow.{advice}")
        if name != _primary(name):
            raise UnknownReference(
                f"{source!r} is done in place of {_primary(name)!r}. Read {_primary(name)!r}: whichever of them was "
                "done gives its result."
            )


def _with_alternatives(name: str, step: Step) -> Iterator[tuple[str, Step]]:
    alternative: Step | None = step
    while alternative is not None:
        if len(name) > _LONGEST_NAME:
            raise InvalidStep(f"the alternative {name!r} has a name of more than {_LONGEST_NAME} characters.")
        yield name, alternative
        name, alternative = name + _ALTERNATIVE, options_of(alternative).flow.otherwise


def _primary(name: str) -> str:
    return name.partition(".")[0]


def _given_checker(workflow: Any) -> CheckGiven:
    if workflow.input is None:
        return lambda reference, kinds: None
    schema = schema_of(workflow.input)
    return lambda reference, kinds: check_path(schema, path_of(reference), kinds)


def _check_order(steps: Iterable[PlanStep]) -> None:
    """Names already seen are the only ones to wait for; an input that was changed later can break that."""
    graph = {step.name: step.after for step in steps}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise PlanCycle(f"these steps wait for each other: {' → '.join(error.args[1])}.") from error
    seen: set[str] = set()
    for name, after in graph.items():
        for other in after:
            if other not in seen:
                raise InvalidStep(f"step {name!r} waits for {other!r}, which is declared later. Put {other!r} first.")
        seen.add(name)
