"""After an outage everything looks overdue and almost nothing is: for the length of one lease nothing expires."""

from datetime import timedelta
from typing import Any

from supervisor import sweep as supervision
from supervisor.models import Sweep
from tests.integration.engine import Engine, named, states
from workflows import Workflow, step, transitions
from workflows.clock import now
from workflows.models import Step


class Graced(Workflow):
    a = step("shop.a")


def _sweep_every(engine: Engine, seconds: float, until: float) -> list[int]:
    """How many steps expired in each of the sweeps at this interval."""
    expired = []
    for _ in range(int(until / seconds)):
        engine.ahead(seconds)
        expired.append(supervision.sweep(engine.memory).expired)
    return expired


def test_a_sweep_after_a_gap_expires_nothing_for_one_lease_and_then_does(engine: Engine) -> None:
    job = Graced.start()
    supervision.sweep(engine.memory)
    _sweep_every(engine, 2, 12)
    engine.claim(named(job, "a"))
    engine.ahead(300)
    assert supervision.sweep(engine.memory).expired == 0
    assert _sweep_every(engine, 2, 8) == [0, 0, 0, 0]
    assert sum(_sweep_every(engine, 2, 4)) == 1
    assert states(job)["a"] == "NotStarted"


def test_a_worker_that_beats_again_within_the_grace_keeps_its_step(engine: Engine) -> None:
    job = Graced.start()
    supervision.sweep(engine.memory)
    _sweep_every(engine, 2, 12)
    claimed = engine.claim(named(job, "a"))
    engine.ahead(15)
    supervision.sweep(engine.memory)
    assert transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held == {claimed.token}
    assert sum(_sweep_every(engine, 2, 8)) == 0
    assert engine.settle(claimed).job_state == "Completed"


def test_the_first_sweep_of_all_gives_the_grace_too(engine: Engine) -> None:
    job = Graced.start()
    engine.claim(named(job, "a"))
    engine.ahead(60)
    first: Any = supervision.sweep(engine.memory)
    assert (first.expired, (first.grace_until - first.started_at).total_seconds()) == (0, 10)


def test_without_a_gap_there_is_no_grace(engine: Engine) -> None:
    job = Graced.start()
    supervision.sweep(engine.memory)
    _sweep_every(engine, 2, 12)
    engine.claim(named(job, "a"))
    assert sum(_sweep_every(engine, 2, 12)) == 1


def test_sweeps_that_are_always_late_still_expire_what_is_overdue(engine: Engine) -> None:
    """A grace is not prolonged for ever."""
    job = Graced.start()
    supervision.sweep(engine.memory)
    engine.claim(named(job, "a"))
    assert sum(_sweep_every(engine, 5, 60)) >= 1


def test_sweeps_that_are_always_later_than_a_lease_still_expire_what_is_overdue(engine: Engine) -> None:
    """A supervisor that is started every quarter of a minute, by a cron of its own, or crashes as often."""
    job = Graced.start()
    supervision.sweep(engine.memory)
    engine.claim(named(job, "a"))
    assert sum(_sweep_every(engine, 15, 120)) >= 1


def test_failed_steps_get_their_remedy_in_the_grace_as_well(engine: Engine) -> None:
    from agents import Transient, worker

    engine.says("shop.a", Transient("busy"))
    Graced.start()
    _, _, arguments = engine.rings.popleft()
    worker.work(*arguments)
    engine.ahead(300)
    row: Any = supervision.sweep(engine.memory)
    assert row.grace_until > row.started_at
    assert row.remedied == 1


def test_old_sweeps_are_forgotten_and_the_newest_is_not(engine: Engine) -> None:
    supervision.sweep(engine.memory)
    engine.ahead(25 * 3600)
    supervision.sweep(engine.memory)
    supervision.sweep(engine.memory)
    assert Sweep.objects.count() == 2


def _at_work_beside_a_dead_worker(engine: Engine) -> None:
    """Two steps, one of them overdue: a sweep that looks now has a row to be frozen at."""
    first, second = Graced.start(), Graced.start()
    supervision.sweep(engine.memory)
    _sweep_every(engine, 2, 12)
    for job in (first, second):
        engine.claim(named(job, "a"))
    Step.objects.filter(job=first).update(complete_by=now() - timedelta(seconds=1))


def test_a_supervisor_frozen_in_the_middle_of_a_sweep_has_left_a_gap(engine: Engine) -> None:
    """All of the machine stood still, the workers too; the sweep that was under way ends when it thaws."""
    _at_work_beside_a_dead_worker(engine)
    frozen: list[float] = []

    def is_ours() -> bool:
        frozen.append(300)
        engine.ahead(300)
        return False

    assert supervision.sweep(engine.memory, is_ours).expired == 0
    assert frozen
    assert _sweep_every(engine, 2, 8) == [0, 0, 0, 0]
    assert sum(_sweep_every(engine, 2, 6)) == 2


def test_a_sweep_that_thaws_does_not_end_the_grace_that_another_has_begun(engine: Engine) -> None:
    _at_work_beside_a_dead_worker(engine)
    others: list[Any] = []

    def is_ours() -> bool:
        if not others:
            engine.ahead(12)
            others.append(supervision.sweep(engine.memory))
            engine.ahead(1)
        return False

    thawed: Any = supervision.sweep(engine.memory, is_ours)
    [other] = others
    assert other.grace_until > thawed.finished_at > (thawed.grace_until or other.started_at)
    assert _sweep_every(engine, 2, 8) == [0, 0, 0, 0]
    assert sum(_sweep_every(engine, 2, 6)) == 2


def test_a_clock_that_is_set_back_does_not_make_a_grace_last(engine: Engine) -> None:
    day = timedelta(days=1).total_seconds()
    _sweep_every(engine, 2, 12)
    engine.ahead(day)  # a gap, with a grace
    _sweep_every(engine, 2, 6)
    engine.ahead(-day)
    job = Graced.start()
    engine.claim(named(job, "a"))
    assert sum(_sweep_every(engine, 2, 24)) == 1
    assert not Sweep.objects.filter(finished_at__gt=now()).exists()
