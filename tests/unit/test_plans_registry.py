"""All workflows by name, and the system check on the operations they name."""

import pytest
from django.test import override_settings

from workflows import Workflow, step
from workflows.exceptions import InvalidWorkflow, UnknownWorkflow
from workflows.plans import registry
from workflows.plans.checks import check_operations


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})


def make(name: str, /, module: str = "shop.workflows", **body: object) -> type[Workflow]:
    body = body or {"a": step("x.a", compensation="x.b", probe="x.c")}
    return type(Workflow)(name, (Workflow,), {"__module__": module, **body})  # type: ignore[return-value]


def test_a_workflow_is_found_by_its_name() -> None:
    shipping, billing = make("Shipping"), make("Billing")
    assert registry.get("Shipping") is shipping
    assert registry.all() == [billing, shipping]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    make("Shipping")
    with pytest.raises(UnknownWorkflow, match="No workflow is called 'Shiping'. Did you mean 'Shipping'") as caught:
        registry.get("Shiping")
    assert caught.value.http_status == 422


def test_the_same_name_in_another_module_is_refused() -> None:
    first = make("Shipping")
    with pytest.raises(InvalidWorkflow, match=r"Shipping is declared in shop\.workflows and again in depot\.workflows"):
        make("Shipping", module="depot.workflows")
    assert registry.get("Shipping") is first


def test_the_same_name_in_the_same_module_replaces_the_older_class() -> None:
    make("Shipping")
    newer = make("Shipping", version=2, a=step("x.a"))
    assert registry.get("Shipping") is newer


@override_settings(INSTALLED_APPS=["django.contrib.contenttypes"])
def test_autodiscovery_imports_the_shipped_workflows(monkeypatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(registry, "import_module", imported.append)
    monkeypatch.setattr(registry, "autodiscover_modules", imported.append)
    registry.autodiscover()
    assert imported == ["workflows.catalog", "workflows"]


def test_known_operations_pass_the_check() -> None:
    assert check_operations([make("Known")], {"x.a", "x.b", "x.c"}) == []


def test_each_unknown_operation_is_an_error_with_the_nearest_name() -> None:
    workflow = make("Unknown")
    found = check_operations([workflow], {"x.aa": None, "x.c": None})
    assert [(error.id, error.obj) for error in found] == [("sag_workflows.E001", workflow)] * 2
    assert found[0].msg == "The step 'a' names the operation 'x.a', which no agent has."
    assert found[0].hint == "Did you mean 'x.aa'?"
    assert "compensation 'x.b'" in found[1].msg
    assert found[0].is_serious()


def test_the_check_says_so_when_there_are_no_agents() -> None:
    assert {error.hint for error in check_operations([make("Lonely")], {})} == {"No agent was found at all."}
