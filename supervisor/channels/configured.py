"""Which channels the settings name, and what is wrong with those that they name in vain."""

from django.conf import settings

from supervisor.channels import apprised, email, webhook
from supervisor.channels.channel import Channel, Fault


def configured() -> list[Channel]:
    """Those that can be used."""
    return [found for found in _read() if not isinstance(found, Fault)]


def faults() -> list[Fault]:
    """Of the settings: for `manage.py check` and `manage.py doctor`, since nobody can be told of them otherwise."""
    found = [one for one in _read() if isinstance(one, Fault)]
    if settings.SAG_URL and not webhook.is_web_address(settings.SAG_URL):
        found.append(Fault("SAG_URL is no address of the web.", "Write it as https://sag.example.com."))
    return found


def _read() -> list[Channel | Fault]:
    return [
        *email.read(settings.SAG_NOTIFY),
        *webhook.read(settings.SAG_WEBHOOKS),
        *apprised.read(settings.SAG_APPRISE),
    ]
