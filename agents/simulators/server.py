"""The HTTP face of the vendors: reads a request, meets its fate, answers or does not."""

import json
import re
import socketserver
import sys
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .faults import BadFault, Fate, Faults
from .late import LateEffects
from .ledger import Answer, Ledger, problem
from .vendors import SERVICES

LARGEST_BODY = 1_000_000
LONGEST_KEY = 500
PAGE = (Path(__file__).parent / "page.html").read_bytes()
RESERVATIONS = re.compile(rf"/({'|'.join(SERVICES)})/reservations(?:/([^/]+))?")
FAULTS = re.compile(r"/faults/([^/]+)")


class BadRequest(Exception):
    """A request that cannot be understood; the body to answer with."""

    def __init__(
        self, message: str, *, status: int = 400, code: str = "bad_request", allow: str | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {} if allow is None else {"Allow": allow}
        self.body = problem(code, message, **more)


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A call to one of the vendors."""

    service: str
    operation: str
    key: str
    request: dict[str, Any]


class Simulators(ThreadingHTTPServer):
    """One thread a connection; stops at once, since a vendor's process owes nobody an answer."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], ledger: Ledger) -> None:
        super().__init__(address, Handler)
        self.ledger = ledger
        self.late = LateEffects(ledger)
        self.late.start()

    def server_bind(self) -> None:
        # HTTPServer would look its own name up in the DNS here, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def server_close(self) -> None:
        super().server_close()
        if hasattr(self, "late"):
            self.late.stop()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "PretendVendors"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = 120
    server: Simulators

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        url = urlsplit(self.path)
        try:
            body = self._read_body()
            if found := RESERVATIONS.fullmatch(url.path):
                self._reservation(found[1], found[2] and unquote(found[2]), body)
            elif found := FAULTS.fullmatch(url.path):
                self._set_faults(found[1], body)
            elif url.path == "/faults":
                self._allow("GET")
                self._answer(200, {name: it.to_json() for name, it in self.server.ledger.faults().items()})
            elif url.path == "/ledger":
                self._ledger(parse_qs(url.query))
            elif url.path == "/":
                self._allow("GET")
                self._send(200, "text/html; charset=utf-8", PAGE)
            else:
                raise BadRequest(f"There is nothing at {url.path}.", status=404, code="no_such_path")
        except BadRequest as refusal:
            self._answer(refusal.status, refusal.body, refusal.headers)

    # What can be asked for

    def _ledger(self, query: dict[str, list[str]]) -> None:
        self._allow("GET", "DELETE")
        if self.command == "DELETE":
            self.server.ledger.forget()
        last = query.get("last", [None])[0]
        if last is not None and not (last.isascii() and last.isdigit() and len(last) < 10):
            raise BadRequest("last must be a whole number.", field="last")
        self._answer(200, self.server.ledger.read(None if last is None else int(last)))

    def _set_faults(self, service: str, body: bytes) -> None:
        self._allow("PUT")
        if service not in SERVICES:
            message = f"There is no service {service!r}. The services are: {', '.join(SERVICES)}."
            raise BadRequest(message, status=404, code="no_such_service")
        try:
            faults = Faults.parse(_object(body))
        except BadFault as fault:
            raise BadRequest(str(fault), code="bad_fault", field=fault.field) from fault
        self.server.ledger.set_faults(service, faults)
        self._answer(200, faults.to_json())

    def _reservation(self, service: str, key: str | None, body: bytes) -> None:
        if key is None:
            self._allow("POST")
            operation, key = "reserve", self.headers.get("Idempotency-Key") or None
        else:
            self._allow("GET", "DELETE")
            operation = "find" if self.command == "GET" else "cancel"
        call = self.server.ledger.open_call(service, operation, key)
        try:
            asked = Reservation(service=service, operation=operation, key=_key(key), request=_object(body))
        except BadRequest:
            self.server.ledger.close_call(call, "bad_request")
            raise
        self._meet(self.server.ledger.draw(service, operation), call, asked)

    # What becomes of a call

    def _meet(self, fate: Fate, call: int, asked: Reservation) -> None:
        time.sleep(fate.delay)
        if fate.never_answer:
            self._lose(call, "never_answered")
            self._wait_until_the_client_leaves()
        elif fate.lose_request:
            self._lose(call, "request_lost")
        elif refusal := _refusal(fate, asked.service):
            self.server.ledger.close_call(call, refusal.outcome)
            wait = fate.faults.retry_after
            self._answer(refusal.status, refusal.body, {} if wait is None else {"Retry-After": str(wait)})
        else:
            self._apply(fate, call, asked)

    def _apply(self, fate: Fate, call: int, asked: Reservation) -> None:
        ledger, faults = self.server.ledger, fate.faults
        has_effect = asked.operation != "find"
        if faults.apply_after_ms and has_effect:
            ledger.postpone(call, asked.service, asked.operation, asked.key, asked.request, faults)
            self.server.late.look_again()
            self.close_connection = True
            return
        answer = self._act(asked, faults)
        if fate.lose_answer:
            self._lose(call, "answer_lost")
            return
        ledger.close_call(call, answer.outcome)
        self._answer(answer.status, answer.body)

    def _act(self, asked: Reservation, faults: Faults) -> Answer:
        ledger = self.server.ledger
        if asked.operation == "reserve":
            return ledger.reserve(asked.service, asked.key, asked.request, faults)
        act = ledger.find if asked.operation == "find" else ledger.cancel
        return act(asked.service, asked.key)

    def _lose(self, call: int, outcome: str) -> None:
        self.server.ledger.close_call(call, outcome)
        self.close_connection = True

    def _wait_until_the_client_leaves(self) -> None:
        self.connection.settimeout(None)
        while self.connection.recv(65536):
            pass

    # Reading and writing

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise BadRequest("Send the body with its Content-Length.", status=411, code="length_required")
        if len(length) > 9 or int(length) > LARGEST_BODY:
            self.close_connection = True
            raise BadRequest(f"The body is larger than {LARGEST_BODY} bytes.", status=413, code="too_large")
        return self.rfile.read(int(length))

    def _allow(self, *methods: str) -> None:
        if self.command not in methods:
            message = f"{urlsplit(self.path).path} takes {' or '.join(methods)}, not {self.command}."
            raise BadRequest(message, status=405, code="method_not_allowed", allow=", ".join(methods))

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._send(status, "application/json", json.dumps(body).encode(), headers)

    def _send(self, status: int, kind: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        known = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        for name, value in (known | (headers or {})).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: the ledger is the log."""


def _refusal(fate: Fate, service: str) -> Answer | None:
    """The refusals that stand before any work is done."""
    if fate.faults.down:
        return Answer(outcome="down", status=503, body=problem("down", f"The {service} service is down."))
    if fate.refuses_for_now:
        return Answer(outcome="busy", status=429, body=problem("busy", "Too many requests; try again later."))
    if fate.error:
        return Answer(outcome="error", status=500, body=problem("error", "Something broke in here."))
    return None


def _key(key: str | None) -> str:
    if key is None:
        raise BadRequest("The header Idempotency-Key is missing.", code="key_missing")
    if len(key) > LONGEST_KEY:
        raise BadRequest(f"The key is longer than {LONGEST_KEY} characters.", code="key_too_long")
    return key


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; an empty body is an empty object."""
    try:
        content = json.loads(body or b"{}", parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest("The body must be a JSON object.")
    return content


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
