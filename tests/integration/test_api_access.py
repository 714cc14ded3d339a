"""Who may ask for what: tokens, scopes, and other clients' jobs."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.utils import timezone
from rest_framework.test import APIClient

from tests.api import PROBLEM, TRIP, Program
from workflows.catalog.trip import TripBooking
from workflows.models import ApiToken, Event, IdempotencyRecord, Job

pytestmark = pytest.mark.django_db

JOB_ROUTES = [
    ("GET", "bookings/{id}"),
    ("GET", "jobs/{id}"),
    ("GET", "jobs/{id}/events"),
    ("GET", "jobs/{id}/steps/flight"),
    ("GET", "jobs/{id}/steps/flight/items"),
    ("GET", "jobs/{id}/compensation"),
    ("POST", "jobs/{id}/cancellation"),
    ("POST", "jobs/{id}/compensation"),
    ("POST", "jobs/{id}/signals/flight"),
    ("POST", "jobs/{id}/retries"),
    ("POST", "jobs/{id}/pause"),
    ("POST", "jobs/{id}/resumption"),
    ("POST", "jobs/{id}/steps/flight/cancellation"),
    ("POST", "jobs/{id}/steps/flight/retries"),
    ("POST", "jobs/{id}/steps/flight/skip"),
    ("POST", "jobs/{id}/steps/flight/result"),
    ("POST", "jobs/{id}/steps/flight/verdict"),
]
READS = [path for method, path in JOB_ROUTES if method == "GET"]
CLIENTS_VERBS = ("cancellation", "compensation", "signals/flight")


def test_a_request_without_a_token_is_told_to_bring_one() -> None:
    response = APIClient().get("/api/v1/jobs")
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response["Content-Type"] == PROBLEM


@pytest.mark.parametrize("header", ["Bearer", "Bearer wrong", "Bearer \xff", "Bearer a b", "Token abc", "Basic abc"])
def test_a_wrong_token_is_refused(header: str) -> None:
    assert Program().get("jobs", Authorization=header).status_code == 401


def test_an_expired_token_is_refused() -> None:
    program = Program()
    ApiToken.objects.filter(pk=program.token_row.pk).update(expiry=timezone.now() - timedelta(seconds=1))
    assert program.get("jobs").status_code == 401


def test_the_token_of_a_client_that_was_shut_out_is_refused() -> None:
    program = Program()
    get_user_model().objects.filter(pk=program.user.pk).update(is_active=False)
    assert program.get("jobs").status_code == 401


def test_a_browser_session_opens_nothing() -> None:
    browser = APIClient()
    operator = get_user_model().objects.create_superuser("ada")
    browser.force_login(operator)
    assert browser.get("/api/v1/jobs").status_code == 401


def test_a_token_in_a_cookie_or_in_the_query_opens_nothing() -> None:
    browser = APIClient()
    token = Program().token
    browser.cookies["Authorization"] = f"Bearer {token}"
    assert browser.get(f"/api/v1/jobs?token={token}&access_token={token}").status_code == 401


def test_the_last_use_of_a_token_is_written_at_most_once_a_minute() -> None:
    program = Program()
    program.get("jobs")
    program.token_row.refresh_from_db()
    first = program.token_row.last_used_at
    assert first is not None
    program.get("jobs")
    program.token_row.refresh_from_db()
    assert program.token_row.last_used_at == first
    ApiToken.objects.filter(pk=program.token_row.pk).update(last_used_at=first - timedelta(seconds=61))
    program.get("jobs")
    program.token_row.refresh_from_db()
    assert program.token_row.last_used_at > first - timedelta(seconds=61)


@pytest.mark.parametrize(
    ("method", "path", "needed", "enough"),
    [
        ("GET", "jobs", "jobs:read", {"jobs:read", "jobs:operate", "admin"}),
        ("GET", "bookings", "jobs:read", {"jobs:read", "jobs:operate", "admin"}),
        ("POST", "jobs", "jobs:write", {"jobs:write", "admin"}),
        ("POST", "bookings", "jobs:write", {"jobs:write", "admin"}),
        ("GET", "workflows", "jobs:read", {"jobs:read", "jobs:operate", "admin"}),
        ("GET", "workflows/TripBooking", "jobs:read", {"jobs:read", "jobs:operate", "admin"}),
        ("GET", "attention", "jobs:operate", {"jobs:operate", "admin"}),
        *(("GET", path, "jobs:read", {"jobs:read", "jobs:operate", "admin"}) for path in READS),
        *(
            ("POST", f"jobs/{{id}}/{verb}", "jobs:write", {"jobs:write", "jobs:operate", "admin"})
            for verb in CLIENTS_VERBS
        ),
        *(
            ("POST", path, "jobs:operate", {"jobs:operate", "admin"})
            for method, path in JOB_ROUTES
            if method == "POST" and not path.endswith(tuple(f"{{id}}/{verb}" for verb in CLIENTS_VERBS))
        ),
    ],
)
def test_a_route_opens_to_its_scope_alone(method: str, path: str, needed: str, enough: set[str]) -> None:
    job_id = Program("shop").book()
    for scope in ApiToken.Scope.values:
        response = Program("shop", scope).ask(method, path.format(id=job_id), None, {})
        assert (response.status_code == 403) is (scope not in enough), scope
        if response.status_code == 403:
            assert needed in response.json()["detail"]


@pytest.mark.parametrize(("method", "path"), JOB_ROUTES)
def test_another_clients_job_does_not_exist_sas_106(method: str, path: str) -> None:
    job_id = Program("a").book()
    # Holding every scope that a client without a right to all jobs can hold.
    other = Program("b", "jobs:read", "jobs:write")
    response = other.ask(method, path.format(id=job_id), None, {"If-Match": "*", "Idempotency-Key": "k"})
    may_ask = method == "GET" or path.endswith(tuple(f"{{id}}/{verb}" for verb in CLIENTS_VERBS))
    assert response.status_code == (404 if may_ask else 403)
    unknown = other.ask(method, path.format(id="0" * 8 + job_id[8:]), None, {"If-Match": "*"})
    assert unknown.json()["title"] == response.json()["title"]
    assert Event.objects.filter(job_id=job_id).count() == 1
    assert not Job.objects.get(pk=job_id).stopping_at
    assert not IdempotencyRecord.objects.filter(client_id=other.user.pk).exists()


def test_lists_and_searches_leave_out_other_clients_jobs_sas_106() -> None:
    a, b = Program("a"), Program("b")
    theirs, own = a.book("shared-key"), b.book("own-key")
    for query in ("", "?state=Running", f"?q={theirs}", "?q=shared-key"):
        for collection in ("jobs", "bookings"):
            found = {job["id"] for job in b.get(collection + query).json()["results"]}
            assert found <= {own}, query
            assert (own in found) is ("q=" not in query)


def test_a_cursor_of_another_client_is_refused_sas_106() -> None:
    a, b = Program("a"), Program("b")
    a.book("1")
    a.book("2")
    following = a.get("jobs?limit=1").json()["next"]
    assert a.get(following).status_code == 200
    assert b.get(following).status_code == 400


def test_reading_gives_no_right_to_act_sas_106() -> None:
    job_id = Program("shop").book()
    reader = Program("shop", "jobs:read")
    for method, path in JOB_ROUTES:
        if method == "POST":
            assert reader.post(path.format(id=job_id), {}, If_Match="*").status_code == 403
    assert reader.post("bookings", TRIP, idempotency_key="n").status_code == 403
    assert Event.objects.filter(job_id=job_id).count() == 1


@pytest.mark.parametrize("scope", ["jobs:operate", "admin"])
def test_an_operators_program_sees_and_stops_every_job(scope: str) -> None:
    job_id = Program("shop").book()
    operator = Program("ops", scope)
    assert operator.get(f"jobs/{job_id}").status_code == 200
    assert job_id in {job["id"] for job in operator.get("jobs").json()["results"]}
    assert operator.post(f"jobs/{job_id}/cancellation", {}).status_code == 202
    assert Event.objects.get(job_id=job_id, kind="job.stopping").actor == "client:ops"


@pytest.mark.parametrize("client_id", [None, 2_000_000_000])
def test_a_job_that_belongs_to_nobody_is_the_operators_alone_sas_108(client_id: int | None) -> None:
    job_id = TripBooking.start(TRIP, client_id=client_id).pk
    client = Program("a")
    for method, path in [*(("GET", path) for path in READS), ("POST", "jobs/{id}/cancellation")]:
        assert client.ask(method, path.format(id=job_id), None, {}).status_code == 404
    assert client.get("jobs").json()["results"] == []
    assert Program("ops", "jobs:operate").get(f"jobs/{job_id}").status_code == 200


def test_the_groups_of_the_console_mean_nothing_here() -> None:
    theirs = Program("a").book()
    program = Program("b")
    program.user.groups.add(Group.objects.create(name="operators"))
    assert program.get(f"jobs/{theirs}").status_code == 404
