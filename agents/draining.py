"""Whether this worker is on its way out. Pool children do not see SIGTERM, so the word is kept in memory they share."""

import mmap
import time

from celery.signals import worker_shutting_down

_LOOK_EVERY = 0.2

# Made when the module is imported, before the pool forks: one for the main process and all its children. When the word
# came, by the monotonic clock, which is the same in all processes of a machine; zero before.
_since = memoryview(mmap.mmap(-1, 8)).cast("d")


@worker_shutting_down.connect
def begin(**_: object) -> None:
    """From now on nothing is claimed or handed over; what runs may end."""
    _since[0] = _since[0] or time.monotonic()


def is_draining() -> bool:
    return _since[0] > 0


def lasts() -> float:
    """For how many seconds it has been so."""
    return time.monotonic() - _since[0] if is_draining() else 0.0


def wait(seconds: float) -> bool:
    """Wait for the word so long; whether it came. Looked for, since no lock may be taken where a signal is handled."""
    until = time.monotonic() + seconds
    while not is_draining() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY))
    return is_draining()
