"""SAG_HOME: the folder with everything a running system keeps on this machine."""

import hashlib
import json
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagsite.errors import StartRefused
from sagsite.processes import is_running

# sun_path holds 107 bytes on Linux and 103 on macOS; the longest name we put in the folder is PostgreSQL's lock file.
LONGEST_SOCKET_FOLDER = 103 - len("/postgres/.s.PGSQL.5432.lock")


@dataclass(frozen=True)
class Home:
    """Paths below SAG_HOME, and the small files that are read and written there."""

    path: Path

    @property
    def postgres_data(self) -> Path:
        return self.path / "postgres"

    @property
    def valkey_data(self) -> Path:
        return self.path / "valkey"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def demo_file(self) -> Path:
        return self.path / "demo.json"

    def create(self) -> None:
        """Make the folder, for its owner only."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StartRefused(
                f"SAG_HOME {self.path} cannot be used: {error.strerror}. Set SAG_HOME to a folder you may write to."
            ) from error

    def secret_key(self) -> str:
        """The secret of an embedded system: drawn once, then kept."""
        file = self.path / "secret_key"
        try:
            return file.read_text()
        except FileNotFoundError:
            self.create()
        draft = write_private(file.with_suffix(f".{secrets.token_hex(8)}"), secrets.token_urlsafe(50))
        try:
            os.link(draft, file)
        except FileExistsError:
            pass  # another process was first; its secret counts
        finally:
            draft.unlink()
        return file.read_text()

    def read_state(self) -> dict[str, Any]:
        """What the runner wrote about the running system; empty when none runs."""
        state = self.last_state()
        return state if is_running(state.get("runner", {})) else {}

    def last_state(self) -> dict[str, Any]:
        """The same of the last system, even if its runner was killed."""
        return read_json(self.state_file)

    def sockets(self) -> Path:
        """The folder of the servers' sockets: the running system's, else the one that a start would use."""
        recorded = self.read_state().get("sockets")
        return Path(recorded) if recorded else self.own_sockets()

    def own_sockets(self) -> Path:
        """A short path outside SAG_HOME, since a socket's path may not be long while a checkout's often is."""
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:10]
        name = f"sag-{os.getuid()}-{digest}"
        for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()):
            if parent and os.access(parent, os.W_OK) and len(os.fsencode(parent)) + len(name) < LONGEST_SOCKET_FOLDER:
                return Path(parent) / name
        return Path("/tmp") / name  # noqa: S108  (create_sockets refuses a folder that is not ours)

    def create_sockets(self) -> Path:
        """Make the socket folder and see that nobody else owns it or may enter it."""
        folder = self.own_sockets()
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise StartRefused(f"{folder} belongs to somebody else: remove it, or set TMPDIR to a folder of your own.")
        folder.chmod(0o700)
        return folder


def read_json(file: Path) -> dict[str, Any]:
    """The object in the file; empty when there is none, or it is no object."""
    try:
        found = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Replace the file as a whole, readable by its owner only."""
    draft = write_private(file.with_suffix(f".{os.getpid()}"), json.dumps(content, indent=2) + "\n")
    draft.replace(file)


def write_private(file: Path, text: str) -> Path:
    """Write a file that only its owner may read."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    return file
