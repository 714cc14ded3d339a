"""The agents of the nightly report: what they read from the vendors' ledger, and the files they leave."""

import csv
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pytest_django import Settings

from agents import Call, LeaseLost, Permanent, Transient
from agents.reports import report, warehouse
from agents.simulators.ledger import Ledger
from agents.simulators.server import Simulators
from sagsite.home import Home

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # an empty one: reading the system's takes long
ROW = {
    "service": "flights",
    "key": "job-1:flight",
    "reference": "FL-1",
    "created_at": "2027-03-04T10:00:00.000Z",
    "cancelled_at": None,
}


@pytest.fixture
def vendors(tmp_path: Path, settings: Settings) -> Iterator[httpx2.Client]:
    server = Simulators(("127.0.0.1", 0), Ledger(tmp_path / "ledger.db"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    settings.SIMULATORS_URL = f"http://127.0.0.1:{server.server_port}"
    yield httpx2.Client(base_url=settings.SIMULATORS_URL, verify=NO_TLS, trust_env=False)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path: Path, settings: Settings) -> Path:
    settings.HOME = Home(tmp_path)
    return tmp_path


def call(input: dict[str, Any], *, lease: float = 10) -> Call:
    now = time.monotonic()
    return Call(
        job_id=uuid.uuid4(),
        workflow="NightlyReport",
        step="step",
        attempt=1,
        idempotency_key="job-1:step",
        input=input,
        ends_at=now + 20,
        may_send_until=now + lease,
    )


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def yesterday() -> str:
    return (datetime.now(UTC) - timedelta(days=1)).date().isoformat()


def publish(*, day: str = "2027-03-04", **changes: Any) -> dict[str, Any]:
    given = {
        "totals": {"services": {"flights": {"made": 3, "cancelled": 1, "live": 2}}},
        "audit": {"checked": 3, "findings": []},
    }
    return report.publish(call({"day": day} | given | changes))


def test_extract_reads_what_the_ledger_holds(vendors: httpx2.Client) -> None:
    booking = vendors.post("/cars/reservations", headers={"Idempotency-Key": "job-1:car"}, json={"rental": {}})
    vendors.post("/hotels/reservations", headers={"Idempotency-Key": "job-1:hotel"}, json={"stay": {}})
    vendors.delete("/hotels/reservations/job-1:hotel")
    assert booking.status_code == 201
    extracted = warehouse.extract(call({"day": today()}))
    assert extracted["day"] == today()
    assert [(row["service"], row["key"], bool(row["cancelled_at"])) for row in extracted["rows"]] == [
        ("cars", "job-1:car", False),
        ("hotels", "job-1:hotel", True),
    ]
    assert extracted["rows"][0]["reference"] == booking.json()["reference"]


def test_a_report_without_a_day_is_about_yesterday(vendors: httpx2.Client) -> None:
    vendors.post("/cars/reservations", headers={"Idempotency-Key": "job-1:car"}, json={"rental": {}})
    before = yesterday()
    extracted = warehouse.extract(call({"day": None}))
    assert extracted["day"] in (before, yesterday())
    assert extracted["rows"] == []


def test_what_was_cancelled_after_the_day_still_stood_at_its_end() -> None:
    cancelled = ROW | {"cancelled_at": "2027-03-06T00:00:00.000Z", "live": False}
    assert warehouse._as_of("2027-03-05", cancelled) == ROW
    assert warehouse._as_of("2027-03-06", cancelled)["cancelled_at"] == "2027-03-06T00:00:00.000Z"
    assert not warehouse._made_by("2027-03-03", ROW)


def test_a_ledger_that_is_away_or_unclear_may_be_read_again(settings: Settings, vendors: httpx2.Client) -> None:
    settings.SIMULATORS_URL += "/nowhere"
    with pytest.raises(Permanent) as raised:
        warehouse.extract(call({"day": today()}))
    assert raised.value.code == "no_ledger"
    settings.SIMULATORS_URL = "http://127.0.0.1:1"
    with pytest.raises(Transient):
        warehouse.extract(call({"day": today()}))


def test_totals_count_each_service() -> None:
    rows = [ROW, ROW | {"cancelled_at": "2027-03-05T00:00:00.000Z"}, ROW | {"service": "cars"}]
    assert warehouse.totals(call({"rows": rows})) == {
        "services": {
            "cars": {"made": 1, "cancelled": 0, "live": 1},
            "flights": {"made": 2, "cancelled": 1, "live": 1},
        }
    }
    assert warehouse.totals(call({"rows": []})) == {"services": {}}


def test_the_audit_finds_what_was_booked_twice_and_times_that_make_no_sense() -> None:
    rows = [
        *(ROW, ROW | {"reference": "FL-2"}),
        ROW | {"key": "job-2:flight", "cancelled_at": "2027-03-03T00:00:00.000Z"},
        ROW | {"key": "job-3:flight", "cancelled_at": "2027-03-05T00:00:00.000Z"},
        ROW | {"key": "job-3:flight"},
    ]
    assert warehouse.audit(call({"rows": rows})) == {
        "checked": 5,
        "findings": [
            {"service": "flights", "key": "job-1:flight", "finding": "booked 2 times"},
            {"service": "flights", "key": "job-2:flight", "finding": "cancelled before it was made"},
        ],
    }


def test_a_report_is_a_page_and_a_table(home: Path) -> None:
    assert publish() == {
        "day": "2027-03-04",
        "page": "reports/2027-03-04/report.html",
        "table": "reports/2027-03-04/report.csv",
    }
    folder = home / "reports" / "2027-03-04"
    assert sorted(file.name for file in folder.iterdir()) == ["report.csv", "report.html"]
    with (folder / "report.csv").open() as table:
        assert list(csv.DictReader(table)) == [
            {"day": "2027-03-04", "service": "flights", "made": "3", "cancelled": "1", "live": "2"}
        ]
    page = (folder / "report.html").read_text()
    assert "<tr><th>flights</th><td>3</td><td>1</td><td>2</td></tr>" in page
    assert "3 reservations were checked; nothing was found." in page


def test_services_stand_in_their_order_however_they_come(home: Path) -> None:
    counts = {"made": 0, "cancelled": 0, "live": 0}
    publish(totals={"services": {"hotels": counts, "cars": counts, "flights": counts}})
    lines = (home / "reports/2027-03-04/report.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["service", "cars", "flights", "hotels"]


def test_a_report_that_is_published_again_is_replaced(home: Path) -> None:
    publish()
    first = (home / "reports/2027-03-04/report.html").read_bytes()
    publish()
    assert (home / "reports/2027-03-04/report.html").read_bytes() == first
    publish(totals={"services": {}})
    assert (home / "reports/2027-03-04/report.csv").read_text() == "day,service,made,cancelled,live\n"


def test_what_vendors_wrote_is_shown_and_not_executed(home: Path) -> None:
    finding = {"service": "cars", "key": "<script>alert(1)</script>", "finding": "booked 2 times"}
    publish(audit={"checked": 2, "findings": [finding]})
    page = (home / "reports/2027-03-04/report.html").read_text()
    assert "<script>" not in page
    assert "cars: &lt;script&gt;alert(1)&lt;/script&gt; was booked 2 times." in page


@pytest.mark.parametrize("day", ["../../etc", "2027-03-04/..", "", None])
def test_a_day_cannot_lead_out_of_the_reports(home: Path, day: Any) -> None:
    with pytest.raises(Permanent) as raised:
        publish(day=day)
    assert raised.value.code == "no_day"
    assert list(home.iterdir()) == []


def test_an_attempt_whose_lease_is_over_publishes_nothing(home: Path) -> None:
    with pytest.raises(LeaseLost):
        report.publish(call({"day": "2027-03-04", "totals": {"services": {}}, "audit": {}}, lease=-1))
    assert list(home.iterdir()) == []
