"""A person's verb meets a worker, the supervisor or another person at one job: one of them wins, the other changes nothing.

Each race is staged: one holds the job's lock, the other is seen to wait, then the first commits.
"""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agents import InDoubt, Permanent
from supervisor import sweep as supervision
from tests.integration.engine import Beside, Engine, check_books, history, locked, state_of
from tests.integration.test_undo_preview import ONE_TRY, compensate
from workflows import Workflow, given, item, reports, step, transitions, undo, verbs
from workflows.exceptions import StaleVersion, WrongState
from workflows.models import Event, Job, Step
from workflows.transitions import Failure

WHO: dict[str, Any] = {"actor": "operator:x", "reason": "because"}

Verb = Callable[[Job, bool], Any]


class RacedHold(Workflow):
    on_failure = "hold"

    a = step("shop.a", compensation="shop.undo_a", retry=ONE_TRY)
    b = step("shop.b", compensation="shop.undo_b", after=[a], retry=ONE_TRY)


class RacedUndo(Workflow):
    a = step("shop.a", compensation="shop.undo_a")
    b = step("shop.b", after=[a], retry=ONE_TRY)


class RacedItems(Workflow):
    on_failure = "hold"

    a = step("shop.a", compensation="shop.undo_a", each=given["list"], input={"i": item}, retry=ONE_TRY)


def at(job: Job, address: str) -> Step:
    return verbs.step_at(Job.objects.get(pk=job.pk), address)


def _on_step(verb: Callable[..., Any], name: str = "a", **options: Any) -> Verb:
    """The verb on a step, as somebody asks who looked (`True`) or did not look."""

    def act(job: Job, looked: bool) -> Callable[[], Any]:
        seen = {"seen": at(job, name).version} if looked else {}
        return partial(verb, job.pk, name, **WHO, **options, **seen)

    return act


def _on_job(verb: Callable[..., Any], **options: Any) -> Verb:
    def act(job: Job, looked: bool) -> Callable[[], Any]:
        seen = {"seen": Job.objects.get(pk=job.pk).seq} if looked else {}
        return partial(verb, job.pk, **WHO, **options, **seen)

    return act


DONE = _on_step(verbs.verdict, done=True)
NOT_DONE = _on_step(verbs.verdict, done=False)
GIVE = _on_step(verbs.give_result, result="by hand")
SKIP = _on_step(verbs.skip)
AGAIN = _on_step(verbs.retry_step)
STOP_STEP = _on_step(verbs.cancel_step)
CANCEL = _on_job(verbs.cancel, undo=True)
RETRY = _on_job(verbs.retry_job)


VERBS = {
    "done": DONE,
    "not done": NOT_DONE,
    "a result": GIVE,
    "a skip": SKIP,
    "a retry": AGAIN,
    "a cancel": CANCEL,
}


