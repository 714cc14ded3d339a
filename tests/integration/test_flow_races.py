"""Two sessions meet at a gate, at a fan-out, at a wait. Staged: one holds the job's lock, the other is seen to wait."""

import uuid
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, locked, named, start, state_of, states
from tests.integration.test_flow_items import fan, item_states, items, under_way
from workflows import (
    Workflow,
    findings,
    given,
    item,
    reports,
    scheduler,
    signal,
    signals,
    step,
    timer,
    transitions,
    verbs,
)
from workflows.models import Job, Step

NO = transitions.Failure(kind="permanent", code="x", message="no")


class RaceGated(Workflow):
    a = step("shop.a")
    b = step("shop.b")
    c = step("shop.c", when=given["yes"], after=[a, b])
    t = timer(0, after=[a, b])


class RaceSpread(Workflow):
    a = step("shop.a", compensation="shop.undo_a", each=given["list"], at_once=1, input={"is": item})
    b = step("shop.b", input={"all": a})


class RaceWide(Workflow):
    a = step("shop.a", compensation="shop.undo_a", each=given["list"], tolerate=1, input={"is": item})
    b = step("shop.b", input={"all": a})


def end(engine: Engine) -> None:
    engine.drain()
    engine.pass_time(6, times=2)


def test_two_siblings_that_settle_at_once_open_the_gate_behind_them_once(engine: Engine) -> None:
    """SAS-026"""
    job = start(RaceGated, {"yes": True})
    engine.rings.clear()
    claims = [engine.claim(named(job, name)) for name in "ab"]
    with locked(job):
        settles = [Beside(partial(engine.settle, claimed)).until_blocked() for claimed in claims]
    for settle in settles:
        settle.result()
    end(engine)
    assert state_of(job) == "Completed"
    assert history(job).count("step.opened t") == 1
    assert history(job).count("step.claimed c") == 1
    check_books(job)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_sibling_by_the_slow_road_beside_one_by_the_hot_road_opens_the_gate_once(engine: Engine, slow: int) -> None:
    job = start(RaceGated, {})
    engine.rings.clear()
    claims = [engine.claim(named(job, name)) for name in "ab"]
    with locked(job):
        settles = [
            Beside(partial(engine.settle, claimed, follows_doubt=place == slow)).until_blocked()
            for place, claimed in enumerate(claims)
        ]
    for settle in settles:
        settle.result()
    end(engine)
    assert states(job) == {"a": "Completed", "b": "Completed", "c": "Skipped", "t": "Completed"}
    assert history(job).count("step.skipped c") == 1
    check_books(job)


def test_two_who_attend_to_one_job_skip_and_open_once(engine: Engine) -> None:
    job = start(RaceGated, {})
    engine.rings.clear()
    for name in "ab":
        Step.objects.filter(job=job, name=name).update(held=True)
    claims = []
    Step.objects.filter(job=job, name__in="ab").update(held=False)
    claims = [engine.claim(named(job, name)) for name in "ab"]
    engine.settle(claims[0])
    with locked(job):
        attending = [Beside(lambda: scheduler.attend_to_all(job.pk)).until_blocked() for _ in range(2)]
        engine.settle(claims[1])
    for one in attending:
        one.result()
    end(engine)
    assert history(job).count("step.skipped c") == 1
    assert history(job).count("step.opened t") == 1
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_cascade_that_waited_for_a_settle_sees_what_it_released(engine: Engine) -> None:
    class RaceCascade(Workflow):
        a = step("shop.a")
        b = step("shop.b", when=a["ok"], unmet="cascade")
        c = step("shop.c")
        d = step("shop.d", after=[b, c])

    job = start(RaceCascade)
    engine.rings.clear()
    first, other = engine.claim(named(job, "a")), engine.claim(named(job, "c"))
    with locked(job):
        settles = [
            Beside(lambda: engine.settle(first, '{"ok": false}')).until_blocked(),
            Beside(lambda: engine.settle(other)).until_blocked(),
        ]
    for settle in settles:
        settle.result()
    end(engine)
    assert states(job) == {"a": "Completed", "b": "Skipped", "c": "Completed", "d": "Skipped"}
    assert state_of(job) == "Completed"
    check_books(job)


