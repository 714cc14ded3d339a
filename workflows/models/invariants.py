"""What ties a row's state to its times, lease and error: one CHECK a table, each a function in the database (made in
the first migration).

PostgreSQL reads the text of every CHECK anew for every statement that writes: a dozen of them cost several times the
update itself. A call of one function is short to read, and the function is compiled once a connection.
"""

from django.db.models import BooleanField, Func


class Sound(Func):
    """A call of one of these functions, as a constraint's condition."""

    output_field = BooleanField()
