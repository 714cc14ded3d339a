"""One sweep over a full store: does it find all that is overdue, and does it cost more where more has ended long ago?"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from django.db import connection

from supervisor import metrics
from supervisor import sweep as supervision
from supervisor.console import pulse
from supervisor.models import Sweep
from tests.bench.workflows import TripOfNoops
from workflows import standing
from workflows.clock import now
from workflows.models import Agent, Step

OVERDUE = 100
SWEEPS = 9
MUST_NOT_GROW = 1.2  # times, the pages that a sweep reads, from a store without ended steps to the full one

_STEPS_A_JOB = 3
_RUNNING = 10_000
_READY = 50_000
_BATCH = 100_000

# {ended}: jobs that completed over the last months. {live}: of each ten thousand jobs some run under a lease, some are ready,
# and the others wait for a timer or for their back-off.
_JOBS = """
CREATE TEMPORARY TABLE batch AS
SELECT uuidv7() AS id, n FROM generate_series(%(first)s, %(last)s) AS n;
INSERT INTO sag_workflows_job (id, workflow, version, plan, input, state, seq, open_steps, created_at, finished_at)
SELECT id, 'TripOfNoops', 1, %(plan)s::jsonb, '{"n": 1}', CASE WHEN %(live)s THEN 'Running' ELSE 'Completed' END, 8,
       CASE WHEN %(live)s THEN 3 ELSE 0 END, now() - n * interval '1 s',
       CASE WHEN NOT %(live)s THEN now() - n * interval '1 s' + interval '5 s' END
FROM batch;
INSERT INTO sag_workflows_step (job_id, seq, place, name, kind, operation, agent, queue, idempotency_key, releases, timeout,
    attempts_allowed, state, waiting_for, attempt, token, worker, complete_by, deadline, started_at, finished_at, result,
    run_after, ring_after, queue_by)
SELECT id, seq, seq, (ARRAY['flight', 'hotel', 'car'])[seq + 1], kind, 'noop.step', 'noop', 'agents', id || ':' || seq,
       CASE WHEN seq < 2 THEN ARRAY[seq + 1] ELSE ARRAY[]::int[] END, interval '30 s', 5, state,
       CASE WHEN %(live)s AND seq > 0 THEN 1 ELSE 0 END, CASE WHEN state = 'NotStarted' THEN 0 ELSE 1 END,
       CASE WHEN state = 'Running' AND kind = 'call' THEN gen_random_uuid() END, 'bench',
       CASE WHEN state = 'Running' AND kind = 'call' THEN now() + interval '1 h' END,
       CASE WHEN state = 'Running' THEN now() + interval '1 h' END,
       CASE WHEN state <> 'NotStarted' THEN now() END, CASE WHEN state = 'Completed' THEN now() END,
       CASE WHEN state = 'Completed' THEN '{"done": true}'::jsonb END,
       now() + CASE WHEN n <= %(running)s + %(ready)s THEN interval '-1 s' ELSE interval '1 h' END,
       now() + interval '1 h', now() + interval '1 day'
FROM (
    SELECT id, n, seq,
           CASE WHEN %(live)s AND seq = 0 AND n > %(running)s + %(ready)s AND n %% 2 = 0 THEN 'timer' ELSE 'call' END AS kind,
           CASE WHEN NOT %(live)s THEN 'Completed' WHEN seq > 0 THEN 'NotStarted' WHEN n <= %(running)s THEN 'Running'
                WHEN n > %(running)s + %(ready)s AND n %% 2 = 0 THEN 'Running' ELSE 'NotStarted' END AS state
    FROM batch, generate_series(0, 2) AS seq
) AS step;
INSERT INTO sag_workflows_attempt (step_id, number, token, worker, started_at, finished_at, outcome)
SELECT step.id, 1, COALESCE(step.token, gen_random_uuid()), 'bench', now(), step.finished_at,
       CASE WHEN step.state = 'Completed' THEN 'completed' ELSE '' END
