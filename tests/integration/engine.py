"""The engine played in one process, without a broker: a test answers the doorbells, moves the clock, and stands in for
the services. `Beside` runs something in a second database session, as another process would.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.db import connection, transaction

from agents import Agent, worker
from agents.call import Call
from supervisor import sweep as supervision
from supervisor.models import Sweep
from tests.waiting import wait_until
from workflows import Workflow, broker, errands, reports, scheduler, transitions
from workflows.clock import now
from workflows.models import Agent as AnnouncedAgent
from workflows.models import ClockOffset, Event, Job, Step
from workflows.plans.plan import Plan
from workflows.transitions import Claimed

T = TypeVar("T")

STEPS = "abcdefg"
AGENTS = {
    "shop": Agent("shop", honours_keys=True, closes_keys=True),
    "kiosk": Agent("kiosk", honours_keys=True),
    "stall": Agent("stall"),
    "depot": Agent("depot", queue="depot", honours_keys=True, closes_keys=True),
}

calls: list[tuple[str, Call]] = []
answers: dict[str, deque[Any]] = {}


def _offer(agent: Agent, operation: str) -> None:
    name = f"{agent.name}.{operation}"

    def perform(call: Call) -> Any:
        calls.append((name, call))
        return _answer(name, call)

    perform.__name__ = operation
    agent.operation(perform)


def _answer(name: str, call: Call) -> Any:
    scripted = answers.get(name)
    if not scripted:
        return None if name.endswith(".find") else {"from": call.step, "attempt": call.attempt}
    answer = scripted.popleft() if len(scripted) > 1 else scripted[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer(call) if callable(answer) else answer


for _agent in AGENTS.values():
    for _operation in [*STEPS, *(f"undo_{step}" for step in STEPS), "find"]:
        _offer(_agent, _operation)


def announce_all() -> None:
    """As the workers do when they start."""
    for agent in AGENTS.values():
        transitions.announce(
            AnnouncedAgent(
                name=agent.name,
                queue=agent.queue,
                operations=sorted(agent.operations),
                honours_keys=agent.honours_keys,
                closes_keys=agent.closes_keys,
                lands_within=agent.lands_within,
            )
        )


class Engine:
    """What a test does with the engine. `rings` are the doorbells that nobody has answered yet."""

    def __init__(self) -> None:
        self.rings: deque[tuple[str, str, list[Any]]] = deque()
        self.memory = supervision.Memory()

    # --- the services ---

    def says(self, operation: str, *scripted: Any) -> None:
        """What a service answers, call by call, the last one for ever: a result, an exception, or a function."""
        answers[operation] = deque(scripted)

    def asked(self) -> list[str]:
        """The operations that were called, in order."""
        return [name for name, _ in calls]

    def calls_of(self, operation: str) -> list[Any]:
        return [call for name, call in calls if name == operation]

    # --- time ---

    def ahead(self, seconds: float) -> None:
        """Move the clock forward."""
        row, _ = ClockOffset.objects.get_or_create(pk=1)
        ClockOffset.objects.filter(pk=1).update(ahead=row.ahead + timedelta(seconds=seconds))

    # --- doorbells ---

    def send(self, task: str, queue: str, arguments: list[Any]) -> bool:
        self.rings.append((task, queue, arguments))
        return True

    def drain(self) -> None:
        """Answer the doorbells until it is quiet."""
        while self.rings:
            self.answer(*self.rings.popleft())

    def answer(self, task: str, _queue: str, arguments: list[Any]) -> None:
        """What whoever is rung for does."""
        if task == broker.WORK:
            worker.work(*arguments)
        elif task == broker.DECIDE:
            supervision.decide(*arguments)
        elif task == broker.ATTEND:
            scheduler.attend_to_all(uuid.UUID(arguments[0]))
        elif task == broker.WAKE:
            errands.wake(*arguments)
        else:
            assert task == broker.TELL_PARENT, task
            errands.tell_parent(uuid.UUID(arguments[0]))

    def pass_time(self, seconds: float, times: int = 1) -> None:
        """Let time go by as the supervisor sees it: it rings for what is due, and workers answer."""
        for _ in range(times):
            self.ahead(seconds)
            supervision.wake_due()
            supervision.ring_due()
            self.drain()

    def sweep(self) -> Sweep:
        """One pass of a supervisor whose last pass has only just ended, so that it expires what is overdue."""
        present = now()
        Sweep.objects.create(started_at=present, finished_at=present)
        return supervision.sweep(self.memory)

    # --- a worker's three movements, one at a time ---

    def claim(self, step: Step, worker_name: str = "other", token: uuid.UUID | None = None) -> Claimed:
        claimed = transitions.claim(step.pk, token=token or uuid.uuid4(), worker=worker_name)
        assert claimed is not None, f"{step.name} could not be claimed"
        return claimed

    def settle(self, claimed: Claimed, result: str = "{}", **options: Any) -> Any:
        filled: dict[str, Any] = {"sent": "{}", "next_token": uuid.uuid4(), "worker": "other", "hand_over": True}
        return reports.settle(claimed, result=result, **filled | options)


@contextmanager
def locked(job: Job) -> Iterator[None]:
    """Hold the job's lock, as a verb that is not done yet does. What is done inside commits at the end."""
    with transaction.atomic():
        transitions.lock(job.pk)
        yield


