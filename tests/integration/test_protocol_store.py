"""What the store itself holds: one writer with its event, one clock, locks that do not block more than they must."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from psycopg.errors import DeadlockDetected

from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, named, state_of, states
from workflows import Workflow, reports, step, transitions, verbs
from workflows.clock import now
from workflows.models import Attempt, ClockOffset, Event, Job, Step
from workflows.states import JobState
from workflows.transitions import Failure


class Kept(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])


@pytest.fixture
def no_events(engine: Engine) -> Any:
    """From its `on` until the end of the test no event can be written."""

    class Switch:
        @staticmethod
        def on() -> None:
            with connection.cursor() as cursor:
                cursor.execute(
                    "CREATE FUNCTION no_event() RETURNS trigger LANGUAGE plpgsql AS"
                    " $$ BEGIN RAISE EXCEPTION 'no event today'; END $$;"
                    "CREATE TRIGGER no_event BEFORE INSERT ON sag_workflows_event FOR EACH ROW EXECUTE FUNCTION no_event()"
                )

    yield Switch
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION IF EXISTS no_event() CASCADE")


# --- rule 2 ------------------------------------------------------------------------------------------------------------


VERBS: dict[str, Any] = {
    "claim": lambda job, claimed: transitions.claim(named(job, "b").pk, token=uuid.uuid4(), worker="w"),
    "settle": lambda job, claimed: reports.settle(
        claimed, result="{}", sent=None, next_token=uuid.uuid4(), worker="w", hand_over=True
    ),
    "settle after doubt": lambda job, claimed: reports.settle(
        claimed, result="{}", sent=None, next_token=uuid.uuid4(), worker="w", hand_over=True, follows_doubt=True
    ),
    "fail": lambda job, claimed: reports.fail(claimed, Failure(kind="transient", code="x", message="x"), sent=None),
    "expire": lambda job, claimed: supervision.expire(claimed.step_id),
    "cancel": lambda job, claimed: verbs.cancel(job.pk, undo=True, actor="x", reason="x"),
    "cancel a step": lambda job, claimed: verbs.cancel_step(job.pk, "a", actor="x", reason="x"),
    "pause": lambda job, claimed: verbs.pause(job.pk, actor="x", reason="x"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_change_whose_event_cannot_be_written_does_not_happen(engine: Engine, no_events: Any, verb: str) -> None:
    job = Kept.start()
    claimed = engine.claim(named(job, "a"))
    if verb == "claim":
        Step.objects.filter(job=job, name="b").update(waiting_for=0)
    engine.ahead(11)
    before = _everything(job)
    engine.rings.clear()
    no_events.on()
    with pytest.raises(DatabaseError, match="no event today"):
        VERBS[verb](job, claimed)
    assert _everything(job) == before
    assert not engine.rings


def test_a_start_whose_event_cannot_be_written_leaves_nothing(engine: Engine, no_events: Any) -> None:
    no_events.on()
    with pytest.raises(DatabaseError, match="no event today"):
        Kept.start()
    assert (Job.objects.count(), Step.objects.count()) == (0, 0)
    assert not engine.rings


def _everything(job: Job) -> list[list[Any]]:
    return [
        list(Job.objects.filter(pk=job.pk).values()),
        list(Step.objects.filter(job=job).order_by("pk").values()),
        list(Attempt.objects.filter(step__job=job).order_by("pk").values()),
        list(Event.objects.filter(job=job).order_by("pk").values()),
    ]


def test_a_verb_that_no_edge_allows_is_a_fault_and_changes_nothing(engine: Engine) -> None:
    job = Kept.start()
    with pytest.raises(AssertionError, match="no edge leads a step from NotStarted to NotStarted"):
        transitions.retry(job, named(job, "a"), delay=timedelta(0), actor="x", reason="x")
    with pytest.raises(AssertionError, match="no edge leads a job from Running to Running"):
        transitions.reopen(job, JobState.RUNNING, actor="x", reason="x")
    check_books(job)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "Sleeping"},
        {"state": "Running"},
        {"state": "Completed"},
        {"state": "Failed"},
        {"token": uuid.UUID(int=1)},
        {"remedy": "retry"},
        {"role": "undo"},
    ],
    ids=str,
)
def test_the_store_refuses_a_step_that_contradicts_itself(engine: Engine, change: dict) -> None:
    job = Kept.start()
    with pytest.raises(IntegrityError), transaction.atomic():
        Step.objects.filter(job=job, name="a").update(**change)


# --- rule 3 ------------------------------------------------------------------------------------------------------------


def test_two_statements_in_one_transaction_see_the_clock_move(engine: Engine) -> None:
    with transaction.atomic():
        first = now()
        second = now()
        Beside(lambda: engine.ahead(60)).result()
        third = now()
    assert first < second
    assert third - second > timedelta(seconds=59)


def test_one_statement_sees_one_time(engine: Engine) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT sag_now()) FROM generate_series(1, 10000)")
        assert cursor.fetchone()[0] == 1


def test_the_clock_has_one_row(engine: Engine) -> None:
    engine.ahead(1)
    with pytest.raises(IntegrityError), transaction.atomic():
        ClockOffset.objects.create(pk=2)


def test_a_start_in_a_long_transaction_is_not_overdue_at_its_commit(engine: Engine) -> None:
    with transaction.atomic():
        job = Kept.start()
        engine.ahead(3600)
    assert engine.sweep().expired == 0
    engine.drain()
    assert state_of(job) == "Completed"


# --- rule 4 ------------------------------------------------------------------------------------------------------------


def _insert_a_step(job: Job) -> Beside:
    row = Step(job=job, seq=9, name="z", operation="shop.g", agent="shop", queue="agents", releases=[],
               idempotency_key="z", timeout=timedelta(seconds=1), attempts_allowed=1)  # fmt: skip
    return Beside(lambda: row.save(force_insert=True))


def test_the_engines_lock_lets_rows_that_refer_to_the_job_be_inserted(engine: Engine) -> None:
    job = Kept.start()
    with transaction.atomic():
        transitions.lock(job.pk)
        _insert_a_step(job).result()
    assert "z" in states(job)


def test_a_plain_for_update_would_block_them(engine: Engine) -> None:
    """Why the engine's lock is NO KEY UPDATE."""
    job = Kept.start()
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        insert = _insert_a_step(job).until_blocked()
    insert.result()
    assert "z" in states(job)


