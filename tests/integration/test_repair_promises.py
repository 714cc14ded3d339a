"""A result that a person gives is held against what the operation promised of its results, as its workers announced it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pydantic
import pytest

from agents import Agent, Call, InDoubt, Permanent
from agents.tasks import row_of
from tests.api import Program, newcomer
from tests.integration.engine import Engine, check_books, history, named, state_of
from workflows import Retry, Workflow, given, item, signal, step, transitions, verbs
from workflows.exceptions import InvalidInput
from workflows.models import Attempt, Job

ONCE = Retry(attempts=1)


class Seat(pydantic.BaseModel):
    row: int
    letter: str = "A"


class Ticket(pydantic.BaseModel):
    reference: str = pydantic.Field(serialization_alias="number", validation_alias="number")
    departs_at: datetime
    seats: list[Seat] = []
    gift: Ticket | None = None


class Returned(pydantic.BaseModel):
    refund: float


counter = Agent("counter")
said: list[BaseException] = []


@counter.operation(output=Ticket)
def sell(call: Call) -> Any:
    if said:
        raise said[0]
    return {"number": "T1", "departs_at": "2027-03-04T10:00:00Z"}


@counter.operation(output=Returned)
def take_back(call: Call) -> Any:
    raise Permanent("closed")


class Sold(Workflow):
    on_failure = "hold"

    a = step("counter.sell", compensation="counter.take_back", retry=ONCE, undo_retry=ONCE)
    b = step("shop.b", input={"row": a["seats"]}, after=[a])


class SoldAndKept(Workflow):
    a = step("counter.sell", compensation="counter.take_back", retry=ONCE, undo_retry=ONCE)
    word = signal(after=[a])


class SoldMany(Workflow):
    on_failure = "hold"

    a = step("counter.sell", each=given["list"], input={"i": item}, retry=ONCE)


GOOD = {"number": "T7", "departs_at": "2027-03-04T10:00:00+01:00", "seats": [], "gift": None}


@pytest.fixture
def office(engine: Engine) -> Engine:
    transitions.announce(row_of(counter))
    said[:] = [Permanent("the counter is closed")]
    return engine


def stopped(engine: Engine, workflow: type[Workflow] = Sold, input: Any = None) -> Job:
    job = workflow.start(input)
    engine.drain()
    return job


def give(job: Job, result: Any, name: str = "a") -> Any:
    return verbs.give_result(job.pk, name, result=result, actor="operator:ada", reason="sold at the desk")


def refused(job: Job, result: Any, name: str = "a") -> dict[str, str]:
    """{pointer: message} of what is said against it. Nothing has changed."""
    before = history(job)
    with pytest.raises(InvalidInput) as refusal:
        give(job, result, name)
    assert history(job) == before
    return {fault["pointer"]: fault["message"] for fault in refusal.value.errors}


def test_the_schemas_are_announced_and_shown_and_the_operations_stay_as_they_are(office: Engine) -> None:
    shown = newcomer("jobs:operate").get("agents/counter").json()
    assert shown["operations"] == ["counter.sell", "counter.take_back"]
    assert sorted(shown["outputs"]) == ["counter.sell", "counter.take_back"]
    assert shown["outputs"]["counter.take_back"]["required"] == ["refund"]
    assert newcomer("jobs:operate").get("agents/shop").json()["outputs"] == {}


def test_a_result_that_fits_completes_the_step_as_it_was_given(office: Engine) -> None:
    job = stopped(office)
    assert give(job, GOOD).result == GOOD
    office.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_what_the_worker_stores_itself_would_be_taken_from_a_person_as_well(office: Engine) -> None:
    said.clear()
    stored = named(stopped(office), "a").result
    said.append(Permanent("closed again"))
    job = stopped(office)
    assert give(job, stored).result == stored


@pytest.mark.parametrize(
    ("result", "pointer", "message"),
    [
        (None, "/result", "None is not of type 'object'"),
        ({**GOOD, "number": 7}, "/result/number", "7 is not of type 'string'"),
        ({**GOOD, "departs_at": "tomorrow"}, "/result/departs_at", "'tomorrow' is not a 'date-time'"),
        ({**GOOD, "seats": [{"row": 1, "letter": "B"}, {"row": "2", "letter": "C"}]}, "/result/seats/1/row", "'2'"),
        ({**GOOD, "gift": {**GOOD, "seats": 0}}, "/result/gift/seats", "0 is not of type 'array'"),
        ({"departs_at": "2027-03-04T10:00:00Z", "seats": [], "gift": None}, "/result", "'number' is a required"),
        ({**GOOD, "seats": [{"row": 1}]}, "/result/seats/0", "'letter' is a required"),
    ],
    ids=["nothing", "kind", "date", "in a list", "in an option", "missing", "missing with a default"],
)
def test_a_result_that_does_not_fit_is_refused_with_the_place(
    office: Engine, result: Any, pointer: str, message: str
) -> None:
    """A default is the worker's to fill in: steps that follow read the field."""
    job = stopped(office)
    faults = refused(job, result)
    assert list(faults) == [pointer]
    assert faults[pointer].startswith(message)


