"""Where no sweep has run for long, a worker does the supervisor's rounds, until somebody else does them again."""

from collections.abc import Iterator
from contextlib import contextmanager

from sagsite import watch
from sagsite.watch import Deputy
from supervisor import sweep as supervision
from supervisor.models import Sweep
from tests.integration.engine import Beside, Engine, named, state_of
from workflows import Workflow, step
from workflows.conf import conf


class OneForDeputy(Workflow):
    a = step("shop.a")


MISSED = watch.SWEEPS_MISSED * conf.sweep + 1


def test_while_the_supervisor_sweeps_nobody_stands_in(engine: Engine) -> None:
    deputy = Deputy()
    for _ in range(20):
        supervision.sweep()
        assert not deputy.look()
        engine.ahead(2)


def test_after_ten_missed_sweeps_a_worker_stands_in_at_each_look(engine: Engine) -> None:
    supervision.sweep()
    deputy = Deputy()
    assert not deputy.look()
    engine.ahead(MISSED)
    assert [deputy.look() for _ in range(3)] == [True, True, True]
    assert Sweep.objects.count() == 4


def test_a_system_that_was_just_started_has_time_for_its_first_sweep(engine: Engine) -> None:
    """The last sweep is of yesterday, or there was none."""
    supervision.sweep()
    for known in (True, False):
        engine.ahead(86_400)
        if not known:
            Sweep.objects.all().delete()
        deputy = Deputy()
        assert not deputy.look()
        engine.ahead(MISSED - 3)
        assert not deputy.look()
        engine.ahead(4)
        assert deputy.look()


def test_it_steps_back_when_another_has_swept(engine: Engine) -> None:
    supervision.sweep()
    deputy = Deputy()
    deputy.look()
    engine.ahead(MISSED)
    assert deputy.look()
    supervision.sweep()
    assert not deputy.look()
    assert not deputy.stands_in


def test_one_deputy_is_enough(engine: Engine) -> None:
    supervision.sweep()
    deputies = [Deputy(), Deputy()]
    assert not any(deputy.look() for deputy in deputies)
    engine.ahead(MISSED)
    assert [deputy.look() for deputy in deputies] == [True, False]
    engine.ahead(2)
    assert [deputy.look() for deputy in deputies] == [True, False]


def test_nobody_stands_in_while_another_worker_is_in_the_middle_of_a_round(engine: Engine) -> None:
    supervision.sweep()
    deputy = Deputy()
    deputy.look()
    engine.ahead(MISSED)
    with _in_a_round():
        assert not Beside(deputy.look).result()
    assert deputy.look()


@contextmanager
def _in_a_round() -> Iterator[None]:
    assert watch._lock()
    try:
        yield
    finally:
        watch._unlock()


def test_a_lost_step_is_recovered_by_a_deputy_alone(engine: Engine) -> None:
    """Its rounds are the whole of the supervisor's: leases, remedies, back-offs and doorbells."""
    supervision.sweep()
    job = OneForDeputy.start()
    deputy = Deputy()
    deputy.look()
    engine.claim(named(job, "a"))
    engine.rings.clear()
    engine.ahead(MISSED)
    for _ in range(40):
        deputy.look()
        engine.drain()
        engine.ahead(2)
    assert state_of(job) == "Completed"
    assert named(job, "a").attempt == 2
