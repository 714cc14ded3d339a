"""A trip: three reservations at three services that know nothing of each other."""

import re
from datetime import date, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from workflows import Retry, Workflow, given, step


def _no_number(value: object) -> object:
    if not isinstance(value, str | date):
        raise ValueError("must be a date written as text, like 2027-03-04")  # a number would be read as seconds
    return value


def _plausible_email(value: str) -> str:
    if not re.fullmatch(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+", value):
        raise ValueError("is no e-mail address")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200)]
Email = Annotated[
    str, Field(min_length=3, max_length=254, json_schema_extra={"format": "email"}), AfterValidator(_plausible_email)
]
Day = Annotated[date, BeforeValidator(_no_number, json_schema_input_type=date)]
People = Annotated[int, Field(strict=True, ge=1, le=9)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, str_strip_whitespace=True, frozen=True)


class Traveller(_Part):
    """Who travels, and where the confirmation goes."""

    name: Name
    email: Email


class Flight(_Part):
    """One leg, for one or more seats."""

    origin: Name = Field(alias="from")
    destination: Name = Field(alias="to")
    date: Day
    seats: People


class Hotel(_Part):
    """A stay of at least one night."""

    city: Name
    check_in: Day
    check_out: Day
    guests: People

    @field_validator("check_out")
    @classmethod
    def _after_check_in(cls, check_out: date, info: ValidationInfo) -> date:
        if "check_in" in info.data and check_out <= info.data["check_in"]:
            raise ValueError("must be after check_in")
        return check_out


class Car(_Part):
    """A rental; pick-up and drop-off may be on the same day."""

    city: Name
    pick_up: Day
    drop_off: Day
    category: Annotated[str, Field(min_length=1, max_length=40)] = Field(alias="class")

    @field_validator("drop_off")
    @classmethod
    def _not_before_pick_up(cls, drop_off: date, info: ValidationInfo) -> date:
        if "pick_up" in info.data and drop_off < info.data["pick_up"]:
            raise ValueError("must not be before pick_up")
        return drop_off


class TripRequest(_Part):
    """What a client program asks for when it books a trip."""

    traveller: Traveller
    flight: Flight
    hotel: Hotel
    car: Car


class TripBooking(Workflow):
    """Reserve a flight, then a hotel that knows when it lands, then a car; undo all of it if one cannot be had."""

    version = 1
    input = TripRequest
    compensate_within = timedelta(days=30)

    flight = step(
        "flight.reserve",
        compensation="flight.cancel",
        probe="flight.find",
        input={"traveller": given["traveller"], "leg": given["flight"]},
    )
    hotel = step(
        "hotel.reserve",
        compensation="hotel.cancel",
        probe="hotel.find",
        input={"stay": given["hotel"], "arrives_at": flight["arrives_at"]},
        timeout=timedelta(seconds=45),
    )
    car = step(
        "car.reserve",
        compensation="car.cancel",
        probe="car.find",
        input={"rental": given["car"]},
        retry=Retry(attempts=5, first=timedelta(seconds=1), cap=timedelta(minutes=1)),
        after=[hotel],
    )
