"""The booking API under many clients at once: one key, one job, whoever asks and however often."""

import json
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2

from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import BOOKING, Trips

AT_ONCE = 50
JSON = "application/problem+json"


def client_of(system: RunningSystem, name: str, *scopes: str) -> httpx2.Client:
    """A client program of its own, with the token that the shell command prints."""
    options = [part for scope in scopes for part in ("--scope", scope)]
    made = system.manage("create_token", name, *options)
    assert made.returncode == 0, made.stderr
    return system.client(made.stdout.strip())


def problem(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.headers["content-type"].startswith(JSON), answer.text
    return dict(answer.json())


def test_fifty_identical_bookings_at_once_are_one_job(system: RunningSystem) -> None:
    key, together = str(uuid.uuid4()), threading.Barrier(AT_ONCE)

    def book(api: httpx2.Client) -> httpx2.Response:
        together.wait(30)
        return api.post("/bookings", json=BOOKING, headers={"Idempotency-Key": key})

    with Trips(system) as trips:
        limits = httpx2.Limits(max_connections=AT_ONCE)
        with (
            httpx2.Client(base_url=trips.api.base_url, headers=trips.api.headers, timeout=60, limits=limits) as api,
            ThreadPoolExecutor(AT_ONCE) as threads,
        ):
            answers = list(threads.map(book, [api] * AT_ONCE))
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) <= {202, 409}, statuses
        assert statuses[202] >= 1
        accepted = {answer.json()["id"] for answer in answers if answer.status_code == 202}
        assert len(accepted) == 1
        assert all("Retry-After" in answer.headers for answer in answers if answer.status_code == 409)
        assert system.sql("SELECT count(*) FROM sag_workflows_job WHERE key = %s", key) == [{"count": 1}]
        trips.ids += accepted
        assert trips.end(trips.ids[0])["state"] == "Completed"


def test_a_repeated_booking_is_answered_as_the_first_time_and_its_key_takes_no_other(system: RunningSystem) -> None:
    """SAS-084."""
    other = {**BOOKING, "traveller": {"name": "Grace Lund", "email": "grace@example.com"}}
    reordered = dict(reversed(BOOKING.items()))
    with Trips(system) as trips:
        key = str(uuid.uuid4())
        first = trips.post("/bookings", BOOKING, key=key)
        trips.ids.append(first.json()["id"])
        assert first.status_code == 202
        assert first.headers["Location"] == f"/api/v1/bookings/{first.json()['id']}"
        trips.end(trips.ids[0])
        again = trips.post("/bookings", reordered, key=key)
        assert (again.status_code, again.json()) == (202, first.json())
        assert trips.post("/bookings", BOOKING, key=f'"{key}"').json() == first.json()
        refused = trips.post("/bookings", other, key=key)
        assert refused.status_code == 422
        assert problem(refused)["type"].endswith("idempotency-key-reused")
        assert system.sql("SELECT count(*) FROM sag_workflows_job WHERE key = %s", key) == [{"count": 1}]


def test_a_booking_without_a_key_is_refused_before_anything_is_done(system: RunningSystem) -> None:
    with Trips(system) as trips:
        before = system.sql("SELECT count(*) FROM sag_workflows_job")
        answer = trips.api.post("/bookings", json=BOOKING)
        assert answer.status_code == 400
        assert problem(answer)["type"].endswith("idempotency-key-required")
        assert system.sql("SELECT count(*) FROM sag_workflows_job") == before


def test_a_booking_that_makes_no_sense_is_refused_with_the_place_of_the_fault(system: RunningSystem) -> None:
    with Trips(system) as trips:
        wrong = {**BOOKING, "hotel": {**BOOKING["hotel"], "check_out": "2027-03-01"}}
        key = str(uuid.uuid4())
        answer = trips.post("/bookings", wrong, key=key)
        assert answer.status_code == 422
        assert [error["pointer"] for error in problem(answer)["errors"]] == ["/hotel/check_out"]
        mended = trips.post("/bookings", BOOKING, key=key)  # nothing was done, so the key is free
        assert mended.status_code == 202
        trips.ids.append(mended.json()["id"])
        trips.end(trips.ids[0])


