"""What a workflow's `schedule = …` is written with: Cron, Calendar, Every and At."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from workflows.exceptions import InvalidInput, InvalidWorkflow
from workflows.plans.nearest import did_you_mean
from workflows.timing.policy import POLICY_FIELDS, CatchUp, Overlap, Policy
from workflows.timing.timetable import Timetable, as_tuple

_OPTIONS = ("timezone", "exclude", "start_at", "end_at", *POLICY_FIELDS)


class Recurring:
    """When jobs of a workflow are started, and by which rules. Made by Cron, Calendar, Every and At."""

    timetable: Timetable
    policy: Policy

    def _take(self, times: dict[str, Any], options: dict[str, Any]) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise InvalidWorkflow(f"{type(self).__name__} has no {name}=.{did_you_mean(name, _OPTIONS)}")
        policy = {name: options.pop(name) for name in POLICY_FIELDS if name in options}
        options["exclude"] = as_tuple(options.pop("exclude", ()))
        try:
            self.timetable = Timetable(**times, **options)
            self.policy = Policy(**policy)
        except InvalidInput as error:
            raise InvalidWorkflow(f"{type(self).__name__}: {error.message}") from error
        except (TypeError, AttributeError) as error:
            raise InvalidWorkflow(f"{type(self).__name__}: {times | options} cannot be read: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """As it is stored, and compared with the next deploy's."""
        return {**self.timetable.to_json(), **self.policy.to_json()}


class Cron(Recurring):
    """`Cron("0 2 * * *", timezone="Europe/Berlin")`; several expressions are all kept to."""

    def __init__(
        self,
        *expressions: str,
        timezone: str = "UTC",
        catch_up: CatchUp = "latest",
        overlap: Overlap = "skip",
        jitter: int = 0,
        **options: Any,
    ) -> None:
        policy = {"catch_up": catch_up, "overlap": overlap, "jitter": jitter}
        self._take({"cron": expressions}, {"timezone": timezone, **policy, **options})


class Every(Recurring):
    """`Every(900)`: so many seconds from one due time to the next, whatever the clocks on the wall do."""

    def __init__(self, seconds: int, **options: Any) -> None:
        self._take({"every": seconds}, options)


class At(Recurring):
    """`At(datetime(2027, 3, 4, 8, tzinfo=UTC))`: at this moment, or at each of several, and never again."""

    def __init__(self, *moments: datetime, **options: Any) -> None:
        self._take({"at": moments}, options)


class Calendar(Recurring):
    """`Calendar({"day": 13, "weekday": "FRI", "hour": 9})`: where all that is said holds; of several, each."""

    def __init__(self, *entries: Mapping[str, str | int], **options: Any) -> None:
        self._take({"calendar": entries}, options)
