"""How an agent talks to a vendor over HTTP: one exchange, bounded by the call, told in the three kinds of failure.

    airline = Client("the airline", "https://api.airline.example")
    answer = airline.post(call, "/reservations", json=call.input)

What the agent gets back is a whole answer with a status below 500, other than 429. Everything else is raised:

    nothing was sent: refused, no such host, no connection in time    Transient   unreachable
    429, 503: the vendor says that it did nothing                     Transient   unavailable, with its Retry-After
    the call has no time left to ask                                  Transient   no_time_left
    the request itself is not legal HTTP                              Permanent   unsendable
    sent, and no whole answer came: time-out, lost connection         InDoubt     no_answer
    any other answer from 500 up                                      InDoubt     server_error

The line between the first kind and the last is the first byte of the request, seen on the wire, not guessed from the
class of an exception.
"""

import logging
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from types import TracebackType
from typing import Any, Self

import httpx2
import stamina

from agents import Call, InDoubt, Permanent, Transient

ATTEMPTS = 3
CONNECT_WITHIN = 5.0  # seconds
BACK_OFF_AT_MOST = 1.0  # seconds, after a vendor that could not be reached
WAITS_AT_MOST = 5.0  # seconds: a longer wait belongs into the step's row, where it holds no worker
LONGEST_RETRY_AFTER = 86_400.0  # seconds: a vendor's slip must not put a step off for a year

# At INFO httpx2 writes every URL with its query into the log, where tokens may stand.
logging.getLogger("httpx2").setLevel(logging.WARNING)


class Client:
    """A vendor's HTTP interface, by the name that error messages give it.

    `timeout` caps one exchange in seconds, from connecting to the last byte; without it only the call's deadline
    does. Connections are not kept: one that the vendor has closed meanwhile would turn the next request into a doubt,
    and doubt costs more than a handshake. Proxies and `.netrc` of the environment are not used.
    """

    def __init__(
        self, vendor: str, base_url: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.vendor = vendor
        self.base_url = base_url
        self.timeout = timeout
        self.headers = dict(headers or {})

    def get(self, call: Call, path: str, *, params: Mapping[str, Any] | None = None) -> httpx2.Response:
        return self._ask(call, "GET", path, params=params)

    def post(self, call: Call, path: str, *, json: Any) -> httpx2.Response:
        return self._ask(call, "POST", path, json=json)

    def delete(self, call: Call, path: str) -> httpx2.Response:
        return self._ask(call, "DELETE", path)

    @cached_property
    def _http(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.base_url,
            headers=self.headers,
            verify=_trusted(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
        )

    def _ask(self, call: Call, method: str, path: str, **content: Any) -> httpx2.Response:
        """One answer, asked for again where that is safe and the call's time allows it."""
        for attempt in stamina.retry_context(
            on=lambda error: _pause_before_retry(error, call.seconds_left()),
            attempts=ATTEMPTS,
            timeout=None,
            wait_initial=0.1,
            wait_max=BACK_OFF_AT_MOST,
            wait_jitter=0.2,
        ):
            with attempt:
                return self._exchange(call, method, path, **content)
        raise AssertionError("stamina either returns from an attempt or raises its error")

    def _exchange(self, call: Call, method: str, path: str, **content: Any) -> httpx2.Response:
        what, http = f"{self.vendor} ({method} {path})", self._http
        seconds = self._seconds(call)
        if seconds <= 0:
            raise Transient(f"There was no time left to ask {what}.", code="no_time_left")
        exchange = _Exchange(call, seconds)
        try:
            with exchange:
                answer = http.request(
                    method,
                    path,
                    headers={"Idempotency-Key": call.idempotency_key},
                    timeout=httpx2.Timeout(seconds, connect=min(seconds, CONNECT_WITHIN)),
                    extensions={"trace": exchange.watch},
                    **content,
                )
        except httpx2.RequestError as error:
            raise exchange.explain(error, what) from error
        return _checked(answer, what)

    def _seconds(self, call: Call) -> float:
        """What one exchange may take. The last tenth of the call, at most a second, is kept for storing the outcome."""
        left = call.seconds_left()
        left -= min(1.0, left / 10)
        return left if self.timeout is None else min(left, self.timeout)


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates of the system: read at the first request of a process, since that takes a tenth of a second."""
    return httpx2.create_ssl_context(trust_env=False)


class _Exchange:
    """The wall clock of one exchange, and whether anything was sent.

    httpx2's time-outs count anew with every byte, so that a server which sends one now and then would hold the worker
    for ever. This clock cuts the connection when the whole exchange has had its time.
    """

    def __init__(self, call: Call, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._clock = threading.Timer(seconds, self._cut)
        self._clock.daemon = True
        self.sent = False
        self.out_of_time = False

    def __enter__(self) -> Self:
        self._clock.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.cancel()
        with self._lock:
            self._socket = None

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Told by httpx2 of each stage of the exchange; what is raised here ends it."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
        elif event.endswith(".send_request_headers.started"):
            if self.out_of_time:
                raise httpx2.ConnectTimeout("The connection took all the time there was.")
            # The last moment before the first byte: connecting may have outlived the lease.
            self._call.check_may_send()
            self.sent = True

    def _cut(self) -> None:
        with self._lock:
            self.out_of_time = True
            if self._socket is not None:
                # Not close(): only this wakes the thread that waits in recv(). And not SSLSocket's own method, which
                # takes the TLS state away from under that thread. An OSError: the other side was faster.
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def explain(self, error: httpx2.RequestError, what: str) -> Transient | Permanent | InDoubt:
        if isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
            # Its text may quote a header, and with it a secret.
            return Permanent(f"The request to {what} is not legal HTTP: {type(error).__name__}.", code="unsendable")
        if not self.sent:
            return Transient(f"Could not reach {what}: {_said(error)}", code="unreachable")
        if self.out_of_time or isinstance(error, httpx2.TimeoutException):
            message = f"No whole answer from {what} within {self._seconds:.1f} s; it may have been done or not."
        else:
            message = f"The answer of {what} was lost; it may have been done or not: {_said(error)}"
        return InDoubt(message, code="no_answer")


def _checked(answer: httpx2.Response, what: str) -> httpx2.Response:
    if answer.status_code in (429, 503):
        message = f"{what} is not available now: it answered {answer.status_code}."
        raise Transient(_capital(message), code="unavailable", retry_after=_retry_after(answer))
    if answer.status_code >= 500:
        message = f"{what} answered {answer.status_code}; it may have been done or not."
        raise InDoubt(_capital(message), code="server_error")
    return answer


def _pause_before_retry(error: Exception, seconds_left: float) -> bool | float:
    """For stamina: True to try again after its own back-off, seconds to try again after those, False to give up."""
    if not isinstance(error, Transient):
        return False
    # A wait must leave at least as much time again for the answer.
    longest = min(WAITS_AT_MOST, seconds_left / 2)
    if error.code == "unreachable":
        return longest > BACK_OFF_AT_MOST
    if error.code == "unavailable" and error.retry_after is not None:
        return error.retry_after if error.retry_after <= longest else False
    return False


def _retry_after(answer: httpx2.Response) -> float | None:
    """The seconds after which the vendor wants to be asked again; dates count by the vendor's own clock."""
    given = answer.headers.get("Retry-After", "").strip()
    if given.isascii() and given.isdigit():
        seconds = float(given[:9])
    else:
        then, now = _date(given), _date(answer.headers.get("Date", "")) or datetime.now(UTC)
        if then is None:
            return None
        seconds = (then - now).total_seconds()
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER)


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
