"""Whether this worker is on its way out. Pool children do not see SIGTERM, so the word is kept in memory they share."""

import mmap

from celery.signals import worker_shutting_down

# Made when the module is imported, before the pool forks: one byte for the main process and all its children.
_shared = mmap.mmap(-1, 1)


@worker_shutting_down.connect
def begin(**_: object) -> None:
    """From now on nothing is claimed or handed over; what runs may end."""
    _shared[0] = 1


def is_draining() -> bool:
    return _shared[0] == 1
