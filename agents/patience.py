"""How a worker asks a database that may be away: until it answers."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, InternalError, OperationalError, connection

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What the database says when it is away, in the middle of a failover (read only), or has ended our idle transaction.
NO_ANSWER = (OperationalError, InterfaceError, InternalError)


def until_answered(ask: Callable[[], T]) -> T:
    """Ask the database until it answers: an outcome is kept here as long as this process lives, its slot taken."""
    wait = 0.1
    while True:
        try:
            return ask()
        except NO_ANSWER as error:
            logger.warning("the database does not answer, asking again in %.1f s: %s", wait, error)
            connection.close()
            time.sleep(wait)
            wait = min(wait * 2, 2.0)
