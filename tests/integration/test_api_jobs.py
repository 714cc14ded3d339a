"""Jobs, bookings and steps as client programs see them, from the start to the receipt; and the verbs."""

import uuid
from typing import Any

import pytest

from agents import Permanent
from tests.api import TRIP, Program, newcomer
from tests.integration.engine import Engine, named
from workflows import Retry, Workflow, given, reports, step, transitions
from workflows.models import Event, Job, Step

JOB_FIELDS = (
    "id key workflow version state reason paused created_at finished_at steps needs_person "
    "progress waiting_because links"
)
STEP_FIELDS = (
    "name index operation agent state attempt charged attempts_allowed idempotency_key complete_by deadline run_after "
    "progress result error in_doubt undoes started_at finished_at waiting_because counts"
)

DETAIL_FIELDS = "kind generation item child settled_by skip_reason retry timeouts verbs attempts"


class ApiSale(Workflow):
    """Two steps of the engine's pretend services: the first can be undone."""

    a = step(
        "shop.a",
        compensation="shop.undo_a",
        input={"n": given["n"]},
        retry=Retry(attempts=1),
        undo_retry=Retry(attempts=1),
    )
    b = step("shop.b", after=[a], retry=Retry(attempts=1))


@pytest.fixture
def program(engine: Engine) -> Program:
    return newcomer()


@pytest.fixture
def operator(engine: Engine) -> Program:
    return newcomer("jobs:operate")


def sell(program: Program, key: str = "sale-1") -> str:
    body = {"workflow": "ApiSale", "input": {"n": 1}, "key": key}
    return str(program.post("jobs", body, idempotency_key=key).json()["id"])


def job(program: Program, job_id: str) -> dict[str, Any]:
    return dict(program.get(f"jobs/{job_id}").json())


# --- what is answered -------------------------------------------------------------------------------------------------


def test_a_booking_is_accepted_with_everything_needed_to_follow_it(program: Program) -> None:
    response = program.post("bookings", TRIP, idempotency_key="trip-1")
    booking = response.json()
    assert response.status_code == 202
    assert response["Location"] == f"/api/v1/bookings/{booking['id']}"
    assert int(response["Retry-After"]) >= 1
    assert list(booking) == ["id", "state", "reason", "input", "steps", "receipt", "links"]
    assert (booking["state"], booking["reason"], booking["input"], booking["receipt"]) == ("Running", None, TRIP, None)
    assert [row["name"] for row in booking["steps"]] == ["flight", "hotel", "car"]
    for address in (
        response["Location"],
        booking["links"]["status"],
        booking["links"]["events"],
        booking["links"]["job"],
    ):
        assert program.get(address).status_code == 200
    assert program.post(booking["links"]["cancel"], {}).status_code == 202


def test_a_job_has_exactly_the_fields_that_are_promised(program: Program) -> None:
    answer = job(program, program.book())
    assert list(answer) == JOB_FIELDS.split()
    assert [list(row) for row in answer["steps"]] == [STEP_FIELDS.split()] * 3
    assert (answer["progress"], answer["needs_person"], answer["paused"]) == (
        {"done": 0, "total": 3, "message": "0 of 3 done"},
        [],
        False,
    )


def test_a_booking_is_a_job_with_the_same_id_but_not_every_job_is_a_booking(program: Program) -> None:
    booked, sold = program.book(), sell(program)
    assert job(program, booked)["workflow"] == "TripBooking"
    assert program.get(f"bookings/{sold}").status_code == 404
    assert [row["id"] for row in program.get("bookings").json()["results"]] == [booked]
    assert {row["id"] for row in program.get("jobs").json()["results"]} == {booked, sold}


def test_an_active_job_says_when_to_ask_again_and_an_ended_one_does_not(engine: Engine, program: Program) -> None:
    job_id = sell(program)
    assert int(program.get(f"jobs/{job_id}")["Retry-After"]) >= 1
    engine.drain()
    response = program.get(f"jobs/{job_id}")
    assert (response.status_code, response.json()["state"]) == (200, "Completed")
    assert "Retry-After" not in response
    assert response.json()["progress"]["done"] == 2
    assert response.json()["waiting_because"] is None


def test_a_version_that_is_known_already_is_not_sent_again(engine: Engine, program: Program) -> None:
    job_id = sell(program)
    for path in (f"jobs/{job_id}", f"jobs/{job_id}/steps/a"):
        tag = program.get(path)["ETag"]
        assert tag.startswith('"')
        for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            response = program.get(path, If_None_Match=known)
            assert (response.status_code, response["ETag"]) == (304, tag)
        assert program.get(path, If_None_Match='"0"').status_code == 200
    engine.drain()
    assert program.get(f"jobs/{job_id}", If_None_Match=tag).status_code == 200


