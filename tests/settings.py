"""The project's settings, on servers that belong to this test run.

`TEST_DATABASE_URL` and `TEST_BROKER_URL` name servers to use instead; whatever `.env` or the shell says for the
product is left alone.
"""

import os
import tempfile
from pathlib import Path

from sagsite.embedded.postgres import database_url
from sagsite.embedded.valkey import broker_url

# The workers of pytest-xdist inherit the environment, and with it the folder of the servers that the controller starts.
FOLDER = Path(os.environ.get("SAG_TEST_FOLDER") or tempfile.mkdtemp(prefix="sag-test-"))
OWN_DATABASE = not os.environ.get("TEST_DATABASE_URL")
OWN_BROKER = not os.environ.get("TEST_BROKER_URL")
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))

os.environ |= {
    "SAG_TEST_FOLDER": str(FOLDER),
    "SAG_HOME": str(FOLDER / "home"),
    "SECRET_KEY": "not secret, for tests only",
    "DATABASE_URL": os.environ.get("TEST_DATABASE_URL") or database_url(FOLDER),
    "CELERY_BROKER_URL": os.environ.get("TEST_BROKER_URL") or broker_url(FOLDER).replace("=0", f"={WORKER}"),
    **dict.fromkeys(("DEBUG", "ALLOWED_HOSTS", "SAG_SETTINGS", "SAG_ROLE"), ""),
    **dict.fromkeys(("SAG_NOTIFY", "SAG_WEBHOOKS", "SAG_APPRISE", "SAG_URL"), ""),
}

from sagsite.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

SAG = {"breaker_steps": 5}  # so that few jobs make an outage
