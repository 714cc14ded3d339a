"""Tokens and jobs from the shell."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from tests.api import TRIP, Program
from workflows.models import ApiToken, Event, Job

pytestmark = pytest.mark.django_db


def run(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()


def test_a_new_client_gets_a_token_that_works_and_no_password() -> None:
    printed = run("create_token", "warehouse", "--scope", "jobs:read", "--scope", "jobs:write")
    token = printed.strip()
    assert printed == f"{token}\n"
    program = Program("warehouse")
    program.token = token
    assert program.get("jobs").status_code == 200
    assert program.get(f"jobs/{program.book()}").status_code == 200
    assert not get_user_model().objects.get(username="warehouse").has_usable_password()
    assert token not in str(list(ApiToken.objects.values()))


def test_a_client_that_is_there_gets_a_further_token() -> None:
    tokens = {run("create_token", "warehouse", "--scope", "jobs:read").strip() for _ in range(2)}
    assert len(tokens) == 2
    assert get_user_model().objects.filter(username="warehouse").count() == 1


@pytest.mark.parametrize("arguments", [["x"], ["x", "--scope", "jobs:fly"], ["no spaces please", "--scope", "admin"]])
def test_a_token_that_would_make_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        run("create_token", *arguments)
    assert not get_user_model().objects.filter(username=arguments[0]).exists()


def test_a_job_from_the_shell_prints_its_id_and_is_the_same_under_the_same_key(tmp_path: Path) -> None:
    file = tmp_path / "trip.json"
    file.write_text(json.dumps(TRIP))
    first, again = (
        run("start_job", "TripBooking", "--input", str(file), "--key", "shell-trip").strip() for _ in range(2)
    )
    assert first == again
    job = Job.objects.get(pk=first)
    assert (job.input, job.key, job.client_id) == (TRIP, "shell-trip", None)
    assert Event.objects.get(job=job).actor.startswith("shell:")


@pytest.mark.parametrize(
    ("workflow", "content", "said"),
    [
        ("TripBokking", "{}", "Did you mean 'TripBooking'"),
        ("TripBooking", "{", "is no JSON"),
        ("TripBooking", "{}", "/traveller"),
        ("TripBooking", None, "cannot be read"),
    ],
)
def test_a_start_that_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, workflow: str, content: str | None, said: str
) -> None:
    file = tmp_path / "input.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CommandError, match=said):
        run("start_job", workflow, "--input", str(file))
