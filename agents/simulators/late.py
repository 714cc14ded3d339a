"""The timer behind `apply_after_ms`: effects that come after their answer was lost, also over a restart."""

import threading
import time

from .ledger import Ledger


class LateEffects(threading.Thread):
    """Sleeps until the next effect is due, or until it is told that a nearer one was added."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(name="late-effects", daemon=True)
        self._ledger = ledger
        self._changed = threading.Event()
        self._stopped = False

    def look_again(self) -> None:
        self._changed.set()

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()
        self.join()

    def run(self) -> None:
        while not self._stopped:
            due = self._ledger.next_due()
            self._changed.wait(None if due is None else max(0, due - time.time()))
            self._changed.clear()
            self._ledger.apply_due()