FROM sag_workflows_step AS step JOIN batch ON batch.id = step.job_id
WHERE step.state IN ('Running', 'Completed') AND step.kind = 'call';
DROP TABLE batch;"""


def measure(*, live: int, ended: int) -> tuple[dict[str, float], list[str]]:
    """(ratios of the full store to the one without ended steps, what was missed)"""
    Agent.objects.get_or_create(
        name="noop", defaults={"queue": "agents", "operations": ["noop.step"], "announced_at": now()}
    )
    _fill(live, live=True)
    first, found_first = _figures()
    _tell("no ended steps", first, found_first)
    _fill(ended, live=False)
    full, found = _figures()
    _tell(f"{ended:,} ended steps", full, found)
    ratios = {f"{name}_growth": round(full[name] / first[name], 2) for name in first}
    missed = [name for name in ("idle_sweep_pages_growth",) if ratios[name] > MUST_NOT_GROW]
    if (found_first, found) != (OVERDUE, OVERDUE):
        missed.append("overdue_found")
    return ratios | {name: round(value, 1) for name, value in full.items()}, missed


def _fill(steps: int, *, live: bool) -> None:
    jobs, began = steps // _STEPS_A_JOB, time.perf_counter()
    plan = json.dumps(TripOfNoops.plan.to_json()) if live else '{"steps": []}'
    with connection.cursor() as cursor:
        # What is filled in is not measured: no look at foreign keys, no wait for the disk at each batch.
        for setting in ("statement_timeout = 0", "session_replication_role = replica", "synchronous_commit = off"):
            cursor.execute(f"SET {setting}")
        for first in range(1, jobs + 1, _BATCH):
            values = {"first": first, "last": min(first + _BATCH - 1, jobs), "plan": plan, "live": live}
            _execute(_JOBS, values | {"running": _RUNNING, "ready": _READY})
        cursor.execute("VACUUM ANALYZE sag_workflows_job, sag_workflows_step, sag_workflows_attempt")
        cursor.execute("CHECKPOINT")
    connection.close()  # and with it those settings
    print(f"filled in {steps:,} {'live' if live else 'ended'} steps in {time.perf_counter() - began:.0f} s", flush=True)


def _execute(text: str, values: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        for statement in text.split(";\n"):
            cursor.execute(statement.rstrip(";"), values)


def _figures() -> tuple[dict[str, float], int]:
    """Milliseconds of each look and pages of a sweep, and how many overdue steps the one that had some to find found."""
    figures = {"idle_sweep_ms": _median(_sweep), "idle_sweep_pages": _pages(_sweep)}
    _let_go(OVERDUE)
    began = time.perf_counter()
    row = _sweep()
    figures["sweep_with_overdue_ms"] = 1000 * (time.perf_counter() - began)
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = on")  # as in the web's processes
    figures |= {
        "metrics_ms": _median(metrics.exposed),
        "overview_ms": _median(lambda: pulse.take(now())),
        "agents_ms": _median(standing.of_agents),
    }
    connection.close()
    return figures, row.expired


def _pages(look: Callable[[], object]) -> float:
    """The pages that PostgreSQL touches for it, wherever they are: what it costs on a machine that does other things too."""

    def touched() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute("SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()")
            return int(cursor.fetchone()[0])

    counts = []
    for _ in range(SWEEPS):
        before = touched()
        look()
        counts.append(touched() - before)
    return statistics.median(counts)


def _sweep() -> Sweep:
    present = now()
    Sweep.objects.create(started_at=present, finished_at=present)  # the one before has only just ended: no grace
    return supervision.sweep()


def _let_go(number: int) -> None:
    """The leases of so many running steps, spread over all of them, are over."""
    running = list(Step.objects.filter(state="Running", kind="call").order_by("pk").values_list("pk", flat=True))
    chosen = running[:: max(len(running) // number, 1)][:number]
    _execute(
        "UPDATE sag_workflows_step SET complete_by = now() - interval '1 s' WHERE id = ANY(%(ids)s)", {"ids": chosen}
    )


def _median(look: Callable[[], object]) -> float:
    look()
    took = []
    for _ in range(SWEEPS):
        began = time.perf_counter()
        look()
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


def _tell(about: str, figures: dict[str, float], found: int) -> None:
    told = "  ".join(f"{name} {value:.1f}" for name, value in figures.items())
    print(f"{about}: {told}; {found} of {OVERDUE} overdue steps found in one sweep", flush=True)
