"""Whatever an operation returns or raises ends well: stored in the documented form, or in doubt and undone at once."""

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Any

import pydantic
import pytest
from django.db import connection

from agents import InDoubt, Permanent, Transient
from tests.integration.engine import Engine, check_books, history, named, state_of, states
from workflows import Workflow, step
from workflows.models import Attempt, Job, Step


class Stored(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", input={"a": a})


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: decimal.Decimal


class Room(pydantic.BaseModel):
    number: int
    since: datetime.date


def _numbers() -> Any:
    yield from (1, 2)


KEPT: dict[str, tuple[Any, Any]] = {
    "null": (None, None),
    "text": ("é \u2028 \U0001f600 </script>", "é \u2028 \U0001f600 </script>"),
    "text that looks like an escape": ("\\u0000 NaN Infinity", "\\u0000 NaN Infinity"),
    "big number": (2**70, 2**70),
    "float": ({"f": 0.1, "tiny": 5e-324}, {"f": 0.1, "tiny": 5e-324}),
    "decimal": (decimal.Decimal("12.50"), "12.50"),
    "decimal that is no number": (decimal.Decimal("NaN"), "NaN"),
    "date": (datetime.date(2027, 3, 4), "2027-03-04"),
    "time with zone": (datetime.datetime(2027, 3, 4, 5, 6, tzinfo=datetime.UTC), "2027-03-04T05:06:00Z"),
    "uuid": (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    "enum": (Colour.RED, "red"),
    "set": ({7}, [7]),
    "tuple": ((1, "2"), [1, "2"]),
    "generator": (_numbers(), [1, 2]),
    "bytes": (b"\xff\xfe", "__4="),
    "dataclass": (Point(1, decimal.Decimal("2.5")), {"x": 1, "y": "2.5"}),
    "model": (Room(number=4, since=datetime.date(2027, 1, 2)), {"number": 4, "since": "2027-01-02"}),
    "numbers as names": ({1: "one"}, {"1": "one"}),
}


@pytest.mark.parametrize("what", KEPT)
def test_a_result_is_stored_in_its_documented_form_and_reaches_the_next_step_in_it(engine: Engine, what: str) -> None:
    """SAS-053"""
    returned, kept = KEPT[what]
    engine.says("shop.a", returned)
    job = Stored.start()
    engine.drain()
    assert state_of(job) == "Completed"
    assert named(job, "a").result == kept
    assert engine.calls_of("shop.b")[0].input == {"a": kept}
    assert json.loads(_raw_result(job)) == kept


def _raw_result(job: Job) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT result::text FROM sag_workflows_step WHERE job_id = %s AND name = 'a'", [job.pk])
        return str(cursor.fetchone()[0])


def _cycle() -> list:
    cycle: list = []
    cycle.append({"again": cycle})
    return cycle


def _deep() -> list:
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    return deep


def _breaks_off() -> Any:
    yield 1
    raise KeyError("the vendor's cursor")


REFUSED: dict[str, Any] = {
    "NaN": lambda: {"price": float("nan")},
    "infinity": lambda: [float("-inf")],
    "NUL": lambda: "a\x00b",
    "NUL in a name": lambda: {"a\x00b": 1},
    "lone surrogate": lambda: "\ud800",
    "lone surrogate in a name": lambda: {"\udfff": 1},
    "cycle": _cycle,
    "too deep": _deep,
    "50 MB": lambda: "x" * 50_000_000,
    "a megabyte of two-byte letters": lambda: "é" * 600_000,
    "object": object,
    "exception": lambda: ValueError("returned, not raised"),
    "generator that raises": _breaks_off,
    "a number too long to be read again": lambda: 10**5000,
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_result_that_cannot_be_stored_is_in_doubt_and_undone_at_once(engine: Engine, what: str) -> None:
    """SAS-053, SAS-054: the call was made, so it is not made again."""
    engine.says("shop.a", lambda call: REFUSED[what]())
    job = Stored.start()
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.undo_a"]
    assert state_of(job) == "Compensated"
    attempt = Attempt.objects.get(step__name="a")
    assert (attempt.error_kind, attempt.error_code) == ("in_doubt", "result_not_storable")
    assert (attempt.in_doubt, attempt.resolved_by) == (True, "undo")
    assert len(attempt.error_message) < 20_000
    check_books(job)


def test_what_the_database_alone_refuses_is_in_doubt_and_undone_as_well(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that our own look let through: the settle is refused as data, and dealt with instead of tried for ever."""
    from agents import worker

    monkeypatch.setattr(worker, "to_store", lambda result, output: json.dumps(result))
    engine.says("shop.a", "a\x00b")
    job = Stored.start()
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.undo_a"]
    assert state_of(job) == "Compensated"
    check_books(job)


# --- what an operation raises ------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Careless(Permanent):
    """A user's own subclass that forgets its parent's initialiser."""

    def __init__(self, seats: int) -> None:
        self.seats = seats


ERRORS: dict[str, tuple[BaseException, str]] = {
    "NUL in the text": (Permanent("a\x00b"), "permanent"),
    "lone surrogate in the text": (Permanent("\ud800"), "permanent"),
    "5 MB of text": (Permanent("x" * 5_000_000), "permanent"),
    "NUL in the code": (Permanent("no", code="a\x00b"), "permanent"),
    "code of 5,000 letters": (Permanent("no", code="x" * 5_000), "permanent"),
    "an exception as the text": (Permanent(ValueError("no seat")), "permanent"),  # type: ignore[arg-type]
    "a number as the code": (Permanent("no", code=409), "permanent"),  # type: ignore[arg-type]
    "a subclass without its parent's fields": (Careless(3), "permanent"),
    "NUL in a foreign error": (RuntimeError("a\x00b"), "in_doubt"),
    "an error that cannot be printed": (Unprintable(), "in_doubt"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_is_stored_whatever_it_contains(engine: Engine, what: str) -> None:
    """SAS-054"""
    error, kind = ERRORS[what]
    engine.says("shop.a", error)
    job = Stored.start()
    ring = engine.rings.popleft()
    from agents import worker

    worker.work(*ring[2])
    failed = named(job, "a")
    assert (failed.state, failed.error_kind) == ("Failed", kind)
    assert len(failed.error_message) <= 10_100
    assert len(failed.error_code) <= 60
    engine.drain()
    engine.pass_time(70, times=6)
    assert state_of(job) == "Compensated"
    check_books(job)


@pytest.mark.parametrize("wait", [float("inf"), float("nan"), -5.0, 1e18, 3600.0])
def test_a_wait_that_the_other_side_asked_for_is_kept_within_the_cap(engine: Engine, wait: float) -> None:
    engine.says("shop.a", Transient("busy", retry_after=wait), {"ok": True})
    job = Stored.start()
    engine.drain()
    assert states(job)["a"] == "NotStarted"
    engine.pass_time(61)
    assert state_of(job) == "Completed"


def test_an_unknown_error_after_the_call_is_in_doubt_and_tried_again_under_the_same_key(engine: Engine) -> None:
    engine.says("shop.a", ZeroDivisionError("vendor library"), {"ok": True})
    job = Stored.start()
    engine.drain()
    engine.pass_time(70)
    assert state_of(job) == "Completed"
    first = Attempt.objects.get(step__name="a", number=1)
    assert (first.error_kind, first.error_code, first.in_doubt) == ("in_doubt", "ZeroDivisionError", True)
    assert first.resolved_by == "answer"
    assert len({call.idempotency_key for call in engine.calls_of("shop.a")}) == 1


def test_a_reference_that_leads_to_nothing_fails_its_step_for_good_before_any_call(engine: Engine) -> None:
    class Dangling(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", input={"n": a["number"]["of"]})

    engine.says("shop.a", {"number": None})
    job = Dangling.start()
    engine.drain()
    assert engine.asked() == ["shop.a", "shop.undo_a"]
    assert state_of(job) == "Compensated"
    assert named(job, "b").error_code == "unresolved_reference"
    assert not Attempt.objects.get(step__name="b").in_doubt


def test_what_an_operation_does_to_its_input_stays_with_it(engine: Engine) -> None:
    """The attempt records what was sent; the next step, handed over in this very process, reads what was stored."""

    def spoil(call: Any) -> Any:
        call.input["a"]["list"].append("spoilt")
        call.input["junk"] = object()
        for result in call.results.values():
            result["list"].append("spoilt")
        return {}

    class Shared(Workflow):
        a = step("shop.a")
        b = step("shop.b", input={"a": a})
        c = step("shop.c", input={"a": a}, after=[b])

    engine.says("shop.a", {"list": [1]})
    engine.says("shop.b", spoil)
    job = Shared.start()
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.c")[0].input == {"a": {"list": [1]}}
    assert Attempt.objects.get(step__name="b").input == {"a": {"list": [1]}}


def test_an_operation_that_no_worker_knows_fails_for_good(engine: Engine) -> None:
    job = Stored.start()
    Step.objects.filter(job=job, name="a").update(operation="shop.zz")
    engine.drain()
    assert named(job, "a").error_code == "unknown_operation"
    assert state_of(job) == "Compensated"
    assert engine.asked() == []


def test_in_doubt_and_transient_and_permanent_are_told_apart(engine: Engine) -> None:
    engine.says("shop.a", InDoubt("lost"), Transient("busy"), Permanent("gone", code="gone"))
    job = Stored.start()
    engine.drain()
    engine.pass_time(70, times=3)
    attempts = Attempt.objects.filter(step__job=job, step__name="a").order_by("number")
    assert [(one.error_kind, one.in_doubt) for one in attempts] == [
        ("in_doubt", True),
        ("transient", False),
        ("permanent", False),
    ]
    assert "step.remedy a" in history(job)
