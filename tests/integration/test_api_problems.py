"""Errors are problem documents, whatever went wrong; and the OpenAPI document and its page are there for everybody."""

import re
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from jsonschema import Draft202012Validator
from rest_framework.test import APIClient

from tests.api import PROBLEM, Program
from workflows.api.views import jobs
from workflows.exceptions import SagError

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "path", ["nowhere", "jobs/", "jobs/7", "jobs/not-a-uuid/events", "", "bookings/1/cancellation"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_address_that_leads_nowhere(method: str, path: str) -> None:
    response = Program().ask(method, f"/api/v1/{path}", None, {})
    assert (response.status_code, response["Content-Type"]) == (404, PROBLEM)


@pytest.mark.parametrize("path", ["jobs", "bookings"])
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_method_that_an_address_does_not_have(method: str, path: str) -> None:
    response = Program().ask(method, path, None, {})
    assert response.status_code == 405
    assert {"GET", "POST"} <= set(response["Allow"].split(", "))


def test_an_answer_in_a_format_that_we_do_not_have() -> None:
    response = Program().get("jobs", Accept="text/html")
    assert (response.status_code, response["Content-Type"]) == (406, PROBLEM)


@pytest.mark.parametrize("error", [OperationalError("server closed"), InterfaceError("connection is closed")])
def test_while_the_database_is_away_one_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(jobs, "visible_jobs", lambda request: (_ for _ in ()).throw(error))
    response = Program().get("jobs")
    assert response.status_code == 503
    assert int(response["Retry-After"]) >= 1
    assert response.json()["type"] == "/problems/unavailable"
    assert "server closed" not in response.json()["detail"]


def test_a_fault_of_our_own_is_logged_and_tells_nothing_of_our_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Any) -> None:
        raise ZeroDivisionError("secret of the house")

    monkeypatch.setattr(jobs, "visible_jobs", fail)
    response = Program().get("jobs")
    assert response.status_code == 500
    assert b"secret" not in response.content
    assert b"ZeroDivision" not in response.content
    assert any(record.exc_info and "secret of the house" in str(record.exc_info[1]) for record in caplog.records)


def test_a_problem_says_where_it_occurred_and_what_it_is() -> None:
    problem = Program().get("jobs/00000000-0000-0000-0000-000000000000").json()
    assert problem == {
        "type": "/problems/not-found",
        "title": "There is nothing here by this name.",
        "status": 404,
        "detail": "There is no job 00000000-0000-0000-0000-000000000000.",
        "instance": "/api/v1/jobs/00000000-0000-0000-0000-000000000000",
    }


def test_every_kind_of_problem_has_a_type_of_its_own() -> None:
    def tree(kind: type[SagError]) -> list[type[SagError]]:
        return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]

    ours = [kind for kind in tree(SagError) if kind.__module__.startswith("workflows.")]
    codes = [kind.code for kind in ours]
    assert len(ours) > 20
    assert sorted(set(codes)) == sorted(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_answers_are_for_their_client_alone() -> None:
    assert Program().get("jobs")["Cache-Control"] == "private, no-cache"


def test_the_openapi_document_is_valid_and_names_every_route_its_token_and_its_errors() -> None:
    response = APIClient().get("/api/v1/schema")
    document = response.json()
    assert response.status_code == 200
    assert document["openapi"].startswith("3.1")
    assert {path.removeprefix("/api/v1") for path in document["paths"]} == {
        "/agents",
        "/agents/{name}",
        "/agents/{name}/resumption",
        "/attention",
        "/attention/causes",
        "/attention/causes/{cause_id}",
        *(f"/attention/causes/{{cause_id}}/{verb}" for verb in ("acknowledgement", "assignment", "notes", "snooze")),
        "/bookings",
        "/bookings/{job_id}",
        "/callbacks/{token}",
        "/incidents",
        "/incidents/{incident_id}",
        "/incidents/{incident_id}/acknowledgement",
        "/incidents/{incident_id}/cancellation",
        "/jobs",
        "/jobs/{job_id}",
        "/jobs/{job_id}/cancellation",
        "/jobs/{job_id}/compensation",
        "/jobs/{job_id}/events",
        "/jobs/{job_id}/pause",
        "/jobs/{job_id}/resumption",
        "/jobs/{job_id}/retries",
        "/jobs/{job_id}/signals/{name}",
        "/jobs/{job_id}/steps/{step}",
        "/jobs/{job_id}/steps/{step}/cancellation",
        "/jobs/{job_id}/steps/{step}/items",
        "/jobs/{job_id}/steps/{step}/result",
        "/jobs/{job_id}/steps/{step}/retries",
        "/jobs/{job_id}/steps/{step}/skip",
        "/jobs/{job_id}/steps/{step}/verdict",
        "/queues/{queue}/draining",
        "/schedules",
        "/schedules/preview",
        "/schedules/{schedule_id}",
        "/schedules/{schedule_id}/backfills",
        "/schedules/{schedule_id}/ticks",
        "/schedules/{schedule_id}/triggers",
        "/sweeps",
        "/workers",
        "/workers/{name}/draining",
        "/workflows",
        "/workflows/{name}",
    }
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for operations in document["paths"].values():
        for operation in operations.values():
            assert PROBLEM in operation["responses"]["default"]["content"]
            assert "Scope: " in operation["description"]
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_a_key_is_named_as_required_where_it_is() -> None:
    paths = APIClient().get("/api/v1/schema").json()["paths"]
    seen = ("/retries", "/skip", "/result", "/verdict", "/compensation")
    for path, operations in paths.items():
        if "post" in operations and not path.endswith(("/callbacks/{token}", "/preview")):
            parameters = {entry["name"]: entry.get("required", False) for entry in operations["post"]["parameters"]}
            assert parameters["Idempotency-Key"] is path.endswith(("/bookings", "/jobs"))
            assert parameters.get("If-Match", False) is path.endswith(seen)


def test_the_page_to_try_it_runs_no_script_but_its_own_files() -> None:
    page = APIClient().get("/api/v1/docs")
    assert page.status_code == 200
    assert re.findall(r"<script[^>]*>\s*[^<\s]", page.content.decode()) == []
    policy = dict(
        part.strip().split(" ", 1) for part in page["Content-Security-Policy"].split(";") if " " in part.strip()
    )
    assert policy["script-src"] == "'self'"
    assert "'unsafe-inline'" in policy["style-src"]
    assert "'unsafe-inline'" not in Program().get("jobs")["Content-Security-Policy"]
