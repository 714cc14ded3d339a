"""`manage.py up` as a person meets it: started, watched, harmed and stopped on real processes."""

import os
import re
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from celery import Celery
from kombu import Connection

from tests.acceptance.system import ROLES, RunningSystem, descendants, is_alive, send
from tests.waiting import wait_until

Maker = Callable[..., RunningSystem]


def ended(system: RunningSystem, timeout: float = 30) -> int:
    """The exit code of an `up` that is expected to end by itself."""
    return system.spawn().wait(timeout=timeout)


def test_first_page_is_answered_soon_and_every_role_runs_below_up(make_system: Maker) -> None:
    system = make_system(embedded=True)
    begun = time.monotonic()
    system.spawn()
    wait_until(lambda: httpx2.get(system.base_url + "/login/").status_code == 200, 60, what="a page is answered")
    waited = time.monotonic() - begun
    # Fifteen seconds on a machine of its own. Here the other half of the suite has one of the two cores.
    assert waited < 30, f"it took {waited:.1f} s"
    wait_until(lambda: system.is_ready, 60, what="the system is ready")
    system.wait_until_whole()
    below = descendants(system.state["runner"]["pid"])
    assert {system.pid(role) for role in (*ROLES, "postgres", "valkey")} <= set(below)
    command_lines = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in below]
    for part in (
        "celery -A sagsite worker -n agents",
        "celery -A sagsite worker -n supervisor",
        "celery -A sagsite beat",
    ):
        assert any(part in line for line in command_lines), part


def test_ctrl_c_stops_everything_within_ten_seconds_and_the_next_start_finds_the_data(make_system: Maker) -> None:
    system = make_system(embedded=True)
    system.start()
    token = system.demo["token"]
    system.sql("CREATE TABLE kept AS SELECT 42 AS answer")
    sockets = system.home.own_sockets()
    everything = descendants(system.up.pid)
    port = int(system.base_url.rpartition(":")[2])

    begun = time.monotonic()
    system.up.send_signal(signal.SIGINT)
    assert system.up.wait(timeout=12) == 0
    assert time.monotonic() - begun < 10
    assert [pid for pid in everything if is_alive(pid)] == []
    assert not sockets.exists()
    assert not system.home.state_file.exists()
    with socket.socket() as listener:
        # What connections that just ended leave behind for a minute is nobody's.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()

    system.start()
    assert system.sql("SELECT answer FROM kept") == [{"answer": 42}]
    assert system.demo["token"] == token


def test_second_up_beside_a_running_one_prints_its_address_and_ends_well(system: RunningSystem) -> None:
    second = system.manage("up")
    assert second.returncode == 0, second.stderr
    assert system.base_url in second.stdout
    assert system.demo["token"] in second.stdout
    assert all(is_alive(system.pid(role)) for role in ROLES)


def test_login_and_token_are_kept_for_their_owner_only(system: RunningSystem) -> None:
    assert stat.S_IMODE(system.home.demo_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(system.home.path.stat().st_mode) == 0o700
    assert system.demo["password"] not in "".join(file.read_text() for file in system.home.logs.iterdir())


@pytest.mark.parametrize("role", ROLES)
def test_a_crashed_role_is_started_again_and_said_so(system: RunningSystem, role: str) -> None:
    said = len(system.said)
    former = system.kill(role)
    system.wait_for_restart(role, former)
    assert f"{role} was ended by SIGKILL; it is started again" in system.said[said:]
    system.wait_until_whole()


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_a_crashed_server_is_started_again_and_the_site_recovers(make_system: Maker, server: str) -> None:
    system = make_system(embedded=True)
    system.start()
    former = system.kill(server)
    system.wait_for_restart(server, former)
    system.wait_until_whole()
    assert system.manage("migrate", "--check").returncode == 0


def test_nothing_outlives_a_killed_runner_and_the_next_start_works(make_system: Maker) -> None:
    system = make_system(embedded=True)
    system.start()
    everything = descendants(system.up.pid)
    frozen = system.pid("simulators")
    send(frozen, signal.SIGSTOP)
    system.up.kill()
    system.up.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in everything), 10, what="all children are gone")
    system.start()
    assert system.sql("SELECT 1 AS one") == [{"one": 1}]


def test_a_pool_child_of_a_killed_worker_does_not_go_on(system: RunningSystem) -> None:
    pool = system.pool("agents")
    assert pool
    system.kill("agents")
    wait_until(lambda: not any(is_alive(pid) for pid in pool), 5, what="the pool is gone")


def test_a_stale_pid_file_with_the_number_of_another_program_does_not_stop_the_start(make_system: Maker) -> None:
    system = make_system(embedded=True)
    system.start()
    system.up.send_signal(signal.SIGTERM)
    assert system.up.wait(timeout=12) == 0
    pid_file = system.home.postgres_data / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{system.home.postgres_data}\n0\n5432\n\n\n\n")
    system.start()