def test_the_history_is_told_by_the_jobs_own_numbers_a_page_at_a_time(engine: Engine, program: Program) -> None:
    job_id = sell(program)
    engine.drain()
    whole = program.get(f"jobs/{job_id}/events").json()
    assert [event["seq"] for event in whole["results"]] == list(range(1, len(whole["results"]) + 1))
    assert whole["results"][0] == whole["results"][0] | {
        "kind": "job.opened",
        "actor": f"client:{program.user.username}",
        "step": None,
    }
    assert whole["next"] is None
    walked, address = [], f"jobs/{job_id}/events?since=1&limit=2"
    while address:
        page = program.get(address).json()
        walked += page["results"]
        address = page["next"]
    assert walked == whole["results"][1:]
    for wrong in ("since=-1", "since=x", "since=99999999999999999999", "limit=0", "limit=201"):
        assert program.get(f"jobs/{job_id}/events?{wrong}").status_code == 400


def test_a_step_shows_each_attempt_with_what_was_sent_and_a_late_word_as_evidence(
    engine: Engine, program: Program, operator: Program
) -> None:
    job_id = sell(program)
    claimed = engine.claim(named(Job.objects.get(pk=job_id), "a"), "worker-1")
    running = program.get(f"jobs/{job_id}/steps/a").json()
    assert list(running) == [*STEP_FIELDS.split(), *DETAIL_FIELDS.split()]
    assert running["state"] == "Running"
    assert running["waiting_because"].startswith("a runs on worker-1, attempt 1, under a lease until ")
    assert running["complete_by"] <= running["deadline"]
    assert operator.post(f"jobs/{job_id}/steps/a/cancellation", {"reason": "stuck"}).status_code == 202
    engine.settle(claimed, result='{"reference": "A-1"}')
    attempts = program.get(f"jobs/{job_id}/steps/a").json()["attempts"]
    assert attempts[0]["outcome"] == "cancelled"
    assert attempts[0]["in_doubt"] is True
    assert attempts[0]["error"] == {"kind": "cancelled", "code": "cancelled", "message": "stuck"}
    assert attempts[0]["late"]["result"] == {"reference": "A-1"}
    assert program.get(f"jobs/{job_id}/steps/z").status_code == 404


def test_the_receipt_of_an_undone_booking_says_that_the_world_is_clean(engine: Engine, program: Program) -> None:
    job_id = sell(program)
    engine.says("shop.a", {"reference": "A-1"})
    engine.says("shop.b", Permanent("Sold out.", code="sold_out"))
    engine.drain()
    answer = job(program, job_id)
    assert (answer["state"], answer["reason"]) == ("Compensated", "step_failed")
    by_name = {row["name"]: row for row in answer["steps"]}
    assert by_name["b"]["error"] == {"kind": "permanent", "code": "sold_out", "message": "Sold out."}
    assert by_name["a.undo"]["undoes"] == "a"
    Job.objects.filter(pk=job_id).update(workflow="TripBooking")  # a receipt is a booking's
    assert program.get(f"bookings/{job_id}").json()["receipt"] == {
        "outcome": "Compensated",
        "undone": [{"step": "a", "reference": "A-1"}],
        "not_undone": [],
        "pending": [],
        "safe_to_retry_with_new_key": True,
    }


def test_an_undo_that_failed_names_exactly_what_is_still_live(
    engine: Engine, program: Program, operator: Program
) -> None:
    job_id = sell(program)
    engine.says("shop.a", {"reference": "A-1"})
    engine.says("shop.b", Permanent("Sold out."))
    engine.says("shop.undo_a", Permanent("The desk is closed."), {"cancelled": True})
    engine.drain()
    answer = job(program, job_id)
    assert answer["state"] == "Failed"
    assert answer["needs_person"] == [
        "a: A-1, made by shop.a, may still be live; its undo shop.undo_a failed: The desk is closed."
    ]
    response = operator.post(
        f"jobs/{job_id}/retries", {"reason": "open again"}, If_Match=f'"{Job.objects.get(pk=job_id).seq}"'
    )
    assert (response.status_code, response.json()["state"]) == (202, "Compensating")
    engine.drain()
    answer = job(program, job_id)
    assert (answer["state"], answer["needs_person"]) == ("Compensated", [])


def test_an_input_larger_than_a_job_carries_is_refused_sas_054(program: Program) -> None:
    body = {"workflow": "ApiSale", "input": {"n": "x" * 1_000_000}}
    response = program.post("jobs", body, idempotency_key="k")
    assert (response.status_code, response.json()["type"]) == (413, "/problems/input-too-large")
    assert Job.objects.count() == 0
    assert program.post("jobs", {**body, "input": {"n": "x" * 999_000}}, idempotency_key="k").status_code == 202


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_a_client_cancels_its_own_job_and_asking_twice_does_it_once(engine: Engine, program: Program) -> None:
    job_id = sell(program)
    engine.claim(named(Job.objects.get(pk=job_id), "a"))
    for _ in range(2):
        response = program.post(f"jobs/{job_id}/cancellation", {"reason": "changed my mind"})
        assert (response.status_code, response["Location"]) == (202, f"/api/v1/jobs/{job_id}")
        assert int(response["Retry-After"]) >= 1
    told = Event.objects.get(job_id=job_id, kind="job.stopping")
    assert (told.actor, told.reason, told.data["undo"]) == (f"client:{program.user.username}", "changed my mind", True)
    assert (
        job(program, job_id)["waiting_because"]
        == "The job is stopping and will then be undone; it waits for a, still running."
    )


