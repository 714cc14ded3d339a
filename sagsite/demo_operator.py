"""The operator and the API client of the demo, kept in SAG_HOME/demo.json."""

import secrets
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission, User
from knox import crypto
from knox.models import get_token_model

from sagsite.home import Home, read_json, write_json

USERNAME = "operator"
GROUP = "operators"
TOKEN_NAME = "demo"
SCOPES = ["jobs:read", "jobs:write", "jobs:operate"]
APPS_TO_READ = ["sag_workflows", "sag_agents", "sag_supervisor"]


@dataclass(frozen=True)
class DemoAccess:
    """How to get in: the operator's login for people, the token for programs."""

    user: User
    password: str
    token: str


def ensure(home: Home) -> DemoAccess:
    """The login and token of demo.json if this database still knows them, else new ones, written there.

    Not in one transaction: hashing a password takes seconds on a busy machine, and every part can be repeated.
    """
    kept = read_json(home.demo_file)
    user = operator()
    password = kept.get("password", "")
    token = kept.get("token", "")
    if not user.check_password(password):
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        user.save(update_fields=["password"])
    if not token_is_known(token):
        token = new_token(user)
    write_json(home.demo_file, {**kept, "username": USERNAME, "password": password, "token": token})
    return DemoAccess(user, password, token)


def operator() -> User:
    """The demo's operator: pushes buttons in the console, reads in the admin."""
    user, _ = get_user_model()._default_manager.get_or_create(username=USERNAME, defaults={"is_staff": True})
    group, _ = Group.objects.get_or_create(name=GROUP)
    group.permissions.add(
        *Permission.objects.filter(content_type__app_label__in=APPS_TO_READ, codename__startswith="view_")
    )
    user.groups.add(group)
    return user


def token_is_known(token: str) -> bool:
    return bool(token) and get_token_model().objects.filter(digest=crypto.hash_token(token)).exists()


def new_token(user: User) -> str:
    """A token of the operator's with the scopes of a client that may do everything with jobs."""
    _, token = get_token_model().objects.create(user, expiry=None, name=TOKEN_NAME, scopes=SCOPES)
    return str(token)


def is_seeded(home: Home) -> bool:
    return bool(read_json(home.demo_file).get("seeded"))


def mark_seeded(home: Home) -> None:
    write_json(home.demo_file, {**read_json(home.demo_file), "seeded": True})
