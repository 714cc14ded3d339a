"""A workflow class is checked while it is made, and each refusal names the fault and the right spelling."""

from datetime import timedelta
from graphlib import TopologicalSorter
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from workflows import Retry, Workflow, given, step
from workflows.exceptions import (
    InvalidStep,
    InvalidWorkflow,
    PlanCycle,
    PlanError,
    UnknownReference,
)
from workflows.plans import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})


class Leg(BaseModel):
    origin: str = Field(alias="from")
    seats: int


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Request(BaseModel):
    leg: Leg
    legs: list[Leg]
    pair: tuple[int, Leg]
    by_name: dict[str, Leg]
    maybe: Leg | None = None
    either: Annotated[Leg | Extra, Field()]
    anything: Any = None
    child: "Request | None" = None


def make(name: str = "Example", /, **body: object) -> type[Workflow]:
    return type(Workflow)(name, (Workflow,), body)  # type: ignore[return-value]


# --- order -----------------------------------------------------------------------------------------------------------


def test_order_follows_from_the_data_and_from_after() -> None:
    class Report(Workflow):
        extract = step("warehouse.extract")
        totals = step("warehouse.totals", input={"rows": extract["rows"]})
        audit = step("warehouse.audit", input={"deep": [{"rows": extract}]})
        publish = step("report.publish", input={"audit": audit, "totals": totals}, after=[extract])

    plan = Report.plan
    assert [planned.name for planned in plan.steps] == ["extract", "totals", "audit", "publish"]
    assert plan.prerequisites("extract") == ()
    assert plan.prerequisites("audit") == ("extract",)
    assert plan.prerequisites("publish") == ("extract", "totals", "audit")
    assert plan.dependents("extract") == ("totals", "audit", "publish")
    assert plan.dependents("publish") == ()


def test_after_and_data_on_the_same_step_are_one_prerequisite() -> None:
    class Twice(Workflow):
        a = step("x.a")
        b = step("x.b", input={"a": a}, after=[a, a])

    assert Twice.plan.prerequisites("b") == ("a",)


def test_independent_steps_wait_for_nothing() -> None:
    class Side(Workflow):
        a = step("x.a")
        b = step("x.b")

    assert Side.plan.prerequisites("b") == ()


def test_a_cycle_made_by_changing_an_input_afterwards_is_found() -> None:
    with pytest.raises(PlanCycle, match=r"Circle: these steps wait for each other: .*→"):

        class Circle(Workflow):
            late: dict = {}
            _a = late
            a = step("x.a", input=_a)
            b = step("x.b", input={"a": a})
            _a["b"] = b
            del late


def test_a_step_cannot_wait_for_one_declared_later() -> None:
    inner: dict = {}
    a = step("x.a", input=inner)
    b = step("x.b")
    inner["b"] = b
    with pytest.raises(InvalidStep, match="'a' waits for 'b', which is declared later"):
        make(a=a, b=b)


# --- references ------------------------------------------------------------------------------------------------------


def test_a_name_that_nobody_defined_is_answered_with_the_nearest_step() -> None:
    with pytest.raises(UnknownReference, match=r"Typo: nothing is called 'flihgt' here\. Did you mean 'flight'\?"):

        class Typo(Workflow):
            flight = step("flight.reserve")
            hotel = step("hotel.reserve", input={"at": flihgt["arrives_at"]})  # noqa: F821


def test_a_class_body_still_sees_globals_builtins_and_the_function_around_it() -> None:
    operation = "x.a"

    class Seeing(Workflow):
        a = step(operation, input={"n": max(1, 2)}, timeout=timedelta(seconds=len(operation)))

    assert Seeing.plan.step("a").input == {"n": 2}


def test_a_step_of_another_class_is_refused() -> None:
    class First(Workflow):
        flight = step("flight.reserve")

    with pytest.raises(UnknownReference, match="step 'hotel': flight is a step of First, not of this workflow"):

        class Second(Workflow):
            hotel = step("hotel.reserve", input={"at": First.flight["arrives_at"]})

    with pytest.raises(UnknownReference, match="a step of First"):

        class Third(Workflow):
            hotel = step("hotel.reserve", after=[First.flight])


def test_a_step_without_a_name_cannot_be_read() -> None:
    with pytest.raises(UnknownReference, match="has no name"):

        class Nameless(Workflow):
            hotel = step("hotel.reserve", input={"at": step("flight.reserve")})


