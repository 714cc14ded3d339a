"""The roles of a running system, as command lines."""

import errno
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from sagsite.errors import PortTaken, StartRefused

ROLES = ("simulators", "web", "agents", "supervisor", "beat")  # in the order of their start
CELERY = [sys.executable, "-m", "celery", "-A", "sagsite"]
QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]


def agents(name: str, concurrency: int) -> list[str]:
    return [*CELERY, "worker", "-n", f"{name}@%h", "-Q", "agents", "-P", "prefork", "-c", str(concurrency), *QUIET]


def supervisor(name: str) -> list[str]:
    return [*CELERY, "worker", "-n", f"{name}@%h", "-Q", "supervisor", "-P", "solo", *QUIET]


def beat() -> list[str]:
    return [*CELERY, "beat", "-S", "celery.beat:Scheduler", "--pidfile", "", "--loglevel", "WARNING"]


def web(listener: int, *, workers: int, threads: int) -> list[str]:
    return [
        *(sys.executable, "-m", "gunicorn", "sagsite.wsgi", "--bind", f"fd://{listener}"),
        *("--worker-class", "gthread", "--workers", str(workers), "--threads", str(threads)),
        *("--preload", "--graceful-timeout", "3", "--no-control-socket", "--log-level", "warning"),
    ]


def simulators(port: int, database: Path) -> list[str]:
    return [sys.executable, "-m", "agents.simulators", "--port", str(port), "--database", str(database)]


def environment(**additions: str) -> dict[str, str]:
    """The environment of a role: ours and what is said for it."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "DJANGO_SETTINGS_MODULE": "sagsite.settings", **additions}


def listen(host: str, port: int, variable: str) -> socket.socket:
    """A listening socket, which also proves that the port is free. Port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Port {port} on {host} is taken by another program: stop that, or set {variable} to a free port."
            ) from error
        raise StartRefused(
            f"Port {port} on {host} cannot be opened ({error.strerror}): set HOST and {variable}."
        ) from error
    return listener


def free_port(host: str, port: int, variable: str) -> int:
    """The number of a port that was free a moment ago, for a program that opens it itself."""
    with listen(host, port, variable) as listener:
        return int(listener.getsockname()[1])


def chosen(flags: dict[str, bool]) -> Iterable[str]:
    """The roles asked for; all of them when none is named."""
    return [role for role in ROLES if flags.get(role)] or ROLES
