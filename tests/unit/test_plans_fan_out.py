"""Steps that are done for every item of a list, and limits that hold over all jobs."""

from typing import Any

import pytest
from pydantic import BaseModel

from workflows import Limit, Workflow, given, item, step
from workflows.exceptions import InvalidStep, UnknownReference
from workflows.plans import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})


class Host(BaseModel):
    name: str
    rack: str


class Rollout(BaseModel):
    hosts: list[Host]
    more: list[Host] | None = None
    release: str
    anything: Any = None


def make(**body: object) -> type[Workflow]:
    return type(Workflow)("Example", (Workflow,), body)  # type: ignore[return-value]


def test_a_fan_out_waits_for_its_list() -> None:
    class Fleet(Workflow):
        waves = step("fleet.waves")
        early = step("host.deploy", each=waves["early"], at_once=20, tolerate=0.02, input={"host": item})
        rest = step("host.deploy", each=waves["rest"], after=[early])
        report = step("fleet.report", input={"first": early[0]["log"], "all": rest})

    early = Fleet.plan.step("early")
    assert (early.each, early.at_once, early.tolerate) == ({"$result": ["waves", "early"]}, 20, 0.02)
    assert early.input == {"host": {"$item": []}}
    assert Fleet.plan.prerequisites("early") == ("waves",)
    assert Fleet.plan.prerequisites("rest") == ("waves", "early")
    assert Fleet.plan.prerequisites("report") == ("early", "rest")


def test_a_list_may_be_written_out() -> None:
    planned = make(a=step("x.a", each=["web", given["extra"]], input=item)).plan.step("a")
    assert planned.each == ["web", {"$given": ["extra"]}]


@pytest.mark.parametrize("each", [given["hosts"], given["more"], given["anything"]], ids=repr)
def test_each_is_a_list_in_the_input_schema(each) -> None:
    make(input=Rollout, a=step("x.a", each=each, input={"host": item["name"]}))


@pytest.mark.parametrize(
    ("each", "read", "message"),
    [
        (given["release"], item, r'given\["release"\] is of type string where array is needed'),
        (given, item, r"given is of type object where array is needed"),
        (given["host"], item, r"Did you mean 'hosts'"),
        (given["hosts"], item["nme"], r'given\["hosts"\]\[0\] has no \'nme\'. Did you mean \'name\''),
        (given["more"], item["name"]["first"], r"It is of type string"),
    ],
)
def test_a_list_or_an_item_that_the_input_schema_cannot_have_is_refused(each, read, message: str) -> None:
    with pytest.raises(UnknownReference, match=message):
        make(input=Rollout, a=step("x.a", each=each, input={"x": read}))


@pytest.mark.parametrize("each", ["hosts", {"a": 1}, 7, True, ~given["hosts"]], ids=repr)
def test_each_takes_a_list_or_a_reference(each) -> None:
    with pytest.raises(InvalidStep, match="must be a list, or a reference to one"):
        step("x.a", each=each)


def test_an_item_belongs_to_a_list() -> None:
    with pytest.raises(InvalidStep, match=r'step \'a\': it reads item\["name"\], but has no each='):
        make(a=step("x.a", input={"deep": [item["name"]]}))
    with pytest.raises(InvalidStep, match=r"it reads item, but has no each="):
        make(a=step("x.a", limit=Limit(key=item, at_once=1)))


def test_what_is_looked_at_before_there_are_items_cannot_read_one() -> None:
    with pytest.raises(InvalidStep, match=r"each= reads item\["):
        make(a=step("x.a", each=item["parts"]))
    with pytest.raises(InvalidStep, match=r"when= reads item\["):
        make(a=step("x.a", each=given["hosts"], when=~item["done"]))


def test_how_many_and_how_many_failures_belong_to_a_list() -> None:
    with pytest.raises(InvalidStep, match="has at_once= but no each="):
        step("x.a", at_once=2)
    with pytest.raises(InvalidStep, match="has tolerate= but no each="):
        step("x.a", tolerate=2)


@pytest.mark.parametrize("at_once", [0, -1, True, 1.0, "2", given["n"]], ids=repr)
def test_at_once_is_a_whole_number_from_one(at_once) -> None:
    with pytest.raises(InvalidStep, match="at_once=.* must be a whole number of at least 1"):
        step("x.a", each=given["hosts"], at_once=at_once)
    with pytest.raises(InvalidStep, match="at_once=.* must be a whole number of at least 1"):
        Limit(key="k", at_once=at_once)


@pytest.mark.parametrize(("tolerate", "stored"), [(0, 0), (0.0, 0), (3, 3), (0.02, 0.02), (0.999, 0.999)])
def test_what_is_tolerated_is_a_number_of_items_or_a_share(tolerate, stored) -> None:
    planned = make(a=step("x.a", each=given["hosts"], tolerate=tolerate)).plan.step("a")
    assert (planned.tolerate, type(planned.tolerate)) == (stored, type(stored))


@pytest.mark.parametrize(
    ("tolerate", "advice"),
    [
        (-1, "number of items, as 3, or a share"),
        (-0.1, "a share of them below 1"),
        (1.0, "a share of them below 1"),
        (2.0, "Did you mean 2"),
        (1.5, "a share of them below 1"),
        (float("nan"), "a share"),
        (float("inf"), "a share"),
        (True, "a share"),
        ("2%", "a share"),
        (None, "a share"),
        (given["n"], "a share"),
    ],
    ids=repr,
)
def test_nonsense_cannot_be_tolerated(tolerate, advice: str) -> None:
    with pytest.raises(InvalidStep, match=f"tolerate=.*{advice}"):
        step("x.a", each=given["hosts"], tolerate=tolerate)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_limit_waits_for_what_its_key_reads() -> None:
    class Limited(Workflow):
        find = step("city.find")
        a = step("x.a", limit=Limit(key=find["city"], at_once=2))
        b = step("x.b", limit=Limit(key="the one printer", at_once=1))
        c = step("x.c", each=given["hosts"], limit=Limit(key=item["rack"], at_once=3))

    assert [planned.limit for planned in Limited.plan.steps] == [
        None,
        {"key": {"$result": ["find", "city"]}, "at_once": 2},
        {"key": "the one printer", "at_once": 1},
        {"key": {"$item": ["rack"]}, "at_once": 3},
    ]
    assert Limited.plan.prerequisites("a") == ("find",)


@pytest.mark.parametrize("key", ["", "k" * 201, "a\0b", None, 7, ["a"], ~given["x"]], ids=repr)
def test_the_key_of_a_limit_is_a_reference_or_a_text(key) -> None:
    with pytest.raises(InvalidStep, match="Limit: key="):
        Limit(key=key, at_once=1)


def test_a_limit_is_a_limit() -> None:
    with pytest.raises(InvalidStep, match="limit=3 must be a Limit"):
        step("x.a", limit=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidStep, match="Limit has no at_one=. Did you mean 'at_once'"):
        Limit(key="k", at_once=1, at_one=1)  # type: ignore[arg-type]
    with pytest.raises(UnknownReference, match="Did you mean 'release'"):
        make(input=Rollout, a=step("x.a", limit=Limit(key=given["releas"], at_once=1)))
