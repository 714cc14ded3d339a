"""The parts of the embedded servers and of SAG_HOME that can be shown without a whole system."""

import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sagsite.embedded import postgres
from sagsite.embedded.postgres import Postgres, check_data
from sagsite.embedded.server import launched
from sagsite.errors import BrokenData, PortTaken, StartRefused, WrongVersion
from sagsite.home import LONGEST_SOCKET_FOLDER, Home, write_json
from sagsite.processes import identify
from sagsite.runner.child import Child, end_group, stop_all
from sagsite.runner.roles import listen
from sagsite.runner.terminal import Terminal
from tests.servers import Server
from tests.waiting import wait_until

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="shows what happens to root")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="sag-unit-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def child(home: Home, *command: str) -> Child:
    return Child("nap", [shutil.which(command[0]) or command[0], *command[1:]], Terminal(home.logs, shown=False))


def test_sockets_have_a_short_path_however_deep_the_home_is() -> None:
    deep = Home(Path("/" + "/".join(["a rather long name of a folder"] * 20)))
    assert len(os.fsencode(deep.own_sockets())) <= LONGEST_SOCKET_FOLDER


def test_two_homes_have_different_sockets(tmp_path: Path) -> None:
    assert Home(tmp_path / "a").own_sockets() != Home(tmp_path / "b").own_sockets()


def test_a_socket_folder_that_is_a_link_to_elsewhere_is_refused(home: Home, tmp_path: Path) -> None:
    home.own_sockets().symlink_to(tmp_path)
    try:
        with pytest.raises(StartRefused, match="belongs to somebody else"):
            home.create_sockets()
    finally:
        home.own_sockets().unlink()


def test_the_state_of_a_runner_that_was_killed_is_not_taken_for_a_running_system(home: Home) -> None:
    write_json(home.state_file, {"runner": identify(os.getpid()), "sockets": "/tmp/elsewhere"})
    assert home.sockets() == Path("/tmp/elsewhere")
    write_json(home.state_file, {"runner": {"pid": os.getpid(), "started": "1"}, "sockets": "/tmp/elsewhere"})
    assert home.sockets() == home.own_sockets()


def test_the_secret_is_one_and_the_same_when_many_draw_it_at_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: home.secret_key(), range(8)))
    assert len(secrets) == 1
    assert len(secrets.pop()) > 40
    assert stat.S_IMODE((home.path / "secret_key").stat().st_mode) == 0o600


def test_a_home_that_cannot_be_written_gives_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartRefused, match="Set SAG_HOME to a folder you may write to"):
        Home(tmp_path / "file" / "home").create()


def test_data_of_another_major_version_are_refused_with_the_way_to_move(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("17\n")
    with pytest.raises(WrongVersion, match="dump it with version 17 and restore it with 18"):
        check_data(tmp_path, 18)


def test_a_folder_without_a_version_is_no_data_folder(tmp_path: Path) -> None:
    with pytest.raises(BrokenData, match="is no PostgreSQL data folder"):
        check_data(tmp_path, 18)


def test_a_server_program_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongVersion, match="PostgreSQL 14 is installed, 15 or newer is needed"):
        check_data(tmp_path, 14)


@AS_ROOT
def test_root_without_user_namespaces_runs_postgres_as_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "namespaces_work", lambda: False)
    monkeypatch.setattr(postgres, "FOR_NOBODY", folder / "reachable")
    (folder / "reachable").mkdir()
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    for name in ("home", "sockets", "logs"):
        (closed / name if name == "home" else folder / name).mkdir()
    server = Server(Postgres(closed / "home" / "postgres", folder / "sockets", durable=False), folder / "logs")
    try:
        server.start()
        owner = Path(f"/proc/{server.pid}").stat().st_uid
        assert owner == 65534
    finally:
        server.kill()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_a_program_is_not_started_when_its_parent_is_gone_already() -> None:
    command = launched("same", [shutil.which("echo") or "/bin/echo", "started"])
    command[4] = "1"  # a parent that is not ours
    answer = subprocess.run(command, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (1, "")


def test_a_crashed_child_waits_longer_each_time_and_not_for_ever(home: Home) -> None:
    crashing = child(home, "false")
    crashing.start()
    pauses = [crashing.plan_restart() for _ in range(8)]
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10, 10]


def test_a_child_that_lived_long_is_forgiven_its_earlier_crashes(home: Home) -> None:
    crashing = child(home, "false")
    crashing.start()
    crashing.crashes = 5
    crashing.started_at = time.monotonic() - 60
    assert crashing.plan_restart() == 0.5


def test_a_child_that_will_not_stop_is_ended_with_all_it_started(home: Home) -> None:
    stubborn = child(home, "bash", "-c", "trap '' TERM; sleep 60 & echo $!; wait; wait")
    stubborn.start()
    wait_until(lambda: stubborn.last_words, 10, what="it has started its own child")
    grandchild = int(stubborn.last_words[0])
    begun = time.monotonic()
    assert stop_all([stubborn], begun + 0.3) == [stubborn]
    assert time.monotonic() - begun < 3
    assert not stubborn.alive
    wait_until(lambda: identify(grandchild)["started"] is None, 5, what="the grandchild is gone")


def test_a_number_that_is_another_process_by_now_is_left_alone(home: Home) -> None:
    napping = child(home, "sleep", "60")
    napping.start()
    assert napping.pid
    try:
        recorded = identify(napping.pid)
        assert not end_group({**recorded, "started": "1"})
        assert napping.alive
        assert end_group(recorded)
        wait_until(lambda: not napping.alive, 5, what="it is ended")
    finally:
        napping.kill()


def test_a_taken_port_is_named_with_the_variable_to_set() -> None:
    with listen("127.0.0.1", 0, "PORT") as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"Port {port} .* set PORT to a free port"):
            listen("127.0.0.1", port, "PORT")
