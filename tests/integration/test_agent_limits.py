"""Limits of agents and keys, counted from the rows: never exceeded, never leaked, and nobody else waits for them."""

import threading
import time
import uuid
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import OperationalError, transaction

from agents import Agent, Call, Defer, Snooze, draining, worker
from agents.tasks import row_of
from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, locked, named, state_of
from tests.waiting import wait_until
from workflows import Limit, Workflow, given, reports, signals, step, transitions, verbs
from workflows.models import Agent as AnnouncedAgent
from workflows.models import Job, Step

LOOK_ROUND = worker._look_round

narrow = Agent("narrow", at_once=2)
paced = Agent("paced", rate=(5, timedelta(seconds=1)))
slow = Agent("slow", rate=(1, timedelta(minutes=1)))
called: list[Call] = []
script: list[Any] = []


def _serve(call: Call) -> Any:
    called.append(call)
    if not script:
        return {}
    said = script[0]
    if isinstance(said, BaseException):
        raise said
    return said(call)


for _agent in (narrow, paced, slow):

    @_agent.operation
    def go(call: Call) -> Any:
        return _serve(call)


class Narrow(Workflow):
    a = step("narrow.go", timeout=timedelta(seconds=60))


class Paced(Workflow):
    a = step("paced.go")


class Free(Workflow):
    a = step("shop.a")


class Keyed(Workflow):
    a = step("shop.a", limit=Limit(key=given["who"], at_once=1))


class KeyedElsewhere(Workflow):
    """The same key in another queue."""

    a = step("depot.a", limit=Limit(key=given["who"], at_once=1))


class KeyedItems(Workflow):
    a = step("shop.a", each=given["list"], limit=Limit(key="ada", at_once=1))


