"""Large inputs stay in their rows: no message carries them, and no list embeds them."""

import json

from django.test import Client

from tests import console_data as data
from tests.integration.engine import Engine
from workflows import Workflow, given, step
from workflows.models import Job

LARGE = "x" * 500_000


class Heavy(Workflow):
    """One step that reads a small part of a large input."""

    a = step("shop.a", input={"n": given["n"]})


def test_large_inputs_are_in_no_message_and_in_no_list_sas_056(engine: Engine) -> None:
    for n in range(40):
        Heavy.start({"n": n, "bulk": LARGE})
    assert len(engine.rings) == 40
    assert max(len(json.dumps(ring)) for ring in engine.rings) < 200
    client, reader = Client(), data.person("reader-of-large-jobs")
    client.force_login(reader, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get("/jobs/")
    reader.delete()  # what this test commits is not rolled back
    assert page.status_code == 200
    assert len(page.content) < 200_000
    engine.drain()
    assert {job.state for job in Job.objects.only("state")} == {"Completed"}
    assert [call.input for call in engine.calls_of("shop.a")] == [{"n": n} for n in range(40)]
