"""The servers and workers of the benchmark, all of them children of this process, and the CPU time they take."""

import os
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sagsite.embedded.postgres import Postgres
from sagsite.embedded.server import EmbeddedServer, launched
from sagsite.embedded.valkey import Valkey
from sagsite.home import Home

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def servers(home: Home) -> Iterator[tuple[Postgres, Valkey]]:
    """An embedded PostgreSQL and Valkey with the settings of `make run`: what is committed is on the disk."""
    home.create()
    sockets = home.create_sockets()
    postgres, valkey = Postgres(home.postgres_data, sockets), Valkey(home.valkey_data, sockets)
    try:
        with _server(postgres, home), _server(valkey, home):
            postgres.create_database()
            yield postgres, valkey
    finally:
        shutil.rmtree(sockets)


@contextmanager
def _server(server: EmbeddedServer, home: Home) -> Iterator[None]:
    server.prepare()
    command = launched(server.identity, server.command, death_signal=server.stop_signal)
    with child(command, home.logs / f"{server.name}.log", stop_signal=server.stop_signal) as process:
        wait_until(server.answers, f"{server.name} does not answer", process=process)
        yield


@contextmanager
def child(
    command: list[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives as long as the block; in a group of its own, so that Ctrl-C reaches us first.

    When the benchmark gives up inside the block, the last lines of the process's log are added to the complaint.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )
    try:
        yield process
    except SystemExit as complaint:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        raise SystemExit(f"{complaint}\n--- {log.name} ends with:\n{last}") from complaint
    finally:
        process.send_signal(stop_signal)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(
    condition: Callable[[], bool],
    complaint: str,
    *,
    every: float = 0.02,
    process: subprocess.Popen[bytes] | None = None,
    patience: float = PATIENCE,
) -> None:
    """Look at `condition` until it holds. Gives the benchmark up when patience ends, or the process."""
    until = time.monotonic() + patience
    while not condition():
        if process is not None and process.poll() is not None:
            raise SystemExit(f"{complaint}: the process ended with {process.returncode}.")
        if time.monotonic() > until:
            raise SystemExit(f"{complaint} within {patience:.0f} s.")
        time.sleep(every)


def cpu_seconds() -> float:
    """What this process and all its descendants have used so far, those that ended included."""
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        children[int(fields[1])].append(int(folder.name))
        used[int(folder.name)] = sum(map(int, fields[11:15])) / _TICKS
    total, family = 0.0, [os.getpid()]
    while family:
        pid = family.pop()
        total += used[pid]
        family += children[pid]
    return total


def resident_megabytes(pid: int) -> dict[int, float]:
    """{pid: what it holds in memory} of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {one: _resident(one) for one in (pid, *map(int, children))}


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kilobytes) / 1024


def machine_seconds() -> float:
    """What the whole machine has used since it started."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICKS
