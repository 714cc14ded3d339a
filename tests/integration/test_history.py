"""The history lies in weeks: each is made before it begins, and dropped as a whole when the last job of it is forgotten."""

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import count, pairwise
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agents import Permanent
from supervisor import retention, tasks
from tests.integration.engine import Beside, Engine, backend, check_books, history, state_of
from workflows import Workflow, broker, signal, step, transitions
from workflows import history as weeks
from workflows.history import WEEK, Partition
from workflows.models import Event, Job, Step
from workflows.opening import new_job

DAY = 86_400
PARENT = "sag_workflows_event"


class DatedHistory(Workflow):
    """One step that can be undone."""

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", after=[a])


class WaitingHistory(Workflow):
    """It lives for as long as nobody answers."""

    on_failure = "hold"

    a = step("shop.a")
    answer = signal(after=[a], timeout=timedelta(days=10_000))


@pytest.fixture(autouse=True)
def the_weeks_as_they_were(engine: Engine) -> Iterator[None]:
    """A test makes and drops partitions; the others find those of this week and the next, and nothing else."""
    before = {partition.name for partition in weeks.partitions()}
    yield
    for name in {partition.name for partition in weeks.partitions()} - before:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {name}")
    weeks.make_ahead()
    assert {partition.name for partition in weeks.partitions()} == before


_number = count(1)


def a_week(away: int) -> datetime:
    """So many weeks from this one."""
    return weeks.week_of(weeks.present()) + away * WEEK


def made(away: int) -> Partition:
    week = a_week(away)
    assert weeks.make(week, week) == 1
    return partition_of(week)


def partition_of(week: datetime) -> Partition:
    [partition] = [partition for partition in weeks.partitions() if partition.covers(week)]
    return partition


def catch_all() -> Partition:
    [partition] = [partition for partition in weeks.partitions() if partition.is_catch_all]
    return partition


def opened(week: datetime, workflow: type[Workflow] = DatedHistory) -> Job:
    """A job as a process opens it whose clock shows the third day of this week."""
    job = new_job(workflow.plan, {})
    job.pk = uuid.UUID(int=weeks.first_id(week + timedelta(days=2)).int + next(_number))
    written = transitions.start(job, plan=workflow.plan, actor="application", start_at=None)
    assert written is not None
    broker.ring_on_commit(written.first)
    return job


def done(engine: Engine, week: datetime) -> Job:
    job = opened(week)
    engine.drain()
    assert state_of(job) == "Completed"
    return job


def needy(engine: Engine, week: datetime) -> Job:
    """It ended with an undo that cannot be done."""
    engine.says("shop.b", Permanent("no"))
    engine.says("shop.undo_a", Permanent("it cannot be cancelled"))
    job = opened(week)
    engine.drain()
    engine.pass_time(600, times=12)
    assert state_of(job) == "Failed"
    engine.says("shop.b", {})
    return job


def where(*jobs: Job) -> set[str]:
    """The partitions in which their events lie."""
    with connection.cursor() as cursor:
        ids = [job.pk for job in jobs]
        cursor.execute(
            "SELECT DISTINCT tableoid::regclass::text FROM sag_workflows_event WHERE job_id = ANY (%s)", [ids]
        )
        return {name for (name,) in cursor.fetchall()}


def events_of(*jobs: Job) -> int:
    return Event.objects.filter(job__in=jobs).count()


def names() -> set[str]:
    return {partition.name for partition in weeks.partitions()}


def timed(act: Callable[[], bool]) -> tuple[bool, float]:
    began = time.monotonic()
    return act(), time.monotonic() - began