def test_two_clients_may_use_the_same_key_and_see_nothing_of_each_other(system: RunningSystem) -> None:
    """SAS-085."""
    key = str(uuid.uuid4())
    scopes = ("jobs:read", "jobs:write")
    with Trips(system) as trips, client_of(system, "shop-a", *scopes) as a, client_of(system, "shop-b", *scopes) as b:
        mine, theirs = (api.post("/bookings", json=BOOKING, headers={"Idempotency-Key": key}) for api in (a, b))
        assert (mine.status_code, theirs.status_code) == (202, 202)
        ids = [mine.json()["id"], theirs.json()["id"]]
        assert ids[0] != ids[1]
        trips.ids += ids
        assert a.get(f"/bookings/{ids[0]}").status_code == 200
        assert b.get(f"/bookings/{ids[0]}").status_code == 404
        assert b.post(f"/jobs/{ids[0]}/cancellation", json={}, headers={"Idempotency-Key": "c"}).status_code == 404
        assert [job["id"] for job in b.get("/jobs").json()["results"]] == [ids[1]]
        assert trips.wait_for_end() == {"Completed": 2}


def test_a_token_is_needed_and_its_scope_is_kept(system: RunningSystem) -> None:
    with (
        client_of(system, "reader", "jobs:read") as reader,
        httpx2.Client(base_url=f"{system.base_url}/api/v1") as nobody,
    ):
        assert nobody.get("/jobs").status_code == 401
        assert reader.get("/jobs").status_code == 200
        assert reader.post("/bookings", json=BOOKING, headers={"Idempotency-Key": "k"}).status_code == 403


def test_a_retry_of_what_runs_or_has_ended_well_is_refused_and_says_what_is_now_true(system: RunningSystem) -> None:
    """SAS-105, and the stale click of a second operator: 409 with what may be asked, 412 for an old version."""
    system.fault("hotels", latency_ms=1500, times=1, operations=["reserve"])
    with Trips(system) as trips:
        trip = trips.book()
        seen = trips.api.get(f"/jobs/{trip}").headers["ETag"]
        trips.wait_for_call(trip, "hotels", "reserve")
        running = trips.post(f"/jobs/{trip}/steps/hotel/retries")
        assert running.status_code == 409
        assert problem(running)["allowed"] == ["cancellation", "result"]
        trips.end(trip)
        version = trips.job(trip)
        stale = trips.api.post(f"/jobs/{trip}/retries", json={}, headers={"If-Match": seen, "Idempotency-Key": "stale"})
        assert stale.status_code == 412
        assert trips.api.post(f"/jobs/{trip}/retries", json={}).status_code == 428
        assert trips.post(f"/jobs/{trip}/retries").status_code == 409
        assert trips.cancel(trip).status_code == 409
        assert trips.job(trip) == version


def test_a_job_from_the_shell_runs_like_any_other(system: RunningSystem) -> None:
    file = system.folder / "trip.json"
    file.write_text(json.dumps(BOOKING))
    with Trips(system) as trips:
        first = system.manage("start_job", "TripBooking", "--input", str(file), "--key", "from-the-shell")
        again = system.manage("start_job", "TripBooking", "--input", str(file), "--key", "from-the-shell")
        assert first.returncode == 0, first.stderr
        assert first.stdout == again.stdout
        trips.ids.append(first.stdout.strip())
        assert trips.end(trips.ids[0])["state"] == "Completed"


def test_the_history_of_a_trip_is_read_by_its_own_numbers(system: RunningSystem) -> None:
    with Trips(system) as trips:
        trip = trips.book()
        trips.end(trip)
        numbers = [event["seq"] for event in trips.events(trip)]
        assert numbers == list(range(1, len(numbers) + 1))
        rest = trips.api.get(f"/jobs/{trip}/events", params={"since": 3}).json()["results"]
        assert [event["seq"] for event in rest] == numbers[3:]
