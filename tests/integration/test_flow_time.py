"""Every wait has an end: of a job, of a queue, of a step as a whole; deaths that do not end; and what an ending begins."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from agents import InDoubt, Permanent, Snooze, Transient
from supervisor import sweep as supervision
from tests.integration.engine import Engine, check_books, history, named, start, state_of, states
from workflows import Retry, Workflow, scheduler, signal, step, undo, verbs
from workflows.clock import now
from workflows.models import Job, Step

# --- the deadline of a job ------------------------------------------------------------------


class TimedLimited(Workflow):
    deadline = timedelta(seconds=30)
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])
    c = step("shop.c", after=[b])


def test_a_job_that_is_not_done_by_its_deadline_starts_nothing_more_and_is_undone(engine: Engine) -> None:
    """SAS-075"""
    job = start(TimedLimited)
    engine.rings.clear()
    engine.sweep()
    engine.settle(engine.claim(named(job, "a")), hand_over=False)
    engine.ahead(29)
    engine.sweep()
    assert Job.objects.get(pk=job.pk).reason == ""
    running = engine.claim(named(job, "b"))
    engine.ahead(2)
    engine.sweep()
    stopping = Job.objects.get(pk=job.pk)
    assert (stopping.state, stopping.reason) == ("Running", "deadline")
    assert "its deadline" in stopping.reason_detail
    engine.settle(running)
    engine.drain()
    assert state_of(job) == "Compensated"
    assert engine.asked() == ["shop.undo_b", "shop.undo_a"]
    assert states(job)["c"] == "Skipped"
    check_books(job)


def test_the_deadline_counts_from_when_the_start_is_first_seen_after_its_commit(engine: Engine) -> None:
    with transaction.atomic():
        job = start(TimedLimited)
        engine.ahead(3600)
    engine.sweep()
    assert Job.objects.get(pk=job.pk).reason == ""
    engine.ahead(31)
    engine.sweep()
    assert Job.objects.get(pk=job.pk).reason == "deadline"


def test_the_deadline_of_a_job_that_is_to_begin_later_counts_from_then(engine: Engine) -> None:
    job = start(TimedLimited, start_at=now() + timedelta(hours=1))
    engine.sweep()
    engine.ahead(3610)
    engine.sweep()
    assert Job.objects.get(pk=job.pk).reason == ""
    engine.ahead(21)
    engine.sweep()
    assert state_of(job) == "Compensated"
    assert engine.asked() == []


def test_a_deadline_behind_the_point_of_no_return_stops_the_job_without_undo(engine: Engine) -> None:
    class TimedFinal(Workflow):
        deadline = timedelta(seconds=30)
        a = step("shop.a", compensation="shop.undo_a", pivot=True)
        s = signal(after=[a])

    job = start(TimedFinal)
    engine.drain()
    engine.sweep()
    engine.ahead(31)
    engine.sweep()
    assert state_of(job) == "Failed"
    assert "shop.undo_a" not in engine.asked()
    check_books(job)


def test_a_deadline_ends_a_pause_and_a_job_that_a_person_is_asked_about(engine: Engine) -> None:
    class TimedHeld(Workflow):
        deadline = timedelta(seconds=30)
        on_failure = "hold"
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a])

    engine.says("shop.b", Permanent("no"))
    job = start(TimedHeld)
    engine.drain()
    engine.sweep()
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.ahead(31)
    engine.sweep()
    engine.drain()
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_a_job_that_ended_in_time_has_no_deadline_any_more(engine: Engine) -> None:
    job = start(TimedLimited)
    engine.sweep()
    engine.drain()
    engine.ahead(3600)
    engine.sweep()
    assert state_of(job) == "Completed"


def test_the_time_of_a_job_that_is_tried_again_begins_anew(engine: Engine) -> None:
    class TimedBare(Workflow):
        deadline = timedelta(seconds=30)
        a = step("shop.a")

    engine.says("shop.a", Permanent("no"))
    job = start(TimedBare)
    engine.sweep()
    engine.drain()
    assert state_of(job) == "Failed"
    engine.ahead(3600)
    verbs.retry_job(job.pk, actor="operator:x", reason="mended")
    engine.sweep()
    assert Job.objects.get(pk=job.pk).reason == ""


# --- the queue -------------------------------------------------------------------------------------------------------


class TimedQueued(Workflow):
    a = step("shop.a", queue_timeout=timedelta(seconds=60), retry=Retry(attempts=3))
    b = step("shop.b", after=[a], queue_timeout=timedelta(seconds=60))


def ring_without_workers(engine: Engine, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        engine.ahead(seconds)
        supervision.ring_due()
        engine.rings.clear()


def test_a_step_that_no_worker_takes_in_time_fails_with_the_queue_that_nobody_serves(engine: Engine) -> None:
    job = start(TimedQueued)
    engine.rings.clear()
    ring_without_workers(engine, 6)
    engine.ahead(50)
    engine.sweep()
    assert named(job, "a").state == "NotStarted"
    engine.ahead(20)
    engine.sweep()
    refused = named(job, "a")
    assert (refused.state, refused.error_kind, refused.error_code) == ("Failed", "expired_waiting", "queue_timeout")
    assert '"agents"' in refused.error_message
    engine.drain()
    assert state_of(job) == "Failed"
    check_books(job)


def test_the_time_in_the_queue_counts_from_when_the_step_is_first_seen_there(engine: Engine) -> None:
    job = start(TimedQueued)
    engine.rings.clear()
    engine.ahead(3600)
    engine.sweep()
    engine.sweep()
    assert named(job, "a").state == "NotStarted"
    engine.ahead(61)
    engine.sweep()
    assert named(job, "a").error_code == "queue_timeout"


def test_the_time_of_a_pause_does_not_count_in_the_queue(engine: Engine) -> None:
    job = start(TimedQueued)
    engine.rings.clear()
    ring_without_workers(engine, 6)
    verbs.pause(job.pk, actor="operator:x", reason="wait")
    engine.ahead(3600)
    engine.sweep()
    verbs.resume(job.pk, actor="operator:x", reason="go on")
    engine.rings.clear()
    engine.sweep()
    ring_without_workers(engine, 6)
    engine.sweep()
    assert named(job, "a").state == "NotStarted"
    engine.pass_time(1)
    engine.drain()
    engine.pass_time(60)
    assert state_of(job) == "Completed"


def test_a_step_that_becomes_ready_later_has_its_whole_time_in_the_queue(engine: Engine) -> None:
    job = start(TimedQueued)
    engine.rings.clear()
    first = engine.claim(named(job, "a"))
    engine.ahead(9)
    engine.settle(first, hand_over=False)
    engine.rings.clear()
    ring_without_workers(engine, 6)
    engine.ahead(55)
    engine.sweep()
    assert named(job, "b").state == "NotStarted"
    engine.ahead(10)
    engine.sweep()
    assert named(job, "b").error_code == "queue_timeout"


def test_a_back_off_does_not_count_in_the_queue(engine: Engine) -> None:
    class TimedSlow(Workflow):
        a = step(
            "shop.a",
            queue_timeout=timedelta(seconds=5),
            retry=Retry(attempts=2, first=timedelta(minutes=30), cap=timedelta(minutes=30)),
        )

    engine.says("shop.a", Transient("busy", retry_after=1200), {})
    job = start(TimedSlow)
    engine.drain()
    engine.ahead(600)
    engine.sweep()
    engine.sweep()
    assert named(job, "a").state == "NotStarted"
    engine.pass_time(601)
    assert state_of(job) == "Completed"


# --- a step as a whole -----------------------------------------------------------------------------------------------


class TimedPatient(Workflow):
    a = step("shop.a", timeout=timedelta(seconds=10), total_timeout=timedelta(seconds=100),
             retry=Retry(attempts=1000, first=timedelta(seconds=20), cap=timedelta(seconds=20)))  # fmt: skip


def test_a_step_is_not_tried_again_once_its_time_as_a_whole_is_over(engine: Engine) -> None:
    engine.says("shop.a", Transient("busy", retry_after=20))
    job = start(TimedPatient)
    engine.drain()
    engine.pass_time(21, times=10)
    failed = named(job, "a")
    assert failed.attempt == 5
    assert "step_timeout" in failed.remedy_reason
    assert state_of(job) == "Failed"
    check_books(job)


def test_a_step_that_polls_for_ever_ends_when_its_time_as_a_whole_is_over(engine: Engine) -> None:
    engine.says("shop.a", Snooze(20, "not ready"))
    job = start(TimedPatient)
    engine.drain()
    engine.pass_time(21, times=10)
    failed = named(job, "a")
    assert (failed.state, failed.error_code) == ("Failed", "step_timeout")
    assert state_of(job) == "Failed"
    check_books(job)


def test_a_persons_retry_brings_the_time_of_the_step_as_well(engine: Engine) -> None:
    engine.says("shop.a", Transient("busy", retry_after=20))
    job = start(TimedPatient)
    engine.drain()
    engine.pass_time(21, times=10)
    before = named(job, "a").attempt
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="mended")
    engine.drain()
    engine.pass_time(21, times=10)
    assert named(job, "a").attempt == before + 5


def test_a_step_in_doubt_whose_time_is_over_is_asked_about_once(engine: Engine) -> None:
    class TimedProbed(Workflow):
        a = step("kiosk.a", probe="kiosk.find", timeout=timedelta(seconds=10), total_timeout=timedelta(seconds=10),
                 retry=Retry(attempts=9, first=timedelta(seconds=60)))  # fmt: skip

    engine.says("kiosk.a", InDoubt("no answer"))
    engine.says("kiosk.find", {"found": 1})
    job = start(TimedProbed)
    engine.ahead(1)
    engine.drain()
    engine.pass_time(61, times=2)
    assert engine.asked().count("kiosk.a") == 1
    assert named(job, "a").result == {"found": 1}
    assert state_of(job) == "Completed"


# --- poison ----------------------------------------------------------------------------------------------------------


def let_die(engine: Engine, job: Job, name: str = "a") -> Step:
    engine.claim(named(job, name))
    engine.ahead(11)
    engine.sweep()
    engine.ahead(70)
    engine.rings.clear()
    return named(job, name)


def test_a_step_that_killed_three_workers_is_set_aside_for_a_person(engine: Engine) -> None:
    """Protocol 15"""

    class TimedDeadly(Workflow):
        a = step("shop.a", compensation="shop.undo_a")

    job = start(TimedDeadly)
    engine.rings.clear()
    assert let_die(engine, job).state == "NotStarted"
    assert let_die(engine, job).state == "NotStarted"
    poison = let_die(engine, job)
    assert (poison.state, poison.remedy, poison.attempt) == ("Failed", "escalate", 3)
    assert "died 3 times" in poison.remedy_reason
    engine.pass_time(70, times=3)
    engine.sweep()
    assert engine.asked() == []
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    check_books(job)


def test_a_person_may_try_a_deadly_step_again_and_an_ordinary_failure_is_then_tried_again(engine: Engine) -> None:
    class TimedDeadly(Workflow):
        a = step("shop.a")

    job = start(TimedDeadly)
    engine.rings.clear()
    for _ in range(3):
        let_die(engine, job)
    engine.says("shop.a", Transient("busy"), {"ok": 1})
    verbs.retry_step(job.pk, "a", actor="operator:x", reason="the host has more memory")
    engine.drain()
    engine.pass_time(61)
    assert state_of(job) == "Completed"
    assert named(job, "a").attempt == 5
    check_books(job)


# --- hooks -----------------------------------------------------------------------------------------------------------


class TimedHooked(Workflow):
    after_success = "shop.f"
    after_failure = "shop.g"
    compensate_within = timedelta(days=1)
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", after=[a])


def hooks() -> list[tuple[str, str | None]]:
    return list(Job.objects.filter(workflow__contains=".after_").order_by("id").values_list("workflow", "key"))


def test_the_hook_of_a_job_that_completed_is_a_job_opened_with_its_end(engine: Engine) -> None:
    job = start(TimedHooked)
    engine.drain()
    ended = Job.objects.get(pk=job.pk)
    assert ended.state == "Completed"
    assert hooks() == [("TimedHooked.after_success", f"{job.pk}:{ended.seq}")]
    [call] = engine.calls_of("shop.f")
    assert (call.input["job"], call.input["state"], call.input["seq"]) == (str(job.pk), "Completed", ended.seq)
    assert call.input["failed_steps"] == []
    check_books(job)


def test_the_hook_of_a_failure_says_what_failed_and_why(engine: Engine) -> None:
    engine.says("shop.b", Permanent("sold out", code="sold_out"))
    job = start(TimedHooked)
    engine.drain()
    assert state_of(job) == "Compensated"
    [call] = engine.calls_of("shop.g")
    assert call.input["state"] == "Compensated"
    assert call.input["reason"] == "step_failed"
    assert call.input["failed_steps"] == [{"step": "b", "kind": "permanent", "code": "sold_out", "message": "sold out"}]
    assert "shop.f" not in engine.asked()


def test_a_job_that_ends_again_calls_its_hook_again_under_another_number(engine: Engine) -> None:
    """Protocol 28: a job may end, be undone and end again."""
    job = start(TimedHooked)
    engine.drain()
    undo.compensate(job.pk, digest=undo.preview(job.pk).digest, actor="client:x", reason="cancel my trip")
    engine.drain()
    assert state_of(job) == "Compensated"
    (first, first_key), (second, second_key) = hooks()
    assert (first, second) == ("TimedHooked.after_success", "TimedHooked.after_failure")
    assert first_key != second_key
    assert [name for name in engine.asked() if name in ("shop.f", "shop.g")] == ["shop.f", "shop.g"]


def test_an_end_that_is_rolled_back_leaves_no_hook(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class TimedBare(Workflow):
        after_failure = "shop.g"
        s = signal()

    job = start(TimedBare)

    def breaks(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(scheduler, "_facts_for_hook", breaks)
        with pytest.raises(RuntimeError):
            verbs.cancel(job.pk, undo=False, actor="operator:x", reason="stop")
    assert state_of(job) == "Running"
    assert hooks() == []
    assert not transaction.get_connection().in_atomic_block
    check_books(job)


def test_a_hook_that_fails_stands_before_a_person_and_changes_nothing_of_its_job(engine: Engine) -> None:
    engine.says("shop.f", Permanent("no mail today"))
    job = start(TimedHooked)
    engine.drain()
    assert state_of(job) == "Completed"
    [hook] = Job.objects.filter(workflow="TimedHooked.after_success")
    assert Job.objects.needs_person().filter(pk=hook.pk).exists()
    assert not Job.objects.needs_person().filter(pk=job.pk).exists()
    assert history(job)[-1] == "job.completed"


def test_a_hook_has_no_hook_of_its_own(engine: Engine) -> None:
    start(TimedHooked)
    engine.drain()
    assert len(hooks()) == 1
