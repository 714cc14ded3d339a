"""`manage.py demo`: the story of twenty trips, told and checked on real processes."""

import signal
import sys
from typing import Any

from django.core.management.base import BaseCommand

from sagsite.demo.own_system import OwnSystem
from sagsite.demo.story import Story
from sagsite.errors import StartRefused

INTERRUPTED = 130


class Command(BaseCommand):
    help = (
        "Start a system of its own, book trips against faulty services, kill a worker in the middle, tell what became "
        "of each trip, and check it against the services' ledger. Exit code 0 when they agree, 1 when not."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED))  # so that the system is stopped as well
        self.say("demo", "starting real processes: PostgreSQL, Valkey, web, agents, supervisor, beat, three vendors")
        try:
            with OwnSystem(self.say) as system:
                agrees = Story(system, self.say).run()
        except StartRefused as error:
            sys.exit(f"{error}")
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        sys.exit(0 if agrees else 1)

    def say(self, who: str, what: str) -> None:
        self.stdout.write(f"{who:<10} | {what}")
        self.stdout.flush()
