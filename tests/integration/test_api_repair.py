"""What people and client programs ask of a job beyond starting it: signals, undo as previewed, and repair by hand."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group

from agents import InDoubt, Permanent
from tests.api import Program, newcomer
from tests.integration.engine import Engine, named, state_of
from workflows import Retry, Workflow, reports, signal, step
from workflows.models import Event, Job, Signal, Step
from workflows.transitions import Failure

ONCE = Retry(attempts=1)
REPAIRS = ("retries", "skip", "result", "verdict")


class ApiRepair(Workflow):
    """A chain that can be undone, also after it completed."""

    compensate_within = timedelta(hours=1)
    a = step("shop.a", compensation="shop.undo_a", retry=ONCE, undo_retry=ONCE, on_failure="hold")
    b = step("shop.b", compensation="shop.undo_b", after=[a], retry=ONCE, undo_retry=ONCE, on_failure="hold")
    c = step("shop.c", compensation=False, after=[b], retry=ONCE, on_failure="hold")


class ApiAsks(Workflow):
    """Waits for a word, then for a decision of named people."""

    word = signal()
    decision = signal(approvers=["api-approver", "group:night shift"], after=[word])


class ApiDecides(Workflow):
    decision = signal(approval=True, on_failure="hold")


class ApiNoReturn(Workflow):
    a = step("shop.a", compensation="shop.undo_a", pivot=True, retry=ONCE)
    b = step("shop.b", after=[a], retry=ONCE)


@pytest.fixture
def client(engine: Engine) -> Program:
    return newcomer()


@pytest.fixture
def operator(engine: Engine) -> Program:
    return newcomer("jobs:operate")


def begin(program: Program, workflow: str = "ApiRepair") -> str:
    return str(program.post("jobs", {"workflow": workflow}, idempotency_key=workflow).json()["id"])


def tag(program: Program, job_id: str, step_name: str = "") -> str:
    return str(program.get(f"jobs/{job_id}/steps/{step_name}" if step_name else f"jobs/{job_id}")["ETag"])


def repair(operator: Program, job_id: str, step_name: str, verb: str, **body: Any) -> Any:
    seen = tag(operator, job_id, step_name)
    return operator.post(f"jobs/{job_id}/steps/{step_name}/{verb}", body, If_Match=seen)


# --- signals ----------------------------------------------------------------------------------------------------------


def test_the_first_signal_is_taken_and_a_second_one_is_lost(client: Program) -> None:
    job_id = begin(client, "ApiAsks")
    outcomes = []
    for payload in ({"n": 1}, {"n": 2}):
        response = client.post(f"jobs/{job_id}/signals/word", payload)
        assert (response.status_code, list(response.json())) == (202, ["name", "outcome", "received_at"])
        outcomes.append(response.json()["outcome"])
    assert outcomes == ["taken", "lost"]
    word = client.get(f"jobs/{job_id}/steps/word").json()
    assert (word["state"], word["result"], word["settled_by"]) == ("Completed", {"n": 1}, "signal")


def test_a_signal_that_comes_early_is_kept(client: Program) -> None:
    job_id = begin(client, "ApiAsks")
    approver = Program("api-approver", "jobs:operate")
    early = approver.post(f"jobs/{job_id}/signals/decision", {"approved": True})
    assert early.json()["outcome"] == "kept"
    client.post(f"jobs/{job_id}/signals/word", None)
    assert client.get(f"jobs/{job_id}").json()["state"] == "Completed"


@pytest.mark.parametrize("payload", [None, {}, [], [1, "a"], "text", 0, False, 1.5])
def test_a_signals_body_is_free_json(client: Program, payload: Any) -> None:
    job_id = begin(client, "ApiAsks")
    assert client.post(f"jobs/{job_id}/signals/word", payload).status_code == 202
    kept = Signal.objects.get(job_id=job_id).payload
    assert kept == ({} if payload is None else payload)


def test_a_signal_sent_again_under_its_key_is_one_signal(client: Program) -> None:
    job_id = begin(client, "ApiAsks")
    first, again = (client.post(f"jobs/{job_id}/signals/word", [1], idempotency_key="s") for _ in range(2))
    assert first.json() == again.json()
    assert Signal.objects.filter(job_id=job_id).count() == 1


def test_a_signal_that_the_plan_does_not_know(client: Program) -> None:
    response = client.post(f"jobs/{begin(client, 'ApiAsks')}/signals/sword", {})
    assert response.status_code == 404
    assert "word" in response.json()["detail"]


def test_a_job_that_has_ended_takes_no_signal(client: Program) -> None:
    job_id = begin(client, "ApiAsks")
    client.post(f"jobs/{job_id}/cancellation", {})
    assert client.post(f"jobs/{job_id}/signals/word", {}).status_code == 409


def test_only_an_approver_decides(client: Program) -> None:
    job_id = begin(client, "ApiAsks")
    client.post(f"jobs/{job_id}/signals/word", {})
    night = newcomer("jobs:operate")
    refused = night.post(f"jobs/{job_id}/signals/decision", {"approved": True})
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/not-allowed")
    assert client.post(f"jobs/{job_id}/signals/decision", {"approved": True}).status_code == 403
    shift = Group.objects.create(name="night shift")
    night.user.groups.add(shift)
    try:
        assert night.post(f"jobs/{job_id}/signals/decision", {"approved": True}).json()["outcome"] == "taken"
    finally:
        shift.delete()
    assert Event.objects.filter(job_id=job_id, actor=f"client:{night.user.username}").exists()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/approved"),
        ({"approved": "yes"}, "/approved"),
        ([], "/approved"),
        ({"approved": False}, "/reason"),
        ({"approved": True, "reason": 7}, "/reason"),
    ],
)
def test_a_decision_that_is_none_is_refused_with_its_place(client: Program, body: Any, pointer: str) -> None:
    response = client.post(f"jobs/{begin(client, 'ApiDecides')}/signals/decision", body)
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer)


def test_a_refusal_fails_the_step_for_good(engine: Engine, client: Program) -> None:
    job_id = begin(client, "ApiDecides")
    assert client.post(f"jobs/{job_id}/signals/decision", {"approved": False, "reason": "too dear"}).status_code == 202
    engine.drain()
    [step_document] = client.get(f"jobs/{job_id}").json()["steps"]
    assert (step_document["state"], step_document["error"]["code"]) == ("Failed", "not_approved")
    assert "too dear" in client.get(f"jobs/{job_id}").json()["needs_person"][0]


# --- undo -------------------------------------------------------------------------------------------------------------


def completed(engine: Engine, client: Program) -> str:
    engine.says("shop.a", {"reference": "A-1"})
    engine.says("shop.b", {"reference": "B-1"})
    job_id = begin(client)
    engine.drain()
    assert client.get(f"jobs/{job_id}").json()["state"] == "Completed"
    return job_id


def test_a_client_cancels_its_trip_after_it_completed_exactly_as_shown(engine: Engine, client: Program) -> None:
    job_id = completed(engine, client)
    response = client.get(f"jobs/{job_id}/compensation")
    preview = response.json()
    assert response["ETag"] == tag(client, job_id)
    assert [(call["step"], call["operation"], call["reference"]) for call in preview["steps"]] == [
        ("b", "shop.undo_b", "B-1"),
        ("a", "shop.undo_a", "A-1"),
    ]
    assert (preview["total"], preview["in_doubt"], preview["running"], preview["pivot"]) == (2, [], [], None)
    [left] = preview["not_undone"]
    assert (left["step"], "unnecessary" in left["why"]) == ("c", True)
    body = {"digest": preview["digest"], "reason": "changed my mind"}
    accepted = client.post(f"jobs/{job_id}/compensation", body, If_Match=response["ETag"])
    assert (accepted.status_code, accepted.json()["state"]) == (202, "Compensating")
    assert accepted["Location"] == f"/api/v1/jobs/{job_id}"
    engine.drain()
    assert engine.asked()[-2:] == ["shop.undo_b", "shop.undo_a"]
    assert client.get(f"jobs/{job_id}").json()["state"] == "Compensated"


def test_an_undo_that_is_no_longer_what_was_shown_is_refused(engine: Engine, client: Program) -> None:
    job_id = begin(client)
    digest = client.get(f"jobs/{job_id}/compensation").json()["digest"]
    engine.claim(named(Job.objects.get(pk=job_id), "a"))
    before = Event.objects.filter(job_id=job_id).count()
    response = client.post(f"jobs/{job_id}/compensation", {"digest": digest, "reason": ""}, If_Match="*")
    assert (response.status_code, response.json()["type"]) == (409, "/problems/digest-mismatch")
    assert Event.objects.filter(job_id=job_id).count() == before


def test_a_preview_changes_nothing_and_is_the_same_until_something_moves(engine: Engine, client: Program) -> None:
    job_id = completed(engine, client)
    first, second = (client.get(f"jobs/{job_id}/compensation").json() for _ in range(2))
    assert first == second
    assert state_of(Job.objects.get(pk=job_id)) == "Completed"


def test_a_part_is_undone_by_an_operator_alone_and_gone_forward_again(
    engine: Engine, client: Program, operator: Program
) -> None:
    engine.says("shop.c", Permanent("Not today."), {})
    job_id = begin(client)
    engine.drain()
    operator.post(f"jobs/{job_id}/cancellation", {"undo": False, "reason": "look at it first"})
    preview = operator.get(f"jobs/{job_id}/compensation?down_to=b").json()
    assert ([call["step"] for call in preview["steps"]], preview["down_to"]) == (["b"], "b")
    body = {"digest": preview["digest"], "reason": "the wrong one", "down_to": "b"}
    assert client.post(f"jobs/{job_id}/compensation", body, If_Match="*").status_code == 403
    assert operator.post(f"jobs/{job_id}/compensation", body, If_Match="*").status_code == 202
    engine.drain()
    half = client.get(f"jobs/{job_id}").json()
    assert half["state"] == "Failed"
    assert half["needs_person"] == [
        "A part of the job was undone: try it again to go forward from there, or undo the rest."
    ]
    [needy] = operator.get("attention").json()["results"]
    assert (needy["job"], needy["reasons"]) == (job_id, half["needs_person"])
    assert operator.post(f"jobs/{job_id}/retries", {}, If_Match="*").status_code == 202
    engine.drain()
    assert client.get(f"jobs/{job_id}").json()["state"] == "Completed"
    assert client.get(f"jobs/{job_id}/steps/b").json()["generation"] == 2
    assert client.get(f"jobs/{job_id}/steps/b.undo").json()["generation"] == 1


def test_a_preview_down_to_a_step_that_does_not_exist(client: Program) -> None:
    assert client.get(f"jobs/{begin(client)}/compensation?down_to=z").status_code == 404


def test_behind_the_point_of_no_return_the_preview_says_so_and_the_undo_is_refused(
    engine: Engine, client: Program
) -> None:
    job_id = begin(client, "ApiNoReturn")
    engine.settle(engine.claim(named(Job.objects.get(pk=job_id), "a")), hand_over=False)
    preview = client.get(f"jobs/{job_id}/compensation").json()
    assert preview["pivot"] == "a"
    response = client.post(f"jobs/{job_id}/compensation", {"digest": preview["digest"], "reason": "x"}, If_Match="*")
    assert (response.status_code, response.json()["type"]) == (409, "/problems/wrong-state")


@pytest.mark.parametrize("body", [{}, {"digest": ""}, {"digest": 7}, {"digest": "d", "downto": "b"}])
def test_an_undo_without_a_digest_is_no_undo(client: Program, body: Any) -> None:
    response = client.post(f"jobs/{begin(client)}/compensation", body, If_Match="*")
    assert response.status_code == 422


# --- by hand ----------------------------------------------------------------------------------------------------------


def held(engine: Engine, client: Program, error: Exception) -> str:
    """A job whose first step stands in front of a person."""
    engine.says("shop.a", error, {"reference": "A-2"})
    job_id = begin(client)
    engine.drain()
    assert client.get(f"jobs/{job_id}/steps/a").json()["state"] == "Failed"
    return job_id


def test_a_step_is_skipped_with_a_reason(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, Permanent("No."))
    assert repair(operator, job_id, "a", "skip").json()["errors"][0]["pointer"] == "/reason"
    skipped = repair(operator, job_id, "a", "skip", reason="not needed today")
    assert (skipped.status_code, skipped.json()["state"], skipped.json()["skip_reason"]) == (
        202,
        "Skipped",
        "not needed today",
    )
    engine.drain()
    assert client.get(f"jobs/{job_id}").json()["state"] == "Completed"


def test_a_result_is_given_by_hand_and_marked_so_for_ever(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, Permanent("No."))
    given = repair(operator, job_id, "a", "result", result={"reference": "by phone"}, reason="Called them.")
    assert (given.status_code, given.json()["settled_by"]) == (202, "person")
    engine.drain()
    first = client.get(f"jobs/{job_id}/steps/a").json()
    assert (first["result"], first["settled_by"]) == ({"reference": "by phone"}, "person")
    told = Event.objects.get(job_id=job_id, kind="step.settled")
    assert (told.actor, told.reason) == (f"client:{operator.user.username}", "Called them.")


def test_what_an_attempt_said_too_late_is_taken_up(engine: Engine, client: Program, operator: Program) -> None:
    job_id = begin(client)
    claimed = engine.claim(named(Job.objects.get(pk=job_id), "a"))
    engine.ahead(60)
    engine.sweep()
    assert engine.settle(claimed, '{"reference": "late"}') is None
    refused = repair(operator, job_id, "a", "result", attempt=2, reason="It was done.")
    assert refused.status_code == 404
    assert client.get(f"jobs/{job_id}/steps/a").json()["attempts"][0]["late"]["result"] == {"reference": "late"}
    taken = repair(operator, job_id, "a", "result", attempt=1, reason="It was done.")
    assert (taken.status_code, taken.json()["settled_by"], taken.json()["result"]) == (
        202,
        "late",
        {"reference": "late"},
    )


@pytest.mark.parametrize(
    "body",
    [
        {"reason": "x"},
        {"result": 1, "attempt": 1, "reason": "x"},
        {"result": 1},
        {"attempt": 0, "reason": "x"},
        {"attempt": None, "reason": "x"},
        {"result": 1, "reason": " "},
    ],
)
def test_a_result_that_says_nothing_or_too_much_is_refused(
    engine: Engine, client: Program, operator: Program, body: Any
) -> None:
    job_id = held(engine, client, Permanent("No."))
    response = operator.post(f"jobs/{job_id}/steps/a/result", body, If_Match="*")
    assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-input")
    assert named(Job.objects.get(pk=job_id), "a").state == "Failed"


def test_a_result_may_be_null(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, Permanent("No."))
    assert repair(operator, job_id, "a", "result", result=None, reason="x").status_code == 202


def test_a_verdict_ends_a_doubt(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, InDoubt("No answer."))
    document = client.get(f"jobs/{job_id}/steps/a").json()
    assert (document["in_doubt"], "verdict" in document["verbs"]) == (True, True)
    response = repair(operator, job_id, "a", "verdict", verdict="done", result={"reference": "A-9"}, reason="Saw it.")
    assert (response.status_code, response.json()["state"], response.json()["in_doubt"]) == (202, "Completed", False)
    again = repair(operator, job_id, "a", "verdict", verdict="done", reason="Saw it.")
    assert again.status_code == 409
    assert "verdict" not in again.json()["allowed"]


def test_a_verdict_of_not_done_lets_it_be_done(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, InDoubt("No answer."))
    assert repair(operator, job_id, "a", "verdict", verdict="not_done", reason="Looked.").status_code == 202
    engine.drain()
    assert client.get(f"jobs/{job_id}/steps/a").json()["result"] == {"reference": "A-2"}


@pytest.mark.parametrize(
    "body",
    [
        {"verdict": "maybe", "reason": "x"},
        {"verdict": "done"},
        {"verdict": "not_done", "result": 1, "reason": "x"},
        {"reason": "x"},
    ],
)
def test_a_verdict_that_is_none(engine: Engine, client: Program, operator: Program, body: Any) -> None:
    job_id = held(engine, client, InDoubt("No answer."))
    assert operator.post(f"jobs/{job_id}/steps/a/verdict", body, If_Match="*").status_code == 422


def test_a_new_key_only_after_a_definite_refusal(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, Permanent("Key refused."))
    key = client.get(f"jobs/{job_id}/steps/a").json()["idempotency_key"]
    response = repair(operator, job_id, "a", "retries", new_key=True, reason="")
    assert response.status_code == 202
    assert response.json()["idempotency_key"] != key


def test_a_step_in_doubt_keeps_its_key(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, InDoubt("No answer."))
    assert repair(operator, job_id, "a", "retries", new_key=True).status_code == 409
    assert repair(operator, job_id, "a", "retries", new_key="yes").status_code == 422


# --- who, and when ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", REPAIRS)
def test_a_repair_is_only_done_to_what_was_seen(engine: Engine, client: Program, operator: Program, verb: str) -> None:
    body = {
        "verdict": {"verdict": "done", "reason": "x"},
        "result": {"result": 1, "reason": "x"},
    }.get(verb, {"reason": "x"})
    job_id = begin(client)
    path = f"jobs/{job_id}/steps/a/{verb}"
    assert operator.post(path, body).status_code == 428
    assert operator.post(path, body, If_Match='"0"').status_code == 412
    assert client.post(path, body, If_Match="*").status_code == 403
    assert operator.post(f"jobs/{uuid.uuid4()}/steps/a/{verb}", body, If_Match="*").status_code == 404
    assert operator.post(f"jobs/{job_id}/steps/z/{verb}", body, If_Match="*").status_code == 404
    assert Event.objects.filter(job_id=job_id).count() == 1


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        ("running", {"cancellation", "result"}),
        ("waiting for a retry", {"skip"}),
        ("completed", set()),
        ("compensating", set()),
    ],
)
def test_what_the_state_table_does_not_allow_is_refused_and_says_what_is_sas_105(
    engine: Engine, client: Program, operator: Program, state: str, allowed: set[str]
) -> None:
    job_id = begin(client)
    row = Job.objects.get(pk=job_id)
    if state == "waiting for a retry":
        claimed = engine.claim(named(row, "a"))
        reports.release(claimed, delay=timedelta(minutes=1), reason="later")
    else:
        claimed = engine.claim(named(row, "a"))
    if state in ("completed", "compensating"):
        engine.settle(claimed, hand_over=False)
    if state == "compensating":
        client.post(f"jobs/{job_id}/cancellation", {})
    bodies = {
        "verdict": {"verdict": "done", "reason": "x"},
        "result": {"result": 1, "reason": "x"},
        "skip": {"reason": "x"},
        "retries": {},
    }
    assert set(client.get(f"jobs/{job_id}/steps/a").json()["verbs"]) == allowed
    before = named(row, "a").attempt
    for verb in set(bodies) - allowed:
        response = operator.post(f"jobs/{job_id}/steps/a/{verb}", bodies[verb], If_Match="*")
        assert (response.status_code, set(response.json()["allowed"])) == (409, allowed), verb
    assert Step.objects.get(job_id=job_id, name="a").attempt == before


def test_a_repair_under_its_key_is_done_once(engine: Engine, client: Program, operator: Program) -> None:
    job_id = held(engine, client, Permanent("No."))
    body = {"reason": "no need"}
    first, again = (
        operator.post(f"jobs/{job_id}/steps/a/skip", body, If_Match="*", idempotency_key="skip") for _ in range(2)
    )
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert Event.objects.filter(job_id=job_id, kind="step.skipped").count() == 1


def test_a_held_step_stands_in_the_list_of_what_needs_a_person(
    engine: Engine, client: Program, operator: Program
) -> None:
    job_id = held(engine, client, Permanent("The desk is closed."))
    [needy] = operator.get("attention").json()["results"]
    assert (needy["job"], needy["workflow"], needy["state"]) == (job_id, "ApiRepair", "Running")
    assert needy["reasons"] == ["a: shop.a was given up: The desk is closed."]
    assert needy["since"] == client.get(f"jobs/{job_id}/steps/a").json()["finished_at"]
    assert set(needy["verbs"]) == {"cancellation", "compensation", "pause"}
    assert client.get(f"jobs/{job_id}").json()["waiting_because"] == (
        "a failed (The desk is closed) and waits for a person."
    )
    assert client.get("attention").status_code == 403
    repair(operator, job_id, "a", "skip", reason="no need")
    assert operator.get("attention").json()["results"] == []


def test_the_oldest_need_comes_first_and_is_walked_both_ways(
    engine: Engine, client: Program, operator: Program
) -> None:
    engine.says("shop.a", Permanent("No."))
    ids = []
    for n in range(3):
        ids.append(client.post("jobs", {"workflow": "ApiRepair"}, idempotency_key=str(n)).json()["id"])
    engine.drain()
    first = operator.get("attention?limit=2").json()
    second = operator.get(first["next"]).json()
    assert [row["job"] for row in [*first["results"], *second["results"]]] == ids
    assert second["next"] is None
    assert [row["job"] for row in operator.get(second["prev"]).json()["results"]] == ids[:2]


def test_a_failure_says_what_will_be_tried_before_it_is(client: Program) -> None:
    document = client.get(f"jobs/{client.book()}/steps/car").json()
    retry = document["retry"]
    assert list(retry) == ["attempts", "first", "factor", "cap", "waits"]
    assert len(retry["waits"]) == retry["attempts"] - 1
    assert retry["waits"][:2] == [retry["first"], retry["first"] * retry["factor"]]
    assert document["timeouts"] == {"queue": 86400.0, "attempt": 30.0, "lease": 10.0, "total": 604800.0}


def test_a_failure_without_a_definite_word_is_no_failure_for_a_new_key(
    engine: Engine, client: Program, operator: Program
) -> None:
    job_id = begin(client)
    claimed = engine.claim(named(Job.objects.get(pk=job_id), "a"))
    assert reports.fail(claimed, Failure(kind="transient", code="busy", message="Busy."), sent=None)
    assert repair(operator, job_id, "a", "retries", new_key=True).status_code == 409
