"""What has ended long ago is forgotten, in batches; what lives, or needs a person, never is."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from agents import Permanent
from supervisor import retention, sweep
from supervisor.models import Sweep
from tests.integration.engine import Beside, Engine, locked, named, start
from workflows import Workflow, step, verbs
from workflows.clock import now
from workflows.models import Attempt, IdempotencyRecord, Job, Step

DAY = 86_400


class Kept31(Workflow):
    """One step that can be undone."""

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", after=[a])


def done(engine: Engine) -> Job:
    job = Kept31.start()
    engine.drain()
    return Job.objects.get(pk=job.pk)


def undone(engine: Engine, undo: object = None) -> Job:
    engine.says("shop.b", Permanent("no"))
    if undo is not None:
        engine.says("shop.undo_a", undo)
    job = done(engine)
    engine.pass_time(600, times=12)
    return Job.objects.get(pk=job.pk)


def test_a_job_that_completed_is_forgotten_after_thirty_days_with_its_steps_and_attempts(engine: Engine) -> None:
    done(engine)
    engine.ahead(29 * DAY)
    assert retention.prune() == 0
    engine.ahead(2 * DAY)
    assert retention.prune() == 1
    assert [model.objects.count() for model in (Job, Step, Attempt)] == [0, 0, 0]


def test_one_that_was_undone_goes_with_its_undos(engine: Engine) -> None:
    assert undone(engine).state == "Compensated"
    engine.ahead(31 * DAY)
    assert retention.prune() == 1
    assert not Step.objects.exists()


def test_what_needs_a_person_is_kept_however_old(engine: Engine) -> None:
    job = undone(engine, Permanent("it cannot be cancelled"))
    assert (job.state, named(job, "a.undo").remedy) == ("Failed", "escalate")
    engine.ahead(1000 * DAY)
    assert retention.prune() == 0


def test_a_live_job_is_kept_however_old(engine: Engine) -> None:
    Kept31.start()
    engine.ahead(1000 * DAY)
    assert retention.prune() == 0


def test_a_job_that_is_taken_up_while_it_is_forgotten_is_kept(engine: Engine) -> None:
    job = done(engine)
    engine.ahead(31 * DAY)
    with locked(job):
        assert Beside(retention.prune).result() == 0
    assert Job.objects.exists()


def test_forgetting_that_is_killed_half_way_leaves_each_job_whole_or_gone(
    engine: Engine, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-091: and what is young, lives, failed or needs a person is not touched by the run that ends the work."""
    settings.SAG = settings.SAG | {"keep_history": 7 * DAY, "keep_failures": 365 * DAY}
    monkeypatch.setattr(retention, "BATCH", 2)
    needs_person = undone(engine, Permanent("it cannot be cancelled"))
    engine.says("shop.b", {})
    failed = start(Kept31)
    verbs.cancel(failed.pk, undo=False, actor="operator:x", reason="enough")
    engine.drain()
    assert Job.objects.get(pk=failed.pk).state == "Failed"
    old = [done(engine) for _ in range(6)]
    kept = [needs_person, failed, start(Kept31, start_at=now() + timedelta(days=400))]
    engine.ahead(30 * DAY)
    kept.append(done(engine))
    with transaction.atomic():
        list(Step.objects.filter(job=old[3]).select_for_update())
        forgetting = Beside(retention.prune).until_blocked()
        forgetting.cut()
    with pytest.raises(OperationalError):
        forgetting.result()
    left = set(Job.objects.values_list("pk", flat=True))
    assert {job.pk for job in kept} < left
    assert 0 < len(left & {job.pk for job in old}) < len(old)
    assert set(Step.objects.values_list("job_id", flat=True)) == left
    retention.prune()
    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk for job in kept}


def test_a_job_to_which_a_teams_own_rows_refer_stays_and_keeps_no_other_from_being_forgotten(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    held, *others = [done(engine) for _ in range(5)]
    engine.ahead(31 * DAY)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE team_note (job_id uuid REFERENCES sag_workflows_job DEFERRABLE INITIALLY DEFERRED)"
        )
        try:
            cursor.execute("INSERT INTO team_note VALUES (%s)", [held.pk])
            assert retention.prune() == len(others)
        finally:
            cursor.execute("DROP TABLE team_note")
    assert [job.pk for job in Job.objects.all()] == [held.pk]
    assert Step.objects.filter(job=held).count() == 2
    assert str(held.pk) in caplog.text


def test_the_number_of_statements_depends_on_batches_and_not_on_jobs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statements(jobs: int) -> int:
        for _ in range(jobs):
            done(engine)
        engine.ahead(31 * DAY)
        with CaptureQueriesContext(connection) as captured:
            assert retention.prune() == jobs
        return len(captured)

    assert statements(2) == statements(20)


def test_a_sweep_is_forgotten_after_a_day_so_many_at_once(engine: Engine) -> None:
    old, young = (now() - timedelta(hours=hours) for hours in (25, 23))
    rows = [Sweep(started_at=moment, finished_at=moment) for moment in [young, *[old] * (sweep.PAGE + 1)]]
    Sweep.objects.bulk_create(rows)
    sweep.sweep()
    assert Sweep.objects.filter(finished_at=old).count() == 1
    sweep.sweep()
    assert [Sweep.objects.filter(finished_at=moment).count() for moment in (old, young)] == [0, 1]


def test_a_key_is_forgotten_after_two_days(engine: Engine) -> None:
    for hours in (72, 1):
        IdempotencyRecord.objects.create(
            client_id=1,
            method="POST",
            path="/x",
            key=str(hours),
            fingerprint="",
            status=202,
            headers={},
            created_at=now() - timedelta(hours=hours),
        )
    retention.prune()
    assert [record.key for record in IdempotencyRecord.objects.all()] == ["1"]
