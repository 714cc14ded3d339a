"""A real running Sag for tests: `manage.py up` in a process of its own, with what a test needs to watch and to harm it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psycopg
from psycopg.rows import dict_row

from sagsite.embedded.server import launched
from sagsite.home import Home, write_json
from sagsite.settings import BASE_DIR, VARIABLES
from tests.servers import Servers
from tests.waiting import wait_until

SERVICES = ("flights", "hotels", "cars")
ROLES = ("web", "agents", "supervisor", "beat", "simulators")


class RunningSystem:
    """One system below `folder`. With `servers` it uses those, so that a test can stop them; else embedded ones."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: Servers | None = None,
        settings: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        arguments: Sequence[str] = ("--concurrency", "4"),
        seeded: bool = True,
    ) -> None:
        self.folder = folder
        self.servers = servers
        self.settings = settings or {}
        self.variables = variables or {}
        self.arguments = arguments
        self.home = Home(folder / "home")
        self.output = folder / "output.txt"
        self.process: subprocess.Popen[bytes] | None = None
        if seeded and not self.home.demo_file.exists():
            self.home.create()
            write_json(self.home.demo_file, {"seeded": True})  # tests want an empty list of jobs

    # --- life ---

    @property
    def environment(self) -> dict[str, str]:
        """What `up`, and any other command on this system, is given."""
        clean = {**os.environ, **dict.fromkeys(VARIABLES, "")}
        clean |= {"SAG_HOME": str(self.home.path), "PORT": "0", "SIMULATORS_PORT": "0", "PYTHONUNBUFFERED": "1"}
        clean |= {"DJANGO_SETTINGS_MODULE": "sagsite.settings", "SAG_SETTINGS": json.dumps(self.settings)}
        if self.servers:
            clean |= {
                "DATABASE_URL": self.servers.postgres_server.url,
                "CELERY_BROKER_URL": self.servers.valkey_server.url,
                "SECRET_KEY": "not secret, for tests only",
            }
        return clean | dict(self.variables)

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start `manage.py up` and return at once."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                launched("same", [sys.executable, "manage.py", "up", *self.arguments], death_signal=signal.SIGTERM),
                cwd=BASE_DIR,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process

    def start(self, timeout: float = 90) -> None:
        """Start it and wait until all of it is ready."""
        if self.servers:
            for server in self.servers.all:
                if not server.alive:
                    server.start()
            self.servers.postgres_server.create_database()
        up = self.spawn()
        wait_until(lambda: self.is_ready or up.poll() is not None, timeout, what="the system is ready")
        assert up.poll() is None, f"`up` ended with {up.returncode}: {self.said[-2000:]}"
        self.wait_until_whole(timeout)

    @property
    def up(self) -> subprocess.Popen[bytes]:
        """The process of `manage.py up`."""
        assert self.process, "this system was never started"
        return self.process

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        state = self.state
        return bool(self.is_up and state.get("ready") and state["runner"]["pid"] == self.up.pid)

    def wait_until_whole(self, timeout: float = 60) -> None:
        """Every role lives, the site says that it is ready, and the agents listen."""
        wait_until(lambda: all(is_alive(self.pid(role)) for role in ROLES), timeout, what="every role lives")
        wait_until(
            lambda: httpx2.get(f"{self.base_url}/health/ready").status_code == 200, timeout, what="health is ready"
        )
        wait_until(lambda: descendants(self.pid("agents")), timeout, what="the agents have their pool")

    def stop(self) -> None:
        """Ctrl-C, then whatever is left, then the folder."""
        if self.is_up:
            self.up.send_signal(signal.SIGCONT)
            self.up.send_signal(signal.SIGINT)
            try:
                self.up.wait(timeout=12)
            except subprocess.TimeoutExpired:
                self.up.kill()
                self.up.wait()
        if self.servers:
            self.servers.stop()
        shutil.rmtree(self.home.own_sockets(), ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def heal(self) -> None:
        """Undo the harm of the test before: thaw, start what is down, and reset the simulators."""
        for server in self.servers.all if self.servers else ():
            if not server.alive:
                server.start()
            os.kill(server.pid, signal.SIGCONT)
        if not self.is_up:
            self.start()
        for role in ROLES:
            for pid in (self.pid(role), *descendants(self.pid(role))):
                send(pid, signal.SIGCONT)
        self.wait_until_whole()
        for service in SERVICES:
            self.fault(service)
        httpx2.delete(f"{self.simulators_url}/ledger").raise_for_status()
        self.forget_outages()

    def forget_outages(self) -> None:
        """One test's failures must not add up with another's to an outage."""
        self.sql("DELETE FROM sag_workflows_callcount")
        self.sql("UPDATE sag_workflows_breaker SET parks = false, phase = 'closed', trial_step_id = NULL WHERE parks")
        self.sql("UPDATE sag_supervisor_incident SET closed_at = sag_now() WHERE closed_at IS NULL")

    # --- watch ---

    @property
    def state(self) -> dict[str, Any]:
        """What the runner says about itself."""
        return self.home.read_state()

    @property
    def said(self) -> str:
        """All that `up` printed so far."""
        return self.output.read_text(errors="replace")

    @property
    def base_url(self) -> str:
        return str(self.state["url"])

    @property
    def simulators_url(self) -> str:
        return str(self.state["simulators_url"])

    @property
    def demo(self) -> dict[str, str]:
        """`username`, `password` and `token` of the demo's operator."""
        return dict(json.loads(self.home.demo_file.read_text()))

    @property
    def api(self) -> httpx2.Client:
        """A client of the REST API with the demo's token; paths begin after /api/v1."""
        return self.client(self.demo["token"])

    def client(self, token: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=f"{self.base_url}/api/v1", headers=headers, timeout=30)

    def sql(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of a query on the system's database."""
        host = self.servers.folder if self.servers else self.home.own_sockets()
        where = f"host={host / 'postgres'} user=sag dbname=sag"
        with psycopg.connect(where, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(query, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def ledger(self) -> dict[str, Any]:
        """The simulators' own record: `calls` and `reservations`."""
        return dict(httpx2.get(f"{self.simulators_url}/ledger").raise_for_status().json())

    def manage(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run another manage.py command beside the system."""
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=BASE_DIR, env=self.environment, capture_output=True, text=True, timeout=timeout
        )

    # --- harm ---

    def fault(self, service: str, **faults: Any) -> None:
        """Replace a simulated service's faults; none means a healthy service."""
        httpx2.put(f"{self.simulators_url}/faults/{service}", json=faults).raise_for_status()

    def pid(self, role: str) -> int:
        """The main process of a role: web, agents, supervisor, beat, simulators, postgres or valkey."""
        server = self.servers and {"postgres": self.servers.postgres, "valkey": self.servers.valkey}.get(role)
        return server.pid if server else int(self.state["processes"][role]["pid"])

    def pool(self, role: str = "agents") -> list[int]:
        """The child processes of a role's main process."""
        return descendants(self.pid(role))

    def kill(self, role: str) -> int:
        """SIGKILL to a role's main process; its former pid."""
        pid = self.pid(role)
        send(pid, signal.SIGKILL)
        return pid

    def freeze(self, role: str) -> None:
        for pid in (self.pid(role), *self.pool(role)):
            send(pid, signal.SIGSTOP)

    def thaw(self, role: str) -> None:
        for pid in (*self.pool(role), self.pid(role)):
            send(pid, signal.SIGCONT)

    def wait_for_restart(self, role: str, former: int, timeout: float = 30) -> int:
        """The pid of the process that took the former one's place."""
        wait_until(lambda: self.pid(role) != former and is_alive(self.pid(role)), timeout, what=f"{role} is back")
        return self.pid(role)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """All living processes below one."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [found for child in children for found in (child, *descendants(child))]


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
