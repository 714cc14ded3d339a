"""System checks: settings that were to tell people, and cannot."""

from typing import Any

from django.core.checks import CheckMessage, Error, register

from supervisor import channels


@register
def channels_can_be_used(app_configs: Any, **_: Any) -> list[CheckMessage]:
    return [Error(fault.said, hint=fault.do, id="sag_supervisor.E001") for fault in channels.faults()]
