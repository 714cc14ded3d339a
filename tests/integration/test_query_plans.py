"""Each hot question is answered by the index that it names, in a store full of work that ended long ago."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from supervisor import doctor, metrics, needs, sweep
from workflows import errands, findings, history, standing, statements, transitions
from workflows.catalog.trip import TripBooking
from workflows.models import Agent, Attempt, Event, Job, Step

_LARGE = {model._meta.db_table for model in (Job, Step, Attempt, Event)}
_HISTORY = Event._meta.db_table

# 66,000 jobs of three steps that ended over the last 30 days, and 600 that live: 200 with a running step (20 of them
# overdue), 200 ready, 200 with a failed step, of which 20 stand in front of a person and 20 wait for a remedy. Of those
# that ended, 100 old ones failed; one job in a thousand is client 99's. By their ids they are of five or six weeks.
_SEED = """
INSERT INTO sag_workflows_job (id, client_id, workflow, version, plan, input, state, reason, seq, open_steps, created_at,
    finished_at)
SELECT (lpad(to_hex((extract(epoch FROM now() - n * interval '40 s') * 1000)::bigint), 12, '0')
        || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
       CASE WHEN n % 1000 = 0 THEN 99 ELSE n % 7 END, 'Seeded', 1, '{"steps": []}', '{}',
       CASE WHEN n <= 600 THEN 'Running' WHEN n BETWEEN 60001 AND 60100 THEN 'Failed' ELSE 'Completed' END,
       CASE WHEN n BETWEEN 60001 AND 60100 THEN 'step_failed' ELSE '' END, 8, CASE WHEN n <= 600 THEN 3 ELSE 0 END,
       now() - n * interval '40 s', CASE WHEN n > 600 THEN now() - n * interval '39 s' END
FROM generate_series(1, 66600) AS n;

CREATE TEMPORARY TABLE seeded ON COMMIT DROP AS
SELECT id, state, created_at, row_number() OVER (ORDER BY created_at DESC) AS n FROM sag_workflows_job;

INSERT INTO sag_workflows_step (job_id, seq, name, operation, agent, queue, idempotency_key, releases, timeout,
    attempts_allowed, state, waiting_for, attempt, token, complete_by, deadline, started_at, finished_at, result,
    error_kind, remedy, run_after, ring_after)
SELECT id, seq, 'step' || seq, 'noop.step', 'noop', 'agents', id || ':step' || seq, ARRAY[]::int[], interval '30 s', 5,
       state, CASE WHEN state = 'NotStarted' THEN seq ELSE 0 END, CASE WHEN state = 'NotStarted' THEN 0 ELSE 1 END,
       CASE WHEN state = 'Running' THEN gen_random_uuid() END,
       CASE WHEN state = 'Running' THEN now() + (n - 20.5) * interval '1 s' END,
       CASE WHEN state = 'Running' THEN now() + interval '1 h' END,
       CASE WHEN state <> 'NotStarted' THEN created_at END,
       CASE WHEN state IN ('Completed', 'Failed') THEN created_at END,
       CASE WHEN state = 'Completed' THEN '{"done": true}'::jsonb END,
       CASE WHEN state = 'Failed' THEN 'permanent' ELSE '' END,
       CASE WHEN state <> 'Failed' OR n > 580 THEN '' WHEN n > 560 THEN 'Escalate' ELSE 'Compensate' END,
       created_at, created_at
FROM (
    SELECT job.id, job.created_at, job.n, seq,
           CASE WHEN job.state <> 'Running' THEN 'Completed' WHEN seq > 0 THEN 'NotStarted'
                WHEN job.n <= 200 THEN 'Running' WHEN job.n <= 400 THEN 'NotStarted' ELSE 'Failed' END AS state
    FROM seeded job, generate_series(0, 2) AS seq
) AS step;

INSERT INTO sag_workflows_attempt (step_id, number, token, worker, started_at, finished_at, outcome, in_doubt)
SELECT id, 1, gen_random_uuid(), 'w:1', started_at, finished_at,
       CASE state WHEN 'Running' THEN '' WHEN 'Failed' THEN 'failed' ELSE 'completed' END, remedy = 'Escalate'
FROM sag_workflows_step WHERE attempt = 1;

INSERT INTO sag_workflows_event (job_id, seq, kind, actor, at)
SELECT id, number, 'step.completed', 'agent', created_at FROM seeded, generate_series(1, 3) AS number;

ANALYZE sag_workflows_job, sag_workflows_step, sag_workflows_attempt, sag_workflows_event;
"""


pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(scope="module")
def full_store(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock(), transaction.atomic():
        with connection.cursor() as cursor:
            this_week = history.week_of(history.present())
            history.make(this_week - 5 * history.WEEK, this_week)
            cursor.execute("SET LOCAL statement_timeout = 0")
            cursor.execute(_SEED)
        yield
        transaction.set_rollback(True)


@pytest.fixture
def transactional_db(full_store: None) -> None:
    """In place of the shared one, which would empty the store behind each test."""


Access = set[tuple[str, str]]  # (table, index), the index being "" for a sequential scan


def accesses(plan: dict[str, Any], table: str = "") -> Access:
    """How the plan reads the tables."""
    table = plan.get("Relation Name", table)
    found: Access = set()
    if plan["Node Type"] == "Seq Scan":
        found.add((table, ""))
    if "Index Name" in plan:
        found.add((table, plan["Index Name"]))
    return found.union(*(accesses(part, table) for part in plan.get("Plans", [])))


def explain(sql: str) -> Access:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}")
        [(answer,)] = cursor.fetchall()
    [explained] = json.loads(answer) if isinstance(answer, str) else answer
    return accesses(explained["Plan"])


def explain_prepared(statement: str) -> Access:
    """The plan that a connection keeps for a hot statement: made once, for whatever values come."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE hot AS {numbered}")
        try:
            return explain(f"EXECUTE hot ({', '.join(['NULL'] * len(names))})")
        finally:
            cursor.execute("DEALLOCATE hot")


