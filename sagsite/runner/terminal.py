"""What the person at the terminal reads: every line with the name of who said it, kept in files too."""

import logging
import sys
import threading
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

OURS = "sag"
WIDTH = 10
COLOURS = {OURS: 1, "web": 36, "agents": 32, "supervisor": 35, "beat": 34, "simulators": 33}
FILE_SIZE = 5_000_000  # bytes, of which one older file is kept


class Terminal:
    """Prints lines as `agents     | …` and appends them, with the time, to logs/agents.log."""

    def __init__(self, logs: Path, *, suffix: str = "", shown: bool = True) -> None:
        self.logs = logs
        self.suffix = suffix
        self.shown = shown
        self.coloured = sys.stdout.isatty()
        self.one_at_a_time = threading.Lock()
        self.files: dict[str, logging.Logger] = {}

    def say(self, sentence: str) -> None:
        """A line of the runner's own."""
        self.line(OURS, sentence)

    def line(self, name: str, text: str) -> None:
        if self.shown:
            self.show(f"{name:<{WIDTH}} | {text}", COLOURS.get(name, 2))
        self.file(name).info(text)

    def show(self, text: str, colour: int = 0) -> None:
        """Print without keeping: for what no log file should hold."""
        if self.coloured and colour:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        with self.one_at_a_time, suppress(OSError):  # the terminal may be gone; the files remain
            print(text, flush=True)

    def file(self, name: str) -> logging.Logger:
        if name not in self.files:
            path = self.logs / f"{name}{self.suffix}.log"
            handler = RotatingFileHandler(path, maxBytes=FILE_SIZE, backupCount=1, delay=True)
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            self.files[name] = logging.Logger(name)  # this terminal's alone, not the process-wide one of that name
            self.files[name].addHandler(handler)
        return self.files[name]
