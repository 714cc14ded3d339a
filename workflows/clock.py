"""The one clock: the database's, through the SQL function `sag_now()`, which tests can move."""

from datetime import datetime

from django.db import connection
from django.db.models import DateTimeField, Func


class SagNow(Func):
    """`sag_now()` as an expression. Unlike Django's `Now` it moves between the statements of one transaction."""

    function = "sag_now"
    output_field = DateTimeField()
    allowed_default = True


def now() -> datetime:
    """The database's present time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sag_now()")
        present: datetime = cursor.fetchone()[0]
    return present
