"""`manage.py start_job WORKFLOW --input FILE --key KEY`: a job from the shell."""

import getpass
import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workflows.exceptions import InvalidInput, SagError
from workflows.plans import registry


class Command(BaseCommand):
    help = "Start a job. Prints its id."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("workflow", help="the name of its class, for example TripBooking")
        parser.add_argument("--input", metavar="FILE", help="its input as JSON; - reads it from stdin; default: {}")
        parser.add_argument("--key", help="starting again under the same key gives the same job")

    def handle(self, *args: Any, workflow: str, input: str | None, key: str | None, **options: Any) -> None:
        try:
            job = registry.get(workflow).start(_document(input), key=key, actor=f"shell:{getpass.getuser()}")
        except SagError as error:
            raise CommandError(_sentences(error)) from error
        self.stdout.write(str(job.pk))


def _document(file: str | None) -> Any:
    if file is None:
        return None
    try:
        return json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"{file} is no JSON: {error}.") from error


def _sentences(error: SagError) -> str:
    faults = error.errors if isinstance(error, InvalidInput) else []
    return "\n".join([error.message, *(f"  {fault['pointer'] or '/'}: {fault['message']}" for fault in faults)])
