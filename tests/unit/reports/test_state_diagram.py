"""
The diagram shows the table: every move, no other, and the page has the present one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.reports import charts
from adws.adw_modules.state_machine import PHASE_STATES, PIPELINE, StateTransition, WorkflowState, derive_table

S = WorkflowState
TABLE = StateTransition.TRANSITIONS
PAGE = Path(charts.__file__).parents[3] / "docs" / "workflows.md"
START_MARK, END_MARK = "<!-- generated: state-diagram -->\n", "<!-- /generated -->"


def arrows(text: str) -> list[tuple[str, str]]:
    """The arrows of a diagram, without their labels."""
    lines = [line.partition(" : ")[0].strip() for line in text.splitlines()]
    return [(line.split()[0], line.split()[2]) for line in lines if " --> " in line]


def moves(text: str, table) -> list[tuple[str, str]]:
    """The arrows between states, those of the box taken apart."""
    inside = [state.value for state in table if state in PHASE_STATES]
    result = []
    for source, target in arrows(text):
        sources = inside if source == charts.BOX else [source]
        targets = inside if target == charts.BOX else [target]
        result += [(a, b) for a in sources for b in targets if "[*]" not in (a, b)]
    return result


@pytest.mark.parametrize("bits", range(1, 256))
def test_the_diagram_has_every_move_of_the_table_once_and_no_other(bits):
    table = derive_table([(s.value, s) for number, s in enumerate(PIPELINE) if bits >> number & 1])
    edges = [(source.value, target.value) for source, row in table.items() for target in row]

    assert sorted(moves(charts.mermaid(table), table)) == sorted(edges)


def test_a_move_that_not_every_phase_has_is_drawn_from_the_phases_that_have_it():
    table = {**TABLE, S.SHIPPING: (S.CLEANING, S.FAILED), S.PAUSED: (S.PLANNING, S.BUILDING, S.ABANDONED)}
    edges = [(source.value, target.value) for source, row in table.items() for target in row]
    text = charts.mermaid(table)

    assert sorted(moves(text, table)) == sorted(edges)
    assert ("working", "paused") not in arrows(text)
    assert ("paused", "working") not in arrows(text)


def test_the_page_has_the_diagram_of_the_table():
    _, result, rest = PAGE.read_text(encoding="utf-8").partition(START_MARK)
    block, mark, _ = rest.partition(END_MARK)

    assert result, "the page has lost its marks"
    assert mark, "the page has lost its marks"
    assert block == charts.block(TABLE), "run scripts/docs"
    assert charts.mermaid(TABLE) in block
