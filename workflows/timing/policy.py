"""Policy: what becomes of a due time that nobody opened in time, or that finds the job before it still at work."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Self, get_args

from workflows.exceptions import InvalidInput
from workflows.plans.nearest import did_you_mean
from workflows.timing.timetable import Timetable

CatchUp = Literal["none", "latest", "recent", "all"]
Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow"]

ON_TIME = timedelta(seconds=60)
"""A due time that is opened within this is on time: it is never made up for, and never left out for being late."""

WINDOW = 7 * 86_400
LIMITS: dict[str, int] = {"none": 1, "latest": 1, "recent": 10, "all": 1000}
_SHORTEST_WINDOW = 60
_LONGEST_WINDOW = 366 * 86_400
_LONGEST_JITTER = 86_400


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Durations are whole seconds. `catch_up_limit` None: as many as `LIMITS` says."""

    catch_up: CatchUp = "latest"
    catch_up_window: int = WINDOW
    catch_up_limit: int | None = None
    overlap: Overlap = "skip"
    jitter: int = 0
    pause_on_failure: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidInput with all that is wrong."""
        if faults := list(self._faults()):
            raise InvalidInput(
                f"This schedule cannot be kept: {faults[0][0]} {faults[0][1]}",
                errors=[{"pointer": f"/{field}", "message": fault} for field, fault in faults],
            )

    def _faults(self) -> Iterator[tuple[str, str]]:
        for name, allowed in (("catch_up", get_args(CatchUp)), ("overlap", get_args(Overlap))):
            if getattr(self, name) not in allowed:
                yield name, f"cannot be {getattr(self, name)!r}.{did_you_mean(getattr(self, name), allowed)}"
        bounds = [
            ("catch_up_window", _SHORTEST_WINDOW, _LONGEST_WINDOW),
            ("catch_up_limit", 1, LIMITS["all"]),
            ("jitter", 0, _LONGEST_JITTER),
        ]
        for name, least, most in bounds:
            value = getattr(self, name)
            if value is None and name == "catch_up_limit":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                yield name, f"must be a whole number from {least} to {most}, not {value!r}."

    @property
    def limit(self) -> int:
        """How many due times at most are made up for at once."""
        if self.catch_up == "latest":
            return 1
        return self.catch_up_limit or LIMITS[self.catch_up]

    def to_make_up(self, timetable: Timetable, since: datetime, now: datetime) -> set[datetime]:
        """Which of the late due times from `since` on are started after all."""
        if self.catch_up == "none":
            return set()
        opens = max(since, now - timedelta(seconds=self.catch_up_window))
        return set(timetable.last_before(now - ON_TIME, opens, self.limit)) if opens < now - ON_TIME else set()

    def why_not(self, due: datetime, now: datetime) -> tuple[str, str]:
        """[code, sentence] of a late due time that is not made up for."""
        if self.catch_up == "none":
            return "late", f"It was noticed {_ago(now - due)} late, and the schedule catches up on none."
        if due < now - timedelta(seconds=self.catch_up_window):
            return "window", f"It was noticed {_ago(now - due)} late, past the window of the schedule."
        if self.catch_up == "latest":
            return "superseded", "Of the due times that were missed only the latest is made up for."
        return "limit", f"Of the due times that were missed only the last {self.limit} are made up for."

    def to_json(self) -> dict[str, Any]:
        """As it is compared at deploy time."""
        return {name: getattr(self, name) for name in POLICY_FIELDS}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`; takes what else stands in the document for somebody else's."""
        return cls(**{name: document[name] for name in POLICY_FIELDS})


POLICY_FIELDS = ("catch_up", "catch_up_window", "catch_up_limit", "overlap", "jitter", "pause_on_failure")


def _ago(span: timedelta) -> str:
    return str(timedelta(seconds=int(span.total_seconds())))
