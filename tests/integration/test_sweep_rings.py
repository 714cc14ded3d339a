"""Doorbells: every ready step is rung for again until somebody comes, and a queue without workers does not fill."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import current_app
from django.db import connection

from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, named, state_of
from workflows import Workflow, broker, step, transitions, verbs
from workflows.clock import now
from workflows.models import Job, Step


class Rung(Workflow):
    a = step("shop.a")
    b = step("shop.b", after=[a])


class AtTheDepot(Workflow):
    a = step("depot.a")


def _rung_for(engine: Engine) -> list[int]:
    return [arguments[1] for _, _, arguments in engine.rings]


def test_a_ready_step_whose_doorbell_was_lost_is_rung_for_again(engine: Engine) -> None:
    """SAS-095: the broker was wiped."""
    job = Rung.start()
    engine.rings.clear()
    assert supervision.ring_due() == 0
    engine.pass_time(6)
    assert state_of(job) == "Completed"


def test_rings_of_a_step_that_nobody_takes_become_rarer(engine: Engine) -> None:
    job = Rung.start()
    engine.rings.clear()
    rung_after = []
    for second in range(1, 300, 2):
        engine.ahead(2)
        if supervision.ring_due():
            rung_after.append(second)
    gaps = [later - earlier for earlier, later in pairwise(rung_after)]
    assert gaps == sorted(gaps)
    assert 4 <= gaps[0] <= 8
    assert 59 <= gaps[-1] <= 62
    assert set(_rung_for(engine)) == {named(job, "a").pk}


def test_a_step_is_rung_for_when_its_back_off_is_over_and_not_before(engine: Engine) -> None:
    from agents import Transient

    engine.says("shop.a", Transient("busy", retry_after=30.0), {})
    job = Rung.start()
    engine.drain()
    engine.ahead(28)
    assert supervision.ring_due() == 0
    engine.pass_time(3)
    assert state_of(job) == "Completed"


def test_a_job_that_starts_later_is_rung_for_at_its_time(engine: Engine) -> None:
    job = Rung.start(start_at=now() + timedelta(seconds=100))
    assert not engine.rings
    engine.pass_time(90)
    assert engine.asked() == []
    engine.pass_time(11)
    assert state_of(job) == "Completed"


def test_steps_of_paused_stopping_and_ended_jobs_are_not_rung_for(engine: Engine) -> None:
    paused, cancelled, stopping = Rung.start(), Rung.start(), Rung.start()
    engine.claim(named(stopping, "a"))
    verbs.pause(paused.pk, actor="operator:x", reason="wait")
    for job in (cancelled, stopping):
        verbs.cancel(job.pk, undo=False, actor="operator:x", reason="no")
    engine.ahead(100)
    assert supervision.ring_due() == 0


def test_a_full_queue_without_workers_does_not_keep_another_from_being_rung_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """Its steps are the oldest, and there are more of them than are looked at in one go."""
    settings.SAG = {"rings_per_queue": 10}
    for _ in range(25):
        AtTheDepot.start()
    engine.ahead(1)
    job = Rung.start()
    engine.rings.clear()
    monkeypatch.setattr(broker, "depth", lambda queue: 10 if queue == "depot" else 0)
    engine.pass_time(10)
    assert state_of(job) == "Completed"
    assert not Step.objects.filter(queue="depot", rings__gt=0).exists()


def test_the_note_of_a_ring_waits_for_no_lock(engine: Engine) -> None:
    """It takes rows of many jobs without their locks: were it to wait for one, it could stand in a circle with a cancel."""
    from django.db import transaction

    jobs = [Rung.start() for _ in range(3)]
    steps = [named(job, "a") for job in jobs]
    with transaction.atomic():
        list(Step.objects.select_for_update().filter(pk=steps[1].pk))
        Beside(lambda: transitions.note_rings(steps)).result()
    assert [named(job, "a").rings for job in jobs] == [1, 0, 1]


def test_an_announcement_moves_waiting_steps_to_the_agents_new_queue(engine: Engine) -> None:
    from workflows.models import Agent

    job = AtTheDepot.start()
    depot = Agent.objects.get(name="depot")
    depot.queue = "elsewhere"
    transitions.announce(depot)
    assert named(job, "a").queue == "elsewhere"
    engine.ahead(10)
    engine.rings.clear()
    supervision.ring_due()
    assert [queue for _, queue, _ in engine.rings] == ["elsewhere"]


def test_a_step_that_was_opened_just_as_its_agent_moved_follows_at_the_next_announcement(engine: Engine) -> None:
    from workflows.models import Agent

    depot = Agent.objects.get(name="depot")
    depot.queue = "elsewhere"
    transitions.announce(depot)
    job = AtTheDepot.start()
    Step.objects.filter(job=job).update(queue="depot")
    transitions.announce(depot)
    assert named(job, "a").queue == "elsewhere"


# --- with the real broker ------------------------------------------------------------------------------------------------


@pytest.fixture
def real_broker(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The Valkey of this test run, with an empty queue that no worker reads."""
    monkeypatch.setattr(broker, "_bell", broker._Bell())
    from tests.integration.engine import announce_all

    announce_all()

    def purge() -> None:
        with current_app.connection_for_write() as link:
            for queue in ("agents", "depot", broker.SUPERVISOR_QUEUE):
                channel: Any = link.default_channel
                channel.queue_purge(queue)

    purge()
    yield
    purge()


@pytest.mark.usefixtures("real_broker")
def test_many_ready_steps_without_workers_leave_at_most_twice_the_limit_of_messages(settings: Any) -> None:
    """Ten minutes, fifty times as many steps as the limit. Their jobs are copied from one; starts ring too."""
    limit = 200
    settings.SAG = {"rings_per_queue": limit}
    template = AtTheDepot.start()
    _copy(template, 50 * limit)
    for _ in range(150):
        AtTheDepot.start()
    engine = Engine()
    for second in range(0, 600, 30):
        engine.ahead(30)
        supervision.ring_due()
        assert broker.depth("depot") <= 2 * limit, f"after {second} seconds"
    assert broker.depth("depot") >= limit
    assert Step.objects.filter(state="NotStarted").count() == 50 * limit + 151


def _copy(job: Job, count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(
            "WITH copies AS (INSERT INTO sag_workflows_job (id, workflow, version, plan, input, open_steps, seq)"
            " SELECT gen_random_uuid(), workflow, version, plan, input, open_steps, seq FROM sag_workflows_job,"
            " generate_series(1, %s) WHERE id = %s RETURNING id)"
            "INSERT INTO sag_workflows_step (job_id, seq, name, operation, agent, queue, idempotency_key, waiting_for,"
            " releases, timeout, attempts_allowed) SELECT copies.id, s.seq, s.name, s.operation, s.agent, s.queue,"
            " copies.id || ':a', s.waiting_for, s.releases, s.timeout, s.attempts_allowed"
            " FROM sag_workflows_step s, copies WHERE s.job_id = %s",
            [count, job.pk, job.pk],
        )


@pytest.mark.usefixtures("real_broker")
def test_starts_alone_do_not_fill_a_queue_without_workers(settings: Any) -> None:
    settings.SAG = {"rings_per_queue": 20}
    for _ in range(300):
        AtTheDepot.start()
    assert 20 <= broker.depth("depot") <= 2 * 20 + broker._LOOK_AT_DEPTH_AFTER
