"""One process that the runner starts, watches, starts again and stops."""

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sagsite.embedded.server import EmbeddedServer, launched
from sagsite.processes import is_running
from sagsite.runner.terminal import Terminal

FIRST_PAUSE = 0.5  # seconds before a crashed child is started again; doubles each time
LONGEST_PAUSE = 10.0
STEADY_AFTER = 30.0  # seconds of life after which earlier crashes are forgotten


class Child:
    """A process in a session of its own, so that the terminal's Ctrl-C reaches the runner alone."""

    def __init__(
        self,
        name: str,
        command: list[str],
        terminal: Terminal,
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
        once: bool = False,
    ) -> None:
        self.name = name
        self.command = command
        self.terminal = terminal
        self.environment = environment
        self.pass_fds = pass_fds
        self.once = once
        self.identity = "same"
        self.stop_signal = signal.SIGTERM
        self.death_signal = signal.SIGKILL
        self.prepare: Callable[[], None] = lambda: None
        self.process: subprocess.Popen[bytes] | None = None
        self.crashes = 0
        self.started_at = 0.0  # monotonic
        self.due_at: float | None = None  # when to start it again
        self.last_words: deque[str] = deque(maxlen=20)

    @classmethod
    def of_server(cls, server: EmbeddedServer, terminal: Terminal) -> "Child":
        """A server as a child. When the runner is killed the server stops in order, since its data matter."""
        server.prepare()
        child = cls(server.name, server.command, terminal)
        child.identity = server.identity
        child.stop_signal = child.death_signal = server.stop_signal
        child.prepare = server.prepare
        return child

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it; from the main thread only, whose end is what the kernel reports as the parent's death."""
        self.prepare()
        self.due_at = None
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            launched(self.identity, self.command, death_signal=self.death_signal),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            pass_fds=self.pass_fds,
            start_new_session=True,
        )
        threading.Thread(target=self.pass_on, args=[self.process], name=f"log of {self.name}", daemon=True).start()

    def pass_on(self, process: subprocess.Popen[bytes]) -> None:
        """Hand the child's output to the terminal, line by line, until all of its processes are gone."""
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line:
                self.last_words.append(line)
                self.terminal.line(self.name, line)

    def plan_restart(self) -> float:
        """After a crash: end what is left of its group, and set the time of the next start; the pause in seconds."""
        self.kill()
        if time.monotonic() - self.started_at > STEADY_AFTER:
            self.crashes = 0
        pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self.crashes)
        self.crashes += 1
        self.due_at = time.monotonic() + pause
        return pause

    def ending(self) -> str:
        """How it ended, in words."""
        assert self.process is not None
        code = self.process.returncode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def ask_to_stop(self) -> None:
        self.due_at = None
        if self.alive:
            self.send(self.stop_signal)
            self.send(signal.SIGCONT)  # a frozen process hears nothing

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End the child and everything it started, at once."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def stop_all(children: list[Child], deadline: float) -> list[Child]:
    """Ask all to stop, wait until `deadline` (monotonic), then end those that are left; these are returned."""
    for child in children:
        child.ask_to_stop()
    while any(child.alive for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    stubborn = [child for child in children if child.alive]
    for child in children:
        child.kill()
    return stubborn


def end_group(recorded: Mapping[str, Any]) -> bool:
    """End a recorded process with its group if it is still that one; says whether it was."""
    if not is_running(recorded):
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(recorded["pid"], signal.SIGKILL)
    return True
