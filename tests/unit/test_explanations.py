"""What rows mean, in words. No database: rows are made up as a job's timeline would give them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from workflows import explanations
from workflows.explanations import Circumstances
from workflows.explanations.circumstances import Many
from workflows.models import Agent, Attempt, Job, Step

NOW = datetime(2027, 3, 4, 12, 0, tzinfo=UTC)
SOON = NOW + timedelta(seconds=90)
PLAN = {
    "steps": [
        {"name": "flight", "compensation": "flight.cancel"},
        {"name": "hotel", "compensation": "hotel.cancel"},
        {"name": "mail", "compensation": None},
        {"name": "note", "compensation": None, "undo_unnecessary": True},
        {"name": "inn", "compensation": "inn.cancel", "instead_of": "hotel"},
        {"name": "approval", "compensation": None, "kind": "signal", "approval": True},
        {"name": "consent", "compensation": None, "kind": "signal", "approvers": ["ada", "group:night"]},
        {"name": "deploy", "compensation": "deploy.undo", "at_once": 2},
        {"name": "trip", "compensation": None, "kind": "child"},
        {"name": "launch", "compensation": None, "pivot": True},
    ]
}


def a_job(state: str = "Running", **fields: Any) -> Job:
    return Job(
        workflow="Trip", state=state, plan=PLAN, **{"paused_at": None, "stopping_at": None, "partial": False, **fields}
    )


def an_attempt(**fields: Any) -> Attempt:
    return Attempt(
        number=1, in_doubt=fields.pop("in_doubt", False), resolved_by=fields.pop("resolved_by", ""), **fields
    )


def a_step(name: str = "hotel", *, seq: int = 0, attempts: list[Attempt] | None = None, **fields: Any) -> Step:
    defaults: dict[str, Any] = {
        "pk": crc32(name.encode()),
        "operation": f"{name}.reserve",
        "queue": "agents",
        "role": "forward",
        "state": "NotStarted",
        "waiting_for": 0,
        "held": False,
        "parked": False,
        "run_after": NOW,
        "releases": [],
        "attempt": 0,
        "probe_only": False,
        "worker": "",
        "error_kind": "",
        "error_code": "",
        "error_message": "",
        "remedy": "",
        "idempotency_key": f"job:{name}",
        "kind": "call",
        "gated": False,
        "limited": False,
        "limit_key": "",
        "skip_reason": "",
        "items_made": 0,
        "items_open": 0,
        "items_failed": 0,
        "items_admitted": 0,
    }
    step = Step(name=name, seq=seq, **defaults | fields)
    step._prefetched_objects_cache = {"attempts": attempts or []}
    return step


def an_undo(original: Step, *, role: str = "undo", **fields: Any) -> Step:
    defaults = {"role": role, "undoes": original, "operation": f"{original.name}.cancel"}
    return a_step(f"{original.name}.{role}", seq=original.seq + 5, **defaults | fields)


FAILED = {"state": "Failed", "error_kind": "permanent", "error_message": "The desk is closed."}
GIVEN_UP = {**FAILED, "remedy": "escalate"}
DOUBT = [an_attempt(in_doubt=True)]


# --- why it waits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (a_step(), 'hotel waits for a worker of queue "agents".'),
        (
            a_step(state="Running", worker="agents@one", attempt=2, complete_by=SOON),
            "hotel runs on agents@one, attempt 2, under a lease until 12:01:30 UTC.",
        ),
        (
            a_step(attempt=1, error_kind="transient", error_message="No way through.", run_after=SOON),
            "Attempt 2 of hotel starts at 12:01:30 UTC, because attempt 1 failed (No way through).",
        ),
        (
            a_step(attempt=5, error_kind="in_doubt", error_code="no_answer", run_after=SOON, probe_only=True),
            "Attempt 6 of hotel only asks what became of the last one, at 12:01:30 UTC, because attempt 5 failed (no_answer).",
        ),
        (a_step(**FAILED), "hotel failed (The desk is closed) and waits for the supervisor's remedy."),
        (a_step(run_after=NOW + timedelta(days=1)), "hotel starts at 2027-03-05 12:00:00 UTC, as was asked for."),
        (a_step(held=True), "hotel is held back; the supervisor will let it go."),
    ],
)
def test_a_running_job_waits_for_what_its_step_waits_for(step: Step, sentence: str) -> None:
    assert explanations.waiting_because(a_job(), [step], NOW) == sentence


def a_wait(name: str, kind: str, **fields: Any) -> Step:
    """A step that runs without a lease."""
    return a_step(name, state="Running", kind=kind, operation="", attempt=1, **fields)


def a_fan(name: str = "deploy", **fields: Any) -> Step:
    defaults = {"state": "Running", "attempt": 1, "items_total": 10, "items_made": 10, "items_open": 6}
    return a_step(name, **defaults | fields)


CHILD = Job(pk=UUID(int=7), workflow="TripBooking", state="Running")


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (a_wait("pause", "timer", deadline=SOON), "pause waits for its time: it is due at 12:01:30 UTC."),
        (a_wait("word", "signal"), 'word waits for the signal "word".'),
        (
            a_wait("approval", "signal", deadline=SOON),
            "approval waits for a decision, until 12:01:30 UTC at the latest.",
        ),
        (a_wait("consent", "signal"), "consent waits for the decision of ada or group:night."),
        (a_wait("trip", "child"), f"trip waits for job {CHILD.pk} (TripBooking, Running) to end."),
        (a_wait("other", "child"), "other waits for the job that it started."),
        (
            a_step(state="Running", attempt=2, deadline=SOON),
            "hotel waits for a callback, attempt 2, until 12:01:30 UTC at the latest.",
        ),
        (a_fan(), "deploy: 4 of 10 items are done."),
        (a_fan(items_failed=1, items_made=5), "deploy: 3 of 10 items are done, 1 failed; 5 are written so far."),
        (a_step(gated=True, held=True), "hotel waits for the scheduler, which looks at it next."),
        (a_step(gated=True, held=True, run_after=SOON), "hotel starts at 12:01:30 UTC, as was asked for."),
        (
            a_step(parked=True, held=True, run_after=SOON, agent="hotels"),
            "hotel is parked, because agent hotels is away; it goes on by itself once that answers.",
        ),
        (a_step(queue_by=SOON), 'hotel waits for a worker of queue "agents", until 12:01:30 UTC at the latest.'),
        (a_step(**GIVEN_UP), "hotel failed (The desk is closed) and waits for a person."),
        (
            a_step(attempt=1, run_after=SOON, attempts=[an_attempt(outcome="released")]),
            "hotel is called again at 12:01:30 UTC, as its agent asked for.",
        ),
        (
            a_step(limited=True, agent="busy"),
            "hotel waits for room: agent busy takes at most 2 calls at the same time.",
        ),
        (
            a_step(limited=True, limit_key="3:Lisbon"),
            "hotel waits for room: at most 3 steps with the limit key 'Lisbon' run at the same time.",
        ),
        (a_step(limited=True, limit_key="4:Lisbon"), 'hotel waits for a worker of queue "agents".'),
        (
            a_step(limited=True, agent="slow", run_after=SOON),
            "hotel starts at 12:01:30 UTC, because agent slow takes only so many calls in a time.",
        ),
    ],
)
def test_each_way_of_waiting_has_its_own_words(step: Step, sentence: str) -> None:
    known = Circumstances(
        children={a_step("trip").pk: CHILD},
        agents={"busy": Agent(name="busy", at_once=2), "slow": Agent(name="slow", rate_next=SOON)},
        running={"busy": 2, "3:Lisbon": 3, "4:Lisbon": 3},
    )
    assert explanations.waiting_because(a_job(), [step], NOW, known) == sentence


def test_an_alternative_says_when_it_is_done_at_all() -> None:
    steps = [a_step(seq=0, releases=[1]), a_step("inn", seq=1, waiting_for=1)]
    sentence = explanations.step_waiting_because(a_job(), steps[1], steps, NOW)
    assert sentence == "inn waits for hotel, and is done only if hotel fails."


def test_an_item_behind_those_that_may_run_waits_for_its_turn() -> None:
    fan = a_fan(items_admitted=2)
    first, last = (a_step("deploy", seq=n + 1, index=n, parent_id=fan.pk, pk=n, held=n >= 2) for n in (1, 2))
    assert explanations.step_waiting_because(a_job(), first, [fan], NOW) == (
        'deploy:1 waits for a worker of queue "agents".'
    )
    assert explanations.step_waiting_because(a_job(), last, [fan], NOW) == (
        "deploy:2 waits for its turn: at most 2 items of deploy are done at the same time."
    )


def test_what_moves_by_itself_is_told_before_what_has_to_come_from_outside() -> None:
    steps = [
        a_wait("word", "signal", seq=0),
        a_step("stuck", seq=1, **GIVEN_UP),
        a_step("late", seq=2, run_after=SOON),
        a_wait("pause", "timer", seq=3, deadline=SOON),
        a_fan(seq=4),
    ]
    met = []
    while steps:
        sentence = explanations.waiting_because(a_job(), steps, NOW)
        assert sentence
        first = next(step for step in steps if step.name == sentence.split()[0].rstrip(":"))
        met.append(first.name)
        steps.remove(first)
    assert met == ["deploy", "late", "pause", "word", "stuck"]


def test_the_step_that_is_furthest_on_decides_what_a_job_waits_for() -> None:
    steps = [
        a_step("car", seq=2, waiting_for=1),
        a_step("late", seq=1, run_after=SOON),
        a_step("ready", seq=3),
        a_step("stuck", seq=4, **FAILED),
        a_step("runs", seq=5, state="Running", worker="w", attempt=1, complete_by=SOON),
    ]
    met = []
    while steps:
        sentence = explanations.waiting_because(a_job(), steps, NOW)
        assert sentence
        first = next(step for step in steps if step.name in sentence.split()[0:5])
        met.append(first.name)
        steps.remove(first)
    assert met == ["runs", "stuck", "ready", "late", "car"]


def test_a_step_names_the_steps_that_it_waits_for() -> None:
    flight, hotel = a_step("flight", seq=0, releases=[2]), a_step("hotel", seq=1, releases=[2])
    done = a_step("mail", seq=3, releases=[2], released_at=NOW)
    car = a_step("car", seq=2, waiting_for=2)
    steps = [flight, hotel, car, done]
    assert explanations.step_waiting_because(a_job(), car, steps, NOW) == "car waits for flight and hotel."


def test_a_paused_job_says_so_and_what_may_still_end() -> None:
    job = a_job(paused_at=NOW)
    still = a_step(state="Running", worker="w", attempt=1, complete_by=SOON)
    assert explanations.waiting_because(job, [a_step()], NOW) == (
        "The job is paused since 12:00:00 UTC and starts nothing until it is resumed."
    )
    assert "hotel may still end" in str(explanations.waiting_because(job, [still], NOW))
    assert (
        explanations.step_waiting_because(job, a_step(), [], NOW) == "hotel does not start, because the job is paused."
    )


def test_a_stopping_job_waits_for_what_still_runs() -> None:
    running = a_step(state="Running", worker="w", attempt=1, complete_by=SOON)
    job = a_job(stopping_at=NOW, stopping_undo=True)
    assert explanations.waiting_because(job, [running, a_step("car")], NOW) == (
        "The job is stopping and will then be undone; it waits for hotel, still running."
    )
    ending = a_job(stopping_at=NOW, stopping_undo=False)
    assert explanations.waiting_because(ending, [a_step("car")], NOW) == "The job is stopping and will then end."


def test_a_job_that_is_being_undone_waits_for_its_undos_alone() -> None:
    hotel = a_step(**FAILED, attempts=DOUBT)
    hotel.remedy = "compensate"
    undo = an_undo(hotel, run_after=SOON, attempt=1, error_kind="transient", error_message="Busy.")
    sentence = explanations.waiting_because(a_job("Compensating"), [hotel, a_step("car"), undo], NOW)
    assert sentence == "Attempt 2 of hotel.undo starts at 12:01:30 UTC, because attempt 1 failed (Busy)."


def test_a_second_asking_says_why_it_is_so_late() -> None:
    recheck = an_undo(a_step(), role="recheck", run_after=SOON)
    for state in ("Compensating", "Compensated", "Failed"):
        sentence = explanations.step_waiting_because(a_job(state), recheck, [recheck], NOW)
        assert sentence == (
            "hotel.recheck asks once more at 12:01:30 UTC, because until then a call that was in doubt may still land."
        )


@pytest.mark.parametrize("state", ["Completed", "Compensated", "Failed"])
def test_an_ended_job_waits_for_nothing(state: str) -> None:
    assert explanations.waiting_because(a_job(state), [a_step()], NOW) is None
    assert explanations.step_waiting_because(a_job(state), a_step(), [], NOW) is None


def test_a_job_that_nobody_moves_is_left_to_the_supervisor() -> None:
    assert "supervisor" in str(explanations.waiting_because(a_job(), [a_step(state="Completed")], NOW))


# --- progress, doubt, references --------------------------------------------------------------------------------------


def test_progress_counts_forward_steps_and_tells_how_far_an_undo_is() -> None:
    before_undo = "Undo began before this step."
    flight, hotel = a_step("flight", state="Completed"), a_step(state="Skipped", skip_reason=before_undo)
    assert explanations.progress([flight, hotel]) == {"done": 1, "total": 2, "message": "1 of 2 done"}
    undo = an_undo(flight, state="Completed")
    assert explanations.progress([flight, hotel, undo]) == {"done": 1, "total": 2, "message": "1 of 1 undone"}


def test_progress_counts_each_item_and_leaves_out_what_was_not_needed() -> None:
    steps = [a_step("flight", state="Completed"), a_fan(items_failed=1), a_step("inn", state="Skipped")]
    assert explanations.progress(steps) == {"done": 4, "total": 11, "message": "4 of 11 done"}
    counts = {"NotStarted": 0, "Running": 3, "Completed": 5, "Failed": 1, "Skipped": 1}
    known = Circumstances(counts={steps[1].pk: counts})
    assert explanations.progress(steps, known)["done"] == 6


def test_doubt_is_open_until_it_is_resolved() -> None:
    assert explanations.in_doubt(a_step(attempts=[an_attempt(), an_attempt(in_doubt=True)]))
    assert not explanations.in_doubt(a_step(attempts=[an_attempt(in_doubt=True, resolved_by="probe")]))
    assert not explanations.in_doubt(a_step())


@pytest.mark.parametrize(
    ("result", "reference"),
    [
        ({"reference": "H-1", "confirmation": "C-1"}, "H-1"),
        ({"confirmation": "C-1", "id": 7}, "C-1"),
        ({"id": 7}, "7"),
        ({"reference": None, "id": ""}, None),
        ({"id": True}, None),
        ({"reference": {"a": 1}}, None),
        ("H-1", None),
        (None, None),
    ],
)
def test_a_reference_is_what_the_other_side_calls_it(result: Any, reference: str | None) -> None:
    assert explanations.reference_of(result) == reference


def test_a_late_word_may_know_the_reference() -> None:
    assert explanations.known_reference(a_step(attempts=[an_attempt(late_result={"reference": "H-9"})])) == "H-9"


# --- what needs a person ----------------------------------------------------------------------------------------------


def test_a_failed_undo_names_what_is_still_live() -> None:
    hotel = a_step(state="Completed", result={"reference": "H-123"})
    [sentence] = explanations.needs_person(a_job("Failed"), [hotel, an_undo(hotel, **GIVEN_UP)])
    assert sentence == (
        "hotel: H-123, made by hotel.reserve, may still be live; its undo hotel.cancel failed: The desk is closed."
    )


def test_a_failed_undo_without_a_reference_names_the_key() -> None:
    hotel = a_step(state="Completed", result={})
    [sentence] = explanations.needs_person(a_job("Compensating"), [hotel, an_undo(hotel, **GIVEN_UP)])
    assert "what hotel.reserve did under the key job:hotel may still be live" in sentence


def test_a_failed_undo_of_a_doubt_is_told_once_and_says_that_nobody_knows() -> None:
    hotel = a_step(**FAILED, attempts=DOUBT)
    [sentence] = explanations.needs_person(a_job("Failed"), [hotel, an_undo(hotel, **GIVEN_UP)])
    assert "nobody knows whether hotel.reserve took effect" in sentence
    assert "under the key job:hotel" in sentence


def test_a_doubt_that_a_job_ended_with_stands_in_front_of_a_person() -> None:
    mail = a_step("mail", **FAILED, attempts=DOUBT)
    assert explanations.needs_person(a_job("Running"), [mail]) == []
    for state in ("Failed", "Completed"):
        [sentence] = explanations.needs_person(a_job(state), [mail])
        assert sentence.startswith("mail: nobody knows whether mail.reserve took effect")


def test_an_undo_that_failed_and_was_answered_later_says_both() -> None:
    hotel = a_step(state="Completed", result={"reference": "H-1"})
    steps = [hotel, an_undo(hotel, **GIVEN_UP), an_undo(hotel, role="recheck", state="Completed")]
    [sentence] = explanations.needs_person(a_job("Failed"), steps)
    assert "asked once more later, it was answered" in sentence


def test_a_second_asking_that_failed_is_told_too() -> None:
    hotel = a_step(**FAILED, attempts=[an_attempt(in_doubt=True, resolved_by="undo", late_result={"reference": "H-7"})])
    steps = [hotel, an_undo(hotel, state="Completed"), an_undo(hotel, role="recheck", **GIVEN_UP)]
    [sentence] = explanations.needs_person(a_job("Compensated"), steps)
    assert sentence.startswith(
        "hotel: H-7, made by hotel.reserve, may still be live; asking hotel.cancel once more failed"
    )


def test_what_the_machine_can_still_decide_needs_nobody() -> None:
    assert explanations.needs_person(a_job(), [a_step(**FAILED), a_step("car")]) == []


def test_a_step_that_is_held_says_what_failed_and_whether_there_is_a_way_back() -> None:
    held = a_step("mail", **GIVEN_UP)
    assert explanations.needs_person(a_job(), [held]) == ["mail: mail.reserve was given up: The desk is closed."]
    launched = a_step("launch", state="Completed")
    [sentence] = explanations.needs_person(a_job(), [launched, held])
    assert sentence.endswith("There is no way back behind launch: mend it and try again.")
    doubtful = a_step("mail", **GIVEN_UP, attempts=DOUBT)
    assert "and nobody knows whether it took effect" in explanations.needs_person(a_job(), [doubtful])[0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("signal", "what it waited for did not come, or was a refusal"), ("child", "its job was given up")],
)
def test_a_held_step_that_calls_nobody_is_told_by_what_it_waited_for(kind: str, said: str) -> None:
    [sentence] = explanations.needs_person(a_job(), [a_step("trip", kind=kind, operation="", **GIVEN_UP)])
    assert sentence == f"trip: {said}: The desk is closed."


def test_of_many_items_the_first_are_named_and_the_others_counted() -> None:
    item = a_step("deploy", index=3, pk=3, state="Completed", result={"reference": "D-3"})
    undo = an_undo(item, index=3, **GIVEN_UP)
    fan, fan_undo = a_fan(state="Completed"), an_undo(a_fan(), items_total=9, **GIVEN_UP)
    job = a_job("Failed", pk=UUID(int=1))
    known = Circumstances(in_need={job.pk: Many(first=[undo], total=9)})
    assert explanations.needs_person(job, [fan, fan_undo], known) == [
        "deploy: The desk is closed.",
        "deploy:3: D-3, made by deploy.reserve, may still be live; its undo deploy.cancel failed: The desk is closed.",
        "And 8 more items need a person.",
    ]


def test_since_when_is_the_oldest_end_of_what_stands_there() -> None:
    steps = [a_step("mail", finished_at=SOON, **GIVEN_UP), a_step("flight", finished_at=NOW, **GIVEN_UP)]
    assert explanations.needs_person_since(a_job(), steps) == NOW
    assert explanations.needs_person_since(a_job("Failed", finished_at=SOON), [a_step()]) == SOON


# --- the receipt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["Running", "Compensating"])
def test_there_is_no_receipt_before_the_end(state: str) -> None:
    assert explanations.receipt(a_job(state), [a_step()]) is None


def test_the_receipt_of_a_completed_job_warns_of_a_second_booking() -> None:
    assert explanations.receipt(a_job("Completed"), [a_step(state="Completed")]) == {
        "outcome": "Completed",
        "undone": [],
        "not_undone": [],
        "pending": [],
        "more": {"undone": 0, "not_undone": 0, "pending": 0},
        "safe_to_retry_with_new_key": False,
    }


def test_the_receipt_of_an_undone_job_lists_what_was_undone_and_what_will_be_asked_again() -> None:
    flight = a_step("flight", state="Completed", result={"reference": "F-1"})
    resolved = [an_attempt(in_doubt=True, resolved_by="undo")]
    hotel = a_step(**FAILED, attempts=resolved)
    steps = [
        flight,
        hotel,
        a_step("car", state="Skipped"),
        an_undo(flight, state="Completed"),
        an_undo(hotel, state="Completed", result={"cancelled": True, "reference": "H-5"}),
        an_undo(hotel, role="recheck", run_after=SOON),
    ]
    receipt = explanations.receipt(a_job("Compensated"), steps)
    assert receipt is not None
    assert receipt["undone"] == [{"step": "flight", "reference": "F-1"}, {"step": "hotel", "reference": "H-5"}]
    assert (receipt["not_undone"], receipt["safe_to_retry_with_new_key"]) == ([], True)
    [pending] = receipt["pending"]
    assert (pending["step"], "2027-03-04 12:01:30 UTC" in pending["why"]) == ("hotel", True)


def test_the_receipt_of_a_failed_job_says_why_each_thing_is_still_there() -> None:
    flight = a_step("flight", state="Completed", result={"reference": "F-1"})
    hotel = a_step(state="Completed", result={"reference": "H-1"})
    mail = a_step("mail", state="Completed", result={})
    receipt = explanations.receipt(a_job("Failed"), [flight, hotel, mail, an_undo(hotel, **GIVEN_UP)])
    assert receipt is not None
    assert receipt["not_undone"] == [
        {"step": "flight", "reference": "F-1", "why": "The job ended without undo."},
        {"step": "hotel", "reference": "H-1", "why": "hotel.cancel failed: The desk is closed."},
        {"step": "mail", "reference": None, "why": "mail.reserve declares no compensation."},
    ]
    assert receipt["undone"] == []
    assert receipt["safe_to_retry_with_new_key"] is False


def test_a_job_that_failed_before_anything_was_done_may_be_tried_under_a_new_key() -> None:
    receipt = explanations.receipt(a_job("Failed"), [a_step(**FAILED)])
    assert receipt is not None
    assert receipt["safe_to_retry_with_new_key"] is True


def test_a_step_that_leaves_nothing_to_undo_does_not_forbid_a_new_key() -> None:
    receipt = explanations.receipt(a_job("Compensated"), [a_step("note", state="Completed", result={})])
    assert receipt is not None
    assert receipt["not_undone"] == [
        {"step": "note", "reference": None, "why": "Its plan says that it leaves nothing to undo."}
    ]
    assert receipt["safe_to_retry_with_new_key"] is True


@pytest.mark.parametrize("kind", ["timer", "signal"])
def test_what_was_only_waited_for_is_no_effect(kind: str) -> None:
    receipt = explanations.receipt(a_job("Failed"), [a_step("approval", kind=kind, state="Completed")])
    assert receipt is not None
    assert receipt["not_undone"] == []


def test_a_receipt_names_the_first_items_and_counts_the_others() -> None:
    fan = a_fan(state="Failed")
    first, second = (a_step("deploy", index=n, pk=n, state="Completed", result={"id": n}) for n in (1, 2))
    for item, undos in ((first, [an_undo(first, state="Completed")]), (second, [an_undo(second, **GIVEN_UP)])):
        item._prefetched_objects_cache["undos"] = undos
    known = Circumstances(undone={fan.pk: Many(first=[first], total=5)}, left={fan.pk: Many(first=[second], total=1)})
    receipt = explanations.receipt(a_job("Failed"), [fan], known)
    assert receipt is not None
    assert receipt["undone"] == [{"step": "deploy:1", "reference": "1"}]
    assert receipt["not_undone"] == [
        {"step": "deploy:2", "reference": "2", "why": "deploy.cancel failed: The desk is closed."}
    ]
    assert receipt["more"] == {"undone": 4, "not_undone": 0, "pending": 0}


@pytest.mark.parametrize(("state", "undone"), [("Compensated", True), ("Failed", False), ("Running", False)])
def test_a_receipt_tells_how_a_child_came_out(state: str, undone: bool) -> None:
    step = a_step("trip", kind="child", operation="", **GIVEN_UP)
    child = Job(pk=UUID(int=9), workflow="TripBooking", state=state)
    receipt = explanations.receipt(a_job("Failed"), [step], Circumstances(children={step.pk: child}))
    assert receipt is not None
    [entry] = receipt["undone" if undone else "not_undone"]
    assert (entry["step"], entry["reference"]) == ("trip", str(child.pk))
    assert receipt["safe_to_retry_with_new_key"] is undone
