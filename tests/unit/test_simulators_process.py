"""The simulators as a process: started, stopped, killed, started again."""

import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # an empty one: reading the system's takes long
ROOT = Path(__file__).parents[2]
Start = Callable[..., "Running"]


class Running:
    """A simulator process and a client to it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address, "the first line names the address"
        self.http = httpx2.Client(base_url=address[0], verify=NO_TLS, trust_env=False)

    def reserve(self, key: str) -> httpx2.Response:
        return self.http.post("/hotels/reservations", json={}, headers={"Idempotency-Key": key})

    def until_first_call(self, outcome: str) -> None:
        until = time.monotonic() + 10
        while [call["outcome"] for call in self.http.get("/ledger").json()["calls"]][:1] != [outcome]:
            assert time.monotonic() < until, f"the first call never came to be {outcome}"
            time.sleep(0.02)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "agents.simulators", *options]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start_one() -> Running:
        options = ("--port", "0", "--database", str(tmp_path / "ledger.db"))
        started.append(subprocess.Popen(command(*options), cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return Running(started[-1])

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def test_ledger_closed_keys_and_faults_outlive_a_kill(start: Start) -> None:
    first = start()
    reserved = first.reserve("k1").json()
    first.http.delete("/hotels/reservations/k2")
    first.http.put("/faults/cars", json={"down": True, "times": 3})
    before = first.http.get("/ledger").json()
    first.process.kill()
    first.process.wait()

    second = start()
    assert second.http.get("/ledger").json() == before
    assert second.reserve("k1").json() == reserved
    assert second.reserve("k2").json()["code"] == "key_closed"
    assert second.http.get("/cars/reservations/k1").status_code == 503
    assert second.http.get("/faults").json()["cars"]["times"] == 2


def test_a_late_effect_comes_although_the_process_was_killed_meanwhile(start: Start) -> None:
    first = start()
    first.http.put("/faults/hotels", json={"apply_after_ms": 1000})
    with pytest.raises(httpx2.RemoteProtocolError):
        first.reserve("k1")
    first.process.kill()
    first.process.wait()

    second = start()
    second.until_first_call("late_applied")
    assert second.http.get("/ledger").json()["reservations"][0]["live"] is True


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_once_although_a_call_is_in_progress(start: Start, sign: signal.Signals) -> None:
    running = start()
    running.http.put("/faults/hotels", json={"slow_forever_rate": 1})
    held = socket.create_connection((running.http.base_url.host, running.http.base_url.port or 80))
    held.sendall(b"GET /hotels/reservations/k1 HTTP/1.1\r\nHost: h\r\n\r\n")
    running.until_first_call("never_answered")
    running.process.send_signal(sign)
    assert running.process.wait(timeout=2) == 0
    held.close()


def test_a_taken_port_is_one_sentence_and_exit_1(start: Start, tmp_path: Path) -> None:
    port = str(start().http.base_url.port)
    options = command("--port", port, "--database", str(tmp_path / "other.db"))
    ended = subprocess.run(options, cwd=ROOT, capture_output=True, text=True, timeout=10)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [f"The simulators cannot listen on 127.0.0.1:{port}: Address already in use."]


def test_a_ledger_that_cannot_be_kept_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("This is a letter, not a database. " * 20)
    options = command("--port", "0", "--database", str(tmp_path / "ledger.db"))
    ended = subprocess.run(options, cwd=ROOT, capture_output=True, text=True, timeout=10)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "cannot keep their ledger" in ended.stderr


def test_it_loads_nothing_of_ours_and_no_framework() -> None:
    code = (
        "import sys, agents.simulators.__main__;"
        "print([name for name in sys.modules if name.split('.')[0] in ('django', 'celery', 'workflows', 'supervisor')"
        " or name.startswith('agents.') and not name.startswith('agents.simulators')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert ended.stdout.strip() == "[]", ended.stderr
