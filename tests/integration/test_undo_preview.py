"""What an undo would do is shown before it is asked for, and what is asked for is exactly what was shown."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.signals import post_init

from agents import InDoubt, Permanent
from tests.integration.engine import Beside, Engine, check_books, history, locked, named, state_of, states
from workflows import Retry, Workflow, child, given, item, step, transitions, undo, verbs
from workflows.allowed import job_verbs
from workflows.exceptions import DigestMismatch, NotFound, StaleVersion, WrongState
from workflows.models import Attempt, Job, Step
from workflows.transitions import Claimed

ONE_TRY = Retry(attempts=1)


class TreeShown(Workflow):
    """a, then b and c side by side, d behind b without an undo, e behind c and d."""

    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a])
    c = step("shop.c", compensation="shop.undo_c", after=[a])
    d = step("shop.d", after=[b])
    e = step("shop.e", compensation="shop.undo_e", after=[c, d])


class HeldShown(Workflow):
    """What fails for good waits for a person, so that the job stays Running."""

    on_failure = "hold"

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a], retry=ONE_TRY)
    c = step("shop.c", compensation="shop.undo_c", after=[b], retry=ONE_TRY)


class SpreadShown(Workflow):
    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"item": item}, tolerate=1, retry=ONE_TRY)
    b = step("shop.b", compensation="shop.undo_b", after=[a])


class InnerShown(Workflow):
    compensate_within = timedelta(days=1)

    f = step("shop.f", compensation="shop.undo_f")


class OuterShown(Workflow):
    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a")
    inner = child(InnerShown, after=[a])
    b = step("shop.b", compensation="shop.undo_b", after=[inner])


class PivotalShown(Workflow):
    compensate_within = timedelta(days=1)

    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", compensation="shop.undo_b", after=[a], pivot=True, retry=ONE_TRY)
    c = step("shop.c", compensation="shop.undo_c", after=[b])


def compensate(job: Job, digest: str | None = None, *, down_to: str | None = None, **options: Any) -> Job:
    digest = digest or undo.preview(job.pk, down_to=down_to).digest
    actor = options.pop("actor", "operator:x")
    return undo.compensate(job.pk, digest=digest, down_to=down_to, actor=actor, reason="they asked", **options)


def undos(engine: Engine) -> list[str]:
    return [name.removeprefix("shop.undo_") for name in engine.asked() if ".undo_" in name]


def shown(job: Job, **options: Any) -> list[str]:
    return [call["step"] for call in undo.preview(job.pk, **options).steps]


# --- what is shown -----------------------------------------------------------------------------------------------------


def test_that_a_job_cannot_be_undone_any_more_is_said_before_it_is_asked_for(engine: Engine) -> None:
    class TreeKept(Workflow):
        a = step("shop.a", compensation="shop.undo_a")

    job = TreeKept.start()
    assert undo.preview(job.pk).refused is None
    engine.drain()
    preview = undo.preview(job.pk)
    with pytest.raises(WrongState) as refusal:
        undo.compensate(job.pk, digest=preview.digest, actor="operator:x", reason="no longer wanted")
    assert preview.refused == refusal.value.message
    assert "compensate_within" in preview.refused


def test_the_calls_are_shown_with_the_keys_and_references_of_what_they_undo(engine: Engine) -> None:
    engine.says("shop.a", {"reference": "A1"})
    job = TreeShown.start()
    engine.drain()
    preview = undo.preview(job.pk)
    assert preview.steps[-1] == {
        "step": "a",
        "operation": "shop.undo_a",
        "key": f"{job.pk}:a",
        "reference": "A1",
        "in_doubt": False,
    }
    assert (preview.in_doubt, preview.running, preview.pivot, preview.down_to) == ([], [], None, None)


def test_the_order_shown_is_the_order_in_which_they_are_undone(engine: Engine) -> None:
    job = TreeShown.start()
    engine.drain()
    order = shown(job)
    assert order == ["e", "c", "b", "a"]
    compensate(job)
    engine.drain()
    assert undos(engine)[0] == "e"
    assert undos(engine)[-1] == "a"
    assert sorted(undos(engine)) == sorted(order)
    assert state_of(job) == "Compensated"
    check_books(job)


def test_looking_changes_nothing_and_shows_the_same_again(engine: Engine) -> None:
    job = TreeShown.start()
    engine.drain()
    before = (history(job), states(job), Job.objects.get(pk=job.pk).seq)
    first, second = undo.preview(job.pk), undo.preview(job.pk)
    assert first == second
    assert (history(job), states(job), Job.objects.get(pk=job.pk).seq) == before


def test_what_declares_no_undo_is_told_from_what_needs_none(engine: Engine) -> None:
    class ReadingShown(Workflow):
        compensate_within = timedelta(days=1)

        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", compensation=False, after=[a])
        c = step("shop.c", after=[b])

    job = ReadingShown.start()
    engine.drain()
    why = {entry["step"]: entry["why"].partition(":")[0] for entry in undo.preview(job.pk).not_undone}
    assert why == {"b": "unnecessary", "c": "undeclared"}


def test_what_is_in_doubt_is_named_whether_or_not_it_can_be_undone(engine: Engine) -> None:
    class DoubtfulShown(Workflow):
        on_failure = "hold"

        a = step("shop.a", compensation="shop.undo_a", retry=ONE_TRY)
        b = step("shop.b", retry=ONE_TRY)

    engine.says("shop.a", InDoubt("lost"))
    engine.says("shop.b", InDoubt("lost"))
    job = DoubtfulShown.start()
    engine.drain()
    preview = undo.preview(job.pk)
    assert [(call["step"], call["in_doubt"]) for call in preview.steps] == [("a", True)]
    assert preview.in_doubt == ["a", "b"]
    assert [entry["step"] for entry in preview.not_undone] == ["b"]


def test_what_runs_is_named_and_what_it_turns_out_to_have_done_is_undone(engine: Engine) -> None:
    job = TreeShown.start()
    engine.rings.clear()
    claimed = engine.claim(named(job, "a"))
    preview = undo.preview(job.pk)
    assert (preview.running, preview.steps) == (["a"], [])
    compensate(job, preview.digest)
    assert state_of(job) == "Running"
    engine.settle(claimed)
    engine.drain()
    assert undos(engine) == ["a"]
    assert state_of(job) == "Compensated"
    assert Job.objects.get(pk=job.pk).reason == "operator"
    check_books(job)


def test_the_items_of_a_fan_out_are_shown_one_by_one_and_only_those_that_did_something(engine: Engine) -> None:
    engine.says("shop.a", {"id": 1}, Permanent("no"), {"id": 3})
    job = SpreadShown.start({"list": [1, 2, 3]})
    engine.pass_time(1)
    preview = undo.preview(job.pk)
    assert [(call["step"], call["reference"]) for call in preview.steps] == [
        ("b", None),
        ("a:0", "1"),
        ("a:2", "3"),
    ]
    compensate(job, preview.digest)
    engine.drain()
    assert undos(engine) == ["b", "a", "a"]
    assert state_of(job) == "Compensated"
    check_books(job)


def test_a_child_is_one_step_of_the_undo_and_its_job_is_undone_by_itself(engine: Engine) -> None:
    job = OuterShown.start()
    engine.drain()
    assert state_of(job) == "Completed"
    preview = undo.preview(job.pk)
    assert [call["step"] for call in preview.steps] == ["b", "inner", "a"]
    compensate(job, preview.digest)
    engine.drain()
    assert undos(engine) == ["b", "f", "a"]
    inner = Job.objects.get(workflow="InnerShown")
    assert (state_of(job), inner.state, inner.reason) == ("Compensated", "Compensated", "parent")
    check_books(job)
    check_books(inner)


def test_a_job_that_is_not_there_and_a_step_that_is_not_there_are_not_found(engine: Engine) -> None:
    job = TreeShown.start()
    with pytest.raises(NotFound, match="no step 'x'"):
        undo.preview(job.pk, down_to="x")
    with pytest.raises(NotFound):
        undo.preview(uuid.uuid4())


# --- of many items -----------------------------------------------------------------------------------------------------


def copied(job: Job, items: int) -> None:
    """Its one item, and as many copies of it and of its attempt, which are quicker to write than real ones."""
    own = {"id", "seq", "index", "idempotency_key", "step_id"}
    same, tried = (
        ", ".join(f'"{field.column}"' for field in model._meta.concrete_fields if field.column not in own)
        for model in (Step, Attempt)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"""WITH first AS (SELECT * FROM sag_workflows_step WHERE job_id = %s AND index = 0),
            copies AS (
                INSERT INTO sag_workflows_step (seq, index, idempotency_key, {same})
                SELECT 100 + n, n, idempotency_key || n, {same} FROM first, generate_series(1, %s - 1) AS n RETURNING id
            )
            INSERT INTO sag_workflows_attempt (step_id, {tried})
            SELECT copies.id, {tried} FROM copies, (
                SELECT * FROM sag_workflows_attempt WHERE step_id = (SELECT id FROM first)
            ) AS attempt""",
            [job.pk, items],
        )
    Step.objects.filter(job=job, items_total=1).update(items_total=items, items_made=items)


def test_a_look_reads_no_more_rows_of_two_thousand_items_than_of_one_thousand(engine: Engine) -> None:
    read: list[type] = []

    def note(sender: type, **_: Any) -> None:
        read.append(sender)

    def cost(items: int) -> int:
        job = SpreadShown.start({"list": [1]})
        engine.drain()
        copied(job, items)
        read.clear()
        preview = undo.preview(job.pk)
        rows = len(read)
        assert (preview.total, len(preview.steps)) == (items + 1, undo.MOST_CALLS)
        assert preview.steps[-1]["step"] == f"a:{undo.MOST_CALLS - 2}"
        return rows

    post_init.connect(note)
    try:
        assert cost(1000) == cost(2000) < 3 * undo.MOST_CALLS
    finally:
        post_init.disconnect(note)


@pytest.fixture
def two_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MOST_CALLS", 2)


class DoubtfulSpreadShown(Workflow):
    """The stall promises nothing: what was once in doubt stays so."""

    on_failure = "hold"
    compensate_within = timedelta(days=1)

    a = step("stall.a", compensation="stall.undo_a", each=given["list"], input={"item": item}, retry=Retry(attempts=2))
    b = step("shop.b", compensation="shop.undo_b")


@pytest.mark.usefixtures("two_shown")
def test_the_first_calls_are_shown_and_all_are_counted(engine: Engine) -> None:
    engine.says("stall.a", InDoubt("lost"))
    job = DoubtfulSpreadShown.start({"list": [1, 2, 3, 4]})
    engine.pass_time(60, times=3)
    preview = undo.preview(job.pk)
    assert [call["step"] for call in preview.steps] == ["b", "a:0"]
    assert (preview.total, preview.in_doubt[:2]) == (5, ["a:0", "a:1"])
    compensate(job, preview.digest)
    engine.drain()
    undone = Step.objects.filter(job=job, role="undo", state="Completed")
    assert sorted(row.address for row in undone if row.index is not None) == [f"a.undo:{index}" for index in range(4)]


def _last_of_four(engine: Engine) -> tuple[Job, Step, Claimed]:
    """The last of four items, of which two are shown: cancelled while its call was under way."""
    job = DoubtfulSpreadShown.start({"list": [1, 2, 3, 4]})
    engine.rings.clear()
    items = list(Step.objects.filter(job=job, index__isnull=False).order_by("index"))
    for one in items[:3]:
        engine.settle(engine.claim(one))
    claimed = engine.claim(items[3])
    verbs.cancel_step(job.pk, "a:3", actor="operator:x", reason="it hangs")
    engine.drain()
    return job, Step.objects.get(pk=items[3].pk), claimed


@pytest.mark.usefixtures("two_shown")
def test_a_late_word_on_an_item_that_is_not_shown_has_the_undo_refused(engine: Engine) -> None:
    """It changes no row of a step."""
    job, last, claimed = _last_of_four(engine)
    before = undo.preview(job.pk)
    assert engine.settle(claimed, '{"reference": "R-3"}') is None
    assert Step.objects.get(pk=last.pk).version == last.version
    assert undo.preview(job.pk).steps == before.steps
    with pytest.raises(DigestMismatch):
        compensate(job, before.digest)


@pytest.mark.usefixtures("two_shown")
def test_a_doubt_that_ends_in_an_item_that_is_not_shown_has_the_undo_refused(engine: Engine) -> None:
    job, last, _ = _last_of_four(engine)
    verbs.retry_step(job.pk, "a:3", actor="operator:x", reason="once more")
    engine.drain()
    assert Step.objects.get(pk=last.pk).state == "Completed"
    before = undo.preview(job.pk)
    assert before.in_doubt == ["a:3"]
    with locked(job):
        transitions.resolve_doubts(Job.objects.get(pk=job.pk), last, Attempt.Resolution.PERSON)
    after = undo.preview(job.pk)
    assert (after.total, after.steps) == (before.total, before.steps)
    with pytest.raises(DigestMismatch):
        compensate(job, before.digest)


@pytest.mark.usefixtures("two_shown")
def test_an_item_that_is_not_shown_and_ends_has_the_undo_refused(engine: Engine) -> None:
    job = SpreadShown.start({"list": [1, 2, 3, 4]})
    engine.rings.clear()
    items = list(Step.objects.filter(job=job, index__isnull=False).order_by("index"))
    for one in items[:3]:
        engine.settle(engine.claim(one))
    claimed = engine.claim(items[3])
    before = undo.preview(job.pk)
    engine.settle(claimed)
    after = undo.preview(job.pk)
    assert (before.total, after.total, after.steps) == (3, 4, before.steps)
    with pytest.raises(DigestMismatch):
        compensate(job, before.digest)


@pytest.mark.usefixtures("two_shown")
def test_two_looks_at_the_same_show_the_same_digest(engine: Engine) -> None:
    job, _, _ = _last_of_four(engine)
    assert undo.preview(job.pk) == undo.preview(job.pk)


# --- exactly this ------------------------------------------------------------------------------------------------------


def test_a_step_that_settles_after_the_look_has_the_undo_refused(engine: Engine) -> None:
    """B2: after another look the new step is in the plan."""
    job = TreeShown.start()
    handed = engine.settle(engine.claim(named(job, "a"))).handed_over
    engine.rings.clear()
    preview = undo.preview(job.pk)
    engine.settle(handed)
    before = history(job)
    with pytest.raises(DigestMismatch) as refused:
        compensate(job, preview.digest)
    assert refused.value.state == "Running"
    assert history(job) == before
    assert "b" in shown(job)
    assert "b" not in [call["step"] for call in preview.steps]


def test_an_item_that_settles_after_the_look_has_the_undo_refused(engine: Engine) -> None:
    job = SpreadShown.start({"list": [1, 2]})
    engine.rings.clear()
    first, second = Step.objects.filter(job=job, parent__isnull=False).order_by("index")
    engine.settle(engine.claim(first))
    claimed = engine.claim(second)
    digest = undo.preview(job.pk).digest
    engine.settle(claimed)
    with pytest.raises(DigestMismatch):
        compensate(job, digest)
    assert "job.stopping" not in history(job)


def test_an_undo_that_waited_for_a_settle_is_refused(engine: Engine) -> None:
    """B2, with two sessions: the settle commits while the undo waits for the lock."""
    job = TreeShown.start()
    claimed = engine.claim(named(job, "a"))
    digest = undo.preview(job.pk).digest
    with locked(job):
        beside = Beside(lambda: compensate(job, digest)).until_blocked()
        engine.settle(claimed)
    with pytest.raises(DigestMismatch):
        beside.result()
    assert state_of(job) == "Running"
    assert "job.stopping" not in history(job)


def test_of_two_operators_at_once_one_undoes_and_the_other_is_told(engine: Engine) -> None:
    job = TreeShown.start()
    engine.drain()
    digest = undo.preview(job.pk).digest
    with locked(job):
        both = [Beside(lambda: compensate(job, digest)).until_blocked() for _ in range(2)]
    outcomes = [_outcome_of(beside.result) for beside in both]
    assert sorted(outcomes) == ["Compensating", "WrongState"]
    assert history(job).count("job.compensating") == 1
    engine.drain()
    assert sorted(undos(engine)) == ["a", "b", "c", "e"]
    assert state_of(job) == "Compensated"
    check_books(job)


def _outcome_of(act: Callable[[], Job]) -> str:
    try:
        return act().state
    except (WrongState, StaleVersion) as error:
        return type(error).__name__


def test_the_version_that_was_seen_counts_too(engine: Engine) -> None:
    job = TreeShown.start()
    engine.drain()
    seen = Job.objects.get(pk=job.pk).seq
    with pytest.raises(StaleVersion):
        compensate(job, seen=seen - 1)
    assert compensate(job, seen=seen).state == "Compensating"


# --- when --------------------------------------------------------------------------------------------------------------


def test_a_completed_job_is_undone_within_its_time_and_not_after_it(engine: Engine) -> None:
    job, other = TreeShown.start(), TreeShown.start()
    engine.drain()
    engine.ahead(86_000)
    assert job_verbs(Job.objects.get(pk=job.pk)) == ["compensation"]
    compensate(job)
    engine.ahead(500)
    with pytest.raises(WrongState, match="too long to be undone"):
        compensate(other)
    assert job_verbs(Job.objects.get(pk=other.pk)) == []
    engine.drain()
    ended = Job.objects.get(pk=job.pk)
    assert (ended.state, ended.reason, ended.reason_detail) == ("Compensated", "operator", "they asked")
    assert state_of(other) == "Completed"
    check_books(job)


def test_a_workflow_that_does_not_allow_it_is_not_undone_once_completed(engine: Engine) -> None:
    job = HeldShown.start()
    engine.drain()
    assert state_of(job) == "Completed"
    with pytest.raises(WrongState, match="cannot be undone once it is Completed"):
        compensate(job)


def test_a_job_that_is_being_undone_says_so_to_whoever_asks_again(engine: Engine) -> None:
    job = TreeShown.start()
    engine.drain()
    compensate(job)
    with pytest.raises(WrongState, match="Compensating") as refused:
        compensate(job)
    assert refused.value.allowed == ["pause"]
    engine.drain()
    with pytest.raises(WrongState, match="Compensated"):
        compensate(job)
    assert len(undos(engine)) == 4


def test_a_failed_job_is_undone_after_the_fact(engine: Engine) -> None:
    job = TreeShown.start()
    handed = engine.settle(engine.claim(named(job, "a"))).handed_over
    engine.rings.clear()
    verbs.cancel(job.pk, undo=False, actor="operator:x", reason="we keep it")
    engine.settle(handed)
    assert state_of(job) == "Failed"
    assert set(job_verbs(Job.objects.get(pk=job.pk))) == {"retries", "compensation"}
    compensate(job)
    engine.drain()
    assert undos(engine) == ["b", "a"]
    assert state_of(job) == "Compensated"
    assert states(job)["c"] == "Skipped"
    check_books(job)


def test_where_nothing_was_done_there_is_nothing_to_undo(engine: Engine) -> None:
    job = TreeShown.start()
    verbs.cancel(job.pk, undo=False, actor="operator:x", reason="stop")
    assert "compensation" not in job_verbs(Job.objects.get(pk=job.pk))
    with pytest.raises(WrongState, match="nothing to undo"):
        compensate(job)


def test_what_a_person_held_is_not_theirs_any_more_once_the_job_is_undone(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    job = HeldShown.start()
    engine.drain()
    assert Job.objects.needs_person().filter(pk=job.pk).exists()
    compensate(job)
    engine.drain()
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().exists()
    check_books(job)


# --- the point of no return --------------------------------------------------------------------------------------------


def test_behind_the_pivot_nothing_is_undone(engine: Engine) -> None:
    job = PivotalShown.start()
    engine.drain()
    preview = undo.preview(job.pk)
    assert preview.pivot == "b"
    assert job_verbs(Job.objects.get(pk=job.pk)) == []
    with pytest.raises(WrongState, match="point of no return"):
        compensate(job, preview.digest)
    with pytest.raises(WrongState, match="point of no return"):
        compensate(job, down_to="a")
    assert state_of(job) == "Completed"


def test_what_stands_behind_the_pivot_can_be_undone_by_itself(engine: Engine) -> None:
    job = PivotalShown.start()
    engine.drain()
    assert undo.preview(job.pk, down_to="c").pivot is None
    compensate(job, down_to="c")
    engine.drain()
    assert undos(engine) == ["c"]
    assert state_of(job) == "Failed"
    check_books(job)


def test_a_pivot_that_may_be_done_protects_as_well(engine: Engine) -> None:
    engine.says("shop.b", InDoubt("lost"))
    job = PivotalShown.start()
    engine.drain()
    assert state_of(job) == "Running"
    assert named(job, "b").remedy == "escalate"
    assert job_verbs(Job.objects.get(pk=job.pk)) == ["cancellation", "pause"]
    with pytest.raises(WrongState, match="point of no return"):
        verbs.cancel(job.pk, undo=True, actor="operator:x", reason="no")
    verbs.verdict(job.pk, "b", done=False, actor="operator:x", reason="they have no record of it")
    engine.says("shop.b", {})
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_a_pivot_that_ends_after_the_cancel_keeps_the_job_from_being_undone(engine: Engine) -> None:
    job = PivotalShown.start()
    claimed = engine.settle(engine.claim(named(job, "a"))).handed_over
    engine.rings.clear()
    verbs.cancel(job.pk, undo=True, actor="client:x", reason="no more")
    engine.settle(claimed)
    engine.drain()
    assert undos(engine) == []
    failed = Job.objects.get(pk=job.pk)
    assert failed.state == "Failed"
    assert "b is done, the point of no return" in failed.reason_detail
    assert job_verbs(failed) == ["retries"]
    verbs.retry_job(job.pk, actor="operator:x", reason="forward, then")
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


# --- a failed undo, asked for again ------------------------------------------------------------------------------------


def test_a_failed_undo_is_shown_again_and_tried_again(engine: Engine) -> None:
    engine.says("shop.undo_c", Permanent("desk closed"), {})
    job = TreeShown.start()
    engine.drain()
    compensate(job)
    engine.drain()
    assert state_of(job) == "Failed"
    assert shown(job) == ["c"]
    compensate(job)
    engine.drain()
    assert undos(engine).count("c") == 2
    assert state_of(job) == "Compensated"
    check_books(job)


def test_of_a_fan_out_only_the_items_whose_undo_failed_are_shown_and_tried_again(engine: Engine) -> None:
    engine.says("shop.undo_a", {}, Permanent("desk closed"), {})
    job = SpreadShown.start({"list": [1, 2, 3]})
    engine.pass_time(1)
    compensate(job)
    engine.drain()
    assert state_of(job) == "Failed"
    failed = Step.objects.get(job=job, name="a.undo", parent__isnull=False, state="Failed")
    assert shown(job) == [f"a:{failed.index}"]
    compensate(job)
    engine.drain()
    assert undos(engine).count("a") == 4
    assert state_of(job) == "Compensated"
    assert not Job.objects.needs_person().exists()
    check_books(job)


def test_failed_undos_tried_again_together_keep_their_order(engine: Engine) -> None:
    engine.says("shop.undo_e", Permanent("closed"), {})
    engine.says("shop.undo_b", Permanent("closed"), {})
    engine.says("shop.undo_a", Permanent("closed"), {})
    job = TreeShown.start()
    engine.drain()
    compensate(job)
    engine.drain()
    assert state_of(job) == "Failed"
    assert shown(job) == ["e", "b", "a"]
    verbs.retry_job(job.pk, actor="operator:x", reason="all desks are open")
    assert {name: named(job, name).waiting_for for name in ("e.undo", "b.undo", "a.undo")} == {
        "e.undo": 0,
        "b.undo": 1,
        "a.undo": 2,
    }
    engine.drain()
    assert undos(engine)[-3:] == ["e", "b", "a"]
    assert state_of(job) == "Compensated"
    check_books(job)


def test_of_failed_undos_tried_again_one_that_fails_again_stops_no_other(engine: Engine) -> None:
    engine.says("shop.undo_e", Permanent("closed"))
    engine.says("shop.undo_a", Permanent("closed"), {})
    job = TreeShown.start()
    engine.drain()
    compensate(job)
    engine.drain()
    verbs.retry_job(job.pk, actor="operator:x", reason="try")
    engine.drain()
    assert states(job)["a.undo"] == "Completed"
    assert states(job)["e.undo"] == "Failed"
    assert state_of(job) == "Failed"
    check_books(job)
