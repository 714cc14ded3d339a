"""The doorbell: "queue Q has work, perhaps step N". Rung after the commit, by task name; losing or doubling it is harmless.

A worker that was rung looks round its queue when it is done and takes what it finds, so a queue that holds enough
doorbells needs no more: the workers are busy, and a burst of starts pays the broker for the first of them only.

A dead or hanging broker costs a caller less than a second, and then nothing for a while: what was not rung for is found
in the store and rung for by the supervisor.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery import current_app
from django.db import transaction

from workflows.conf import conf

logger = logging.getLogger(__name__)

WORK = "agents.tasks.work"
DECIDE = "supervisor.tasks.decide"
ATTEND = "supervisor.tasks.attend"
WAKE = "supervisor.tasks.wake"
TELL_PARENT = "supervisor.tasks.tell_parent"
SUPERVISOR_QUEUE = "supervisor"

_SILENT_AFTER_FAILURE = 2.0
# How long, in seconds, and for how many rings, a look at the depth of a queue is good.
_LOOK_AT_DEPTH_EVERY = 1.0
_LOOK_AT_FULL_QUEUE_EVERY = 0.02
_LOOK_AT_DEPTH_AFTER = 25


class _Bell:
    """What this process knows of the broker: whether it just failed, and how full each queue is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent_until = 0.0
        self._looked_at: dict[str, tuple[float, int]] = {}
        self._full: dict[str, bool] = {}

    def may_ring(self, queue: str) -> bool:
        """False while the broker is believed down, or holds as many doorbells for this queue as it should."""
        with self._lock:
            now = time.monotonic()
            if now < self._silent_until:
                return False
            last, rung = self._looked_at.get(queue, (0.0, _LOOK_AT_DEPTH_AFTER))
            full = self._full.get(queue, False)
            if full and now - last < _LOOK_AT_FULL_QUEUE_EVERY:
                return False
            if not full and now - last < _LOOK_AT_DEPTH_EVERY and rung < _LOOK_AT_DEPTH_AFTER:
                self._looked_at[queue] = (last, rung + 1)
                return True
        full = depth(queue) >= conf.rings_per_queue
        with self._lock:
            self._looked_at[queue] = (time.monotonic(), 1)
            self._full[queue] = full
        return not full

    def failed(self) -> None:
        with self._lock:
            self._silent_until = time.monotonic() + _SILENT_AFTER_FAILURE


_bell = _Bell()


def depth(queue: str) -> int:
    """How many messages a queue holds. Raises what the transport raises when the broker does not answer."""
    connection: Any
    with current_app.pool.acquire(block=True) as connection:
        try:
            # The default channel is opened under our own limits; any other would be tried for twice, with a wait between.
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0


def ring_on_commit(steps: Iterable[tuple[int | None, str]]) -> None:
    """Ring for [step id, queue], or for a queue alone, once the transaction that is open, if any, has committed."""
    for step_id, queue in steps:
        _on_commit(partial(ring, queue, step_id))


def ring(queue: str, step_id: int | None = None) -> bool:
    """Ring now. False when it was left to the supervisor."""
    return _send(WORK, queue, [queue, step_id])


def ring_supervisor_on_commit(step_id: int) -> None:
    """A step failed: have its remedy chosen at once instead of at the next sweep."""
    _on_commit(partial(_send, DECIDE, SUPERVISOR_QUEUE, [step_id]))


def ring_attend_on_commit(job_id: uuid.UUID) -> None:
    """The scheduler has more to do on a job than one transaction should: go on at once."""
    _on_commit(partial(_send, ATTEND, SUPERVISOR_QUEUE, [str(job_id)]))


def ring_wake_on_commit(step_id: int) -> None:
    """A step wants something of another job: see to it at once."""
    _on_commit(partial(_send, WAKE, SUPERVISOR_QUEUE, [step_id]))


def ring_tell_parent_on_commit(job_id: uuid.UUID) -> None:
    """A child has ended: the step that waits for it should hear of it at once."""
    _on_commit(partial(_send, TELL_PARENT, SUPERVISOR_QUEUE, [str(job_id)]))


def _on_commit(ring_now: Callable[[], object]) -> None:
    def rung() -> None:  # a function of its own, since Django asks what failed for its __qualname__
        ring_now()

    transaction.on_commit(rung, robust=True)


def _send(task: str, queue: str, arguments: list[object]) -> bool:
    try:
        if not _bell.may_ring(queue):
            return False
        _publish(task, queue, arguments)
    except Exception as error:  # transports raise errors of their own; none may reach a caller who has committed
        _bell.failed()
        logger.warning("no ring for queue %s, the supervisor will see to it: %s", queue, error)
        return False
    return True


def _publish(task: str, queue: str, arguments: list[object]) -> None:
    """What `send_task` does, without what a doorbell has no use for: routes, results, signals, what monitors are told, and
    a declaration of the queue, which its workers make; before they do, a ring is lost, which is harmless.
    """
    headers, properties, body, _ = current_app.amqp.create_task_message(
        uuid.uuid4().hex, task, args=arguments, argsrepr="", kwargsrepr="", ignore_result=True
    )
    connection: Any
    with current_app.pool.acquire(block=True) as connection:
        channel = connection.default_channel
        message = channel.prepare_message(
            json.dumps(body),
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            properties=properties,
        )
        channel.basic_publish(message, exchange="", routing_key=queue)
