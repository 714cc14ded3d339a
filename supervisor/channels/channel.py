"""What a message is, what a channel does with it, and how a setting that names channels is read."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class NotTold(Exception):
    """The other side said no, or nothing. Its text is kept and shown, so it has no address and no secret."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is told, in words and as data. Its id stays the same however often it has to be tried over a channel."""

    id: str
    type: str
    timestamp: datetime
    """When it came to pass, not when it is sent."""
    subject: str
    text: str
    data: Mapping[str, Any]


def in_words(error: Exception) -> str:
    """Why a message was not taken."""
    return str(error) if isinstance(error, NotTold) else f"{type(error).__name__}: {error}"


class Channel(Protocol):
    """One way to people. What was told over it is kept under its name, which therefore outlives a change of address."""

    @property
    def name(self) -> str: ...

    def send(self, message: Message) -> None:
        """Comes back once the other side has taken it. Whatever is raised means that it may have to be sent again."""


@dataclass(frozen=True)
class Fault:
    """A setting that cannot be followed: what is wrong, and what to do."""

    said: str
    do: str


def entries(setting: str, value: Any, like: str) -> Iterator[tuple[str, Any] | Fault]:
    """The named channels of a setting, which is a dict like `like`."""
    if not isinstance(value, Mapping):
        yield Fault(
            f"{setting} must be a dict of channels by name, not {type(value).__name__}.", f"Write it as {like}."
        )
        return
    for name, entry in value.items():
        if isinstance(name, str) and NAME.fullmatch(name):
            yield name, entry
        else:
            yield Fault(
                f"{setting} has a channel named {name!r}.",
                "Use at most 40 small letters, digits, hyphens and underscores, such as 'on-duty'.",
            )