# --- items ----------------------------------------------------------------------------------------------------------------


def test_the_last_items_that_settle_at_once_end_the_fan_out_once(engine: Engine) -> None:
    """SAS-002"""
    job = start(RaceWide, {"list": [0, 1, 2]})
    engine.rings.clear()
    claims = [engine.claim(one) for one in items(job)]
    with locked(job):
        settles = [Beside(partial(engine.settle, claimed)).until_blocked() for claimed in claims]
    for settle in settles:
        settle.result()
    end(engine)
    assert state_of(job) == "Completed"
    assert history(job).count("step.completed a") == 1
    assert history(job).count("step.claimed b") == 1
    check_books(job)


def test_the_last_item_that_fails_beside_the_last_that_settles_ends_the_fan_out_once(engine: Engine) -> None:
    job = start(RaceWide, {"list": [0, 1]})
    engine.rings.clear()
    failing, done = [engine.claim(one) for one in items(job)]
    reports.fail(failing, NO, sent=None)
    engine.rings.clear()
    with locked(job):
        settle = Beside(partial(engine.settle, done)).until_blocked()
        supervision.decide(failing.step_id)
    settle.result()
    end(engine)
    assert state_of(job) == "Completed"
    assert item_states(job) == ["Failed", "Completed"]
    check_books(job)


