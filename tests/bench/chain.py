"""The other side: a plain Celery chain of three tasks, results in the same Valkey, nothing durable.

The worker imports this module alone: no Django, no project of ours.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery, chain
from celery.result import AsyncResult

name = "chain"

_BROKER = "BENCH_CHAIN_BROKER"  # in the environment of the worker: the socket of Valkey
_QUEUE = "chain"

app = Celery("chain", set_as_current=False, fixups=[])
app.conf.update(
    task_default_queue=_QUEUE,
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=4,
    task_acks_late=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


def connect(socket: str) -> None:
    """Use the Valkey behind this socket: a database for messages and one for results, both ours alone."""
    app.conf.update(
        broker_url=f"redis+socket://{socket}?virtual_host=1", result_backend=f"redis+socket://{socket}?virtual_host=2"
    )


if _BROKER in os.environ:
    connect(os.environ[_BROKER])


@app.task
def flight(n: int) -> dict[str, Any]:
    return {"flight": "F1", "n": n}


@app.task
def hotel(before: dict[str, Any], n: int) -> dict[str, Any]:
    return {"hotel": "H1", "n": n}


@app.task
def car(before: dict[str, Any], n: int) -> dict[str, Any]:
    return {"car": "C1", "n": n}


@contextmanager
def worker(logs: Path, socket: str) -> Iterator[None]:
    """A prefork worker with as many processes as ours."""
    from tests.bench.processes import child  # not at the top: the worker does without it

    connect(socket)
    environment = os.environ | {_BROKER: socket}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    options = [
        "-P",
        "prefork",
        "-c",
        "2",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "-l",
        "WARNING",
    ]
    command = [sys.executable, "-m", "celery", "-A", "tests.bench.chain", "worker", "-n", "chain@%h", *options]
    with child(command, logs / "chain.log", environment=environment):
        _check(_start(0).get(timeout=60), 0)
        yield


def all_at_once(trips: int) -> float:
    """Start the chains one after the other, wait for the last result; the seconds that took."""
    began = time.perf_counter()
    results = [_start(n) for n in range(trips)]
    answers = [result.get(timeout=60) for result in results]
    took = time.perf_counter() - began
    for n, answer in enumerate(answers):
        _check(answer, n)
    return took


def one_at_a_time(trips: int) -> list[float]:
    """The seconds that each chain takes from its start until its result is here."""
    took = []
    for n in range(trips):
        began = time.perf_counter()
        answer = _start(n).get(timeout=60)
        took.append(time.perf_counter() - began)
        _check(answer, n)
    return took


def _start(n: int) -> AsyncResult:
    result: AsyncResult = chain(flight.s(n), hotel.s(n), car.s(n))()
    return result


def _check(answer: object, n: int) -> None:
    if answer != {"car": "C1", "n": n}:
        raise SystemExit(f"Chain {n} answered {answer!r}.")
