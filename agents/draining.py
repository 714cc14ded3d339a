"""Whether this worker is on its way out. Pool children do not see SIGTERM, so the word is kept in memory they share."""

import mmap
import time

from celery.signals import worker_shutting_down

_LOOK_EVERY = 0.2

# Made when the module is imported, before the pool forks: one byte for the main process and all its children.
_shared = mmap.mmap(-1, 1)


@worker_shutting_down.connect
def begin(**_: object) -> None:
    """From now on nothing is claimed or handed over; what runs may end."""
    _shared[0] = 1


def is_draining() -> bool:
    return _shared[0] == 1


def wait(seconds: float) -> bool:
    """Wait for the word so long; whether it came. Looked for, since no lock may be taken where a signal is handled."""
    until = time.monotonic() + seconds
    while not is_draining() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY))
    return is_draining()