def test_a_claim_does_not_block_rows_that_refer_to_its_job(engine: Engine) -> None:
    job = Kept.start()
    with transaction.atomic():
        engine.claim(named(job, "a"))
        _insert_a_step(job).result()
    assert states(job) == {"a": "Running", "b": "NotStarted", "z": "NotStarted"}


# --- rule 5 ------------------------------------------------------------------------------------------------------------


def test_a_deadlock_is_tried_again_until_both_are_done(engine: Engine) -> None:
    """SAS-088: one verb holds job 1 and wants job 2, the other the reverse; PostgreSQL breaks one off, and it begins anew."""
    jobs = [Kept.start(), Kept.start()]
    with connection.cursor() as cursor:
        cursor.execute("SHOW deadlock_timeout")
    tries: list[str] = []
    both = __import__("threading").Barrier(2, timeout=10)

    def verb(name: str, first: Job, second: Job) -> Any:
        @transitions.in_transaction
        def run() -> str:
            tries.append(name)
            transitions.lock(first.pk)
            if tries.count(name) == 1:
                both.wait()
            locked: Any = transitions.lock(second.pk)
            transitions.pause(locked, actor=name, reason="")
            return name

        return run

    runs = [Beside(verb("x", *jobs)), Beside(verb("y", *reversed(jobs)))]
    assert sorted(run.result() for run in runs) == ["x", "y"]
    assert len(tries) == 3
    assert all(history(job).count("job.paused") == 1 for job in jobs)


def test_a_verb_that_always_deadlocks_gives_up_and_says_so(engine: Engine) -> None:
    tries = []

    @transitions.in_transaction
    def doomed() -> None:
        tries.append(1)
        from django.db import OperationalError

        raise OperationalError("deadlock detected") from DeadlockDetected()

    with pytest.raises(DatabaseError, match="deadlock"):
        doomed()
    assert 2 <= len(tries) <= 10
    assert not connection.in_atomic_block
