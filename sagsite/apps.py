"""The project as an app: its commands, and what holds for the database as a whole."""

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate, pre_migrate


class SagsiteConfig(AppConfig):
    name = "sagsite"
    default = True

    def ready(self) -> None:
        from sagsite import checks  # noqa: F401  (registers them)

        pre_migrate.connect(lift_statement_timeout, dispatch_uid="sagsite.lift_statement_timeout")
        post_migrate.connect(restore_statement_timeout, dispatch_uid="sagsite.restore_statement_timeout")


def lift_statement_timeout(using: str, **_: Any) -> None:
    """A migration may take its time; the limit is for statements that a job waits for."""
    with connections[using].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")


def restore_statement_timeout(using: str, **_: Any) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("RESET statement_timeout")
