"""What has to be true before the first role starts, and what the person at the terminal is told then."""

import sys
from collections.abc import Iterator

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command, get_commands
from django.db import OperationalError, connection
from django.db.migrations.executor import MigrationExecutor

from sagsite import demo_operator, login_links
from sagsite.checks import version_fault
from sagsite.demo_operator import DemoAccess
from sagsite.errors import MissingServer, StartRefused, WrongVersion
from sagsite.home import Home, read_json


def check_server_version() -> None:
    """Connect, and refuse a database that is too old."""
    try:
        connection.ensure_connection()
    except OperationalError as error:
        advice = (
            "start `manage.py up` without roles first, or set DATABASE_URL to a running server"
            if settings.EMBEDDED_DATABASE
            else "start the server that DATABASE_URL names, or correct the URL"
        )
        raise MissingServer(f"The database does not answer ({' '.join(str(error).split())}): {advice}.") from error
    if fault := version_fault(connection):
        raise WrongVersion(fault)


def unapplied() -> int:
    """How many migrations the database lacks."""
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def migrate() -> None:
    """Bring the database up to date; the planner is told about tables that are new."""
    if unapplied():
        call_command("migrate", verbosity=0, interactive=False)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


def check_migrations() -> None:
    """A role that starts alone does not migrate: several would at once."""
    if number := unapplied():
        raise StartRefused(f"The database lacks {number} migrations: run `python manage.py migrate` first.")
    connection.close()


def demo_access(home: Home) -> DemoAccess:
    access = demo_operator.ensure(home)
    connection.close()
    return access


def seed_command(home: Home) -> list[str] | None:
    """How to fill the demo; None when that was done, or there is no such command."""
    if demo_operator.is_seeded(home) or "seed_demo" not in get_commands():
        return None
    return [sys.executable, "manage.py", "seed_demo"]


def welcome(url: str, simulators_port: int, access: DemoAccess, home: Home) -> Iterator[str]:
    """The lines that say how to get in."""
    yield ""
    yield f"  Console     {url}{login_links.make(access.user)}"
    yield "              (the link signs you in, once)"
    yield f"  Login       {access.user.username} / {access.password}"
    yield f"  API token   {access.token}"
    yield f"  Simulators  http://127.0.0.1:{simulators_port}/"
    yield f"  Kept in     {home.path} (logs in logs/, the login in demo.json)"
    yield ""
    yield "  Ctrl-C stops everything and keeps the data."
    yield ""


def welcome_again(home: Home) -> Iterator[str]:
    """The same for a system that another runner started. Raises StartRefused if it is only half there."""
    state = home.read_state()
    kept = read_json(home.demo_file)
    yield f"Sag is already running: {state['url']}"
    user = get_user_model()._default_manager.get(username=kept["username"])
    port = int(state["simulators_url"].rpartition(":")[2])
    yield from welcome(state["url"], port, DemoAccess(user, kept["password"], kept["token"]), home)
