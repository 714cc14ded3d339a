"""What the runner needs to know of a server it starts."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from sagsite import launch

LEFTOVER_GRACE = 5.0  # seconds for a server that is still shutting down


class EmbeddedServer(Protocol):
    """A server as a foreground child: made ready, started with `command`, asked whether it answers."""

    name: str
    data: Path
    stop_signal: signal.Signals  # the way to an orderly end
    identity: str  # see sagsite.launch

    @property
    def command(self) -> list[str]: ...

    def prepare(self) -> None:
        """Make data folder and sockets fit for a start. Raises StartRefused."""

    def answers(self) -> bool:
        """Whether the server takes connections: the server itself is asked, never its pid file."""


def launched(identity: str, command: list[str], *, death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command line that starts `command` by way of `sagsite.launch`; it gets `death_signal` when we die."""
    script = str(Path(launch.__file__))
    return [sys.executable, "-I", "-S", script, str(os.getpid()), str(int(death_signal)), identity, *command]


def namespaces_work() -> bool:
    """Whether the kernel lets us make a user namespace; containers often refuse."""
    command = launched("namespace", [shutil.which("true") or "/bin/true"])
    return subprocess.run(command, capture_output=True).returncode == 0


def process_works_in(pid: int, folder: Path) -> bool:
    """Whether a living process (no zombie) has the folder as its working directory."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:
        return False


def end_leftover(pid: int, folder: Path, stop_signal: signal.Signals) -> None:
    """End a server that outlived its runner; the caller holds the lock on SAG_HOME, so it has no other owner."""
    for number in (stop_signal, signal.SIGKILL):
        if not process_works_in(pid, folder):
            return
        os.kill(pid, number)
        deadline = time.monotonic() + LEFTOVER_GRACE
        while process_works_in(pid, folder) and time.monotonic() < deadline:
            time.sleep(0.05)
