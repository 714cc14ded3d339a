"""How a worker looks round its queue."""

from agents import worker
from tests.integration.engine import Beside, Engine, locked, states
from workflows import Workflow, step

look_round = worker._look_round  # the engine's fixture takes it away


class Single(Workflow):
    a = step("shop.a")


def test_what_others_had_locked_is_looked_for_again_at_the_next_ring(engine: Engine) -> None:
    """SAS-020: the others may have been the last to look, and who rings next must not be told that there is nothing."""
    worker._process.found_nothing.clear()
    job = Single.start()
    with locked(job):
        Beside(lambda: look_round("agents")).result()
        assert states(job) == {"a": "NotStarted"}
    look_round("agents")
    assert states(job) == {"a": "Completed"}