def test_to_cancel_without_undo_needs_a_reason(program: Program) -> None:
    job_id = sell(program)
    response = program.post(f"jobs/{job_id}/cancellation", {"undo": False})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/reason")
    response = program.post(f"jobs/{job_id}/cancellation", {"undo": False, "reason": "keep what there is"})
    assert (response.status_code, response.json()["state"], response.json()["reason"]) == (202, "Failed", "cancelled")


def test_an_ended_job_cannot_be_cancelled_and_says_what_can_be_done(engine: Engine, program: Program) -> None:
    job_id = sell(program)
    engine.drain()
    response = program.post(f"jobs/{job_id}/cancellation", {})
    assert response.status_code == 409
    assert response.json()["type"] == "/problems/wrong-state"
    assert (response.json()["state"], response.json()["allowed"]) == ("Completed", [])


def test_a_paused_job_starts_nothing_until_it_is_resumed(engine: Engine, program: Program, operator: Program) -> None:
    job_id = sell(program)
    paused = operator.post(f"jobs/{job_id}/pause", {"reason": "audit"})
    assert (paused.status_code, paused.json()["paused"]) == (202, True)
    assert paused.json()["waiting_because"].startswith("The job is paused since ")
    engine.drain()
    assert job(program, job_id)["progress"]["done"] == 0
    resumed = operator.post(f"jobs/{job_id}/resumption", {})
    assert (resumed.status_code, resumed.json()["paused"]) == (202, False)
    engine.drain()
    assert job(program, job_id)["state"] == "Completed"


def test_an_operator_retries_the_step_that_failed(engine: Engine, program: Program, operator: Program) -> None:
    job_id = sell(program)
    claimed = engine.claim(named(Job.objects.get(pk=job_id), "a"))
    failure = transitions.Failure(kind="transient", code="unreachable", message="No way through.")
    assert reports.fail(claimed, failure, sent=None)
    assert "supervisor" in job(program, job_id)["waiting_because"]
    seen = program.get(f"jobs/{job_id}/steps/a")["ETag"]
    response = operator.post(f"jobs/{job_id}/steps/a/retries", {"reason": "up again"}, If_Match=seen)
    assert (response.status_code, response.json()["state"]) == (202, "NotStarted")
    assert response["Location"] == f"/api/v1/jobs/{job_id}/steps/a"
    assert Event.objects.get(job_id=job_id, kind="step.retried").actor == f"client:{operator.user.username}"


# --- preconditions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["retries", "steps/a/retries"])
def test_a_retry_without_if_match_is_asked_for_it(program: Program, operator: Program, path: str) -> None:
    response = operator.post(f"jobs/{sell(program)}/{path}", {})
    assert (response.status_code, response.json()["type"]) == (428, "/problems/precondition-required")


@pytest.mark.parametrize("tag", ['"0"', 'W/"1"', "1", '"x"', '"2", "3"'])
@pytest.mark.parametrize(
    "path", ["retries", "steps/a/retries", "cancellation", "pause", "resumption", "steps/a/cancellation"]
)
def test_a_tag_that_is_not_the_present_one_changes_nothing(
    program: Program, operator: Program, path: str, tag: str
) -> None:
    job_id = sell(program)
    response = operator.post(f"jobs/{job_id}/{path}", {}, If_Match=tag)
    assert (response.status_code, response.json()["type"]) == (412, "/problems/stale-version")
    assert Event.objects.filter(job_id=job_id).count() == 1


@pytest.mark.parametrize("tag", ["*", '"1"', '"7", "1"'])
def test_the_present_tag_or_a_star_is_let_through(program: Program, operator: Program, tag: str) -> None:
    assert operator.post(f"jobs/{sell(program)}/pause", {}, If_Match=tag).status_code == 202


def test_a_precondition_is_looked_at_only_where_there_is_something(operator: Program) -> None:
    assert operator.post(f"jobs/{uuid.uuid4()}/retries", {}, If_Match='"1"').status_code == 404


def test_the_version_of_a_step_is_its_own(engine: Engine, program: Program) -> None:
    job_id = sell(program)
    before = program.get(f"jobs/{job_id}/steps/b")["ETag"]
    engine.claim(Step.objects.get(job_id=job_id, name="a"))
    assert program.get(f"jobs/{job_id}/steps/b")["ETag"] == before
    assert program.get(f"jobs/{job_id}/steps/a")["ETag"] != before
