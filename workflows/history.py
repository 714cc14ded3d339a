"""Where the history lies: a partition of the events for each week, by the time in their jobs' ids, dropped as a whole.

Ids of jobs are made in the order of time, and every event carries its job's: so all events of a job lie in one partition,
and what is old goes with its partition instead of row by row. Events whose id tells of a week that has none, since some
process's clock is wrong or nobody has made it in time, lie in the catch-all. What week it is, the database's own clock
says: nothing moves the clocks of the processes that make the ids.

A change of tables waits for its locks so short a time that the hot path does not notice. What could not be done then is
done at another call.
"""

import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import Error, IntegrityError, connection, transaction
from django.db.backends.utils import CursorWrapper
from psycopg.sql import SQL, Identifier

from workflows.models import Job

WEEK = timedelta(weeks=1)
AHEAD = 4
"""So many weeks have their partition before they begin."""

MOVED_AT_MOST = 20_000
"""Where the catch-all holds more of a week, they stay there: whoever writes that week's history waits for the move."""

_PATIENCE = "50ms"
BEFORE_ALL = uuid.UUID(int=0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_BOUNDS = re.compile(r"FROM \('([0-9a-f-]{36})'\) TO \('([0-9a-f-]{36})'\)")

_OF_WEEK = SQL("FROM sag_workflows_event_default WHERE job_id >= %s AND job_id < %s")
_COUNT = SQL("SELECT count(*) FROM (SELECT {of_week} LIMIT %s) AS few").format(of_week=_OF_WEEK)
_MOVE = SQL("WITH moved AS (DELETE {of_week} RETURNING *) INSERT INTO {partition} SELECT * FROM moved")
_LEAPS = SQL("""
WITH RECURSIVE seen AS (
    (SELECT job_id FROM {partition} WHERE job_id > %s ORDER BY job_id LIMIT 1)
    UNION ALL
    SELECT following.job_id FROM seen CROSS JOIN LATERAL
        (SELECT job_id FROM {partition} WHERE job_id > seen.job_id ORDER BY job_id LIMIT 1) AS following
)
SELECT job_id FROM seen LIMIT %s
""")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """It holds the events of jobs whose ids are `first` or more and below `end`; the catch-all, without bounds, all others."""

    name: str
    first: uuid.UUID | None
    end: uuid.UUID | None

    @property
    def is_catch_all(self) -> bool:
        return self.first is None

    def ended_before(self, moment: datetime) -> bool:
        return self.end is not None and self.end <= first_id(moment)

    def covers(self, moment: datetime) -> bool:
        return self.first is not None and self.end is not None and self.first <= first_id(moment) < self.end


# --- ids and weeks ---------------------------------------------------------------------------------------------------


def first_id(moment: datetime) -> uuid.UUID:
    """The smallest id that a job opened at this moment can have (a UUID of version 7)."""
    return uuid.UUID(int=(moment - _EPOCH) // _MILLISECOND << 80 | 7 << 76 | 2 << 62)


def moment_of(job_id: uuid.UUID) -> datetime:
    """When it was made, by the clock of who made it."""
    return _EPOCH + (job_id.int >> 80) * _MILLISECOND


def week_of(moment: datetime) -> datetime:
    """The beginning of its week: Monday, midnight UTC."""
    return _MONDAY + (moment - _MONDAY) // WEEK * WEEK


def present() -> datetime:
    """By the database's own clock, whatever its offset."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment


# --- what is there ---------------------------------------------------------------------------------------------------


def partitions() -> list[Partition]:
    """All of them, by name, which is by age."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT part.relname, pg_get_expr(part.relpartbound, 0)
            FROM pg_inherits JOIN pg_class part ON part.oid = inhrelid
            WHERE inhparent = to_regclass('sag_workflows_event') ORDER BY part.relname
            """
        )
        return [_partition(name, bounds) for name, bounds in cursor.fetchall()]


def _partition(name: str, bounds: str) -> Partition:
    found = _BOUNDS.search(bounds)
    first, end = map(uuid.UUID, found.groups()) if found else (None, None)
    return Partition(name=name, first=first, end=end)


def jobs_in(partition: Partition, after: uuid.UUID = BEFORE_ALL, *, limit: int) -> list[uuid.UUID]:
    """Whose events it holds: so many ids behind `after`, in order, found by leaps over the events between them."""
    with connection.cursor() as cursor:
        cursor.execute(_LEAPS.format(partition=Identifier(partition.name)), [after, limit])
        return [job_id for (job_id,) in cursor.fetchall()]


# --- making and dropping ---------------------------------------------------------------------------------------------


def make_ahead() -> int:
    """The partitions of this week and the next ones, as far as they are missing. How many were made."""
    this_week = week_of(present())
    return make(this_week, this_week + AHEAD * WEEK)


def make(first: datetime, last: datetime) -> int:
    """The partitions of the weeks from `first` to `last`, as far as they are missing. How many were made."""
    there = partitions()
    weeks = [first + number * WEEK for number in range((last - first) // WEEK + 1)]
    return sum(_make(week) for week in weeks if not any(partition.covers(week) for partition in there))


def _make(week: datetime) -> bool:
    try:
        return _attach(week, move=False)
    except IntegrityError:  # the catch-all holds events of this week
        pass
    except Error as error:
        return _not_now(f"Nobody could make the history's partition of the week of {week:%Y-%m-%d}", error)
    try:
        return _attach(week, move=True)
    except Error as error:
        return _not_now(f"Nobody could move the history of the week of {week:%Y-%m-%d} to a partition", error)


def _attach(week: datetime, *, move: bool) -> bool:
    """Attaching locks the catch-all, and no other partition, against writing."""
    name = Identifier(f"sag_workflows_event_{week:%Y_%m_%d}")
    bounds = [first_id(week), first_id(week + WEEK)]
    with _briefly() as cursor:
        cursor.execute(SQL("CREATE TABLE {} (LIKE sag_workflows_event INCLUDING DEFAULTS)").format(name))
        if move:
            cursor.execute("LOCK TABLE sag_workflows_event_default IN ACCESS EXCLUSIVE MODE")
            cursor.execute(_COUNT, [*bounds, MOVED_AT_MOST + 1])
            if cursor.fetchone()[0] > MOVED_AT_MOST:
                transaction.set_rollback(True)
                return False
            cursor.execute(_MOVE.format(of_week=_OF_WEEK, partition=name), bounds)
        attach = SQL("ALTER TABLE sag_workflows_event ATTACH PARTITION {} FOR VALUES FROM (%s) TO (%s)")
        cursor.execute(attach.format(name), bounds)
    return True


def drop(partition: Partition) -> bool:
    """Drop it with all its events, unless a job of its time is left. Whether it is gone."""
    jobs = Job.objects.filter(pk__gte=partition.first, pk__lt=partition.end)
    if jobs.exists():
        return False
    try:
        with _briefly() as cursor:
            cursor.execute(SQL("DROP TABLE {}").format(Identifier(partition.name)))
            # Looked at again now that the history is locked, which whoever opens a job has in use until that is committed.
            left = jobs.exists()
            transaction.set_rollback(left)
        return not left
    except Error as error:
        return _not_now(f"Nobody could drop {partition.name}, whose jobs are gone", error)


@contextmanager
def _briefly() -> Iterator[CursorWrapper]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = %s", [_PATIENCE])
        yield cursor


def _not_now(said: str, error: Error) -> bool:
    log.warning("%s; it is tried again: %s", said, " ".join(str(error).split()))
    return False
