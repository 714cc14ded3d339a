"""Recognising a process again: its number alone may be another program's by then."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def identify(pid: int) -> dict[str, Any]:
    """A process as it is written down."""
    return {"pid": pid, "started": started(pid)}


def is_running(recorded: Mapping[str, Any]) -> bool:
    """Whether the process that was written down is still there."""
    pid = recorded.get("pid")
    return isinstance(pid, int) and recorded.get("started") is not None and started(pid) == recorded["started"]


def started(pid: int) -> str | None:
    """The kernel's start time of a living process; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else "unknown"
    return None if fields[0] in "ZX" else fields[19]
