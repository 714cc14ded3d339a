"""One PostgreSQL and one Valkey for the whole run, started by its first process; each xdist worker has its own database."""

import pytest

from tests import settings
from tests.servers import Servers

SERVERS = pytest.StashKey[Servers]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Acceptance first, behind whatever other order there is: it mostly waits, and must not be what is left at the end."""
    items.sort(key=lambda item: "acceptance" not in item.path.parts)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    servers = Servers(settings.FOLDER, database=settings.OWN_DATABASE, broker=settings.OWN_BROKER)
    config.stash[SERVERS] = servers
    servers.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if servers := config.stash.get(SERVERS, None):
        servers.stop()
