"""Two sessions meet at one job. Each race is staged: one holds the job's lock, the other is seen to wait, then it commits."""

import uuid
from functools import partial
from typing import Any

import pytest

from agents import draining, worker
from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, locked, named, state_of, states
from workflows import Workflow, step, transitions, verbs
from workflows.models import Attempt, Job, Step


class RaceChain(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])


class Diamond(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", input={"a": a})
    c = step("shop.c", compensation="shop.undo_c", input={"a": a})
    d = step("shop.d", input={"b": b, "c": c})


class OtherQueue(Workflow):
    a = step("shop.a")
    b = step("depot.b", after=[a])


def _claim(step: Step) -> Any:
    return transitions.claim(step.pk, token=uuid.uuid4(), worker="beside")


# --- claim -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [
        lambda job: verbs.pause(job.pk, actor="operator:x", reason="wait"),
        lambda job: verbs.cancel(job.pk, undo=False, actor="operator:x", reason="stop"),
        lambda job: verbs.cancel(job.pk, undo=True, actor="operator:x", reason="stop"),
    ],
    ids=["pause", "cancel", "cancel with undo"],
)
def test_a_claim_that_waited_for_the_lock_sees_what_was_done_under_it(engine: Engine, verb: Any) -> None:
    """SAS-064: cancel must not overwrite a freshly started step, nor a start slip past a cancel."""
    job = RaceChain.start()
    first = named(job, "a")
    with locked(job):
        claim = Beside(lambda: _claim(first)).until_blocked()
        verb(job)
    assert claim.result() is None
    assert named(job, "a").attempt == 0
    assert not Attempt.objects.exists()
    check_books(job)


