"""A whole Sag of the demo's own: real processes in a folder that is gone afterwards, beside whatever else runs."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2
from django.conf import settings

from sagsite import demo_operator
from sagsite.embedded.server import launched
from sagsite.errors import StartRefused
from sagsite.home import Home, read_json

START_PATIENCE = 180.0  # seconds
STOP_PATIENCE = 15.0

Say = Callable[[str, str], None]


class OwnSystem:
    """`with OwnSystem(say) as system:` starts it, waits until it is whole, and stops it at the end of the block."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.home = Home(Path(tempfile.mkdtemp(prefix="sag-demo-")))
        self.last_line = "it said nothing."
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.home.create()
            demo_operator.mark_seeded(self.home)  # the demo brings its own trips
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def url(self) -> str:
        return str(self.home.read_state()["url"])

    @property
    def simulators_url(self) -> str:
        return str(self.home.read_state()["simulators_url"])

    @property
    def token(self) -> str:
        return str(read_json(self.home.demo_file)["token"])

    def kill(self, role: str) -> int:
        """SIGKILL to the main process of a role; its pool ends with it. The pid."""
        pid = int(self.home.read_state()["processes"][role]["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def _start(self) -> None:
        # Empty means unset: embedded servers and free ports, whatever the shell or `.env` says for the real system.
        own = {**dict.fromkeys(settings.VARIABLES, ""), "SAG_HOME": str(self.home.path)}
        self.process = subprocess.Popen(  # noqa: S603  # our own program
            launched("same", [sys.executable, "manage.py", "up"], death_signal=signal.SIGTERM),
            cwd=settings.BASE_DIR,
            env={**os.environ, **own, "PORT": "0", "SIMULATORS_PORT": "0", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        listener = threading.Thread(target=self._listen, args=[self.process], daemon=True)
        listener.start()
        deadline = time.monotonic() + START_PATIENCE
        while not self._is_whole():
            if self.process.poll() is not None:
                raise StartRefused(f"The demo's own system did not start: {self._last_line(listener)}")
            if time.monotonic() > deadline:
                raise StartRefused(f"The demo's own system was not ready within {START_PATIENCE:.0f} s.")
            time.sleep(0.2)

    def _is_whole(self) -> bool:
        """The site answers, and a first sweep of the supervisor has run."""
        if not self.home.read_state().get("ready"):
            return False
        try:
            return httpx2.get(f"{self.url}/health/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Pass on what the runner itself says; the children's lines would bury the story."""
        assert process.stdout is not None
        for line in process.stdout:
            name, _, text = line.rstrip().partition(" | ")
            self.last_line = text or name or self.last_line
            if text and name.strip() == "sag":
                self.say("runner", text)

    def _last_line(self, listener: threading.Thread) -> str:
        """What it said last, which is why it refused."""
        listener.join(2)
        return self.last_line

    def _stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.home.path, ignore_errors=True)
