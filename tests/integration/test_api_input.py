"""What the API takes in, and how it refuses the rest: at the door, naming the place, with nothing half-created."""

import json
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from tests.api import TRIP, Program
from workflows.clock import now
from workflows.models import IdempotencyRecord, Job, Step

pytestmark = pytest.mark.django_db


def start(program: Program, **body: Any) -> Any:
    return program.post("jobs", {"workflow": "TripBooking", "input": TRIP, **body}, idempotency_key="k")


def trip(path: str, value: Any) -> dict[str, Any]:
    """A trip in which the field at `path` is `value`."""
    changed = deepcopy(TRIP)
    *parents, last = path.strip("/").split("/")
    part = changed
    for name in parents:
        part = part[name]
    part[last] = value
    return changed


def nothing_was_stored(program: Program) -> bool:
    jobs = Job.objects.filter(client_id=program.user.pk)
    return not jobs.exists() and not IdempotencyRecord.objects.filter(client_id=program.user.pk).exists()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (trip("traveller/name", "Ada\0"), "/traveller/name"),
        (trip("traveller/na\0me", "Ada"), "/traveller/na\\x00me"),
        (trip("traveller/name", "\ud800"), "/traveller/name"),
        (trip("more", ["a", {"b": "\udfff"}]), "/more/1/b"),
        (trip("flight/seats", float("nan")), ""),
        (trip("flight/seats", float("inf")), ""),
    ],
)
def test_what_cannot_be_stored_is_refused_where_it_stands_sas_052(body: Any, pointer: str) -> None:
    program = Program()
    response = program.post("bookings", body, idempotency_key="k")
    assert response.status_code == 400
    assert response.json()["errors"][0]["pointer"] == pointer
    assert nothing_was_stored(program)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"traveller": "\xff"}', "byte 15"),
        (b"{", "line 1"),
        (b'{"a": 1,}', "line 1"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": 1e999}', "/a"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (b"[" * 200 + b"]" * 200, "deep"),
    ],
)
def test_a_body_that_is_no_json_of_ours_is_refused_with_its_place_sas_052(body: bytes, said: str) -> None:
    program = Program()
    response = program.post("bookings", body, idempotency_key="k")
    assert response.status_code == 400
    assert said in response.json()["detail"]
    assert nothing_was_stored(program)


@pytest.mark.parametrize("path", ["jobs?q=a%00b", "jobs?workflow=%00", "bookings?q=%00", "jobs?cursor=%00"])
def test_a_nul_in_a_filter_is_refused_sas_052(path: str) -> None:
    response = Program().get(path)
    assert response.status_code == 400
    assert response.json()["errors"][0]["parameter"] in ("q", "workflow", "cursor")


@pytest.mark.parametrize(
    "path", ["jobs/%00", "jobs/{id}/steps/fl%00ght", "bookings/%FF", "jobs/{id}/steps/" + "x" * 500]
)
def test_nonsense_in_a_path_is_an_address_that_leads_nowhere_sas_052(path: str) -> None:
    program = Program()
    assert program.get(path.format(id=program.book())).status_code == 404


@pytest.mark.parametrize("field", ["key", "workflow"])
def test_a_nul_in_a_field_of_a_start_is_refused_sas_052(field: str) -> None:
    response = start(Program(), **{field: "a\0"})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, f"/{field}")


def test_a_body_of_five_megabytes_is_refused_before_it_is_read_sas_054() -> None:
    program = Program()
    response = program.post("bookings", trip("traveller/name", "x" * 5_000_000), idempotency_key="k")
    assert response.status_code == 413
    assert response.json()["type"] == "/problems/body-too-large"
    assert nothing_was_stored(program)


