"""What the OpenAPI document says beyond bodies and answers: the token, the headers, the query, the errors."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from workflows.api.documents import Problem
from workflows.api.idempotency import LONGEST
from workflows.api.pagination import DEFAULT_LIMIT, MAX_LIMIT
from workflows.api.problems import CONTENT_TYPE
from workflows.states import JobState, StepState

_KEY_POLICY = (
    f"Your own name for this request, of 1 to {LONGEST} printable ASCII characters, quoted or bare. Sent again with the "
    "same body it does nothing again and is answered as the first time; while the first is still at work, with 409; with "
    "another body, with 422. A key belongs to one client, method and path, and is kept for at least 24 hours. Answers to "
    "requests that were refused before anything was done are not kept. Follows draft-ietf-httpapi-idempotency-key-header-07."
)


def _header(name: str, description: str, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, required=required, description=description)


def _query(name: str, kind: Any, description: str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, kind, OpenApiParameter.QUERY, description=description, **more)


KEY = _header("Idempotency-Key", _KEY_POLICY)
KEY_REQUIRED = _header("Idempotency-Key", _KEY_POLICY, required=True)
IF_NONE_MATCH = _header("If-None-Match", "The ETag that you have; the answer is 304 while it is the present one.")
IF_MATCH = _header("If-Match", "The ETag that you saw; 412, and nothing is done, when it is no longer the present one.")
IF_MATCH_REQUIRED = _header(
    "If-Match", "The ETag that you saw, or `*`; 412 when it is no longer the present one, 428 without.", required=True
)
DOWN_TO = _query("down_to", str, "Only this step, and all that depends on it; left out, the whole job.")
ITEM_STATE = _query(
    "state", str, "Only items in this state; may be given several times.", enum=StepState.values, many=True
)
OUTCOME = _query(
    "outcome",
    str,
    "Only these; may be given several times.",
    enum=["started", "waiting", "skipped", "dropped"],
    many=True,
)
WORKFLOW = _query("workflow", str, "Only of this workflow.")
FILTERS = [
    _query("state", str, "Only in this state; may be given several times.", enum=JobState.values, many=True),
    _query("q", str, "Only the one with exactly this id or this key."),
]
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}
PAGING = [
    _query("cursor", str, "From `next` or `prev` of a page with the same filters."),
    _query("limit", {**_LIMIT, "default": DEFAULT_LIMIT}, "How many at most."),
]
EVENTS = [
    _query("since", {"type": "integer", "minimum": 0, "default": 0}, "Only events behind this number."),
    _query("limit", {**_LIMIT, "default": MAX_LIMIT}, "How many at most."),
]


class BearerTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the document names the token."""

    target_class = "workflows.api.authentication.BearerTokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """The security scheme."""
        return {"type": "http", "scheme": "bearer", "description": "From `manage.py create_token`."}


class ApiSchema(AutoSchema):
    """Adds to every operation the scope that it needs, and the problem document that its errors are."""

    def get_tags(self) -> list[str]:
        """The first noun of the path."""
        return [self.path.removeprefix("/api/v1/").partition("/")[0]]

    def get_description(self) -> str:  # type: ignore[override]  # drf-spectacular keeps path and method on itself
        """The docstring of the method and its scopes."""
        view: Any = self.view
        needs = " or ".join(f"`{scope}`" for scope in view.scopes[self.method])
        return f"{super().get_description()}\n\nScope: {needs or 'none, and no token'}."

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        bodies["default"] = {
            **self._get_response_for_code(Problem, "400", [CONTENT_TYPE], direction),  # type: ignore[no-untyped-call]
            "description": "An error, as RFC 9457 has it.",
        }
        return bodies
