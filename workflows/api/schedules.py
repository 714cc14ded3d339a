"""What the API is asked about schedules with, and what it answers."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field

from workflows.api.bodies import Body, Moment, Reason, Verb
from workflows.api.documents import JOBS, Document, Page
from workflows.models import Schedule, Tick
from workflows.schedules import Backfill, Reprocess
from workflows.timing.policy import POLICY_FIELDS, WINDOW, CatchUp, Overlap
from workflows.timing.timetable import Timetable, as_tuple

SCHEDULES = "/api/v1/schedules"
_MOST_SHOWN = 100
_AROUND_A_CHANGE = 3


def _several(value: object) -> object:
    """One, written without the list."""
    return value if value is None or isinstance(value, list) else [value]


_Texts = Annotated[list[str] | None, BeforeValidator(_several, json_schema_input_type=str | list[str] | None)]
_Moments = Annotated[list[Moment] | None, BeforeValidator(_several, json_schema_input_type=str | list[str] | None)]
_Entry = dict[str, str | int]
_Entries = Annotated[
    list[_Entry] | None, BeforeValidator(_several, json_schema_input_type=_Entry | list[_Entry] | None)
]


class Times(Body):
    """When something falls due: exactly one of `cron`, `every`, `at` and `calendar`."""

    cron: _Texts = Field(
        default=None, description="An expression of five fields or a nickname like @daily; or several."
    )
    every: int | None = Field(default=None, description="Seconds from one due time to the next.")
    at: _Moments = Field(default=None, description="One moment, or several (RFC 3339 with their offsets).")
    calendar: _Entries = Field(
        default=None,
        description="Of year, month, day, weekday, hour and minute what is to hold, all of it; or several of these.",
        examples=[{"day": 13, "weekday": "FRI", "hour": 9}],
    )
    timezone: str = Field(default="UTC", max_length=100, description="In which the expressions and days are read.")
    exclude: list[str] = Field(
        default=[], description="Days on which nothing falls due: 2027-12-25, or 12-25 each year."
    )
    start_at: Moment | None = Field(default=None, description="Nothing before it; `every` is counted from it.")
    end_at: Moment | None = Field(default=None, description="Nothing after it.")

    def of_timetable(self) -> dict[str, Any]:
        """What was given of these, as a timetable takes it."""
        given = {name: getattr(self, name) for name in Times.model_fields if name in self.model_fields_set}
        return {
            name: as_tuple(value) if name in ("cron", "at", "calendar", "exclude") else value
            for name, value in given.items()
        }


class ScheduleFields(Times):
    """What can be said of a schedule, at first and later. Durations are seconds."""

    input: dict[str, Any] | None = None
    catch_up: CatchUp = Field(
        default="latest", description="Which due times that nobody opened in time are made up for."
    )
    catch_up_window: int = Field(default=WINDOW, description="Nothing older than this is made up for.")
    catch_up_limit: int | None = Field(default=None, description="How many at most; null: 10 for recent, 1000 for all.")
    overlap: Overlap = Field(default="skip", description="What a due time does that finds a job before it at work.")
    jitter: int = Field(default=0, description="A job begins up to this much after its due time.")
    pause_on_failure: bool = Field(default=False, description="Pause when a job has ended badly.")
    paused: bool = False
    note: Reason = Field(default="", description="Why; it stands in the schedule's history.")

    def of_policy(self) -> dict[str, Any]:
        """What was given of it."""
        return {name: getattr(self, name) for name in POLICY_FIELDS if name in self.model_fields_set}


class ScheduleStart(ScheduleFields):
    """Which workflow to start when, with what, and by which rules."""

    workflow: str = Field(min_length=1, max_length=100)


class ScheduleEdit(ScheduleFields):
    """What is to change. One of `cron`, `every`, `at` and `calendar` takes the place of whichever there was."""

    def changes(self) -> dict[str, Any]:
        """What was given, as `schedules.change` takes it."""
        changes = {**self.of_timetable(), **self.of_policy()}
        return changes | {name: getattr(self, name) for name in ("input", "paused") if name in self.model_fields_set}


class PreviewBody(Times):
    """Of which times to tell the next ones."""

    since: Moment | None = Field(
        default=None, alias="from", description="Times after this moment; left out, after now."
    )
    count: int = Field(default=5, ge=1, le=_MOST_SHOWN)
    viewer_timezone: str | None = Field(
        default=None, max_length=100, description="Whoever looks: the times are told in this zone too."
    )


class BackfillBody(Verb):
    """Which part of the past to run; oldest first, unless in reverse."""

    since: Moment = Field(alias="from")
    until: Moment = Field(alias="to", description="Due times before it.")
    dry_run: bool = False
    overlap: Overlap = Field(default="buffer_all", description="One after another, unless it says otherwise.")
    reverse: bool = Field(default=False, description="The newest first.")
    reprocess: Reprocess = Field(
        default="none",
        description="Which due times that were started before run again: none; failed, those whose job ended badly; "
        "completed, all whose job has ended.",
    )
    max_active: int | None = Field(
        default=None, ge=1, description="With overlap allow: at most so many of these jobs run at once."
    )


class ScheduleLinks(Document):
    self: str
    ticks: str
    triggers: str
    backfills: str


class ScheduleDocument(Document):
    """One schedule as it is now. Durations are seconds."""

    id: str
    workflow: str
    input: Any
    cron: list[str]
    every: int | None
    at: list[datetime]
    calendar: list[dict[str, str]]
    timezone: str
    exclude: list[str]
    start_at: datetime | None
    end_at: datetime | None
    catch_up: CatchUp
    catch_up_window: int
    catch_up_limit: int
    overlap: Overlap
    jitter: int
    pause_on_failure: bool
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    pause_note: str | None
    declared: bool = Field(description="The workflow's own code declares it.")
    revision: int
    in_words: str
    next_due: datetime | None = Field(
        description="Null when nothing falls due any more. While paused it is passed over."
    )
    created_at: datetime
    links: ScheduleLinks

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        times, policy, here = schedule.times, schedule.policy, address(schedule)
        return cls(
            id=str(schedule.pk),
            workflow=schedule.workflow,
            input=schedule.input,
            cron=list(times.cron),
            every=times.every,
            at=[moment.astimezone(UTC) for moment in times.at],
            calendar=[entry.to_json() for entry in times.calendar],
            timezone=times.timezone,
            exclude=list(times.exclude),
            start_at=times.start_at,
            end_at=times.end_at,
            catch_up=policy.catch_up,
            catch_up_window=policy.catch_up_window,
            catch_up_limit=policy.limit,
            overlap=policy.overlap,
            jitter=policy.jitter,
            pause_on_failure=policy.pause_on_failure,
            paused=schedule.paused_at is not None,
            paused_at=schedule.paused_at,
            paused_by=schedule.paused_by or None,
            pause_note=schedule.pause_note or None,
            declared=schedule.declaration is not None,
            revision=schedule.revision,
            in_words=times.in_words(),
            next_due=schedule.next_due,
            created_at=schedule.created_at,
            links=ScheduleLinks(
                self=here, ticks=f"{here}/ticks", triggers=f"{here}/triggers", backfills=f"{here}/backfills"
            ),
        )


class TickDocument(Document):
    """What became of one due time. `waiting`: it has its turn when the jobs before it have ended."""

    due_at: datetime = Field(description="The nominal time, however late it was started, and without jitter.")
    kind: Literal["due", "trigger", "backfill"]
    outcome: Literal["started", "waiting", "skipped", "dropped"]
    reason: str | None = Field(description="A stable word, where no job was started.")
    detail: str | None
    made_up: bool = Field(description="It was started after its time, as the catch-up says.")
    decided_at: datetime
    job: str | None = Field(description="The id of the job that was started.")
    job_link: str | None

    @classmethod
    def of(cls, tick: Tick) -> Self:
        return cls(
            due_at=tick.due_at,
            kind=tick.kind,
            outcome=tick.outcome,
            reason=tick.reason or None,
            detail=tick.detail or None,
            made_up=tick.made_up,
            decided_at=tick.decided_at,
            job=str(tick.job_id) if tick.job_id else None,
            job_link=f"{JOBS}/{tick.job_id}" if tick.job_id else None,
        )


class ClockChange(Document):
    """Clocks in the zone change: the last due times before it and the first after it."""

    at: datetime
    offset_before: str
    offset_after: str
    times: list[datetime]
    local_times: list[datetime]


class TimesDocument(Document):
    """The next due times in UTC, in their own zone and in the viewer's, what they are in words, and what happens to them
    when clocks change next."""

    times: list[datetime]
    local_times: list[datetime]
    timezone: str
    viewer_times: list[datetime] | None = Field(description="Null, unless viewer_timezone was given.")
    in_words: str
    clock_change: ClockChange | None = Field(description="Null where clocks do not change within a year.")

    @classmethod
    def of(cls, timetable: Timetable, since: datetime, count: int, viewer: ZoneInfo | None = None) -> Self:
        times = list(islice(timetable.after(since), count))
        zone = ZoneInfo(timetable.timezone)
        return cls(
            times=times,
            local_times=[moment.astimezone(zone) for moment in times],
            timezone=timetable.timezone,
            viewer_times=[moment.astimezone(viewer) for moment in times] if viewer else None,
            in_words=timetable.in_words(),
            clock_change=_clock_change(timetable, since, zone),
        )


def _clock_change(timetable: Timetable, since: datetime, zone: ZoneInfo) -> ClockChange | None:
    found = timetable.around_next_change(since, _AROUND_A_CHANGE)
    if found is None:
        return None
    change, times = found
    return ClockChange(
        at=change,
        offset_before=_offset(change - timedelta(seconds=1), zone),
        offset_after=_offset(change, zone),
        times=times,
        local_times=[moment.astimezone(zone) for moment in times],
    )


def _offset(moment: datetime, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).isoformat()[19:]


class BackfillDocument(Document):
    """`times`: the due times that are run, or on a dry run would be; `left_out`: what the others had been started as."""

    dry_run: bool
    times: list[datetime]
    ticks: list[TickDocument]
    left_out: list[TickDocument]

    @classmethod
    def of(cls, backfill: Backfill, *, dry_run: bool) -> Self:
        return cls(
            dry_run=dry_run,
            times=[tick.due_at for tick in backfill.ticks],
            ticks=[] if dry_run else [TickDocument.of(tick) for tick in backfill.ticks],
            left_out=[TickDocument.of(tick) for tick in backfill.left_out],
        )


class SchedulePage(Page):
    results: list[ScheduleDocument]


class TickPage(Page):
    results: list[TickDocument]


def address(schedule: Schedule) -> str:
    """The path of a schedule."""
    return f"{SCHEDULES}/{schedule.pk}"
