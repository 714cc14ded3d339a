"""Fan-outs as client programs see them: one step with counts, items by address and by page, and documents that stay flat."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents import InDoubt, Permanent
from tests.api import Program, newcomer
from tests.integration.engine import Engine
from workflows import Limit, Retry, Workflow, given, item, reports, step, timer, transitions
from workflows.models import Job, Step

ONCE = Retry(attempts=1)


class ApiSpread(Workflow):
    """A list, each item of it done and undone by itself, and a step behind."""

    each = step(
        "shop.a",
        input={"host": item},
        each=given["hosts"],
        compensation="shop.undo_a",
        tolerate=1,
        at_once=2,
        retry=ONCE,
        undo_retry=ONCE,
    )
    after = step("shop.b", after=[each], retry=ONCE)


class ApiWideSpread(Workflow):
    """The same without bounds, for very many."""

    each = step("shop.a", input=item, each=given["hosts"], compensation="shop.undo_a", retry=ONCE, undo_retry=ONCE)
    after = step("shop.b", after=[each], retry=ONCE)


class ApiLimited(Workflow):
    each = step("shop.a", each=given["hosts"], limit=Limit(key="one at a time", at_once=1), retry=ONCE)


class ApiSlowStart(Workflow):
    pause = timer(60)
    each = step("shop.a", each=given["hosts"], after=[pause])


@pytest.fixture
def program(engine: Engine) -> Program:
    return newcomer("jobs:read", "jobs:write", "jobs:operate")


def spread(program: Program, hosts: list[Any], workflow: str = "ApiSpread", key: str = "k") -> str:
    body = {"workflow": workflow, "input": {"hosts": hosts}}
    return str(program.post("jobs", body, idempotency_key=key).json()["id"])


def job(program: Program, job_id: str) -> dict[str, Any]:
    return dict(program.get(f"jobs/{job_id}").json())


def at(program: Program, job_id: str, address: str) -> dict[str, Any]:
    return dict(program.get(f"jobs/{job_id}/steps/{address}").json())


def refuse(engine: Engine, *hosts: str) -> None:
    """These hosts fail for good."""

    def answer(call: Any) -> Any:
        if call.input["host"] in hosts:
            raise Permanent(f"{call.input['host']} is gone.")
        return {"reference": f"R-{call.input['host']}"}

    engine.says("shop.a", answer)


# --- one entry, and its items -----------------------------------------------------------------------------------------


def test_a_fan_out_is_one_step_with_counts_of_all_its_items(engine: Engine, program: Program) -> None:
    refuse(engine, "h1")
    job_id = spread(program, ["h0", "h1", "h2"])
    before = job(program, job_id)
    assert [row["name"] for row in before["steps"]] == ["each", "after"]
    assert before["steps"][0]["counts"] == {"NotStarted": 3, "Running": 0, "Completed": 0, "Failed": 0, "Skipped": 0}
    assert (before["steps"][0]["index"], before["steps"][1]["counts"]) == (None, None)
    assert before["progress"] == {"done": 0, "total": 4, "message": "0 of 4 done"}
    assert before["waiting_because"] == "each: 0 of 3 items are done."
    engine.drain()
    after = job(program, job_id)
    assert after["state"] == "Completed"
    assert after["steps"][0]["counts"] == {"NotStarted": 0, "Running": 0, "Completed": 2, "Failed": 1, "Skipped": 0}
    assert after["progress"]["done"] == 3


def test_a_fan_out_whose_list_is_not_known_yet_has_no_counts(program: Program) -> None:
    [pause, each] = job(program, spread(program, ["h0"], "ApiSlowStart"))["steps"]
    assert (pause["state"], each["counts"]) == ("Running", None)
    assert each["waiting_because"] == "each waits for pause."


def test_an_item_has_its_own_address_with_what_it_is_about(engine: Engine, program: Program) -> None:
    job_id = spread(program, ["h0", "h1", "h2"])
    found = at(program, job_id, "each:1")
    assert (found["name"], found["index"], found["item"], found["kind"]) == ("each", 1, "h1", "call")
    assert found["idempotency_key"].endswith(":each:1")
    engine.drain()
    assert at(program, job_id, "each:1")["attempts"][0]["input"] == {"host": "h1"}
    for address in ("each:3", "each:x", "after:0", "none"):
        assert program.get(f"jobs/{job_id}/steps/{address}").status_code == 404


def test_an_item_whose_turn_has_not_come_says_so(program: Program) -> None:
    job_id = spread(program, ["h0", "h1", "h2"])
    assert at(program, job_id, "each:1")["waiting_because"].startswith('each:1 waits for a worker of queue "agents"')
    assert at(program, job_id, "each:2")["waiting_because"] == (
        "each:2 waits for its turn: at most 2 items of each are done at the same time."
    )


def test_a_limit_that_is_reached_is_named(engine: Engine, program: Program) -> None:
    job_id = spread(program, ["h0", "h1"], "ApiLimited")
    first = Step.objects.get(job_id=job_id, index=0)
    claimed, *_ = reports.claim_within_limits(first.pk, token=first.job_id, worker="w")
    assert claimed is not None
    assert at(program, job_id, "each:1")["waiting_because"] == (
        "each:1 waits for room: at most 1 steps with the limit key 'one at a time' run at the same time."
    )


def test_the_undo_of_an_item_is_an_item_of_the_undo(engine: Engine, program: Program) -> None:
    engine.says("shop.b", Permanent("No."))
    job_id = spread(program, ["h0", "h1"])
    engine.drain()
    assert job(program, job_id)["state"] == "Compensated"
    undo = at(program, job_id, "each.undo:1")
    assert (undo["undoes"], undo["index"], undo["state"]) == ("each:1", 1, "Completed")
    assert at(program, job_id, "each.undo")["counts"]["Completed"] == 2
    assert {event["step"] for event in program.get(f"jobs/{job_id}/events").json()["results"]} >= {
        "each:0",
        "each:1",
        "each.undo:0",
        "each.undo:1",
    }


# --- the page of items ------------------------------------------------------------------------------------------------


def items(program: Program, job_id: str, query: str = "", name: str = "each") -> dict[str, Any]:
    response = program.get(f"jobs/{job_id}/steps/{name}/items{query}")
    assert response.status_code == 200, response.json()
    return dict(response.json())


def test_the_items_are_walked_by_index_both_ways(program: Program) -> None:
    job_id = spread(program, [f"h{n}" for n in range(5)])
    first = items(program, job_id, "?limit=2")
    second = dict(program.get(first["next"]).json())
    third = dict(program.get(second["next"]).json())
    assert [[row["index"] for row in page["results"]] for page in (first, second, third)] == [[0, 1], [2, 3], [4]]
    assert (first["prev"], third["next"]) == (None, None)
    assert [row["index"] for row in program.get(third["prev"]).json()["results"]] == [2, 3]


def test_items_are_found_by_state(engine: Engine, program: Program) -> None:
    refuse(engine, "h3")
    job_id = spread(program, [f"h{n}" for n in range(5)])
    engine.drain()
    [failed] = items(program, job_id, "?state=Failed")["results"]
    assert (failed["index"], failed["error"]["message"]) == (3, "h3 is gone.")
    assert len(items(program, job_id, "?state=Failed&state=Completed")["results"]) == 5
    assert program.get(f"jobs/{job_id}/steps/each/items?state=Fallen").status_code == 400
    cursor = items(program, job_id, "?limit=1")["next"].partition("cursor=")[2]
    assert program.get(f"jobs/{job_id}/steps/each/items?state=Failed&limit=1&cursor={cursor}").status_code == 400


def test_only_a_fan_out_has_items(program: Program) -> None:
    job_id = spread(program, [])
    assert items(program, job_id)["results"] == []
    for address in ("after", "each:0"):
        assert program.get(f"jobs/{job_id}/steps/{address}/items").status_code == 404


# --- what items do to the whole -----------------------------------------------------------------------------------------


def all_undos_failed(engine: Engine, program: Program, hosts: int) -> str:
    engine.says("shop.a", lambda call: {"reference": f"R-{call.input}"})
    engine.says("shop.b", Permanent("No."))
    engine.says("shop.undo_a", Permanent("The desk is closed."))
    job_id = spread(program, list(range(hosts)), "ApiWideSpread", key=str(hosts))
    while Job.objects.get(pk=job_id).state != "Failed":
        engine.pass_time(6)
    return job_id


def test_items_whose_undo_failed_are_named_the_first_of_them_and_how_many_more(
    engine: Engine, program: Program
) -> None:
    told = job(program, all_undos_failed(engine, program, 25))["needs_person"]
    assert told[0] == "each: 25 of 25 undos failed."
    assert told[1] == (
        "each:0: R-0, made by shop.a, may still be live; its undo shop.undo_a failed: The desk is closed."
    )
    assert len(told) == 22
    assert told[-1] == "And 5 more items need a person."


def test_doubts_of_items_that_a_job_ended_with_are_named(engine: Engine, program: Program) -> None:
    engine.says("shop.a", InDoubt("No answer."))
    job_id = spread(program, ["h0"])
    engine.drain()
    answer = job(program, job_id)
    key = at(program, job_id, "each:0")["idempotency_key"]
    assert answer["state"] == "Completed"
    assert answer["needs_person"] == [
        f"each:0: nobody knows whether shop.a took effect; something under the key {key} may be live; it was not undone."
    ]
    assert answer["steps"][0]["in_doubt"] is True
    assert "verdict" in at(program, job_id, "each:0")["verbs"]


def test_a_verb_reaches_one_item(engine: Engine, program: Program) -> None:
    refuse(engine, "h0", "h1")
    job_id = spread(program, ["h0", "h1"])
    claimed = engine.claim(Step.objects.get(job_id=job_id, index=0))
    assert reports.fail(claimed, transitions.Failure(kind="permanent", code="no", message="No."), sent=None)
    seen = program.get(f"jobs/{job_id}/steps/each:0")["ETag"]
    response = program.post(
        f"jobs/{job_id}/steps/each:0/result", {"result": {"by": "hand"}, "reason": "seen it"}, If_Match=seen
    )
    assert (response.status_code, response.json()["settled_by"]) == (202, "person")
    assert response["Location"] == f"/api/v1/jobs/{job_id}/steps/each:0"
    assert at(program, job_id, "each")["counts"]["Completed"] == 1


def test_a_preview_names_every_item_it_would_undo(engine: Engine, program: Program) -> None:
    job_id = spread(program, ["h0", "h1"])
    first = engine.claim(Step.objects.get(job_id=job_id, index=0))
    engine.settle(first, '{"reference": "R-0"}')
    preview = program.get(f"jobs/{job_id}/compensation").json()
    assert [(call["step"], call["reference"]) for call in preview["steps"]] == [("each:0", "R-0")]
    assert (preview["total"], preview["running"]) == (1, ["each"])


# --- flat -------------------------------------------------------------------------------------------------------------


MANY = 10_000


def counted(program: Program, path: str) -> tuple[int, int, Any]:
    """(queries, bytes of the answer, the answer)."""
    program.get(path)  # what is read once a process
    with CaptureQueriesContext(connection) as asked:
        response = program.get(path)
    assert response.status_code == 200, response.json()
    return len(asked.captured_queries), len(response.content), response.json()


def grown(program: Program, hosts: int) -> str:
    """A running job with so many items. All but the first ten are copies, which are quicker to write than real ones."""
    job_id = spread(program, list(range(10)), "ApiWideSpread", key=str(hosts))
    own = {"id", "seq", "index", "idempotency_key"}
    same = ", ".join(f'"{field.column}"' for field in Step._meta.concrete_fields if field.column not in own)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""INSERT INTO sag_workflows_step (seq, index, idempotency_key, {same})
            SELECT 100 + n, n, idempotency_key || n, {same}
            FROM sag_workflows_step, generate_series(10, %s - 1) AS n WHERE job_id = %s AND index = 0""",
            [hosts, job_id],
        )
    Step.objects.filter(job_id=job_id, items_total=10).update(items_total=hosts, items_made=hosts, items_open=hosts)
    assert Step.objects.filter(job_id=job_id, index__isnull=False).count() == hosts
    return job_id


