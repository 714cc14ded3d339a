"""The vendors' own memory: every call, every reservation, every closed key and every fault, in one SQLite file.

A call is one line. Its `outcome` is one of these words:

    pending           has arrived and has not been dealt with (or the process died over it)
    booked            a reservation was made
    replayed          the key had its reservation already; the first answer was given again
    sold_out          refused: nothing left
    key_closed        refused: the key was cancelled before
    found, not_found  what a look-up by key said
    cancelled         the key's live reservations were cancelled
    already_cancelled they had been before
    nothing_found     nothing to cancel; the key is closed from now on
    answer_lost       done, then the connection was closed without an answer
    late              the answer was lost and the effect is still to come; it becomes one of the next two
    late_applied      the effect came late
    late_ignored      the effect came late and changed nothing: key closed, or done before
    request_lost      the connection was closed before anything was done
    never_answered    accepted and left hanging; nothing was done
    down, busy, error refused with 503, 429, 500; nothing was done
    bad_request       refused with 400: no key, or a body that is not a JSON object
"""

import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .faults import Fate, Faults
from .vendors import SERVICES, reservation

SCHEMA = """
CREATE TABLE IF NOT EXISTS call (
    id INTEGER PRIMARY KEY, service TEXT NOT NULL, operation TEXT NOT NULL, key TEXT, at TEXT NOT NULL,
    outcome TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS reservation (
    id INTEGER PRIMARY KEY, service TEXT NOT NULL, key TEXT NOT NULL, reference TEXT NOT NULL UNIQUE,
    answer TEXT NOT NULL, created_at TEXT NOT NULL, cancelled_at TEXT);
CREATE INDEX IF NOT EXISTS reservation_by_key ON reservation (service, key);
CREATE TABLE IF NOT EXISTS closed_key (service TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (service, key));
CREATE TABLE IF NOT EXISTS late_effect (
    id INTEGER PRIMARY KEY, due REAL NOT NULL, call INTEGER NOT NULL, service TEXT NOT NULL, operation TEXT NOT NULL,
    key TEXT NOT NULL, request TEXT NOT NULL, honour_keys INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS fault (
    service TEXT PRIMARY KEY, fields TEXT NOT NULL, seed TEXT NOT NULL, drawn INTEGER NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a vendor has done (`outcome`, a word of this module's list) and the HTTP answer that says so."""

    outcome: str
    status: int
    body: dict[str, Any]


