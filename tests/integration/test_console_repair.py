"""What a person knows and the machine does not: verdicts, results by hand, skips, signals, each with one effect."""

import pytest
from django.test import Client

from tests import console_data as data
from tests.integration.test_console_buttons import client, last_event, notice, press
from workflows import transitions
from workflows.models import Event, Job, Signal
from workflows.states import ErrorKind, JobState, SettledBy, StepState

__all__ = ["client"]

pytestmark = pytest.mark.django_db


def version(job: Job, name: str) -> int:
    return data.step(job, name).version


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_a_verdict_of_done_completes_the_step_with_its_result(client: Client) -> None:
    job = data.chain()
    data.lost(job, "one")
    answer = press(
        client, "step-verdict", job, "one", seen=version(job, "one"), verdict="done", reason="Seen.",
        result='{"reference": "R-1"}',
    )  # fmt: skip
    assert answer.status_code == 200
    one = data.step(job, "one")
    assert (one.state, one.result, one.settled_by) == (StepState.COMPLETED, {"reference": "R-1"}, SettledBy.PERSON)
    assert "it was done" in notice(answer.content.decode())


def test_a_verdict_of_not_done_resolves_the_doubt(client: Client) -> None:
    job = data.chain()
    data.lost(job, "one")
    press(client, "step-verdict", job, "one", seen=version(job, "one"), verdict="not_done", reason="Nothing there.")
    one = data.step(job, "one")
    assert one.state == StepState.FAILED
    assert [attempt.resolved_by for attempt in one.attempts.all()] == ["person"]


def test_a_verdict_without_evidence_changes_nothing(client: Client) -> None:
    job = data.chain()
    data.lost(job, "one")
    before = Event.objects.filter(job=job).count()
    answer = press(client, "step-verdict", job, "one", seen=version(job, "one"), verdict="done", reason=" ")
    assert answer.status_code == 422
    assert Event.objects.filter(job=job).count() == before


def test_a_verdict_that_is_neither_is_refused(client: Client) -> None:
    job = data.chain()
    data.lost(job, "one")
    answer = press(client, "step-verdict", job, "one", seen=version(job, "one"), verdict="maybe", reason="x")
    assert answer.status_code == 400


# --- results by hand, late words -----------------------------------------------------------------------------------


def test_a_result_by_hand_completes_the_step(client: Client) -> None:
    job = data.chain()
    data.fail(job, "one")
    press(client, "step-result", job, "one", seen=version(job, "one"), result='["a", 1]', reason="By phone.")
    one = data.step(job, "one")
    assert (one.state, one.result, one.settled_by) == (StepState.COMPLETED, ["a", 1], SettledBy.PERSON)
    settled = Event.objects.get(job=job, kind="step.settled")
    assert (settled.actor, settled.reason) == ("operator:ada", "By phone.")


@pytest.mark.parametrize(
    "result", ["{", "no quotes", "NaN", '"\\u0000"', '"\\ud800"', "[" * 5000 + "]" * 5000, "1" + "0" * 5000]
)
def test_a_result_that_cannot_be_stored_is_refused_in_words(client: Client, result: str) -> None:
    job = data.chain()
    data.fail(job, "one")
    answer = press(client, "step-result", job, "one", seen=version(job, "one"), result=result, reason="x")
    assert answer.status_code == 422
    assert "The result" in notice(answer.content.decode())
    assert data.step(job, "one").state == StepState.FAILED


def test_what_came_too_late_is_taken_up(client: Client) -> None:
    job = data.chain()
    claimed = data.run(job, "one")
    found = transitions.lock(job.pk)
    assert found
    transitions.expire(found, data.step(job, "one"))
    data.settle(claimed, {"reference": "LATE-1"})
    answer = press(client, "step-result", job, "one", seen=version(job, "one"), attempt="1", reason="It is there.")
    assert "late word of attempt 1" in notice(answer.content.decode())
    one = data.step(job, "one")
    assert (one.result, one.settled_by) == ({"reference": "LATE-1"}, SettledBy.LATE)


@pytest.mark.parametrize(("attempt", "status"), [("9", 404), ("x", 400)])
def test_a_late_word_that_is_not_there_cannot_be_taken_up(client: Client, attempt: str, status: int) -> None:
    job = data.chain()
    data.fail(job, "one")
    answer = press(client, "step-result", job, "one", seen=version(job, "one"), attempt=attempt, reason="x")
    assert answer.status_code == status
    assert data.step(job, "one").state == StepState.FAILED


