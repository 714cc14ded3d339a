"""What an agent hears of a vendor: the table of translations, the wall clock, the retries in the small."""

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from agents import Call, InDoubt, LeaseLost, Permanent, Transient
from agents.http import LONGEST_RETRY_AFTER, Client

Script = Callable[[socket.socket], None]
SECRET = "s3cret-t0ken"


class Vendor:
    """A server whose n-th connection is served by the n-th script; it keeps what it was sent."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.requests: list[str] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def _listen(self) -> None:
        for script in self.scripts:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, script))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, script: Script) -> None:
        with connection:
            received = b""
            while b"\r\n\r\n" not in received:
                if not (more := connection.recv(65536)):
                    return
                received += more
            self.requests.append(received.decode())
            try:
                script(connection)
            except OSError:
                return

    def close(self) -> None:
        """Ends it, once; after that `requests` is complete."""
        if self._closed:
            return
        self._closed = True
        # close() alone would leave the thread in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()


@pytest.fixture
def vendor() -> Iterator[Callable[..., Vendor]]:
    opened: list[Vendor] = []

    def open_one(*scripts: Script) -> Vendor:
        opened.append(Vendor(*scripts))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def answers(status: str, *headers: str, body: str = "{}") -> Script:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return lambda connection: connection.sendall(f"{head}\r\n\r\n{body}".encode())


def hangs_up(connection: socket.socket) -> None:
    """Leaves without a word."""


def breaks_off(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{")


def drips(head: bytes) -> Script:
    """After `head`, one byte every 20 ms: no single wait is long."""

    def script(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in range(500):
            connection.sendall(b"x")
            time.sleep(0.02)

    return script


def never_answers(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def call(*, seconds: float = 20, lease: float = 10) -> Call:
    now = time.monotonic()
    return Call(
        job_id=uuid.uuid4(),
        workflow="TripBooking",
        step="hotel",
        attempt=1,
        idempotency_key="job-1:hotel",
        input={"city": "Lisbon"},
        ends_at=now + seconds,
        may_send_until=now + lease,
    )


def client(url: str, **options: Any) -> Client:
    return Client("the hotel", url, headers={"Authorization": f"Bearer {SECRET}"}, **options)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


# The request, and answers that are left to the agent


def test_the_request_carries_key_and_body(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(answers("201 Created", body='{"reference": "HO-1"}'))
    answer = client(hotel.url + "/hotels").post(call(), "/reservations", json={"city": "Lisbon"})
    assert (answer.status_code, answer.json()) == (201, {"reference": "HO-1"})
    request = hotel.requests[0]
    assert request.startswith("POST /hotels/reservations HTTP/1.1\r\n")
    assert "idempotency-key: job-1:hotel\r\n" in request.lower()
    assert f"Authorization: Bearer {SECRET}" in request


@pytest.mark.parametrize(
    "status", ["200 OK", "204 No Content", "302 Found", "400 Bad Request", "404 Not Found", "409 Conflict"]
)
def test_what_the_vendor_decided_is_left_to_the_agent(vendor: Callable[..., Vendor], status: str) -> None:
    hotel = vendor(answers(status, "Location: /elsewhere", body="" if status.startswith("204") else "{}"))
    assert client(hotel.url).get(call(), "/x").status_code == int(status[:3])
    assert len(hotel.requests) == 1


def test_each_exchange_has_a_connection_of_its_own(vendor: Callable[..., Vendor]) -> None:
    def answers_and_stays(connection: socket.socket) -> None:
        answers("200 OK")(connection)
        never_answers(connection)

    hotel = vendor(answers_and_stays, answers_and_stays)
    talk = client(hotel.url)
    assert [talk.get(call(seconds=2), "/x").status_code for _ in range(2)] == [200, 200]


# The table of translations


def test_a_refused_connection_is_unreachable() -> None:
    with pytest.raises(Transient) as raised:
        client(closed_port()).post(call(), "/reservations", json={})
    assert raised.value.code == "unreachable"
    assert "the hotel (POST /reservations)" in str(raised.value)


def test_an_unknown_host_is_unreachable() -> None:
    with pytest.raises(Transient) as raised:
        client("http://no-such-host.invalid").get(call(seconds=1), "/x")
    assert raised.value.code == "unreachable"


def test_a_connection_that_is_not_made_in_time_is_unreachable() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        # A full backlog: the next ones are neither accepted nor refused.
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        with pytest.raises(Transient) as raised:
            client(f"http://127.0.0.1:{address[1]}", timeout=0.3).post(call(seconds=1), "/x", json={})
        for one in waiting:
            one.close()
    assert raised.value.code == "unreachable"


def test_a_handshake_that_hangs_is_unreachable(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(never_answers)
    with pytest.raises(Transient) as raised:
        client(hotel.url.replace("http:", "https:")).post(call(seconds=0.5), "/x", json={})
    assert raised.value.code == "unreachable"
    assert hotel.requests == []


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_too_busy_is_unavailable(vendor: Callable[..., Vendor], status: str) -> None:
    hotel = vendor(answers(status), answers("200 OK"))
    with pytest.raises(Transient) as raised:
        client(hotel.url).post(call(), "/x", json={})
    assert (raised.value.code, raised.value.retry_after) == ("unavailable", None)
    assert len(hotel.requests) == 1


@pytest.mark.parametrize("status", ["500 Internal Server Error", "502 Bad Gateway", "504 Gateway Timeout", "599 Odd"])
def test_a_broken_server_leaves_doubt(vendor: Callable[..., Vendor], status: str) -> None:
    hotel = vendor(answers(status, "Retry-After: 0"), answers("200 OK"))
    with pytest.raises(InDoubt) as raised:
        client(hotel.url).post(call(), "/x", json={})
    assert raised.value.code == "server_error"
    assert len(hotel.requests) == 1


@pytest.mark.parametrize("script", [hangs_up, breaks_off])
def test_a_connection_lost_after_sending_leaves_doubt_and_is_not_tried_again(
    vendor: Callable[..., Vendor], script: Script
) -> None:
    hotel = vendor(script, answers("201 Created"))
    with pytest.raises(InDoubt) as raised:
        client(hotel.url).post(call(), "/x", json={})
    assert raised.value.code == "no_answer"
    assert len(hotel.requests) == 1


def test_an_answer_that_does_not_come_leaves_doubt_before_the_deadline(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(never_answers)
    one = call(seconds=0.5)
    with pytest.raises(InDoubt) as raised:
        client(hotel.url).post(one, "/x", json={})
    assert raised.value.code == "no_answer"
    assert one.seconds_left() > 0


def test_the_clients_own_timeout_is_shorter_than_the_calls(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(never_answers)
    one = call(seconds=30)
    with pytest.raises(InDoubt):
        client(hotel.url, timeout=0.2).get(one, "/x")
    assert one.seconds_left() > 28


def test_a_header_that_is_not_legal_is_permanent_and_not_quoted(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(answers("200 OK"))
    bad = Client("the hotel", hotel.url, headers={"Authorization": f"{SECRET}\r\nX: 1"})
    with pytest.raises(Permanent) as raised:
        bad.get(call(), "/x")
    assert raised.value.code == "unsendable"
    assert SECRET not in str(raised.value)
    assert hotel.requests == []


# The wall clock


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"],
    ids=["in the headers", "in the body"],
)
def test_a_server_that_drips_does_not_outlive_the_deadline(vendor: Callable[..., Vendor], head: bytes) -> None:
    hotel = vendor(drips(head))
    one = call(seconds=0.6)
    with pytest.raises(InDoubt) as raised:
        client(hotel.url).post(one, "/x", json={})
    assert raised.value.code == "no_answer"
    assert one.seconds_left() > 0


def test_no_clock_is_left_behind(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(answers("200 OK"))
    client(hotel.url).get(call(), "/x")
    clocks = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for clock in clocks:
        clock.join(timeout=1)
    assert not any(clock.is_alive() for clock in clocks)


def test_a_call_without_time_sends_nothing(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(answers("200 OK"))
    with pytest.raises(Transient) as raised:
        client(hotel.url).get(call(seconds=0), "/x")
    assert raised.value.code == "no_time_left"
    assert hotel.requests == []


# The lease


def test_a_worker_whose_lease_is_over_sends_nothing(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(answers("200 OK"))
    with pytest.raises(LeaseLost):
        client(hotel.url).post(call(lease=0), "/x", json={})
    hotel.close()
    assert hotel.requests == []


def test_the_lease_is_asked_for_again_before_a_retry(vendor: Callable[..., Vendor]) -> None:
    one = call()

    def loses_the_lease(connection: socket.socket) -> None:
        one.may_send_until = 0
        answers("503 Service Unavailable", "Retry-After: 0")(connection)

    hotel = vendor(loses_the_lease, answers("200 OK"))
    with pytest.raises(LeaseLost):
        client(hotel.url).get(one, "/x")
    hotel.close()
    assert len(hotel.requests) == 1


# Retries in the small


def test_a_short_retry_after_is_waited_for(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(answers("503 Service Unavailable", "Retry-After: 1"), answers("201 Created"))
    before = time.monotonic()
    assert client(hotel.url).post(call(), "/x", json={}).status_code == 201
    assert time.monotonic() - before >= 1
    keys = [line for request in hotel.requests for line in request.splitlines() if "idempotency" in line.lower()]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_retries_in_the_small_end(vendor: Callable[..., Vendor]) -> None:
    hotel = vendor(*[answers("429 Too Many Requests", "Retry-After: 0")] * 5)
    with pytest.raises(Transient) as raised:
        client(hotel.url).post(call(), "/x", json={})
    assert (raised.value.code, raised.value.retry_after) == ("unavailable", 0)
    assert len(hotel.requests) == 3


@pytest.mark.parametrize("seconds", [1.0, 20.0])
def test_a_retry_after_that_does_not_fit_is_passed_on(vendor: Callable[..., Vendor], seconds: float) -> None:
    hotel = vendor(answers("503 Service Unavailable", "Retry-After: 9"), answers("200 OK"))
    one = call(seconds=seconds)
    with pytest.raises(Transient) as raised:
        client(hotel.url).get(one, "/x")
    assert raised.value.retry_after == 9
    assert len(hotel.requests) == 1


def test_a_vendor_that_comes_back_while_unreachable_is_asked_again(
    vendor: Callable[..., Vendor], monkeypatch: Any
) -> None:
    hotel = vendor(answers("200 OK"))
    real, tries = socket.create_connection, []

    def refuses_once(*arguments: Any, **options: Any) -> socket.socket:
        tries.append(arguments)
        if len(tries) == 1:
            raise ConnectionRefusedError(111, "Connection refused")
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "create_connection", refuses_once)
    assert client(hotel.url).get(call(), "/x").status_code == 200
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (["Retry-After: 120"], 120),
        (["Retry-After: 99999999999999999999"], LONGEST_RETRY_AFTER),
        (["Retry-After: soon"], None),
        (["Retry-After: -5"], None),
        (["Retry-After: ²"], None),
        (["Retry-After: Thu, 04 Mar 2027 08:00:30 GMT", "Date: Thu, 04 Mar 2027 08:00:00 GMT"], 30),
        (["Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", "Date: Thu, 04 Mar 2027 08:00:00 GMT"], LONGEST_RETRY_AFTER),
        (["Retry-After: {in_a_minute}"], pytest.approx(60, abs=30)),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(
    vendor: Callable[..., Vendor], headers: list[str], expected: float | None
) -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    headers = [header.replace("{in_a_minute}", in_a_minute) for header in headers]
    hotel = vendor(answers("503 Service Unavailable", *headers))
    with pytest.raises(Transient) as raised:
        client(hotel.url).get(call(), "/x")
    assert raised.value.retry_after == expected


# Secrets


@pytest.mark.parametrize("script", [hangs_up, answers("500 Internal Server Error"), answers("503 Service Unavailable")])
def test_errors_and_logs_name_vendor_method_and_path_and_no_secret(
    vendor: Callable[..., Vendor], caplog: pytest.LogCaptureFixture, script: Script
) -> None:
    caplog.set_level(logging.INFO)
    hotel = vendor(script)
    with pytest.raises((Transient, InDoubt)) as raised:
        client(hotel.url).get(call(), "/rooms", params={"token": SECRET})
    assert "he hotel (GET /rooms)" in str(raised.value)
    assert SECRET not in str(raised.value) + caplog.text