@pytest.mark.parametrize(
    "reference",
    [
        given,
        given["leg"],
        given["leg"]["from"],
        given["legs"],
        given["legs"][3]["seats"],
        given["pair"][1]["seats"],
        given["by_name"]["whoever"]["from"],
        given["maybe"]["from"],
        given["either"]["from"],
        given["either"]["unheard of"],
        given["anything"]["at"][0]["all"],
        given["child"]["child"]["leg"]["from"],
    ],
    ids=repr,
)
def test_given_follows_the_input_schema(reference) -> None:
    class Follows(Workflow):
        input = Request
        a = step("x.a", input={"value": reference})

    assert Follows.plan.step("a").input["value"]["$given"] is not None


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (given["lge"], r'given\["lge"\] cannot exist: the input has no \'lge\'\. Did you mean \'leg\'\?'),
        (given["leg"]["origin"], r'given\["leg"\] has no \'origin\'\. There is: from, seats'),
        (given["leg"]["seat"], r"Did you mean 'seats'"),
        (given["leg"]["seats"]["x"], r"It is of type integer"),
        (given["legs"]["from"], r"It is of type array"),
        (given["legs"][0]["frm"], r"Did you mean 'from'"),
        (given["pair"][2], r"has no 2"),
        (given["pair"][0]["x"], r"It is of type integer"),
        (given["leg"][0], r"has no 0"),
        (given["by_name"]["x"]["y"], r"There is: from, seats"),
        (given["maybe"]["sets"], r"Did you mean 'seats'"),
        (given["child"]["child"]["lag"], r"Did you mean 'leg'"),
    ],
    ids=repr,
)
def test_given_that_the_input_schema_cannot_have_is_refused(reference, message: str) -> None:
    with pytest.raises(UnknownReference, match=message):
        make(input=Request, a=step("x.a", input={"deep": [reference]}))


def test_without_a_schema_any_given_is_allowed() -> None:
    assert make(a=step("x.a", input=given["what"]["ever"])).plan.step("a").input == {"$given": ["what", "ever"]}


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("reserve", "not of the form 'agent.operation'"),
        ("flight:reserve", "Did you mean 'flight.reserve'"),
        ("Flight.Reserve", "Did you mean 'flight.reserve'"),
        ("flight/reserve ", "Did you mean 'flight.reserve'"),
        ("a.b.c", "not of the form"),
        (".reserve", "not of the form"),
        ("flight.", "not of the form"),
        ("flight.reserve\n", "Did you mean 'flight.reserve'"),
        ("", "not of the form"),
        (None, "not of the form"),
        (max, "not of the form"),
        ("a" * 60 + "." + "b" * 60, "longer than 100"),
    ],
    ids=repr,
)
def test_an_operation_has_the_form_agent_dot_operation(operation, message: str) -> None:
    with pytest.raises(InvalidStep, match=message):
        step(operation)
    with pytest.raises(InvalidStep):
        step("x.a", probe=operation or "none")
    with pytest.raises(InvalidStep):
        step("x.a", compensation=operation or "none")


def test_a_compensation_is_another_operation_than_the_step_and_its_probe() -> None:
    with pytest.raises(InvalidStep, match="'x.a' cannot be both operation and compensation"):
        step("x.a", compensation="x.a")
    with pytest.raises(InvalidStep, match="both operation and probe"):
        step("x.a", probe="x.a")
    with pytest.raises(InvalidStep, match="both compensation and probe"):
        step("x.a", compensation="x.b", probe="x.b")


@pytest.mark.parametrize(
    ("keyword", "right"),
    [("compensaton", "compensation"), ("inputs", "input"), ("time_out", "timeout"), ("retries", "retry")],
)
def test_an_unknown_keyword_is_answered_with_the_nearest_one(keyword: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"has no {keyword}=. Did you mean '{right}'"):
        step("x.a", **{keyword: None})


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), 30, "30"], ids=repr)
def test_a_timeout_is_a_duration_above_zero(timeout) -> None:
    with pytest.raises(InvalidStep, match="timeout="):
        step("x.a", timeout=timeout)


def test_a_retry_is_a_retry() -> None:
    with pytest.raises(InvalidStep, match="retry=3 must be a Retry"):
        step("x.a", retry=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidStep, match="undo_retry=0 must be a Retry"):
        step("x.a", compensation="x.b", undo_retry=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidStep, match="no compensation="):
        step("x.a", undo_retry=Retry())


def test_after_takes_a_list_of_steps() -> None:
    hotel = step("hotel.reserve")
    cases: list[tuple[Any, str]] = [
        (hotel, r"takes a list of steps"),
        ("hotel", r"after=\[hotel\]"),
        (["hotel"], r"'hotel' in after= is no step\. Write the step itself: after=\[hotel\]"),
        ([hotel["room"]], r"is no step"),
        ([given["x"]], r'given\["x"\] in after= is no step'),
        (None, "takes a list"),
        ([None], "is no step"),
    ]
    for after, message in cases:
        with pytest.raises(InvalidStep, match=message):
            step("x.a", after=after)


@pytest.mark.parametrize("name", ["start", "input", "version", "name", "plan", "validate", "compensate_within"])
def test_a_step_cannot_hide_an_attribute_of_workflow(name: str) -> None:
    with pytest.raises(InvalidStep, match=f"'{name}' hides Workflow's own"):
        make(**{name: step("x.a")})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("_hidden", "hidden"),
        ("bookHotel", "book_hotel"),
        ("Hotel", "hotel"),
        ("hotel.undo", "hotel_undo"),
        ("hotel:1", "hotel_1"),
        ("1st", "begins with a small letter"),
        ("hôtel", "h_tel"),
        ("h" * 61, "at most 60"),
        ("hotel\n", "hotel"),
    ],
)
def test_a_step_name_is_small_letters_digits_and_underscores(name: str, hint: str) -> None:
    with pytest.raises(InvalidStep, match=hint):
        make(**{name: step("x.a")})