def test_an_error_never_repeats_a_huge_value() -> None:
    response = Program().post("bookings", trip("traveller/email", "x" * 900_000), idempotency_key="k")
    assert response.status_code == 422
    assert len(response.content) < 10_000


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (trip("flight/date", "tomorrow"), "/flight/date"),
        (trip("flight/seats", "1"), "/flight/seats"),
        (trip("hotel/check_out", "2027-03-01"), "/hotel/check_out"),
        (trip("traveller/emial", "x"), "/traveller/emial"),
        ({name: part for name, part in TRIP.items() if name != "car"}, "/car"),
        (None, "/traveller"),
        ([], ""),
        ("trip", ""),
        (7, ""),
    ],
)
def test_a_trip_that_does_not_fit_is_refused_with_a_pointer_to_the_fault(body: Any, pointer: str) -> None:
    program = Program()
    sent = None if body is None else json.dumps(body).encode()
    response = program.post("bookings", sent, idempotency_key="k")
    assert response.status_code == 422
    assert pointer in [error["pointer"] for error in response.json()["errors"]]
    assert nothing_was_stored(program)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"input": trip("flight/date", "tomorrow")}, "/input/flight/date"),
        ({"input": []}, "/input"),
        ({"workflow": "TripBokking"}, "/workflow"),
        ({"workflow": 7}, "/workflow"),
        ({"key": ""}, "/key"),
        ({"key": "x" * 256}, "/key"),
        ({"key": 5}, "/key"),
        ({"start_at": "2027-03-04T08:00:00"}, "/start_at"),
        ({"start_at": "soon"}, "/start_at"),
        ({"start_at": 1}, "/start_at"),
        ({"start_at": "9999-12-31T23:59:59-14:00"}, "/start_at"),
        ({"start_at": "0001-01-01T00:00:00+14:00"}, "/start_at"),
        ({"strat_at": "2027-03-04T08:00:00Z"}, "/strat_at"),
    ],
)
def test_a_start_that_does_not_fit_is_refused_with_a_pointer_to_the_fault(body: Any, pointer: str) -> None:
    program = Program()
    response = start(program, **body)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert nothing_was_stored(program)


def test_an_unknown_workflow_or_field_is_answered_with_the_nearest_name() -> None:
    assert "'TripBooking'" in start(Program(), workflow="TripBokking").json()["detail"]
    assert "'start_at'" in start(Program(), strat_at="x").json()["detail"]


def test_a_misspelt_undo_does_not_undo() -> None:
    program = Program()
    job_id = program.book()
    response = program.post(f"jobs/{job_id}/cancellation", {"undoo": False})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/undoo")
    assert Job.objects.get(pk=job_id).stopping_at is None


@pytest.mark.parametrize(
    "body", [{"undo": "false"}, {"undo": 0}, {"undo": None}, {"reason": 5}, {"reason": "x" * 2001}]
)
def test_a_cancellation_takes_no_value_for_another(body: Any) -> None:
    program = Program()
    job_id = program.book()
    assert program.post(f"jobs/{job_id}/cancellation", body).status_code == 422
    assert Job.objects.get(pk=job_id).stopping_at is None


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_another_media_type_is_refused(kind: str) -> None:
    program = Program()
    response = program.post("bookings", json.dumps(TRIP).encode(), idempotency_key="k", Content_Type=kind)
    assert response.status_code == 415
    assert nothing_was_stored(program)


def test_a_start_may_be_put_off_and_a_time_that_is_past_means_now() -> None:
    program = Program()
    later = program.post(
        "jobs",
        {"workflow": "TripBooking", "input": TRIP, "start_at": "2099-03-04T08:00:00+02:00"},
        idempotency_key="later",
    ).json()
    assert later["steps"][0]["run_after"] == "2099-03-04T06:00:00Z"
    assert later["waiting_because"] == "flight starts at 2099-03-04 06:00:00 UTC, as was asked for."
    past = start(program, start_at="2020-01-01T00:00:00Z").json()
    assert Step.objects.get(job_id=past["id"], name="flight").run_after <= now() + timedelta(seconds=1)
    assert past["waiting_because"].startswith('flight waits for a worker of queue "agents", until ')
