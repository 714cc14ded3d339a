"""People at the console whom no test has met before: for tests whose writes are committed."""

import uuid

from django.test import Client

from tests.integration.test_console_access import signed_in


def reader() -> Client:
    return signed_in(f"reader-{uuid.uuid4().hex}")


def operator() -> Client:
    """In the group `operators`."""
    return signed_in(f"operator-{uuid.uuid4().hex}", operator=True)
