"""Idempotency-Key: the effect of one, and the answer of the first."""

import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from tests.api import TRIP, Program, newcomer
from tests.integration.engine import Beside, Engine
from workflows import reports, transitions
from workflows.api import idempotency
from workflows.catalog.trip import TripBooking
from workflows.models import Event, IdempotencyRecord, Job, Step
from workflows.transitions import Failure


def other_trip() -> dict[str, Any]:
    return {**TRIP, "traveller": {"name": "Grace", "email": "grace@example.com"}}


def jobs_of(program: Program) -> int:
    return Job.objects.filter(client_id=program.user.pk).count()


@pytest.mark.django_db
class TestOneAfterTheOther:
    @pytest.mark.parametrize("path", ["bookings", "jobs"])
    def test_a_start_without_a_key_is_refused_with_a_link_to_the_policy(self, path: str) -> None:
        response = Program().post(path, TRIP)
        assert response.status_code == 400
        assert response.json()["type"] == "/problems/idempotency-key-required"
        assert "/api/v1/docs" in response["Link"]

    @pytest.mark.parametrize(
        "key",
        ["", " ", '""', "x" * 256, '"unclosed', '"a" b', 'a"b', '"a\\b"', "tab\there", "nul\x00", "ünicode", "\x7f"],
    )
    def test_a_key_that_cannot_be_kept_is_refused_sas_052(self, key: str) -> None:
        program = Program()
        response = program.post("bookings", TRIP, idempotency_key=key)
        assert response.status_code == 400
        assert response.json()["errors"][0]["header"] == "Idempotency-Key"
        assert jobs_of(program) == 0

    def test_quoted_and_bare_are_the_same_key(self) -> None:
        program = Program()
        bare = program.post("bookings", TRIP, idempotency_key="trip-1").json()
        assert program.post("bookings", TRIP, idempotency_key='"trip-1"').json() == bare
        assert jobs_of(program) == 1

    def test_a_quoted_key_may_hold_escapes_and_a_long_one_is_kept_whole(self) -> None:
        program = Program()
        job_id = program.post("bookings", TRIP, idempotency_key='"a\\"b\\\\c"').json()["id"]
        assert Job.objects.get(pk=job_id).key == 'a"b\\c'
        longest = program.post("bookings", TRIP, idempotency_key="k" * 255).json()["id"]
        assert Job.objects.get(pk=longest).key == "k" * 255

    def test_the_key_of_a_booking_is_the_key_of_its_job(self) -> None:
        program = Program()
        job_id = program.book("trip-9")
        assert program.get(f"jobs/{job_id}").json()["key"] == "trip-9"

    @pytest.mark.parametrize("path", ["bookings", "jobs"])
    def test_the_same_request_is_answered_as_the_first_time(self, path: str) -> None:
        program = Program()
        body = TRIP if path == "bookings" else {"workflow": "TripBooking", "input": TRIP}
        first = program.post(path, body, idempotency_key="k")
        Program("ops", "jobs:operate").post(f"jobs/{first.json()['id']}/pause", {})
        again = program.post(path, body, idempotency_key="k")
        assert (again.status_code, again.json()) == (202, first.json())
        for header in ("Location", "Retry-After", "ETag", "Content-Type"):
            assert again[header] == first[header]
        assert jobs_of(program) == 1

    def test_the_order_of_names_and_white_space_make_no_other_request_sas_084(self) -> None:
        program = Program()
        job_id = program.book("k")
        turned = {name: dict(reversed(part.items())) for name, part in reversed(TRIP.items())}
        body = json.dumps(turned, indent=3).encode()
        response = program.post("bookings", body, idempotency_key="k")
        assert (response.status_code, response.json().get("id")) == (202, job_id), response.json()

    def test_another_body_under_the_key_is_refused_sas_084(self) -> None:
        program = Program()
        program.book("k")
        response = program.post("bookings", other_trip(), idempotency_key="k")
        assert response.status_code == 422
        assert response.json()["type"] == "/problems/idempotency-key-reused"
        assert response.json()["safe_to_retry_with_new_key"] is True
        assert jobs_of(program) == 1

    def test_a_key_belongs_to_one_path_sas_084(self) -> None:
        program = Program("shop", "jobs:read", "jobs:write", "jobs:operate")
        job_id = program.book("k")
        other = program.book("k2")
        for path in (f"jobs/{job_id}/pause", f"jobs/{other}/pause", f"jobs/{job_id}/cancellation"):
            assert program.post(path, {}, idempotency_key="k").status_code == 202, path
        assert program.post("jobs", {"workflow": "TripBooking", "input": TRIP}, idempotency_key="k").status_code == 202
        assert jobs_of(program) == 3

    def test_a_job_key_with_another_input_is_refused_on_every_route_sas_084(self) -> None:
        program = Program()
        program.book("k")
        start = {"workflow": "TripBooking", "input": other_trip(), "key": "k"}
        response = program.post("jobs", start, idempotency_key="new")
        assert response.status_code == 422
        assert response.json()["type"] == "/problems/key-conflict"
        same = program.post("jobs", {**start, "input": TRIP}, idempotency_key="new")
        assert same.status_code == 202
        assert jobs_of(program) == 1

    def test_two_clients_may_use_the_same_key_and_never_meet_sas_085(self) -> None:
        a, b = Program("a"), Program("b")
        first = a.book("k")
        same, other = b.book("k"), b.post("bookings", other_trip(), idempotency_key="k2")
        assert len({first, same, other.json()["id"]}) == 3
        assert a.post("bookings", other_trip(), idempotency_key="k2").json()["id"] != other.json()["id"]
        assert first not in str(b.get("bookings").json())

    def test_what_was_refused_before_anything_was_done_is_not_kept(self) -> None:
        program = Program("shop", "jobs:read", "jobs:write", "jobs:operate")
        assert program.post("bookings", b"{", idempotency_key="k").status_code == 400
        assert program.post("bookings", {}, idempotency_key="k").status_code == 422
        assert program.post("bookings", b"x" * 1_200_000, idempotency_key="k").status_code == 413
        assert program.post("bookings", b"<a/>", idempotency_key="k", Content_Type="text/xml").status_code == 415
        assert Program("shop", "jobs:read").post("bookings", TRIP, idempotency_key="k").status_code == 403
        job_id = program.book("k")
        stale = program.post(f"jobs/{job_id}/pause", {}, idempotency_key="p", If_Match='"99"')
        assert stale.status_code == 412
        assert program.post(f"jobs/{job_id}/pause", {}, idempotency_key="p").status_code == 202

    def test_a_verb_under_a_key_is_carried_out_once_although_its_if_match_has_become_stale(self) -> None:
        operator = Program("ops", "jobs:operate")
        job_id = Program().book()
        seen = operator.get(f"jobs/{job_id}")["ETag"]
        first = operator.post(f"jobs/{job_id}/pause", {}, idempotency_key="p", If_Match=seen)
        again = operator.post(f"jobs/{job_id}/pause", {}, idempotency_key="p", If_Match=seen)
        assert (first.status_code, again.status_code, again.json()) == (202, 202, first.json())
        assert Event.objects.filter(job_id=job_id, kind="job.paused").count() == 1

    def test_a_refusal_by_the_job_itself_is_replayed(self) -> None:
        operator = Program("ops", "jobs:operate")
        job_id = Program().book()
        first = operator.post(f"jobs/{job_id}/retries", {}, idempotency_key="r", If_Match="*")
        assert (first.status_code, first.json()["allowed"]) == (409, ["cancellation", "compensation", "pause"])
        operator.post(f"jobs/{job_id}/pause", {})
        again = operator.post(f"jobs/{job_id}/retries", {}, idempotency_key="r", If_Match="*")
        assert (again.status_code, again.json()) == (409, first.json())
        anew = operator.post(f"jobs/{job_id}/retries", {}, idempotency_key="r2", If_Match="*")
        assert anew.json()["allowed"] == ["cancellation", "compensation", "resumption"]


