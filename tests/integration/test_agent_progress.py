"""What passes between a running call and the store at a heartbeat: how far it has come, and that it should stop."""

from typing import Any

import pytest
from django.db import DatabaseError

from agents import Agent, Call, Permanent, worker
from agents.heartbeat import Heart
from agents.tasks import row_of
from tests.integration.engine import Beside, Engine, named, state_of
from tests.waiting import wait_until
from workflows import Workflow, given, item, step, transitions, verbs
from workflows.conf import conf
from workflows.models import Attempt, Step

post = Agent("post")


@post.operation(atomic=True)
def write(call: Call) -> Any:
    call.progress(3, 3, "written")


class One(Workflow):
    a = step("shop.a", compensation="shop.undo_a")


@pytest.fixture
def quick(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """With a heart that beats often."""
    monkeypatch.setattr(type(conf), "heartbeat", 0.05, raising=False)
    monkeypatch.setattr(worker, "heart", Heart())
    return engine


def test_progress_is_seen_while_the_call_runs(quick: Engine) -> None:
    seen: list[Any] = []

    def report(call: Call) -> Any:
        for done in (1, 2):
            call.progress(done, 10, "copying", bytes=done * 100, file="a.txt")
            wait_until(lambda done=done: (named(job, "a").progress or {}).get("done") == done, what="it is stored")
            seen.append(named(job, "a").progress)

    quick.says("shop.a", report)
    job = One.start()
    quick.drain()
    assert seen[1] == {"done": 2, "total": 10, "message": "copying", "bytes": 200, "file": "a.txt"}
    assert state_of(job) == "Completed"


@pytest.mark.parametrize("said", [None, Permanent("no")], ids=["success", "failure"])
def test_the_last_word_of_a_call_shorter_than_a_heartbeat_is_kept(engine: Engine, said: Any) -> None:
    def report(call: Call) -> Any:
        call.progress(1, 2)
        call.progress(2, 2, "done")
        if said:
            raise said

    engine.says("shop.a", report)
    job = One.start()
    engine.drain()
    assert named(job, "a").progress == {"done": 2, "total": 2, "message": "done"}


def test_the_last_word_of_an_atomic_operation_is_kept(engine: Engine) -> None:
    class Posted(Workflow):
        a = step("post.write")

    transitions.announce(row_of(post))
    job = Posted.start()
    engine.drain()
    assert (state_of(job), named(job, "a").progress["message"]) == ("Completed", "written")


def test_a_call_that_reports_nothing_costs_no_statement(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[Any] = []
    monkeypatch.setattr(transitions, "heartbeat", beats.append)
    job = One.start()
    engine.drain()
    assert (state_of(job), beats) == ("Completed", [])


def test_a_last_word_that_the_store_does_not_take_does_not_cost_the_outcome(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(held: Any) -> Any:
        raise DatabaseError("not now")

    monkeypatch.setattr(transitions, "heartbeat", refuse)
    engine.says("shop.a", lambda call: call.progress(1))
    job = One.start()
    engine.drain()
    assert (state_of(job), named(job, "a").progress) == ("Completed", None)


REFUSED: dict[str, Any] = {
    "text for a number": lambda call: call.progress("1"),
    "NaN": lambda call: call.progress(float("nan")),
    "a truth value": lambda call: call.progress(True),
    "infinity": lambda call: call.progress(total=float("inf")),
    "an object": lambda call: call.progress(rows=object()),
    "NUL": lambda call: call.progress(file="a\x00b"),
    "a list": lambda call: call.progress(rows=[1]),
    "no text for a message": lambda call: call.progress(message=7),
    "too much": lambda call: call.progress(file="x" * 4000),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_shown_is_refused_with_a_clear_word(engine: Engine, what: str) -> None:
    said: list[str] = []

    def report(call: Call) -> Any:
        with pytest.raises(ValueError, match=r"progress\(\)") as refused:
            REFUSED[what](call)
        said.append(str(refused.value))

    engine.says("shop.a", report)
    job = One.start()
    engine.drain()
    assert len(said) == 1
    assert (state_of(job), named(job, "a").progress) == ("Completed", None)


def test_a_message_is_cut_to_what_can_be_shown(engine: Engine) -> None:
    engine.says("shop.a", lambda call: call.progress(message="a\x00" + "é" * 5000))
    job = One.start()
    engine.drain()
    message = named(job, "a").progress["message"]
    assert message.startswith("a\N{REPLACEMENT CHARACTER}é")
    assert len(message) == 500


# --- stopping ------------------------------------------------------------------------------------------------------------


def test_a_running_call_hears_at_a_heartbeat_that_its_job_stops(quick: Engine) -> None:
    def work(call: Call) -> Any:
        assert not call.stopping
        verbs.cancel(call.job_id, undo=True, actor="ada", reason="changed my mind")
        wait_until(lambda: call.stopping, what="the call heard it")
        return {"stopped": "early"}

    quick.says("shop.a", work)
    job = One.start()
    quick.drain()
    assert named(job, "a").result == {"stopped": "early"}
    assert state_of(job) == "Compensated"


def test_a_call_whose_step_was_taken_away_hears_it_too(quick: Engine) -> None:
    heard: list[float] = []

    def work(call: Call) -> Any:
        Beside(
            lambda: Step.objects.filter(pk=call.step_id).update(token="00000000-0000-0000-0000-000000000001")
        ).result()
        wait_until(lambda: call.stopping, what="the call heard it")
        heard.append(call.may_send_until)
        raise Permanent("left")

    quick.says("shop.a", work)
    One.start()
    quick.drain()
    assert heard == [0.0]
    assert Attempt.objects.get().late_outcome == "failed"


def test_an_undo_is_not_told_to_stop(quick: Engine) -> None:
    beats: list[Any] = []

    def undo(call: Call) -> Any:
        beats.append(transitions.heartbeat({call.token: (call.step_id, None)}))

    quick.says("shop.undo_a", undo)
    quick.says("shop.a", lambda call: verbs.cancel(call.job_id, undo=True, actor="ada", reason=""))
    job = One.start()
    quick.drain()
    assert state_of(job) == "Compensated"
    assert (len(beats[0].held), beats[0].stopping) == (1, set())


# --- what a call knows ---------------------------------------------------------------------------------------------------


class Spread(Workflow):
    hosts = step("shop.a")
    deploy = step("shop.b", compensation="shop.undo_b", each=hosts["list"], input={"host": item["name"]})
    last = step("shop.c", input={"deployed": deploy, "day": given["day"]})


def test_an_item_knows_what_it_is_about_and_its_undo_knows_it_too_and_why(engine: Engine) -> None:
    engine.says("shop.a", {"list": [{"name": "x"}, {"name": "y"}]})
    engine.says("shop.b", lambda call: call.item["name"])
    engine.says("shop.c", Permanent("sold out"))
    job = Spread.start({"day": 1})
    engine.drain()
    deployed = sorted(engine.calls_of("shop.b"), key=lambda call: call.index)
    assert [(call.index, call.item, call.input) for call in deployed] == [
        (0, {"name": "x"}, {"host": "x"}),
        (1, {"name": "y"}, {"host": "y"}),
    ]
    assert engine.calls_of("shop.c")[0].input == {"deployed": ["x", "y"], "day": 1}
    assert state_of(job) == "Compensated"
    undone = sorted(engine.calls_of("shop.undo_b"), key=lambda call: call.index)
    assert [(call.index, call.item, call.input, call.undoes.result) for call in undone] == [
        (0, {"name": "x"}, {"host": "x"}, "x"),
        (1, {"name": "y"}, {"host": "y"}, "y"),
    ]
    assert undone[0].undoes.reason == "last: sold out"


def test_what_a_skipped_step_left_is_null_to_those_behind_it_and_to_their_undo(engine: Engine) -> None:
    class Maybe(Workflow):
        a = step("shop.a", when=given["wanted"])
        b = step("shop.b", compensation="shop.undo_b", input={"a": a["x"]})
        c = step("shop.c", after=[b])

    engine.says("shop.c", Permanent("no"))
    job = Maybe.start({"wanted": False})
    engine.drain()
    assert engine.calls_of("shop.b")[0].input == {"a": None}
    assert engine.calls_of("shop.b")[0].results == {}
    assert engine.calls_of("shop.undo_b")[0].input == {"a": None}
    assert state_of(job) == "Compensated"


def test_where_an_alternative_was_done_its_result_counts(engine: Engine) -> None:
    class Other(Workflow):
        a = step("shop.a", otherwise=step("kiosk.a"))
        b = step("shop.b", input={"room": a["room"]})

    engine.says("shop.a", Permanent("full"))
    engine.says("kiosk.a", {"room": 4})
    job = Other.start()
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.calls_of("shop.b")[0].input == {"room": 4}
