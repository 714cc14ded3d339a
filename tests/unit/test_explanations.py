"""What rows mean, in words. No database: rows are made up as a job's timeline would give them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

import pytest

from workflows import explanations
from workflows.models import Attempt, Job, Step

NOW = datetime(2027, 3, 4, 12, 0, tzinfo=UTC)
SOON = NOW + timedelta(seconds=90)
PLAN = {
    "steps": [
        {"name": "flight", "compensation": "flight.cancel"},
        {"name": "hotel", "compensation": "hotel.cancel"},
        {"name": "mail", "compensation": None},
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
