"""The demo's check: does the vendors' own ledger agree with what the system says of each trip? Pure, no I/O."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STEPS = ("flight", "hotel", "car")
ENDED = ("Completed", "Compensated", "Failed")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`lines` for people; `faults` says where ledger and trips disagree, and is empty when all is well."""

    lines: list[str]
    faults: list[str]


def judge(bookings: Mapping[str, Mapping[str, Any]], ledger: Mapping[str, Sequence[Mapping[str, Any]]]) -> Verdict:
    """`bookings` by the trip's name, as the API gives them; `ledger` as the simulators give theirs."""
    made = Counter(str(reservation["key"]) for reservation in ledger["reservations"])
    live = Counter(str(reservation["key"]) for reservation in ledger["reservations"] if reservation["live"])
    faults = [f"{count} reservations under the one key {key}" for key, count in made.items() if count > 1]
    table: dict[str, list[int]] = {}
    for name, booking in bookings.items():
        keys = {step["name"]: step["idempotency_key"] for step in booking["steps"] if step["name"] in STEPS}
        found = [step for step, key in keys.items() if live.pop(key, 0)]
        expected = list(STEPS) if booking["state"] == "Completed" else []
        if booking["state"] not in ENDED:
            faults.append(f"{name} has not ended: it is {booking['state']}")
        elif found != expected:
            faults.append(f"{name} is {booking['state']}, and the ledger shows {', '.join(found) or 'nothing'} live")
        table.setdefault(booking["state"], []).append(len(found))
    faults += [f"a live reservation that no trip knows of: {key}" for key in live]
    return Verdict(lines=[*_table(table), *_calls(ledger["calls"], made)], faults=faults)


def _table(table: Mapping[str, list[int]]) -> list[str]:
    lines = [f"{'outcome':<14}{'trips':>5}{'live reservations':>20}{'for each trip':>16}"]
    for state, counts in sorted(table.items()):
        each = " or ".join(str(count) for count in sorted(set(counts)))
        lines.append(f"{state:<14}{len(counts):>5}{sum(counts):>20}{each:>16}")
    return lines


def _calls(calls: Sequence[Mapping[str, Any]], made: Mapping[str, int]) -> list[str]:
    reserve = [call for call in calls if call["operation"] == "reserve"]
    lost = sum(call["outcome"] == "answer_lost" for call in reserve)
    twice = sum(count > 1 for count in made.values())
    return [
        f"{len(reserve)} calls to reserve, {lost} of them without an answer that arrived; "
        f"{sum(made.values())} reservations made, {twice} made twice"
    ]
