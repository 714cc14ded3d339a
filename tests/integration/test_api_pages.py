"""Pages: a walk meets once whatever is there all the time, and a cursor is good for its own list alone."""

import re
from typing import Any

import pytest

from tests.api import TRIP, Program
from workflows.models import Job, Step

pytestmark = pytest.mark.django_db


def ids(page: Any) -> list[str]:
    return [row["id"] for row in page.json()["results"]]


def walk(program: Program, address: str, way: str = "next") -> list[str]:
    met = []
    while address:
        page = program.get(address)
        assert page.status_code == 200, page.json()
        met += ids(page)
        address = page.json()[way]
    return met


def link(response: Any, name: str) -> str:
    [address] = re.findall(rf'<([^>]+)>; rel="{name}"', response["Link"])
    return str(address)


@pytest.mark.parametrize("collection", ["jobs", "bookings"])
def test_a_walk_meets_every_job_once_newest_first(collection: str) -> None:
    program = Program()
    booked = [program.book(str(number)) for number in range(7)]
    for limit in (1, 2, 3, 7, 50):
        assert walk(program, f"{collection}?limit={limit}") == booked[::-1]


def test_jobs_of_the_same_moment_are_neither_missed_nor_repeated() -> None:
    program = Program()
    booked = {program.book(str(number)) for number in range(5)}
    one = Job.objects.filter(client_id=program.user.pk).first()
    assert one is not None
    Job.objects.filter(client_id=program.user.pk).update(created_at=one.created_at)
    met = walk(program, "jobs?limit=2")
    assert (len(met), set(met)) == (5, booked)


def test_what_comes_and_goes_during_a_walk_moves_nothing_else() -> None:
    program = Program()
    booked = [program.book(str(number)) for number in range(6)]
    first = program.get("jobs?limit=2")
    program.book("new")
    for gone in (booked[5], booked[2]):  # one already met, one not yet
        Step.objects.filter(job_id=gone).delete()
        Job.objects.filter(pk=gone).delete()
    assert ids(first) + walk(program, first.json()["next"]) == [booked[5], booked[4], booked[3], booked[1], booked[0]]


def test_one_can_walk_back_to_where_one_came_from() -> None:
    program = Program()
    booked = [program.book(str(number)) for number in range(5)][::-1]
    second = program.get(program.get("jobs?limit=2").json()["next"])
    third = program.get(second.json()["next"])
    assert (ids(second), ids(third), third.json()["next"]) == (booked[2:4], booked[4:], None)
    back = program.get(third.json()["prev"])
    assert ids(back) == booked[2:4]
    front = program.get(back.json()["prev"])
    assert (ids(front), front.json()["prev"]) == (booked[:2], None)
    assert ids(program.get(front.json()["next"])) == booked[2:4]


def test_the_neighbours_of_a_page_stand_in_its_link_header_too() -> None:
    program = Program()
    for number in range(3):
        program.book(str(number))
    first = program.get("jobs?limit=1")
    assert first.json()["prev"] is None
    assert link(first, "next") == first.json()["next"]
    second = program.get(link(first, "next"))
    assert {link(second, "next"), link(second, "prev")} == {second.json()["next"], second.json()["prev"]}
    assert "Link" not in program.get("jobs")


def test_filters_narrow_and_are_kept_from_page_to_page() -> None:
    program = Program("shop", "jobs:read", "jobs:write", "jobs:operate")
    booked = [program.book(str(number)) for number in range(4)]
    ended = program.post(f"jobs/{booked[1]}/cancellation", {}).json()
    assert ended["state"] == "Compensated"
    own = f"jobs?q={booked[1]}"
    assert ids(program.get("jobs?state=Running&limit=200&workflow=NoSuch")) == []
    assert ids(program.get(f"{own}&state=Running")) == []
    assert ids(program.get(f"{own}&state=Running&state=Compensated")) == [booked[1]]
    assert ids(program.get(f"{own}&workflow=TripBooking")) == [booked[1]]
    reader = Program("shop", "jobs:read")
    assert walk(reader, "jobs?state=Running&limit=1") == [booked[3], booked[2], booked[0]]
    assert ids(reader.get("jobs?q=2")) == [booked[2]]
    assert ids(reader.get(f"bookings?q={booked[2]}")) == [booked[2]]
    assert ids(reader.get("jobs?q=nothing")) == []


def test_a_cursor_is_refused_with_other_filters_on_another_list_or_altered() -> None:
    program = Program()
    for number in range(3):
        program.book(str(number))
    address = program.get("jobs?limit=1&state=Running").json()["next"]
    [cursor] = re.findall(r"cursor=([^&]+)", address)
    assert program.get(f"jobs?state=Running&limit=3&cursor={cursor}").status_code == 200
    wrong = [
        f"jobs?cursor={cursor}",
        f"jobs?state=Failed&cursor={cursor}",
        f"jobs?state=Running&workflow=TripBooking&cursor={cursor}",
        f"bookings?state=Running&cursor={cursor}",
        f"jobs?state=Running&cursor={cursor[:-1]}{'a' if cursor[-1] != 'a' else 'b'}",
        f"jobs?state=Running&cursor=x{cursor}",
        "jobs?cursor=nonsense",
        "jobs?cursor=%C3%BC:%00",
    ]
    for path in wrong:
        response = program.get(path)
        assert response.status_code == 400, path
        assert response.json()["errors"][0]["parameter"] == "cursor"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "limit=-1", "limit=1.5", "state=running", "state=Paused"]
)
def test_a_parameter_out_of_bounds_is_refused_with_its_name(query: str) -> None:
    response = Program().get(f"jobs?{query}")
    assert response.status_code == 400
    assert response.json()["errors"][0]["parameter"] == query.partition("=")[0]


def test_parameters_that_nobody_knows_and_empty_ones_are_ignored() -> None:
    program = Program()
    job_id = program.book()
    assert ids(program.get("jobs?colour=red&state=&q=&workflow=&limit=&cursor=")) == [job_id]


def test_a_page_takes_the_same_number_of_queries_however_long_it_is(django_assert_max_num_queries: Any) -> None:
    program = Program()
    for number in range(10):
        program.post("bookings", TRIP, idempotency_key=str(number))
    with django_assert_max_num_queries(6):
        assert len(ids(program.get("bookings?limit=10"))) == 10
