"""
Where a workflow stands, which moves that leaves open, and what a move changes.

Pure: values in, values out. `refusal` holds every guard and `advance` every counter of the state machine, so that no
caller decides about a move.
"""

from __future__ import annotations

from typing import NamedTuple

from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.state_table import (
    ACTIVE_STATES,
    PHASE_STATES,
    Table,
    WorkflowState,
    entry,
    is_rework,
    is_success,
    rank,
)


class Position(NamedTuple):  # no dataclass: each step makes a copy with changes, here in a fifth of the time
    """All that decides about the next move, besides the table."""

    state: WorkflowState = WorkflowState.PENDING
    resume_state: WorkflowState | None = None  #: where PAUSED goes back to
    failed_phase: WorkflowState | None = None  #: where FAILED goes back to
    furthest_failed: WorkflowState | None = None  #: must succeed before retry_count goes back to 0
    retry_count: int = 0
    retry_marks: int = 0  #: retries that are counted but not used yet, at most retry_count
    max_retries: int = 3  #: retries_granted included
    retries_granted: int = 0
    reworks: int = 0
    max_reworks: int = 3
    is_merged: bool = False
    is_rolling_back: bool = False


def return_phase(at: Position, table: Table) -> WorkflowState:
    """Return the phase a failed workflow goes back to: when none was begun or recorded, the first."""
    return at.failed_phase or entry(table)


# --- guards ----------------------------------------------------------------------------------------------------


def refusal(at: Position, table: Table, wanted: WorkflowState) -> str:
    """Return why *wanted* cannot be entered now, "" when it can."""
    if wanted not in table:
        return f"this workflow has no {wanted.value} phase"
    if wanted is at.state:
        return "it is there already"
    if wanted not in table[at.state]:
        return "there is no such move"

    return (
        _rollback_refusal(at, wanted)
        or _merge_refusal(at, table, wanted)
        or _resume_refusal(at, wanted)
        or _retry_refusal(at, table, wanted)
        or _rework_refusal(at, wanted)
    )


def _rollback_refusal(at: Position, wanted: WorkflowState) -> str:
    if at.is_rolling_back and wanted not in (WorkflowState.ABANDONED, WorkflowState.ROLLED_BACK):
        return "a rollback was begun and has to be finished"

    return ""


def _merge_refusal(at: Position, table: Table, wanted: WorkflowState) -> str:
    if not at.is_merged:
        return ""
    if wanted is WorkflowState.ROLLED_BACK:
        return "its pull request is merged, which is not undone"
    if wanted is WorkflowState.FAILED and _phase_at(at, table) is WorkflowState.CLEANING:
        return "its pull request is merged: a failed clean-up is completed with warnings, use finish_cleaning()"
    if at.state is WorkflowState.FAILED and wanted is WorkflowState.PLANNING and return_phase(at, table) is not wanted:
        return "its pull request is merged, so it is not planned again"

    return ""


def _resume_refusal(at: Position, wanted: WorkflowState) -> str:
    if at.state is not WorkflowState.PAUSED or wanted not in ACTIVE_STATES:
        return ""
    if at.resume_state is None and wanted is not WorkflowState.PENDING:
        return "where it was paused is not recorded: it starts again at pending, or where resume_from() says"
    if at.resume_state is not None and wanted is not at.resume_state:
        return f"it was paused in {at.resume_state.value} and goes on there"

    return ""


def _retry_refusal(at: Position, table: Table, wanted: WorkflowState) -> str:
    if at.state is not WorkflowState.FAILED or wanted not in PHASE_STATES:
        return ""
    if wanted not in (return_phase(at, table), WorkflowState.PLANNING):
        return f"{return_phase(at, table).value} failed: it goes back there, or is planned again"
    if not at.retry_marks and at.retry_count >= at.max_retries:
        used = f"{at.retry_count} of {at.max_retries} retries are used"
        return f"{used}; a person may grant more with: adw retry ID --grant N"

    return ""


def _rework_refusal(at: Position, wanted: WorkflowState) -> str:
    if is_rework(at.state, wanted) and at.reworks >= at.max_reworks:
        return f"{at.reworks} of {at.max_reworks} reworks are used"

    return ""


# --- what a move changes ---------------------------------------------------------------------------------------


def advance(at: Position, table: Table, wanted: WorkflowState) -> Position:
    """Return the position after the legal move to *wanted*."""
    moved = at._replace(state=wanted, resume_state=None)
    if wanted is WorkflowState.PAUSED:
        return moved._replace(resume_state=at.state)
    if wanted is WorkflowState.FAILED:
        return failed_in(moved, _phase_at(at, table))
    if at.state is WorkflowState.FAILED and wanted in PHASE_STATES:
        return _used_retry(failed_in(moved, return_phase(at, table)))
    if is_rework(at.state, wanted):
        return moved._replace(reworks=at.reworks + 1)
    if is_success(at.state, wanted):
        return _succeeded(moved, at.state)

    return moved


def _phase_at(at: Position, table: Table) -> WorkflowState:
    """Return the phase that fails when the workflow fails here: before the first was begun, the first."""
    where = at.resume_state if at.state is WorkflowState.PAUSED else at.state
    return where if where in PHASE_STATES else entry(table)


def failed_in(at: Position, phase: WorkflowState) -> Position:
    """Return *at* with *phase* as the one that failed; an earlier one does not hide a later one that also failed."""
    furthest = max(phase, at.furthest_failed or phase, key=rank)
    return at._replace(failed_phase=phase, furthest_failed=furthest)


def _used_retry(at: Position) -> Position:
    if at.retry_marks:
        return at._replace(retry_marks=at.retry_marks - 1)

    return at._replace(retry_count=at.retry_count + 1)


def _succeeded(at: Position, phase: WorkflowState) -> Position:
    """
    Return *at* after *phase* has succeeded.

    The count goes back only past the furthest failure: else a workflow that fails in testing, is planned again and
    stumbles over building each time would have retries without end.
    """
    if at.furthest_failed is not None and rank(phase) >= rank(at.furthest_failed):
        return at._replace(retry_count=0, retry_marks=0, failed_phase=None, furthest_failed=None)
    if at.failed_phase is phase:
        return at._replace(failed_phase=None)

    return at


def facts(before: Position, after: Position) -> JsonObject:
    """Return what the machine itself writes into the history entry of a move."""
    written: JsonObject = {}
    if before.state is WorkflowState.FAILED and after.state in PHASE_STATES:
        written["retry_number"] = after.retry_count - after.retry_marks
        written["retry_limit"] = after.max_retries
    if before.state is WorkflowState.FAILED and after.retries_granted:
        written["retries_granted"] = after.retries_granted
    if after.reworks > before.reworks:
        written["rework_number"] = after.reworks

    return written