def test_a_taken_port_gives_one_sentence(make_system: Maker) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for variable in ("PORT", "SIMULATORS_PORT"):
            system = make_system(embedded=True, variables={variable: str(port)})
            assert ended(system) == 1
            assert system.said.splitlines() == [
                f"Port {port} on 127.0.0.1 is taken by another program: stop that, or set {variable} to a free port."
            ]


def test_a_folder_that_is_no_data_folder_gives_one_sentence(make_system: Maker) -> None:
    system = make_system(embedded=True)
    system.home.postgres_data.mkdir(parents=True)
    assert ended(system) == 1
    assert f"{system.home.postgres_data} is no PostgreSQL data folder" in system.said
    assert len(system.said.splitlines()) == 1


def test_data_of_another_version_give_one_sentence_that_says_how_to_move(make_system: Maker) -> None:
    system = make_system(embedded=True)
    system.home.postgres_data.mkdir(parents=True)
    (system.home.postgres_data / "PG_VERSION").write_text("9\n")
    assert ended(system) == 1
    assert re.search(r"was written by PostgreSQL 9, .*dump it with version 9", system.said)
    assert len(system.said.splitlines()) == 1


def test_damaged_data_give_one_sentence_after_the_servers_own_words(make_system: Maker) -> None:
    system = make_system(embedded=True)
    system.start()
    system.up.send_signal(signal.SIGTERM)
    system.up.wait(timeout=12)
    shutil.rmtree(system.home.postgres_data / "global")
    system.output.unlink()
    assert ended(system) == 1
    assert "Traceback" not in system.said
    assert "postgres did not start: " in system.said.splitlines()[-1]


def test_a_database_that_does_not_answer_gives_one_sentence(make_system: Maker) -> None:
    system = make_system(
        embedded=True, variables={"DATABASE_URL": "postgresql://sag@127.0.0.1:1/sag", "SECRET_KEY": "for this test"}
    )
    assert ended(system) == 1
    assert "The database does not answer" in system.said.splitlines()[-1]
    assert "Traceback" not in system.said


def test_a_database_without_a_secret_key_is_refused(make_system: Maker) -> None:
    system = make_system(embedded=True, variables={"DATABASE_URL": "postgresql://sag@127.0.0.1:1/sag"})
    assert ended(system) == 1
    assert system.said.startswith("manage.py: DATABASE_URL is set but SECRET_KEY is not")
    assert "Traceback" not in system.said


def test_a_role_can_be_started_beside_a_running_system(system: RunningSystem) -> None:
    beside = RunningSystem(system.folder, servers=system.servers, arguments=("--agents", "--concurrency", "1"))
    beside.output = system.folder / "beside.txt"
    process = beside.spawn()
    try:
        wait_until(lambda: re.search(r"agents-\d+@\S+ ready", beside.said), 120, what="the second worker listens")
        assert len(descendants(process.pid)) == 2
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=12) == 0
    assert all(is_alive(system.pid(role)) for role in ROLES)


def test_a_role_without_servers_says_what_to_start_first(make_system: Maker) -> None:
    system = make_system(embedded=True, arguments=("--beat",))
    assert ended(system) == 1
    assert "start `manage.py up` without roles first" in system.said


def test_a_frozen_worker_does_not_hold_up_the_stop(make_system: Maker) -> None:
    system = make_system(embedded=True)
    system.start()
    everything = descendants(system.up.pid)
    system.freeze("agents")
    begun = time.monotonic()
    system.up.send_signal(signal.SIGTERM)
    assert system.up.wait(timeout=12) == 0
    assert time.monotonic() - begun < 10
    assert [pid for pid in everything if is_alive(pid)] == []


def test_the_login_link_works_once(system: RunningSystem) -> None:
    said = re.search(r"Console +\S+?(/login/\?token=\S+)", system.manage("up").stdout)
    assert said
    path = said[1]
    with httpx2.Client(base_url=system.base_url, follow_redirects=False) as first:
        assert first.get(path).status_code == 302
        assert first.get("/").status_code == 200
    with httpx2.Client(base_url=system.base_url, follow_redirects=False) as second:
        second.get(path)
        assert second.get("/").status_code == 302


@pytest.mark.parametrize("queue", ["agents", "supervisor"])
def test_workers_hear_again_after_the_broker_was_away(system: RunningSystem, queue: str) -> None:
    """SAS-005: after a restart of the broker the workers consume by themselves."""
    assert system.servers
    assert system.servers.valkey
    already_said = len(system.said)
    system.servers.valkey.kill()
    wait_until(lambda: f"{queue} " in system.said[already_said:], 20, what="the worker notices")
    system.servers.valkey.start()
    # Celery prefers CELERY_BROKER_URL of the environment, the test run's own, to what an application is given.
    with Connection(system.servers.valkey_server.url) as connection, Celery(set_as_current=False) as publisher:
        publisher.send_task(f"unknown.to.{queue}", queue=queue, connection=connection)
    wait_until(lambda: f"unknown.to.{queue}" in system.said, 15, what="the message is consumed")
