"""The agents: what they offer, whether their services answer, and what waits for them."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import standing
from workflows.api.agents import AgentDocument, AgentPage
from workflows.api.pagination import linked
from workflows.api.views.base import READ, ApiView
from workflows.exceptions import NotFound


class AgentList(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="list_agents", responses={200: AgentPage})
    def get(self, request: Request) -> Response:
        """All agents that workers have announced, by name."""
        found = [AgentDocument.of(agent).on_the_wire() for agent in standing.of_agents()]
        return linked(found, next=None, prev=None)


class AgentDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_agent", responses={200: AgentDocument})
    def get(self, request: Request, name: str) -> Response:
        """One agent as it stands now."""
        found = standing.of_agent(name)
        if found is None:
            raise NotFound(f"No worker has announced an agent {name!r}.")
        return Response(AgentDocument.of(found).on_the_wire())
