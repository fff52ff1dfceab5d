"""
What the tests of the state machine share: machines that have gone a way, and documents.
"""

from __future__ import annotations

from datetime import datetime

import pytest

from adws.adw_modules import document
from adws.adw_modules.errors import IllegalTransition
from adws.adw_modules.state_machine import PHASE_STATES, PIPELINE, StateTransition, WorkflowState, WorkflowStateMachine
from adws.testing.clock import START, FakeClock

__all__ = ["START"]

S = WorkflowState
TABLE = StateTransition.TRANSITIONS
ADW_ID = "1a2b3c4d"

EDGES = [(a, b) for a in S for b in TABLE[a]]


class Ticking(FakeClock):
    """A clock that is a second later at each look, so that no two moves have the same moment."""

    def now(self) -> datetime:
        self.advance(1.0)
        return super().now()


def machine(*path: S, **settings) -> WorkflowStateMachine:
    """A machine that has gone along *path*."""
    made = WorkflowStateMachine(ADW_ID, now=Ticking().now, **settings)
    for state in path:
        made.transition(state)
    return made


def way_to(state: S) -> list[S]:
    """The moves that lead to *state*."""
    if state in PHASE_STATES:
        return list(PIPELINE[: PIPELINE.index(state) + 1])
    return {
        S.PENDING: [],
        S.COMPLETED: [*PIPELINE, S.COMPLETED],
        S.FAILED: [S.PLANNING, S.BUILDING, S.FAILED],
        S.PAUSED: [S.PLANNING, S.BUILDING, S.PAUSED],
        S.ABANDONED: [S.PLANNING, S.ABANDONED],
        S.ROLLED_BACK: [S.PLANNING, S.ABANDONED, S.ROLLED_BACK],
    }[state]


def snapshot(made: WorkflowStateMachine) -> tuple:
    """Everything a machine holds."""
    return (made.adw_id, made.table, made.position, made.state_history, made.history_dropped)


def refuse(made: WorkflowStateMachine, wanted: S, why: str = "cannot go from") -> IllegalTransition:
    """Ask for *wanted*, see it refused for *why* without a mark."""
    before = snapshot(made)
    with pytest.raises(IllegalTransition, match=why) as caught:
        made.transition(wanted)
    assert snapshot(made) == before
    assert caught.value.legal == tuple(state.value for state in made.legal_targets())
    assert wanted not in made.legal_targets()
    return caught.value


def a_document(**fields) -> document.WorkflowDocument:
    return document.WorkflowDocument(
        adw_id=ADW_ID,
        issue_number=7,
        created_at="2026-01-31T09:00:00.000000Z",
        updated_at="2026-01-31T09:00:00.000000Z",
    ).model_copy(update=fields)


def entry(left: str, reached: str, **metadata) -> document.HistoryEntry:
    return document.HistoryEntry.model_validate(
        {"from": left, "to": reached, "timestamp": "2026-01-31T09:00:00.000000Z", "metadata": metadata}
    )


def stored(made: WorkflowStateMachine) -> document.WorkflowDocument:
    """The document of *made*, through its bytes."""
    doc = a_document()
    made.write_into(doc)
    return document.WorkflowDocument.model_validate_json(document.to_bytes(doc))


def reloaded(made: WorkflowStateMachine) -> WorkflowStateMachine:
    return WorkflowStateMachine.of(stored(made), table=made.table, now=Ticking().now)
