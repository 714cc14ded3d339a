"""What the public test suites of croniter and cronsim expect, asked of our preview; and why ours differs where it does."""

from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.api import Program, newcomer
from tests.integration.engine import Engine

FOLDER = Path(__file__).parent / "published"

# Each reason, and how many rows it stands for: a new difference is looked at before it is counted.
DIFFERENCES = {
    "star-and": 1,
    "star-is-star": 1,
    "either-day": 2,
    "minute-after-gap": 2,
    "round-the-end": 26,
    "same-to-same": 3,
    "last-in-range": 5,
    "range-of-nths": 10,
    "nth-among-others": 1,
    "step-of-last": 1,
    "question-mark": 1,
}


def rows(source: str) -> list[list[str]]:
    """[expression, zone, since, times or "refused", why ours differs]"""
    lines = (FOLDER / f"{source}.txt").read_text().splitlines()
    return [[part.strip() for part in line.split("|")] for line in lines if not line.startswith("#")]


@pytest.fixture
def program(engine: Engine) -> Program:
    return newcomer("jobs:read")


def answer_to(program: Program, expression: str, zone: str, since: str, times: str) -> str:
    """Ours, as it stands in the table."""
    expected = times.split()
    body = {"cron": expression, "timezone": zone or "UTC", "count": len(expected)}
    response = program.post("schedules/preview", body | ({"from": since} if since else {}))
    if response.status_code == 422:
        assert [error["pointer"] for error in response.json()["errors"]] == ["/cron"]
        return "refused"
    assert response.status_code == 200, response.json()
    if times == "refused":
        return "accepted"
    moments = [datetime.fromisoformat(time) for time in response.json()["local_times"]]
    return " ".join(moment.isoformat(timespec="minutes") for moment in moments)


@pytest.mark.parametrize("source", ["croniter", "cronsim"])
def test_the_preview_tells_what_others_publish_but_for_what_is_explained(program: Program, source: str) -> None:
    table = rows(source)
    assert len(table) > 150
    unexplained = []
    for expression, zone, since, times, why in table:
        ours = answer_to(program, expression, zone, since, times)
        if (ours == times) == bool(why):
            unexplained.append((expression, zone, since, times, ours))
    assert unexplained == []


def test_each_difference_is_on_the_list_and_in_the_documentation() -> None:
    found = Counter(why for source in ("croniter", "cronsim") for *_, why in rows(source) if why)
    assert found == DIFFERENCES
    page = (Path(__file__).parents[2] / "docs/reference/cron.md").read_text()
    assert [reason for reason in DIFFERENCES if f"| `{reason}` |" not in page] == []
