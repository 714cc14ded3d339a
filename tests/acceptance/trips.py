"""Trips on a running system: booked over the API, followed to their end, and judged by the vendors' own ledger."""

import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.acceptance import ledger_rules
from tests.acceptance.system import RunningSystem
from tests.waiting import wait_until

SERVICES = {"flight": "flights", "hotel": "hotels", "car": "cars"}
BOOKING: dict[str, Any] = {
    "traveller": {"name": "Ada Okafor", "email": "ada@example.com"},
    "flight": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 1},
    "hotel": {"city": "Lisbon", "check_in": "2027-03-04", "check_out": "2027-03-07", "guests": 1},
    "car": {"city": "Lisbon", "pick_up": "2027-03-04", "drop_off": "2027-03-07", "class": "compact"},
}


class Trips:
    """The trips of one test. Leaving the block checks the ledger rules over all of them."""

    def __init__(self, system: RunningSystem) -> None:
        self.system = system
        self.ids: list[str] = []

    def __enter__(self) -> Self:
        self.api = self.system.api
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                ledger_rules.check(self.system, self.ids)
        finally:
            self.api.close()

    # --- ask for ---

    def post(self, path: str, body: dict[str, Any] | None = None, *, key: str | None = None) -> httpx2.Response:
        headers = {"Idempotency-Key": key or str(uuid.uuid4()), "If-Match": "*"}
        return self.api.post(path, json=body or {}, headers=headers)

    def book(self) -> str:
        """Book one trip; its id."""
        answer = self.post("/bookings", BOOKING)
        assert answer.status_code == 202, answer.text
        return self._took(answer)

    def start_later(self, seconds: float) -> str:
        """The same trip as a job of any workflow, to begin some seconds from now."""
        start_at = (self.now() + timedelta(seconds=seconds)).isoformat()
        answer = self.post("/jobs", {"workflow": "TripBooking", "input": BOOKING, "start_at": start_at})
        assert answer.status_code == 202, answer.text
        return self._took(answer)

    def book_patiently(self) -> str:
        """As a careful client: the same request under the same key until it is accepted."""
        key = str(uuid.uuid4())

        def accepted() -> list[httpx2.Response]:
            answer = self.post("/bookings", BOOKING, key=key)
            return [answer] if answer.status_code == 202 else []

        (answer,) = wait_until(accepted, 60, what="the booking is accepted", every=0.2)
        return self._took(answer)

    def book_many(self, number: int, book: Callable[[], str] | None = None) -> list[str]:
        with ThreadPoolExecutor(6) as threads:
            return list(threads.map(lambda _: (book or self.book)(), range(number)))

    def book_many_while(self, number: int, harm: Callable[[], Any]) -> list[str]:
        """Careful clients, and some harm once the first of them asks."""
        with ThreadPoolExecutor(6) as threads:
            booked = [threads.submit(self.book_patiently) for _ in range(number)]
            harm()
            return [future.result() for future in booked]

    def cancel(self, trip: str, *, undo: bool = True, reason: str = "plans changed") -> httpx2.Response:
        return self.post(f"/jobs/{trip}/cancellation", {"undo": undo, "reason": reason})

    def _took(self, answer: httpx2.Response) -> str:
        trip = str(answer.json()["id"])
        self.ids.append(trip)
        return trip

    # --- see ---

    def booking(self, trip: str) -> dict[str, Any]:
        return dict(self.api.get(f"/bookings/{trip}").raise_for_status().json())

    def job(self, trip: str) -> dict[str, Any]:
        return dict(self.api.get(f"/jobs/{trip}").raise_for_status().json())

    def step(self, trip: str, name: str) -> dict[str, Any]:
        """One step with its `attempts`, as the API shows it."""
        return dict(self.api.get(f"/jobs/{trip}/steps/{name}").raise_for_status().json())

    def events(self, trip: str) -> list[dict[str, Any]]:
        return list(self.api.get(f"/jobs/{trip}/events").raise_for_status().json()["results"])

    def calls(self, trip: str, service: str, operation: str | None = None) -> list[dict[str, Any]]:
        """What the vendor heard of this trip, oldest first."""
        return [
            call
            for call in self.system.ledger()["calls"]
            if call["service"] == service
            and (call["key"] or "").startswith(trip)
            and operation in (None, call["operation"])
        ]

    def live(self, trip: str) -> list[str]:
        """The services that hold a live reservation of this trip, one entry for each."""
        found = self.system.ledger()["reservations"]
        return sorted(entry["service"] for entry in found if entry["live"] and entry["key"].startswith(trip))

    def states(self) -> dict[str, int]:
        """How many of these trips are in which state."""
        query = "SELECT state, count(*) FROM sag_workflows_job WHERE id = ANY(%s::uuid[]) GROUP BY state"
        return {row["state"]: row["count"] for row in self.system.sql(query, self.ids)}

    def attempts(self, where: str = "true") -> list[dict[str, Any]]:
        """All attempts at steps of these trips, as stored, with `step` and `role`."""
        query = f"""SELECT attempt.*, step.job_id::text AS job, step.name AS step, step.role
                    FROM sag_workflows_attempt attempt JOIN sag_workflows_step step ON step.id = attempt.step_id
                    WHERE step.job_id = ANY(%s::uuid[]) AND {where} ORDER BY attempt.step_id, attempt.number"""
        return self.system.sql(query, self.ids)

    def now(self) -> datetime:
        present: datetime = self.system.sql("SELECT sag_now() AS now")[0]["now"]
        return present

    # --- wait ---

    def wait_for_end(self, trips: Iterable[str] | None = None, timeout: float = 60) -> dict[str, int]:
        """Wait until the trips (all of them) have ended; how many are in which state."""
        ids = list(self.ids if trips is None else trips)
        query = "SELECT count(*) FROM sag_workflows_job WHERE id = ANY(%s::uuid[]) AND finished_at IS NOT NULL"

        def ended() -> bool:
            number: int = self.system.sql(query, ids)[0]["count"]
            return number == len(ids)

        wait_until(ended, timeout, what=f"{len(ids)} trips have ended", every=0.1)
        return self.states()

    def end(self, trip: str, timeout: float = 60) -> dict[str, Any]:
        """Wait until this trip has ended; its booking."""
        self.wait_for_end([trip], timeout)
        return self.booking(trip)

    def wait_for_call(self, trip: str, service: str, operation: str, outcome: str = "pending") -> dict[str, Any]:
        """Wait until a vendor has heard such a call and dealt with it so."""

        def heard() -> list[dict[str, Any]]:
            return [call for call in self.calls(trip, service, operation) if call["outcome"] == outcome]

        return wait_until(heard, 30, what=f"a call {service} {operation} {outcome}")[0]

    def worker_pid(self, trip: str, step: str) -> int:
        """The process that runs this step now."""
        query = "SELECT worker FROM sag_workflows_step WHERE job_id = %s AND name = %s AND state = 'Running'"
        return int(self.system.sql(query, trip, step)[0]["worker"].split(":")[1])

    # --- time ---

    def move_clock(self, seconds: float) -> None:
        """Move the clock of the whole system ahead, for good: a clock that went back would confuse what comes after."""
        move = """INSERT INTO sag_workflows_clockoffset (id, ahead) VALUES (1, make_interval(secs => %s))
                  ON CONFLICT (id) DO UPDATE SET ahead = sag_workflows_clockoffset.ahead + EXCLUDED.ahead"""
        self.system.sql(move, seconds)

    def skip_wait(self, trip: str) -> None:
        """When nothing of this trip runs and all of it waits for a time, move the clock there."""
        query = """SELECT extract(epoch FROM min(run_after) - sag_now())::float8 AS wait FROM sag_workflows_step
                   WHERE job_id = %s AND state = 'NotStarted' AND waiting_for = 0 AND NOT held
                   HAVING NOT EXISTS (SELECT 1 FROM sag_workflows_step running
                                      WHERE running.job_id = %s AND running.state = 'Running')"""
        found = self.system.sql(query, trip, trip)
        wait = found[0]["wait"] if found else None
        if wait is not None and wait > 0.2:
            self.move_clock(wait)

    def end_without_waiting(self, trip: str, timeout: float = 60) -> dict[str, Any]:
        """As `end`, with every back-off on the way skipped by the clock."""
        self.until(trip, lambda: self.booking(trip)["receipt"], timeout)
        return self.booking(trip)

    def until(self, trip: str, question: Callable[[], Any], timeout: float = 60) -> Any:
        """Wait for something, skipping the waits of this trip."""

        def ask() -> Any:
            answer = question()
            if not answer:
                self.skip_wait(trip)
            return answer

        return wait_until(ask, timeout, what=f"trip {trip}", every=0.1)
