"""Is this installation healthy, and if not, what is to be done? One finding for each thing that has to be in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.conf import settings
from django.core.checks import Tags, run_checks
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import F, Q

from supervisor import channels, health
from supervisor.console import pulse
from supervisor.health import WAITS_TOO_LONG
from supervisor.models import Incident, Telling
from workflows import broker, history, standing, tick_records
from workflows.clock import now
from workflows.conf import conf
from workflows.models import Agent, ClockOffset, Schedule, Step

_BEAT_IS_LATE = timedelta(seconds=10)
_TICKS_OF = timedelta(days=1)
_MOST_SCHEDULES = 200
_FAILS_TOO_OFTEN = 3
_HANGS_AFTER = timedelta(minutes=5)


class Grade(StrEnum):
    WELL = "well"
    LOOK = "look"
    """It works, but somebody should look."""
    ILL = "ill"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was looked at, how it is, and what to do unless it is well."""

    about: str
    grade: Grade
    said: str
    do: str = ""


def examine() -> list[Finding]:
    """Everything, in the order in which it is to be mended. Where the database cannot be asked, only what else can."""
    found = [_looked_at("database", _database)]
    if found[0].grade == Grade.ILL:
        return [*found, _looked_at("broker", _broker)]
    found.append(_looked_at("migrations", _migrations))
    if found[-1].grade == Grade.ILL:
        return [*found, _looked_at("broker", _broker)]
    for about, look in (
        ("durability", _durability),
        ("standby", _standby),
        ("clock", _clock),
        ("history", _history),
        ("broker", _broker),
        ("sweeps", _sweeps),
        ("beat", _beat),
        ("ticks", _ticks),
        ("workers", _workers),
        ("operations", _operations),
        ("waiting", _waiting),
        ("breakers", _breakers),
        ("attention", _attention),
        ("channels", _channels),
    ):
        found.append(_looked_at(about, look))
    return found


_Found = tuple[Grade, str, str]


def _looked_at(about: str, look: Callable[[], _Found]) -> Finding:
    try:
        grade, said, do = look()
    except Error as error:
        grade, said = Grade.ILL, f"It could not be looked at: {' '.join(str(error).split())}"
        do = "See that the database server runs, and that DATABASE_URL names it."
    return Finding(about=about, grade=grade, said=said, do=do)


def _well(said: str) -> _Found:
    return Grade.WELL, said, ""


# --- the store -------------------------------------------------------------------------------------------------------


def _database() -> _Found:
    connection.ensure_connection()
    version = ".".join(map(str, connection.get_database_version()))
    if faults := run_checks(tags=[Tags.database], databases=["default"]):
        return Grade.ILL, " ".join(str(fault.msg) for fault in faults), "Mend what is named."
    return _well(f"PostgreSQL {version} answers.")


def _migrations() -> _Found:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        names = ", ".join(f"{migration.app_label} {migration.name}" for migration, _ in missing[:3])
        return Grade.ILL, f"{len(missing)} are not applied: {names}.", "Run `manage.py migrate`."
    return _well("All are applied.")


def _durability() -> _Found:
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if _setting(name) == "off"]
    if off:
        said = f"Off: {', '.join(off)}. A crash of the server can lose what was committed."
        return Grade.LOOK, said, "Set them on in the server's configuration."
    return _well("What is committed is on disk.")


def _standby() -> _Found:
    with connection.cursor() as cursor:
        cursor.execute("SELECT application_name, sync_state FROM pg_stat_replication ORDER BY application_name")
        return of_standbys(cursor.fetchall())


def of_standbys(rows: Sequence[tuple[str | None, str | None]]) -> _Found:
    """Of [name, how it follows]; which only a member of pg_monitor is told."""
    if not rows:
        return _well("There is none.")
    if any(state is None for _, state in rows):
        said = f"There are {len(rows)}, and this role may not see how they follow."
        return Grade.LOOK, said, "GRANT pg_monitor to the role of DATABASE_URL."
    if any(state in ("sync", "quorum") for _, state in rows):
        return _well("A standby has what is committed before anybody is told so.")
    names = ", ".join(name or "without a name" for name, _ in rows)
    said = f"Asynchronous: {names}. A failover may lose the last commits, and the knowledge of calls that were made."
    return Grade.LOOK, said, "Name one of them in synchronous_standby_names, or know it when you fail over."


