"""System checks: operations that a plan names and no agent offers."""

from typing import Any

from django.core.checks import CheckMessage, register

from agents.registry import all_operations
from workflows.plans import registry
from workflows.plans.checks import check_operations


@register
def operations_exist(app_configs: Any, **_: Any) -> list[CheckMessage]:
    return check_operations(registry.all(), all_operations())
