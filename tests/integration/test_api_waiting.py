"""Why a job is not further, and what it left behind: told from real rows, in the words of `workflows.explanations`."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from agents import InDoubt, Permanent
from tests.api import Program, newcomer
from tests.integration.engine import Engine, named
from workflows import Retry, Workflow, child, explanations, given, item, reports, signal, step, timer, transitions
from workflows.models import Agent, Job, Step

ONCE = Retry(attempts=1)


class ApiInner(Workflow):
    compensate_within = timedelta(hours=1)
    a = step("shop.a", compensation="shop.undo_a", retry=ONCE, undo_retry=ONCE)


class ApiOuter(Workflow):
    """One of each kind of waiting, one behind the other."""

    pause = timer(timedelta(minutes=1))
    word = signal(timeout=timedelta(minutes=5), after=[pause])
    inner = child(ApiInner, after=[word])
    last = step("shop.b", after=[inner], retry=ONCE, otherwise=step("shop.c", compensation="shop.undo_c", retry=ONCE))
    done = step("shop.d", after=[last])


class ApiReceipt(Workflow):
    each = step("stall.a", each=given["hosts"], input=item, compensation="stall.undo_a", retry=ONCE, undo_retry=ONCE)
    inner = child(ApiInner, after=[each])
    last = step("shop.b", after=[inner], retry=ONCE)


@pytest.fixture
def program(engine: Engine) -> Program:
    return newcomer("jobs:read", "jobs:write", "jobs:operate")


def begin(program: Program, workflow: str, **input: Any) -> str:
    body = {"workflow": workflow, "input": input}
    return str(program.post("jobs", body, idempotency_key=str(uuid.uuid4())).json()["id"])


def because(program: Program, job_id: str) -> str:
    return str(program.get(f"jobs/{job_id}").json()["waiting_because"])


def test_a_job_says_what_it_waits_for_on_its_whole_way(engine: Engine, program: Program) -> None:
    job_id = begin(program, "ApiOuter")
    assert because(program, job_id).startswith("pause waits for its time: it is due at ")
    engine.pass_time(61)
    assert because(program, job_id).startswith('word waits for the signal "word", until ')
    program.post(f"jobs/{job_id}/signals/word", {})
    inner = program.get(f"jobs/{job_id}/steps/inner").json()
    assert because(program, job_id) == f"inner waits for job {inner['child']} (ApiInner, Running) to end."
    assert program.get(f"jobs/{inner['child']}").json()["workflow"] == "ApiInner"
    alternative = program.get(f"jobs/{job_id}/steps/last.otherwise").json()
    assert alternative["waiting_because"] == "last.otherwise waits for last, and is done only if last fails."
    engine.drain()
    ended = program.get(f"jobs/{job_id}").json()
    assert (ended["state"], ended["waiting_because"]) == ("Completed", None)
    assert ended["progress"] == {"done": 5, "total": 5, "message": "5 of 5 done"}
    skipped = program.get(f"jobs/{job_id}/steps/last.otherwise").json()
    assert (skipped["state"], skipped["skip_reason"]) == ("Skipped", "last needs no alternative: it is Completed.")


def test_what_a_running_call_tells_of_itself_is_shown_at_once(engine: Engine, program: Program) -> None:
    job_id = begin(program, "ApiInner")
    claimed = engine.claim(named(Job.objects.get(pk=job_id), "a"))
    tags = [(path, program.get(path)["ETag"]) for path in (f"jobs/{job_id}", f"jobs/{job_id}/steps/a")]
    for path, tag in tags:
        assert program.get(path, If_None_Match=tag).status_code == 304
    transitions.heartbeat({claimed.token: (claimed.step_id, '{"done": 3, "total": 7, "message": "third"}')})
    for path, tag in tags:
        assert program.get(path, If_None_Match=tag).status_code == 200
    told = program.get(f"jobs/{job_id}/steps/a").json()
    assert told["progress"] == {"done": 3, "total": 7, "message": "third"}
    assert program.get(f"jobs/{job_id}").json()["steps"][0]["progress"]["done"] == 3
    engine.settle(claimed)
    assert program.get(f"jobs/{job_id}/steps/a").json()["progress"] is None


def test_a_call_that_asked_to_be_called_again_says_when(engine: Engine, program: Program) -> None:
    job_id = begin(program, "ApiInner")
    claimed = engine.claim(named(Job.objects.get(pk=job_id), "a"))
    reports.release(claimed, delay=timedelta(minutes=2), reason="not ready yet")
    assert because(program, job_id).startswith("a is called again at ")


def test_a_rate_that_is_used_up_is_named(engine: Engine, program: Program) -> None:
    Agent.objects.filter(name="shop").update(rate_count=1, rate_period=timedelta(hours=1))
    first, second = begin(program, "ApiInner"), begin(program, "ApiInner")
    Step.objects.filter(job_id__in=[first, second]).update(limited=True)
    claims = [
        reports.claim_within_limits(Step.objects.get(job_id=job_id).pk, token=uuid.uuid4(), worker="w")[0]
        for job_id in (first, second)
    ]
    assert (claims[0] is not None, claims[1]) == (True, None)
    assert because(program, second).endswith("because agent shop takes only so many calls in a time.")


def test_a_receipt_tells_of_items_and_of_children(engine: Engine, program: Program) -> None:
    engine.says("stall.a", lambda call: {"reference": f"R-{call.input}"})
    engine.says("stall.undo_a", Permanent("The desk is closed."), {})
    engine.says("shop.b", Permanent("No."))
    job_id = begin(program, "ApiReceipt", hosts=["x", "y"])
    while (job := Job.objects.get(pk=job_id)).state != "Failed":
        engine.pass_time(6)
    steps = list(Step.objects.filter(job=job).for_documents())
    receipt = explanations.receipt(job, steps, explanations.around([job], steps))
    assert receipt is not None
    started = Job.objects.get(workflow="ApiInner")
    assert started.state == "Compensated"
    failed = named_item(job, "each.undo", "Failed")
    other = 1 - failed.index
    assert receipt["undone"] == [
        {"step": f"each:{other}", "reference": f"R-{'xy'[other]}"},
        {"step": "inner", "reference": str(started.pk)},
    ]
    assert receipt["not_undone"] == [
        {
            "step": f"each:{failed.index}",
            "reference": f"R-{'xy'[failed.index]}",
            "why": "stall.undo_a failed: The desk is closed.",
        }
    ]
    assert receipt["more"] == {"undone": 0, "not_undone": 0, "pending": 0}


def named_item(job: Job, name: str, state: str) -> Any:
    return Step.objects.get(job=job, name=name, index__isnull=False, state=state)


def test_the_second_asking_of_an_item_is_told_but_no_step_of_the_document(engine: Engine, program: Program) -> None:
    """There may be as many as there are items."""
    engine.says("stall.a", InDoubt("No answer."))
    job_id = begin(program, "ApiReceipt", hosts=["x", "y"])
    for _ in range(4):
        engine.pass_time(1)
    document = program.get(f"jobs/{job_id}").json()
    assert document["state"] == "Compensating"
    assert [row["name"] for row in document["steps"]] == ["each", "inner", "last", "each.undo"]
    assert document["waiting_because"].startswith("each.0.recheck asks once more at ")
    assert program.get(f"jobs/{job_id}/steps/each.1.recheck").json()["undoes"] == "each:1"
    engine.pass_time(120, times=3)
    assert program.get(f"jobs/{job_id}").json()["state"] == "Compensated"
