"""How people get in: one-time links, the demo's operator, and the database that is new enough."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from sagsite import demo_operator, login_links
from sagsite.checks import version_fault
from sagsite.home import Home

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ada")


def token_of(user: User) -> str:
    return login_links.make(user).partition("token=")[2].replace("%3A", ":").replace("%3D", "=")


def test_a_link_signs_its_user_in_once(user: User) -> None:
    token = token_of(user)
    assert login_links.redeem(token) == user
    assert login_links.redeem(token) is None


def test_a_link_made_before_another_login_is_void(user: User) -> None:
    token = token_of(user)
    user.last_login = timezone.now()
    user.save()
    assert login_links.redeem(token) is None


def test_a_forged_an_old_and_a_disabled_users_link_are_refused(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    token = token_of(user)
    assert login_links.redeem(token[:-2] + "zz") is None
    user.is_active = False
    user.save()
    assert login_links.redeem(token) is None
    user.is_active = True
    user.save()
    monkeypatch.setattr(login_links, "LIFETIME", timedelta(seconds=-1))
    assert login_links.redeem(token) is None


def test_the_demo_keeps_its_login_and_token_while_the_database_knows_them(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = demo_operator.ensure(home)
    again = demo_operator.ensure(home)
    assert (again.password, again.token) == (first.password, first.token)
    assert first.user.groups.filter(name="operators").exists()
    assert first.user.check_password(first.password)


def test_a_new_database_gives_the_demo_a_new_token(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = demo_operator.ensure(home)
    first.user.delete()
    again = demo_operator.ensure(home)
    assert again.token != first.token
    assert demo_operator.token_is_known(again.token)


def test_an_old_or_foreign_database_is_named() -> None:
    def database(vendor: str, version: tuple[int, int]) -> Any:
        shown = SimpleNamespace(vendor=vendor, display_name=vendor, get_database_version=lambda: version)
        return cast(Any, shown)

    assert version_fault(connection) is None
    assert "PostgreSQL 14.2; 15 or newer is needed" in str(version_fault(database("postgresql", (14, 2))))
    assert "names a sqlite database" in str(version_fault(database("sqlite", (3, 40))))


def test_every_connection_has_limits_below_a_lease() -> None:
    with connection.cursor() as cursor:
        shown = {}
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"SHOW {name}")
            shown[name] = cursor.fetchone()[0]
        cursor.execute("SELECT reset_val FROM pg_settings WHERE name = 'statement_timeout'")
        assert cursor.fetchone()[0] == "8000"
    assert shown == {"statement_timeout": "8s", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "8s"}
