"""
What a document says about the state machine, read and checked.

Pure. A document that could not have come about by legal moves is refused with StateInvalid, in one sentence that names
the workflow and the field. Moves made before or by a migration are taken as they are: older tools had other tables. A
document without any history (older tools kept none) gets one move that says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from adws.adw_modules.errors import StateInvalid, StateUnserialisable, UsageError
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.state_position import Position
from adws.adw_modules.state_table import (
    ACTIVE_STATES,
    PHASE_STATES,
    StateTransition,
    Table,
    WorkflowState,
    derive_table,
    state_named,
)

if TYPE_CHECKING:
    from adws.adw_modules.document import HistoryEntry, WorkflowDocument

#: `metadata.source` of a move that a migration wrote ends with this.
MIGRATION_SUFFIX = "_migration"

_COUNTERS = (
    "retry_count",
    "retry_marks",
    "max_retries",
    "retries_granted",
    "reworks",
    "max_reworks",
    "history_dropped",
)


def read_table(document: WorkflowDocument) -> Table:
    """Return the table of the workflow that is frozen in *document*, the full one when there is none."""
    if document.workflow is None or not document.workflow.phases:
        return StateTransition.TRANSITIONS

    return derive_table(_phase_of(document, number, phase) for number, phase in enumerate(document.workflow.phases, 1))


def _phase_of(document: WorkflowDocument, number: int, phase: JsonObject) -> tuple[str, WorkflowState]:
    name = str(phase.get("name") or f"number {number}")
    try:
        return name, state_named(phase.get("state"))
    except UsageError as exc:
        raise _invalid(document, f"phase {name} has no state it runs under: {exc}") from exc


def read_position(document: WorkflowDocument, table: Table) -> Position:
    """Return where the workflow of *document* stands."""
    negative = [name for name in _COUNTERS if getattr(document, name) < 0]
    if negative:
        raise _invalid(document, f"{', '.join(negative)} cannot be below 0")
    if document.retry_marks > document.retry_count:
        raise _invalid(document, f"retry_marks is {document.retry_marks}, above retry_count {document.retry_count}")

    failed_phase = _optional_state(document, "failed_phase", table.keys() & PHASE_STATES)
    return Position(
        state=_state(document, "current_state", document.current_state, table.keys()),
        resume_state=_optional_state(document, "resume_state", table.keys() & ACTIVE_STATES),
        failed_phase=failed_phase,
        furthest_failed=_optional_state(document, "furthest_failed", table.keys() & PHASE_STATES) or failed_phase,
        retry_count=document.retry_count,
        retry_marks=document.retry_marks,
        max_retries=document.max_retries,
        retries_granted=document.retries_granted,
        reworks=document.reworks,
        max_reworks=document.max_reworks,
        is_merged=document.pr_merged,
        is_rolling_back=document.rollback is not None,
    )


def _optional_state(document: WorkflowDocument, field: str, allowed: Collection[WorkflowState]) -> WorkflowState | None:
    value = getattr(document, field)
    return None if value is None else _state(document, field, value, allowed)


def _state(document: WorkflowDocument, field: str, value: str, allowed: Collection[WorkflowState]) -> WorkflowState:
    for state in allowed:
        if state.value == value:
            return state

    known = ", ".join(state.value for state in WorkflowState if state in allowed)
    raise _invalid(document, f"{field} is {value!r}; in this workflow it may be: {known}")


def read_history(document: WorkflowDocument, table: Table) -> list[JsonObject]:
    """Return the moves of *document* as the machine keeps them, checked to be a chain of edges to the present state."""
    entries = document.state_history
    if not entries and not document.history_dropped:
        return _unrecorded(document)

    first_own = _first_own(entries)
    _check_ends(document, entries, first_own)
    _check_chain(document, entries, first_own, table)

    return [_kept(entry) for entry in entries]


def _kept(entry: HistoryEntry) -> JsonObject:
    move: JsonObject = {
        "from": entry.from_state,
        "to": entry.to_state,
        "timestamp": entry.timestamp,
        "metadata": copied(entry.metadata),
    }
    if entry.model_extra:
        move.update(copied(entry.model_extra))

    return move


def _check_ends(document: WorkflowDocument, entries: Sequence[HistoryEntry], first_own: int) -> None:
    if not entries:
        raise _invalid(document, f"its history is empty, though {document.history_dropped} older moves are counted")

    stands_at = entries[-1].to_state
    if document.current_state != stands_at:
        raise _invalid(document, f"current_state is {document.current_state!r}, but its history leads to {stands_at!r}")
    is_whole = not document.history_dropped and not first_own
    if is_whole and entries[0].from_state != WorkflowState.PENDING.value:
        raise _invalid(document, f"its history starts with {_shown(entries[0])}, not in pending")


def _check_chain(document: WorkflowDocument, entries: Sequence[HistoryEntry], first_own: int, table: Table) -> None:
    # A long history repeats the same few moves: each is looked up once.
    moves = {(entry.from_state, entry.to_state): entry for entry in entries[first_own:]}
    for entry in moves.values():
        if not _has_move(table, entry):
            raise _invalid(document, f"its history has the move {_shown(entry)}, which its table does not have")
    for before, after in pairwise(entries[max(0, first_own - 1) :]):
        if before.to_state != after.from_state:
            raise _invalid(document, f"its history has a gap between {_shown(before)} and {_shown(after)}")


def _has_move(table: Table, entry: HistoryEntry) -> bool:
    rows = (row for state, row in table.items() if state.value == entry.from_state)
    return any(target.value == entry.to_state for row in rows for target in row)


def _unrecorded(document: WorkflowDocument) -> list[JsonObject]:
    if document.current_state == WorkflowState.PENDING.value:
        return []

    move: JsonObject = {
        "from": WorkflowState.PENDING.value,
        "to": document.current_state,
        "timestamp": document.updated_at,
        "metadata": {"source": f"history{MIGRATION_SUFFIX}", "reason": "the document had no history"},
    }
    return [move]


def _first_own(entries: Sequence[HistoryEntry]) -> int:
    """Return the index of the first move after the last migration."""
    return next((index + 1 for index in reversed(range(len(entries))) if _is_migrated(entries[index])), 0)


def _is_migrated(entry: HistoryEntry) -> bool:
    source = entry.metadata.get("source")
    return isinstance(source, str) and source.endswith(MIGRATION_SUFFIX)


def _shown(entry: HistoryEntry) -> str:
    return f"{entry.from_state} -> {entry.to_state} ({entry.timestamp})"


def _invalid(document: WorkflowDocument, what: str) -> StateInvalid:
    return StateInvalid(f"the document of {document.adw_id} is not valid: {what}")


# --- JSON values -----------------------------------------------------------------------------------------------


def as_json(metadata: Mapping[str, JsonValue]) -> JsonObject:
    """Return a deep copy of *metadata*; raise StateUnserialisable when it would not come back from JSON the same."""
    if not isinstance(metadata, Mapping):
        raise StateUnserialisable(f"metadata must be an object with text keys, not {type(metadata).__name__}")
    if not metadata:
        return {}
    try:
        text = json.dumps(dict(metadata), allow_nan=False, ensure_ascii=False)
        text.encode()  # a lone surrogate fails here, not when the document is written
        read: JsonObject = json.loads(text)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StateUnserialisable(f"metadata cannot be written as JSON: {exc}") from exc
    if read != metadata:
        raise StateUnserialisable("metadata would change on its way through JSON: use lists, and texts as keys")

    return read


def copied(value: JsonObject) -> JsonObject:
    """Return a deep copy of *value*."""
    return {key: item if isinstance(item, str) else _copied(item) for key, item in value.items()}


def _copied(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return copied(value) if value else {}
    if isinstance(value, list):
        return [_copied(item) for item in value]

    return value
