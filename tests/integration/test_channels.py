"""The channels to people: what is sent over each, and that none of them stands in another's way."""

import base64
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.core.checks import run_checks
from django.core.mail.backends.base import BaseEmailBackend
from django.core.management import call_command
from django.db import connection, transaction
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from agents import Permanent
from sagsite.settings import BASE_DIR
from supervisor import channels, escalation, needs
from supervisor.advice import recommended
from supervisor.channels import Message, apprised, webhook
from supervisor.channels.channel import NotTold
from supervisor.models import Incident, Need, Telling
from tests.integration.engine import Beside, Engine
from tests.integration.receivers import Receiver, closed_port, hanging, open_receiver
from tests.integration.test_console_access import signed_in
from tests.waiting import wait_until
from workflows import Workflow, step, verbs
from workflows.clock import now

OLD = "whsec_" + base64.b64encode(b"a secret that is going out of use").decode()
NEW = "whsec_" + base64.b64encode(b"a secret that is coming into use!").decode()
AGAIN = timedelta(hours=4).total_seconds()
Said = Telling.Said


class Telegram(Workflow):
    """Its failure stands in front of a person."""

    a = step("shop.a", on_failure="hold")


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    """The receiver of the one webhook there is."""
    with open_receiver() as receiver:
        settings.SAG_WEBHOOKS = {"on-duty": {"url": receiver.url, "secrets": [NEW]}}
        yield receiver


def away(agent: str = "shop") -> Incident:
    evidence = {"failures": 6, "calls": 6, "steps": 6, "window": 30.0}
    return Incident.objects.create(
        agent=agent, cause="unavailable", message="It answered 503.", evidence=evidence, opened_at=now()
    )


def over(incident: Incident) -> None:
    Incident.objects.filter(pk=incident.pk).update(closed_at=now())


def said(receiver: Receiver) -> list[dict[str, Any]]:
    """What was received, read and verified as a receiver does."""
    return [Verifier(NEW).verify(one.body, one.headers) for one in receiver.received]


def types(receiver: Receiver) -> list[str]:
    return [one["type"] for one in said(receiver)]


def ids(receiver: Receiver) -> list[str]:
    return [one.headers["webhook-id"] for one in receiver.received]


def message() -> Message:
    return Message(
        id="msg_1", type="trial", timestamp=datetime.now(UTC), subject="Ünïcode", text="Sag", data={"a": "ü"}
    )


def hook(url: str, *secrets: str) -> webhook.Webhook:
    return webhook.Webhook("on-duty", url, secrets or (NEW,))


# --- webhooks ----------------------------------------------------------------------------------------------------------


def test_a_webhook_is_signed_by_each_secret_and_says_when_it_was_sent(receiver: Receiver) -> None:
    hook(receiver.url, NEW, OLD).send(message())
    [one] = receiver.received
    for secret in (NEW, OLD):
        verified = Verifier(secret).verify(one.body, one.headers)
        assert verified == {"type": "trial", "timestamp": verified["timestamp"], "data": {"a": "ü"}}
    assert one.path == "/sag"
    assert one.headers["Content-Type"] == "application/json"
    assert len(one.headers["webhook-signature"].split()) == 2
    with pytest.raises(WebhookVerificationError):
        Verifier(b"x" * 32).verify(one.body, one.headers)
    with pytest.raises(WebhookVerificationError):
        Verifier(NEW).verify(one.body.replace(b"trial", b"trail"), one.headers)


@pytest.mark.parametrize("status", [301, 307, 308, 400, 404, 410, 429, 500, 503])
def test_any_answer_but_two_hundred_and_something_is_a_failure_and_no_redirect_is_followed(
    receiver: Receiver, status: int
) -> None:
    receiver.status = status
    with open_receiver() as other:
        receiver.answer_headers = {"Location": other.url}
        with pytest.raises(NotTold, match=f"It answered {status}"):
            hook(receiver.url).send(message())
        assert (len(receiver.received), other.received) == (1, [])