def test_a_step_name_may_have_sixty_characters() -> None:
    assert make(**{"h" * 60: step("x.a")}).plan.steps[0].name == "h" * 60


def test_a_step_declared_twice_is_refused() -> None:
    with pytest.raises(InvalidWorkflow, match="'flight' is declared twice"):

        class Twice(Workflow):
            flight = step("flight.reserve")
            flight = step("flight.reserve")


def test_one_step_under_two_names_is_refused() -> None:
    with pytest.raises(InvalidStep, match="'a' and 'b' are the same step"):

        class Shared(Workflow):
            a = step("x.a")
            b = a


def test_a_fault_in_an_input_names_workflow_step_and_place() -> None:
    with pytest.raises(InvalidStep, match=r'^Example: step \'a\': input\["when"\] is a timedelta'):
        make(a=step("x.a", input={"when": timedelta(1)}))


# --- the class as a whole --------------------------------------------------------------------------------------------


def test_a_workflow_has_steps() -> None:
    with pytest.raises(InvalidWorkflow, match="Empty: it has no steps"):

        class Empty(Workflow):
            pass


def test_a_workflow_with_steps_cannot_be_subclassed() -> None:
    base = make("Base", a=step("x.a"))
    with pytest.raises(InvalidWorkflow, match="Derived: Base has steps and cannot be subclassed"):

        class Derived(base):  # type: ignore[misc, valid-type]
            b = step("x.b")


def test_a_workflow_has_no_other_bases() -> None:
    class Mixin:
        lost = step("x.lost")

    with pytest.raises(InvalidWorkflow, match="inherits from Workflow alone"):

        class Mixed(Mixin, Workflow):
            a = step("x.a")


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0, None], ids=repr)
def test_a_version_is_a_whole_number_from_one(version) -> None:
    with pytest.raises(InvalidWorkflow, match="version ="):
        make(version=version, a=step("x.a"))


@pytest.mark.parametrize("within", [timedelta(0), timedelta(days=-1), 30], ids=repr)
def test_compensate_within_is_a_duration_above_zero(within) -> None:
    with pytest.raises(InvalidWorkflow, match="compensate_within ="):
        make(compensate_within=within, a=step("x.a"))


@pytest.mark.parametrize("model", [dict, {"a": int}, Leg.model_construct(), RootModel[list[int]]], ids=repr)
def test_an_input_is_a_model_with_fields(model) -> None:
    with pytest.raises(InvalidWorkflow, match="input ="):
        make(input=model, a=step("x.a"))


def test_an_input_needs_a_json_schema() -> None:
    class Opaque(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        thing: TopologicalSorter

    with pytest.raises(InvalidWorkflow, match="no JSON Schema"):
        make(input=Opaque, a=step("x.a"))


def test_a_misspelt_option_is_not_taken_for_a_constant() -> None:
    with pytest.raises(InvalidWorkflow, match="Did you mean 'compensate_within'"):
        make(compensate_whithin=timedelta(days=1), a=step("x.a"))


def test_a_reference_alone_is_no_step() -> None:
    with pytest.raises(InvalidWorkflow, match="is no step"):
        make(a=step("x.a"), trip=given["trip"])


def test_methods_and_private_names_are_allowed_but_not_over_workflows_own() -> None:
    class Rich(Workflow):
        _note = "private"
        a = step("x.a")

        @classmethod
        def describe(cls) -> str:
            return f"{cls.name} v{cls.version}"

    assert Rich.describe() == "Rich v1"
    with pytest.raises(InvalidWorkflow, match="'start' hides"):

        class Hiding(Workflow):
            a = step("x.a")

            def start(self) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize("name", ["Trip.undo", "Trip:1", "", "T" * 101, "Fähre"])
def test_a_workflow_name_has_only_letters_digits_and_underscores(name: str) -> None:
    with pytest.raises(InvalidWorkflow, match="a workflow's name"):
        make(name, a=step("x.a"))


def test_a_refused_class_is_not_registered() -> None:
    with pytest.raises(PlanError):
        make("Refused")
    assert registry.all() == []


@pytest.mark.parametrize("runbook", ["wiki", "javascript:alert(1)", 7, ""])
def test_a_runbook_is_the_address_of_a_page(runbook) -> None:
    with pytest.raises(InvalidWorkflow, match="runbook ="):
        make(runbook=runbook, a=step("x.a"))


def test_a_runbook_is_kept_beside_the_plan_and_not_in_it() -> None:
    workflow = make(runbook="https://wiki.example.com/trips", a=step("x.a"))
    assert workflow.runbook == "https://wiki.example.com/trips"
    assert "wiki" not in str(workflow.plan.to_json())
