"""Word to people: one message for each outage and each cause, repeated until somebody takes it up, and never in the way."""

import smtplib
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.db import connection, transaction

from agents import Permanent, Transient
from supervisor import escalation, needs, storms
from supervisor.models import Incident, Need
from tests.integration.engine import Beside, Engine, state_of
from tests.waiting import wait_until
from workflows import Workflow, step, verbs
from workflows.clock import now
from workflows.exceptions import WrongState

TO = ["ops@example.com", "duty@example.com"]
AGAIN = timedelta(hours=4).total_seconds()


class Parcel(Workflow):
    """Its failure stands in front of a person."""

    a = step("shop.a", on_failure="hold")


@pytest.fixture(autouse=True)
def addresses(settings: Any) -> None:
    settings.SAG_NOTIFY = TO


def away(agent: str = "shop") -> Incident:
    evidence = {"failures": 6, "calls": 6, "steps": 6, "window": 30.0}
    return Incident.objects.create(
        agent=agent, cause="unavailable", message="It answered 503.", evidence=evidence, opened_at=now()
    )


def held_parcels(engine: Engine, *messages: str) -> list[Any]:
    jobs = []
    for message in messages:
        engine.says("shop.a", Permanent(message, code="refused"))
        jobs.append(Parcel.start())
        engine.drain()
    return jobs


def subjects() -> list[str]:
    return [message.subject for message in mail.outbox]


def test_an_outage_is_told_once_to_all_addresses(engine: Engine) -> None:
    away()
    assert [escalation.tell(), escalation.tell()] == [1, 0]
    [message] = mail.outbox
    assert (message.subject, message.to) == ("shop is away: unavailable", TO)
    assert "It answered 503." in message.body


def test_jobs_that_need_a_person_for_the_same_cause_are_one_message(engine: Engine) -> None:
    jobs = held_parcels(
        engine, "Parcel 17 of 'Ada' is too heavy.", "Parcel 4711 of 'Bo' is too heavy.", "No such street."
    )
    escalation.tell()
    assert sorted(subjects()) == [
        "1 job needs a person: Parcel, a: No such street.",
        "2 jobs need a person: Parcel, a: Parcel … of '…' is too heavy.",
    ]
    heavy = next(message for message in mail.outbox if "heavy" in message.subject)
    assert all(str(job.pk) in heavy.body for job in jobs[:2])
    held_parcels(engine, "Parcel 5 of 'Cy' is too heavy.")
    assert escalation.tell() == 0  # one more of the same
    assert Need.objects.get(cause__contains="heavy").jobs == 3


def test_it_is_told_again_after_some_hours_until_somebody_acknowledges_it(engine: Engine) -> None:
    incident = away()
    escalation.tell()
    engine.ahead(AGAIN - 60)
    escalation.tell()
    engine.ahead(120)
    escalation.tell()
    assert subjects() == ["shop is away: unavailable", "Still: shop is away: unavailable"]
    needs.acknowledge(incident, actor="operator:ada")
    engine.ahead(2 * AGAIN)
    assert escalation.tell() == 0
    incident.refresh_from_db()
    assert incident.acknowledged_by == "operator:ada"
    with pytest.raises(WrongState):
        needs.acknowledge(incident, actor="operator:bo")


def test_what_is_mended_is_told_once_and_what_comes_again_is_new(engine: Engine) -> None:
    [job] = held_parcels(engine, "No such street.")
    escalation.tell()
    engine.says("shop.a", {"ok": True})
    verbs.retry_step(job.pk, "a", actor="operator:ada", reason="mended")
    engine.drain()
    assert state_of(job) == "Completed"
    assert escalation.tell() == 1
    assert subjects()[-1] == "Over: jobs needed a person: Parcel, a: No such street."
    engine.ahead(2 * AGAIN)
    assert escalation.tell() == 0
    assert Need.objects.get().closed_at is not None
    held_parcels(engine, "No such street.")
    assert escalation.tell() == 1
    assert Need.objects.count() == 2


