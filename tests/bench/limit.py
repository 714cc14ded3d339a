"""PostgreSQL's own limit: one client that settles a step and starts the next, one statement and one commit each."""

import subprocess
import time
from pathlib import Path

import psycopg

from sagsite.embedded.postgres import Postgres

DATABASE = "bench_limit"
_ROWS = 200_000
_SECONDS = 3

_SCHEMA = f"""
DROP TABLE IF EXISTS step;
CREATE TABLE step (
    id bigint PRIMARY KEY, job bigint NOT NULL, state smallint NOT NULL, attempt int NOT NULL DEFAULT 0,
    complete_by timestamptz, started_at timestamptz, finished_at timestamptz, result jsonb
) WITH (fillfactor = 70);
INSERT INTO step (id, job, state) SELECT n, n / 2, n % 2 FROM generate_series(1, {_ROWS}) AS n;
CREATE INDEX step_running ON step (complete_by) WHERE state = 1;
VACUUM ANALYZE step;
CHECKPOINT;
"""

# Odd rows run (state 1); each settles to 2 and starts the even row behind it.
_SETTLE = """
WITH done AS (
    UPDATE step SET state = 2, result = '{{"booking": "ABC123", "price": 199}}', finished_at = now(), complete_by = NULL
    WHERE id = {id} AND state = 1 RETURNING id
)
UPDATE step SET state = 1, attempt = attempt + 1, started_at = now(), complete_by = now() + interval '10 s'
FROM done WHERE step.id = done.id + 1 AND step.state = 0
"""


def steps_a_second(postgres: Postgres, scratch: Path) -> float:
    """By pgbench where it is installed, else by psycopg."""
    with postgres.connect("postgres") as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
            connection.execute(f"CREATE DATABASE {DATABASE}")
    with postgres.connect(DATABASE) as connection:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
        program = postgres.programs / "pgbench"
        return _by_pgbench(program, postgres, scratch) if program.exists() else _by_psycopg(connection)


def _by_pgbench(program: Path, postgres: Postgres, scratch: Path) -> float:
    script = scratch / "settle.pgbench"
    script.write_text("\\set i :i + 2\n" + " ".join(_SETTLE.format(id=":i").split()) + ";\n")
    options = ["-n", "-M", "prepared", "-c", "1", "-T", str(_SECONDS), "-D", "i=-1", "-f", str(script)]
    where = ["-h", str(postgres.sockets), "-U", "sag", DATABASE]
    said = subprocess.run([str(program), *options, *where], capture_output=True, text=True, check=True).stdout
    figures = dict(line.split(" = ") for line in said.splitlines() if line.startswith("tps"))
    steps = float(figures["tps"].split()[0])
    _check(steps * _SECONDS)
    return steps


def _by_psycopg(connection: psycopg.Connection) -> float:
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        connection.execute(_SETTLE.format(id="%s"), [2 * steps + 1], prepare=True)
        steps += 1
    _check(steps)
    return steps / (time.perf_counter() - began)


def _check(steps: float) -> None:
    if steps > _ROWS / 2:
        raise SystemExit(f"The limit ran out of its {_ROWS:,} rows: raise their number.")