def test_each_fault_has_its_pointer_and_repeats_no_long_value(office: Engine) -> None:
    job = stopped(office)
    faults = refused(job, {**GOOD, "number": ["x"] * 1000, "seats": [{"row": "1", "letter": "A"}] * 3})
    assert sorted(faults) == ["/result/number", *(f"/result/seats/{index}/row" for index in range(3))]
    assert faults["/result/number"] == 'does not fit type: "string"'
    assert len(refused(job, {**GOOD, "seats": [{"row": "1", "letter": "A"}] * 99})) == 50


def test_a_result_that_is_nested_as_deeply_as_json_may_be_is_checked_to_its_end(office: Engine) -> None:
    deep: dict[str, Any] = {**GOOD, "number": 1}
    for _ in range(97):
        deep = {**GOOD, "gift": deep}
    assert list(refused(stopped(office), deep)) == [f"/result{'/gift' * 97}/number"]


def test_over_rest_it_is_answered_with_422_and_the_pointers(office: Engine) -> None:
    operator: Program = newcomer("jobs:operate")
    job = stopped(office)
    body = {"result": {**GOOD, "number": None}, "reason": "sold at the desk"}
    answer = operator.post(f"jobs/{job.pk}/steps/a/result", body, If_Match="*")
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-input")
    assert answer.json()["errors"] == [{"pointer": "/result/number", "message": "None is not of type 'string'"}]
    assert operator.post(f"jobs/{job.pk}/steps/a/result", body | {"result": GOOD}, If_Match="*").status_code == 202


def test_an_item_and_an_undo_are_held_to_the_promises_of_their_own_operations(office: Engine) -> None:
    job = stopped(office, SoldMany, {"list": [1, 2]})
    assert "/result/number" in refused(job, {**GOOD, "number": 1}, "a:1")
    assert give(job, GOOD, "a:1").state == "Completed"
    said.clear()
    sold = stopped(office, SoldAndKept)
    verbs.cancel(sold.pk, undo=True, actor="operator:ada", reason="they changed their mind")
    office.drain()
    assert list(refused(sold, GOOD, "a.undo")) == ["/result"]
    give(sold, {"refund": 12.5}, "a.undo")
    office.drain()
    assert state_of(sold) == "Compensated"
    check_books(sold)


def test_a_verdict_need_not_know_the_result_but_one_that_it_gives_has_to_fit(office: Engine) -> None:
    said[:] = [InDoubt("the line was cut")]
    job = stopped(office)
    decide = {"done": True, "actor": "operator:ada", "reason": "they have it"}
    with pytest.raises(InvalidInput) as refusal:
        verbs.verdict(job.pk, "a", result={**GOOD, "number": 1}, **decide)  # type: ignore[arg-type]
    assert [fault["pointer"] for fault in refusal.value.errors] == ["/result/number"]
    assert verbs.verdict(job.pk, "a", **decide).result is None  # type: ignore[arg-type]


def test_what_an_attempt_said_too_late_is_taken_up_as_it_stands(office: Engine) -> None:
    """Its worker had fitted it to what the operation promised then."""
    job = stopped(office)
    number = named(job, "a").attempt
    Attempt.objects.filter(step__job=job, number=number).update(late_outcome="completed", late_result={"old": 1})
    taken = verbs.give_result(job.pk, "a", attempt=number, actor="operator:ada", reason="it was there")
    assert (taken.result, taken.settled_by) == ({"old": 1}, "late")
