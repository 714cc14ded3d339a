"""Signing in to the console."""

import pytest
from django.test import Client

from sagsite import login_links
from tests import console_data as data

pytestmark = pytest.mark.django_db


def test_name_and_password_lead_to_the_page_that_was_asked_for(client: Client) -> None:
    data.person("ada")
    answer = client.post("/login/", {"username": "ada", "password": data.PASSWORD, "next": "/jobs/?state=Failed"})
    assert answer.status_code == 302
    assert answer["Location"] == "/jobs/?state=Failed"


def test_the_way_on_never_leads_to_another_site(client: Client) -> None:
    data.person("ada")
    answer = client.post("/login/", {"username": "ada", "password": data.PASSWORD, "next": "https://evil.example/"})
    assert answer["Location"] == "/"


def test_a_wrong_password_is_said_and_signs_nobody_in(client: Client) -> None:
    data.person("ada")
    answer = client.post("/login/", {"username": "ada", "password": "wrong"})
    assert answer.status_code == 200
    assert "correct username and password" in answer.content.decode()
    assert client.get("/").status_code == 302


def test_guessing_passwords_locks_the_name_out(client: Client) -> None:
    data.person("ada")
    for _ in range(10):
        client.post("/login/", {"username": "ada", "password": "wrong"})
    answer = client.post("/login/", {"username": "ada", "password": data.PASSWORD})
    assert answer.status_code == 429
    assert client.get("/").status_code == 302


def test_a_login_link_signs_in_once() -> None:
    link = login_links.make(data.person("ada"))
    first, second = Client(), Client()
    assert first.get(link)["Location"] == "/"
    assert first.get("/").status_code == 200
    void = second.get(link)
    assert void.status_code == 403
    assert "used already" in void.content.decode()
    assert second.get("/").status_code == 302


def test_a_used_link_still_leads_home_for_whom_it_signed_in() -> None:
    link = login_links.make(data.person("ada"))
    client = Client()
    client.get(link)
    assert client.get(link)["Location"] == "/"


@pytest.mark.parametrize("token", ["", "nonsense", "a:b:c", "\0", "<script>"])
def test_a_forged_link_signs_nobody_in(client: Client, token: str) -> None:
    answer = client.get("/login/", {"token": token})
    assert answer.status_code == 403
    assert b"<script>" not in answer.content
    assert client.get("/").status_code == 302


def test_signing_out_is_a_post_and_ends_the_session(client: Client) -> None:
    client.force_login(data.person("ada"), backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302