def scanned(found: Access) -> set[str]:
    """The large tables that are read from end to end; of the history one partition would do."""
    return {_whole(table) for table, index in found if not index} & _LARGE


def _whole(table: str) -> str:
    return _HISTORY if table.startswith(_HISTORY) else table


@pytest.mark.parametrize(
    ("statement", "indexes"),
    [
        ("START", set()),
        ("CLAIM", {"sag_workflows_job_pkey", "sag_workflows_step_pkey"}),
        ("CLAIM_UNLESS_LOCKED", {"sag_workflows_job_pkey", "sag_workflows_step_pkey"}),
        (
            "SETTLE",
            {
                "sag_workflows_job_pkey",
                "sag_workflows_step_pkey",
                "step_name_once_per_job",
                "attempt_number_once_per_step",
            },
        ),
        ("HEARTBEAT", {"sag_workflows_step_pkey", "sag_workflows_job_pkey"}),
        ("CANDIDATES", {"step_ready", "sag_workflows_job_pkey"}),
    ],
)
def test_a_hot_statement_finds_its_rows_by_exactly_these_indexes(statement: str, indexes: set[str]) -> None:
    found = explain_prepared(getattr(statements, statement))
    assert scanned(found) == set()
    assert {index for table, index in found if _whole(table) in _LARGE} == indexes


def test_the_check_would_notice_a_table_that_is_read_from_end_to_end() -> None:
    assert scanned(explain("SELECT * FROM sag_workflows_step WHERE worker = 'nobody'")) == {"sag_workflows_step"}


def _page(steps: Any) -> Callable[[], object]:
    """As the sweep walks them."""
    return lambda: next(sweep._ids(steps), None)