def in_turn(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    """For each of these two verbs, of which the first gets the job's lock first."""
    params = [pytest.param(VERBS[one], VERBS[two], id=f"{one} and {two}") for one, two in pairs]
    return pytest.mark.parametrize(("first", "second"), params)


def _outcome(beside: Beside[Any]) -> str:
    try:
        beside.result()
    except (StaleVersion, WrongState) as error:
        return type(error).__name__
    return "done"


def _race(job: Job, first: Verb, second: Verb, *, looked: bool) -> tuple[str, str]:
    acts = first(job, looked), second(job, looked)
    with locked(job):
        one = Beside(acts[0]).until_blocked()
        two = Beside(acts[1]).until_blocked()
    return _outcome(one), _outcome(two)


# --- two people --------------------------------------------------------------------------------------------------------


@in_turn(
    ("done", "not done"),
    ("not done", "done"),
    ("done", "a cancel"),
    ("a cancel", "done"),
    ("a result", "done"),
    ("done", "a retry"),
    ("a retry", "a result"),
)
def test_of_two_people_at_a_step_in_doubt_who_both_looked_the_second_is_told(
    engine: Engine, first: Verb, second: Verb
) -> None:
    engine.says("shop.a", InDoubt("lost"), {})
    job = RacedHold.start()
    engine.drain()
    assert _race(job, first, second, looked=True) == ("done", "StaleVersion")
    check_books(job)
    engine.drain()
    assert state_of(job) == ("Compensated" if first is CANCEL else "Completed")
    check_books(job)


@in_turn(
    ("done", "not done"),
    ("not done", "done"),
    ("a result", "done"),
    ("done", "a result"),
)
def test_a_doubt_is_decided_once_also_where_nobody_looked(engine: Engine, first: Verb, second: Verb) -> None:
    engine.says("shop.a", InDoubt("lost"), {})
    job = RacedHold.start()
    engine.drain()
    assert _race(job, first, second, looked=False) == ("done", "WrongState")
    assert Event.objects.filter(job=job, kind="doubt.resolved").count() == 1
    check_books(job)


@in_turn(
    ("a result", "a result"),
    ("a skip", "a skip"),
    ("a result", "a skip"),
    ("a skip", "a result"),
    ("a retry", "a retry"),
    ("a retry", "a result"),
    ("a skip", "a retry"),
    ("a cancel", "a retry"),
    ("a cancel", "a result"),
    ("a cancel", "a skip"),
)
@pytest.mark.parametrize("looked", [True, False], ids=["looked", "did not look"])
def test_of_two_people_at_a_step_that_was_refused_one_wins(
    engine: Engine, first: Verb, second: Verb, looked: bool
) -> None:
    engine.says("shop.a", Permanent("no"))
    job = RacedHold.start()
    engine.drain()
    assert _race(job, first, second, looked=looked) == ("done", "StaleVersion" if looked else "WrongState")
    check_books(job)


@pytest.mark.parametrize("looked", [True, False], ids=["looked", "did not look"])
def test_a_failed_job_is_tried_again_once(engine: Engine, looked: bool) -> None:
    class RacedOneWay(Workflow):
        a = step("shop.a", retry=ONE_TRY)

    engine.says("shop.a", Permanent("no"), {})
    job = RacedOneWay.start()
    engine.drain()
    assert state_of(job) == "Failed"
    assert _race(job, RETRY, RETRY, looked=looked) == ("done", "StaleVersion" if looked else "WrongState")
    assert history(job).count("job.reopened") == 1
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_of_a_retry_and_an_undo_of_a_failed_job_the_first_wins(engine: Engine) -> None:
    class RacedBack(Workflow):
        a = step("shop.a", compensation="shop.undo_a")
        b = step("shop.b", after=[a])

    job = RacedBack.start()
    engine.settle(engine.claim(at(job, "a")), hand_over=False)
    verbs.cancel(job.pk, undo=False, **WHO)
    engine.rings.clear()
    digest = undo.preview(job.pk).digest
    with locked(job):
        undoing = Beside(lambda: compensate(job, digest)).until_blocked()
        retry = Beside(RETRY(job, False)).until_blocked()
    assert (_outcome(undoing), _outcome(retry)) == ("done", "WrongState")
    engine.drain()
    assert state_of(job) == "Compensated"
    check_books(job)


# --- a person and a worker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [GIVE, STOP_STEP], ids=["a result by hand", "a cancel of the step"])
@pytest.mark.parametrize("looked", [True, False], ids=["looked", "did not look"])
def test_a_verb_that_waited_for_a_settle_changes_nothing(engine: Engine, verb: Verb, looked: bool) -> None:
    """SAS-013, SAS-014: what is Completed stays so."""
    job = RacedHold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    act = verb(job, looked)
    with locked(job):
        person = Beside(act).until_blocked()
        engine.settle(claimed, '"by the worker"', hand_over=False)
    assert _outcome(person) == ("StaleVersion" if looked else "WrongState")
    assert (at(job, "a").state, at(job, "a").result, at(job, "a").settled_by) == ("Completed", "by the worker", "")
    assert not any("cancelled" in line or "settled" in line for line in history(job))
    check_books(job)


@pytest.mark.parametrize("verb", [GIVE, STOP_STEP], ids=["a result by hand", "a cancel of the step"])
def test_a_settle_that_waited_for_a_verb_is_kept_as_evidence(engine: Engine, verb: Verb) -> None:
    job = RacedHold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    with locked(job):
        worker = Beside(lambda: engine.settle(claimed, '"by the worker"')).until_blocked()
        verb(job, False)()
    assert worker.result() is None
    assert at(job, "a").result != "by the worker"
    assert at(job, "a").attempts.get().late_result == "by the worker"
    check_books(job)


def test_a_claim_that_waited_for_a_skip_finds_nothing_to_do(engine: Engine) -> None:
    job = RacedHold.start()
    first = at(job, "a")
    with locked(job):
        claim = Beside(lambda: transitions.claim(first.pk, token=uuid.uuid4(), worker="beside")).until_blocked()
        SKIP(job, False)()
    assert claim.result() is None
    assert (at(job, "a").state, at(job, "a").attempt) == ("Skipped", 0)
    check_books(job)


@pytest.mark.parametrize("looked", [True, False], ids=["looked", "did not look"])
def test_a_skip_that_waited_for_a_claim_changes_nothing(engine: Engine, looked: bool) -> None:
    job = RacedHold.start()
    act = SKIP(job, looked)
    with locked(job):
        skip = Beside(act).until_blocked()
        engine.claim(at(job, "a"))
    assert _outcome(skip) == ("StaleVersion" if looked else "WrongState")
    assert at(job, "a").state == "Running"
    check_books(job)


def test_a_heartbeat_does_not_make_what_a_person_saw_stale(engine: Engine) -> None:
    job = RacedHold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    act = GIVE(job, True)
    transitions.heartbeat({claimed.token: (claimed.step_id, '{"done": 1}')})
    assert act().state == "Completed"
    check_books(job)


def test_a_result_for_an_undo_that_waited_for_its_settle_changes_nothing(engine: Engine) -> None:
    engine.says("shop.b", Permanent("no"))
    job = RacedUndo.start()
    while not Step.objects.filter(job=job, role="undo").exists():
        engine.answer(*engine.rings.popleft())
    engine.rings.clear()
    claimed = engine.claim(at(job, "a.undo"))
    act = _on_step(verbs.give_result, "a.undo", result="by hand")(job, False)
    with locked(job):
        person = Beside(act).until_blocked()
        engine.settle(claimed, '"by the worker"')
    assert _outcome(person) == "WrongState"
    assert (state_of(job), at(job, "a.undo").result) == ("Compensated", "by the worker")
    check_books(job)


# --- a person and the supervisor ---------------------------------------------------------------------------------------


def test_the_supervisor_passes_over_a_job_that_a_person_has_in_hand(engine: Engine) -> None:
    job = RacedHold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    engine.ahead(11)
    with locked(job):
        assert Beside(lambda: supervision.expire(claimed.step_id)).result() is None
        GIVE(job, True)()
    assert supervision.expire(claimed.step_id) is False
    assert (at(job, "a").state, at(job, "a").settled_by) == ("Completed", "person")
    check_books(job)


@pytest.mark.parametrize("verb", [GIVE, STOP_STEP], ids=["a result by hand", "a cancel of the step"])
def test_a_person_who_looked_before_the_lease_ended_is_told(engine: Engine, verb: Verb) -> None:
    job = RacedHold.start()
    engine.rings.clear()
    claimed = engine.claim(at(job, "a"))
    engine.ahead(11)
    act = verb(job, True)
    with locked(job):
        person = Beside(act).until_blocked()
        assert supervision.expire(claimed.step_id)
    assert _outcome(person) == "StaleVersion"
    assert at(job, "a").state == "Failed"
    check_books(job)


def test_a_person_who_looked_before_the_remedy_was_chosen_is_told(engine: Engine) -> None:
    class RacedTwice(Workflow):
        a = step("shop.a")

    engine.says("shop.a", InDoubt("lost"), {})
    job = RacedTwice.start()
    engine.answer(*engine.rings.popleft())
    engine.rings.clear()
    assert (at(job, "a").state, at(job, "a").remedy) == ("Failed", "")
    act = NOT_DONE(job, True)
    with locked(job):
        person = Beside(act).until_blocked()
        assert supervision.decide(at(job, "a").pk)
    assert _outcome(person) == "StaleVersion"
    assert at(job, "a").state == "NotStarted"
    assert Step.objects.in_doubt().filter(job=job).exists()
    check_books(job)


# --- items -------------------------------------------------------------------------------------------------------------


def test_the_version_of_a_fan_out_moves_with_its_own_changes_and_not_with_those_of_its_items(engine: Engine) -> None:
    """Counters tell nothing that a button stands for; an undo, which they do concern, is guarded by its digest."""
    job = RacedItems.start({"list": [1, 2]})
    engine.rings.clear()
    fan, first, second = at(job, "a").version, at(job, "a:0").version, at(job, "a:1").version
    digest = undo.preview(job.pk).digest
    engine.settle(engine.claim(at(job, "a:0")))
    assert (at(job, "a").version, at(job, "a:1").version) == (fan, second)
    assert at(job, "a:0").version > first
    assert undo.preview(job.pk).digest != digest


@pytest.mark.parametrize("looked", [True, False], ids=["looked", "did not look"])
def test_of_two_people_at_one_item_one_wins_and_it_is_counted_once(engine: Engine, looked: bool) -> None:
    engine.says("shop.a", Permanent("no"), {})
    job = RacedItems.start({"list": [1, 2]})
    engine.pass_time(1)
    failed = Step.objects.get(job=job, parent__isnull=False, state="Failed").address
    give, again = _on_step(verbs.give_result, failed, result=1), _on_step(verbs.retry_step, failed)
    assert _race(job, give, again, looked=looked) == ("done", "StaleVersion" if looked else "WrongState")
    verbs.retry_step(job.pk, "a", **WHO)
    engine.drain()
    assert state_of(job) == "Completed"
    check_books(job)


def test_two_items_mended_at_once_are_both_counted(engine: Engine) -> None:
    job = RacedItems.start({"list": [1, 2]})
    claims = [engine.claim(at(job, f"a:{index}")) for index in (0, 1)]
    for claimed in claims:
        reports.fail(claimed, Failure(kind="permanent", code="no", message="no"), sent=None)
    engine.drain()
    assert (at(job, "a").state, at(job, "a").items_open) == ("Failed", 0)
    acts = [_on_step(verbs.give_result, f"a:{index}", result=1)(job, True) for index in (0, 1)]
    with locked(job):
        both = [Beside(act).until_blocked() for act in acts]
    assert [_outcome(beside) for beside in both] == ["done", "done"]
    verbs.retry_step(job.pk, "a", **WHO)
    assert state_of(job) == "Completed"
    check_books(job)