def test_an_item_that_settles_while_the_next_is_written_is_followed_by_it(engine: Engine, settings: Any) -> None:
    """The settle began before the batch was committed and cannot see its rows: whoever attends lets the next one go."""
    settings.SAG = {"batch": 1}
    job = start(RaceSpread, {"list": [0, 1]})
    engine.rings.clear()
    first = engine.claim(items(job)[0])
    with locked(job):
        settle = Beside(partial(engine.settle, first)).until_blocked()
        scheduler.attend(job.pk)
        assert items(job)[1].held
    settle.result()
    assert under_way(job) == 1
    assert not items(job)[1].held
    end(engine)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_place_left_empty_by_a_death_in_that_moment_is_filled_by_the_sweep(
    engine: Engine, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SAG = {"batch": 1}
    job = start(RaceSpread, {"list": [0, 1]})
    engine.rings.clear()
    first = engine.claim(items(job)[0])
    with monkeypatch.context() as dying:
        dying.setattr(scheduler, "attend_to_all", lambda job_id: None)
        with locked(job):
            settle = Beside(partial(engine.settle, first)).until_blocked()
            scheduler.attend(job.pk)
        settle.result()
    assert under_way(job) == 0
    engine.sweep()
    assert under_way(job) == 1
    end(engine)
    assert state_of(job) == "Completed"


def test_of_two_who_write_the_next_batch_each_item_is_written_once(engine: Engine, settings: Any) -> None:
    """SAS-058"""
    settings.SAG = {"batch": 2}
    job = start(RaceWide, {"list": list(range(6))})
    engine.rings.clear()
    with locked(job):
        writing = [Beside(lambda: scheduler.attend_to_all(job.pk)).until_blocked() for _ in range(2)]
    for one in writing:
        one.result()
    assert [one.index for one in items(job)] == list(range(6))
    check_books(job)


def test_a_settle_of_an_item_that_waited_for_the_failure_of_its_fan_out_lets_nothing_go(engine: Engine) -> None:
    class RaceTwo(Workflow):
        a = step("shop.a", each=given["list"], at_once=2, on_failure="hold")

    job = start(RaceTwo, {"list": list(range(4))})
    engine.rings.clear()
    failing, done = [engine.claim(one) for one in items(job)[:2]]
    reports.fail(failing, NO, sent=None)
    engine.rings.clear()
    with locked(job):
        settle = Beside(partial(engine.settle, done)).until_blocked()
        supervision.decide(failing.step_id)
        assert fan(job).state == "Failed"
    settle.result()
    assert item_states(job) == ["Failed", "Completed", "NotStarted", "NotStarted"]
    assert all(one.held for one in items(job)[2:])
    check_books(job)


def test_a_settle_of_an_item_that_waited_for_a_pause_lets_nothing_go(engine: Engine) -> None:
    job = start(RaceSpread, {"list": [0, 1]})
    engine.rings.clear()
    first = engine.claim(items(job)[0])
    with locked(job):
        settle = Beside(partial(engine.settle, first)).until_blocked()
        verbs.pause(job.pk, actor="operator:x", reason="wait")
    settle.result()
    assert items(job)[1].held
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    end(engine)
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_settle_of_an_item_that_waited_for_a_cancel_is_recorded_and_undone(engine: Engine) -> None:
    job = start(RaceSpread, {"list": [0, 1]})
    engine.rings.clear()
    first = engine.claim(items(job)[0])
    with locked(job):
        settle = Beside(partial(engine.settle, first)).until_blocked()
        verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    settle.result()
    end(engine)
    assert state_of(job) == "Compensated"
    assert item_states(job) == ["Completed", "Skipped"]
    assert item_states(job, "a.undo") == ["Completed"]
    check_books(job)


def test_a_claim_of_an_item_that_waited_for_the_failure_of_its_fan_out_gets_nothing(engine: Engine) -> None:
    class RaceTwo(Workflow):
        a = step("shop.a", each=given["list"], at_once=2, on_failure="hold")

    job = start(RaceTwo, {"list": [0, 1]})
    engine.rings.clear()
    failing, other = items(job)
    claimed = engine.claim(failing)
    reports.fail(claimed, NO, sent=None)
    with locked(job):
        claim = Beside(lambda: transitions.claim(other.pk, token=uuid.uuid4(), worker="w")).until_blocked()
        supervision.decide(failing.pk)
    assert claim.result() is None


# --- waits -----------------------------------------------------------------------------------------------------------------


class RacePaid(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    s = signal(after=[a])
    b = step("shop.b", input={"s": s})


def test_of_two_signals_at_once_the_first_is_taken_and_the_other_recorded(engine: Engine) -> None:
    job = start(RacePaid)
    engine.drain()
    with locked(job):
        sent = [Beside(partial(signals.send, job.pk, "s", n, actor="x")).until_blocked() for n in range(2)]
    assert sorted(one.result().outcome for one in sent) == ["lost", "taken"]
    end(engine)
    assert state_of(job) == "Completed"
    check_books(job)


def test_of_two_early_signals_at_once_one_is_kept(engine: Engine) -> None:
    job = start(RacePaid)
    with locked(job):
        sent = [Beside(partial(signals.send, job.pk, "s", n, actor="x")).until_blocked() for n in range(2)]
    assert sorted(one.result().outcome for one in sent) == ["kept", "lost"]
    end(engine)
    assert state_of(job) == "Completed"


def test_a_cancel_that_waited_for_a_signal_undoes_behind_it(engine: Engine) -> None:
    job = start(RacePaid)
    engine.drain()
    with locked(job):
        cancel = Beside(lambda: verbs.cancel(job.pk, undo=True, actor="x", reason="no")).until_blocked()
        signals.send(job.pk, "s", 1, actor="x")
    cancel.result()
    end(engine)
    assert states(job)["s"] == "Completed"
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_deadline_that_waited_for_the_last_settle_changes_nothing(engine: Engine) -> None:
    class RaceLimited(Workflow):
        deadline = timedelta(seconds=5)
        a = step("shop.a")

    job = start(RaceLimited)
    engine.rings.clear()
    claimed = engine.claim(named(job, "a"))
    engine.sweep()
    engine.ahead(6)
    with locked(job):
        assert Beside(lambda: findings.pass_deadline(job.pk)).result() is None
        engine.settle(claimed)
    assert findings.pass_deadline(job.pk) is False
    assert state_of(job) == "Completed"


def test_a_queue_time_out_that_looks_again_sees_that_a_worker_came(engine: Engine) -> None:
    class RaceQueued(Workflow):
        a = step("shop.a", queue_timeout=timedelta(seconds=5))

    job = start(RaceQueued)
    engine.rings.clear()
    engine.ahead(6)
    supervision.ring_due()
    engine.ahead(6)
    assert Step.objects.queued_too_long().get() == named(job, "a")
    claimed = engine.claim(named(job, "a"))
    assert findings.refuse_queued(claimed.step_id) is False
    engine.settle(claimed)
    assert state_of(job) == "Completed"
    assert Job.objects.get(pk=job.pk).open_steps == 0
