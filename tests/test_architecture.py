"""Who may write the engine's rows: the pen (`workflows/transitions.py`) and its hand-written statements, nobody else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("workflows", "agents", "supervisor", "sagsite")
PEN = ROOT / "workflows" / "transitions.py"
STATEMENTS = {"start.sql", "claim.sql", "settle.sql", "settle_item.sql", "items.sql", "heartbeat.sql"}

SCHEDULERS = {ROOT / "workflows" / name for name in ("schedules.py", "ticks.py", "tick_records.py")}


class Rows(NamedTuple):
    """By what names rows go: their models, the relations that lead to them, and variables."""

    models: set[str]
    relations: set[str]
    variables: set[str]


ENGINE = Rows(
    {"Job", "Step", "Attempt", "Event", "Signal", "Once", "Agent", "ClockOffset"},
    {"steps", "attempts", "events", "undos", "items", "signals", "calls_once"},
    {"job", "step", "item", "fan", "child", "signal", "attempt", "event", "original", "undo", "recheck"},
)
SCHEDULES = Rows({"Schedule", "ScheduleChange", "Tick"}, {"ticks", "changes"}, {"schedule", "tick"})
_VERBS = ("create", "update", "delete", "save", "get_or_create", "update_or_create", "bulk_create", "bulk_update")
VERBS = {*_VERBS, *(f"a{verb}" for verb in _VERBS)}
RAW = re.compile(
    r'\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE)\s+(ONLY\s+)?"?sag_workflows_'
    r"(job|step|attempt|event|signal|once|agent|clockoffset)\b",
    re.IGNORECASE,
)


def writes(source: str, rows: Rows = ENGINE) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in this Python text that would write such rows; raw SQL is looked at for the engine's."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and RAW.search(node.value):
            yield node.lineno, "raw SQL"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VERBS:
            chain = list(_chain(node.func.value))
            if _is_among(rows, chain):
                yield node.lineno, ".".join([*reversed(chain), node.func.attr])


def test_no_two_files_of_tests_declare_a_workflow_of_one_name() -> None:
    declared: dict[str, set[str]] = {}
    for file in [*(ROOT / "tests" / "integration").glob("*.py"), ROOT / "tests" / "console_data.py"]:
        for name in re.findall(r"^ *class (\w+)\(Workflow\)", file.read_text(), re.MULTILINE):
            declared.setdefault(name, set()).add(file.name)
    assert {name: files for name, files in declared.items() if len(files) > 1} == {}


def _chain(node: ast.expr) -> Iterator[str]:
    """The names of a.b(…).c[…] from the last to the first."""
    while True:
        match node:
            case ast.Call(func=inner) | ast.Subscript(value=inner):
                node = inner
            case ast.Attribute(value=inner, attr=name):
                yield name
                node = inner
            case ast.Name(id=name):
                yield name
                return
            case _:
                return


def _is_among(rows: Rows, chain: list[str]) -> bool:
    if not chain:
        return False
    managers = {"objects", "_base_manager", "_default_manager"}
    return (
        (bool(rows.models & set(chain)) and bool(managers & set(chain)))
        or bool(rows.relations & set(chain[:-1]))
        or (chain == [chain[0]] and chain[0] in rows.variables | rows.models)
        or chain[0] in rows.models
    )


def _sources() -> list[Path]:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    return [file for file in files if "migrations" not in file.parts and file != PEN]


def test_only_the_pen_writes_the_rows_of_the_engine() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line} {what}" for file in _sources() for line, what in writes(file.read_text())
    ]
    assert len(_sources()) > 30
    assert found == []


def test_only_schedules_and_ticks_write_their_own_rows() -> None:
    found = {file for file in _sources() if list(writes(file.read_text(), SCHEDULES))}
    assert found == SCHEDULERS


def test_only_the_named_statements_write_the_rows_of_the_engine() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.sql")]
    assert {file.name for file in files if RAW.search(file.read_text())} == STATEMENTS


def test_only_the_pen_runs_the_hand_written_statements() -> None:
    users = {
        str(file.relative_to(ROOT))
        for file in [*_sources(), PEN]
        if file.name != "statements.py"
        and re.search(r"\bstatements\b", file.read_text())
        and re.search(r"import statements|from workflows\.statements", file.read_text())
    }
    assert users == {"workflows/transitions.py"}


@pytest.mark.parametrize(
    "source",
    [
        "Job.objects.filter(pk=1).update(state='Failed')",
        "Step.objects.create()",
        "Step.objects.select_for_update().get(pk=1).delete()",
        "job.steps.all().update(held=True)",
        "step.attempts.filter(number=1).delete()",
        "Event.objects.bulk_create(rows)",
        "step.save()",
        "await job.asave()",
        "Agent(name='x').save()",
        "self.model.Job.objects.update(seq=1)",
        "cursor.execute('UPDATE sag_workflows_step SET state = 1')",
        'cursor.execute(f"delete from \\"sag_workflows_event\\" where id = {x}")',
    ],
)
def test_the_scan_finds_a_write(source: str) -> None:
    assert list(writes(source))


@pytest.mark.parametrize(
    "source",
    [
        "known.update(rows)",
        "Job.objects.filter(pk=1).first()",
        "row.save(force_insert=True)",
        "Sweep.objects.filter(pk=1).delete()",
        "token.delete()",
        "'an update of sag_workflows_step is told of'",
        "transitions.stop(job)",
    ],
)
def test_the_scan_leaves_alone_what_writes_nothing_of_the_engine(source: str) -> None:
    assert not list(writes(source))