# --- skip, new key -------------------------------------------------------------------------------------------------


def test_a_step_is_skipped_for_a_reason(client: Client) -> None:
    job = data.chain()
    assert press(client, "step-skip", job, "three", seen=version(job, "three"), reason="").status_code == 422
    press(client, "step-skip", job, "three", seen=version(job, "three"), reason="Not wanted.")
    three = data.step(job, "three")
    assert (three.state, three.skip_reason) == (StepState.SKIPPED, "Not wanted.")


def test_a_step_in_doubt_is_not_skipped(client: Client) -> None:
    job = data.chain()
    data.lost(job, "one")
    assert press(client, "step-skip", job, "one", seen=version(job, "one"), reason="x").status_code == 409
    assert data.step(job, "one").state == StepState.FAILED


def test_a_retry_under_a_new_key_gets_one(client: Client) -> None:
    job = data.chain()
    data.fail(job, "one", kind=ErrorKind.PERMANENT)
    old = data.step(job, "one").idempotency_key
    press(client, "step-retries", job, "one", seen=version(job, "one"), new_key="yes")
    one = data.step(job, "one")
    assert one.state == StepState.NOT_STARTED
    assert one.idempotency_key != old


# --- signals -------------------------------------------------------------------------------------------------------


def test_an_approval_is_given_in_the_persons_name(client: Client) -> None:
    job = data.showcase()
    seen = version(job, "approval")
    answer = press(client, "job-signal", job, "approval", seen=seen, decision="approve", reason="Go.")
    assert "Approved" in notice(answer.content.decode())
    approval = data.step(job, "approval")
    assert (approval.state, approval.result) == (StepState.COMPLETED, {"approved": True, "reason": "Go."})
    assert Signal.objects.get(job=job).actor == "operator:ada"


def test_a_refusal_needs_its_reason_and_fails_the_step(client: Client) -> None:
    job = data.showcase()
    seen = version(job, "approval")
    assert press(client, "job-signal", job, "approval", seen=seen, decision="refuse", reason="").status_code == 422
    press(client, "job-signal", job, "approval", seen=seen, decision="refuse", reason="Too early.")
    approval = data.step(job, "approval")
    assert approval.state == StepState.FAILED
    assert "Too early." in approval.error_message


def test_who_is_no_approver_is_refused(client: Client) -> None:
    job = data.showcase()
    steps = [step | {"approvers": ["grace"]} if step["name"] == "approval" else step for step in job.plan["steps"]]
    Job.objects.filter(pk=job.pk).update(plan=job.plan | {"steps": steps})
    answer = press(client, "job-signal", job, "approval", seen=version(job, "approval"), decision="approve")
    assert answer.status_code == 403
    assert not Signal.objects.filter(job=job).exists()


def test_an_old_page_does_not_answer_a_wait_that_it_never_showed(client: Client) -> None:
    job = data.showcase()
    answer = press(client, "job-signal", job, "approval", seen=version(job, "approval") - 1, decision="approve")
    assert answer.status_code == 412
    assert data.step(job, "approval").state == StepState.RUNNING


@pytest.mark.parametrize(("payload", "kept"), [("", {}), ('{"edition": 2}', {"edition": 2}), ("null", None), ("0", 0)])
def test_a_signal_carries_any_json(client: Client, payload: str, kept: object) -> None:
    job = data.showcase()
    answer = press(client, "job-signal", job, "news", seen=version(job, "news"), payload=payload)
    assert answer.status_code == 200
    news = data.step(job, "news")
    assert (news.state, news.result) == (StepState.COMPLETED, kept)


def test_a_signal_to_an_ended_job_is_answered_with_what_is_true(client: Client) -> None:
    job = data.showcase()
    Job.objects.filter(pk=job.pk).update(stopping_at=job.created_at, stopping_undo=True, reason="cancelled")
    answer = press(client, "job-signal", job, "news", seen=version(job, "news"))
    assert answer.status_code == 409
    assert "stopping" in notice(answer.content.decode())


def test_a_signal_that_nothing_waits_for_is_not_found(client: Client) -> None:
    job = data.showcase()
    assert press(client, "job-signal", job, "flight", seen=version(job, "flight")).status_code == 404


