"""The record of what became of due times: whether it is whole, and what of it is forgotten when."""

from datetime import datetime

from django.db.models import Exists, Max, Model, OuterRef, Q, QuerySet

from workflows.clock import now
from workflows.models import Schedule, ScheduleChange, Tick
from workflows.ticks import Kind
from workflows.timing.policy import ON_TIME
from workflows.transitions import in_transaction

_MOST_COMPARED = 1000
_TIMETABLE_CHANGES = ("created", "declared", "changed")


def missing(schedule: Schedule, since: datetime) -> list[datetime]:
    """Due times from `since` on that have no row although later ones were decided on. There should never be one.

    Looks back no further than the last change, before which another timetable held.
    """
    changed_at = schedule.changes.filter(kind__in=_TIMETABLE_CHANGES).aggregate(last=Max("at"))["last"]
    begin = max(filter(None, (since, changed_at)))
    end = schedule.next_due or now()
    if begin >= end:
        return []
    due_times = schedule.times.last_before(end, begin, _MOST_COMPARED)
    known = Tick.objects.filter(schedule=schedule, kind=Kind.DUE, due_at__in=due_times)
    return sorted(set(due_times) - set(known.values_list("due_at", flat=True)))


def is_late(schedule: Schedule, present: datetime) -> bool:
    """Whether a due time has come that nobody opened in time: whoever opens them is away."""
    return schedule.next_due is not None and schedule.next_due < present - ON_TIME


# --- what is forgotten ------------------------------------------------------------------------------------------------


def forget_ticks(before: datetime, batch: int, batches: int) -> int:
    """Delete those that were decided on before, oldest first; how many.

    Kept are those that are open, and the last one of each schedule that goes on: that it ran is never forgotten.
    """
    newer = Tick.objects.filter(schedule=OuterRef("schedule"), kind=Kind.DUE, due_at__gt=OuterRef("due_at"))
    goes_on = Schedule.objects.kept().filter(pk=OuterRef("schedule"), next_due__isnull=False)
    is_over = Q(open=False) | Q(pk__in=Tick.objects.of_ended_jobs())
    to_go = Tick.objects.filter(is_over, Exists(newer) | ~Exists(goes_on))
    return _forget(Tick.objects.values_list("pk", "decided_at"), to_go, before, batch, batches)


def forget_changes(before: datetime, batch: int, batches: int) -> int:
    """Delete what was changed before, but for the last change of each schedule; how many."""
    newer = ScheduleChange.objects.filter(schedule=OuterRef("schedule"), pk__gt=OuterRef("pk"))
    to_go = ScheduleChange.objects.filter(Exists(newer))
    return _forget(ScheduleChange.objects.values_list("pk", "at"), to_go, before, batch, batches)


@in_transaction
def forget_schedules(before: datetime, batch: int) -> int:
    """Delete schedules that were removed, or have no due time any more, and of which no tick is left; how many.

    Those that the code declares are kept: else what people removed would be declared again.
    """
    over = Schedule.objects.filter(Q(deleted_at__isnull=False) | Q(next_due__isnull=True), declaration__isnull=True)
    ticks = Tick.objects.filter(schedule=OuterRef("pk"))
    changes = ScheduleChange.objects.filter(schedule=OuterRef("pk"), at__gte=before)
    to_go = over.filter(~Exists(ticks), ~Exists(changes))
    locked = list(to_go.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True)[:batch])
    still = list(to_go.filter(pk__in=locked).values_list("pk", flat=True))  # somebody may just have run it once more
    ScheduleChange.objects.filter(schedule__in=still).delete()
    Schedule.objects.filter(pk__in=still).delete()
    return len(still)


def _forget(
    rows: "QuerySet[Model, tuple[int, datetime]]", to_go: QuerySet[Model], before: datetime, batch: int, batches: int
) -> int:
    """Walks by the primary key, in whose order they were written: the first young row ends the walk."""
    last, gone = 0, 0
    for _ in range(batches):
        page = list(rows.filter(pk__gt=last).order_by("pk")[:batch])
        old = [pk for pk, at in page if at < before]
        if old:
            found = to_go.filter(pk__in=old)
            gone += found._raw_delete(found.db)
        if len(old) < batch:
            break
        last = old[-1]
    return gone
