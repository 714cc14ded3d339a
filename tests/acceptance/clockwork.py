"""Only what opens due times, in real processes: a database, a broker, supervisors and beats; and a clock that is moved."""

import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from sagsite.embedded.server import launched
from sagsite.runner import roles
from sagsite.settings import BASE_DIR
from tests.acceptance.system import RunningSystem, send
from tests.servers import Servers
from tests.waiting import wait_until

MAKE = """
from workflows import schedules
from workflows.timing.policy import Policy
from workflows.timing.timetable import Timetable
for _ in range({number}):
    schedules.create(workflow="NightlyReport", input=None, timetable=Timetable(cron=("* * * * *",)),
                     policy=Policy(catch_up="all", overlap="allow"), client_id=None, actor="tester")
"""
A_LOOK = 0.25  # real seconds
PASSED_IN_A_LOOK = 15  # seconds of the moved clock


class Clockwork:
    """`processes` by name; those of one number belong together, as on one machine."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="sag-clockwork-"))
        self.system = RunningSystem(folder, servers=Servers(folder / "servers"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- life ---

    def start(self, machines: int) -> None:
        servers = self.system.servers
        assert servers
        servers.start()
        servers.postgres_server.create_database()
        migrated = self.system.manage("migrate", "--verbosity", "0")
        assert migrated.returncode == 0, migrated.stderr
        for machine in range(machines):
            self.start_machine(machine)
        for machine in range(machines):
            self._wait_for(machine)

    def start_machine(self, machine: int) -> None:
        """All supervisors have one name, as after an unlucky deploy."""
        for role, command in (("supervisor", roles.supervisor("supervisor")), ("beat", roles.beat())):
            with self._log(f"{role}{machine}").open("ab") as log:
                self.processes[f"{role}{machine}"] = subprocess.Popen(
                    launched("same", command, death_signal=SIGKILL),
                    cwd=BASE_DIR,
                    env=self.system.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def _wait_for(self, machine: int) -> None:
        log = self._log(f"supervisor{machine}")
        wait_until(lambda: " ready." in log.read_text(), 90, what=f"supervisor {machine} listens")

    def _log(self, name: str) -> Path:
        return self.system.folder / f"{name}.log"

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.system.stop()

    # --- harm ---

    def freeze(self, machine: int) -> None:
        self._send(machine, SIGSTOP)

    def thaw(self, machine: int) -> None:
        self._send(machine, SIGCONT)

    def kill(self, machine: int) -> None:
        self._send(machine, SIGKILL)

    def _send(self, machine: int, number: Any) -> None:
        for role in ("supervisor", "beat"):
            send(self.processes[f"{role}{machine}"].pid, number)

    # --- time ---

    def make_schedules(self, number: int) -> list[str]:
        """Minutely ones, whose jobs may run side by side; their ids."""
        made = self.system.manage("shell", "-c", MAKE.format(number=number))
        assert made.returncode == 0, made.stderr
        query = "SELECT id::text FROM sag_workflows_schedule WHERE deleted_at IS NULL AND declaration IS NULL"
        return [row["id"] for row in self.system.sql(query)]

    def remove_schedules(self) -> None:
        self.system.sql("UPDATE sag_workflows_schedule SET deleted_at = sag_now() WHERE declaration IS NULL")

    def pass_time(self, seconds: float, meanwhile: Callable[[], Any] = lambda: None) -> None:
        """So many real seconds, in which the moved clock passes a minute each second."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.system.sql(
                """INSERT INTO sag_workflows_clockoffset (id, ahead) VALUES (1, make_interval(secs => %s))
                   ON CONFLICT (id) DO UPDATE SET ahead = sag_workflows_clockoffset.ahead + EXCLUDED.ahead""",
                PASSED_IN_A_LOOK,
            )
            meanwhile()
            time.sleep(A_LOOK)

    # --- watch ---

    def decided(self) -> int:
        return int(self.system.sql("SELECT count(*) AS number FROM sag_workflows_tick")[0]["number"])

    def wait_until_up_to_date(self) -> None:
        query = """SELECT (SELECT count(*) FROM sag_workflows_schedule
                           WHERE deleted_at IS NULL AND next_due <= sag_now())
                        + (SELECT count(*) FROM sag_workflows_tick WHERE outcome = 'waiting') AS number"""
        wait_until(lambda: self.system.sql(query)[0]["number"] == 0, 90, what="every due time is decided on")

    def due_times(self, schedule: str) -> list[datetime]:
        query = "SELECT due_at FROM sag_workflows_tick WHERE schedule_id = %s::uuid ORDER BY due_at"
        return [row["due_at"] for row in self.system.sql(query, schedule)]

    def bounds(self, schedule: str) -> tuple[datetime, datetime]:
        """When it was made, and when it falls due next."""
        query = "SELECT created_at, next_due FROM sag_workflows_schedule WHERE id = %s::uuid"
        [row] = self.system.sql(query, schedule)
        return row["created_at"], row["next_due"]