def test_an_answer_without_end_is_not_read(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WITHIN", 5.0)
    sent = []

    def endless(stream: Any) -> None:
        while True:
            stream.write(b"x" * 65536)
            sent.append(65536)

    receiver.status, receiver.answer_body = 200, endless
    hook(receiver.url).send(message())
    assert sum(sent) < 50_000_000


@pytest.mark.parametrize("drip", [b"", b"X-A: b\r\n"], ids=["silent", "trickling"])
def test_a_receiver_that_never_answers_is_given_up_after_one_time_for_all(
    drip: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "WITHIN", 0.4)
    with hanging(drip) as url, pytest.raises(NotTold, match=r"It did not answer within 0\.4 s\."):
        hook(url).send(message())


def test_what_is_said_of_a_failure_has_neither_address_nor_secret() -> None:
    url = f"http://user:pass-word@127.0.0.1:{closed_port()}/t0ken-in-the-path"
    with pytest.raises(NotTold) as raised:
        hook(url).send(message())
    assert raised.value.__suppress_context__
    for secret in ("pass-word", "t0ken", NEW):
        assert secret not in f"{raised.value} {hook(url)!r}"


# --- what is told, and when -----------------------------------------------------------------------------------------


def test_an_outage_is_told_as_data_with_what_waits_and_where_to_look(
    engine: Engine, receiver: Receiver, settings: Any
) -> None:
    settings.SAG_URL = "https://sag.example.com/"
    incident = away()
    escalation.tell()
    [told] = said(receiver)
    since = incident.opened_at.astimezone(UTC).isoformat()
    assert told == {
        "type": "incident.opened",
        "timestamp": since,
        "data": {
            "kind": "incident",
            "id": str(incident.pk),
            "subject": "shop is away: unavailable",
            "cause": "unavailable",
            "since": since,
            "until": None,
            "agent": "shop",
            "message": "It answered 503.",
            "counts": {"steps": 0, "jobs": 0},
            "link": "https://sag.example.com/agents/#agent-shop",
        },
    }


def test_a_cause_is_told_as_data_and_so_is_that_it_is_over(engine: Engine, receiver: Receiver, settings: Any) -> None:
    settings.SAG_URL = "https://sag.example.com"
    settings.SAG_NOTIFY = ["ops@example.com"]
    engine.says("shop.a", Permanent("No such street.", code="refused"))
    job = Telegram.start()
    engine.drain()
    escalation.tell()
    engine.says("shop.a", {"ok": True})
    verbs.retry_step(job.pk, "a", actor="operator:ada", reason="mended")
    engine.drain()
    escalation.tell()
    opened, mended = said(receiver)
    need = Need.objects.get()
    assert need.closed_at is not None
    assert opened["data"] | {"since": ""} == {
        "kind": "need",
        "id": str(need.pk),
        "subject": "1 job needs a person: Telegram, a: No such street.",
        "cause": "Telegram, a: No such street.",
        "since": "",
        "until": None,
        "need": "exhausted",
        "workflow": "Telegram",
        "step": "a",
        "counts": {"jobs": 1},
        "examples": [str(job.pk)],
        "recommended": recommended("exhausted", error_kind="permanent", code="refused"),
        "runbook": None,
        "link": f"https://sag.example.com/attention/#need-{need.pk}",
    }
    assert (mended["type"], mended["data"]["counts"]) == ("need.mended", {"jobs": 0})
    assert mended["timestamp"] == mended["data"]["until"] == need.closed_at.astimezone(UTC).isoformat()
    first, second = mail.outbox
    assert (first.subject, second.subject) == (
        "1 job needs a person: Telegram, a: No such street.",
        "Over: jobs needed a person: Telegram, a: No such street.",
    )
    assert first.body.endswith(f"https://sag.example.com/attention/#need-{need.pk}")
    assert first.extra_headers["Message-ID"] != second.extra_headers["Message-ID"]


def test_each_telling_has_an_id_of_its_own_and_each_channel_tells_until_somebody_acknowledges(
    engine: Engine, receiver: Receiver
) -> None:
    incident = away()
    for ahead in (0, 60, AGAIN, AGAIN):
        engine.ahead(ahead)
        escalation.tell()
    assert types(receiver) == ["incident.opened", "incident.still", "incident.still"]
    needs.acknowledge(incident, actor="operator:ada")
    engine.ahead(2 * AGAIN)
    assert escalation.tell() == 0
    over(incident)
    assert [escalation.tell(), escalation.tell()] == [1, 0]
    assert types(receiver)[3:] == ["incident.mended"]
    assert len(set(ids(receiver))) == 4


def test_a_message_keeps_its_id_until_it_is_taken_and_is_tried_ever_more_rarely(
    engine: Engine, receiver: Receiver
) -> None:
    away()
    receiver.status = 503
    pauses = []
    for _ in range(8):
        escalation.tell()
        telling = Telling.objects.get()
        assert telling.try_after is not None
        pauses.append(round((telling.try_after - now()).total_seconds() / 30))
        engine.ahead((telling.try_after - now()).total_seconds() - 2)
        assert escalation.tell() == 0
        engine.ahead(3)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert Telling.objects.get().last_error == "It answered 503."
    receiver.status = 200
    assert escalation.tell() == 1
    assert len(receiver.received) == 9
    assert len(set(ids(receiver))) == 1
    telling = Telling.objects.get()
    assert (telling.attempts, telling.last_error) == (0, "")
    assert types(receiver)[-1] == "incident.opened"


def test_what_was_never_told_or_ended_long_ago_is_not_told_to_be_over(engine: Engine, receiver: Receiver) -> None:
    untold, told = away("shop"), away("kiosk")
    receiver.status = 503
    escalation.tell()
    over(untold)
    receiver.status = 200
    engine.ahead(60)
    assert escalation.tell() == 1
    over(told)
    engine.ahead(timedelta(days=1, minutes=1).total_seconds())
    assert escalation.tell() == 0
    assert types(receiver)[-1] == "incident.opened"
    assert set(Telling.objects.values_list("over", "attempts")) == {(True, 0)}


def test_what_failed_is_not_tried_again_once_somebody_has_it_in_hand(engine: Engine, receiver: Receiver) -> None:
    incident = away()
    receiver.status = 503
    escalation.tell()
    needs.acknowledge(incident, actor="operator:ada")
    engine.ahead(60)
    assert escalation.tell() == 0
    assert len(receiver.received) == 1
    assert Telling.objects.get().attempts == 0


def test_a_cause_that_was_put_off_is_told_when_its_time_comes_and_that_it_is_over_at_once(
    engine: Engine, receiver: Receiver
) -> None:
    engine.says("shop.a", Permanent("No such street.", code="refused"))
    job = Telegram.start()
    engine.drain()
    needs.note_needs()
    need = Need.objects.get()
    needs.snooze(need.pk, now() + timedelta(hours=1), actor="operator:ada")
    assert escalation.tell() == 0
    engine.ahead(3601)
    assert escalation.tell() == 1
    needs.snooze(need.pk, now() + timedelta(hours=9), actor="operator:ada")
    engine.ahead(AGAIN + 60)
    assert escalation.tell() == 0
    engine.says("shop.a", {"ok": True})
    verbs.retry_step(job.pk, "a", actor="operator:ada", reason="mended")
    engine.drain()
    assert escalation.tell() == 1
    assert types(receiver) == ["need.opened", "need.mended"]


@pytest.mark.parametrize(
    ("closed", "acknowledged", "told", "attempts", "try_after", "said"),
    [
        # minutes before the present, or None; `try_after` is in seconds from then
        (None, None, None, 0, None, Said.OPENED),
        (None, None, None, 1, -1, Said.OPENED),
        (None, None, None, 1, 1, None),
        (None, 5, None, 0, None, None),
        (None, 5, None, 1, -1, None),
        (None, None, 239, 0, None, None),
        (None, None, 241, 0, None, Said.STILL),
        (None, None, 241, 2, 1, None),
        (None, 5, 241, 0, None, None),
        (5, None, None, 0, None, None),
        (5, None, 10, 0, None, Said.MENDED),
        (5, 7, 10, 0, None, Said.MENDED),
        (5, None, 10, 3, 1, None),
        (5, None, 10, 3, -1, Said.MENDED),
        (24 * 60 + 1, None, 2000, 0, None, None),
    ],
)
def test_what_is_to_be_said_follows_from_what_was_told(
    closed: int | None,
    acknowledged: int | None,
    told: int | None,
    attempts: int,
    try_after: int | None,
    said: Said | None,
) -> None:
    present = datetime.now(UTC)

    def ago(minutes: int | None) -> datetime | None:
        return None if minutes is None else present - timedelta(minutes=minutes)

    incident = Incident(closed_at=ago(closed), acknowledged_at=ago(acknowledged))
    later = None if try_after is None else present + timedelta(seconds=try_after)
    telling = Telling(told_at=ago(told), attempts=attempts, try_after=later)
    assert escalation.due(incident, telling, present) == said
    telling.over = True
    assert escalation.due(incident, telling, present) is None


# --- one channel beside another, one supervisor beside another -----------------------------------------------------


def test_a_dead_channel_keeps_no_other_back_and_has_nobody_told_twice(
    engine: Engine, receiver: Receiver, settings: Any
) -> None:
    settings.SAG_NOTIFY = ["ops@example.com"]
    dead = {"url": f"http://127.0.0.1:{closed_port()}/", "secrets": [NEW]}
    settings.SAG_WEBHOOKS = {"dead": dead, **settings.SAG_WEBHOOKS}
    away()
    assert escalation.tell() == 2
    for _ in range(3):
        engine.ahead(600)
        assert escalation.tell() == 0
    assert (len(mail.outbox), types(receiver)) == (1, ["incident.opened"])
    telling = Telling.objects.get(channel="webhook dead")
    assert (telling.attempts, telling.told_at) == (4, None)
    assert telling.last_error.startswith("ConnectError")
    settings.SAG_WEBHOOKS["dead"]["url"] = receiver.url
    engine.ahead(600)
    assert escalation.tell() == 1
    assert types(receiver) == ["incident.opened", "incident.opened"]


def test_a_channel_that_hangs_delays_no_other(engine: Engine, receiver: Receiver, settings: Any) -> None:
    with hanging() as silent:
        settings.SAG_WEBHOOKS = {"silent": {"url": silent, "secrets": [NEW]}, **settings.SAG_WEBHOOKS}
        away("shop")
        look = escalation.tell_aside()
        assert look is not None
        wait_until(lambda: types(receiver) == ["incident.opened"], 10)
        look.join(10)
        away("kiosk")
        look = escalation.tell_aside()
        assert look is not None
        wait_until(lambda: types(receiver) == ["incident.opened"] * 2, 10)
        look.join(10)
        assert set(Telling.objects.filter(channel="webhook silent").values_list("told_at", "attempts")) == {(None, 1)}
    wait_until(lambda: not escalation._threads["webhook silent"].is_alive(), 10)


def test_while_one_supervisor_sends_another_one_does_not(engine: Engine, receiver: Receiver) -> None:
    away()
    receiver.lets_go.clear()
    first = Beside(escalation.tell)
    wait_until(lambda: len(receiver.received) == 1)
    assert Beside(escalation.tell).result() == 0
    receiver.lets_go.set()
    assert first.result() == 1
    assert len(receiver.received) == 1


def test_two_supervisors_that_look_at_once_tell_once(engine: Engine, receiver: Receiver) -> None:
    for number in range(10):
        away(f"shop{number}")
        both = threading.Barrier(2, timeout=10)

        def look(both: threading.Barrier = both) -> int:
            both.wait()
            return escalation.tell()

        pair = [Beside(look), Beside(look)]
        assert sum(one.result() for one in pair) == 1
    assert sorted(one["data"]["agent"] for one in said(receiver)) == [f"shop{number}" for number in range(10)]


def test_a_telling_that_another_transaction_holds_is_passed_over(engine: Engine, receiver: Receiver) -> None:
    incident = away()
    [channel] = channels.configured()
    with transaction.atomic():
        assert escalation._take("incident", incident.pk, channel) is not None
        blocked = Beside(lambda: escalation._take("incident", incident.pk, channel)).until_blocked()
    assert blocked.result() is None
    engine.ahead(121)
    with transaction.atomic():
        assert escalation._take("incident", incident.pk, channel) is not None
        assert Beside(lambda: escalation._take("incident", incident.pk, channel)).result() is None


def test_what_a_supervisor_was_sending_when_it_died_is_sent_again_under_the_same_id(
    engine: Engine, receiver: Receiver
) -> None:
    incident = away()
    [channel] = channels.configured()
    taken = escalation._take("incident", incident.pk, channel)
    assert taken is not None
    engine.ahead(119)
    assert escalation.tell() == 0
    engine.ahead(2)
    assert escalation.tell() == 1
    assert ids(receiver) == [taken[1].id]


def test_a_message_that_was_taken_late_counts_and_one_that_failed_late_does_not(
    engine: Engine, receiver: Receiver
) -> None:
    away("shop")
    receiver.lets_go.clear()
    slow = Beside(escalation.tell)
    wait_until(lambda: len(receiver.received) == 1)
    engine.ahead(121)  # taken for dead
    with open_receiver() as fast:
        [channel] = channels.configured()
        assert isinstance(channel, webhook.Webhook)
        fast.status = 503
        assert escalation._tell_over(webhook.Webhook(channel.key, fast.url, channel.secrets)) == 0
        failed = Telling.objects.get()
        receiver.lets_go.set()
        assert slow.result() == 1
        told = Telling.objects.get()
    assert (failed.attempts, failed.last_error, failed.told_at) == (2, "It answered 503.", None)
    assert (told.attempts, told.last_error) == (0, "")
    assert told.told_at is not None
    assert ids(receiver) == ids(fast)

    receiver.lets_go.clear()
    receiver.status = 503
    engine.ahead(AGAIN + 60)
    slow = Beside(escalation.tell)
    wait_until(lambda: len(receiver.received) == 2)
    engine.ahead(121)
    with open_receiver() as fast:
        assert escalation._tell_over(webhook.Webhook(channel.key, fast.url, channel.secrets)) == 1
    told = Telling.objects.get()
    receiver.lets_go.set()
    assert slow.result() == 0
    assert (Telling.objects.get().try_after, Telling.objects.get().last_error) == (told.try_after, "")


class Noting(BaseEmailBackend):
    """A mail server that notes whether a transaction was open."""

    atomic: list[bool] = []

    def send_messages(self, messages: Any) -> int:
        self.atomic.append(connection.in_atomic_block)
        return len(messages)


def test_nothing_is_sent_within_a_transaction(engine: Engine, settings: Any) -> None:
    settings.SAG_NOTIFY = ["ops@example.com"]
    settings.EMAIL_BACKEND = f"{__name__}.Noting"
    Noting.atomic = []
    away()
    escalation.tell()
    assert Noting.atomic == [False]


def test_causes_that_cannot_be_noted_keep_no_outage_from_being_told(
    engine: Engine, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise ValueError("a row that nobody can read")

    monkeypatch.setattr(needs, "note_needs", fails)
    away()
    assert escalation.tell() == 1


def test_a_matter_that_cannot_be_put_into_words_keeps_no_other_from_being_told(
    engine: Engine, receiver: Receiver
) -> None:
    for number, examples in enumerate((7, ["a job"])):
        opened_at = now() + timedelta(seconds=number)
        Need.objects.create(
            kind="exhausted", cause=f"cause {number}", jobs=1, examples=examples, opened_at=opened_at, since=opened_at
        )
    [channel] = channels.configured()
    assert escalation._tell_over(channel) == 1
    assert [one["data"]["cause"] for one in said(receiver)] == ["cause 1"]


def test_tellings_of_what_is_over_are_forgotten_and_no_others(engine: Engine, receiver: Receiver) -> None:
    ended = away("shop")
    away("kiosk")
    escalation.tell()
    over(ended)
    escalation.tell()
    escalation.forget()
    assert Telling.objects.count() == 2
    engine.ahead(timedelta(days=30, minutes=3).total_seconds())
    escalation.forget()
    assert Telling.objects.get().over is False


def test_live_tellings_are_found_by_their_index_among_many_that_are_over(engine: Engine, receiver: Receiver) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sag_supervisor_telling (kind, matter_id, channel, said, attempts, last_error, over) "
            "SELECT 'incident', n, 'webhook on-duty', 'mended', 0, '', n > 20 FROM generate_series(1, 20000) AS n"
        )
        cursor.execute("ANALYZE sag_supervisor_telling")
    live = Telling.objects.filter(channel="webhook on-duty", over=False)
    assert "telling_live" in live.explain()
    assert "telling_over" in Telling.objects.filter(over=True, try_after__lt=now()).explain()


def test_what_was_told_over_which_channel_can_be_read_in_the_admin(engine: Engine, receiver: Receiver) -> None:
    name = f"admin-{uuid.uuid4().hex}"
    admin_client = signed_in(name)
    get_user_model().objects.filter(username=name).update(is_staff=True, is_superuser=True)
    receiver.status = 503
    away()
    escalation.tell()
    page = admin_client.get("/admin/sag_supervisor/telling/").content.decode()
    assert "webhook on-duty" in page
    assert "It answered 503." in page


# --- apprise ----------------------------------------------------------------------------------------------------------


def test_apprise_tells_over_the_service_of_its_url(engine: Engine, receiver: Receiver, settings: Any) -> None:
    settings.SAG_WEBHOOKS = {}
    settings.SAG_APPRISE = {"chat": receiver.url.replace("http://", "json://")}
    away()
    assert [escalation.tell(), escalation.tell()] == [1, 0]
    [one] = receiver.received
    told = json.loads(one.body)
    assert (told["title"], told["type"]) == ("shop is away: unavailable", "warning")
    assert "It answered 503." in told["message"]
    assert Telling.objects.get().channel == "apprise chat"


def test_what_apprise_could_not_tell_is_tried_again_and_its_reason_has_no_part_of_the_url(
    engine: Engine, receiver: Receiver, settings: Any
) -> None:
    settings.SAG_WEBHOOKS = {}
    settings.SAG_APPRISE = {"chat": receiver.url.replace("http://", "json://user:pass-word@") + "/t0ken"}
    receiver.status = 302
    with open_receiver() as other:
        receiver.answer_headers = {"Location": other.url}
        away()
        assert escalation.tell() == 0
        assert other.received == []
    error = Telling.objects.get().last_error
    assert "302" in error
    assert not [secret for secret in ("pass-word", "t0ken", "127.0.0.1") if secret in error]
    receiver.status = 200
    engine.ahead(31)
    assert escalation.tell() == 1
    with pytest.raises(NotTold, match=r"Connection error .* to …\."):
        apprised.Apprised("chat", f"json://127.0.0.1:{closed_port()}/").send(message())


# --- settings ---------------------------------------------------------------------------------------------------------


def errors() -> list[str]:
    return [str(one.msg) for one in run_checks() if one.id == "sag_supervisor.E001"]


def webhooks(**entry: Any) -> dict[str, Any]:
    return {"on-duty": {"url": "https://example.com/t0ken", "secrets": [NEW]} | entry}


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("SAG_NOTIFY", "ops@example.com", "SAG_NOTIFY must be a list of e-mail addresses."),
        ("SAG_NOTIFY", ["ops@example.com", "ops"], "SAG_NOTIFY has what is no e-mail address: 'ops'."),
        ("SAG_WEBHOOKS", ["https://example.com"], "SAG_WEBHOOKS must be a dict of channels by name, not list."),
        ("SAG_WEBHOOKS", {"On duty": {}}, "SAG_WEBHOOKS has a channel named 'On duty'."),
        (
            "SAG_WEBHOOKS",
            {"on-duty": "https://example.com"},
            "SAG_WEBHOOKS['on-duty'] must be a dict with url and secrets.",
        ),
        (
            "SAG_WEBHOOKS",
            webhooks(secret="x"),
            "SAG_WEBHOOKS['on-duty'] has 'secret', which is unknown. Did you mean 'secrets'?",
        ),
        ("SAG_WEBHOOKS", webhooks(url="ftp://x/"), "has no url, or one that is not http:// or https:// with a host."),
        ("SAG_WEBHOOKS", webhooks(url="https://"), "has no url, or one that is not http:// or https:// with a host."),
        (
            "SAG_WEBHOOKS",
            webhooks(url="http://x:y/"),
            "has no url, or one that is not http:// or https:// with a host.",
        ),
        ("SAG_WEBHOOKS", webhooks(url=None), "has no url, or one that is not http:// or https:// with a host."),
        ("SAG_WEBHOOKS", webhooks(secrets=[]), "has no list of secrets to sign with."),
        ("SAG_WEBHOOKS", webhooks(secrets=NEW), "has no list of secrets to sign with."),
        (
            "SAG_WEBHOOKS",
            webhooks(secrets=[NEW, "t0ken"]),
            "secret number 2 is not whsec_ and 24 to 64 bytes in base64.",
        ),
        (
            "SAG_WEBHOOKS",
            webhooks(secrets=["whsec_t0ken"]),
            "secret number 1 is not whsec_ and 24 to 64 bytes in base64.",
        ),
        ("SAG_WEBHOOKS", webhooks(secrets=[NEW + "é"]), "secret number 1 is not whsec_ and 24 to 64 bytes in base64."),
        ("SAG_APPRISE", "slack://t0ken", "SAG_APPRISE must be a dict of channels by name, not str."),
        ("SAG_APPRISE", {"chat": "t0ken"}, "SAG_APPRISE['chat'] is not the URL of a service."),
        ("SAG_APPRISE", {"chat": None}, "SAG_APPRISE['chat'] is not the URL of a service."),
        ("SAG_APPRISE", {"chat": "file:///t0ken"}, "file:// reaches this machine and nobody else."),
        ("SAG_APPRISE", {"chat": "exec://t0ken"}, "exec:// reaches this machine and nobody else."),
        ("SAG_APPRISE", {"chat": "SYSLOG://t0ken"}, "syslog:// reaches this machine and nobody else."),
        ("SAG_APPRISE", {"chat": "slakc://t0ken"}, "apprise does not understand this slakc:// URL"),
        ("SAG_APPRISE", {"chat": "slack://t0ken"}, "apprise does not understand this slack:// URL"),
        ("SAG_URL", "sag.example.com", "SAG_URL is no address of the web."),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named_without_its_secrets(
    settings: Any, setting: str, value: Any, said: str
) -> None:
    setattr(settings, setting, value)
    [error] = errors()
    assert said in error
    assert "t0ken" not in error
    assert channels.configured() == []


def test_settings_that_can_be_followed_have_no_errors_and_one_fault_leaves_the_other_channels(settings: Any) -> None:
    settings.SAG_NOTIFY = ["ops@example.com", "On duty <duty@example.com>"]
    settings.SAG_WEBHOOKS = webhooks(secrets=[NEW, OLD]) | {
        "local": {"url": "http://10.0.0.7:8080/x", "secrets": (OLD,)}
    }
    settings.SAG_APPRISE = {"chat": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"}
    settings.SAG_URL = "https://sag.example.com/jobs"
    assert errors() == []
    names = ["e-mail", "webhook on-duty", "webhook local", "apprise chat"]
    assert [channel.name for channel in channels.configured()] == names
    settings.SAG_WEBHOOKS["local"]["secrets"] = ["none"]
    names.remove("webhook local")
    assert [channel.name for channel in channels.configured()] == names


def test_without_apprise_its_channels_are_an_error_that_says_what_to_install(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)  # as where it is not installed
    assert errors() == []
    settings.SAG_APPRISE = {"chat": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"}
    [error] = [one for one in run_checks() if one.id == "sag_supervisor.E001"]
    assert error.msg == "SAG_APPRISE['chat'] needs apprise, which is not installed."
    assert "pip install 'apprise>=2.3,<2.4'" in str(error.hint)


def test_a_variable_that_is_no_json_is_named_without_what_it_holds() -> None:
    ended = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=BASE_DIR,
        env={"SAG_WEBHOOKS": '{"on-duty": {"url": t0ken}}', "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    assert ended.stderr.startswith("manage.py: SAG_WEBHOOKS is no JSON: Expecting value: line 1")
    assert "t0ken" not in ended.stderr


# --- to try them ------------------------------------------------------------------------------------------------------


def tried() -> tuple[str, int]:
    out = StringIO()
    try:
        call_command("try_channels", stdout=out, no_color=True)
    except SystemExit as ended:
        return out.getvalue(), int(str(ended.code))
    return out.getvalue(), 0


def test_the_channels_can_be_tried_and_each_says_how_it_went(engine: Engine, receiver: Receiver, settings: Any) -> None:
    settings.SAG_NOTIFY = ["ops@example.com"]
    assert tried() == ("well  e-mail has taken it.\nwell  webhook on-duty has taken it.\n", 0)
    assert types(receiver) == ["trial"]
    receiver.status = 401
    settings.SAG_APPRISE = {"chat": "file:///etc/passwd"}
    told, code = tried()
    assert code == 1
    assert "ill   SAG_APPRISE['chat']: file:// reaches this machine and nobody else." in told
    assert "well  e-mail has taken it.\nill   webhook on-duty: It answered 401.\n" in told
    assert len(mail.outbox) == 2


def test_trying_no_channel_at_all_fails(engine: Engine) -> None:
    assert tried() == ("There is no channel: set SAG_NOTIFY, SAG_WEBHOOKS or SAG_APPRISE.\n", 1)
