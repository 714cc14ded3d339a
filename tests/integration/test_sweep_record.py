"""Each sweep's row tells what it looked at, found and decided, and why; a remedy chosen between sweeps is on its event."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agents import Permanent, Transient
from supervisor.models import Sweep
from tests.api import newcomer
from tests.integration import visitors
from tests.integration.engine import Engine, locked, named
from workflows import Retry, Workflow, step
from workflows.models import Event, Job, Step


class Told(Workflow):
    a = step("shop.a", compensation="shop.undo_a", retry=Retry(attempts=3, first=timedelta(seconds=1)))
    b = step("shop.b", after=[a])


class ToldOnce(Workflow):
    a = step("shop.a", retry=Retry(attempts=1))


class ToldInTime(Workflow):
    deadline = timedelta(seconds=30)
    a = step("shop.a")


def overdue(engine: Engine, number: int, workflow: type[Workflow] = Told) -> list[Job]:
    jobs = [workflow.start() for _ in range(number)]
    for job in jobs:
        engine.claim(named(job, "a"))
    engine.rings.clear()
    engine.ahead(11)
    return jobs


def test_a_decision_names_the_row_what_was_found_the_remedy_and_why(engine: Engine) -> None:
    [job] = overdue(engine, 1)
    row = engine.sweep()
    assert (row.found, row.acted, row.expired, row.counts) == (1, 1, 1, {"retry": 1})
    assert row.looked_at == 2  # the step, and its job among those that live
    assert row.decisions == [
        {
            "job": str(job.pk),
            "step": "a",
            "found": "The lease of attempt 1 on other ended without a word.",
            "remedy": "retry",
            "reason": "Attempt 1 of 3 failed (lost).",
            "acted": True,
        }
    ]
    assert Sweep.objects.get(pk=row.pk).decisions == row.decisions


def test_what_is_told_stays_small_and_what_is_counted_is_all(engine: Engine) -> None:
    overdue(engine, 60)
    [rare] = overdue(engine, 1, ToldOnce)
    row = engine.sweep()
    assert row.counts == {"retry": 60, "compensate": 1}
    assert (row.found, row.acted) == (61, 61)
    assert len(row.decisions) == 51
    assert row.decisions[-1]["job"] == str(rare.pk)  # the only one of its kind is told behind all the others


def test_what_was_found_and_not_changed_is_the_difference(engine: Engine) -> None:
    stuck, _ = overdue(engine, 2)
    with locked(stuck):
        from tests.integration.engine import Beside

        row: Any = Beside(engine.sweep).result()
    assert (row.found, row.acted) == (2, 1)


def test_a_sweep_that_finds_nothing_decides_nothing(engine: Engine) -> None:
    Told.start()
    row = engine.sweep()
    assert (row.looked_at, row.found, row.acted, row.counts, row.decisions) == (1, 0, 0, {}, [])


def test_what_is_done_to_a_job_is_told_too(engine: Engine) -> None:
    late = ToldInTime.start()
    engine.sweep()
    engine.ahead(31)
    row = engine.sweep()
    assert row.counts == {"stop": 1}
    assert (row.decisions[0]["job"], row.decisions[0]["step"]) == (str(late.pk), None)
    stranded = Told.start()
    Step.objects.filter(job=stranded).update(held=True)
    assert engine.sweep().counts == {"heal": 1}


def test_a_remedy_chosen_between_sweeps_is_on_its_event_and_on_the_step_with_its_reason(engine: Engine) -> None:
    engine.says("shop.a", Transient("busy"), Permanent("no"))
    job = Told.start()
    engine.drain()
    engine.pass_time(2)
    told = list(Event.objects.filter(job=job, actor="supervisor").values_list("kind", "reason"))
    assert ("step.retried", "Attempt 1 of 3 failed (transient).") in told
    assert ("step.remedy", "The failure is permanent: no") in told
    failed = named(job, "a")
    assert (failed.remedy, failed.remedy_reason) == ("compensate", "The failure is permanent: no")
    operator = newcomer("jobs:operate")
    kinds = [event["reason"] for event in operator.get(f"jobs/{job.pk}/events").json()["results"]]
    assert {"Attempt 1 of 3 failed (transient).", "The failure is permanent: no"} <= set(kinds)


def test_the_api_tells_of_a_sweeps_decisions(engine: Engine) -> None:
    [job] = overdue(engine, 1)
    row = engine.sweep()
    [found, *_] = newcomer("jobs:read").get("sweeps").json()["results"]
    assert (found["looked_at"], found["found"], found["acted"], found["observed"]) == (2, 1, 1, False)
    assert found["counts"] == {"retry": 1}
    assert found["decisions"][0]["job"] == str(job.pk)
    assert found["by"] == row.by != ""


@pytest.fixture
def reader(engine: Engine) -> Client:
    return visitors.reader()


def test_the_page_of_sweeps_tells_of_them_in_words(engine: Engine, reader: Client) -> None:
    [job] = overdue(engine, 1)
    engine.sweep()
    page = " ".join(reader.get(reverse("sweeps")).content.decode().split())
    assert "Decided: 1 retry" in page
    assert reverse("job", args=[job.pk]) in page
    assert "Attempt 1 of 3 failed (lost)." in page


def test_a_text_from_outside_is_cut_and_escaped(engine: Engine, reader: Client) -> None:
    engine.says("shop.a", Permanent("<b>" + "x" * 5000))
    job = Told.start()
    _, _, arguments = engine.rings.popleft()
    from agents import worker

    worker.work(*arguments)
    engine.rings.clear()
    row = engine.sweep()
    assert row.decisions[0]["job"] == str(job.pk)
    assert len(row.decisions[0]["reason"]) == len(row.decisions[0]["found"]) == 300
    page = reader.get(reverse("sweeps")).content.decode()
    assert "&lt;b&gt;xxx" in page
    assert "<b>xxx" not in page
