"""All workflows by name, and the system check on the operations they name."""

import pytest
from django.core import checks
from django.test import override_settings

from workflows import Workflow, child, step
from workflows.exceptions import InvalidWorkflow, UnknownWorkflow
from workflows.plans import registry
from workflows.plans.checks import check_children, check_operations, children_can_be_started


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


def test_hooks_and_alternatives_are_checked_too() -> None:
    workflow = make(
        "Hooked",
        after_success="mail.thank",
        after_failure="x.a",
        a=step("x.a", otherwise=step("x.other", compensation="x.undo")),
    )
    assert [error.msg for error in check_operations([workflow], {"x.a"})] == [
        "The step 'a.otherwise' names the operation 'x.other', which no agent has.",
        "The step 'a.otherwise' names the compensation 'x.undo', which no agent has.",
        "The option after_success names the operation 'mail.thank', which no agent has.",
    ]


def test_steps_that_no_agent_does_name_no_operation() -> None:
    assert check_operations([make("Parent", c=child("Shipping"))], {}) == []


def test_a_child_that_does_not_exist_is_an_error_with_the_nearest_name() -> None:
    shipping, parent = make("Shipping"), make("Parent", send=child("Shiping"), more=child("Shipping"))
    found = check_children([shipping, parent])
    assert [(error.id, error.obj) for error in found] == [("sag_workflows.E002", parent)]
    assert found[0].msg == "The step 'send' starts the workflow 'Shiping', which does not exist."
    assert found[0].hint == "Did you mean 'Shipping'?"


def test_a_child_of_a_child_is_no_circle() -> None:
    grandchild = make("Grandchild")
    middle = make("Middle", a=child(grandchild), b=child(grandchild))
    assert check_children([make("Top", a=child(middle), b=child(grandchild)), middle, grandchild]) == []


def test_workflows_that_start_each_other_are_an_error() -> None:
    circle = [make("A", b=child("B")), make("B", c=step("x.c", otherwise=child("C"))), make("C", a=child("A"))]
    (error,) = check_children(circle)
    assert error.id == "sag_workflows.E003"
    assert error.msg.removesuffix(".").split(": ")[1] in {"A → B → C → A", "B → C → A → B", "C → A → B → C"}


def test_a_workflow_that_starts_itself_is_an_error() -> None:
    (error,) = check_children([make("Endless", again=child("Endless"))])
    assert error.msg == "These workflows start each other for ever: Endless → Endless."


def test_django_runs_the_check_on_children() -> None:
    make("Parent", a=child("Missing"))
    assert children_can_be_started in checks.registry.registry.get_checks()
    assert [error.id for error in children_can_be_started(None)] == ["sag_workflows.E002"]
