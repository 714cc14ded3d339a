"""A step over a list: what an item costs where the list is short and where it is long, and what a worker needs for it."""

import statistics
import time
import uuid
from collections import Counter
from functools import partial

from sagsite.home import Home
from tests.bench import engine
from tests.bench.processes import resident_megabytes, wait_until
from tests.bench.workflows import FanOfNoops
from workflows.models import Attempt, Step

FEW = 100
_ROUNDS = 5  # of the few, before the many and again after them
PATIENCE = 600.0  # seconds


def measure(home: Home, *, many: int) -> dict[str, float]:
    """How many times as much an item of many costs as one of a few."""
    with engine.worker(home.logs) as worker, engine.supervisor(home.logs):
        for _ in range(_ROUNDS):
            _milliseconds_an_item(FEW)
        few = [_milliseconds_an_item(FEW) for _ in range(_ROUNDS)]
        before = resident_megabytes(worker.pid)
        of_many = _milliseconds_an_item(many)
        grown = max(after - before.get(pid, 0.0) for pid, after in resident_megabytes(worker.pid).items())
        few += [_milliseconds_an_item(FEW) for _ in range(_ROUNDS)]
    of_few = statistics.median(few)
    print(f"fan-out  {FEW:>6,} items  {of_few:5.2f} ms an item")
    print(f"fan-out  {many:>6,} items  {of_many:5.2f} ms an item; the worker's largest process grew by {grown:.1f} MB")
    return {"fanout_item_ratio": round(of_many / of_few, 3)}


def _milliseconds_an_item(items: int) -> float:
    began = time.perf_counter()
    job = FanOfNoops.start({"numbers": list(range(items))}).pk
    wait_until(partial(engine.is_completed, job), f"{items} items do not end", every=0.002, patience=PATIENCE)
    took = time.perf_counter() - began
    _check(job, items)
    return 1000 * took / items


def _check(job: uuid.UUID, items: int) -> None:
    """A figure counts only when each item is complete, with one attempt."""
    found = {
        "items": Counter(Step.objects.filter(job=job).exclude(parent=None).values_list("state", "attempt")),
        "attempts": Counter(
            Attempt.objects.filter(step__job=job).exclude(step__parent=None).values_list("outcome", "number")
        ),
    }
    expected = {"items": Counter({("Completed", 1): items}), "attempts": Counter({("completed", 1): items})}
    if found != expected:
        raise SystemExit(f"The fan-out left something else behind than {items} complete items: {found}")
