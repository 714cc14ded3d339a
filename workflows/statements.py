"""The hot statements: few, written by hand in `workflows/sql/`, prepared, and read by people. Everything else is the ORM.

They run on psycopg's own server-side cursor over Django's connection, so that PostgreSQL plans each of them once a
connection, and they take part in whatever transaction is open.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.rows import namedtuple_row

from workflows.querysets import READY

_FOLDER = Path(__file__).parent / "sql"


def _load(name: str, **fragments: str) -> str:
    """The text of a statement with its fragments put in. Braces stand nowhere else in these files."""
    text = (_FOLDER / f"{name}.sql").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return " ".join("\n".join(lines).format(**fragments).split())


_READY_TO_CLAIM = READY.format(step="s", job="locked", waiting_for="< 1", now="clock.now")
_READY_TO_HAND_OVER = READY.format(step="s", job="locked", waiting_for="= 1", now="t.now")

START = _load("start")
CLAIM = _load("claim", ready=_READY_TO_CLAIM, unlimited="NOT s.limited", skip_locked="")
CLAIM_UNLESS_LOCKED = _load("claim", ready=_READY_TO_CLAIM, unlimited="NOT s.limited", skip_locked="SKIP LOCKED")
CLAIM_WITHIN_LIMITS = _load("claim", ready=_READY_TO_CLAIM, unlimited="s.limited", skip_locked="")
SETTLE = _load(
    "settle",
    hand_over="%(hand_over)s AND NOT s.limited AND s.seq = done.releases[1] AND s.queue = %(queue)s AND "
    + _READY_TO_HAND_OVER,
)
SETTLE_ITEM = _load("settle_item")
ITEMS = _load("items")
HEARTBEAT = _load("heartbeat")
CANDIDATES = _load("candidates", ready=READY.format(step="s", job="job", waiting_for="= 0", now="sag_now()"))


def fetch(statement: str, parameters: Mapping[str, Any]) -> list[Any]:
    """Run a hot statement; its rows, with the statement's column names as attributes."""
    database = connections[DEFAULT_DB_ALIAS]  # once: `connection` would look it up for each of its attributes
    database.ensure_connection()
    with database.wrap_database_errors, psycopg.Cursor(database.connection, row_factory=namedtuple_row) as cursor:
        return cursor.execute(statement, parameters, prepare=True).fetchall()