def test_a_cancel_that_waited_for_a_claim_sees_the_running_step_and_waits_for_its_end(engine: Engine) -> None:
    """SAS-064"""
    job = RaceChain.start()
    with locked(job):
        cancel = Beside(lambda: verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")).until_blocked()
        claimed = engine.claim(named(job, "a"))
    cancel.result()
    assert state_of(job) == "Running"
    engine.settle(claimed)
    assert state_of(job) == "Compensating"
    assert "a.undo" in states(job)


def test_of_two_workers_that_claim_one_step_one_gets_it(engine: Engine) -> None:
    """SAS-030: two schedulers advance the same step."""
    job = RaceChain.start()
    first = named(job, "a")
    with locked(job):
        claims = [Beside(lambda: _claim(first)).until_blocked() for _ in range(2)]
    won = [claim.result() for claim in claims if claim.result() is not None]
    assert len(won) == 1
    assert named(job, "a").attempt == 1
    assert named(job, "a").token == won[0].token
    assert history(job) == ["job.opened", "step.claimed a"]
    check_books(job)


def test_a_claim_unless_locked_passes_over_a_locked_job_at_once(engine: Engine) -> None:
    job = RaceChain.start()
    first = named(job, "a")
    with locked(job):
        beside = Beside(lambda: transitions.claim(first.pk, token=uuid.uuid4(), worker="w", unless_locked=True))
        assert beside.result() is None
    assert engine.claim(first).attempt == 1


# --- join --------------------------------------------------------------------------------------------------------------


def test_a_join_whose_prerequisites_settle_at_once_starts_once_with_both_results(engine: Engine) -> None:
    """SAS-002, SAS-026: the join fires, once, and at once."""
    job = Diamond.start()
    engine.rings.clear()
    handed = engine.settle(engine.claim(named(job, "a")), '"ra"').handed_over
    assert handed.name == "b"
    c = engine.claim(named(job, "c"))
    with locked(job):
        settles = [
            Beside(lambda: engine.settle(handed, '"rb"')).until_blocked(),
            Beside(lambda: engine.settle(c, '"rc"')).until_blocked(),
        ]
    handed_over = [settled.result().handed_over for settled in settles if settled.result().handed_over]
    assert [claimed.name for claimed in handed_over] == ["d"]
    assert history(job).count("step.claimed d") == 1
    assert Step.objects.results(job.pk, handed_over[0].plan, {"b", "c"}) == ({"b": "rb", "c": "rc"}, set())
    engine.settle(handed_over[0])
    assert state_of(job) == "Completed"
    check_books(job)


def test_the_last_two_settles_of_a_job_close_it_once(engine: Engine) -> None:
    class Pair(Workflow):
        a = step("shop.a")
        b = step("shop.b")

    job = Pair.start()
    claims = [engine.claim(named(job, name)) for name in "ab"]
    with locked(job):
        settles = [Beside(partial(engine.settle, claimed)).until_blocked() for claimed in claims]
    assert sorted(settle.result().job_state for settle in settles) == ["Completed", "Running"]
    assert state_of(job) == "Completed"
    assert history(job).count("job.completed") == 1
    assert Job.objects.get(pk=job.pk).open_steps == 0
    check_books(job)


def test_a_settle_by_the_slow_road_beside_one_by_the_hot_road_still_joins_once(engine: Engine) -> None:
    """After doubt a step is settled by the ORM verbs; its sibling by the hot statement."""
    job = Diamond.start()
    handed = engine.settle(engine.claim(named(job, "a"))).handed_over
    c = engine.claim(named(job, "c"))
    with locked(job):
        slow = Beside(lambda: engine.settle(handed, follows_doubt=True)).until_blocked()
        hot = Beside(lambda: engine.settle(c)).until_blocked()
    slow.result(), hot.result()
    engine.drain()
    assert state_of(job) == "Completed"
    assert history(job).count("step.claimed d") == 1
    check_books(job)


# --- settle against expire -----------------------------------------------------------------------------------------------


def test_a_step_that_settled_while_expire_waited_stays_completed(engine: Engine) -> None:
    """SAS-013: the sweep must not overwrite a finished step. Candidates were read before; it looks again under the lock."""
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(11)
    overdue = list(Step.objects.overdue())
    assert [one.pk for one in overdue] == [claimed.step_id]
    engine.settle(claimed, hand_over=False)
    assert supervision.expire(claimed.step_id) is False
    assert states(job) == {"a": "Completed", "b": "NotStarted"}
    check_books(job)


def test_expire_passes_over_a_job_that_is_locked_and_takes_it_next_time(engine: Engine) -> None:
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(11)
    with locked(job):
        assert Beside(lambda: supervision.expire(claimed.step_id)).result() is None
    assert supervision.expire(claimed.step_id)


def test_a_settle_that_waited_for_expire_is_refused_and_kept_as_evidence(engine: Engine) -> None:
    """SAS-013, SAS-014, SAS-016: one outcome; what came late is kept."""
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(11)
    with locked(job):
        settle = Beside(lambda: engine.settle(claimed, '{"reference": "R1"}')).until_blocked()
        assert supervision.expire(claimed.step_id)
    assert settle.result() is None
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.in_doubt, attempt.late_outcome) == ("lost", True, "completed")
    assert attempt.late_result == {"reference": "R1"}
    assert states(job)["a"] == "NotStarted"
    assert "attempt.late a" in history(job)
    check_books(job)


def test_a_heartbeat_that_commits_while_expire_looks_on_saves_the_step(engine: Engine) -> None:
    """Expire has the job's lock and the step's old row before its eyes; the heartbeat takes no job lock."""
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(11)
    with locked(job):
        read_before = Step.objects.overdue().get()
        kept = Beside(lambda: transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held).result()
        assert kept == {claimed.token}
        assert supervision.expire(read_before.pk) is False
    assert states(job)["a"] == "Running"


def test_a_heartbeat_that_waits_for_expire_finds_its_step_gone(engine: Engine) -> None:
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(11)
    with locked(job):
        supervision.expire(claimed.step_id)
        beat = Beside(lambda: transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held).until_blocked()
    assert beat.result() == set()
    assert states(job)["a"] == "NotStarted"


def test_an_expire_that_waits_for_a_heartbeat_changes_nothing(engine: Engine) -> None:
    """The heartbeat holds the step's row, uncommitted; expire has read it as overdue, waits for the row, and sees it fresh."""
    from django.db import transaction

    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    engine.ahead(11)
    with transaction.atomic():
        transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held
        expire = Beside(lambda: supervision.expire(claimed.step_id)).until_blocked()
    assert not expire.result()
    assert states(job)["a"] == "Running"
    assert named(job, "a").token == claimed.token
    check_books(job)


# --- settle against cancel, pause, drain ---------------------------------------------------------------------------------


