"""Who is told over the network: a real HTTP server that keeps what it was sent, and others that never answer."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers the `status` of when it was asked, once `lets_go` is set; keeps each request as it came in."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.status = 204
        self.answer_headers: dict[str, str] = {}
        self.answer_body: Callable[[Any], None] = lambda stream: None
        self.lets_go = threading.Event()
        self.lets_go.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.status
                receiver.received.append(Received(self.path, dict(self.headers.items()), body))
                assert receiver.lets_go.wait(20)
                self.send_response(status)
                for name, value in receiver.answer_headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    receiver.answer_body(self.wfile)

            def log_message(self, *_: Any) -> None:
                """Not on the terminal of the tests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/sag"

    def close(self) -> None:
        self.lets_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def open_receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


@contextmanager
def hanging(drip: bytes = b"") -> Iterator[str]:
    """The address of a server that takes a connection and says nothing; or this, again and again, and never all."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        taken = []
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                taken.append(connection)
                if drip:
                    threading.Thread(target=trickle, args=(connection,), daemon=True).start()
        for connection in taken:
            connection.close()

    def trickle(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not ended.wait(0.05):
                connection.sendall(drip)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/sag"
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def closed_port() -> int:
    """One where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
