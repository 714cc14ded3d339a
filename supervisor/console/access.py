"""Who may look, and who may act: everybody who has signed in reads, the group `operators` pushes buttons."""

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe
from django_htmx.http import HttpResponseClientRedirect

OPERATORS = "operators"

View = Callable[..., HttpResponse]


def reader(view: View) -> View:
    """A page for anybody who has signed in."""
    return never_cache(require_safe(_signed_in(view)))


def operator(view: View) -> View:
    """A button's target: POST, by a member of the group `operators`; 403 for anybody else who has signed in."""

    @wraps(view)
    def act(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not is_operator(request.user):
            raise PermissionDenied("Only members of the group “operators” may do this. You may read everything.")
        return view(request, *args, **kwargs)

    return never_cache(require_POST(_signed_in(act)))


def is_operator(user: AbstractBaseUser | AnonymousUser) -> bool:
    return isinstance(user, User) and user.groups.filter(name=OPERATORS).exists()


def actor(request: HttpRequest) -> str:
    """How the history names the person who clicked."""
    return f"operator:{cast(User, request.user).get_username()}"


def _signed_in(view: View) -> View:
    @wraps(view)
    def look(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated:
            return view(request, *args, **kwargs)
        if getattr(request, "htmx", False):  # a redirect would put the login form into the middle of the page
            return HttpResponseClientRedirect(resolve_url(settings.LOGIN_URL))
        return redirect_to_login(request.get_full_path())

    return look
