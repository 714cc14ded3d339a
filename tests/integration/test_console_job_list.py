"""The list of jobs: filters in the URL, pages by keyset, counts with an end."""

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from supervisor.console import pages, pulse
from supervisor.models import Sweep, Term
from tests import console_data as data
from workflows.models import Job

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(data.person("ada", operator=True), backend="django.contrib.auth.backends.ModelBackend")
    return client


def read(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def listed(client: Client, query: str = "") -> list[str]:
    """The keys of the jobs on a page, in its order."""
    return re.findall(r'<a href="/jobs/[0-9a-f-]{36}[^>]*><bdi>([^<]*)</bdi>', read(client, f"/jobs/{query}"))


def link(page: str, text: str) -> str:
    """Where the link with this text leads."""
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>{text}</a>', page)
    assert found, f"no link {text!r}"
    return unescape(found[1])


@pytest.fixture
def one_of_each() -> None:
    data.completed("done")
    data.compensated("undone")
    data.failed_undo("stuck")
    data.failing("again")
    data.trip("fresh")


@pytest.mark.usefixtures("one_of_each")
@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", ["fresh", "again", "stuck", "undone", "done"]),
        ("?state=Completed", ["done"]),
        ("?state=Running", ["fresh", "again"]),
        ("?state=Compensated&state=Completed", ["undone", "done"]),
        ("?state=needs_person", ["stuck"]),
        ("?state=failing", ["again"]),
        ("?state=failing&state=needs_person&state=Completed", ["again", "stuck", "done"]),
        ("?workflow=TripBooking&state=Completed", ["done"]),
        ("?workflow=Other", []),
        ("?q=stuck", ["stuck"]),
        ("?q=stuc", []),
        ("?q=%00", []),
        ("?q=stuck&state=Completed", []),
    ],
)
def test_the_url_says_which_jobs_are_listed(client: Client, query: str, keys: list[str]) -> None:
    assert listed(client, query) == keys


def test_a_job_is_found_by_its_id(client: Client) -> None:
    job = data.trip("by-id")
    data.trip("other")
    assert listed(client, f"?q={job.pk}") == ["by-id"]


def test_an_unknown_state_is_said_and_left_out(client: Client) -> None:
    data.trip("here")
    page = read(client, "/jobs/?state=Sleeping")
    assert "Nobody knows the state “Sleeping”" in page
    assert listed(client, "?state=Sleeping") == ["here"]


@pytest.mark.usefixtures("one_of_each")
def test_a_states_link_adds_it_to_the_filters_and_takes_it_away_again(client: Client) -> None:
    page = read(client, "/jobs/?state=Running&workflow=TripBooking")
    chips = [unescape(href) for href in re.findall(r'<a class="chip[^"]*" href="([^"]*)"', page)]
    assert "/jobs/?workflow=TripBooking" in chips
    assert "/jobs/?state=Running&state=Failed&workflow=TripBooking" in chips
    assert parse_qs(urlsplit(chips[1]).query) == {"workflow": ["TripBooking"]}, "Running is on: its link turns it off"


@pytest.mark.usefixtures("one_of_each")
def test_the_filters_are_kept_through_a_job_and_an_action_on_it(client: Client) -> None:
    page = read(client, "/jobs/?state=failing&workflow=TripBooking")
    to_job = unescape(re.search(r'href="(/jobs/[0-9a-f-]{36}\?list=[^"]*)"', page)[1])  # type: ignore[index]
    job_page = read(client, to_job)
    way_back = link(job_page, "← Jobs, as filtered")
    assert way_back == "/jobs/?state=failing&workflow=TripBooking"
    action = unescape(re.search(r'action="([^"]*/pause[^"]*)"', job_page)[1])  # type: ignore[index]
    seen = re.search(r'name="seen" value="(\d+)"', job_page)[1]  # type: ignore[index]
    after = client.post(action, {"seen": seen}, follow=True)
    assert after.redirect_chain == [(to_job, 302)]
    assert link(after.content.decode(), "← Jobs, as filtered") == way_back


def test_the_way_back_leads_to_the_list_and_nowhere_else(client: Client) -> None:
    job = data.trip()
    page = read(client, f"/jobs/{job.pk}?list=//evil.example/%3Fstate=Failed%22onload=x")
    assert "evil.example" not in page


