"""Each step has its own time: a short one is given up soon, a long one is left alone for as long as it gives signs of life."""

from datetime import timedelta

from supervisor import sweep as supervision
from tests.integration.engine import Engine, check_books, named, state_of, states
from workflows import Workflow, step, transitions
from workflows.models import Event


class OfTwoLengths(Workflow):
    short = step("shop.a", timeout=timedelta(seconds=5))
    long = step("shop.b", timeout=timedelta(seconds=120))


def _watch(engine: Engine, seconds: int) -> int:
    """Sweeps every two seconds; how many steps they took over."""
    taken = 0
    for _ in range(seconds // 2):
        engine.ahead(2)
        taken += supervision.sweep(engine.memory).expired
    return taken


def _settled_supervisor(engine: Engine) -> None:
    """Past the grace of the first sweep of all."""
    supervision.sweep(engine.memory)
    _watch(engine, 12)


def test_a_silent_step_is_given_up_at_its_own_time_and_not_at_another_ones(engine: Engine) -> None:
    """SAS-022, first run; SAS-027."""
    job = OfTwoLengths.start()
    _settled_supervisor(engine)
    engine.claim(named(job, "short"))
    assert _watch(engine, 4) == 0
    assert _watch(engine, 4) == 1
    assert states(job)["short"] == "NotStarted"


def test_a_long_step_is_never_touched_while_it_beats(engine: Engine) -> None:
    """SAS-022, second run."""
    job = OfTwoLengths.start()
    _settled_supervisor(engine)
    claimed = engine.claim(named(job, "long"))
    for _ in range(50):
        assert transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held == {claimed.token}
        assert _watch(engine, 2) == 0
    assert named(job, "long").attempt == 1


def test_a_long_step_whose_heartbeat_stops_is_taken_over_after_the_lease_and_not_at_its_time_out(
    engine: Engine,
) -> None:
    """SAS-022, third run."""
    job = OfTwoLengths.start()
    _settled_supervisor(engine)
    claimed = engine.claim(named(job, "long"))
    for _ in range(10):
        transitions.heartbeat({claimed.token: (claimed.step_id, None)}).held
        _watch(engine, 2)
    assert _watch(engine, 6) == 0
    assert _watch(engine, 6) == 1


def test_an_ended_job_is_never_announced_again_whatever_comes_late(engine: Engine) -> None:
    """SAS-017: the workers came up after the steps had been given up; their late words change no terminal state."""
    job = OfTwoLengths.start()
    _settled_supervisor(engine)
    late = [engine.claim(named(job, "short"), "slow start"), engine.claim(named(job, "long"), "slow start")]
    _watch(engine, 14)
    engine.drain()
    engine.pass_time(5, times=4)
    ended = state_of(job)
    assert ended == "Completed"
    for claimed in late:
        assert engine.settle(claimed) is None
    engine.pass_time(5, times=4)
    announced = ["job.completed", "job.compensated", "job.failed"]
    assert Event.objects.filter(job=job, kind__in=announced).count() == 1
    assert state_of(job) == ended
    check_books(job)
