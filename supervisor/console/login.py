"""Signing in: by name and password, or with the one-time link that `manage.py up` prints."""

from django.contrib.auth import login as sign_in
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect

from sagsite import login_links

BACKEND = "django.contrib.auth.backends.ModelBackend"


class Login(LoginView):
    template_name = "console/login.html"
    redirect_authenticated_user = True


_form = Login.as_view()
logout = LogoutView.as_view()


def login(request: HttpRequest) -> HttpResponseBase:
    """The form; with `?token=`, the one-time link."""
    if request.method == "GET" and "token" in request.GET:
        return login_link(request, request.GET["token"])
    return _form(request)


def login_link(request: HttpRequest, token: str) -> HttpResponseBase:
    """Sign in whom the link was made for; a link that is used, forged or too old leads to the form, which says so."""
    user = login_links.redeem(token)
    if user is not None:
        sign_in(request, user, backend=BACKEND)
        return redirect("overview")
    if request.user.is_authenticated:
        return redirect("overview")
    response = Login.as_view(extra_context={"link_is_void": True})(request)
    response.status_code = 403
    return response
