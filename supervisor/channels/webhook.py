"""Signed webhooks, as Standard Webhooks has them: who receives one can check who sent it, and when."""

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import httpx2
from standardwebhooks import Webhook as Signature

from supervisor.channels.channel import Channel, Fault, Message, NotTold, entries
from workflows.plans.nearest import did_you_mean

WITHIN = 15.0  # seconds, from looking up the name to the status of the answer
_LIKE = '{"on-duty": {"url": "https://example.com/sag", "secrets": ["whsec_…"]}}'
_DRAW_A_SECRET = "python -c \"import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())\""
_PREFIX = "whsec_"


@dataclass(frozen=True)
class Webhook:
    key: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """Each signs, so that receivers can go over from one to the next at their own time."""

    @property
    def name(self) -> str:
        return f"webhook {self.key}"

    def send(self, message: Message) -> None:
        said = {"type": message.type, "timestamp": message.timestamp.isoformat(), "data": message.data}
        body = json.dumps(said, ensure_ascii=False)
        # Receivers compare it with their own clocks, so it is not the database's, which a rehearsal may have moved.
        stamp = datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "sag",
            "webhook-id": message.id,
            "webhook-timestamp": str(int(stamp.timestamp())),
            "webhook-signature": " ".join(Signature(secret).sign(message.id, stamp, body) for secret in self.secrets),
        }
        try:
            with ThreadPoolExecutor(1) as aside:  # the caller's thread may have a loop of its own, which is running
                status = aside.submit(asyncio.run, self._post(body.encode(), headers)).result()
        except TimeoutError:
            raise NotTold(f"It did not answer within {WITHIN:g} s.") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            # Not chained, and without the address, which may be all that keeps strangers out.
            raise NotTold(f"{type(error).__name__}: {error}".replace(self.url, "its address")) from None
        if not 200 <= status < 300:
            redirect = ", a redirect, which is not followed" if 300 <= status < 400 else ""
            raise NotTold(f"It answered {status}{redirect}.")

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of the answer, whose body is not read.

        One clock for all of it: the client's own time-outs begin anew with every byte that trickles in.
        """
        async with (
            asyncio.timeout(WITHIN),
            httpx2.AsyncClient(timeout=None, follow_redirects=False, trust_env=False) as http,
            http.stream("POST", self.url, content=body, headers=headers) as answer,
        ):
            return int(answer.status_code)


def read(value: Any) -> Iterator[Channel | Fault]:
    """The channels of SAG_WEBHOOKS."""
    for entry in entries("SAG_WEBHOOKS", value, _LIKE):
        yield entry if isinstance(entry, Fault) else _webhook(*entry)


def _webhook(key: str, entry: Any) -> Channel | Fault:
    where = f"SAG_WEBHOOKS[{key!r}]"
    if not isinstance(entry, Mapping):
        return Fault(f"{where} must be a dict with url and secrets.", f"Write it as {_LIKE}.")
    if unknown := entry.keys() - {"url", "secrets"}:
        name = sorted(map(str, unknown))[0]
        return Fault(f"{where} has {name!r}, which is unknown.{did_you_mean(name, ['url', 'secrets'])}", "Remove it.")
    url, secrets = entry.get("url"), entry.get("secrets")
    if not is_web_address(url):
        return Fault(
            f"{where} has no url, or one that is not http:// or https:// with a host.", f"Write it as {_LIKE}."
        )
    if not isinstance(secrets, list | tuple) or not secrets:
        return Fault(f"{where} has no list of secrets to sign with.", f"Draw one with: {_DRAW_A_SECRET}")
    for number, secret in enumerate(secrets, 1):
        if not _is_secret(secret):
            return Fault(
                f"{where}: secret number {number} is not whsec_ and 24 to 64 bytes in base64.",
                f"Draw one with: {_DRAW_A_SECRET}",
            )
    return Webhook(key, url, tuple(secrets))


def is_web_address(value: Any) -> TypeGuard[str]:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        return False


def _is_secret(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(_PREFIX):
        return False
    try:
        return 24 <= len(base64.b64decode(value.removeprefix(_PREFIX), validate=True)) <= 64
    except ValueError:
        return False
