"""What needs a person, over REST: jobs with their cause, causes with what people did about them."""

from datetime import timedelta
from typing import Any

import pytest

from agents import Permanent
from supervisor import needs
from supervisor.models import Incident, Need, Note
from tests.api import Program, newcomer
from tests.integration.engine import Engine, named
from workflows import Workflow, signal, step
from workflows.clock import now
from workflows.models import Attempt, Job

RUNBOOK = "https://wiki.example.com/inquiries"
VERBS = {
    "acknowledgement": {},
    "assignment": {"assignee": "bo"},
    "snooze": {"until": None},
    "notes": {"text": "They open at nine."},
}


class Inquiry(Workflow):
    """Its failure stands in front of a person."""

    runbook = RUNBOOK
    a = step("shop.a", on_failure="hold")


class Referendum(Workflow):
    """Waits for a decision without an end."""

    approval = signal(approval=True)


@pytest.fixture
def operator(engine: Engine) -> Program:
    return newcomer("jobs:operate")


def inquiries(engine: Engine, *messages: str) -> list[str]:
    jobs = []
    for message in messages:
        engine.says("shop.a", Permanent(message, code="refused"))
        jobs.append(str(Inquiry.start().pk))
        engine.drain()
    needs.note_needs()
    return jobs


def test_each_job_names_its_cause_once_the_supervisor_has_looked(engine: Engine, operator: Program) -> None:
    job = inquiries(engine, "No such street.")[0]
    engine.says("shop.a", Permanent("No such town.", code="refused"))
    fresh = str(Inquiry.start().pk)
    engine.drain()
    rows = {row["job"]: row for row in operator.get("attention").json()["results"]}
    cause = Need.objects.get()
    assert (rows[job]["cause"], rows[fresh]["cause"]) == (str(cause.pk), None)
    [row] = operator.get(f"attention?cause={cause.pk}").json()["results"]
    assert row["job"] == job
    assert operator.get(f"attention?cause={cause.pk + 1}").json()["results"] == []
    assert operator.get("attention?cause=x").status_code == 400


def test_a_cause_says_what_to_do_and_how_many_stand_there(engine: Engine, operator: Program) -> None:
    jobs = inquiries(engine, "Letter 1 of 'Ada' is lost.", "No such street.", "Letter 2 of 'Bo' is lost.")
    first, second = operator.get("attention/causes").json()["results"]
    assert (first["kind"], first["cause"], first["jobs"]) == ("exhausted", "Inquiry, a: Letter … of '…' is lost.", 2)
    assert (first["workflow"], first["step"], first["agent"], first["code"]) == ("Inquiry", "a", "shop", "refused")
    assert first["examples"] == sorted([jobs[0], jobs[2]])
    assert "refuses it for good" in first["recommended"]
    assert first["links"] == {
        "self": f"/api/v1/attention/causes/{first['id']}",
        "jobs": f"/api/v1/attention?cause={first['id']}",
        "runbook": RUNBOOK,
    }
    assert second["since"] > first["since"]
    assert {row["job"] for row in operator.get(first["links"]["jobs"]).json()["results"]} == {jobs[0], jobs[2]}
    assert operator.get(first["links"]["self"]).json() == {**first, "notes": []}


def test_the_oldest_cause_comes_first_and_is_walked_both_ways(engine: Engine, operator: Program) -> None:
    inquiries(engine, "Alpha.", "Beta.", "Gamma.")
    first = operator.get("attention/causes?limit=2").json()
    second = operator.get(first["next"]).json()
    assert [row["cause"] for row in [*first["results"], *second["results"]]] == [
        f"Inquiry, a: {word}" for word in ("Alpha.", "Beta.", "Gamma.")
    ]
    assert second["next"] is None
    assert operator.get(second["prev"]).json()["results"] == first["results"]


def test_what_is_said_of_a_cause_stands_there_with_the_clients_name(engine: Engine, operator: Program) -> None:
    inquiries(engine, "No such street.")
    path = f"attention/causes/{Need.objects.get().pk}"
    actor = f"client:{operator.user.username}"
    taken = operator.post(f"{path}/acknowledgement", {"reason": "I call them"}).json()
    assert taken["acknowledged_by"] == actor
    assert operator.post(f"{path}/assignment", {"assignee": " bo "}).json()["assignee"] == "bo"
    until = now() + timedelta(hours=2)
    put_off = operator.post(f"{path}/snooze", {"until": until.isoformat(), "reason": "closed"}).json()
    assert put_off["snoozed_until"] is not None
    note = operator.post(f"{path}/notes", {"text": "They open at nine."})
    assert (note.status_code, note.json()["did"]) == (201, None)
    found = operator.get(path).json()
    assert [(note["author"], note["did"], note["text"]) for note in found["notes"]] == [
        (actor, "acknowledged it", "I call them"),
        (actor, "gave it to bo", ""),
        (actor, f"put it off until {until:%Y-%m-%d %H:%M} UTC", "closed"),
        (actor, None, "They open at nine."),
    ]
    assert operator.post(f"{path}/acknowledgement", {}).status_code == 409
    assert operator.post(f"{path}/snooze", {"until": None}).json()["snoozed_until"] is None
    assert operator.post(f"{path}/assignment", {"assignee": ""}).json()["assignee"] is None


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_is_sent_again_does_nothing_again(engine: Engine, operator: Program, verb: str) -> None:
    inquiries(engine, "No such street.")
    path = f"attention/causes/{Need.objects.get().pk}/{verb}"
    first, again = (operator.post(path, VERBS[verb], idempotency_key="once") for _ in range(2))
    assert first.status_code in (200, 201)
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert Note.objects.count() == 1


