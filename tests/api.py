"""A client program for tests of the API: real views, a real token, and every answer held against the OpenAPI document."""

import json
import re
import uuid
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.http import HttpResponse
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from rest_framework.test import APIClient

from workflows.models import ApiToken

PROBLEM = "application/problem+json"

TRIP: dict[str, Any] = {
    "traveller": {"name": "Ada Okafor", "email": "ada@example.com"},
    "flight": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 1},
    "hotel": {"city": "Lisbon", "check_in": "2027-03-04", "check_out": "2027-03-07", "guests": 1},
    "car": {"city": "Lisbon", "pick_up": "2027-03-04", "drop_off": "2027-03-07", "class": "compact"},
}


class Program:
    """A client program called `name`, holding one token with these scopes."""

    def __init__(self, name: str = "shop", *scopes: str) -> None:
        self.user, _ = get_user_model().objects.get_or_create(username=name)
        wanted = list(scopes or ("jobs:read", "jobs:write"))
        self.token_row, self.token = ApiToken.objects.create(self.user, expiry=None, name=name, scopes=wanted)

    def get(self, path: str, **headers: str) -> Any:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """`body` is sent as JSON, or as it is when it is bytes."""
        return self.ask("POST", path, body, headers)

    def ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        """Header names are written with underscores: `idempotency_key="k"`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Authorization": f"Bearer {self.token}", **named}
        kind = named.pop("Content-Type", "application/json")
        address = path if path.startswith("/") else f"/api/v1/{path}"
        client: Any = APIClient()
        response = client.generic(method, address, content, content_type=kind, headers=named)
        conform(response, method, address)
        return response

    def book(self, key: str = "trip-1", **changes: Any) -> str:
        """Start a trip; its id."""
        response = self.post("bookings", {**TRIP, **changes}, idempotency_key=key)
        assert response.status_code == 202, response.json()
        return str(response.json()["id"])


def newcomer(*scopes: str) -> Program:
    """A client program that no test has met before: for tests whose writes are committed."""
    return Program(f"client-{uuid.uuid4().hex}", *scopes)


@cache
def openapi() -> dict[str, Any]:
    """The document that `/api/v1/schema` answers with."""
    document: dict[str, Any] = APIClient().get("/api/v1/schema").json()
    return document


def conform(response: HttpResponse, method: str, address: str) -> None:
    """Fail unless the answer is what the OpenAPI document, or for errors RFC 9457, says."""
    if response.status_code in (204, 304):
        assert response.content == b""
        return
    document = json.loads(response.content, parse_constant=_no_constant)
    responses = _responses(method, address.partition("?")[0])
    answer = responses.get(str(response.status_code)) or _only_errors(responses, response)
    [(kind, content)] = answer["content"].items()
    assert response["Content-Type"] == kind
    Draft202012Validator({**content["schema"], "components": openapi()["components"]}).validate(document)
    if kind == PROBLEM:
        assert document["status"] == response.status_code
        assert "Traceback" not in document["detail"]
        assert document["type"] == "about:blank" or re.fullmatch(r"/problems/[a-z-]+", document["type"])


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _only_errors(responses: dict[str, Any], response: HttpResponse) -> dict[str, Any]:
    assert response.status_code >= 400, f"{response.status_code} is not in the OpenAPI document"
    return dict(responses["default"])


def _responses(method: str, address: str) -> dict[str, Any]:
    for path, operations in openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), address) and method.lower() in operations:
            return dict(operations[method.lower()]["responses"])
    return {"default": {"content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}}
