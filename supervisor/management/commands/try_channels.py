"""`manage.py try_channels`: a message over each channel, and how that went. Exit code 1 when one failed, or there is none."""

from typing import Any

from django.core.management.base import BaseCommand
from uuid_utils.compat import uuid7

from supervisor import channels, news
from workflows.clock import now


class Command(BaseCommand):
    help = "Send a message which says that nothing is wrong over each channel that the settings name."
    requires_system_checks: Any = []  # what is wrong with one channel keeps no other from being tried

    def handle(self, *args: Any, **options: Any) -> None:
        ill = 0
        for fault in channels.faults():
            self.stdout.write(f"{self.style.ERROR('ill ')}  {fault.said}\n{'':6}→ {fault.do}")
            ill += 1
        found = channels.configured()
        for channel in found:
            try:
                channel.send(news.trial(id=f"msg_{uuid7()}", present=now()))
            except Exception as error:  # each channel has errors of its own
                self.stdout.write(f"{self.style.ERROR('ill ')}  {channel.name}: {channels.in_words(error)}")
                ill += 1
            else:
                self.stdout.write(f"{self.style.SUCCESS('well')}  {channel.name} has taken it.")
        if not found:
            self.stdout.write("There is no channel: set SAG_NOTIFY, SAG_WEBHOOKS or SAG_APPRISE.")
        if ill or not found:
            raise SystemExit(1)