@pytest.mark.parametrize(
    ("verb", "body", "pointer"),
    [
        ("notes", {"text": "  "}, "/text"),
        ("notes", {}, "/text"),
        ("assignment", {"assignee": "x" * 151}, "/assignee"),
        ("assignment", {}, "/assignee"),
        ("snooze", {}, "/until"),
        ("snooze", {"until": "2020-01-01T00:00:00Z"}, "/until"),
        ("snooze", {"until": "2999-01-01T00:00:00Z"}, "/until"),
        ("snooze", {"until": "tomorrow"}, "/until"),
        ("acknowledgement", {"reson": "typo"}, "/reson"),
    ],
)
def test_a_word_that_makes_no_sense_is_refused_with_its_place(
    engine: Engine, operator: Program, verb: str, body: dict[str, Any], pointer: str
) -> None:
    inquiries(engine, "No such street.")
    answer = operator.post(f"attention/causes/{Need.objects.get().pk}/{verb}", body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert not Note.objects.exists()


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_not_there_is_not_found_and_what_is_over_takes_no_word(
    engine: Engine, operator: Program, verb: str
) -> None:
    [job] = inquiries(engine, "No such street.")
    cause = Need.objects.get().pk
    assert operator.post(f"attention/causes/{cause + 1}/{verb}", VERBS[verb]).status_code == 404
    assert operator.get(f"attention/causes/{10**17}").status_code == 404
    operator.post(f"jobs/{job}/steps/a/skip", {"reason": "no need"}, If_Match="*")
    needs.note_needs()
    assert operator.post(f"attention/causes/{cause}/{verb}", VERBS[verb]).status_code == 409
    assert operator.get(f"attention/causes/{cause}").json()["closed_at"] is not None
    assert operator.get("attention/causes").json()["results"] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "attention/causes"),
        ("GET", "attention/causes/1"),
        *(("POST", f"attention/causes/1/{verb}") for verb in VERBS),
        ("POST", "incidents/1/acknowledgement"),
    ],
)
def test_only_operators_programs_see_and_say_so(engine: Engine, method: str, path: str) -> None:
    for scope in ("jobs:read", "jobs:write"):
        assert newcomer(scope).ask(method, path, None, {}).status_code == 403
    assert newcomer("jobs:operate").ask(method, path, None, {}).status_code != 403


def test_a_decision_that_nobody_takes_stands_in_the_list_with_since_when(engine: Engine, operator: Program) -> None:
    job = Referendum.start()
    engine.drain()
    engine.ahead(timedelta(days=8).total_seconds())
    needs.note_needs()
    [row] = operator.get("attention").json()["results"]
    assert (row["job"], row["state"]) == (str(job.pk), "Running")
    assert row["reasons"] == ["Referendum, approval: nobody has decided, and no time-out ends the wait."]
    started = named(job, "approval").started_at
    assert row["since"][:19] == started.isoformat()[:19]
    engine.drain()
    operator.post(f"jobs/{job.pk}/signals/approval", {"approved": True, "reason": "late but yes"})
    needs.note_needs()
    assert operator.get("attention").json()["results"] == []


def test_an_incident_is_acknowledged_once(engine: Engine, operator: Program) -> None:
    evidence = {"failures": 6, "calls": 6, "steps": 6, "window": 30.0}
    incident = Incident.objects.create(
        agent="shop", cause="unavailable", message="503", evidence=evidence, opened_at=now()
    )
    path = f"incidents/{incident.pk}/acknowledgement"
    first, again = (operator.post(path, {"reason": "I call them"}, idempotency_key="once") for _ in range(2))
    assert (first.status_code, first.json()["acknowledged_by"]) == (200, f"client:{operator.user.username}")
    assert again.json() == first.json()
    assert operator.post(path, {}).status_code == 409
    assert operator.post("incidents/4711/acknowledgement", {}).status_code == 404


def test_an_attempt_tells_where_its_exception_was_raised(engine: Engine, operator: Program) -> None:
    engine.says("shop.a", ZeroDivisionError("by zero"))
    job = Inquiry.start()
    engine.drain()
    [attempt] = operator.get(f"jobs/{job.pk}/steps/a").json()["attempts"]
    assert attempt["frame"].startswith("tests/integration/engine.py:")
    assert attempt["frame"].endswith(" _answer")
    assert Attempt.objects.get(step=named(job, "a")).error_frame == attempt["frame"]
    assert Job.objects.count() == 1


def test_plans_and_agents_tell_their_runbooks(engine: Engine) -> None:
    program = newcomer("jobs:read")
    assert program.get("workflows/Inquiry").json()["runbook"] == RUNBOOK
    assert program.get("workflows/TripBooking").json()["runbook"] is None
    assert program.get("agents/shop").json()["runbook"] is None
