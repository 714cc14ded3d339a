"""What needs a person: grouped by cause, found and closed by itself, with what people do about it."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents import InDoubt, Permanent
from supervisor import escalation, needs, tasks
from supervisor.advice import recommended
from supervisor.models import Case, Incident, Need, Note
from tests.integration.engine import Beside, Engine, named, state_of
from workflows import Workflow, signal, step, transitions, verbs
from workflows.clock import now
from workflows.exceptions import InvalidInput, NotFound, WrongState
from workflows.models import Agent as AnnouncedAgent
from workflows.models import Attempt, Job, Worker

ADA = "operator:ada"
RUNBOOK = "https://wiki.example.com/shop"


class Letter(Workflow):
    """Its failure stands in front of a person."""

    runbook = "https://wiki.example.com/letters"
    a = step("shop.a", on_failure="hold")


class Banquet(Workflow):
    """What it did can be undone, and its second step fails for good."""

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b")


class Vote(Workflow):
    """Waits for a decision without an end, and for one with an end."""

    approval = signal(approval=True)
    answer = signal(timeout=timedelta(hours=1))


class MarketDay(Workflow):
    """Its service honours no keys."""

    a = step("stall.a", on_failure="hold")


def held(engine: Engine, *messages: str) -> list[Job]:
    jobs = []
    for message in messages:
        engine.says("shop.a", Permanent(message, code="refused"))
        jobs.append(Letter.start())
        engine.drain()
    return jobs


def need() -> Need:
    """The only one that is open."""
    needs.note_needs()
    return Need.objects.open().get()


def alive(*queues: str) -> None:
    """A worker of these queues is heard of."""
    Worker.objects.filter(pk="w").delete()
    Worker.objects.create(name="w", host="h", pid=1, queues=list(queues), started_at=now(), seen_at=now())


def blown_up(_call: Any) -> None:
    raise KeyError("fare")


# --- kinds ----------------------------------------------------------------------------------------------------------


def test_jobs_of_one_cause_are_one_need_with_its_impact(engine: Engine) -> None:
    jobs = held(engine, "Letter 17 of 'Ada' is too heavy.", "Letter 4711 of 'Bo' is too heavy.", "No such street.")
    needs.note_needs()
    heavy, street = Need.objects.open().order_by("since")
    assert (heavy.kind, heavy.workflow, heavy.step, heavy.agent, heavy.code) == (
        *("exhausted", "Letter", "a", "shop"),
        "refused",
    )
    assert heavy.cause == "Letter, a: Letter … of '…' is too heavy."
    assert (heavy.jobs, heavy.examples) == (2, sorted(str(job.pk) for job in jobs[:2]))
    assert heavy.since == named(jobs[0], "a").finished_at
    assert street.jobs == 1
    assert {case.job_id for case in heavy.cases.all()} == {job.pk for job in jobs[:2]}


def test_the_same_message_under_another_code_is_another_cause(engine: Engine) -> None:
    for code in ("refused", "closed"):
        engine.says("shop.a", Permanent("No.", code=code))
        Letter.start()
        engine.drain()
    needs.note_needs()
    assert sorted(Need.objects.open().values_list("code", flat=True)) == ["closed", "refused"]


def test_an_undo_that_failed_is_a_need_of_its_own_sas_072(engine: Engine) -> None:
    engine.says("shop.b", Permanent("No.", code="no"))
    engine.says("shop.undo_a", Permanent("The shop is gone.", code="gone"))
    job = Banquet.start()
    engine.drain()
    assert state_of(job) == "Failed"
    found = need()
    assert (found.kind, found.step, found.cause) == ("failed_undo", "a.undo", "Banquet, a.undo: The shop is gone.")


def test_what_nobody_knows_wants_a_verdict_and_a_late_answer_is_taken_up_sas_016(engine: Engine) -> None:
    engine.says("stall.a", InDoubt("The connection broke.", code="broken"))
    job = MarketDay.start()
    engine.drain()
    for _ in range(8):
        engine.pass_time(400)
    assert named(job, "a").remedy == "escalate"
    found = need()
    assert (found.kind, found.code) == ("verdict", "broken")
    assert found.cause == "MarketDay, a: nobody knows whether it was done. The connection broke."
    with transitions.transaction.atomic():
        locked = transitions.lock(job.pk)
        assert locked
        transitions.keep_late_word(
            locked, named(job, "a"), number=1, outcome=transitions.Outcome.COMPLETED, result={"id": 7}, message=""
        )
    late = need()
    assert (late.kind, late.pk != found.pk) == ("late_result", True)
    verbs.give_result(job.pk, "a", attempt=1, actor=ADA, reason="the stall confirms it")
    engine.drain()
    needs.note_needs()
    assert not Need.objects.open().exists()
    assert state_of(job) == "Completed"


def test_a_job_that_ended_with_a_doubt_wants_a_verdict(engine: Engine) -> None:
    engine.says("stall.a", InDoubt("The connection broke.", code="broken"))
    job = MarketDay.start()
    engine.drain()
    verbs.cancel(job.pk, undo=False, actor=ADA, reason="not needed")
    engine.drain()
    assert state_of(job) == "Failed"
    assert need().kind == "verdict"
    verbs.verdict(job.pk, "a", done=False, actor=ADA, reason="asked the stall")
    needs.note_needs()
    assert not Need.objects.open().exists()


def test_a_decision_without_end_stands_there_after_a_week_and_not_while_its_job_is_paused(engine: Engine) -> None:
    job = Vote.start()
    engine.drain()
    engine.ahead(timedelta(days=7).total_seconds() - 60)
    needs.note_needs()
    assert not Need.objects.open().filter(step="approval").exists()
    engine.ahead(120)
    needs.note_needs()
    found = Need.objects.open().get(step="approval")
    assert (found.kind, found.cause) == (
        "stalled_gate",
        "Vote, approval: nobody has decided, and no time-out ends the wait.",
    )
    assert needs.jobs().filter(pk=job.pk).exists()
    verbs.pause(job.pk, actor=ADA, reason="holidays")
    needs.note_needs()
    assert not Need.objects.open().filter(step="approval").exists()


def test_a_wait_whose_end_is_overdue_stands_there_once_nobody_can_have_missed_it(engine: Engine) -> None:
    Vote.start()
    engine.drain()
    engine.ahead(3600 + 290)
    needs.note_needs()
    assert not Need.objects.open().exists()
    engine.ahead(20)
    found = need()
    assert (found.kind, found.step, found.code) == ("stalled_gate", "answer", "overdue")
    engine.pass_time(1)  # the supervisor moves it on at last
    needs.note_needs()
    assert not Need.objects.open().filter(code="overdue").exists()


def test_a_queue_without_a_living_worker_is_one_need_of_all_its_jobs(engine: Engine) -> None:
    jobs = [Letter.start(), Banquet.start()]
    engine.ahead(310)
    alive("depot")
    found = need()
    assert (found.kind, found.cause, found.jobs) == ("no_worker", "No living worker serves the queue agents.", 2)
    assert set(needs.jobs().values_list("pk", flat=True)) == {job.pk for job in jobs}
    alive("agents")
    needs.note_needs()
    assert not Need.objects.open().exists()


def test_ready_steps_of_busy_or_just_missed_workers_are_no_need(engine: Engine) -> None:
    Letter.start()
    engine.ahead(290)
    needs.note_needs()
    alive("agents")
    engine.ahead(30)
    needs.note_needs()
    assert not Need.objects.exists()


def test_a_job_undone_in_part_stands_there_as_a_whole(engine: Engine) -> None:
    engine.says("shop.b", lambda call: {"ok": True})
    job = Banquet.start()
    engine.drain()
    assert state_of(job) == "Completed"
    Job.objects.filter(pk=job.pk).update(state="Failed", partial=True, reason="operator")
    found = need()
    assert (found.kind, found.cause) == ("undone_in_part", "Banquet: only a part of it was undone.")
    assert found.cases.get().step_id == 0


def test_what_the_queryset_and_the_look_find_is_the_same(engine: Engine) -> None:
    held(engine, "No such street.")
    engine.says("shop.b", Permanent("No.", code="no"))
    engine.says("shop.undo_a", Permanent("The shop is gone.", code="gone"))
    engine.says("shop.a", {"ok": True})
    Banquet.start()
    engine.says("stall.a", InDoubt("The connection broke.", code="broken"))
    doubtful = MarketDay.start()
    engine.drain()
    verbs.cancel(doubtful.pk, undo=False, actor=ADA, reason="not needed")
    engine.drain()
    needs.note_needs()
    expected = set(Job.objects.needs_person().values_list("pk", flat=True))
    assert len(expected) == 3
    assert set(Case.objects.values_list("job_id", flat=True)) == expected


# --- the frame -------------------------------------------------------------------------------------------------------


def test_an_exception_that_nobody_expected_leaves_its_place_and_is_grouped_by_it(engine: Engine) -> None:
    engine.says("stall.a", blown_up)
    job = MarketDay.start()
    engine.drain()
    attempt = Attempt.objects.get(step=named(job, "a"), number=1)
    line = blown_up.__code__.co_firstlineno + 1
    assert attempt.error_frame == f"tests/integration/test_needs.py:{line} blown_up"
    for _ in range(8):
        engine.pass_time(400)
    assert need().frame == attempt.error_frame


def test_a_failure_that_an_agent_tells_has_no_frame(engine: Engine) -> None:
    [job] = held(engine, "No such street.")
    assert Attempt.objects.get(step=named(job, "a")).error_frame == ""


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_a_look_that_finds_nothing_new_writes_nothing(engine: Engine) -> None:
    held(engine, "No such street.", "No such town.")
    needs.note_needs()
    with CaptureQueriesContext(connection) as asked:
        assert needs.note_needs() == 0
    written = [query["sql"] for query in asked.captured_queries if query["sql"].startswith(("INSERT", "DELETE"))]
    assert written == []
    assert len(asked.captured_queries) <= 7


def test_what_one_look_does_not_reach_the_next_does(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "CHANGES_A_LOOK", 2)
    held(engine, *["No such street."] * 5)
    assert [needs.note_needs() for _ in range(4)] == [2, 2, 1, 0]
    assert Need.objects.open().get().jobs == 5


def test_where_hardly_two_messages_are_alike_the_rest_is_one_cause(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "MOST_CAUSES", 2)
    held(engine, "One.", "Two.", "Three.", "Four.")
    needs.note_needs()
    assert sorted(Need.objects.open().values_list("cause", "jobs")) == [
        ("Letter, a: One.", 1),
        ("Letter, a: Two.", 1),
        ("Letter, a: many different messages.", 2),
    ]


def test_two_supervisors_that_look_at_once_find_each_job_once_sas_120(engine: Engine) -> None:
    held(engine, "No such street.", "No such street.")
    looks = [Beside(needs.note_needs) for _ in range(3)]
    assert sorted(look.result() for look in looks)[-1] == 2
    assert Case.objects.count() == Need.objects.open().get().jobs == 2


def test_beat_has_the_supervisor_look_every_few_seconds(engine: Engine, settings: Any) -> None:
    held(engine, "No such street.")
    entry = settings.CELERY_BEAT_SCHEDULE["note needs"]
    tasks.note_needs()
    assert Need.objects.open().get().jobs == 1
    assert (entry["task"], entry["schedule"]) == (tasks.NOTE_NEEDS, timedelta(seconds=5))


# --- what people do --------------------------------------------------------------------------------------------------


def test_a_need_that_is_put_off_is_not_told_until_its_time(engine: Engine, settings: Any, mailoutbox: Any) -> None:
    settings.SAG_NOTIFY = ["ops@example.com"]
    held(engine, "No such street.")
    needs.snooze(need().pk, now() + timedelta(hours=2), actor=ADA, reason="the post office is closed")
    assert escalation.tell() == 0
    engine.ahead(timedelta(hours=2).total_seconds() + 1)
    assert escalation.tell() == 1
    assert len(mailoutbox) == 1
    needs.snooze(need().pk, now() + timedelta(hours=2), actor=ADA)
    assert needs.snooze(need().pk, None, actor=ADA).snoozed_until is None
    done = list(Note.objects.values_list("author", "text"))
    assert done[0] == (ADA, "the post office is closed")
    assert len(done) == 3


@pytest.mark.parametrize("away", [timedelta(seconds=-1), timedelta(days=91)])
def test_a_time_that_is_past_or_too_far_puts_nothing_off(engine: Engine, away: timedelta) -> None:
    held(engine, "No such street.")
    with pytest.raises(InvalidInput):
        needs.snooze(need().pk, now() + away, actor=ADA)
    assert need().snoozed_until is None


def test_what_people_do_is_in_the_notes_with_their_names(engine: Engine) -> None:
    held(engine, "No such street.")
    found = need()
    needs.acknowledge(found, actor=ADA, reason="I call the post office")
    needs.assign(found.pk, "bo", actor=ADA)
    needs.add_note(found.pk, "They open at nine.", actor="operator:bo")
    assert list(Note.objects.values_list("author", "did", "text")) == [
        (ADA, "acknowledged it", "I call the post office"),
        (ADA, "gave it to bo", ""),
        ("operator:bo", "", "They open at nine."),
    ]
    found.refresh_from_db()
    assert (found.acknowledged_by, found.assignee) == (ADA, "bo")
    with pytest.raises(WrongState):
        needs.acknowledge(found, actor="operator:bo")
    with pytest.raises(NotFound):
        needs.assign(found.pk + 1, "bo", actor=ADA)


def test_what_is_over_takes_no_word_any_more(engine: Engine) -> None:
    [job] = held(engine, "No such street.")
    found = need()
    verbs.skip(job.pk, "a", actor=ADA, reason="no need")
    needs.note_needs()
    for act in (
        lambda: needs.assign(found.pk, "bo", actor=ADA),
        lambda: needs.snooze(found.pk, None, actor=ADA),
        lambda: needs.add_note(found.pk, "late", actor=ADA),
        lambda: needs.acknowledge(found, actor=ADA),
    ):
        with pytest.raises(WrongState):
            act()
    assert not Note.objects.exists()


def test_the_runbook_is_the_agents_own_and_else_the_workflows(engine: Engine) -> None:
    held(engine, "No such street.")
    found = need()
    assert needs.runbooks([found]) == {found.pk: Letter.runbook}
    shop = AnnouncedAgent.objects.get(pk="shop")
    shop.runbook = RUNBOOK
    transitions.announce(shop)
    assert needs.runbooks([found]) == {found.pk: RUNBOOK}


def test_who_is_told_reads_what_to_do_and_where_to_read_more(engine: Engine, settings: Any, mailoutbox: Any) -> None:
    settings.SAG_NOTIFY = ["ops@example.com"]
    held(engine, "No such street.")
    escalation.tell()
    body = mailoutbox[0].body
    assert "What to do: The service refuses it for good." in body
    assert f"Runbook: {Letter.runbook}" in body


def test_what_was_closed_long_ago_is_forgotten_with_its_notes(engine: Engine) -> None:
    [job] = held(engine, "No such street.")
    needs.add_note(need().pk, "They open at nine.", actor=ADA)
    verbs.skip(job.pk, "a", actor=ADA, reason="no need")
    needs.note_needs()
    needs.forget()
    assert Need.objects.count() == 1
    engine.ahead(timedelta(days=91).total_seconds())
    needs.forget()
    assert (Need.objects.count(), Note.objects.count()) == (0, 0)


# --- all jobs of one cause -------------------------------------------------------------------------------------------


def test_the_jobs_of_one_cause_are_tried_again_each_by_its_own_verb(engine: Engine) -> None:
    jobs = held(engine, "No such street.", "No such street.", "No such town.")
    needs.note_needs()
    street = Need.objects.open().get(cause__contains="street")
    engine.says("shop.a", {"ok": True})
    verbs.skip(jobs[1].pk, "a", actor=ADA, reason="no need")
    done = needs.retry_all(street.pk, actor=ADA, reason="the map is mended")
    assert [(tried.job_id, tried.refusal) for tried in done] == [(jobs[0].pk, "")]
    engine.drain()
    assert [state_of(job) for job in jobs] == ["Completed", "Completed", "Running"]
    assert street.notes.get().did == "had 1 tried again, 0 refused"
    assert Need.objects.open().get().cause == "Letter, a: No such town."


def test_no_transaction_locks_two_jobs_and_a_refusal_keeps_no_other_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = held(engine, *["No such street."] * 3)
    found = need()
    monkeypatch.setattr(needs, "RETRIED_AT_ONCE", 2)
    Job.objects.filter(pk=jobs[0].pk).update(stopping_at=now(), stopping_undo=False, reason="cancelled")
    done = needs.retry_all(found.pk, actor=ADA, reason="mended")
    assert [(tried.job_id, bool(tried.refusal)) for tried in done] == [(jobs[0].pk, True), (jobs[1].pk, False)]
    assert not connection.in_atomic_block
    assert named(jobs[2], "a").state == "Failed"


def test_where_each_job_needs_a_word_of_its_own_nothing_is_tried(engine: Engine) -> None:
    Vote.start()
    engine.drain()
    engine.ahead(3600 + 310)
    with pytest.raises(WrongState):
        needs.retry_all(need().pk, actor=ADA, reason="try")


# --- advice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Need.Kind.values)
def test_each_kind_has_its_advice(kind: str) -> None:
    said = recommended(kind, code="agents")
    assert said.endswith(".")
    assert len(said) > 40


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"error_kind": "permanent", "code": "refused"}, "refuses it for good"),
        ({"error_kind": "transient", "code": "unavailable"}, "answers again, then retry"),
        ({"error_kind": "lost", "code": "lease_expired"}, "workers died"),
        ({"error_kind": "permanent", "code": "unknown_operation"}, "Deploy agents"),
        ({"error_kind": "expired_waiting", "code": "queue_timeout"}, "Start workers"),
        ({"error_kind": "expired_waiting", "code": "timeout"}, "What it waited for did not come"),
        ({"error_kind": "cancelled", "code": "cancelled"}, "Somebody stopped it"),
        ({"error_kind": "in_doubt", "code": "KeyError", "frame": "shop.py:7 order"}, "raised this at shop.py:7 order"),
    ],
)
def test_advice_goes_by_what_is_known_of_the_failure(facts: dict[str, str], says: str) -> None:
    assert says in recommended("exhausted", **facts)


def test_an_incident_is_acknowledged_as_a_need_is(engine: Engine) -> None:
    evidence = {"failures": 6, "calls": 6, "steps": 6, "window": 30.0}
    incident = Incident.objects.create(
        agent="shop", cause="unavailable", message="503", evidence=evidence, opened_at=now()
    )
    needs.acknowledge(incident, actor=ADA)
    incident.refresh_from_db()
    assert incident.acknowledged_by == ADA
    assert not Note.objects.exists()
