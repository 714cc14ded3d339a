"""The one list of what the machine may not decide alone."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows.api import schema
from workflows.api.documents import AttentionDocument, AttentionPage
from workflows.api.pagination import OLDEST_FIRST, page
from workflows.api.permissions import visible_jobs
from workflows.api.views.base import OPERATE, ApiView, with_steps


class Attention(ApiView):
    scopes = {"GET": OPERATE}

    @extend_schema(operation_id="list_attention", parameters=schema.PAGING, responses={200: AttentionPage})
    def get(self, request: Request) -> Response:
        """The jobs that need a person, the oldest first, each with what stands there and what may be done."""
        jobs = visible_jobs(request).needs_person()
        return page(request, jobs, [], lambda found: with_steps(found, AttentionDocument), OLDEST_FIRST)
