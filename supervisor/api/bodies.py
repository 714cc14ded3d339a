"""What people and programs say about a cause."""

from typing import Annotated

from pydantic import StringConstraints

from workflows.api.bodies import Body, Moment, Verb


class Assignment(Verb):
    """Whose it is: a name, or nobody's when it is left empty."""

    assignee: Annotated[str, StringConstraints(strip_whitespace=True, max_length=150)]


class Snooze(Verb):
    """Until when it is kept from the top of the list and from being told; null: no longer."""

    until: Moment | None


class NoteText(Body):
    """What the next one who looks should know."""

    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=5000)]