@pytest.fixture
def limited(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Workers that look round, as real ones do."""
    monkeypatch.setattr(worker, "_look_round", LOOK_ROUND)
    worker._process.found_nothing.clear()
    for agent in (narrow, paced, slow):
        transitions.announce(row_of(agent))
    called.clear()
    script.clear()
    return engine


def _hold(job: Job) -> Any:
    """Claim its first step as another worker does, and stay in it."""
    claimed, _, _ = reports.claim_within_limits(named(job, "a").pk, token=uuid.uuid4(), worker="other")
    return claimed


def test_the_limits_of_an_agent_are_announced_and_take_effect_on_steps_that_wait(limited: Engine) -> None:
    rows = {row.name: row for row in AnnouncedAgent.objects.all()}
    assert (rows["narrow"].at_once, rows["narrow"].rate_count) == (2, None)
    assert (rows["paced"].rate_count, rows["paced"].rate_period) == (5, timedelta(seconds=1))
    assert not rows["shop"].has_limit
    job = Free.start()
    rows["shop"].at_once = 1
    transitions.announce(rows["shop"])
    assert named(job, "a").limited


def test_no_more_calls_run_at_once_than_the_agent_bears(limited: Engine) -> None:
    """SAS-098"""
    jobs = [Narrow.start() for _ in range(6)]
    limited.rings.clear()
    running: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    def count(call: Call) -> Any:
        with lock:
            running.append(1)
            most.append(len(running))
        limited_by_rows = Step.objects.filter(agent="narrow", state="Running").count()
        most.append(limited_by_rows)
        with lock:
            running.pop()

    script.append(count)
    workers = [Beside(lambda: worker.work("agents", None)) for _ in range(4)]
    for one in workers:
        one.result()
    limited.drain()
    assert max(most) <= 2
    assert len(called) == 6
    assert {state_of(job) for job in jobs} == {"Completed"}


def test_a_full_limit_is_refused_and_free_again_when_a_holder_ends(limited: Engine) -> None:
    first, second, third = Narrow.start(), Narrow.start(), Narrow.start()
    held = _hold(first)
    assert _hold(second) is not None
    assert _hold(third) is None
    limited.settle(held)
    assert _hold(third) is not None


def test_a_holder_that_dies_frees_its_place_when_its_lease_ends(limited: Engine) -> None:
    """SAS-097"""
    dead = [Narrow.start(), Narrow.start()]
    assert all(_hold(job) for job in dead)
    waiting = Narrow.start()
    limited.drain()
    assert (named(waiting, "a").state, called) == ("NotStarted", [])
    limited.ahead(11)
    limited.sweep()
    limited.pass_time(6)
    assert state_of(waiting) == "Completed"
    limited.pass_time(70)
    assert {state_of(job) for job in dead} == {"Completed"}


def test_steps_behind_a_full_limit_do_not_wait_for_it(limited: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _hold(Narrow.start())
    assert _hold(Narrow.start())
    blocked = [Narrow.start() for _ in range(45)]  # more than one look finds
    free = Free.start()
    limited.rings.clear()
    counted: list[int] = []
    real = reports.claim_within_limits
    monkeypatch.setattr(reports, "claim_within_limits", lambda *args, **how: counted.append(1) or real(*args, **how))
    worker.work("agents", None)
    assert state_of(free) == "Completed"
    assert {named(job, "a").state for job in blocked} == {"NotStarted"}
    assert (called, len(counted)) == ([], 1)  # one of them is asked for, not each


def test_the_limit_of_a_key_holds_for_each_value_of_it(limited: Engine) -> None:
    jobs = {who: [Keyed.start({"who": who}) for _ in range(2)] for who in ("ada", "bob")}
    assert _hold(jobs["ada"][0])
    assert _hold(jobs["ada"][1]) is None
    assert _hold(jobs["bob"][0])
    limited.rings.clear()
    free = Free.start()
    worker.work("agents", named(free, "a").pk)
    assert state_of(free) == "Completed"
    assert [named(job, "a").state for job in (jobs["ada"][1], jobs["bob"][1])] == ["NotStarted"] * 2


def test_a_ring_for_a_step_that_was_full_then_is_answered_by_who_frees_the_place(limited: Engine) -> None:
    """No ring is needed for what waits: the worker whose call ends looks round."""
    jobs = [Narrow.start() for _ in range(5)]
    limited.rings.clear()
    worker.work("agents", named(jobs[0], "a").pk)
    assert {state_of(job) for job in jobs} == {"Completed"}


def test_a_place_that_is_freed_in_the_middle_of_a_chain_is_rung_for(limited: Engine) -> None:
    class LimitedChain(Workflow):
        a = step("narrow.go")
        b = step("shop.b", after=[a])

    rung: list[bool] = []
    limited.says("shop.b", lambda call: rung.append(("agents.tasks.work", "agents", ["agents", None]) in limited.rings))
    job = LimitedChain.start()
    limited.drain()
    assert (state_of(job), rung) == ("Completed", [True])


def test_a_snoozed_step_holds_no_place_and_a_deferred_one_does_until_its_callback(limited: Engine) -> None:
    script.append(Snooze(60))
    snoozed = Narrow.start()
    limited.drain()
    script[0] = Defer()
    deferred = [Narrow.start(), Narrow.start()]
    limited.drain()
    assert [named(job, "a").state for job in [snoozed, *deferred]] == ["NotStarted", "Running", "Running"]
    script.clear()
    waiting = Narrow.start()
    limited.drain()
    assert state_of(waiting) == "Running"
    assert named(waiting, "a").state == "NotStarted"
    signals.call_back(called[1].callback_token, {"result": None})
    limited.drain()
    assert state_of(waiting) == "Completed"


def test_a_limited_claim_whose_answer_was_lost_is_found_by_its_token(
    limited: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-089's kind"""
    real = reports.claim_within_limits
    lost: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        if not lost:
            lost.append(1)
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(reports, "claim_within_limits", broken)
    job = Narrow.start()
    limited.drain()
    assert (lost, state_of(job), len(called)) == ([1], "Completed", 1)
    assert named(job, "a").attempt == 1
    check_books(job)


def test_a_job_that_is_locked_is_passed_over_in_a_look_round(limited: Engine) -> None:
    busy, free = Narrow.start(), Narrow.start()
    limited.rings.clear()
    with locked(busy):
        Beside(lambda: worker.work("agents", None)).result()
        assert named(free, "a").state == "Completed"
        assert named(busy, "a").state == "NotStarted"


def test_a_draining_worker_takes_nothing_under_a_limit(limited: Engine) -> None:
    job = Narrow.start()
    limited.rings.clear()
    draining._since[0] = 1.0
    try:
        worker._look_round("agents")
    finally:
        draining._since[0] = 0.0
    assert named(job, "a").state == "NotStarted"


# --- one key in two queues -----------------------------------------------------------------------------------------------

AT_THE_DEPOT = ("agents.tasks.work", "depot", ["depot", None])


def _waits_at_the_depot(limited: Engine, who: str = "ada") -> Job:
    """A job that waits for a place under this key, and whose ring has been answered: no room."""
    waiting = KeyedElsewhere.start({"who": who})
    limited.rings.clear()
    worker.work("depot", named(waiting, "a").pk)
    assert named(waiting, "a").state == "NotStarted"
    limited.rings.clear()
    return waiting


def _in_doubt(limited: Engine, claimed: Any) -> None:
    reports.fail(claimed, transitions.Failure(kind="in_doubt", code="x", message="lost", in_doubt=True), sent=None)


def _expired(limited: Engine, claimed: Any) -> None:
    limited.ahead(11)
    limited.sweep()


BY_HAND: dict[str, Any] = {"actor": "operator:x", "reason": "it hangs"}


@pytest.mark.parametrize(
    "let_go",
    [
        lambda limited, claimed: limited.settle(claimed),
        _in_doubt,
        lambda limited, claimed: reports.release(claimed, delay=timedelta(seconds=60), reason="later"),
        lambda limited, claimed: verbs.cancel_step(claimed.job_id, "a", **BY_HAND),
        lambda limited, claimed: verbs.give_result(claimed.job_id, "a", result=1, **BY_HAND),
        _expired,
    ],
    ids=["completed", "failed", "snoozed", "cancelled", "completed by hand", "lease over"],
)
def test_a_place_under_a_key_is_rung_for_in_every_queue_that_wants_it(limited: Engine, let_go: Any) -> None:
    claimed = _hold(Keyed.start({"who": "ada"}))
    waiting = _waits_at_the_depot(limited)
    let_go(limited, claimed)
    assert limited.rings.count(AT_THE_DEPOT) == 1
    worker.work("depot", None)
    assert state_of(waiting) == "Completed"


def test_a_worker_that_frees_a_place_under_a_key_lets_the_other_queue_go_on(limited: Engine) -> None:
    waiting: list[Job] = []
    limited.says("shop.a", lambda call: waiting.append(_waits_at_the_depot(limited)))
    job = Keyed.start({"who": "ada"})
    limited.drain()
    assert [state_of(one) for one in (job, *waiting)] == ["Completed"] * 2


def test_an_item_that_frees_a_place_under_a_key_lets_the_other_queue_go_on(limited: Engine) -> None:
    job = KeyedItems.start({"list": [1]})
    limited.rings.clear()
    claimed, _, _ = reports.claim_within_limits(
        Step.objects.get(job=job, index=0).pk, token=uuid.uuid4(), worker="other"
    )
    waiting = _waits_at_the_depot(limited)
    limited.settle(claimed)
    limited.drain()
    assert state_of(waiting) == "Completed"


def test_no_other_queue_is_rung_for_a_key_that_nobody_there_waits_for(limited: Engine) -> None:
    bob = _hold(Keyed.start({"who": "bob"}))
    assert _hold(Keyed.start({"who": "ada"}))
    _waits_at_the_depot(limited)
    limited.settle(bob)
    free = _hold(Keyed.start({"who": "eve"}))
    limited.rings.clear()
    limited.settle(free)
    assert AT_THE_DEPOT not in limited.rings


def test_a_step_that_comes_while_the_place_is_being_freed_is_rung_for_as_well(limited: Engine) -> None:
    """It found no place, since the other transaction had not committed, and that one had looked round already."""
    job = Keyed.start({"who": "ada"})
    assert _hold(job)
    with transaction.atomic():
        verbs.cancel_step(job.pk, "a", **BY_HAND)
        waiting = Beside(lambda: _waits_at_the_depot(limited)).result()
    assert AT_THE_DEPOT in limited.rings
    limited.drain()
    assert state_of(waiting) == "Completed"


# --- rates ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def waits(limited: Engine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of workers for their turn: the test's clock moves on instead."""
    waits: list[float] = []
    sleep = time.sleep

    def wait(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            sleep(seconds)  # the heartbeat's
            return
        waits.append(seconds)
        limited.ahead(seconds + 0.001)

    monkeypatch.setattr(time, "sleep", wait)
    return waits


def test_calls_under_a_rate_begin_no_closer_than_it_allows(limited: Engine, waits: list[float]) -> None:
    jobs = [Paced.start() for _ in range(5)]
    limited.rings.clear()
    worker.work("agents", None)
    assert {state_of(job) for job in jobs} == {"Completed"}
    begun = sorted(Step.objects.filter(agent="paced").values_list("started_at", flat=True))
    assert all(later - sooner >= timedelta(seconds=0.2) for sooner, later in pairwise(begun))
    assert all(0 <= one <= 0.25 for one in waits)
    assert len(waits) >= 4


def test_what_has_no_rate_is_done_before_anybody_waits_for_a_turn(limited: Engine, waits: list[float]) -> None:
    done_at: list[int] = []
    limited.says("shop.a", lambda call: done_at.append(len(waits)))
    for _ in range(4):
        Paced.start()
    free = [Free.start() for _ in range(3)]
    limited.rings.clear()
    worker.work("agents", None)
    assert {state_of(job) for job in free} == {"Completed"}
    assert done_at == [0, 0, 0]


def test_a_worker_does_not_wait_for_ever_and_has_itself_rung_for_again(limited: Engine, waits: list[float]) -> None:
    jobs = [Paced.start() for _ in range(30)]
    limited.rings.clear()
    worker.work("agents", None)
    assert len(waits) == worker._WAITS_FOR_A_TURN
    left = [job for job in jobs if state_of(job) != "Completed"]
    assert left
    assert ("agents.tasks.work", "agents", ["agents", None]) in limited.rings
    worker._process.found_nothing.clear()
    limited.drain()
    assert {state_of(job) for job in jobs} == {"Completed"}


def test_a_turn_that_is_far_away_holds_no_worker_and_is_rung_for_when_it_comes(
    limited: Engine, waits: list[float]
) -> None:
    class LimitedSlow(Workflow):
        a = step("slow.go")

    first, second = LimitedSlow.start(), LimitedSlow.start()
    limited.drain()
    assert [state_of(job) for job in (first, second)].count("Completed") == 1
    assert waits == []
    limited.ahead(50)
    supervision.ring_due()
    limited.drain()
    assert len(called) == 1
    limited.pass_time(11)
    assert [state_of(job) for job in (first, second)] == ["Completed"] * 2


def test_a_worker_that_starts_does_not_forget_when_the_next_call_may_begin(limited: Engine) -> None:
    """SAS-098: each restart would let one call too many through."""

    class LimitedSlow(Workflow):
        a = step("slow.go")

    first, second = LimitedSlow.start(), LimitedSlow.start()
    assert _hold(first)
    transitions.announce(row_of(slow))
    assert AnnouncedAgent.objects.get(name="slow").rate_next is not None
    assert _hold(second) is None


def test_two_workers_that_want_the_last_place_at_the_same_moment_do_not_both_get_it(limited: Engine) -> None:
    """SAS-098: whoever counts holds the agent's row."""
    assert _hold(Narrow.start())
    one, other = Narrow.start(), Narrow.start()
    with transaction.atomic():
        assert _hold(one)
        beside = Beside(lambda: _hold(other)).until_blocked()
    assert beside.result() is None
    wait_until(lambda: Step.objects.filter(agent="narrow", state="Running").count() == 2, what="two run")
