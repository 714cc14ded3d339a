"""The documents say what the code does: names, defaults and codes are compared, commands and links are looked up."""

import inspect
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from agents import registry
from agents.call import AgentError, InDoubt, Permanent, Transient
from sagsite.errors import StartRefused
from sagsite.settings import BASE_DIR, VARIABLES
from workflows.api import problems
from workflows.catalog.trip import TripBooking
from workflows.conf import Defaults
from workflows.exceptions import SagError
from workflows.plans.retry import Retry
from workflows.transitions import RESULT_NOT_STORABLE

DOCS = BASE_DIR / "docs"
DOCUMENTS = sorted([*BASE_DIR.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"```.*?```", re.S)


def rows(document: str) -> dict[str, list[str]]:
    """The tables of a document: {what the first cell has in backticks: the other cells}; later rows do not replace earlier."""
    found: dict[str, list[str]] = {}
    for line in (DOCS / document).read_text().splitlines():
        if line.startswith("| `"):
            first, *others = [cell.strip() for cell in line.strip("|").split(" | ")]
            found.setdefault(first.strip(" `|"), others)
    return found


def tree(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for below in root.__subclasses__():
        yield from tree(below)


def ours(root: type[Exception]) -> list[type[Exception]]:
    return [error for error in tree(root) if error.__module__.partition(".")[0] in ("workflows", "sagsite")]


def as_written(default: object) -> str:
    """A default as the table writes it."""
    if isinstance(default, Retry):
        first, cap = default.first.total_seconds(), default.cap.total_seconds()
        return f"attempts {default.attempts}, first {first:.10g}, factor {default.factor:g}, cap {cap:g}"
    return f"{default:.10g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("variable", VARIABLES)
def test_each_environment_variable_has_a_line_with_its_default(variable: str) -> None:
    default, meaning = rows("reference/settings.md")[variable]
    assert default
    assert meaning


@pytest.mark.parametrize(
    ("variable", "default"), [("HOST", "127.0.0.1"), ("PORT", "8000"), ("SIMULATORS_PORT", "8100")]
)
def test_defaults_of_the_environment_are_those_of_the_settings(variable: str, default: str) -> None:
    source = (BASE_DIR / "sagsite" / "settings.py").read_text()
    found = re.search(rf'env\.\w+\("{variable}", default="?([^")]+)"?\)', source)
    assert found
    assert found[1] == default == rows("reference/settings.md")[variable][0].strip("`")


@pytest.mark.parametrize("name", [field.name for field in fields(Defaults)])
def test_each_engine_default_is_in_the_table_with_its_value(name: str) -> None:
    assert rows("reference/settings.md")[name][0] == as_written(getattr(Defaults(), name))


def test_the_table_of_engine_defaults_has_no_other_names() -> None:
    text = (DOCS / "reference/settings.md").read_text()
    section = text.partition("## Engine defaults")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.M)) == {field.name for field in fields(Defaults)}


@pytest.mark.parametrize("error", ours(SagError), ids=lambda error: error.__name__)
def test_each_refusal_is_in_the_reference_with_code_and_status(error: type[SagError]) -> None:
    table = rows("reference/errors.md")
    if error.__module__ == problems.__name__:
        assert table[error.code][0] == str(error.http_status)
    else:
        assert table[error.__name__][:2] == [f"`{error.code}`", str(error.http_status)]


@pytest.mark.parametrize("error", ours(StartRefused), ids=lambda error: error.__name__)
def test_each_refused_start_is_in_the_reference_with_its_code(error: type[StartRefused]) -> None:
    assert rows("reference/errors.md")[error.__name__][0] == f"`{error.code}`"


CODED = [
    "agents/http.py",
    "agents/worker.py",
    *(f"workflows/{name}.py" for name in ("children", "endings", "errands", "findings", "gates", "reports")),
    "workflows/scheduler.py",
    "workflows/transitions.py",
]


@pytest.mark.parametrize("module", CODED)
def test_each_code_that_the_engine_gives_an_attempt_is_in_the_reference(module: str) -> None:
    codes = set(re.findall(r'code="([a-z_]+)"', (BASE_DIR / module).read_text()))
    assert codes
    assert codes | {RESULT_NOT_STORABLE} <= rows("reference/errors.md").keys()


@pytest.mark.parametrize("error", [Transient, Permanent, InDoubt])
def test_each_kind_of_failure_is_in_the_reference_with_its_default_code(error: type[AgentError]) -> None:
    assert rows("reference/errors.md")[error.__name__][:2] == [f"`{error.kind}`", f"`{error.default_code}`"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(BASE_DIR)))
def test_each_link_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(FENCED.sub("", document.read_text())):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (document.parent / file).resolve() if file else document
        assert found.exists(), f"{target} in {document}"
        if anchor:
            assert anchor in anchors(found), f"{target} in {document}"


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", document.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_document_can_be_found_from_the_index() -> None:
    index = {
        (DOCS / target).resolve() for target in LINK.findall((DOCS / "README.md").read_text()) if ":" not in target
    }
    assert set(DOCS.rglob("*.md")) - {DOCS / "README.md"} <= index


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_each_make_command_that_is_written_down_exists(document: str) -> None:
    targets = set(re.findall(r"\bmake ([a-z]+)\b(?=[ `\n])", code_of((BASE_DIR / document).read_text())))
    assert {"test"} <= targets
    for target in targets:
        made = subprocess.run(["make", "--dry-run", target], cwd=BASE_DIR, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr


def test_the_plan_in_the_readme_is_the_shipped_one() -> None:
    assert inspect.getsource(TripBooking) in (BASE_DIR / "README.md").read_text()


def code_of(text: str) -> str:
    """What stands in code blocks and between backticks."""
    inline = re.findall(r"`[^`\n]+`", FENCED.sub("", text))
    return "\n".join([*FENCED.findall(text), *inline])


def test_each_test_that_the_page_on_the_pattern_names_is_there() -> None:
    page = (BASE_DIR / "docs" / "explanation" / "pattern.md").read_text()
    named = re.findall(r"`((?:unit|integration|acceptance)/test_\w+\.py)(?:::(test_\w+))?`", page)
    assert len(named) > 30
    for file, test in named:
        source = (BASE_DIR / "tests" / file).read_text()
        assert f"def {test}(" in source if test else source, f"{file}::{test}"


def test_the_tutorials_agents_have_names_that_the_shipped_ones_leave_free() -> None:
    """Else whoever follows it has a system that does not start."""
    named = set(re.findall(r'Agent\("(\w+)"', (DOCS / "tutorial.md").read_text()))
    assert named
    assert not named & {agent.name for agent in registry.all_agents()}
