"""The table of legal moves, and the page that is drawn from it."""

from pathlib import Path
from typing import Any

import pytest

from workflows import states
from workflows.models import Job, Step
from workflows.states import JOB_EDGES, JOB_MOVES, STEP_EDGES, STEP_MOVES, Edge, JobState, StepState

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "lifecycle.md"


@pytest.mark.parametrize(
    "drawn",
    [
        states.drawing(STEP_EDGES, states.ENDED_STEP_STATES),
        states.table(STEP_EDGES),
        states.drawing(JOB_EDGES, states.TERMINAL_JOB_STATES),
        states.table(JOB_EDGES),
    ],
    ids=["steps drawn", "steps in a table", "jobs drawn", "jobs in a table"],
)
def test_the_page_on_the_lifecycle_shows_exactly_the_moves_of_the_code(drawn: str) -> None:
    assert f"\n{drawn}\n" in PAGE.read_text(), f"docs/explanation/lifecycle.md should contain:\n{drawn}"


def test_the_page_on_the_lifecycle_draws_nothing_else() -> None:
    arrows = [line for line in PAGE.read_text().splitlines() if "-->" in line]
    assert len(arrows) == len(STEP_EDGES) + len(JOB_EDGES) + 2 + 6


def test_a_drawing_begins_where_the_first_edge_does_and_names_each_verb() -> None:
    edges = (Edge(source="A", target="B", verb="go", who="x", guard="y"),)
    assert states.drawing(edges, ["B"]).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> A",
        "    A --> B: go",
        "    B --> [*]",
    ]


@pytest.mark.parametrize(("edges", "known"), [(STEP_EDGES, StepState), (JOB_EDGES, JobState)])
def test_edges_lead_between_known_states_and_reach_all_of_them(
    edges: tuple[Edge, ...], known: type[StepState] | type[JobState]
) -> None:
    assert {edge.source for edge in edges} | {edge.target for edge in edges} == set(known.values)
    assert len({(edge.source, edge.target, edge.verb) for edge in edges}) == len(edges)


def test_nothing_leads_out_of_a_step_that_is_completed_or_skipped_or_of_a_job_that_is_compensated() -> None:
    assert not [move for move in STEP_MOVES if move[0] in (StepState.COMPLETED, StepState.SKIPPED)]
    assert not [move for move in JOB_MOVES if move[0] == JobState.COMPENSATED]


def test_only_a_named_verb_of_a_person_or_client_leads_out_of_a_terminal_state() -> None:
    out = [edge for edge in JOB_EDGES if edge.source in states.TERMINAL_JOB_STATES]
    assert {edge.who for edge in out} <= {"operator, client", "operator, client, parent"}
    assert {edge.verb for edge in out} == {"retry", "compensate", "retry, compensate"}


def test_every_job_state_is_either_live_or_terminal() -> None:
    assert set(states.LIVE_JOB_STATES) | set(states.TERMINAL_JOB_STATES) == set(JobState.values)
    assert not set(states.LIVE_JOB_STATES) & set(states.TERMINAL_JOB_STATES)


def test_the_store_knows_the_states_of_the_table_and_begins_with_its_first() -> None:
    models: list[tuple[Any, tuple[Edge, ...], Any]] = [(Job, JOB_EDGES, JobState), (Step, STEP_EDGES, StepState)]
    for model, edges, known in models:
        field = model._meta.get_field("state")
        assert field.choices == known.choices
        assert field.db_default == edges[0].source
