"""The nightly report on a running system: read, added up and audited side by side, published as files."""

import csv
from datetime import UTC, datetime, timedelta

import httpx2

from tests.acceptance.jobs import Jobs
from tests.acceptance.system import RunningSystem
from tests.acceptance.trips import BOOKING, Trips


def test_a_report_on_today_shows_the_trips_of_today(system: RunningSystem) -> None:
    with Trips(system) as trips:
        trips.book_many(3)
        assert trips.wait_for_end() == {"Completed": 3}
    today = datetime.now(UTC).date().isoformat()
    with Jobs(system) as jobs:
        report = jobs.start("NightlyReport", {"day": today})
        assert jobs.finish(report)["state"] == "Completed"
        assert [step["name"] for step in jobs.job(report)["steps"]] == ["extract", "totals", "audit", "publish"]
        audit = jobs.step(report, "audit")["result"]
    folder = system.home.path / "reports" / today
    ledger = system.ledger()["reservations"]
    with (folder / "report.csv").open() as table:
        assert list(csv.DictReader(table)) == [
            {"day": today, "service": name, "made": "3", "cancelled": "0", "live": "3"}
            for name in ("cars", "flights", "hotels")
        ]
    assert audit == {"checked": len(ledger), "findings": []}
    assert f"{len(ledger)} reservations were checked; nothing was found." in (folder / "report.html").read_text()


def test_what_a_careless_vendor_booked_twice_stands_in_the_audit(system: RunningSystem) -> None:
    system.fault("hotels", honour_keys=False)
    with Jobs(system) as jobs:
        trip = jobs.start("TripBooking", BOOKING)
        jobs.finish(trip)
        (booked,) = [it for it in system.ledger()["reservations"] if it["service"] == "hotels"]
        again = httpx2.post(
            f"{system.simulators_url}/hotels/reservations", headers={"Idempotency-Key": booked["key"]}, json={}
        )
        assert again.status_code == 201
        today = datetime.now(UTC).date().isoformat()
        report = jobs.start("NightlyReport", {"day": today})
        jobs.finish(report)
        assert jobs.step(report, "audit")["result"]["findings"] == [
            {"service": "hotels", "key": booked["key"], "finding": "booked 2 times"}
        ]
    page = (system.home.path / "reports" / today / "report.html").read_text()
    assert f"hotels: {booked['key']} was booked 2 times." in page


def test_a_report_without_a_day_is_about_yesterday(system: RunningSystem) -> None:
    with Jobs(system) as jobs:
        before = yesterday()
        report = jobs.start("NightlyReport")
        assert jobs.finish(report)["state"] == "Completed"
        published = jobs.step(report, "publish")["result"]
        assert published["day"] in (before, yesterday())
        for name in ("page", "table"):
            assert (system.home.path / published[name]).is_file()


def test_a_ledger_that_is_away_for_a_moment_delays_the_report_only(system: RunningSystem) -> None:
    former = system.pid("simulators")
    system.freeze("simulators")
    try:
        with Jobs(system) as jobs:
            report = jobs.start("NightlyReport")
            jobs.wait_for_step(report, "extract", "Running")
            system.kill("simulators")
            system.wait_for_restart("simulators", former)
            assert jobs.finish(report)["state"] == "Completed"
            first = jobs.step(report, "extract")["attempts"][0]
            assert (first["outcome"], first["error"]["kind"], first["in_doubt"]) == ("failed", "transient", False)
    finally:
        system.thaw("simulators")


def yesterday() -> str:
    return (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
