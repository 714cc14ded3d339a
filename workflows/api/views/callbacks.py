"""Callbacks: an outside service says what became of a call that an agent has deferred to it."""

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import signals
from workflows.api.bodies import Callback
from workflows.api.documents import CallbackDocument
from workflows.api.views.base import ApiView


class CallbackDetail(ApiView):
    """Who knows the address may say it, once: the token in it belongs to one step."""

    authentication_classes = ()
    permission_classes = ()
    scopes: ClassVar = {"POST": ()}

    @extend_schema(operation_id="call_back", auth=[], request=Callback, responses={200: CallbackDocument})
    def post(self, request: Request, token: str) -> Response:
        """Complete or fail a deferred step: `{"result": …}`, or `{"error": {"kind", "code", "message"}}`.

        The first word counts; a later one is recorded and answered with `ignored`.
        """
        called = signals.call_back(token, request.data)
        return Response(CallbackDocument(outcome=called.outcome).on_the_wire())