def test_documents_of_a_job_stay_flat_for_ten_thousand_items_sas_058(engine: Engine, program: Program) -> None:
    few, many = grown(program, 10), grown(program, MANY)
    for path in ("jobs/{id}", "jobs/{id}/steps/each", "jobs/{id}/steps/each/items?limit=10", "jobs/{id}/steps/each:7"):
        queries, size, _ = counted(program, path.format(id=few))
        more_queries, more_size, answer = counted(program, path.format(id=many))
        assert more_queries == queries, path
        assert more_size < size + 200, path
    assert job(program, many)["steps"][0]["counts"]["NotStarted"] == MANY
    assert answer["index"] == 7


def test_a_job_that_failed_in_every_item_is_told_in_as_few_words_as_another_sas_058(
    engine: Engine, program: Program
) -> None:
    few, many = all_undos_failed(engine, program, 22), all_undos_failed(engine, program, 44)
    for path in ("jobs/{id}", "jobs/{id}/compensation"):
        queries, *_ = counted(program, path.format(id=few))
        more_queries, _, answer = counted(program, path.format(id=many))
        assert more_queries == queries, path
    assert answer["total"] == 44
    assert len(job(program, many)["needs_person"]) == len(job(program, few)["needs_person"]) == 22
    for_few, _, first = counted(program, "attention?limit=1")
    for_many, _, second = counted(program, first["next"])
    assert [row["job"] for page in (first, second) for row in page["results"]] == [few, many]
    assert for_many == for_few
