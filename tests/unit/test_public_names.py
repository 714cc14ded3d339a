"""The public names of `workflows`: this list, loaded only when asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import workflows


def test_the_public_names_are_these() -> None:
    assert workflows.__all__ == [
        *("At", "Calendar", "Cron", "Every", "Limit", "Retry", "SagError", "Workflow"),
        *("child", "given", "item", "signal", "step", "timer"),
    ]
    assert set(workflows.__all__) <= set(dir(workflows))


@pytest.mark.parametrize("name", workflows.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(workflows, name) is not None


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="'singal'"):
        workflows.singal  # reading is what is tested


def loaded_after(code: str) -> set[str]:
    program = f"{code}; import sys; print(*sys.modules)"
    root = Path(workflows.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_of_django() -> None:
    modules = loaded_after("import workflows")
    assert not {name for name in modules if name.startswith(("django", "pydantic", "workflows."))}


def test_a_plan_is_declared_without_a_database() -> None:
    modules = loaded_after(
        "import django.conf; django.conf.settings.configure(); from workflows.catalog.trip import TripBooking"
    )
    assert "workflows.plans.plan" in modules
    assert not {name for name in modules if name.startswith(("django.db", "workflows.models", "workflows.scheduler"))}
