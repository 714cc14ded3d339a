"""The questions about what waits are answered by the indexes that they name, in a store full of work that ended."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from supervisor import sweep
from tests.integration.test_query_plans import explain, explain_prepared, full_store, scanned, transactional_db
from workflows import children, statements, transitions
from workflows.models import Job, Step

__all__ = ["full_store", "transactional_db"]  # fixtures

pytestmark = pytest.mark.usefixtures("transactional_db", "waiting_store")

# Of the live jobs: 60 wait for a time, 60 for the scheduler, 60 for a worker that does not come, 20 are fan-outs of 500
# items, and 40 have a deadline. Of those that ended 20,000 are children, of which 40 have not told their parent.
_SEED = """
UPDATE sag_workflows_step SET kind = 'timer', token = NULL, complete_by = NULL, deadline = now() + (id % 60 - 30) * interval '1 s'
WHERE id IN (SELECT id FROM sag_workflows_step WHERE state = 'Running' ORDER BY id LIMIT 60);
UPDATE sag_workflows_step SET kind = 'call', items_total = 1000, items_made = 500, items_open = 1000, items_admitted = 100,
    token = NULL, complete_by = NULL, deadline = NULL
WHERE id IN (SELECT id FROM sag_workflows_step WHERE state = 'Running' AND token IS NOT NULL ORDER BY id LIMIT 20);
UPDATE sag_workflows_step SET gated = true, held = true
WHERE id IN (SELECT id FROM sag_workflows_step WHERE state = 'NotStarted' AND waiting_for = 0 ORDER BY id LIMIT 60);
UPDATE sag_workflows_step SET queue_timeout = interval '1 s', queue_by = now() - interval '1 s'
WHERE id IN (SELECT id FROM sag_workflows_step WHERE state = 'NotStarted' AND waiting_for = 0 AND NOT held ORDER BY id LIMIT 60);
INSERT INTO sag_workflows_step (job_id, seq, name, index, parent_id, operation, agent, queue, idempotency_key, releases, timeout,
    attempts_allowed, held, ring_after)
SELECT fan.job_id, 1000 + n, fan.name, n, fan.id, 'noop.step', 'noop', 'agents', fan.id || ':' || n, ARRAY[]::int[],
       interval '30 s', 5, n >= 100, now() + interval '1 h'
FROM sag_workflows_step fan, generate_series(0, 499) AS n WHERE fan.items_total IS NOT NULL;
UPDATE sag_workflows_job SET time_limit = interval '1 h', deadline = now() + (seq % 2 - 1) * interval '1 h'
WHERE id IN (SELECT id FROM sag_workflows_job WHERE state = 'Running' ORDER BY id LIMIT 40);
UPDATE sag_workflows_job SET parent_step_id = 1 + seq, told_parent_at = now()
WHERE id IN (SELECT id FROM sag_workflows_job WHERE state = 'Completed' ORDER BY id LIMIT 20000);
UPDATE sag_workflows_job SET told_parent_at = NULL
WHERE id IN (SELECT id FROM sag_workflows_job WHERE parent_step_id IS NOT NULL ORDER BY id LIMIT 40);
ANALYZE sag_workflows_job, sag_workflows_step;
"""


@pytest.fixture(scope="module")
def waiting_store(full_store: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_SEED)


def _slice(jobs: QuerySet[Job]) -> list[Any]:
    """As the sweep takes them."""
    return list(jobs.order_by("pk").values_list("pk", flat=True)[:500])


def _fan() -> Step:
    fan: Step = Step.objects.filter(items_total__isnull=False)[0]
    return fan


@pytest.mark.parametrize(
    ("question", "index"),
    [
        pytest.param(lambda: next(sweep._ids(Step.objects.due()), None), "step_waiting", id="whose time has come"),
        pytest.param(
            lambda: next(sweep._ids(Step.objects.queued_too_long()), None), "step_queued_too_long", id="queued too long"
        ),
        pytest.param(
            lambda: list(Step.objects.at_gate().order_by("pk").values_list("job_id", flat=True)[:500]),
            "step_at_gate",
            id="who waits at a gate",
        ),
        pytest.param(
            lambda: list(Step.objects.to_spread().order_by("pk").values_list("job_id", flat=True)[:500]),
            "step_fan_outs",
            id="which fan-outs are to go on",
        ),
        pytest.param(lambda: list(Step.objects.to_write()), "step_fan_outs", id="which items are to be written"),
        pytest.param(lambda: _slice(Job.objects.past_deadline()), "job_with_deadline", id="whose deadline is past"),
        pytest.param(lambda: _slice(Job.objects.owe_parent()), "job_owes_parent", id="who owes a word to a parent"),
        pytest.param(transitions.set_deadlines, "job_with_deadline", id="whose deadline is to be set"),
    ],
)
def test_a_question_about_what_waits_is_answered_by_its_index(question: Callable[[], object], index: str) -> None:
    with CaptureQueriesContext(connection) as asked:
        question()
    [first, *_] = [query["sql"] for query in asked.captured_queries if query["sql"].startswith("SELECT")]
    found = explain(first)
    assert index in {name for _, name in found}
    assert scanned(found) == set()


@pytest.mark.parametrize(
    ("question", "indexes"),
    [
        pytest.param(lambda: _fan().items_results(), {"step_items"}, id="the results of the items"),
        pytest.param(
            lambda: transitions.admit_items(_fan(), at_once=50), {"step_items_held", "step_items"}, id="the next items"
        ),
        pytest.param(
            lambda: list(Step.objects.filter(job=_fan().job_id).at_gate().order_by("seq")[:1]),
            {"step_at_gate", "step_name_once_per_job"},
            id="the gates of a job",
        ),
        pytest.param(lambda: children.child_of(_fan()), {"job_of_parent_step"}, id="the child of a step"),
    ],
)
def test_what_is_asked_of_one_job_is_found_without_walking_the_table(
    question: Callable[[], object], indexes: set[str]
) -> None:
    with CaptureQueriesContext(connection) as asked:
        question()
    selects = [query["sql"] for query in asked.captured_queries if query["sql"].startswith("SELECT")]
    found: Any = set().union(*map(explain, selects[1:] or selects))
    assert {name for _, name in found} & indexes
    assert scanned(found) == set()


def test_the_end_of_an_item_finds_its_rows_by_exactly_these_indexes() -> None:
    found = explain_prepared(statements.SETTLE_ITEM)
    assert scanned(found) == set()
    assert {index for table, index in found if table != "sag_workflows_event"} <= {
        "sag_workflows_job_pkey",
        "sag_workflows_step_pkey",
        "step_items",
        "step_items_held",
        "attempt_number_once_per_step",
    }
