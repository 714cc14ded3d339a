"""`python -m agents.simulators --port 8100 --database PATH`: the pretend vendors as a process of their own."""

import argparse
import signal
import sqlite3
import sys
from types import FrameType

from .ledger import Ledger
from .server import Simulators
from .vendors import SERVICES


def main() -> None:
    options = _options()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _leave)
    try:
        ledger = Ledger(options.database)
    except sqlite3.Error as error:
        sys.exit(f"The simulators cannot keep their ledger in {options.database}: {error}.")
    try:
        server = Simulators((options.host, options.port), ledger)
    except OSError as error:
        sys.exit(f"The simulators cannot listen on {options.host}:{options.port}: {error.strerror}.")
    sys.stdout.write(f"Simulators of {', '.join(SERVICES)} at http://{options.host}:{server.server_port}/\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    finally:
        server.server_close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m agents.simulators", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100, help="0 takes any free port and prints it")
    parser.add_argument("--database", required=True, help="the SQLite file of the ledger; made if it is not there")
    return parser.parse_args()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