class Beside(Generic[T]):
    """Something that runs in a database session of its own, at once."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._pid: Future[int] = Future()
        self._outcome: Future[T] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._pid.set_result(backend())
            self._outcome.set_result(self._act())
        except BaseException as error:
            if not self._pid.done():
                self._pid.set_exception(error)
            self._outcome.set_exception(error)
        finally:
            connection.close()

    def until_blocked(self) -> "Beside[T]":
        """Come back once it waits for a lock. Asks the lock table, which is never a transaction's old snapshot."""
        wait_until(
            lambda: self._outcome.done() or self.is_blocked,
            timeout=10,
            what="the other session is blocked",
            every=0.005,
        )
        assert not self._outcome.done(), f"it was to wait for a lock, but ended: {self._outcome}"
        return self

    @property
    def is_blocked(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [self._pid.result(10)])
            return bool(cursor.fetchone()[0])

    def cut(self) -> None:
        """End its session, as the death of its process does."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [self._pid.result(10)])

    def result(self) -> T:
        return self._outcome.result(15)


def backend() -> int:
    """The server process behind this thread's session."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


# --- looking -----------------------------------------------------------------------------------------------------------


def named(job: Job, name: str) -> Any:
    return Step.objects.get(job=job, name=name)


def states(job: Job) -> dict[str, str]:
    return dict(Step.objects.filter(job=job).order_by("seq").values_list("name", "state"))


def state_of(job: Job) -> str:
    return str(Job.objects.values_list("state", flat=True).get(pk=job.pk))


def history(job: Job) -> list[str]:
    """The kinds of the job's events, each with its step where it has one."""
    events = Event.objects.filter(job=job).order_by("seq")
    return [" ".join(filter(None, [event.kind, event.step])) for event in events]


def _is_done_with(step: Step) -> bool:
    return step.state in ("Completed", "Skipped") or step.remedy in ("ignore", "otherwise")


def _check_items(fan: Step, items: list[Step]) -> None:
    undecided = ("", "escalate") if fan.role == "forward" else ("",)
    given_up = [item for item in items if item.state == "Failed" and item.remedy not in undecided]
    ended = [item for item in items if item.state in ("Completed", "Skipped")]
    assert fan.items_made == len(items), fan.name
    if fan.state == "Running":
        assert fan.items_failed == len(given_up), fan.name
        assert fan.items_open == (fan.items_total or 0) - len(ended) - len(given_up), fan.name


def check_books(job: Job) -> None:
    """What is true of every job at every moment: events without gaps, counters that agree with the rows."""
    job = Job.objects.get(pk=job.pk)
    numbers = list(Event.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
    assert numbers == list(range(1, job.seq + 1)), numbers
    steps = list(Step.objects.filter(job=job).prefetch_related("attempts"))
    plan = [step for step in steps if step.role == "forward" and step.parent_id is None and not step.superseded]
    assert job.open_steps == sum(not _is_done_with(step) for step in plan)
    for fan in steps:
        if fan.items_total is not None:
            _check_items(fan, [step for step in steps if step.parent_id == fan.pk])
    for step in steps:
        waits_for = [other.name for other in steps if step.seq in other.releases and other.released_at is None]
        if step.state == "NotStarted":
            assert step.waiting_for == len(waits_for), (step.name, step.waiting_for, waits_for)
        spreads = step.parent_id is None and job.plan["steps"][step.place].get("each") is not None
        calls = step.kind == "call" and (not spreads or step.role == "recheck")
        numbers = list(range(1, step.attempt + 1)) if calls else []
        assert [attempt.number for attempt in step.attempts.all()] == numbers, step.address
        unfinished = [attempt.number for attempt in step.attempts.all() if attempt.outcome == ""]
        assert unfinished == ([step.attempt] if calls and step.state == "Running" else []), step.name


def start(workflow: type[Workflow] | Plan, input: Any = None, **options: Any) -> Job:
    if isinstance(workflow, Plan):
        return scheduler.open_job(plan=workflow, input=input or {}, **options)
    return workflow.start(input, **options)
