"""What a token may do: one scope a route, and whose jobs it may see."""

import uuid
from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from workflows.exceptions import NotFound
from workflows.models import ApiToken, Job
from workflows.querysets import JobQuerySet

Scope = ApiToken.Scope


def has_scope(request: Request, *scopes: Scope) -> bool:
    """Whether the token holds one of these scopes, or all there are by being an administrator's."""
    held = request.auth.scopes if isinstance(request.auth, ApiToken) else ()
    return Scope.ADMIN in held or any(scope in held for scope in scopes)


class HasScope(BasePermission):
    """The view's `scopes` say for each method which scopes will do; the first is the one that is asked for."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """A method that the route does not have is left to the answer 405."""
        if not request.user or not request.user.is_authenticated:
            return False
        method = "GET" if request.method in ("HEAD", "OPTIONS") else request.method
        scopes = view.scopes.get(method)
        if scopes is None or has_scope(request, *scopes):
            return True
        self.message = f"This needs a token with the scope {scopes[0]}."
        return False


def client_id(request: Request) -> int:
    """The user id of the client that asks."""
    token: Any = request.auth
    return int(token.user_id)


def visible_jobs(request: Request) -> JobQuerySet:
    """Operators' programs see every job, all others those that they started. A job without a client is nobody's."""
    if has_scope(request, Scope.OPERATE):
        return Job.objects.all()
    return Job.objects.of_client(client_id(request))


def visible_job(request: Request, job_id: uuid.UUID, workflow: str | None = None) -> Job:
    """The job, or NotFound: for other clients' jobs too, so that nobody learns which ids exist."""
    jobs = visible_jobs(request).filter(pk=job_id)
    job: Job | None = (jobs.filter(workflow=workflow) if workflow else jobs).first()
    if job is None:
        raise NotFound(f"There is no {'job' if workflow is None else 'booking'} {job_id}.")
    return job


def actor(request: Request) -> str:
    """Under what name the client stands in a job's history."""
    return f"client:{request.user.get_username()}"
