"""Chats, pagers and phones, by the URLs of apprise: a library that need not be installed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

from supervisor.channels.channel import Channel, Fault, Message, NotTold, entries

# What would write to this machine, or to whoever sits before it, instead of telling somebody.
LOCAL = frozenset(
    ["blink1", "dbus", "exec", "file", "gio", "glib", "gnome", "include", "kde", "macosx", "qt", "syslog", "windows"]
)
_LIKE = '{"chat": "slack://…"}'
_SAID_AT_MOST = 300


@dataclass(frozen=True)
class Apprised:
    key: str
    url: str = field(repr=False)

    @property
    def name(self) -> str:
        return f"apprise {self.key}"

    def send(self, message: Message) -> None:
        from apprise import Apprise, NotifyFormat, NotifyType

        robot = Apprise(asset=_asset())
        robot.services.append(_service(self.url))
        kind = NotifyType.SUCCESS if message.type.endswith(".mended") else NotifyType.WARNING
        text = message.text
        told = robot.notify(text, title=message.subject, notify_type=kind, body_format=NotifyFormat.TEXT)
        if not told:
            said = " ".join(entry.message for entry in told.logs()) or "It was not delivered."
            raise NotTold(_without_parts_of(self.url, said)[:_SAID_AT_MOST])


def read(value: Any) -> Iterator[Channel | Fault]:
    """The channels of SAG_APPRISE."""
    for entry in entries("SAG_APPRISE", value, _LIKE):
        yield entry if isinstance(entry, Fault) else _apprised(*entry)


def _apprised(key: str, url: Any) -> Channel | Fault:
    where = f"SAG_APPRISE[{key!r}]"
    scheme, found, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    scheme = scheme.strip().lower()
    if not found:
        return Fault(f"{where} is not the URL of a service.", f"Write it as {_LIKE}; apprise's pages have them all.")
    if scheme in LOCAL:
        return Fault(f"{where}: {scheme}:// reaches this machine and nobody else.", "Name a service that tells people.")
    if find_spec("apprise") is None:
        return Fault(f"{where} needs apprise, which is not installed.", "Run: pip install 'apprise>=2.3,<2.4'")
    try:
        _service(url)
    except NotTold as error:
        return Fault(f"{where}: {error}", f"See what apprise's pages say of {scheme}://, and what it needs installed.")
    return Apprised(key, url)


def _service(url: str) -> Any:
    """What apprise makes of this URL. Raises NotTold."""
    from apprise import Apprise
    from apprise.exception import AppriseException

    scheme = url.partition("://")[0]
    try:
        service = Apprise.instantiate(url, asset=_asset(), suppress_exceptions=False)
    except AppriseException as error:
        said = _without_parts_of(url, str(error))
        raise NotTold(f"apprise does not understand this {scheme}:// URL: {said}") from None
    except Exception as error:  # a plugin's own trouble with what it was given
        raise NotTold(f"apprise cannot use this {scheme}:// URL: {type(error).__name__}") from None
    if service is None:
        raise NotTold(f"apprise does not understand this {scheme}:// URL, or cannot use it here.")
    return service


def _without_parts_of(url: str, text: str) -> str:
    """Plugins like to quote the token that they were given."""
    pieces = {piece for form in (url, unquote(url)) for piece in re.split(r"[/@:?&=#]+", form)[1:] if len(piece) > 3}
    for piece in sorted(pieces, key=len, reverse=True):
        text = text.replace(piece, "…")
    return text


def _asset() -> Any:
    """Nothing is kept on disk, nothing made up, no redirect followed; no pool of threads, whose end a process would await."""
    from apprise import AppriseAsset

    return AppriseAsset(
        app_id="Sag",
        storage_mode="memory",
        pem_autogen=False,
        pgp_autogen=False,
        http_redirects=False,
        allow_templates=False,
        async_mode=False,
        service_timeout=0,
    )