def execute_then_die(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(use: Any, response: Any) -> None:
        raise ConnectionError("the process is gone")

    monkeypatch.setattr(idempotency, "_keep", die)


def test_a_death_between_the_work_and_its_record_leaves_neither_sas_086(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = newcomer()
    with monkeypatch.context() as dying:
        execute_then_die(dying)
        response = program.post("bookings", TRIP, idempotency_key="k")
    assert response.status_code == 500
    assert response.json()["safe_to_retry_with_new_key"] is False
    records = IdempotencyRecord.objects.filter(client_id=program.user.pk)
    assert (Job.objects.count(), records.count(), list(engine.rings)) == (0, 0, [])
    program.book("k")
    assert (Job.objects.count(), records.count(), len(engine.rings)) == (1, 1, 1)


def test_after_a_lost_answer_the_same_request_finds_its_job_sas_086(engine: Engine) -> None:
    program = newcomer()
    job_id = program.book("k")
    IdempotencyRecord.objects.filter(client_id=program.user.pk).delete()  # as if pruned: the job's own key still holds
    assert program.book("k") == job_id
    assert Job.objects.count() == 1


def test_fifty_identical_posts_at_once_make_one_job(engine: Engine) -> None:
    program = newcomer()
    begin = threading.Barrier(50)

    def post() -> Any:
        begin.wait(30)
        return program.post("bookings", TRIP, idempotency_key="k")

    answers = [beside.result() for beside in [Beside(post) for _ in range(50)]]
    counted = Counter(answer.status_code for answer in answers)
    assert set(counted) <= {202, 409}
    assert counted[202] >= 1
    assert Job.objects.count() == 1
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    for answer in answers:
        if answer.status_code == 409:
            assert answer["Retry-After"] == "1"
            assert answer.json()["type"] == "/problems/key-in-use"
            assert answer.json()["safe_to_retry_with_new_key"] is False
    assert program.post("bookings", TRIP, idempotency_key="k").status_code == 202


class Held:
    """Keeps the first request under a key in the middle of its work until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_work, self.go_on = threading.Event(), threading.Event()
        self._start = TripBooking.start
        monkeypatch.setattr(TripBooking, "start", self._hold)

    def _hold(self, *args: Any, **kwargs: Any) -> Job:
        job = self._start(*args, **kwargs)
        if not self.at_work.is_set():
            self.at_work.set()
            assert self.go_on.wait(20)
        return job


@contextmanager
def first_one_at_work(program: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside[Any]]:
    held = Held(monkeypatch)
    first = Beside(lambda: program.post("bookings", TRIP, idempotency_key="k"))
    assert held.at_work.wait(20)
    try:
        yield first
    finally:
        held.go_on.set()


def test_while_the_first_is_at_work_the_same_is_told_to_wait_and_another_body_is_refused_sas_084(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = newcomer()
    with first_one_at_work(program, monkeypatch) as first:
        same = program.post("bookings", TRIP, idempotency_key="k")
        other = program.post("bookings", other_trip(), idempotency_key="k")
    assert (same.status_code, other.status_code, first.result().status_code) == (409, 422, 202)
    assert same["Retry-After"] == "1"
    assert program.post("bookings", TRIP, idempotency_key="k").json() == first.result().json()
    assert Job.objects.count() == 1


def test_another_client_does_not_wait_for_the_first_sas_085(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with first_one_at_work(newcomer(), monkeypatch) as first:
        assert newcomer().post("bookings", TRIP, idempotency_key="k").status_code == 202
    assert first.result().status_code == 202
    assert Job.objects.count() == 2


def test_a_start_that_meets_the_same_job_key_uncommitted_is_told_to_come_back(engine: Engine) -> None:
    program = newcomer()
    with transaction.atomic():
        TripBooking.start(TRIP, key="k", client_id=program.user.pk)
        answer = Beside(lambda: program.post("bookings", TRIP, idempotency_key="k")).result()
    assert (answer.status_code, answer["Retry-After"]) == (409, "1")
    assert program.post("bookings", TRIP, idempotency_key="k").status_code == 202  # 409 was not kept
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("noun", "verb", "told"),
    [
        ("", "pause", "job.paused"),
        ("", "cancellation", "job.stopping"),
        ("/steps/flight", "cancellation", "step.cancelled"),
        ("/steps/flight", "retries", "step.retried"),
    ],
)
def test_two_operators_act_on_one_version_and_one_of_them_is_refused(
    engine: Engine, noun: str, verb: str, told: str
) -> None:
    job_id = newcomer().book()
    claimed = engine.claim(Step.objects.get(job_id=job_id, name="flight"))
    if verb == "retries":
        reports.fail(claimed, Failure(kind="transient", code="busy", message="Busy."), sent=None)
    operators = [newcomer("jobs:operate") for _ in range(2)]
    seen = operators[0].get(f"jobs/{job_id}{noun}")["ETag"]
    with transaction.atomic():
        transitions.lock(uuid.UUID(job_id))
        both = [
            Beside(lambda one=one: one.post(f"jobs/{job_id}{noun}/{verb}", {}, If_Match=seen)).until_blocked()
            for one in operators
        ]
    assert sorted(one.result().status_code for one in both) == [202, 412]
    assert Event.objects.filter(job_id=job_id, kind=told).count() == 1
