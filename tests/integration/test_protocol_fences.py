"""The fence: an attempt's number and token. Who holds it may write; who does not is heard as evidence only."""

import uuid
from typing import Any

import pytest
from django.db import OperationalError, connection

from agents import Transient, worker
from agents.call import LeaseLost
from tests.integration.engine import Engine, check_books, history, named, state_of, states
from workflows import Retry, Workflow, reports, statements, step, transitions, verbs
from workflows.models import Attempt, Job, Step
from workflows.transitions import Failure

FAILURE = Failure(kind="transient", code="busy", message="busy")


class Fenced(Workflow):
    a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=3))
    b = step("shop.b", compensation="shop.undo_b", after=[a])


def test_the_settle_of_an_old_attempt_changes_nothing_and_is_kept_on_its_attempt(engine: Engine) -> None:
    """SAS-014, SAS-016"""
    job = Fenced.start()
    old = engine.claim(named(job, "a"), "first")
    engine.ahead(11)
    engine.sweep()
    engine.ahead(2)
    new = engine.claim(named(job, "a"), "second")
    assert engine.settle(old, '{"reference": "OLD"}') is None
    step = named(job, "a")
    assert (step.state, step.attempt, step.token, step.result) == ("Running", 2, new.token, None)
    evidence = Attempt.objects.get(step=step, number=1)
    assert (evidence.late_outcome, evidence.late_result) == ("completed", {"reference": "OLD"})
    assert evidence.late_at is not None
    assert engine.settle(new, '{"reference": "NEW"}', follows_doubt=True) is not None
    assert named(job, "a").result == {"reference": "NEW"}
    check_books(job)