class Ledger:
    """The SQLite file behind one connection and one lock: calls are dealt with one after the other."""

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.RLock()
        self._database = sqlite3.connect(path, check_same_thread=False, timeout=10)
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing at this level; only a power cut could cost the last calls.
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database:
            yield self._database

    # Calls

    def open_call(self, service: str, operation: str, key: str | None) -> int:
        """Write the line of a call that has arrived; its id."""
        with self._transaction() as database:
            written = database.execute(
                "INSERT INTO call (service, operation, key, at, outcome) VALUES (?, ?, ?, ?, 'pending')",
                (service, operation, key, now()),
            )
            return int(written.lastrowid or 0)

    def close_call(self, call: int, outcome: str) -> None:
        with self._transaction() as database:
            database.execute("UPDATE call SET outcome = ? WHERE id = ?", (outcome, call))

    def read(self, last: int | None = None) -> dict[str, list[dict[str, Any]]]:
        """Calls and reservations, oldest first; only the newest `last` of each if asked."""
        limit = -1 if last is None else last
        with self._lock:
            calls = self._database.execute("SELECT * FROM call ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
            booked = self._database.execute("SELECT * FROM reservation ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        return {
            "calls": [_chosen(row, "service", "operation", "key", "at", "outcome") for row in reversed(calls)],
            "reservations": [
                _chosen(row, "service", "key", "reference")
                | {"live": row["cancelled_at"] is None}
                | _chosen(row, "created_at", "cancelled_at")
                for row in reversed(booked)
            ],
        }

    def forget(self) -> None:
        """Drop calls, reservations, closed keys and effects still to come. The faults stay as they are set."""
        with self._transaction() as database:
            database.execute("DELETE FROM call")
            database.execute("DELETE FROM reservation")
            database.execute("DELETE FROM closed_key")
            database.execute("DELETE FROM late_effect")

    # What the vendors do

    def reserve(self, service: str, key: str, request: Mapping[str, Any], faults: Faults) -> Answer:
        with self._transaction():
            known = self._settled_before(service, key) if faults.honour_keys else None
            if known is not None:
                return known
            if faults.sold_out:
                return Answer(outcome="sold_out", status=409, body=problem("sold_out", f"No {service} left."))
            return Answer(outcome="booked", status=201, body=self._book(service, key, request))

    def _settled_before(self, service: str, key: str) -> Answer | None:
        """What a vendor who honours keys answers to a key it has dealt with before."""
        if self._is_closed(service, key):
            body = problem("key_closed", f"The key {key} was cancelled and takes no more reservations.")
            return Answer(outcome="key_closed", status=409, body=body)
        booked = self._reservations(service, key, live=True)
        if booked:
            return Answer(outcome="replayed", status=201, body=json.loads(booked[0]["answer"]))
        return None

    def _book(self, service: str, key: str, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = reservation(service, key, request, now())
        self._database.execute(
            "INSERT INTO reservation (service, key, reference, answer, created_at) VALUES (?, ?, ?, ?, ?)",
            (service, key, answer["reference"], json.dumps(answer), answer["created_at"]),
        )
        return answer

    def find(self, service: str, key: str) -> Answer:
        with self._lock:
            booked = self._reservations(service, key, live=True)
        if booked:
            return Answer(outcome="found", status=200, body=json.loads(booked[-1]["answer"]))
        return Answer(outcome="not_found", status=404, body=problem("not_found", f"No live reservation under {key}."))

    def cancel(self, service: str, key: str) -> Answer:
        """Cancel every live reservation of the key, and close it. Repeating it gives the same answer."""
        with self._transaction():
            was_live = self._close_key(service, key)
            references = [row["reference"] for row in self._reservations(service, key, live=False)]
        if not references:
            return Answer(outcome="nothing_found", status=200, body={"cancelled": False})
        return Answer(
            outcome="cancelled" if was_live else "already_cancelled",
            status=200,
            body={"cancelled": True, "reference": references[-1], "references": references},
        )

    def _close_key(self, service: str, key: str) -> bool:
        """Whether anything was live under the key, which takes nothing from now on."""
        self._database.execute("INSERT OR IGNORE INTO closed_key (service, key) VALUES (?, ?)", (service, key))
        cancelled = self._database.execute(
            "UPDATE reservation SET cancelled_at = ? WHERE service = ? AND key = ? AND cancelled_at IS NULL",
            (now(), service, key),
        )
        return cancelled.rowcount > 0

    def _is_closed(self, service: str, key: str) -> bool:
        query = "SELECT 1 FROM closed_key WHERE service = ? AND key = ?"
        return self._database.execute(query, (service, key)).fetchone() is not None

    def _reservations(self, service: str, key: str, *, live: bool) -> list[sqlite3.Row]:
        return self._database.execute(
            "SELECT * FROM reservation WHERE service = ? AND key = ? AND (cancelled_at IS NULL) = ? ORDER BY id",
            (service, key, live),
        ).fetchall()

    # Effects that come late

    def postpone(
        self, call: int, service: str, operation: str, key: str, request: Mapping[str, Any], faults: Faults
    ) -> None:
        """Remember what the call asked for, to be done `apply_after_ms` from now, even over a restart."""
        due = time.time() + faults.apply_after_ms / 1000
        with self._transaction() as database:
            database.execute(
                "INSERT INTO late_effect (due, call, service, operation, key, request, honour_keys)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (due, call, service, operation, key, json.dumps(request), faults.honour_keys),
            )
            database.execute("UPDATE call SET outcome = 'late' WHERE id = ?", (call,))

    def next_due(self) -> float | None:
        """When the next late effect comes, in seconds since the epoch."""
        with self._lock:
            due: float | None = self._database.execute("SELECT min(due) FROM late_effect").fetchone()[0]
            return due

    def apply_due(self) -> None:
        """Do what is due, each with its line of the ledger in one transaction."""
        with self._transaction() as database:
            due = database.execute("SELECT * FROM late_effect WHERE due <= ? ORDER BY due, id", (time.time(),))
            for effect in due.fetchall():
                outcome = "late_applied" if self._apply(effect) else "late_ignored"
                database.execute("UPDATE call SET outcome = ? WHERE id = ?", (outcome, effect["call"]))
                database.execute("DELETE FROM late_effect WHERE id = ?", (effect["id"],))

    def _apply(self, effect: sqlite3.Row) -> bool:
        service, key = effect["service"], effect["key"]
        if effect["operation"] == "cancel":
            return self._close_key(service, key)
        if effect["honour_keys"] and self._settled_before(service, key) is not None:
            return False
        self._book(service, key, json.loads(effect["request"]))
        return True

    # Faults

    def faults(self) -> dict[str, Faults]:
        with self._lock:
            rows = self._database.execute("SELECT * FROM fault").fetchall()
        kept = {row["service"]: _stored_faults(row) for row in rows}
        return {service: kept.get(service, Faults()) for service in SERVICES}

    def set_faults(self, service: str, faults: Faults) -> None:
        """Replace what is wrong with a service, and begin its luck anew."""
        seed = secrets.token_hex(8) if faults.seed is None else str(faults.seed)
        with self._transaction() as database:
            database.execute(
                "INSERT OR REPLACE INTO fault (service, fields, seed, drawn) VALUES (?, ?, ?, 0)",
                (service, json.dumps(faults.to_json()), seed),
            )

    def draw(self, service: str, operation: str) -> Fate:
        """What the next call of this service meets; uses up one of the faults' `times` if they match."""
        with self._transaction() as database:
            row = database.execute("SELECT * FROM fault WHERE service = ?", (service,)).fetchone()
            faults = Faults() if row is None else _stored_faults(row)
            if row is None or not faults.matches(operation):
                return Fate()
            left = None if faults.times is None else faults.times - 1
            database.execute(
                "UPDATE fault SET fields = ?, drawn = drawn + 1 WHERE service = ?",
                (json.dumps(replace(faults, times=left).to_json()), service),
            )
            return faults.draw(row["seed"], row["drawn"])


def problem(code: str, message: str, **more: Any) -> dict[str, Any]:
    """The body of every refusal."""
    return {"code": code, "message": message, **more}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stored_faults(row: sqlite3.Row) -> Faults:
    return Faults.parse(json.loads(row["fields"]))


def _chosen(row: sqlite3.Row, *columns: str) -> dict[str, Any]:
    return {column: row[column] for column in columns}
