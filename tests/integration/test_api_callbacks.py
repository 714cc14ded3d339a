"""Callbacks: an outside service, which has no account with us, says what became of a call that was deferred to it."""

from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from agents import InDoubt
from tests.api import PROBLEM, Program, conform, newcomer
from tests.integration.engine import Engine, named, state_of
from workflows import Retry, Workflow, reports, signals, step
from workflows.models import Event, Job, Step

DONE = {"result": {"reference": "A-1"}}


class ApiDefers(Workflow):
    a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=2))
    b = step("shop.b", after=[a])


@pytest.fixture
def program(engine: Engine) -> Program:
    return newcomer("jobs:read", "jobs:write", "jobs:operate")


class Waiting:
    """A job whose first step an attempt has begun, with the token that its service was given."""

    def __init__(self, engine: Engine) -> None:
        self.job = ApiDefers.start()
        self.claimed = engine.claim(named(self.job, "a"))
        self.token = signals.token_of(self.claimed.step_id)

    def defer(self) -> "Waiting":
        assert reports.defer(self.claimed, within=timedelta(hours=1), sent='{"to": "them"}')
        return self

    @property
    def step(self) -> Any:
        return Step.objects.get(pk=self.claimed.step_id)


def call(token: str, body: Any, **headers: str) -> Any:
    """Without any token of ours."""
    response = APIClient().post(f"/api/v1/callbacks/{token}", body, format="json", headers=headers)
    conform(response, "POST", f"/api/v1/callbacks/{token}")
    return response


def test_a_service_completes_what_was_deferred_to_it(engine: Engine, program: Program) -> None:
    waiting = Waiting(engine).defer()
    document = program.get(f"jobs/{waiting.job.pk}/steps/a").json()
    assert document["waiting_because"].startswith("a waits for a callback, attempt 1, until ")
    response = call(waiting.token, DONE)
    assert (response.status_code, response.json()) == (200, {"outcome": "completed"})
    document = program.get(f"jobs/{waiting.job.pk}/steps/a").json()
    assert (document["result"], document["settled_by"]) == ({"reference": "A-1"}, "callback")
    engine.drain()
    assert state_of(waiting.job) == "Completed"


def test_a_service_fails_what_was_deferred_to_it(engine: Engine) -> None:
    waiting = Waiting(engine).defer()
    body = {"error": {"kind": "permanent", "code": "sold_out", "message": "Sold out."}}
    assert call(waiting.token, body).json() == {"outcome": "failed"}
    assert (waiting.step.error_kind, waiting.step.error_code) == ("permanent", "sold_out")


def test_a_callback_that_is_faster_than_our_own_commit_counts_sas_077(engine: Engine) -> None:
    waiting = Waiting(engine)
    assert call(waiting.token, DONE).json() == {"outcome": "completed"}
    assert not reports.defer(waiting.claimed, within=timedelta(hours=1), sent=None)
    assert waiting.step.result == {"reference": "A-1"}
    assert waiting.step.state == "Completed"


def test_a_second_callback_is_recorded_and_changes_nothing(engine: Engine) -> None:
    waiting = Waiting(engine).defer()
    call(waiting.token, DONE)
    for body in ({"result": {"reference": "other"}}, {"error": {"code": "x"}}):
        assert call(waiting.token, body).json() == {"outcome": "ignored"}
    assert waiting.step.result == {"reference": "A-1"}
    assert Event.objects.filter(job=waiting.job, kind="callback.ignored", step="a").count() == 2


def test_a_callback_ends_the_doubt_of_an_attempt_whose_answer_was_lost(engine: Engine) -> None:
    engine.says("shop.a", InDoubt("No answer."))
    job = ApiDefers.start()
    engine.drain()
    row = named(job, "a")
    assert (row.state, row.attempts.filter(in_doubt=True).count()) == ("NotStarted", 1)
    assert call(signals.token_of(row.pk), DONE).json() == {"outcome": "completed"}
    assert not row.attempts.filter(in_doubt=True, resolved_by="").exists()


@pytest.mark.parametrize("token", ["x", "1-2", "a-" + "0" * 64, "é", "%00", "a" * 2000, "1-\udc80", "zzzzzzzzzzz-0"])
def test_a_token_that_nobody_gave_out_leads_nowhere(engine: Engine, token: str) -> None:
    response = call(token.encode("utf-8", "replace").decode(), DONE)
    assert (response.status_code, response["Content-Type"]) == (404, PROBLEM)
    assert response.json()["type"] == "/problems/not-found"


def test_a_token_of_another_step_is_not_made_by_changing_its_head(engine: Engine) -> None:
    waiting = Waiting(engine).defer()
    _, _, seal = waiting.token.partition("-")
    other = signals.token_of(named(waiting.job, "b").pk).partition("-")[0]
    assert call(f"{other}-{seal}", DONE).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"result": 1, "error": {}},
        {"error": "it failed"},
        {"error": {"kind": "in_doubt"}},
        {"error": {"code": 7}},
    ],
)
def test_a_word_that_says_nothing_is_refused_and_the_step_waits_on(engine: Engine, body: Any) -> None:
    waiting = Waiting(engine).defer()
    response = call(waiting.token, body)
    assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-input")
    assert waiting.step.state == "Running"


def test_a_result_that_cannot_be_stored_is_refused_where_it_stands_sas_052(engine: Engine) -> None:
    waiting = Waiting(engine).defer()
    response = call(waiting.token, {"result": {"name": "A\0"}})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, "/result/name")
    assert waiting.step.state == "Running"


@pytest.mark.parametrize("body", [{"result": "x" * 5_000_000}, {"error": {"message": "x" * 5_000_000}}])
def test_a_word_that_is_too_large_is_refused_and_the_job_stays_whole_sas_054(
    engine: Engine, program: Program, body: Any
) -> None:
    waiting = Waiting(engine).defer()
    assert call(waiting.token, body).status_code == 413
    assert program.get(f"jobs/{waiting.job.pk}").status_code == 200
    assert program.post(f"jobs/{waiting.job.pk}/cancellation", {}).status_code == 202


def test_a_signal_that_is_too_large_is_refused_sas_054(engine: Engine, program: Program) -> None:
    waiting = Waiting(engine)
    assert program.post(f"jobs/{waiting.job.pk}/signals/a", "x" * 5_000_000).status_code == 413


def test_only_json_is_heard(engine: Engine) -> None:
    waiting = Waiting(engine).defer()
    address = f"/api/v1/callbacks/{waiting.token}"
    assert APIClient().post(address, "a=1", content_type="application/x-www-form-urlencoded").status_code == 415
    assert APIClient().get(address).status_code == 405


def test_the_token_is_nowhere_to_be_read(engine: Engine, program: Program) -> None:
    waiting = Waiting(engine).defer()
    for path in ("", "/steps/a", "/events"):
        assert waiting.token not in program.get(f"jobs/{waiting.job.pk}{path}").content.decode()
    assert Job.objects.filter(pk=waiting.job.pk, plan__icontains=waiting.token).count() == 0
