"""The rounds: each measures both sides back to back, and only ratios within a round are compared."""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sagsite.embedded.postgres import Postgres
from sagsite.embedded.valkey import Valkey
from sagsite.home import Home
from tests.bench import chain, engine, limit
from tests.bench.processes import cpu_seconds, machine_seconds

STEPS = 3  # a trip

# What must hold: ratios of the engine to the chain, and of an item of many to one of a few.
MUSTS: dict[str, Callable[[float], bool]] = {
    "w1_vs_chain": lambda ratio: ratio >= 1.4,
    "w2_p50_vs_chain": lambda ratio: ratio <= 0.9,
    "fanout_item_ratio": lambda ratio: ratio <= 2.0,
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One side in one round. `foreign`: the CPU, in cores, that other people's processes took meanwhile."""

    steps_a_second: float
    cpu_ms_a_step: float
    p50_ms: float
    p95_ms: float
    foreign: float

    def __str__(self) -> str:
        return (
            f"{self.steps_a_second:6.0f} steps/s  {self.cpu_ms_a_step:5.2f} CPU ms a step  "
            f"p50 {self.p50_ms:5.2f} ms  p95 {self.p95_ms:5.2f} ms  (others took {self.foreign:.2f} cores)"
        )


def measure(
    home: Home, postgres: Postgres, valkey: Valkey, *, trips: int, singles: int, rounds: int
) -> dict[str, float]:
    """The medians of each round's ratios."""
    found: dict[str, list[float]] = {}
    sides = [engine, chain]
    with ExitStack() as workers:
        workers.enter_context(engine.worker(home.logs))
        workers.enter_context(chain.worker(home.logs, str(valkey.socket)))
        for side in sides:
            side.all_at_once(max(trips // 5, 20))
        for number in range(1, rounds + 1):
            figures = {side.name: _side(side, trips, singles) for side in sides}
            ceiling = limit.steps_a_second(postgres, home.path)
            sides.reverse()  # who comes first has no advantage on the whole
            for side, its in sorted(figures.items()):
                print(f"round {number}  {side:<7} {its}", flush=True)
            print(f"round {number}  limit   {ceiling:6.0f} steps/s", flush=True)
            for ratio, value in _ratios(figures["engine"], figures["chain"], ceiling).items():
                found.setdefault(ratio, []).append(value)
    return {ratio: round(statistics.median(values), 3) for ratio, values in found.items()}


def missed(ratios: dict[str, float]) -> list[str]:
    return [name for name, holds in MUSTS.items() if not holds(ratios[name])]


def _side(side: Any, trips: int, singles: int) -> Figures:
    began, cpu, machine = time.perf_counter(), cpu_seconds(), machine_seconds()
    seconds = side.all_at_once(trips)
    cpu, machine, wall = cpu_seconds() - cpu, machine_seconds() - machine, time.perf_counter() - began
    single = statistics.quantiles(side.one_at_a_time(singles), n=100)
    return Figures(
        steps_a_second=trips * STEPS / seconds,
        cpu_ms_a_step=1000 * cpu / (trips * STEPS),
        p50_ms=1000 * single[49],
        p95_ms=1000 * single[94],
        foreign=max(0.0, machine - cpu) / wall,
    )


def _ratios(ours: Figures, theirs: Figures, ceiling: float) -> dict[str, float]:
    return {
        "w1_vs_chain": ours.steps_a_second / theirs.steps_a_second,
        "w2_p50_vs_chain": ours.p50_ms / theirs.p50_ms,
        "w2_p95_vs_chain": ours.p95_ms / theirs.p95_ms,
        "cpu_vs_chain": ours.cpu_ms_a_step / theirs.cpu_ms_a_step,
        "w1_vs_limit": ours.steps_a_second / ceiling,
    }