def test_a_late_failure_does_not_bring_a_dead_job_back(engine: Engine) -> None:
    """SAS-015: attempts stay at the allowance, one undo."""

    class Short(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", compensation="shop.undo_b", after=[a], retry=Retry(attempts=3))

    job = Short.start()
    engine.settle(engine.claim(named(job, "a")), hand_over=False)
    engine.rings.clear()
    old = engine.claim(named(job, "b"))
    engine.ahead(31)
    engine.sweep()
    for _ in range(2):
        engine.ahead(31)
        last = engine.claim(named(job, "b"))
        assert reports.fail(last, FAILURE, sent=None)
        engine.drain()
    engine.pass_time(70, times=2)
    before = Job.objects.get(pk=job.pk)
    assert before.state == "Compensated"
    assert not reports.fail(old, FAILURE, sent=None)
    engine.drain()
    engine.sweep()
    after = Job.objects.get(pk=job.pk)
    assert (after.state, after.finished_at) == (before.state, before.finished_at)
    assert named(job, "b").attempt == 3
    assert history(job).count("job.compensating") == 1
    assert Attempt.objects.get(step__name="b", number=1).late_outcome == "failed"
    check_books(job)


def test_a_wrong_token_of_the_right_attempt_is_refused(engine: Engine) -> None:
    from dataclasses import replace

    job = Fenced.start()
    claimed = engine.claim(named(job, "a"))
    assert engine.settle(replace(claimed, token=uuid.uuid4())) is None
    assert states(job)["a"] == "Running"
    assert transitions.heartbeat({uuid.uuid4(): (claimed.step_id, None)}).held == set()


def test_a_settle_repeated_answers_as_the_first_time_with_the_step_handed_over(engine: Engine) -> None:
    """SAS-089: the commit went through, its answer was lost."""
    job = Fenced.start()
    claimed = engine.claim(named(job, "a"))
    token = uuid.uuid4()
    first = engine.settle(claimed, next_token=token)
    again = engine.settle(claimed, next_token=token)
    assert first.handed_over is not None
    assert again == first
    assert history(job) == ["job.opened", "step.claimed a", "step.completed a", "step.claimed b"]
    check_books(job)


def test_the_last_settle_repeated_says_that_the_job_is_completed(engine: Engine) -> None:
    """SAS-089"""
    job = Fenced.start()
    last = engine.settle(engine.claim(named(job, "a"))).handed_over
    first = engine.settle(last)
    assert engine.settle(last) == first
    assert first.job_state == "Completed"
    assert Attempt.objects.filter(late_at__isnull=False).count() == 0
    check_books(job)


def test_a_failure_repeated_is_taken_once(engine: Engine) -> None:
    """SAS-089"""
    job = Fenced.start()
    claimed = engine.claim(named(job, "a"))
    assert reports.fail(claimed, FAILURE, sent="{}")
    assert reports.fail(claimed, FAILURE, sent="{}")
    assert history(job) == ["job.opened", "step.claimed a", "step.failed a"]
    assert named(job, "a").charged == 1
    engine.drain()
    assert reports.fail(claimed, FAILURE, sent="{}")
    assert Attempt.objects.get().late_at is None


def _lose_the_answer(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, times: int = 1) -> list[int]:
    """The statement commits, and the connection breaks before the answer comes."""
    real = getattr(module, name)
    lost: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        if len(lost) < times:
            lost.append(1)
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(module, name, broken)
    return lost


def test_a_claim_whose_answer_was_lost_is_found_by_its_token_and_performed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-089"""
    lost = _lose_the_answer(monkeypatch, transitions, "claim")
    job = Fenced.start()
    engine.drain()
    assert lost == [1]
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.a", "shop.b"]
    assert [step.attempt for step in Step.objects.filter(job=job)] == [1, 1]
    check_books(job)


def test_a_claim_that_commits_only_after_the_worker_asked_again_is_not_left_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first statement still waited for the job's lock in a server process that had lost its client."""
    job = Fenced.start()
    first = named(job, "a")
    real, asked = transitions.claim, []

    def claim(step_id: Any, **kwargs: Any) -> Any:
        asked.append(step_id)
        if len(asked) == 1:
            raise OperationalError("server closed the connection unexpectedly")
        # The orphan was ahead of us in the queue for the lock.
        real(step_id, **kwargs)
        return real(step_id, **kwargs)

    monkeypatch.setattr(transitions, "claim", claim)
    found = worker._claim(first.pk)
    claimed = found[0] if isinstance(found, tuple) else found
    assert claimed is not None
    assert claimed.token == named(job, "a").token


def test_a_settle_whose_answer_was_lost_goes_on_with_the_step_handed_over(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-089"""
    lost = _lose_the_answer(monkeypatch, reports, "settle", times=2)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    job = Fenced.start()
    engine.drain()
    assert lost == [1, 1]
    assert state_of(job) == "Completed"
    assert engine.asked() == ["shop.a", "shop.b"]
    check_books(job)


def test_attempts_never_exceed_the_allowance(engine: Engine) -> None:
    """SAS-015"""
    engine.says("shop.a", Transient("busy"))
    job = Fenced.start()
    engine.drain()
    engine.pass_time(70, times=5)
    assert len(engine.calls_of("shop.a")) == 3
    assert (named(job, "a").attempt, named(job, "a").charged) == (3, 3)
    assert state_of(job) == "Compensated"


def test_a_persons_retry_brings_a_fresh_allowance_while_the_attempt_number_grows(engine: Engine) -> None:
    class Bare(Workflow):
        a = step("shop.a", retry=Retry(attempts=2))

    engine.says("shop.a", Transient("busy"))
    job = Bare.start()
    engine.drain()
    engine.pass_time(70, times=2)
    assert state_of(job) == "Failed"
    verbs.retry_job(job.pk, actor="operator:x", reason="mended")
    assert (named(job, "a").attempt, named(job, "a").charged) == (2, 0)
    engine.drain()
    engine.pass_time(70, times=2)
    assert (named(job, "a").attempt, named(job, "a").charged) == (4, 2)
    keys = {call.idempotency_key for call in engine.calls_of("shop.a")}
    assert keys == {f"{job.pk}:a"}


def test_the_key_is_one_over_all_attempts_and_the_undo_has_its_own(engine: Engine) -> None:
    engine.says("shop.a", Transient("busy"), {"reference": "A"})
    engine.says("shop.b", Transient("busy"))
    job = Fenced.start(key="the caller's own")
    engine.drain()
    engine.pass_time(70, times=8)
    keys = [(name, call.idempotency_key) for name, call in zip(engine.asked(), [c for _, c in _calls()], strict=True)]
    assert {key for name, key in keys if name == "shop.a"} == {f"{job.pk}:a"}
    assert {key for name, key in keys if name == "shop.undo_a"} == {f"{job.pk}:a.undo"}
    (undo,) = engine.calls_of("shop.undo_a")
    assert undo.undoes.idempotency_key == f"{job.pk}:a"
    assert undo.undoes.result == {"reference": "A"}


def _calls() -> Any:
    from tests.integration import engine as playing

    return playing.calls


# --- lease -------------------------------------------------------------------------------------------------------------


def test_a_heartbeat_moves_the_lease_forward_only_and_never_past_the_deadline(engine: Engine) -> None:
    job = Fenced.start()
    claimed = engine.claim(named(job, "a"))
    seen = [named(job, "a").complete_by]
    for seconds in (3, -5, 9, 9, 9, 60):
        engine.ahead(seconds)
        assert transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held == {claimed.token}
        seen.append(named(job, "a").complete_by)
    assert seen == sorted(seen)
    assert seen[1] > seen[0]
    assert seen[2] == seen[1]
    assert seen[-1] == named(job, "a").deadline
    assert (named(job, "a").deadline - named(job, "a").started_at).total_seconds() == 30


def test_one_statement_beats_for_all_steps_of_a_process_each_by_its_own_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Fenced.start() for _ in range(3)]
    held = [engine.claim(named(job, "a")) for job in jobs]
    verbs.cancel_step(jobs[0].pk, "a", actor="operator:x", reason="no")
    real = statements.fetch
    run: list[str] = []

    def fetch(statement: str, parameters: Any) -> list[Any]:
        run.append(statement)
        return real(statement, parameters)

    monkeypatch.setattr(statements, "fetch", fetch)
    kept = transitions.heartbeat({claimed.token: (claimed.step_id, None) for claimed in held}).held
    assert len(run) == 1
    assert kept == {held[1].token, held[2].token}


def test_a_worker_that_froze_between_its_claim_and_its_call_sends_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-014: SIGSTOP just after the claim's commit, SIGCONT a minute later: the lease is long over."""
    import time

    frozen = {"for": 0.0}
    real_monotonic, real_claim = time.monotonic, transitions.claim
    monkeypatch.setattr(time, "monotonic", lambda: real_monotonic() + frozen["for"])

    def claim_then_freeze(*args: Any, **kwargs: Any) -> Any:
        claimed = real_claim(*args, **kwargs)
        frozen["for"] += 60
        return claimed

    monkeypatch.setattr(transitions, "claim", claim_then_freeze)
    sent = []

    def call_out(call: Any) -> Any:
        call.check_may_send()
        sent.append(call)
        return {}

    engine.says("shop.a", call_out)
    job = Fenced.start()
    _, _, arguments = engine.rings.popleft()
    worker.work(*arguments)
    assert sent == []
    assert named(job, "a").state == "Failed"


def test_a_call_whose_lease_is_lost_may_send_nothing_more(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from agents.heartbeat import heart

    heard = []

    def lose_and_ask(call: Any) -> Any:
        verbs.cancel_step(call.job_id, "a", actor="operator:x", reason="no")
        heart._beat()
        try:
            call.check_may_send()
        except LeaseLost as error:
            heard.append(str(error))
            raise
        return {}

    engine.says("shop.a", lose_and_ask)
    job = Fenced.start()
    engine.drain()
    assert len(heard) == 1
    assert Attempt.objects.get(step=named(job, "a")).late_outcome == "failed"


def test_a_death_between_the_hand_over_and_its_call_is_an_ordinary_expired_lease(engine: Engine) -> None:
    job = Fenced.start()
    engine.rings.clear()
    handed = engine.settle(engine.claim(named(job, "a"))).handed_over
    assert handed is not None
    engine.ahead(11)
    assert engine.sweep().expired == 1
    engine.pass_time(2)
    assert state_of(job) == "Completed"
    assert named(job, "b").attempt == 2
    check_books(job)


def test_connections_wait_for_no_lock_as_long_as_a_lease(engine: Engine) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, setting::int FROM pg_settings WHERE name IN"
            " ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')"
        )
        limits = dict(cursor.fetchall())
    assert len(limits) == 3
    assert all(0 < limit < 10_000 for limit in limits.values()), limits
