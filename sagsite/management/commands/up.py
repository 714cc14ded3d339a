"""`manage.py up`: the whole system with one command, or some of its roles."""

import os
import sys
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from sagsite.errors import StartRefused
from sagsite.home import Home
from sagsite.runner import preparation, roles
from sagsite.runner.system import System, lock

OTHER_START = 60.0  # seconds that a second `up` waits for the first to be ready


class Command(BaseCommand):
    help = (
        "Start everything and watch it: embedded servers (unless the environment names real ones), web, agents, "
        "supervisor, beat and simulators. With role options, start only those, beside servers that run."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        for role in roles.ROLES:
            parser.add_argument(f"--{role}", action="store_true", help=f"start {role} alone, or with other named roles")
        parser.add_argument("--concurrency", type=int, default=8, help="steps that the agents do at once (default: 8)")

    def handle(self, *args: Any, **options: Any) -> None:
        home: Home = settings.HOME
        os.chdir(settings.BASE_DIR)
        names = tuple(roles.chosen(options))
        whole = not any(options[role] for role in roles.ROLES)
        try:
            home.create()
            if whole and lock(home) is None:
                self.show_running(home)
                return
            System(home, names, whole=whole, concurrency=options["concurrency"]).run()
        except StartRefused as error:
            sys.exit(f"{error}")

    def show_running(self, home: Home) -> None:
        """Another runner holds SAG_HOME: say where its system is, once it is ready."""
        deadline = time.monotonic() + OTHER_START
        while not home.read_state().get("ready"):
            if time.monotonic() > deadline:
                raise StartRefused(f"Another `manage.py up` on {home.path} is starting, and was not ready in time.")
            time.sleep(0.2)
        for line in preparation.welcome_again(home):
            self.stdout.write(line)