def locked_by(session: int) -> set[str]:
    """The tables of the history that a session has in use."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_locks JOIN pg_class ON pg_class.oid = relation "
            "WHERE pid = %s AND relkind IN ('r', 'p') AND starts_with(relname, 'sag_workflows_event')",
            [session],
        )
        return {name for (name,) in cursor.fetchall()}


# --- ids, weeks and partitions ---------------------------------------------------------------------------------------


def test_an_id_tells_the_moment_of_its_making_and_none_made_then_is_smaller() -> None:
    before = weeks.present()
    job_id = new_job(DatedHistory.plan, {}).pk
    after = weeks.present()
    millisecond = timedelta(milliseconds=1)
    assert before - millisecond <= weeks.moment_of(job_id) <= after
    assert weeks.first_id(before) <= job_id < weeks.first_id(after + millisecond)
    assert (weeks.first_id(before).version, weeks.first_id(before).variant) == (7, uuid.RFC_4122)


def test_this_week_and_the_next_four_have_their_partitions(engine: Engine) -> None:
    assert [partition_of(a_week(away)).name for away in range(5)] == sorted(names() - {catch_all().name})
    job = done(engine, a_week(0))
    assert where(job) == {partition_of(a_week(0)).name}
    check_books(job)


def test_what_is_missing_is_made_once() -> None:
    missing = [partition_of(a_week(away)) for away in (1, 3)]
    assert all(map(weeks.drop, missing))
    assert weeks.make_ahead() == 2
    assert weeks.make_ahead() == 0
    assert {partition.name for partition in missing} < names()


def test_the_supervisor_makes_what_is_missing_each_minute() -> None:
    missing = partition_of(a_week(4))
    assert weeks.drop(missing)
    tasks.prune()
    assert missing.name in names()


def test_two_that_make_at_once_make_each_week_once() -> None:
    assert weeks.drop(partition_of(a_week(1)))
    with transaction.atomic():
        assert weeks.make_ahead() == 1
        assert Beside(weeks.make_ahead).result() == 0
    assert Beside(weeks.make_ahead).result() == 0


def test_jobs_go_on_while_a_week_is_made(engine: Engine) -> None:
    assert weeks.drop(partition_of(a_week(1)))
    job = opened(a_week(0))
    with transaction.atomic():
        assert weeks.make_ahead() == 1
        Beside(engine.drain).result()
        assert state_of(job) == "Completed"


def test_making_gives_up_at_once_where_the_catch_all_is_in_use(engine: Engine) -> None:
    with transaction.atomic():
        opened(a_week(20))
        assert Beside(lambda: weeks.make(a_week(30), a_week(30))).result() == 0
    assert weeks.make(a_week(30), a_week(30)) == 1


def test_a_statement_of_the_hot_path_uses_one_partition_and_no_other(engine: Engine) -> None:
    """Also in the plans that a connection keeps."""
    made(-20)
    for week in [*[a_week(0)] * 7, a_week(-20)]:
        job = opened(week)
        [first, *_] = Step.objects.filter(job=job).order_by("seq")
        expected = {PARENT, partition_of(week).name}
        with transaction.atomic():
            claimed = engine.claim(first)
            assert locked_by(backend()) == expected
        with transaction.atomic():
            assert engine.settle(claimed) is not None
            assert locked_by(backend()) == expected
        with transaction.atomic():
            opened(week)
            assert locked_by(backend()) == expected


# --- the catch-all ---------------------------------------------------------------------------------------------------


def test_a_job_of_a_week_that_nobody_made_runs_as_any_other(engine: Engine) -> None:
    job = done(engine, a_week(20))
    assert where(job) == {catch_all().name}
    check_books(job)


def test_a_week_that_is_made_late_takes_its_events_from_the_catch_all(engine: Engine) -> None:
    late, other = done(engine, a_week(20)), done(engine, a_week(21))
    told = list(Event.objects.filter(job=late).values())
    made(20)
    assert (where(late), where(other)) == ({partition_of(a_week(20)).name}, {catch_all().name})
    assert list(Event.objects.filter(job=late).values()) == told


def test_where_there_are_too_many_to_move_they_stay_and_the_weeks_after_are_made(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = done(engine, a_week(20))
    monkeypatch.setattr(weeks, "MOVED_AT_MOST", events_of(late) - 1)
    assert weeks.make(a_week(20), a_week(22)) == 2
    assert where(late) == {catch_all().name}
    check_books(late)


def test_events_in_the_catch_all_go_once_their_jobs_are_forgotten(engine: Engine) -> None:
    gone, kept = done(engine, a_week(20)), opened(a_week(20), WaitingHistory)
    engine.drain()
    told = history(kept)
    engine.ahead(31 * DAY)
    assert retention.prune() == 1
    assert (events_of(gone), history(kept)) == (0, told)


# --- forgetting ------------------------------------------------------------------------------------------------------


def test_a_week_without_jobs_is_dropped_and_no_event_is_deleted(engine: Engine) -> None:
    partition = made(-20)
    jobs = [done(engine, a_week(-20)) for _ in range(3)]
    engine.ahead(31 * DAY)
    with CaptureQueriesContext(connection) as asked:
        assert retention.prune() == 3
    assert partition.name not in names()
    assert not events_of(*jobs)
    changes = [query["sql"] for query in asked.captured_queries if "DELETE" in query["sql"]]
    assert changes
    assert [sql for sql in changes if PARENT in sql] == []


def test_a_week_is_not_dropped_before_history_is_old_enough() -> None:
    """Also where it never had a job: somebody's clock may be late."""
    partition = made(-4)
    retention.prune()
    assert partition.name in names()


def test_the_weeks_to_come_are_never_dropped(engine: Engine) -> None:
    before = names()
    engine.ahead(1000 * DAY)
    retention.prune()
    assert names() == before


@pytest.mark.parametrize("keeps", ["needs a person", "lives"])
def test_a_kept_job_keeps_its_history_and_that_of_the_others_is_deleted(engine: Engine, keeps: str) -> None:
    partition = made(-20)
    kept = needy(engine, a_week(-20)) if keeps == "needs a person" else opened(a_week(-20), WaitingHistory)
    others = [done(engine, a_week(-20)) for _ in range(3)]
    told = history(kept)
    engine.ahead(100 * DAY)
    assert retention.prune() == 3
    assert partition.name in names()
    assert (history(kept), events_of(*others)) == (told, 0)
    check_books(kept)


