"""System checks of the deployment."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from sagsite.embedded.postgres import OLDEST


def version_fault(connection: BaseDatabaseWrapper) -> str | None:
    """What is wrong with the version of the server, as one sentence; None when it will do."""
    if connection.vendor != "postgresql":
        return f"DATABASE_URL names a {connection.display_name} database; PostgreSQL {OLDEST} or newer is needed."
    major, minor = connection.get_database_version()
    if major >= OLDEST:
        return None
    return (
        f"The database server is PostgreSQL {major}.{minor}; {OLDEST} or newer is needed: upgrade it, or use another."
    )


@register(Tags.database)
def check_server_version(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    faults = [version_fault(connections[alias]) for alias in databases or []]
    return [Error(fault, id="sagsite.E001") for fault in faults if fault]
