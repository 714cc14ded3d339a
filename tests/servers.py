"""PostgreSQL and Valkey for tests: the embedded ones, in a folder that is thrown away."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from sagsite.embedded.postgres import Postgres
from sagsite.embedded.server import EmbeddedServer
from sagsite.embedded.valkey import Valkey
from sagsite.runner.child import Child, stop_all
from sagsite.runner.terminal import Terminal


class Server:
    """One server that a test may stop, freeze and start again."""

    def __init__(self, server: EmbeddedServer, logs: Path) -> None:
        self.server = server
        self.child = Child.of_server(server, Terminal(logs, shown=False))

    @property
    def pid(self) -> int:
        assert self.child.pid
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.alive

    def start(self) -> None:
        self.child.start()
        deadline = time.monotonic() + 30
        while not self.server.answers():
            if not self.alive or time.monotonic() > deadline:
                raise RuntimeError(f"{self.server.name} did not start: {list(self.child.last_words)}")
            time.sleep(0.02)

    def stop(self) -> None:
        """In order, as an administrator would."""
        stop_all([self.child], time.monotonic() + 10)

    def kill(self) -> None:
        """With SIGKILL, all its processes."""
        self.child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()


class Servers:
    """A PostgreSQL without fsync and a Valkey below one folder, which also holds their sockets and should be short."""

    def __init__(self, folder: Path, *, database: bool = True, broker: bool = True) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        self.postgres_server = Postgres(folder / "data" / "postgres", folder, durable=False)
        self.valkey_server = Valkey(folder / "data" / "valkey", folder)
        self.postgres = Server(self.postgres_server, logs) if database else None
        self.valkey = Server(self.valkey_server, logs) if broker else None

    @property
    def all(self) -> list[Server]:
        return [server for server in (self.postgres, self.valkey) if server]

    def start(self) -> None:
        for server in self.all:
            server.start()

    def stop(self) -> None:
        for server in self.all:
            with suppress(OSError):
                server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