@pytest.mark.parametrize(
    ("question", "index"),
    [
        pytest.param(_page(Step.objects.overdue()), "step_running", id="whose lease is over"),
        pytest.param(_page(Step.objects.without_remedy()), "step_without_remedy", id="which failures are undecided"),
        pytest.param(lambda: list(Step.objects.to_ring()[:1000]), "step_to_ring", id="whose ring is due"),
        pytest.param(
            lambda: list(Step.objects.ready().filter(queue="agents").order_by("run_after", "id")[:20]),
            "step_ready",
            id="what is ready in a queue",
        ),
        pytest.param(
            lambda: Step.objects.queues_that_want("1:ada"), "step_wants_key", id="in which queues a key is waited for"
        ),
        pytest.param(lambda: list(Step.objects.escalated()), "step_escalated", id="what stands in front of a person"),
        pytest.param(lambda: Job.objects.next_live(None, 20), "job_live", id="which jobs live"),
        pytest.param(lambda: list(Job.objects.newest_first()[:50]), "job_newest", id="the newest jobs"),
        pytest.param(
            lambda: list(Job.objects.filter(state="Failed").newest_first()[:50]),
            "job_newest_in_state",
            id="the newest jobs in a state",
        ),
        pytest.param(
            lambda: list(Job.objects.of_client(99).newest_first()[:50]),
            "job_newest_of_client",
            id="the newest jobs of a client",
        ),
    ],
)
def test_a_question_is_answered_by_its_index(question: Callable[[], object], index: str) -> None:
    with CaptureQueriesContext(connection) as asked:
        question()
    found = explain(asked.captured_queries[0]["sql"])
    assert index in {name for _, name in found}
    assert scanned(found) == set()


def test_what_needs_a_person_is_found_by_small_indexes_alone() -> None:
    with CaptureQueriesContext(connection) as asked:
        needs._changes()
    found = explain(asked.captured_queries[-1]["sql"])
    assert scanned(found) == set()
    small = {
        "step_escalated",
        "attempt_in_doubt",
        "job_undone_in_part",
        "step_waits_for_ever",
        "step_waiting",
        "step_ready",
    }
    assert small <= {index for _, index in found}


def test_the_steps_of_one_job_are_found_without_walking_the_table() -> None:
    job = Job.objects.newest_first()[0]
    with CaptureQueriesContext(connection) as asked:
        list(Step.objects.filter(job=job).for_timeline())
        list(Event.objects.filter(job=job))
    for query in asked.captured_queries:
        assert scanned(explain(query["sql"])) == set()


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(
            lambda job: list(Event.objects.filter(job=job, seq__gt=1).order_by("seq")[:201]), id="since a number"
        ),
        pytest.param(lambda job: list(Event.objects.filter(job=job).order_by("-seq")[:201]), id="the newest"),
        pytest.param(
            lambda job: Event.objects.filter(job=job, kind="job.paused").order_by("-seq").first(),
            id="the newest of a kind",
        ),
    ],
)
def test_the_history_of_a_job_is_looked_for_in_its_own_week_and_by_its_index(
    question: Callable[[Job], object],
) -> None:
    for job in (Job.objects.newest_first()[0], Job.objects.newest_first()[60_000]):
        [week] = [week for week in history.partitions() if week.covers(history.moment_of(job.pk))]
        with CaptureQueriesContext(connection) as asked:
            question(job)
        assert explain(asked.captured_queries[0]["sql"]) == {(week.name, f"{week.name}_pkey")}


def test_the_jobs_of_a_week_are_found_by_leaps() -> None:
    [week] = [week for week in history.partitions() if week.covers(history.present() - 2 * history.WEEK)]
    with CaptureQueriesContext(connection) as asked:
        jobs = history.jobs_in(week, limit=200)
    assert len(jobs) == 200
    assert explain(asked.captured_queries[0]["sql"]) == {(week.name, f"{week.name}_pkey")}


