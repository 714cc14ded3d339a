"""One message to all addresses of SAG_NOTIFY."""

from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parseaddr
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email

from supervisor.channels.channel import Channel, Fault, Message

_SUBJECT_AT_MOST = 200


@dataclass(frozen=True)
class Email:
    addresses: tuple[str, ...]

    @property
    def name(self) -> str:
        return "e-mail"

    def send(self, message: Message) -> None:
        subject = " ".join(message.subject.split())[:_SUBJECT_AT_MOST]
        # A mail server that is given a message twice, and most programs that show it, tell so by this header.
        domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2]
        headers = {"Message-ID": f"<{message.id}@{domain}>"}
        EmailMessage(subject, message.text, None, list(self.addresses), headers=headers).send()


def read(value: Any) -> Iterator[Channel | Fault]:
    """The channel of SAG_NOTIFY, if it has addresses."""
    if not isinstance(value, list | tuple):
        yield Fault("SAG_NOTIFY must be a list of e-mail addresses.", 'Write it as ["ops@example.com"].')
        return
    wrong = [address for address in value if not _is_address(address)]
    if wrong:
        named = ", ".join(map(repr, wrong))
        yield Fault(f"SAG_NOTIFY has what is no e-mail address: {named}.", "Write them as ops@example.com.")
    elif value:
        yield Email(tuple(value))


def _is_address(value: Any) -> bool:
    try:
        validate_email(parseaddr(value)[1] if isinstance(value, str) else "")
    except ValidationError:
        return False
    return True
