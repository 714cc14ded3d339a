"""`manage.py doctor`: is it healthy, and if not, what to do. Exit code 1 when something is ill."""

from typing import Any

from django.core.management.base import BaseCommand

from supervisor import doctor
from supervisor.doctor import Grade

_STYLES = {Grade.WELL: "SUCCESS", Grade.LOOK: "WARNING", Grade.ILL: "ERROR"}


class Command(BaseCommand):
    help = "Look at everything that has to be in order, and say what to do about what is not. Changes nothing."
    requires_system_checks: Any = []  # what is wrong is to be told, not to keep us from telling

    def handle(self, *args: Any, **options: Any) -> None:
        found = doctor.examine()
        for finding in found:
            style = getattr(self.style, _STYLES[finding.grade])
            self.stdout.write(f"{style(f'{finding.grade:<4}')}  {finding.about:<10}  {finding.said}")
            if finding.do:
                self.stdout.write(f"{'':18}→ {finding.do}")
        ill = [finding.about for finding in found if finding.grade == Grade.ILL]
        if ill:
            self.stdout.write(self.style.ERROR(f"Not healthy: {', '.join(ill)}."))
            raise SystemExit(1)
        look = sum(finding.grade == Grade.LOOK for finding in found)
        self.stdout.write(self.style.SUCCESS("Healthy." if not look else f"Healthy, with {look} to look at."))