def test_pages_follow_one_another_without_gap_or_double_and_lead_back(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SIZE", 3)
    keys = [f"job-{number}" for number in range(8)]
    for key in keys:
        data.trip(key)
    # Jobs of one moment are told apart by their ids.
    Job.objects.filter(key__in=keys[2:5]).update(created_at=timezone.now() - timedelta(hours=1))
    everything = list(Job.objects.newest_first().values_list("key", flat=True))

    found, address, pages_read = [], "?state=Running", []
    while True:
        page = read(client, f"/jobs/{address}")
        found += listed(client, address)
        pages_read.append(listed(client, address))
        if "Older →" not in page:
            break
        address = link(page, "Older →")
        assert "state=Running" in address
    assert found == everything
    assert [len(page) for page in pages_read] == [3, 3, 2]
    address = link(read(client, f"/jobs/{address}"), "← Newer")
    assert listed(client, address) == pages_read[1]
    address = link(read(client, f"/jobs/{address}"), "← Newer")
    assert listed(client, address) == pages_read[0]


@pytest.mark.parametrize("cursor", ["", "x", "2026-01-01~nonsense", "~", "%00"])
def test_a_cursor_that_cannot_be_read_shows_the_newest_page(client: Client, cursor: str) -> None:
    data.trip("here")
    assert listed(client, f"?after={cursor}") == ["here"]
    assert listed(client, f"?before={cursor}") == ["here"]


def test_counts_stop_at_an_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "COUNTED", 2)
    for _ in range(3):
        data.trip()
    assert 'Running <span class="number">2+</span>' in read(client, "/jobs/")


@pytest.fixture
def queries_of(client: Client) -> Callable[[str], int]:
    def count(address: str) -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            read(client, address)
        return len(queries)

    return count


@pytest.mark.parametrize("address", ["/jobs/", "/", "/jobs/?state=needs_person"])
def test_more_jobs_do_not_mean_more_queries(queries_of: Callable[[str], int], address: str) -> None:
    data.failed_undo()
    data.trip()
    few = queries_of(address)
    for _ in range(4):  # five that fail alike would be an outage, of which the overview tells as well
        data.failed_undo()
        data.failing()
    assert queries_of(address) == few
    assert few <= 26


def test_no_table_is_counted_whole(client: Client) -> None:
    data.trip()
    with CaptureQueriesContext(connection) as queries:
        for address in ("/", "/jobs/"):
            client.get(address)
    counts = [query["sql"] for query in queries if "COUNT(" in query["sql"]]
    assert counts
    assert all("LIMIT" in sql for sql in counts)


# --- the overview --------------------------------------------------------------------------------------------------


@pytest.fixture
def swept() -> None:
    present = timezone.now()
    Sweep.objects.create(started_at=present, finished_at=present)
    Term.objects.create(duty="ticks", holder="x", term=1, begun_at=present, until=present, done_at=present)


@pytest.mark.usefixtures("swept")
def test_an_empty_system_is_healthy_and_says_how_to_begin(client: Client) -> None:
    page = read(client, "/")
    assert "Healthy. Nobody is needed." in page
    assert "No job has been started yet" in page


@pytest.mark.usefixtures("swept")
def test_the_overview_names_the_jobs_that_need_a_person_and_why(client: Client) -> None:
    data.failed_undo("stuck", "The hotel does not know this booking.")
    page = read(client, "/")
    assert "1 job needs a person" in page
    assert "REF-hotel, made by hotel.reserve, may still be live" in page
    assert "The hotel does not know this booking" in page


def test_a_silent_supervisor_is_said(client: Client) -> None:
    assert "The supervisor has not swept yet" in read(client, "/")
    old = timezone.now() - timedelta(minutes=5)
    Sweep.objects.create(started_at=old, finished_at=old)
    assert "The supervisor is silent" in read(client, "/")


@pytest.mark.usefixtures("swept")
def test_ready_steps_that_nobody_takes_are_said(client: Client) -> None:
    job = data.trip()
    assert "no worker takes them" not in read(client, "/")
    job.steps.filter(name="flight").update(run_after=timezone.now() - timedelta(minutes=2))
    assert "no worker takes them" in read(client, "/")


def test_an_id_within_a_key_is_told_by_its_end_and_the_job_has_the_whole_key(client: Client) -> None:
    plain = "0b0f3a1c-7d52-4a0e-9a3b-6f1f0a2b3c4d"
    within = data.trip(f"schedule:{plain}:2027-03-04T08:00:00Z")
    data.trip(plain)
    page = client.get("/jobs/").content.decode()
    assert "<bdi>schedule:…6f1f0a2b3c4d:2027-03-04T08:00:00Z</bdi>" in page
    assert f"<bdi>{plain}</bdi>" in page
    assert f"<code>{within.key}</code>" in client.get(f"/jobs/{within.pk}").content.decode()