def test_a_cause_that_ends_while_another_supervisor_looks_is_not_opened_again(engine: Engine) -> None:
    [job] = held_parcels(engine, "No such street.")
    needs.note_needs()
    with transaction.atomic():
        verbs.skip(job.pk, "a", actor="operator:ada", reason="no matter")
        needs.note_needs()
        assert Beside(needs.note_needs).result() == 0  # it passes by, and does not wait
    assert needs.note_needs() == 0
    assert [need.closed_at is None for need in Need.objects.all()] == [False]


def test_an_outage_that_ended_before_it_was_told_is_not_told(engine: Engine) -> None:
    Incident.objects.filter(pk=away().pk).update(closed_at=now())
    assert escalation.tell() == 0


def test_without_addresses_nothing_is_sent_and_the_causes_are_known_all_the_same(engine: Engine, settings: Any) -> None:
    settings.SAG_NOTIFY = []
    held_parcels(engine, "No such street.")
    assert escalation.tell() == 0
    assert Need.objects.get().notified_at is None


class Refusing(BaseEmailBackend):
    """A mail server that takes no message about the shop, and notes that none is sent within a transaction."""

    taken: list[str] = []
    atomic: list[bool] = []

    def send_messages(self, messages: Any) -> int:
        self.atomic.append(connection.in_atomic_block)
        if any("shop" in message.subject for message in messages):
            raise smtplib.SMTPServerDisconnected("gone")
        self.taken.extend(message.subject for message in messages)
        return len(messages)


def test_what_could_not_be_sent_is_tried_again_and_keeps_no_other_back(engine: Engine, settings: Any) -> None:
    settings.EMAIL_BACKEND = f"{__name__}.Refusing"
    Refusing.taken, Refusing.atomic = [], []
    incident = away("shop")
    away("kiosk")
    assert escalation.tell() == 1
    assert Refusing.taken == ["kiosk is away: unavailable"]
    assert Refusing.atomic == [False, False]
    incident.refresh_from_db()
    assert incident.notified_at is None
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert escalation.tell() == 0  # not at once
    engine.ahead(31)
    assert escalation.tell() == 1
    assert subjects() == ["shop is away: unavailable"]


class Hanging(BaseEmailBackend):
    """A mail server that answers when the test says so."""

    asked = 0
    answers = threading.Event()

    def send_messages(self, messages: list[EmailMessage]) -> int:
        type(self).asked += 1
        assert self.answers.wait(20)
        return len(messages)


def test_a_mail_server_that_hangs_delays_nobody_and_is_asked_once_at_a_time(engine: Engine, settings: Any) -> None:
    settings.EMAIL_BACKEND = f"{__name__}.Hanging"
    Hanging.asked, Hanging.answers = 0, threading.Event()
    away()
    try:
        look_aside()
        wait_until(lambda: Hanging.asked == 1)
        away("kiosk")
        engine.ahead(300)
        look_aside()
        storms.tend()
        engine.sweep()
        assert Hanging.asked == 1
    finally:
        Hanging.answers.set()
    wait_until(lambda: Incident.objects.get(agent="shop").notified_at is not None)


def look_aside() -> None:
    """As beat has it done; comes back when what is to be told was handed to the channels."""
    thread = escalation.tell_aside()
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Seat 12A of flight LH123 is taken.", "Seat … of flight … is taken."),
        ("Key 019f8a2e-1111-7abc-8def-0123456789ab was closed.", "Key … was closed."),
        ('No "Lisbon" on\n2027-03-04.', 'No "…" on …-…-….'),
        ("Sold out.", "Sold out."),
    ],
)
def test_a_cause_is_a_message_without_what_differs(message: str, cause: str) -> None:
    assert needs.normalised(message) == cause


def test_an_outage_of_real_parts_is_told_with_what_waits(engine: Engine) -> None:
    engine.says("shop.a", Transient("It does not answer.", code="unavailable"))
    for _ in range(6):
        Parcel.start()
    engine.drain()
    storms.tend()
    escalation.tell()
    [message] = mail.outbox
    assert "6 steps of 6 jobs are parked." in message.body