def _setting(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        value: str = cursor.fetchone()[0]
    return value


def _clock() -> _Found:
    ahead = ClockOffset.objects.values_list("ahead", flat=True).first() or timedelta()
    if ahead:
        said = f"It runs {ahead} ahead of the database's own: a test or a rehearsal has left it so."
        return Grade.ILL, said, "Stop the workers, and empty the table sag_workflows_clockoffset."
    return _well("It is the database's own.")


def _history() -> _Found:
    """Where the events of coming weeks go, and whether some went where they are forgotten row by row."""
    partitions = history.partitions()
    next_week = history.present() + history.WEEK
    if not any(partition.covers(next_week) for partition in partitions):
        do = "See that the supervisor runs, and that the role of DATABASE_URL owns the tables."
        return Grade.LOOK, "The next week has no partition yet; without one its events go to the catch-all.", do
    strays = [job for partition in partitions if partition.is_catch_all for job in history.jobs_in(partition, limit=1)]
    if strays:
        said = f"The catch-all holds events, the first of them of {history.moment_of(strays[0]):%Y-%m-%d %H:%M} by the job's id."
        return Grade.LOOK, said, "Set the clocks of all hosts. These events go with their jobs, only more slowly."
    return _well("Each week has its partition, and the next ones too.")


# --- what moves the jobs ---------------------------------------------------------------------------------------------


def _broker() -> _Found:
    try:
        depth = broker.depth(broker.SUPERVISOR_QUEUE)
    except Exception as error:  # each transport has errors of its own
        said = f"It does not answer: {error}. Nothing is lost, but jobs wait."
        return Grade.ILL, said, "See that it runs, and that CELERY_BROKER_URL names it."
    if depth >= conf.rings_per_queue:
        said = f"{depth} messages wait for the supervisor, which takes none."
        return Grade.ILL, said, "Start `manage.py up --supervisor`."
    return _well("It answers.")


def _sweeps() -> _Found:
    found = health.look(now())
    if found.sweeps_missed:
        do = "Start `manage.py up --supervisor` and `manage.py up --beat`."
        return Grade.ILL, f"{found.sweeps_missed} What gets stuck is not found.", do
    if found.observes:
        return Grade.LOOK, health.OBSERVES, "Take `observe_only` out of the settings and start the supervisor anew."
    return _well("The supervisor looks, and acts on what it finds.")


def _beat() -> _Found:
    late = now() - _BEAT_IS_LATE
    said = [missed] if (missed := health.look(now()).ticks_missed) else []
    if schedules := Schedule.objects.due().filter(next_due__lt=late).count():
        said.append(f"Schedules with due times that nobody opened: {schedules}.")
    rung_late = Step.objects.to_ring().filter(ring_after__lt=late).values_list("queue", flat=True)
    queues = set(rung_late[: standing.COUNTED])
    if unrung := [queue for queue in sorted(queues) if not _is_full(queue)]:
        said.append(f"Nobody rings for ready steps of the queues {', '.join(unrung)}.")
    if said:
        return Grade.ILL, " ".join(said), "Start `manage.py up --beat`, once, and see that the supervisor runs."
    return _well("Due steps are rung for, due times are opened.")


def _ticks() -> _Found:
    since = now() - _TICKS_OF
    looked_at = list(Schedule.objects.kept().order_by(F("scanned_at").desc(nulls_last=True))[:_MOST_SCHEDULES])
    incomplete = [(schedule, gaps) for schedule in looked_at if (gaps := tick_records.missing(schedule, since))]
    if incomplete:
        said = "; ".join(
            f"{schedule.workflow} ({schedule.pk}) has none for {len(gaps)}, the first of {gaps[0]:%Y-%m-%d %H:%M:%S} UTC"
            for schedule, gaps in incomplete[:3]
        )
        do = "Somebody has deleted rows, or moved the clock. Run what is missing by a backfill."
        return Grade.ILL, f"Due times of the last day without a row: {said}.", do
    return _well(f"Each due time of the last day has its row, in {len(looked_at)} schedules.")


def _is_full(queue: str) -> bool:
    """Whether the workers of this queue, and not beat, are who is missing."""
    try:
        return broker.depth(queue) >= conf.rings_per_queue
    except Exception:  # the broker has a finding of its own
        return True


def _workers() -> _Found:
    agents = list(Agent.objects.all())
    if not agents:
        return Grade.ILL, "None has announced an agent yet.", "Start `manage.py up --agents`."
    served = standing.served_queues()
    if unserved := sorted({agent.queue for agent in agents} - served):
        names = ", ".join(sorted(agent.name for agent in agents if agent.queue in unserved))
        said = f"None was heard of lately on the queues {', '.join(unserved)} (agents {names})."
        return Grade.ILL, said, "Start `manage.py up --agents`, or workers of these queues."
    return _well(f"All {len(agents)} agents have some.")


def _operations() -> _Found:
    if missing := standing.operations_without_worker():
        said = "; ".join(f"{workflow} names {', '.join(names)}" for workflow, names in missing.items())
        do = "Start workers whose code has these operations; until then steps that call them wait."
        return Grade.ILL, f"No worker offers what the plans need: {said}.", do
    return _well("Workers offer all that the plans name.")


def _waiting() -> _Found:
    present = now()
    long = {queue: since for queue, since in standing.oldest_ready().items() if present - since > WAITS_TOO_LONG}
    if not long:
        return _well("No ready step has waited long.")
    said = "; ".join(_line(queue, present, since) for queue, since in long.items())
    if long.keys() <= standing.served_queues():
        return Grade.LOOK, f"Waiting long: {said}. Their workers are busy.", "Start more agent processes, or wait."
    return (
        Grade.ILL,
        f"Waiting long: {said}. No worker takes them.",
        "Start `manage.py up --agents`, or workers of these queues.",
    )


def _line(queue: str, present: datetime, since: datetime) -> str:
    number = standing.counted(Step.objects.in_line(queue).filter(run_after__lt=present - WAITS_TOO_LONG))
    told = f"{number:,} or more" if number == standing.COUNTED else number
    return f"ready steps of the queue {queue}: {told}, the oldest for {_seconds(present - since)}"


def _breakers() -> _Found:
    going_on = Incident.objects.filter(closed_at__isnull=True).order_by("agent")
    if not going_on:
        return _well("No service is taken to be away.")
    said = ", ".join(f"{incident.agent} ({incident.cause})" for incident in going_on)
    do = "Ask whoever runs the service. Steps for it are parked, uncharged, and go on by themselves; see /agents/."
    return Grade.LOOK, f"Away: {said}.", do


def _attention() -> _Found:
    needy = pulse.needy()
    if not needy:
        return _well("Nobody is needed.")
    return Grade.LOOK, f"Jobs that need a person: {needy}.", "See /attention/."


def _channels() -> _Found:
    names = [channel.name for channel in channels.configured()]
    if faults := channels.faults():
        return Grade.ILL, " ".join(fault.said for fault in faults), " ".join(fault.do for fault in faults)
    if not names:
        said = "Nobody is told of outages and of jobs that need a person."
        return Grade.LOOK, said, "Set SAG_NOTIFY, SAG_WEBHOOKS or SAG_APPRISE, and run `manage.py try_channels`."
    if failing := _failing(names):
        do = "Mend what is named, and run `manage.py try_channels`. What could not be told is tried again."
        return Grade.ILL if len(failing) == len(names) else Grade.LOOK, " ".join(failing.values()), do
    links = "" if settings.SAG_URL else " Their messages have no links: SAG_URL is not set."
    return _well(f"People are told over {', '.join(names)}.{links}")


def _failing(names: Sequence[str]) -> dict[str, str]:
    """What is wrong with each channel that has something to tell and cannot."""
    hangs_since = now() - _HANGS_AFTER
    rows = Telling.objects.filter(over=False, attempts__gt=0, channel__in=names).order_by("attempts")
    said = {}
    for row in rows.filter(Q(attempts__gte=_FAILS_TOO_OFTEN) | Q(try_after__lt=hangs_since)):
        if row.try_after is not None and row.try_after < hangs_since:
            said[row.channel] = f"{row.channel} was to be tried again and was not: it hangs, or no supervisor runs."
        else:
            said[row.channel] = f"{row.channel} has failed {row.attempts} times: {row.last_error}"
    return said


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"