def test_an_overdue_step_is_taken_over_by_its_id_and_not_looked_for_among_all_that_are_overdue() -> None:
    step = Step.objects.overdue().order_by("pk")[0]
    with transaction.atomic(), CaptureQueriesContext(connection) as asked:
        Job.objects.filter(pk=step.job_id).update(plan=TripBooking.plan.to_json())
        assert sweep.expire(step.pk)
        transaction.set_rollback(True)
    locking = [query["sql"] for query in asked if "FOR NO KEY UPDATE" in query["sql"] and "_step" in query["sql"]]
    [(_, index)] = {access for sql in locking for access in explain(sql) if access[0] == Step._meta.db_table}
    assert index == "sag_workflows_step_pkey"


@pytest.mark.parametrize(
    ("look_again", "passed_by"),
    [
        (lambda: findings.refuse_queued(Step.objects.ready().order_by("pk")[0].pk), "step_queued_too_long"),
        (lambda: findings.wait_is_over(Step.objects.overdue().order_by("pk")[0].pk), "step_waiting"),
        (lambda: errands.wake(Step.objects.overdue().order_by("pk")[0].pk), "step_waiting"),
        (lambda: findings.pass_deadline(Job.objects.next_live(None, 1)[0]), "job_with_deadline"),
    ],
)
def test_whose_time_may_be_over_is_not_looked_for_among_all_others(
    look_again: Callable[[], object], passed_by: str
) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as asked:
        look_again()
        transaction.set_rollback(True)
    read = {
        access
        for query in asked
        if "_step" in query["sql"] or "_job" in query["sql"]
        for access in explain(query["sql"])
    }
    assert {"sag_workflows_step_pkey", "sag_workflows_job_pkey"} & {index for _, index in read}
    assert passed_by not in {index for _, index in read}


def test_a_worker_that_says_what_was_said_before_reads_those_steps_only_that_are_ready() -> None:
    agent = Agent(name="noop", queue="agents", operations=["noop.step"])
    with transaction.atomic():
        transitions.announce(agent)
        with CaptureQueriesContext(connection) as asked:
            transitions.announce(agent)
        read = [explain(query["sql"]) for query in asked if query["sql"].startswith('UPDATE "sag_workflows_step"')]
        transaction.set_rollback(True)
    assert len(read) == 2
    assert [scanned(found) for found in read] == [set(), set()]


def test_stranded_jobs_are_looked_for_among_a_slice_of_the_live_ones_only() -> None:
    ids = Job.objects.next_live(None, 500)
    with CaptureQueriesContext(connection) as asked:
        list(Job.objects.filter(pk__in=ids).stranded())
    assert scanned(explain(asked.captured_queries[0]["sql"])) == set()


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(metrics.exposed, id="metrics"),
        pytest.param(standing.oldest_ready, id="the oldest ready steps"),
        pytest.param(standing.of_agents, id="agents"),
        pytest.param(doctor.examine, id="doctor"),
    ],
)
def test_who_looks_how_it_stands_reads_no_large_table_from_end_to_end(look: Callable[[], object]) -> None:
    """SAS-090: to look costs what lives, not what has ended. `make bench ARGS=--sweep` shows it with millions."""
    Agent.objects.get_or_create(name="noop", queue="agents", operations=["noop.step"])
    with CaptureQueriesContext(connection) as asked:
        look()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")  # that of the metrics is theirs
    large = [query["sql"] for query in asked if query["sql"].startswith("SELECT") and "sag_workflows_" in query["sql"]]
    assert len(large) > 1
    for sql in large:
        assert scanned(explain(sql)) == set(), sql


@pytest.mark.parametrize("name", [name for name in vars(statements) if name.isupper() and not name.startswith("_")])
def test_a_hot_statement_is_short_enough_for_the_driver_to_keep_it_parsed(name: str) -> None:
    text = getattr(statements, name)
    if isinstance(text, str) and name != "READY":
        assert len(text) < 4_096
        assert len(re.findall(r"%\(\w+\)s", text)) <= 50
