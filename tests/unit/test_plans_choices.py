"""What a plan does in one case and not in another: conditions, alternatives, and what a failure means."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from workflows import Workflow, child, given, signal, step, timer
from workflows.exceptions import InvalidStep, InvalidWorkflow, UnknownReference
from workflows.plans import registry
from workflows.plans.plan import Plan


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})


def make(**body: object) -> type[Workflow]:
    return type(Workflow)("Example", (Workflow,), body)  # type: ignore[return-value]


# --- conditions ------------------------------------------------------------------------------------------------------


def test_a_condition_is_waited_for_like_data() -> None:
    class Trip(Workflow):
        ask = step("desk.ask")
        car = step("car.reserve", when=ask["needs_car"])
        taxi = step("taxi.book", when=~ask["needs_car"], unmet="cascade")
        bus = step("bus.book", when=given["bus"], unmet="fail")

    assert [(planned.when, planned.unmet, planned.after) for planned in Trip.plan.steps] == [
        (None, "skip", ()),
        ({"$result": ["ask", "needs_car"]}, "skip", ("ask",)),
        ({"$not": {"$result": ["ask", "needs_car"]}}, "cascade", ("ask",)),
        ({"$given": ["bus"]}, "fail", ()),
    ]


def test_timers_signals_and_children_can_be_conditional_too() -> None:
    plan = make(a=timer(5, when=given["x"]), b=signal(when=~given["x"]), c=child("Trip", when=given["x"])).plan
    assert [planned.when for planned in plan.steps] == [
        {"$given": ["x"]},
        {"$not": {"$given": ["x"]}},
        {"$given": ["x"]},
    ]


@pytest.mark.parametrize("when", [True, False, "needs_car", {"$not": 1}, max], ids=str)
def test_a_condition_is_a_reference_and_no_value(when) -> None:
    with pytest.raises(InvalidStep, match="when=.* must be a reference or its opposite"):
        step("x.a", when=when)


def test_a_condition_follows_the_input_schema() -> None:
    class Wishes(BaseModel):
        needs_car: bool

    with pytest.raises(UnknownReference, match="Did you mean 'needs_car'"):
        make(input=Wishes, a=step("x.a", when=~given["need_car"]))


def test_unmet_needs_a_condition_and_a_known_word() -> None:
    with pytest.raises(InvalidStep, match="has unmet= but no when="):
        step("x.a", unmet="skip")
    with pytest.raises(InvalidStep, match="unmet='cascad' is unknown. Did you mean 'cascade'"):
        step("x.a", when=given["x"], unmet="cascad")  # type: ignore[arg-type]


# --- what a failure means --------------------------------------------------------------------------------------------


def test_a_step_says_what_its_failure_means_or_the_workflow_does() -> None:
    class Careful(Workflow):
        on_failure = "hold"
        a = step("x.a")
        b = step("x.b", on_failure="ignore")
        c = signal(on_failure="compensate")
        d = child("Trip", on_failure="ignore")

    assert Careful.plan.on_failure == "hold"
    assert [planned.on_failure for planned in Careful.plan.steps] == ["hold", "ignore", "compensate", "ignore"]
    assert make(a=step("x.a")).plan.step("a").on_failure == "compensate"


@pytest.mark.parametrize(
    ("word", "advice"), [("ignored", "Did you mean 'ignore'"), (True, "There is: compensate, hold, ignore")]
)
def test_an_unknown_meaning_of_a_failure_is_refused(word: Any, advice: str) -> None:
    with pytest.raises(InvalidStep, match=f"on_failure={word!r} is unknown. {advice}"):
        step("x.a", on_failure=word)
    with pytest.raises(InvalidWorkflow, match=f"on_failure = {word!r} is unknown. {advice}"):
        make(on_failure=word, a=step("x.a"))


def test_nothing_to_undo_is_not_the_same_as_nothing_said() -> None:
    plan = make(a=step("x.a", compensation=False), b=step("x.b"), c=step("x.c", compensation="x.d")).plan
    assert [(planned.compensation, planned.undo_unnecessary) for planned in plan.steps] == [
        (None, True),
        (None, False),
        ("x.d", False),
    ]


def test_a_compensation_is_named_or_declared_unnecessary() -> None:
    with pytest.raises(InvalidStep, match="compensation True is not of the form"):
        step("x.a", compensation=True)  # type: ignore[arg-type]


def test_a_pivot_is_true_or_false() -> None:
    assert make(a=step("x.a", pivot=True, compensation="x.b")).plan.step("a").pivot is True
    with pytest.raises(InvalidStep, match="pivot=1 must be True or False"):
        step("x.a", pivot=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("keyword", ["queue_timeout", "total_timeout"])
@pytest.mark.parametrize("duration", [timedelta(0), timedelta(seconds=-1), timedelta.max, 30, given["x"]], ids=repr)
def test_a_time_out_is_a_duration_above_zero(keyword: str, duration) -> None:
    with pytest.raises(InvalidStep, match=f"{keyword}="):
        step("x.a", **{keyword: duration})


def test_all_attempts_together_have_room_for_one() -> None:
    with pytest.raises(InvalidStep, match="total_timeout=.* is shorter than one attempt may take"):
        step("x.a", timeout=timedelta(minutes=2), total_timeout=timedelta(minutes=1))
    patient = make(a=step("x.a", timeout=timedelta(days=30))).plan.step("a")
    assert patient.total_timeout == timedelta(days=30)


@pytest.mark.parametrize("option", ["after_success", "after_failure"])
def test_a_hook_is_an_operation(option: str) -> None:
    plan = make(**{option: "mail.send", "a": step("x.a")}).plan
    assert getattr(plan, option) == "mail.send"
    with pytest.raises(InvalidWorkflow, match=f"{option} = 'mail:send' is not of the form .*Did you mean 'mail.send'"):
        make(**{option: "mail:send", "a": step("x.a")})
    with pytest.raises(InvalidWorkflow, match=f"{option} = "):
        make(**{option: given["x"], "a": step("x.a")})


@pytest.mark.parametrize("deadline", [timedelta(0), timedelta(days=-1), timedelta.max, 30, given["x"]], ids=repr)
def test_a_deadline_is_a_duration_above_zero(deadline) -> None:
    with pytest.raises(InvalidWorkflow, match="deadline ="):
        make(deadline=deadline, a=step("x.a"))


# --- alternatives ----------------------------------------------------------------------------------------------------


@pytest.fixture
def stay(own_registry) -> Plan:
    class Stay(Workflow):
        flight = step("flight.reserve")
        hotel = step(
            "hotel.reserve",
            input={"at": flight["arrives_at"]},
            compensation="hotel.cancel",
            otherwise=step(
                "inn.reserve",
                compensation="inn.cancel",
                input={"at": flight["arrives_at"]},
                on_failure="ignore",
            ),
        )
        car = step("car.reserve", input={"at": hotel["address"]})
        note = step("note.write", after=[hotel])
        bill = step("bill.write", after=[car])

    return Stay.plan


def test_an_alternative_stands_right_behind_the_step_that_it_may_replace(stay: Plan) -> None:
    assert [planned.name for planned in stay.steps] == [
        *("flight", "hotel", "hotel.otherwise", "car", "note", "bill"),
    ]
    alternative = stay.step("hotel.otherwise")
    assert (alternative.operation, alternative.compensation) == ("inn.reserve", "inn.cancel")
    assert (alternative.instead_of, alternative.after) == ("hotel", ("flight", "hotel"))
    assert (alternative.gated, alternative.on_failure) == (True, "ignore")
    assert stay.step("hotel").instead_of is None


def test_whatever_waits_for_a_step_waits_for_its_alternative_as_well(stay: Plan) -> None:
    assert stay.prerequisites("car") == ("hotel", "hotel.otherwise")
    assert stay.prerequisites("note") == ("hotel", "hotel.otherwise")
    assert stay.prerequisites("bill") == ("car",)
    assert stay.dependents("hotel") == ("hotel.otherwise", "car", "note")
    assert stay.dependents("hotel.otherwise") == ("car", "note")
    assert stay.step("car").input == {"at": {"$result": ["hotel", "address"]}}


def test_an_alternative_may_have_an_alternative() -> None:
    class Persistent(Workflow):
        hotel = step("hotel.reserve", otherwise=step("inn.reserve", otherwise=child("Camping")))
        car = step("car.reserve", after=[hotel], otherwise=signal(after=[hotel]))

    plan = Persistent.plan
    assert [(planned.name, planned.instead_of, planned.after) for planned in plan.steps] == [
        ("hotel", None, ()),
        ("hotel.otherwise", "hotel", ("hotel",)),
        ("hotel.otherwise.otherwise", "hotel.otherwise", ("hotel.otherwise",)),
        ("car", None, ("hotel", "hotel.otherwise", "hotel.otherwise.otherwise")),
        ("car.otherwise", "car", ("hotel", "hotel.otherwise", "hotel.otherwise.otherwise", "car")),
    ]


def test_signals_and_children_may_have_alternatives() -> None:
    plan = make(a=signal(otherwise=step("x.a")), b=child("Trip", otherwise=signal())).plan
    assert [planned.kind for planned in plan.steps] == ["signal", "call", "child", "signal"]


def test_a_step_with_an_alternative_may_have_a_condition() -> None:
    plan = make(a=step("x.a", when=given["x"], otherwise=step("x.b"))).plan
    assert [planned.when for planned in plan.steps] == [{"$given": ["x"]}, None]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: step("x.a", otherwise="x.b"), "otherwise='x.b' must be a step"),
        (lambda: step("x.a", otherwise=given["x"]), "must be a step"),
        (lambda: step("x.a", otherwise=timer(5)), "waiting is no alternative"),
        (lambda: step("x.a", otherwise=step("x.b", when=given["x"])), "cannot have when="),
        (lambda: step("x.a", otherwise=step("x.b", each=given["x"])), "cannot have each="),
        (lambda: child("Trip", otherwise=child("Trip", each=given["x"])), "cannot have each="),
        (lambda: step("x.a", each=given["x"], otherwise=step("x.b")), "otherwise= cannot stand beside each="),
        (lambda: step("x.a", on_failure="hold", otherwise=step("x.b")), "Give on_failure= to that one"),
        (lambda: signal(on_failure="hold", otherwise=step("x.b")), "Give on_failure= to that one"),
    ],
)
def test_an_alternative_that_could_not_be_done_is_refused(declare, message: str) -> None:
    with pytest.raises(InvalidStep, match=message):
        declare()


def test_an_alternative_is_no_step_of_its_own() -> None:
    inn = step("inn.reserve")
    with pytest.raises(InvalidStep, match="'hotel.otherwise' and 'inn' are the same step"):
        make(hotel=step("hotel.reserve", otherwise=inn), inn=inn)
    with pytest.raises(InvalidStep, match="'hotel.otherwise' and 'motel.otherwise' are the same step"):
        make(hotel=step("hotel.reserve", otherwise=inn), motel=step("motel.reserve", otherwise=inn))


def test_the_result_of_an_alternative_is_read_from_the_step() -> None:
    inn = step("inn.reserve")
    hotel = step("hotel.reserve", otherwise=inn)
    with pytest.raises(UnknownReference, match=r"is done in place of 'hotel'. Read 'hotel': whichever of them"):
        make(hotel=hotel, car=step("car.reserve", input=inn["address"]))


def test_an_alternative_cannot_read_what_has_failed() -> None:
    late: dict[str, Any] = {}
    hotel = step("hotel.reserve", otherwise=step("inn.reserve", otherwise=step("tent.pitch", input=late)))
    late["price"] = hotel["price"]
    with pytest.raises(InvalidStep, match=r"step 'hotel.otherwise.otherwise': it reads or follows 'hotel'"):
        make(hotel=hotel)


def test_a_fault_in_an_alternative_is_found_under_its_name() -> None:
    with pytest.raises(UnknownReference, match="step 'hotel.otherwise': .*has no name"):
        make(hotel=step("hotel.reserve", otherwise=step("inn.reserve", after=[step("x.a")])))


def test_alternatives_end_where_names_become_too_long() -> None:
    def chain(length: int) -> Any:
        return step("x.a", otherwise=chain(length - 1)) if length else step("x.a")

    assert len(make(**{"h" * 60: chain(3)}).plan.steps) == 4
    with pytest.raises(InvalidStep, match="has a name of more than 95 characters"):
        make(**{"h" * 60: chain(4)})