def test_the_history_of_others_stays_while_failures_of_that_time_are_kept(engine: Engine) -> None:
    """A week goes at once, when its last failure is forgotten: not row by row before."""
    made(-8)
    needy(engine, a_week(-8))
    other = done(engine, a_week(-8))
    engine.ahead(31 * DAY)
    assert retention.prune() == 1
    assert events_of(other)


def test_a_call_deletes_a_bounded_number_and_the_next_goes_on_behind_what_is_kept(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 1)
    monkeypatch.setattr(retention, "EVENTS", 2)
    monkeypatch.setattr(retention, "_BATCHES_A_RUN", 2)
    made(-20)
    kept = [opened(a_week(-20), WaitingHistory) for _ in range(3)]
    gone = done(engine, a_week(-20))
    left = [events_of(gone)]
    assert left[0] > 4
    engine.ahead(100 * DAY)
    while left[-1] and len(left) < 10:
        retention.prune()
        left.append(events_of(gone))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) == 4
    assert all(map(events_of, kept))


def test_the_pen_deletes_no_event_of_a_job_that_is_there(engine: Engine) -> None:
    partition = made(-20)
    job = done(engine, a_week(-20))
    assert transitions.forget_events(partition.name, [job.pk], 100) == 0
    check_books(job)


def test_a_week_is_not_dropped_while_somebody_opens_a_job_in_it(engine: Engine) -> None:
    partition = made(-20)
    with transaction.atomic():
        job = opened(a_week(-20))
        dropped, seconds = Beside(lambda: timed(lambda: weeks.drop(partition))).result()
    assert not dropped
    assert seconds < 3  # a session's own limit, for which whoever comes behind would wait as well
    assert not weeks.drop(partition)
    engine.drain()
    check_books(job)


def test_a_job_that_was_opened_between_the_two_looks_keeps_its_week(engine: Engine) -> None:
    """Seen from one session whose first look is stale: the second one is made under the lock."""
    partition = made(-20)
    jobs: list[Job] = []

    def first_look(execute: Any, sql: str, *rest: Any) -> Any:
        answer = execute(sql, *rest)
        if not jobs and "sag_workflows_job" in str(sql):
            jobs.append(Beside(lambda: opened(a_week(-20))).result())
        return answer

    with connection.execute_wrapper(first_look):
        assert not weeks.drop(partition)
    assert partition.name in names()
    engine.drain()
    check_books(jobs[0])


def test_a_job_that_waits_for_the_drop_of_its_week_lies_in_the_catch_all(engine: Engine) -> None:
    partition = made(-20)
    with transaction.atomic():
        assert weeks.drop(partition)
        late = Beside(lambda: opened(a_week(-20))).until_blocked()
    job = late.result()
    engine.drain()
    assert where(job) == {catch_all().name}
    check_books(job)


# --- the table was whole once ----------------------------------------------------------------------------------------


def test_the_migration_keeps_every_event_both_ways(engine: Engine) -> None:
    jobs = [done(engine, a_week(away)) for away in (0, -3, -60)]
    told = list(Event.objects.order_by("id").values())
    executor = MigrationExecutor(connection)
    migration = executor.loader.get_migration("sag_workflows", "0007_event_partitions")
    newest = executor.loader.graph.leaf_nodes()
    executor.migrate([name for name in migration.dependencies if name[0] == "sag_workflows"])
    try:
        assert weeks.partitions() == []
        assert weeks.make_ahead() == 0
        assert list(Event.objects.order_by("id").values()) == told
        jobs.append(done(engine, a_week(0)))
        told = list(Event.objects.order_by("id").values())
    finally:
        MigrationExecutor(connection).migrate(newest)
    assert list(Event.objects.order_by("id").values()) == told
    assert [where(job) for job in jobs] == [
        {partition_of(a_week(0)).name},
        {partition_of(a_week(-3)).name},
        {catch_all().name},
        {partition_of(a_week(0)).name},
    ]
    newer = done(engine, a_week(0))
    oldest_of_newer = Event.objects.filter(job=newer).order_by("id").values_list("id", flat=True)[0]
    assert oldest_of_newer > told[-1]["id"]


# --- how it is looked at ---------------------------------------------------------------------------------------------


def test_the_admin_lists_events_and_finds_those_of_a_job(engine: Engine) -> None:
    jobs = [done(engine, a_week(0)) for _ in range(2)]
    client = Client()
    client.force_login(get_user_model()._default_manager.create_superuser(f"admin-{uuid.uuid4()}", password="x"))
    page = client.get("/admin/sag_workflows/event/")
    assert page.status_code == 200
    shown = [event.job_id for event in page.context["cl"].result_list]
    assert set(shown) == {job.pk for job in jobs}
    assert shown == sorted(shown, reverse=True)
    found = client.get("/admin/sag_workflows/event/", {"q": str(jobs[0].pk)}).context["cl"].result_list
    assert {event.job_id for event in found} == {jobs[0].pk}
    assert not client.get("/admin/sag_workflows/event/", {"q": "no id"}).context["cl"].result_list
    assert client.get(f"/admin/sag_workflows/event/{Event.objects.all()[0].pk}/change/").status_code == 302
