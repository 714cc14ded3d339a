"""The plans that jobs can be started of, as data."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows.api.documents import WorkflowDocument, WorkflowPage
from workflows.api.pagination import linked
from workflows.api.views.base import READ, ApiView
from workflows.exceptions import NotFound, UnknownWorkflow
from workflows.plans import registry


class WorkflowList(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_workflows", responses={200: WorkflowPage})
    def get(self, request: Request) -> Response:
        """All workflows by name, each with the schema of its input and its steps."""
        found = [WorkflowDocument.of(workflow).on_the_wire() for workflow in registry.all()]
        return linked(found, next=None, prev=None)


class WorkflowDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_workflow", responses={200: WorkflowDocument})
    def get(self, request: Request, name: str) -> Response:
        """One workflow, as a job that is started now would follow it."""
        try:
            workflow = registry.get(name)
        except UnknownWorkflow as error:
            raise NotFound(error.message) from None
        return Response(WorkflowDocument.of(workflow).on_the_wire())
