"""`python -m tests.bench`, which `make bench` calls. The last line is the ratios as JSON; exit code 1 if a must is missed."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path


def main() -> int:
    options = _options()
    kept = Path(__file__).resolve().parents[2] / ".sag"  # on the disk that `make run` uses, not in memory
    kept.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=kept) as folder:
        _choose_settings(Path(folder))
        ratios, missed = _run(Path(folder), options)
    for name in missed:
        print(f"missed: {name}", file=sys.stderr)
    print(json.dumps(ratios))
    return 1 if missed and not options.smoke else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=1000, help="trips started at once (default 1000)")
    parser.add_argument("--singles", type=int, default=200, help="trips measured one at a time (default 200)")
    parser.add_argument("--items", type=int, default=10_000, help="items of the long fan-out (default 10,000)")
    parser.add_argument("--sweep", action="store_true", help="only a sweep over a full store; filling it takes minutes")
    parser.add_argument("--live", type=int, default=1_000_000, help="its live steps (default 1,000,000)")
    parser.add_argument("--ended", type=int, default=5_000_000, help="its ended steps (default 5,000,000)")
    parser.add_argument("--smoke", action="store_true", help="a minute's look: fewer trips, one round, no verdict")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.trips, options.singles, options.items = 1, 100, 20, 1000
        options.live, options.ended = 200_000, 300_000
    return options


def _choose_settings(folder: Path) -> None:
    """Servers of our own whatever the environment or .env says; empty means the embedded default."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.bench.settings", "SAG_HOME": str(folder), "SAG_ROLE": "command"}
    os.environ |= dict.fromkeys(("DATABASE_URL", "CELERY_BROKER_URL", "SAG_SETTINGS"), "")


def _run(folder: Path, options: argparse.Namespace) -> tuple[dict[str, float], list[str]]:
    import django

    django.setup()
    from sagsite.home import Home
    from sagsite.runner import preparation
    from tests.bench import fanout
    from tests.bench.measure import measure, missed
    from tests.bench.processes import servers

    home = Home(folder)
    with servers(home) as (postgres, valkey):
        preparation.migrate()
        if options.sweep:
            from tests.bench import sweep

            return sweep.measure(live=options.live, ended=options.ended)
        ratios = measure(home, postgres, valkey, trips=options.trips, singles=options.singles, rounds=options.rounds)
        ratios |= fanout.measure(home, many=options.items)
    return ratios, missed(ratios)


if __name__ == "__main__":
    sys.exit(main())
