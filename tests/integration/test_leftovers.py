"""SAS-102: whose client, agent or workers are gone, ends all the same, after so many tries; nothing goes round for ever."""

from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model

from supervisor import retention
from supervisor import sweep as supervision
from tests.api import newcomer
from tests.integration.engine import Engine, check_books, named, state_of
from workflows import Workflow, step
from workflows.conf import conf
from workflows.models import Agent as AnnouncedAgent
from workflows.models import ApiToken, Attempt, IdempotencyRecord, Job, Step


class LeftAlone(Workflow):
    """Something that can be undone, then an agent that no worker has any more."""

    a = step("shop.a", compensation="shop.undo_a")
    b = step("gone.b", after=[a])


class LeftWaiting(Workflow):
    """Its second step is for a queue whose workers are gone."""

    a = step("shop.a", compensation="shop.undo_a")
    b = step("depot.b", after=[a], queue_timeout=timedelta(hours=1))


class LeftBehind(Workflow):
    a = step("shop.a")
    b = step("shop.b", after=[a])


def test_jobs_of_a_client_that_was_deleted_go_on_to_their_end(engine: Engine) -> None:
    client = newcomer("jobs:write", "jobs:read")
    answers = [
        client.post("jobs", {"workflow": "LeftBehind", "input": {}}, idempotency_key=f"k{number}")
        for number in range(20)
    ]
    jobs = [Job.objects.get(pk=answer.json()["id"]) for answer in answers]
    ApiToken.objects.filter(user=client.user).delete()
    get_user_model().objects.filter(pk=client.user.pk).delete()
    assert client.get("jobs").status_code == 401
    engine.drain()
    assert {state_of(job) for job in jobs} == {"Completed"}
    assert Job.objects.live().count() == 0


def test_an_operation_that_no_worker_knows_any_more_is_tried_once_and_the_job_undone(engine: Engine) -> None:
    jobs = [LeftAlone.start() for _ in range(5)]
    engine.drain()
    engine.pass_time(120, times=5)
    assert {state_of(job) for job in jobs} == {"Compensated"}
    assert {named(job, "b").error_code for job in jobs} == {"unknown_operation"}
    assert {named(job, "b").attempt for job in jobs} == {1}
    for job in jobs:
        check_books(job)


def test_a_step_that_no_worker_takes_is_rung_for_more_and_more_rarely_and_ends_in_time(engine: Engine) -> None:
    job = LeftWaiting.start()
    rings = 0
    for _ in range(70):
        engine.ahead(60)
        supervision.ring_due()
        rings += sum(queue == "depot" for _, queue, _ in engine.rings)
        _answer_all_but(engine, "depot")
        engine.sweep()
        _answer_all_but(engine, "depot")
    assert (named(job, "b").state, named(job, "b").error_code) == ("Failed", "queue_timeout")
    assert state_of(job) == "Compensated"
    assert 10 < rings < 80  # one a minute
    assert not Attempt.objects.filter(step__name="b").exists()
    check_books(job)


def _answer_all_but(engine: Engine, queue: str) -> None:
    """Workers of the other queues are there."""
    rung: list[Any] = list(engine.rings)
    engine.rings.clear()
    while rung:
        for task, at, arguments in rung:
            if at != queue:
                engine.answer(task, at, arguments)
        rung = [ring for ring in engine.rings if ring[1] != queue]
        engine.rings.clear()


def test_what_is_to_be_done_after_an_end_is_found_in_the_store_whoever_died_then(engine: Engine) -> None:
    """SAS-120: each doorbell that a completion rings is lost, as with the process that rang it."""
    AnnouncedAgent.objects.filter(pk="shop").update(at_once=2)
    client = newcomer("jobs:write", "jobs:read")
    for number in range(30):
        client.post("jobs", {"workflow": "LeftBehind", "input": {}}, idempotency_key=f"k{number}")
    for _ in range(200):
        engine.ahead(5)
        supervision.ring_due()
        rung = list(engine.rings)
        engine.rings.clear()
        for ring in rung:
            engine.answer(*ring)
            engine.rings.clear()
        engine.sweep()
        if not Job.objects.live().exists():
            break
    assert set(Job.objects.values_list("state", flat=True)) == {"Completed"}
    assert not Step.objects.filter(state="Running").exists()
    assert IdempotencyRecord.objects.filter(client_id=client.user.pk).count() == 30
    engine.ahead(max(conf.keep_history, conf.keep_keys) + 60)
    retention.prune()
    assert not Job.objects.exists()
    assert not Attempt.objects.exists()
    assert not IdempotencyRecord.objects.filter(client_id=client.user.pk).exists()
