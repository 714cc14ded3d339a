"""A start commits or vanishes with its caller's rows, is the same for the same key, and waits for no broker."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from django.db import connection, transaction

from sagsite.celery import SteadyAMQP
from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, announce_all, history, state_of
from workflows import Workflow, broker, step
from workflows.exceptions import KeyConflict, KeyInUse
from workflows.models import Event, Job, Step


class Started(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])


class RolledBack(Exception):
    pass


def test_a_start_inside_a_transaction_that_is_rolled_back_leaves_nothing_and_rings_for_nobody(engine: Engine) -> None:
    """SAS-009"""
    with suppress(RolledBack), transaction.atomic():
        job = Started.start(key="k")
        assert Job.objects.filter(pk=job.pk).exists()
        raise RolledBack
    assert (Job.objects.count(), Step.objects.count(), Event.objects.count()) == (0, 0, 0)
    assert not engine.rings


def test_a_start_inside_a_transaction_rings_only_after_its_commit(engine: Engine) -> None:
    """SAS-009: no worker may look for a row that is not there yet."""
    with transaction.atomic():
        job = Started.start()
        assert job.pk is not None
        assert not engine.rings
        assert Beside(lambda: Job.objects.filter(pk=job.pk).exists()).result() is False
    assert len(engine.rings) == 1
    engine.drain()
    assert state_of(job) == "Completed"


def test_the_same_key_and_input_give_the_same_job(engine: Engine) -> None:
    first = Started.start({"n": 1}, key="k")
    assert Started.start({"n": 1}, key="k").pk == first.pk
    assert len(engine.rings) == 1
    engine.drain()
    assert Started.start({"n": 1}, key="k").state == "Completed"
    assert history(first).count("job.opened") == 1


def test_the_same_key_with_another_input_is_refused(engine: Engine) -> None:
    Started.start({"n": 1}, key="k")
    for other in ({"n": 2}, {"n": True}, {"n": "1"}, {"n": [1]}, {"n": 1, "m": None}, {}):
        with pytest.raises(KeyConflict):
            Started.start(other, key="k")
    assert Job.objects.count() == 1


@pytest.mark.parametrize("value", [1.5, 1e23, 2**70, -0.0, "é\u2028", [{"deep": [None, True]}], 1e300])
def test_an_input_is_the_same_input_whatever_numbers_are_in_it(engine: Engine, value: Any) -> None:
    first = Started.start({"n": value}, key="k")
    assert Started.start({"n": value}, key="k").pk == first.pk


def test_a_key_belongs_to_its_client_and_workflow(engine: Engine) -> None:
    """SAS-085"""

    class StartedToo(Workflow):
        a = step("shop.a")

    ids = {
        Started.start(key="k").pk,
        Started.start(key="k", client_id=1).pk,
        Started.start(key="k", client_id=2).pk,
        StartedToo.start(key="k").pk,
    }
    assert len(ids) == 4
    assert Started.start(key="k", client_id=2).pk in ids


def test_starts_of_one_key_at_once_give_one_job(engine: Engine) -> None:
    """SAS-084"""
    together = threading.Barrier(8, timeout=10)

    def start() -> Any:
        together.wait()
        return Started.start({"n": 1}, key="k").pk

    starts = [Beside(start) for _ in range(8)]
    assert len({one.result() for one in starts}) == 1
    assert Job.objects.count() == 1
    assert Step.objects.count() == 2
    assert len(engine.rings) == 1


def test_a_start_that_waits_for_an_uncommitted_one_of_its_key_gets_that_job_at_its_commit(engine: Engine) -> None:
    with transaction.atomic():
        first = Started.start({"n": 1}, key="k")
        second = Beside(lambda: Started.start({"n": 1}, key="k")).until_blocked()
    assert second.result().pk == first.pk


def test_a_start_that_waits_for_one_that_is_rolled_back_opens_its_own(engine: Engine) -> None:
    with suppress(RolledBack), transaction.atomic():
        first = Started.start({"n": 1}, key="k")
        second = Beside(lambda: Started.start({"n": 1}, key="k")).until_blocked()
        raise RolledBack
    assert second.result().pk != first.pk
    assert Job.objects.get().pk == second.result().pk


def test_a_start_that_waits_too_long_for_an_uncommitted_one_is_told_so(engine: Engine) -> None:
    """SAS-086: bounded, and its caller's rows are kept."""

    def start() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        with transaction.atomic():
            kept = Started.start({"n": 2}, key="other")
            with pytest.raises(KeyInUse):
                Started.start({"n": 1}, key="k")
        return kept

    with transaction.atomic():
        Started.start({"n": 1}, key="k")
        kept = Beside(start).result()
    assert Job.objects.filter(pk=kept.pk).exists()
    assert Job.objects.count() == 2


# --- the broker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def silent_broker(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that accepts connections and never says a word, under the project's own limits for a broker."""
    announce_all()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app: Any = Celery("silent", set_as_current=False, amqp=SteadyAMQP)
        app.config_from_object("django.conf:settings", namespace="CELERY")
        app.conf.broker_url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        monkeypatch.setattr(broker, "current_app", app)
        monkeypatch.setattr(broker, "_bell", broker._Bell())
        yield


@pytest.mark.usefixtures("silent_broker")
def test_a_broker_that_accepts_and_never_answers_costs_a_start_less_than_a_second() -> None:
    took = []
    for _ in range(10):
        began = time.monotonic()
        Started.start()
        took.append(time.monotonic() - began)
    assert Job.objects.count() == len(took)
    assert max(took) < 1
    assert sorted(took)[-2] < 0.4, "only the first one pays; then the broker is left alone for a while"


def test_what_a_dead_broker_did_not_ring_for_runs_later(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dead:
        dead.setattr(broker, "_send", lambda *arguments: False)
        job = Started.start()
        engine.ahead(10)
        assert supervision.ring_due() == 0
    assert not engine.rings
    engine.pass_time(1)
    assert state_of(job) == "Completed"


def test_a_doorbell_that_fails_in_an_unheard_of_way_does_not_fail_the_start(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("a bug in a broker's library")

    monkeypatch.setattr(broker, "_send", broken)
    job = Started.start()
    assert Job.objects.filter(pk=job.pk).exists()