# --- undo, exactly as shown ----------------------------------------------------------------------------------------


def digest_of(page: str) -> str:
    return page.partition('name="digest" value="')[2].partition('"')[0]


def test_the_undo_is_shown_before_it_is_done(client: Client) -> None:
    job = data.chain("one", "two", "three")
    failed = data.chain("one", "two")
    data.lost(failed, "three")
    page = client.get(f"/jobs/{failed.pk}/undo").content.decode()
    assert page.index("<bdi>two</bdi>") < page.index("<bdi>one</bdi>")
    assert "shop.undo_two" in page
    assert "REF-two" in page
    assert "undeclared: the plan names no compensation for it" in page
    assert digest_of(page)
    completed = client.get(f"/jobs/{job.pk}/undo").content.decode()
    assert "cannot be undone once it is Completed: it names no compensate_within." in completed
    assert not digest_of(completed)


def test_what_was_shown_is_undone(client: Client) -> None:
    job = data.chain("one", "two")
    digest = digest_of(client.get(f"/jobs/{job.pk}/undo").content.decode())
    answer = client.post(f"/jobs/{job.pk}/compensation", {"digest": digest, "reason": "Enough."})
    assert answer.status_code == 302
    job.refresh_from_db()
    assert job.state == JobState.COMPENSATING
    assert data.undo_names(job) == ["two.undo", "one.undo"]
    stopping = Event.objects.get(job=job, kind="job.stopping")
    assert (stopping.actor, stopping.reason) == ("operator:ada", "Enough.")


def test_what_moved_on_is_not_undone_and_shown_anew(client: Client) -> None:
    """B2: a step settles between preview and confirm."""
    job = data.chain("one")
    digest = digest_of(client.get(f"/jobs/{job.pk}/undo").content.decode())
    data.complete(job, "two")
    answer = client.post(f"/jobs/{job.pk}/compensation", {"digest": digest}, headers={"HX-Request": "true"})
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "The job has moved on" in notice(page)
    assert "REF-two" in page
    assert digest_of(page) not in ("", digest)
    job.refresh_from_db()
    assert (job.state, job.stopping_at) == (JobState.RUNNING, None)


def test_a_part_is_undone_and_the_job_goes_forward_again(client: Client) -> None:
    job = data.chain("one", "two")
    page = client.get(f"/jobs/{job.pk}").content.decode()
    assert f"/jobs/{job.pk}/undo?down_to=two" in page
    digest = digest_of(client.get(f"/jobs/{job.pk}/undo?down_to=two").content.decode())
    client.post(f"/jobs/{job.pk}/compensation", {"digest": digest, "down_to": "two"}, headers={"HX-Request": "true"})
    data.complete(job, "two.undo")
    job.refresh_from_db()
    assert (job.state, data.undo_names(job)) == (JobState.FAILED, ["two.undo"])
    press(client, "job-retries", job, seen=job.seq)
    for name in ("two", "three"):
        data.complete(job, name)
    job.refresh_from_db()
    assert job.state == JobState.COMPLETED


def test_an_undo_of_a_step_that_is_not_there_is_not_found(client: Client) -> None:
    job = data.chain("one")
    assert client.get(f"/jobs/{job.pk}/undo?down_to=nine").status_code == 404
    assert client.post(f"/jobs/{job.pk}/compensation", {"digest": "x", "down_to": "nine"}).status_code == 404
    assert client.post(f"/jobs/{job.pk}/compensation", {}).status_code == 400
    assert last_event(job)[0] == "step.completed"


def test_behind_the_point_of_no_return_no_undo_is_offered(client: Client) -> None:
    job = data.showcase()
    press(client, "job-signal", job, "approval", seen=version(job, "approval"), decision="approve")
    data.complete(job, "charge")
    page = client.get(f"/jobs/{job.pk}/undo").content.decode()
    assert "is the point of no return" in page
    assert not digest_of(page)


def test_a_reader_sees_the_undo_and_cannot_press_it(client: Client) -> None:
    job = data.chain("one")
    reader = Client()
    reader.force_login(data.person("reader"), backend="django.contrib.auth.backends.ModelBackend")
    page = reader.get(f"/jobs/{job.pk}/undo").content.decode()
    assert "shop.undo_one" in page
    assert "digest" not in page
