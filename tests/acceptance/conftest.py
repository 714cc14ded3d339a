"""Fixtures of the tests against a real running system."""

import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.system import RunningSystem
from tests.servers import Servers

LOG_TAIL = 6000  # characters of the system's output shown with a failed test
SYSTEM = pytest.StashKey[RunningSystem]()


@pytest.fixture(scope="package")
def shared_system() -> Iterator[RunningSystem]:
    """One system for all of these tests in this process; it does not outlive them, to take no time from those behind."""
    system = build()
    try:
        system.start()
        yield system
    finally:
        system.stop()


@pytest.fixture
def system(shared_system: RunningSystem, request: pytest.FixtureRequest) -> RunningSystem:
    """The shared system, whole again after whatever the test before did to it, its ledger empty."""
    shared_system.heal()
    request.node.stash[SYSTEM] = shared_system
    return shared_system


@pytest.fixture
def make_system(request: pytest.FixtureRequest) -> Iterator[Callable[..., RunningSystem]]:
    """Builds systems of a test's own (not started): `make_system(embedded=True, settings=…, variables=…)`."""
    made: list[RunningSystem] = []

    def make(**options: Any) -> RunningSystem:
        made.append(build(**options))
        request.node.stash[SYSTEM] = made[-1]
        return made[-1]

    yield make
    for system in made:
        system.stop()


def build(*, embedded: bool = False, **options: Any) -> RunningSystem:
    folder = Path(tempfile.mkdtemp(prefix="sag-system-"))
    servers = None if embedded else Servers(folder / "servers")
    return RunningSystem(folder, servers=servers, **options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what its system said."""
    report = yield
    system = item.stash.get(SYSTEM, None)
    if report.failed and system and system.output.exists():
        report.sections.append(("output of the system", system.said[-LOG_TAIL:]))
    return report
