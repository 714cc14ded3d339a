"""The manner that the trip's three vendors share: a reservation is made, looked up and cancelled by its key."""

import functools
from typing import Any
from urllib.parse import quote

import httpx2
from django.conf import settings

from agents import Call, InDoubt, Permanent
from agents.http import Client


class Reservations:
    """The reservations of one vendor, with the answers of its HTTP interface read and its refusals raised.

    `keeps` names the fields of a reservation that the caller wants; an answer without them cannot be read.
    """

    def __init__(self, vendor: str, service: str, *, keeps: tuple[str, ...]) -> None:
        self.vendor = vendor
        self.service = service
        self.keeps = keeps

    def make(self, call: Call) -> dict[str, Any]:
        """The vendor's reservation under the step's key: a new one, or the one that is there already."""
        answer = self._client.post(call, "/reservations", json=call.input)
        if answer.status_code == 201:
            return self._read(answer, self.keeps)
        raise self._refused(answer)

    def find(self, call: Call) -> dict[str, Any] | None:
        """The live reservation under the step's key, or None if the vendor knows of none."""
        answer = self._client.get(call, _by_key(call.idempotency_key))
        if answer.status_code == 200:
            return self._read(answer, self.keeps)
        # A 404 of something else on the way (a wrong address, a proxy) says nothing about the reservation.
        if answer.status_code == 404 and _content(answer).get("code") == "not_found":
            return None
        raise self._unclear(answer)

    def cancel(self, call: Call) -> dict[str, Any]:
        """Cancel what stands under the key of the step that is undone: {"cancelled": bool, "reference": if it was}."""
        if call.undoes is None:
            raise Permanent("cancel undoes another step's reservation; this step undoes none.", code="nothing_to_undo")
        answer = self._client.delete(call, _by_key(call.undoes.idempotency_key))
        if answer.status_code == 200:
            said = self._read(answer, ("cancelled",))
            return said | self._read(answer, ("reference",)) if said["cancelled"] else said
        raise self._refused(answer)

    @property
    def _client(self) -> Client:
        return _client(self.vendor, f"{settings.SIMULATORS_URL.rstrip('/')}/{self.service}")

    def _read(self, answer: httpx2.Response, names: tuple[str, ...]) -> dict[str, Any]:
        content = _content(answer)
        if not content.keys() >= set(names):
            raise self._unclear(answer)
        return {name: content[name] for name in names}

    def _refused(self, answer: httpx2.Response) -> Permanent | InDoubt:
        if not answer.is_client_error:
            return self._unclear(answer)
        said = _content(answer)
        message = said.get("message") or f"It answered {answer.status_code}."
        code = str(said.get("code") or f"http_{answer.status_code}")
        return Permanent(f"Refused by {self.vendor}: {message}", code=code)

    def _unclear(self, answer: httpx2.Response) -> InDoubt:
        asked = f"{answer.request.method} {answer.request.url.path}"
        message = f"{self.vendor} gave an answer to {asked} that cannot be read (status {answer.status_code})."
        return InDoubt(message, code="unclear_answer")


@functools.cache
def _client(vendor: str, base_url: str) -> Client:
    return Client(vendor, base_url)


def _by_key(key: str) -> str:
    return f"/reservations/{quote(key, safe='')}"


def _content(answer: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer; an empty one if it is anything else."""
    try:
        content = answer.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
