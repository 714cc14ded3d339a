"""`manage.py demo` as a stranger runs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sagsite.settings import BASE_DIR
from tests.acceptance.system import descendants, is_alive
from tests.waiting import wait_until


def demo(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo"],
        cwd=BASE_DIR,
        env={**os.environ, "TMPDIR": str(folder), "DJANGO_SETTINGS_MODULE": "sagsite.settings"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_the_demo_kills_a_worker_tells_of_each_trip_and_agrees_with_the_ledger(tmp_path: Path) -> None:
    running = demo(tmp_path)
    said, _ = running.communicate(timeout=380)
    assert running.returncode == 0, said
    assert "kill -9" in said
    assert all(f"\ntrip {number:02}" in said for number in range(1, 21)), said
    assert list(tmp_path.glob("sag-demo-*")) == []


@pytest.mark.timeout(200)
def test_a_demo_that_is_told_to_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    running = demo(tmp_path)
    wait_until(lambda: len(descendants(running.pid)) > 3, 90, what="the demo has started processes")
    started = descendants(running.pid)
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130, said
    wait_until(lambda: not any(is_alive(pid) for pid in started), 10, what="all of its processes are gone")
    assert list(tmp_path.glob("sag-demo-*")) == []
