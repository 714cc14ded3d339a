"""What the demo does and tells: faults are set, trips are booked, a worker is killed, and every trip is told of."""

import time
from collections.abc import Mapping
from typing import Any

import httpx2

from sagsite.demo.own_system import OwnSystem, Say
from sagsite.demo.verdict import ENDED, STEPS, judge

TRIPS = 20
TIME_FOR_ALL = 150.0  # seconds from the first booking to the last end
LOOK_EVERY = 0.5
HOTELS_IN_FLIGHT = 3  # calls on their way to the hotel when the worker is killed

FAULTS: dict[str, dict[str, Any]] = {
    "flights": {"lose_answer_rate": 0.3, "operations": ["reserve"], "seed": 1},
    "hotels": {"latency_ms": 1500, "jitter_ms": 1500, "lose_answer_rate": 0.3, "operations": ["reserve"], "seed": 2},
    "cars": {"sold_out": True, "times": 5, "operations": ["reserve"]},
}
IN_WORDS = (
    "the airline takes the booking and then hangs up on about 3 of 10 callers",
    "the hotel does the same, and needs 1.5 to 3 seconds for each answer",
    "the car rental is sold out for the first 5 who ask",
)
TRAVELLERS = ("Ada Okafor", "Bela Novak", "Chen Li", "Dana Haddad", "Emil Berg")


class Story:
    """One run. Everything is asked over the REST API, as any client program would; only the kill is done by hand."""

    def __init__(self, system: OwnSystem, say: Say) -> None:
        self.system = system
        self.say = say
        self.api = httpx2.Client(
            base_url=f"{system.url}/api/v1", headers={"Authorization": f"Bearer {system.token}"}, timeout=30
        )
        self.vendors = httpx2.Client(base_url=system.simulators_url, timeout=30)
        self.names: dict[str, str] = {}  # booking id → "trip 01"
        self.begun = 0.0
        self.killed = False

    def run(self) -> bool:
        """Tell it all; whether the ledger agrees at the end."""
        self.say("demo", f"a whole Sag of its own runs at {self.system.url} (stopped and removed at the end)")
        self.set_faults()
        self.book()
        self.watch()
        return self.close()

    def set_faults(self) -> None:
        for (service, faults), words in zip(FAULTS.items(), IN_WORDS, strict=True):
            self.vendors.put(f"/faults/{service}", json=faults).raise_for_status()
            self.say("vendors", words)

    def book(self) -> None:
        self.begun = time.monotonic()
        for number in range(1, TRIPS + 1):
            answer = self.api.post(
                "/bookings", json=_request(number), headers={"Idempotency-Key": f"demo-trip-{number:02}"}
            )
            self.names[answer.raise_for_status().json()["id"]] = f"trip {number:02}"
        self.say("demo", f"{TRIPS} trips are booked: flight, then hotel, then car ({self._clock()})")

    def watch(self) -> None:
        """Until all have ended or the time is up: kill the worker once in the middle, tell of each end."""
        told: set[str] = set()
        while len(told) < TRIPS and time.monotonic() - self.begun < TIME_FOR_ALL:
            bookings = self._bookings()
            for booking in reversed(bookings):  # they come newest first
                if booking["state"] in ENDED and booking["id"] not in told:
                    told.add(booking["id"])
                    self.say(self.names[booking["id"]], self._fate(booking))
            asking = [booking for booking in bookings if _step(booking, "hotel")["state"] == "Running"]
            if not self.killed and told and len(asking) >= HOTELS_IN_FLIGHT:
                self.kill_worker(asking)
            time.sleep(LOOK_EVERY)

    def kill_worker(self, asking: list[dict[str, Any]]) -> None:
        self.killed = True
        pid = self.system.kill("agents")
        names = ", ".join(sorted(self.names[booking["id"]] for booking in asking))
        self.say("demo", f"kill -9 {pid}: the agents die while they talk to the hotel for {names}")
        victim = asking[0]
        self.api.post(
            f"/jobs/{victim['id']}/cancellation", json={"undo": True, "reason": "The traveller changed plans."}
        ).raise_for_status()
        self.say("demo", f"and {self.names[victim['id']]} is cancelled now, while nobody knows whether it has a hotel")
        self.say("demo", "their leases end within 10 s; the supervisor's next sweep takes the steps from the dead")

    def close(self) -> bool:
        bookings = {self.names[booking["id"]]: booking for booking in reversed(self._bookings())}
        verdict = judge(bookings, self.vendors.get("/ledger").raise_for_status().json())
        self.say("demo", f"the vendors' own ledger, after {self._clock()}:")
        for line in verdict.lines:
            self.say("ledger", line)
        faults = verdict.faults if self.killed else [*verdict.faults, "no worker was killed in the middle of calls"]
        for fault in faults:
            self.say("wrong", fault)
        if not faults:
            self.say("demo", "each Completed trip has its three reservations, every other has none: as it should be")
        return not faults

    def _bookings(self) -> list[dict[str, Any]]:
        page = self.api.get("/bookings", params={"limit": TRIPS}).raise_for_status().json()
        return list(page["results"])

    def _fate(self, booking: Mapping[str, Any]) -> str:
        """What became of a trip, in one line."""
        steps = [self._step_in_words(booking, _step(booking, name)) for name in STEPS]
        line = f"{booking['state']} ({self._clock()}): {'; '.join(steps)}"
        receipt = booking["receipt"]
        undone = [f"{one['step']} {one['reference'] or '(whether it was there or not)'}" for one in receipt["undone"]]
        left = [f"{one['step']}: {one['why']}" for one in receipt["not_undone"]]
        line += f" → undone: {', '.join(undone)}" if undone else ""
        return line + (f" → NOT undone: {', '.join(left)}" if left else "")

    def _step_in_words(self, booking: Mapping[str, Any], step: Mapping[str, Any]) -> str:
        name = step["name"]
        if step["state"] == "Skipped":
            return f"no {name} asked for"
        before = ""
        if step["attempt"] > 1:
            found = self.api.get(f"/jobs/{booking['id']}/steps/{name}").raise_for_status().json()
            codes = [attempt["error"]["code"] for attempt in found["attempts"] if attempt["error"]]
            before = f" at attempt {step['attempt']}, after {', '.join(codes)}"
        if step["state"] == "Completed":
            return f"{name} {step['result']['reference']}{before}"
        return (
            f"{name} {step['error']['code'] or step['error']['kind']}" if step["error"] else f"{name} {step['state']}"
        )

    def _clock(self) -> str:
        return f"{time.monotonic() - self.begun:.1f} s"


def _step(booking: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next(step for step in booking["steps"] if step["name"] == name)


def _request(number: int) -> dict[str, Any]:
    """A trip as a client program asks for it."""
    name = TRAVELLERS[number % len(TRAVELLERS)]
    return {
        "traveller": {"name": name, "email": f"{name.split()[0].lower()}@example.com"},
        "flight": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 1},
        "hotel": {"city": "Lisbon", "check_in": "2027-03-04", "check_out": "2027-03-07", "guests": 1},
        "car": {"city": "Lisbon", "pick_up": "2027-03-04", "drop_off": "2027-03-07", "class": "compact"},
    }
