"""The running system as a whole: start in order, watch, stop in order."""

import fcntl
import os
import shutil
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from django.conf import settings

from sagsite import demo_operator
from sagsite.embedded.postgres import Postgres
from sagsite.embedded.server import EmbeddedServer
from sagsite.embedded.valkey import Valkey
from sagsite.errors import BrokenData, StartRefused
from sagsite.home import Home, write_json
from sagsite.processes import identify
from sagsite.runner import preparation, roles
from sagsite.runner.child import Child, end_group, stop_all
from sagsite.runner.terminal import Terminal

LOOK_EVERY = 0.1  # seconds between two looks at the children
SERVER_PATIENCE = 60.0  # a server may have a crash to recover from
WEB_PATIENCE = 60.0
IMPATIENT_AFTER = 1.0
# Ten seconds from Ctrl-C to the last process, shared out: working processes, simulators, servers.
WORKERS_STOP, SIMULATORS_STOP, SERVERS_STOP = 5.5, 6.5, 9.0


class System:
    """Children of one `manage.py up`. `whole` is the complete system; otherwise some roles, beside servers that run."""

    def __init__(self, home: Home, names: tuple[str, ...], *, whole: bool, concurrency: int) -> None:
        self.home = home
        self.names = names
        self.whole = whole
        self.concurrency = concurrency
        self.suffix = "" if whole else f"-{os.getpid()}"
        self.terminal = Terminal(home.logs, suffix=self.suffix)
        self.servers: list[Child] = []
        self.children: list[Child] = []
        self.seeding: Child | None = None
        self.stopping = threading.Event()
        self.told_at = 0.0
        self.ready = False
        self.listener: socket.socket | None = None
        self.web_port = settings.BIND_PORT
        self.simulators_port = settings.SIMULATORS_PORT

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.BIND_HOST, settings.BIND_HOST)  # noqa: S104
        return f"http://{host}:{self.web_port}"

    def run(self) -> None:
        """Start everything, stay until told to stop, stop everything. Raises StartRefused."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.hear)
        try:
            self.start()
            self.watch()
        finally:
            self.stop()

    def hear(self, number: int, frame: Any) -> None:
        """The first signal stops in order; a Ctrl-C some time later means: now. (One key press may arrive twice.)"""
        if not self.stopping.is_set():
            self.told_at = time.monotonic()
            self.stopping.set()
        elif number == signal.SIGINT and time.monotonic() - self.told_at > IMPATIENT_AFTER:
            for child in self.children:
                if child.alive:
                    child.send(signal.SIGKILL)

    # --- start ---

    def start(self) -> None:
        self.open_ports()
        if self.whole:
            self.end_leftovers()
            self.start_servers()
        preparation.check_server_version()
        if self.stopping.is_set():
            return
        if self.whole:
            preparation.migrate()
            access = preparation.demo_access(self.home)
        else:
            preparation.check_migrations()
        if "web" in self.names:
            self.start_role("web")
            self.wait_for_web()  # the others load after the first page, not instead of it
        for name in self.names:
            self.start_role(name)
        if self.whole and not self.stopping.is_set():
            self.ready = True
            self.write_state()
            for line in preparation.welcome(self.url, self.simulators_port, access, self.home):
                self.terminal.show(line)
            self.seed_demo()

    def open_ports(self) -> None:
        if "web" in self.names:
            self.listener = roles.listen(settings.BIND_HOST, settings.BIND_PORT, "PORT")
            self.web_port = self.listener.getsockname()[1]
        if "simulators" in self.names:
            self.simulators_port = roles.free_port("127.0.0.1", settings.SIMULATORS_PORT, "SIMULATORS_PORT")

    def end_leftovers(self) -> None:
        """A runner that was killed may leave frozen processes behind: the lock is ours, so they have no owner."""
        for name, recorded in self.home.last_state().get("processes", {}).items():
            if name != "postgres" and end_group(recorded):  # PostgreSQL is ended in order, by its own preparation
                self.terminal.say(f"{name} was left over from an earlier run; it was ended")

    def start_servers(self) -> None:
        """Start the embedded servers that the environment does not replace, and wait until they answer."""
        sockets = self.home.create_sockets()
        postgres = Postgres(self.home.postgres_data, sockets) if settings.EMBEDDED_DATABASE else None
        valkey = Valkey(self.home.valkey_data, sockets) if settings.EMBEDDED_BROKER else None
        started: list[tuple[EmbeddedServer, Child]] = []
        wanted: list[EmbeddedServer] = [server for server in (postgres, valkey) if server]
        for server in wanted:
            child = Child.of_server(server, self.terminal)
            self.servers.append(child)
            child.start()
            started.append((server, child))
        self.write_state()
        for name in ("simulators", "web"):
            self.start_role(name)  # they load while the database is made ready
        for server, child in started:
            self.wait_for_server(server, child)
        if postgres and not self.stopping.is_set():
            postgres.create_database()

    def wait_for_server(self, server: EmbeddedServer, child: Child) -> None:
        deadline = time.monotonic() + SERVER_PATIENCE
        while not server.answers() and not self.stopping.is_set():
            if not child.alive:
                raise BrokenData(
                    f"{server.name} did not start: {complaint(child)} "
                    f"(its data: {server.data}, its log: {self.home.logs / server.name}.log)."
                )
            if time.monotonic() > deadline:
                raise StartRefused(
                    f"{server.name} did not answer within {SERVER_PATIENCE:.0f} s: see {self.home.logs}."
                )
            self.stopping.wait(0.02)

    def start_role(self, name: str) -> None:
        if self.stopping.is_set() or any(child.name == name for child in self.children):
            return
        environment = roles.environment(
            SAG_ROLE=name, SAG_HOME=str(self.home.path), SIMULATORS_PORT=str(self.simulators_port)
        )
        fds = (self.listener.fileno(),) if name == "web" and self.listener else ()
        child = Child(name, self.command(name), self.terminal, environment=environment, pass_fds=fds)
        self.children.append(child)
        child.start()
        self.write_state()

    def command(self, name: str) -> list[str]:
        if name == "web":
            assert self.listener is not None
            return roles.web(self.listener.fileno(), workers=settings.WEB_WORKERS, threads=settings.WEB_THREADS)
        if name == "agents":
            return roles.agents(f"agents{self.suffix}", self.concurrency)
        if name == "supervisor":
            return roles.supervisor(f"supervisor{self.suffix}")
        if name == "beat":
            return roles.beat()
        return roles.simulators(self.simulators_port, self.home.path / "simulators.sqlite3")

    def wait_for_web(self) -> None:
        """Wait until the site answers; the other children are watched meanwhile."""
        deadline = time.monotonic() + WEB_PATIENCE
        while not self.stopping.is_set() and not answers(self.url):
            if time.monotonic() > deadline:
                self.terminal.say(f"{self.url} does not answer yet; see {self.home.logs / 'web.log'}")
                return
            self.look()
            self.stopping.wait(LOOK_EVERY)

    def seed_demo(self) -> None:
        command = preparation.seed_command(self.home)
        if command and not self.stopping.is_set():
            environment = roles.environment(SAG_HOME=str(self.home.path), SIMULATORS_PORT=str(self.simulators_port))
            self.seeding = Child("demo", command, self.terminal, environment=environment, once=True)
            self.seeding.start()

    # --- watch ---

    def watch(self) -> None:
        while not self.stopping.wait(LOOK_EVERY):
            self.look()

    def look(self) -> None:
        """Plan a restart for each child that ended, and carry out those that are due."""
        for child in [*self.servers, *self.children]:
            if child.due_at is None and not child.alive:
                ending = child.ending()
                pause = child.plan_restart()
                self.terminal.say(f"{child.name} {ending}; it is started again in {pause:g} s")
            elif child.due_at is not None and time.monotonic() >= child.due_at:
                self.start_again(child)
        if self.seeding and not self.seeding.alive:
            self.close_seeding(self.seeding)

    def start_again(self, child: Child) -> None:
        try:
            child.start()
        except StartRefused as error:
            child.plan_restart()
            self.terminal.say(f"{child.name} cannot be started again: {error}")
        self.write_state()

    def close_seeding(self, child: Child) -> None:
        assert child.process is not None
        if child.process.returncode == 0:
            demo_operator.mark_seeded(self.home)
        else:
            self.terminal.say(f"demo {child.ending()}; it is tried again at the next start")
        self.seeding = None

    # --- stop ---

    def stop(self) -> None:
        """Workers first, since they need the servers to finish; within ten seconds whatever happens."""
        begun = time.monotonic()
        if self.listener:
            self.listener.close()  # gunicorn has its own; new visitors are refused rather than kept waiting
        if self.children:
            self.terminal.say("stopping")
        working = [child for child in self.children if child.name != "simulators"]
        stubborn = [
            *stop_all(working + ([self.seeding] if self.seeding else []), begun + WORKERS_STOP),
            *stop_all([child for child in self.children if child.name == "simulators"], begun + SIMULATORS_STOP),
            *stop_all(self.servers, begun + SERVERS_STOP),
        ]
        for child in stubborn:
            self.terminal.say(f"{child.name} had not finished in time and was ended")
        if self.whole:
            self.home.state_file.unlink(missing_ok=True)
            shutil.rmtree(self.home.own_sockets(), ignore_errors=True)
        if self.children:
            self.terminal.say(f"stopped after {time.monotonic() - begun:.1f} s")

    def write_state(self) -> None:
        """Tell other commands, tests and the next start what runs where."""
        if not self.whole:
            return
        children = [child for child in [*self.servers, *self.children] if child.pid]
        state = {
            "runner": identify(os.getpid()),
            "ready": self.ready,
            "url": self.url,
            "simulators_url": f"http://127.0.0.1:{self.simulators_port}",
            "sockets": str(self.home.own_sockets()),
            "processes": {child.name: identify(child.pid) for child in children if child.pid},
        }
        write_json(self.home.state_file, state)


def lock(home: Home) -> int | None:
    """Lock the folder SAG_HOME itself, so that no lock file is left over; None when another runner holds it."""
    descriptor = os.open(home.path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def answers(url: str) -> bool:
    """Whether a web server is there and talks, whatever it says."""
    try:
        urllib.request.urlopen(f"{url}/health/live", timeout=1).close()  # noqa: S310  (our own address)
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def complaint(child: Child) -> str:
    """The line in which a server that ended said why."""
    lines = list(child.last_words)
    for word in ("PANIC", "FATAL", "Fatal", "rror"):
        for line in lines:
            if word in line:
                return line.split("  ")[-1]
    return lines[-1] if lines else child.ending()
