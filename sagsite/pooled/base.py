"""Connections from Django's pool, each looked at as it is taken out; found by Django under its setting ENGINE.

The pool's own check takes the next connection after a broken one, and waits longer before each. A restarted server
leaves a dozen of them, so that requests failed long after it was back. Here the first broken one has all others looked
at, and those that are broken replaced, at once.
"""

from typing import Any

from django.db.backends.postgresql import base
from psycopg import Connection, OperationalError


class DatabaseWrapper(base.DatabaseWrapper):
    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection[Any]:
        """One that answers. Raises psycopg's OperationalError when there is none within the pool's `timeout`."""
        while True:
            connection: Connection[Any] = super().get_new_connection(conn_params)
            try:
                self.pool.check_connection(connection)
            except OperationalError:
                self.pool.putconn(connection)
                self.pool.check()
            else:
                return connection
