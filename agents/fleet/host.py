"""Hosts, each a folder SAG_HOME/fleet/{host} whose file `current` names the release that it runs.

A host remembers its deployments in a file of its own: under which key, and what was there before. So a deployment that is
repeated does not take its own release for the previous one, and one that was rolled back is refused ever after.
"""

import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agents import Agent, Call, Permanent
from agents.files import home, write_whole

host = Agent("host", honours_keys=True, closes_keys=True)


@host.operation
def deploy(call: Call) -> dict[str, Any]:
    """{"host", "release", "refuse": the hosts that refuse it} → {"host", "release"}."""
    name, release = call.input["host"], call.input["release"]
    if name in call.input.get("refuse", ()):
        raise Permanent(f"{name} refuses {release}.", code="refused")
    with _Host.locked(call, name) as target:
        known = target.deployments.get(call.idempotency_key)
        if known is not None and known["rolled_back"]:
            raise Permanent(f"This deployment to {name} was rolled back.", code="key_closed")
        if known is None:
            target.remember(call.idempotency_key, target.current)
        if known is None or target.is_last(call.idempotency_key):
            target.run(release)
    return {"host": name, "release": release}


@host.operation
def rollback(call: Call) -> dict[str, Any]:
    """→ {"host", "rolled_back": whether there was a deployment}. What was there before it is there again."""
    if call.undoes is None:
        raise Permanent("rollback undoes a deployment; this step undoes none.", code="nothing_to_undo")
    name, key = call.undoes.input["host"], call.undoes.idempotency_key
    with _Host.locked(call, name) as target:
        known = target.deployments.get(key)
        if known is not None and not known["rolled_back"] and target.is_last(key):
            target.run(known["before"])
        target.forget(key)
    return {"host": name, "rolled_back": known is not None}


class _Host:
    """One host, locked. `deployments` is {key: {"before": the release or null, "rolled_back"}}, oldest first."""

    def __init__(self, folder: Path) -> None:
        self._current = folder / "current"
        self._memory = folder / ".deployments.json"
        self.deployments: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            self.deployments = json.loads(self._memory.read_bytes())

    @classmethod
    @contextmanager
    def locked(cls, call: Call, name: str) -> Iterator["_Host"]:
        """The host by its name, for one call at a time; refused to one whose lease is over."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise Permanent(f"{name!r} is no host's name.", code="no_host")
        folder = home() / "fleet" / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            call.check_may_send()
            yield cls(folder)

    @property
    def current(self) -> str | None:
        """What `current` says, byte by byte; None when there is no such file."""
        try:
            return self._current.read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None

    def run(self, release: str | None) -> None:
        if release is None:
            self._current.unlink(missing_ok=True)
        else:
            write_whole(self._current, release.encode("utf-8", "surrogateescape"))

    def is_last(self, key: str) -> bool:
        """Whether no later deployment stands on this one."""
        return [it for it, known in self.deployments.items() if not known["rolled_back"]][-1:] == [key]

    def remember(self, key: str, before: str | None) -> None:
        """Note a deployment, before it is made."""
        self.deployments[key] = {"before": before, "rolled_back": False}
        self._store()

    def forget(self, key: str) -> None:
        """Close the key, after it was rolled back. A later deployment that stood on this one stands on what was before."""
        known = self.deployments.setdefault(key, {"before": None, "rolled_back": True})
        if not known["rolled_back"]:
            standing = [it for it, other in self.deployments.items() if not other["rolled_back"]]
            for later in standing[standing.index(key) + 1 :][:1]:
                self.deployments[later]["before"] = known["before"]
            known["rolled_back"] = True
        self._store()

    def _store(self) -> None:
        write_whole(self._memory, json.dumps(self.deployments).encode())
