"""The Celery application: `celery -A sagsite worker`, `celery -A sagsite beat`.

Its messages are doorbells. Work, times and results are rows in PostgreSQL, so a message that is lost or doubled does
no harm, and nothing here asks the broker to keep anything.
"""

import os
import warnings
from typing import Any

import kombu
from celery import Celery
from celery.app.amqp import AMQP
from celery.exceptions import SecurityWarning
from celery.signals import worker_init, worker_process_init
from kombu.connection import ConnectionPool, PooledConnection
from kombu.transport import redis

from sagsite import watch  # noqa: F401  (it connects itself to the worker's signals)
from sagsite.launch import die_with_parent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sagsite.settings")
warnings.filterwarnings("ignore", category=SecurityWarning)  # about pickle as root; we read JSON only


class ThriftyChannel(redis.Channel):
    """Keeps one client for all that it publishes. To make one takes as long as to publish, and the default makes one for
    each message.
    """

    _publisher: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc]
        if self._publisher is None or self._publisher.connection_pool is not self.pool:
            self._publisher = super()._create_client()  # type: ignore[misc]
        return self._publisher


class ThriftyTransport(redis.Transport):
    Channel = ThriftyChannel


class Thrifty:
    """A connection whose transport is ours; that of nobody else in this process changes."""

    def get_transport_cls(self) -> type[Any]:
        found: type[Any] = super().get_transport_cls()  # type: ignore[misc]
        return ThriftyTransport if found is redis.Transport else found


class ThriftyPooledConnection(Thrifty, PooledConnection):
    """One of the pool, which is what doorbells are rung over."""


class ThriftyPool(ConnectionPool):
    def new(self) -> Any:
        return ThriftyPooledConnection(self, **dict(self.connection._info(resolve=False)))


class SteadyConnection(Thrifty, kombu.Connection):
    """Asks for a lost broker every second; the default waits longer each time, up to half a minute after its return."""

    def _ensure_connection(self, *args: Any, **options: Any) -> "SteadyConnection":
        return super()._ensure_connection(*args, **{"interval_start": 1, "interval_step": 0} | options)

    def Pool(self, limit: int | None = None, **options: Any) -> ThriftyPool:
        return ThriftyPool(self, limit, **options)


class SteadyAMQP(AMQP):
    Connection = SteadyConnection


app = Celery("sagsite", amqp=SteadyAMQP)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_init.connect
def leave_out_banner(sender: Any, **_: Any) -> None:
    sender.quiet = True


@worker_process_init.connect
def end_with_main_process(**_: Any) -> None:
    """A pool child whose main process was killed would go on working unseen: it ends at once, its lease runs out."""
    die_with_parent()