def test_a_settle_that_waited_for_a_cancel_is_recorded_and_then_undone(engine: Engine) -> None:
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    with locked(job):
        settle = Beside(lambda: engine.settle(claimed, '{"reference": "R1"}')).until_blocked()
        verbs.cancel(job.pk, undo=True, actor="client:x", reason="no")
    assert settle.result().handed_over is None
    assert states(job) == {"a": "Completed", "b": "Skipped", "a.undo": "NotStarted"}
    engine.drain()
    assert state_of(job) == "Compensated"
    assert named(job, "a").result == {"reference": "R1"}
    check_books(job)


def test_a_settle_that_waited_for_a_pause_hands_nothing_over(engine: Engine) -> None:
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    with locked(job):
        settle = Beside(lambda: engine.settle(claimed)).until_blocked()
        verbs.pause(job.pk, actor="operator:x", reason="wait")
    assert settle.result().handed_over is None
    assert settle.result().to_ring == []
    assert states(job) == {"a": "Completed", "b": "NotStarted"}
    engine.rings.clear()
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_pause_that_waited_for_a_hand_over_lets_the_running_step_end_and_no_more(engine: Engine) -> None:
    class Three(Workflow):
        a = step("shop.a")
        b = step("shop.b", after=[a])
        c = step("shop.c", after=[b])

    job = Three.start()
    claimed = engine.claim(named(job, "a"))
    with locked(job):
        pause = Beside(lambda: verbs.pause(job.pk, actor="operator:x", reason="wait")).until_blocked()
        handed = engine.settle(claimed).handed_over
    pause.result()
    assert handed.name == "b"
    assert engine.settle(handed).handed_over is None
    assert states(job) == {"a": "Completed", "b": "Completed", "c": "NotStarted"}
    check_books(job)


def test_a_hand_over_takes_no_step_of_another_queue_but_rings_for_it(engine: Engine) -> None:
    job = OtherQueue.start()
    settled = engine.settle(engine.claim(named(job, "a")))
    assert settled.handed_over is None
    assert settled.to_ring == [(named(job, "b").pk, "depot")]


def test_a_hand_over_takes_no_held_step(engine: Engine) -> None:
    job = RaceChain.start()
    claimed = engine.claim(named(job, "a"))
    Step.objects.filter(job=job, name="b").update(held=True)
    settled = engine.settle(claimed)
    assert (settled.handed_over, settled.to_ring) == (None, [])


def test_a_worker_that_drains_hands_nothing_over_and_leaves_a_doorbell(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = RaceChain.start()
    engine.says("shop.a", lambda call: monkeypatch.setattr(worker, "is_draining", lambda: True))
    ring = engine.rings.popleft()
    worker.work(*ring[2])
    assert states(job) == {"a": "Completed", "b": "NotStarted"}
    assert [arguments for _, _, arguments in engine.rings] == [["agents", named(job, "b").pk]]
    assert not draining.is_draining()


def test_a_worker_that_drains_claims_nothing_and_gives_the_doorbell_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = RaceChain.start()
    monkeypatch.setattr(worker, "is_draining", lambda: True)
    _, _, arguments = engine.rings.popleft()
    worker.work(*arguments)
    assert named(job, "a").attempt == 0
    assert [again for _, _, again in engine.rings] == [arguments]


def test_a_chain_costs_one_doorbell_a_job(engine: Engine) -> None:
    job = RaceChain.start()
    assert len(engine.rings) == 1
    engine.drain()
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.a", "shop.b"]


def test_a_retry_by_a_person_beside_the_remedy_of_the_supervisor_starts_one_attempt(engine: Engine) -> None:
    """SAS-030, SAS-105: both decide on the failed step; the second sees what the first did."""
    from agents import Transient
    from workflows.exceptions import WrongState

    engine.says("shop.a", Transient("busy"))
    job = RaceChain.start()
    _, _, arguments = engine.rings.popleft()
    worker.work(*arguments)
    failed = named(job, "a")
    with locked(job):
        person = Beside(lambda: verbs.retry_step(job.pk, "a", actor="operator:x", reason="again")).until_blocked()
        assert supervision.decide(failed.pk)
    with pytest.raises(WrongState):
        person.result()
    assert history(job).count("step.retried a") == 1
    check_books(job)
