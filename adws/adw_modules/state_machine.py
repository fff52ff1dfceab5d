"""
The state machine of a workflow: states, the table of transitions, guards.

Pure: the caller passes the clock in, and nothing is read or written. The machine alone decides about moves, never a
caller, and nothing else in adw assigns a state. A refused move changes nothing.

Retries. `mark_retry()` counts one retry and leaves a mark. Leaving FAILED for work uses one mark, or counts a retry if
there is no mark. So every such move is counted exactly once, unused marks stay valid, and without a mark or a retry
left the workflow cannot leave FAILED for work. The count returns to 0 when the furthest phase that failed has
succeeded; a retry, a replan or a rework never resets it.

A machine belongs to one thread. Processes are kept apart by ownership of the workflow, not by the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from adws.adw_modules import default_home, timestamps
from adws.adw_modules.errors import (
    BadWorkflowGraph,
    IllegalTransition,
    RetriesExhausted,
    StateInvalid,
    StateUnserialisable,
    UsageError,
)
from adws.adw_modules.identifiers import JsonObject, JsonValue, check_adw_id

if TYPE_CHECKING:
    from adws.adw_modules.document import HistoryEntry, WorkflowDocument

__all__ = ["HISTORY_LIMIT", "StateTransition", "WorkflowState", "WorkflowStateMachine", "end_of_cleaning"]


# --- states, and the table of legal moves ----------------------------------------------------------------------
#
# Pure. The table says which moves exist; `refusal` holds the other conditions, such as retries left.


class WorkflowState(Enum):
    """The state of a workflow; the phases are in pipeline order."""

    # Each state exists once. Enum's own hash is a Python function, which every set or table lookup would call.
    __hash__ = object.__hash__

    PENDING = "pending"  #: accepted, no phase begun
    PLANNING = "planning"
    BUILDING = "building"
    LINTING = "linting"
    TESTING = "testing"
    REVIEWING = "reviewing"
    DOCUMENTING = "documenting"
    SHIPPING = "shipping"
    CLEANING = "cleaning"
    COMPLETED = "completed"  #: done; until the merge it can be continued with further phases, or rolled back
    FAILED = "failed"  #: a phase used up its attempts; waits for a retry or a person
    PAUSED = "paused"  #: stopped on purpose; resumes where it was
    ROLLED_BACK = "rolled_back"  #: everything it made has been undone
    ABANDONED = "abandoned"  #: abandoned: what it made is kept until a rollback


#: Each state by name; takes a quarter of the time of `WorkflowState(name)`.
STATES: Mapping[str, WorkflowState] = MappingProxyType({state.value: state for state in WorkflowState})


#: state -> the states it may go to. Read-only.
Table: TypeAlias = Mapping[WorkflowState, tuple[WorkflowState, ...]]

_S = WorkflowState

#: The states that phases run under, in pipeline order.
PIPELINE: tuple[WorkflowState, ...] = (
    _S.PLANNING,
    _S.BUILDING,
    _S.LINTING,
    _S.TESTING,
    _S.REVIEWING,
    _S.DOCUMENTING,
    _S.SHIPPING,
    _S.CLEANING,
)
PHASE_STATES = frozenset(PIPELINE)
#: Work is running or about to run: the ports are reserved, and a process may run.
ACTIVE_STATES = PHASE_STATES | {_S.PENDING}
#: Nothing runs; the workflow keeps its issue and waits.
PARKED_STATES = frozenset({_S.PAUSED, _S.FAILED})
#: The issue is free for another workflow.
TERMINAL_STATES = frozenset({_S.COMPLETED, _S.ABANDONED, _S.ROLLED_BACK})
_TERMINAL_NAMES = frozenset(state.value for state in TERMINAL_STATES)
#: The two final states: every state must be able to reach one, and only these may have no way out.
END_STATES = frozenset({_S.COMPLETED, _S.ROLLED_BACK})
#: Phases whose result may send the work back to BUILDING.
REWORKABLE_STATES = frozenset({_S.TESTING, _S.REVIEWING, _S.SHIPPING})

_RANK: Mapping[WorkflowState, int] = MappingProxyType({state: rank for rank, state in enumerate(_S)})
_STOP = (_S.PAUSED, _S.FAILED, _S.ABANDONED)


class StateTransition:
    """The moves of a workflow that has every phase."""

    TRANSITIONS: ClassVar[Table] = MappingProxyType(
        {
            _S.PENDING: (_S.PLANNING, *_STOP),
            _S.PLANNING: (_S.BUILDING, *_STOP),
            _S.BUILDING: (_S.LINTING, *_STOP),
            _S.LINTING: (_S.TESTING, *_STOP),
            _S.TESTING: (_S.REVIEWING, _S.BUILDING, *_STOP),
            _S.REVIEWING: (_S.DOCUMENTING, _S.BUILDING, *_STOP),
            _S.DOCUMENTING: (_S.SHIPPING, *_STOP),
            _S.SHIPPING: (_S.CLEANING, _S.BUILDING, *_STOP),
            _S.CLEANING: (_S.COMPLETED, *_STOP),
            _S.COMPLETED: (*PIPELINE, _S.ROLLED_BACK),
            _S.FAILED: (*PIPELINE, _S.ROLLED_BACK, _S.ABANDONED),
            _S.PAUSED: (_S.PENDING, *PIPELINE, _S.FAILED, _S.ROLLED_BACK, _S.ABANDONED),
            _S.ROLLED_BACK: (),
            _S.ABANDONED: (_S.ROLLED_BACK,),
        }
    )

    @classmethod
    def can_transition(cls, from_state: WorkflowState | str, to_state: WorkflowState | str) -> bool:
        """Say whether the full table has this move; the guards of a machine may still refuse it."""
        return state_named(to_state) in cls.TRANSITIONS[state_named(from_state)]


def is_terminal(name: object) -> bool:
    """Say whether *name*, as stored in a document, is a state in which a workflow no longer holds its issue."""
    return isinstance(name, str) and name in _TERMINAL_NAMES


def state_named(value: object) -> WorkflowState:
    """Return the state that *value* is or names; raise UsageError listing all states."""
    if isinstance(value, WorkflowState):
        return value
    if not isinstance(value, str) or value not in STATES:
        raise UsageError(f"{value!r} is not a workflow state; the states are: {', '.join(STATES)}")

    return STATES[value]


def rank(state: WorkflowState) -> int:
    """Return the position of *state* in the pipeline: PENDING is 0, then the phases; COMPLETED follows the last."""
    return _RANK[state]


def is_rework(from_state: WorkflowState, to_state: WorkflowState) -> bool:
    """Say whether the move sends work back to an earlier phase, which starts a new round there."""
    return from_state in PHASE_STATES and to_state in PHASE_STATES and _RANK[to_state] < _RANK[from_state]


def is_success(from_state: WorkflowState, to_state: WorkflowState) -> bool:
    """Say whether the move means that every phase under *from_state* has succeeded."""
    forward = to_state in PHASE_STATES or to_state is WorkflowState.COMPLETED
    return from_state in PHASE_STATES and forward and _RANK[to_state] > _RANK[from_state]


def entry(table: Table) -> WorkflowState:
    """Return the state of the first phase."""
    return next(state for state in table[WorkflowState.PENDING] if state in PHASE_STATES)


# --- tables of workflows with fewer phases ---------------------------------------------------------------------


def derive_table(phases: Iterable[tuple[str, WorkflowState]]) -> Table:
    """
    Return the table of a workflow from its phases (name, state the phase runs under), given in running order.

    Phases that share a state are one state of the table: a move between them is an event of the phase, not of the
    workflow. States without a phase are left out and their neighbours joined. Raises BadWorkflowGraph if there are no
    phases, if no phase can run under a given state, or if the phases are not in pipeline order.
    """
    result = tuple(phases)
    if not result:
        raise BadWorkflowGraph("a workflow needs at least one phase")
    for name, state in result:
        if state not in PHASE_STATES:
            allowed = ", ".join(phase.value for phase in PIPELINE)
            raise BadWorkflowGraph(f"phase {name!r} cannot run under {state.value}; a phase runs under: {allowed}")
    for (earlier, before), (name, state) in pairwise(result):
        if rank(state) < rank(before):
            raise BadWorkflowGraph(
                f"phase {name!r} ({state.value}) comes after {earlier!r} ({before.value}), but the pipeline has "
                f"{state.value} first: move {name!r} up, or give it another state"
            )

    return _table_of(tuple(dict.fromkeys(state for _, state in result)))


@lru_cache(maxsize=256)  # one entry per non-empty subset of the pipeline: 255
def _table_of(states: tuple[WorkflowState, ...]) -> Table:
    followers = (*states[1:], WorkflowState.COMPLETED)
    table = {
        WorkflowState.PENDING: (states[0], *_STOP),
        **{
            state: (following, *_rework_of(state, states), *_STOP)
            for state, following in zip(states, followers, strict=True)
        },
        WorkflowState.COMPLETED: (*states, WorkflowState.ROLLED_BACK),
        WorkflowState.FAILED: (*states, WorkflowState.ROLLED_BACK, WorkflowState.ABANDONED),
        WorkflowState.PAUSED: (
            WorkflowState.PENDING,
            *states,
            WorkflowState.FAILED,
            WorkflowState.ROLLED_BACK,
            WorkflowState.ABANDONED,
        ),
        WorkflowState.ROLLED_BACK: (),
        WorkflowState.ABANDONED: (WorkflowState.ROLLED_BACK,),
    }

    return frozen(table)


def _rework_of(state: WorkflowState, states: Sequence[WorkflowState]) -> tuple[WorkflowState, ...]:
    is_possible = state in REWORKABLE_STATES and WorkflowState.BUILDING in states
    return (WorkflowState.BUILDING,) if is_possible else ()


# --- the check of a table --------------------------------------------------------------------------------------


def frozen(table: Mapping[WorkflowState, Iterable[WorkflowState]]) -> Table:
    """Return a read-only copy of *table* that has passed `check_table`."""
    copy = MappingProxyType({state: tuple(targets) for state, targets in table.items()})
    check_table(copy)

    return copy


def check_table(table: Table) -> None:
    """Raise BadWorkflowGraph naming states that are unknown, unreachable, dead ends, or cut off from final states."""
    if WorkflowState.PENDING not in table:
        raise BadWorkflowGraph("the table has no pending state, where every workflow starts")
    if not PHASE_STATES.intersection(table[WorkflowState.PENDING]):
        raise BadWorkflowGraph("no phase can be begun from pending")

    targets = {target for row in table.values() for target in row}
    _refuse("is the target of a move but has no row of its own", targets.difference(table))
    _refuse("cannot be reached from pending", set(table) - _reached(table, [WorkflowState.PENDING]))
    _refuse("has no way out", {state for state, row in table.items() if not row and state not in END_STATES})

    backwards = {state: tuple(source for source, row in table.items() if state in row) for state in table}
    _refuse("has no path to an end", set(table) - _reached(backwards, END_STATES.intersection(table)))


def _refuse(what: str, states: Collection[WorkflowState]) -> None:
    if states:
        names = ", ".join(state.value for state in sorted(states, key=rank))
        raise BadWorkflowGraph(f"bad state table: {names} {what}")


def _reached(table: Table, starts: Iterable[WorkflowState]) -> set[WorkflowState]:
    """Return every state reachable from *starts*, breadth first."""
    seen = set(starts)
    queue = list(seen)
    for state in queue:  # the list grows while it is walked
        fresh = [target for target in table[state] if target not in seen]
        seen.update(fresh)
        queue.extend(fresh)

    return seen


check_table(StateTransition.TRANSITIONS)


# --- the position of a workflow: which moves are open, and what a move changes ---------------------------------
#
# Pure. `refusal` holds every guard and `advance` every counter of the state machine, so no caller decides about a move.


class Position(NamedTuple):  # no dataclass: each step copies it with changes, five times as fast this way
    """Everything that decides about the next move, besides the table."""

    state: WorkflowState = WorkflowState.PENDING
    resume_state: WorkflowState | None = None  #: the state to resume from PAUSED
    failed_phase: WorkflowState | None = None  #: the phase to retry from FAILED
    furthest_failed: WorkflowState | None = None  #: must succeed before retry_count goes back to 0
    retry_count: int = 0
    retry_marks: int = 0  #: retries counted but not used yet, at most retry_count
    max_retries: int = 3  #: includes retries_granted
    retries_granted: int = 0
    reworks: int = 0
    max_reworks: int = 3
    is_merged: bool = False
    is_rolling_back: bool = False


def return_phase(at: Position, table: Table) -> WorkflowState:
    """Return the phase that a failed workflow returns to; the first one if none was begun or recorded."""
    return at.failed_phase or entry(table)


# --- guards ----------------------------------------------------------------------------------------------------


def refusal(at: Position, table: Table, wanted: WorkflowState) -> str:
    """Return why the workflow cannot move to *wanted* now, or "" if it can."""
    if wanted not in table:
        return f"this workflow has no {wanted.value} phase"
    if wanted is at.state:
        return "it is there already"
    if wanted not in table[at.state]:
        return "there is no such move"

    if at.is_rolling_back and wanted not in (WorkflowState.ABANDONED, WorkflowState.ROLLED_BACK):
        return "a rollback was begun and has to be finished"
    if at.is_merged and (why := _merge_refusal(at, table, wanted)):
        return why
    if at.state is WorkflowState.PAUSED and wanted in ACTIVE_STATES:
        return _resume_refusal(at, wanted)
    if at.state is WorkflowState.FAILED and wanted in PHASE_STATES:
        return _retry_refusal(at, table, wanted)
    if is_rework(at.state, wanted) and at.reworks >= at.max_reworks:
        return f"{at.reworks} of {at.max_reworks} reworks are used"

    return ""


def _merge_refusal(at: Position, table: Table, wanted: WorkflowState) -> str:
    if wanted is WorkflowState.ROLLED_BACK:
        return "its pull request is merged, which is not undone"
    if wanted is WorkflowState.FAILED and _phase_at(at, table) is WorkflowState.CLEANING:
        return "its pull request is merged: a failed clean-up is completed with warnings, use finish_cleaning()"
    if at.state is WorkflowState.FAILED and wanted is WorkflowState.PLANNING and return_phase(at, table) is not wanted:
        return "its pull request is merged, so it is not planned again"
    if at.state is WorkflowState.COMPLETED and wanted is not WorkflowState.CLEANING:
        return "its pull request is merged, so it is not carried on: start a new workflow"

    return ""


def _resume_refusal(at: Position, wanted: WorkflowState) -> str:
    if at.resume_state is None and wanted is not WorkflowState.PENDING:
        return "where it was paused is not recorded: it starts again at pending, or where resume_from() says"
    if at.resume_state is not None and wanted is not at.resume_state:
        return f"it was paused in {at.resume_state.value} and goes on there"

    return ""


def _retry_refusal(at: Position, table: Table, wanted: WorkflowState) -> str:
    if wanted not in (return_phase(at, table), WorkflowState.PLANNING):
        return f"{return_phase(at, table).value} failed: it goes back there, or is planned again"
    if not at.retry_marks and at.retry_count >= at.max_retries:
        used = f"{at.retry_count} of {at.max_retries} retries are used"
        return f"{used}; a person may grant more with: adw retry ID --grant N"

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
    """Return the phase that fails if the workflow fails now; the first one if none has begun."""
    where = at.resume_state if at.state is WorkflowState.PAUSED else at.state
    return where if where in PHASE_STATES else entry(table)


def failed_in(at: Position, phase: WorkflowState) -> Position:
    """Return *at* with *phase* as the failed one; an earlier phase does not hide a later one that also failed."""
    furthest = max(phase, at.furthest_failed or phase, key=rank)
    return at._replace(failed_phase=phase, furthest_failed=furthest)


def _used_retry(at: Position) -> Position:
    if at.retry_marks:
        return at._replace(retry_marks=at.retry_marks - 1)

    return at._replace(retry_count=at.retry_count + 1)


def _succeeded(at: Position, phase: WorkflowState) -> Position:
    """
    Return *at* after *phase* has succeeded.

    The count resets only once the furthest failure is passed. Otherwise a workflow that fails in testing, is replanned
    and then fails in building each time would have endless retries.
    """
    if at.furthest_failed is not None and rank(phase) >= rank(at.furthest_failed):
        return at._replace(retry_count=0, retry_marks=0, failed_phase=None, furthest_failed=None)
    if at.failed_phase is phase:
        return at._replace(failed_phase=None)

    return at


def facts(before: Position, after: Position) -> JsonObject:
    """Return what the machine adds to the history entry of a move."""
    written: JsonObject = {}
    if before.state is WorkflowState.FAILED and after.state in PHASE_STATES:
        written["retry_number"] = after.retry_count - after.retry_marks
        written["retry_limit"] = after.max_retries
    if before.state is WorkflowState.FAILED and after.retries_granted:
        written["retries_granted"] = after.retries_granted
    if after.reworks > before.reworks:
        written["rework_number"] = after.reworks

    return written


# --- reading and checking a document ---------------------------------------------------------------------------
#
# Pure. A document that legal moves could not have produced is refused with StateInvalid, in one sentence that names the
# workflow and the field. Moves made before or by a migration are not checked: older tools had other tables. A document
# without any history (older tools kept none) gets one move that says so.


#: Suffix of `metadata.source` in moves that a migration wrote.
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
    """Return the table of the workflow frozen in *document*, or the full table if none is frozen."""
    if document.workflow is None or not document.workflow.phases:
        return StateTransition.TRANSITIONS

    return derive_table(_phase_of(document, number, phase) for number, phase in enumerate(document.workflow.phases, 1))


def _read_earlier(document: WorkflowDocument) -> list[tuple[int, Table]]:
    """Return the tables of the earlier definitions, each with the number of moves made until it was replaced."""
    earlier = document.workflow.earlier if document.workflow is not None else []
    tables: list[tuple[int, Table]] = []
    for number, definition in enumerate(earlier, 1):
        moves, states = definition.get("moves"), definition.get("states")
        if not isinstance(moves, int) or not isinstance(states, list) or (tables and moves < tables[-1][0]):
            raise _invalid(document, f"definition {number} of those before the present one is not whole")
        phases = [{"name": f"of definition {number}", "state": state} for state in states]
        tables.append((moves, derive_table(_phase_of(document, number, phase) for phase in phases)))

    return tables


def _phase_of(document: WorkflowDocument, number: int, phase: JsonObject) -> tuple[str, WorkflowState]:
    name = str(phase.get("name") or f"number {number}")
    try:
        return name, state_named(phase.get("state"))
    except UsageError as exc:
        raise _invalid(document, f"phase {name} has no state it runs under: {exc}") from exc


def read_position(document: WorkflowDocument, table: Table) -> Position:
    """Return the position of the workflow in *document*."""
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
    """Return the moves of *document* for the machine, after checking that they form a chain to the current state."""
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
    tables = [*_read_earlier(document), (document.history_dropped + len(entries), table)]
    start = first_own
    for moves, made_by in tables:
        end = max(start, min(len(entries), moves - document.history_dropped))
        # A long history repeats a few moves: look each one up once.
        distinct = {(entry.from_state, entry.to_state): entry for entry in entries[start:end]}
        for entry in distinct.values():
            if not _has_move(made_by, entry):
                raise _invalid(document, f"its history has the move {_shown(entry)}, which its table does not have")
        start = end
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
    """Return a deep copy of *metadata*; raise StateUnserialisable if a JSON round trip would change it."""
    if type(metadata) is not dict and not isinstance(metadata, Mapping):
        raise StateUnserialisable(f"metadata must be an object with text keys, not {type(metadata).__name__}")
    if not metadata:
        return {}
    try:
        text = json.dumps(dict(metadata), allow_nan=False, ensure_ascii=False)
        text.encode()  # a lone surrogate fails here rather than when the document is written
        read: JsonObject = json.loads(text)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StateUnserialisable(f"metadata cannot be written as JSON: {exc}") from exc
    if read != metadata:
        raise StateUnserialisable("metadata would change on its way through JSON: use lists, and texts as keys")

    return read


def copied(value: JsonObject) -> JsonObject:
    """Return a deep copy of *value*."""
    return {key: item if isinstance(item, str) else _copied(item) for key, item in value.items()}


def _copy_of(move: JsonObject) -> JsonObject:
    """Return a copy of a move. Only its metadata can hold more than texts, and it is nearly always empty."""
    return {**move, "metadata": _copied(move["metadata"]) if move["metadata"] else {}}


def _copied(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return copied(value) if value else {}
    if isinstance(value, list):
        return [_copied(item) for item in value]

    return value


#: Number of moves kept in a document; older moves are only counted, and remain in the event log.
HISTORY_LIMIT = 1000


def end_of_cleaning(*, is_merged: bool, has_failed: bool) -> WorkflowState:
    """Return the state that CLEANING ends in: merged work is completed, even if the clean-up failed."""
    return WorkflowState.FAILED if has_failed and not is_merged else WorkflowState.COMPLETED


class WorkflowStateMachine:
    """One workflow's state, counters and history."""

    def __init__(
        self,
        adw_id: str,
        *,
        table: Table | None = None,
        now: Callable[[], datetime] | None = None,
        max_retries: int = 3,
        max_reworks: int = 3,
    ) -> None:
        """
        Start in PENDING, with the full table unless *table* is given.

        *now* returns the time of each move; by default the clock of the open home is used.
        """
        self._adw_id = check_adw_id(adw_id)
        self._table = StateTransition.TRANSITIONS if table is None else frozen(table)
        self._now = now or _ambient_now
        self._at = Position(
            max_retries=_count("max_retries", max_retries), max_reworks=_count("max_reworks", max_reworks)
        )
        self._history: list[JsonObject] = []
        self._dropped = 0

    def __repr__(self) -> str:
        return f"<WorkflowStateMachine {self._adw_id} {self._at.state.value}>"

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def adw_id(self) -> str:
        """The id of the workflow."""
        return self._adw_id

    @property
    def table(self) -> Table:
        """The moves of this workflow, before guards are applied."""
        return self._table

    @property
    def position(self) -> Position:
        """Everything except the history, as one immutable value."""
        return self._at

    @property
    def current_state(self) -> WorkflowState:
        """The current state of the workflow; only `transition` changes it."""
        return self._at.state

    @property
    def resume_state(self) -> WorkflowState | None:
        """The state to return to from PAUSED."""
        return self._at.resume_state

    @property
    def failed_phase(self) -> WorkflowState | None:
        """The state of the phase that failed and has not succeeded since."""
        return self._at.failed_phase

    @property
    def retry_count(self) -> int:
        """Retries counted since the furthest failed phase began to fail."""
        return self._at.retry_count

    @property
    def max_retries(self) -> int:
        """The maximum number of retries, including those a person granted."""
        return self._at.max_retries

    @property
    def retries_left(self) -> int:
        """How often the workflow can still leave FAILED for work: unused marks plus retries not counted yet."""
        return self._at.retry_marks + max(0, self._at.max_retries - self._at.retry_count)

    @property
    def reworks(self) -> int:
        """How often work was sent back; never decreases."""
        return self._at.reworks

    @property
    def max_reworks(self) -> int:
        """How often work may be sent back."""
        return self._at.max_reworks

    @property
    def is_merged(self) -> bool:
        """Whether the pull request is merged; if so, nothing is rolled back any more."""
        return self._at.is_merged

    @property
    def rollback_pending(self) -> bool:
        """Whether a rollback has begun; if so, the workflow can only move to ROLLED_BACK."""
        return self._at.is_rolling_back

    @property
    def state_history(self) -> list[JsonObject]:
        """The moves, oldest first, as {from, to, timestamp, metadata}; a copy."""
        return [copied(move) for move in self._history]

    @property
    def history_dropped(self) -> int:
        """The number of moves dropped before the first one in `state_history`."""
        return self._dropped

    def legal_targets(self) -> tuple[WorkflowState, ...]:
        """Return the states the workflow may move to now, with every guard applied."""
        return tuple(state for state in self._table[self._at.state] if not refusal(self._at, self._table, state))

    # --- moving ------------------------------------------------------------------------------------------------

    def transition(self, new_state: WorkflowState | str, metadata: Mapping[str, JsonValue] | None = None) -> JsonObject:
        """
        Move to *new_state* and return a copy of the history entry; *metadata* is copied and must be JSON.

        Raises IllegalTransition, which says why and which moves are legal; nothing has changed then.
        """
        wanted = new_state if isinstance(new_state, WorkflowState) else state_named(new_state)
        why = refusal(self._at, self._table, wanted)
        if why:
            raise self._illegal(wanted, why)

        after = advance(self._at, self._table, wanted)
        move: JsonObject = {
            "from": self._at.state._value_,
            "to": wanted._value_,
            "timestamp": timestamps.to_text(self._now()),
            "metadata": self._metadata_of(after, metadata),
        }
        # Nothing below can fail, so a refused move changes nothing.
        self._at = after
        self._history.append(move)
        surplus = len(self._history) - HISTORY_LIMIT
        if surplus > 0:
            del self._history[:surplus]
            self._dropped += surplus

        return _copy_of(move)

    def finish_cleaning(self, problem: str = "", metadata: Mapping[str, JsonValue] | None = None) -> WorkflowState:
        """
        End CLEANING and return the resulting state; *problem* says what went wrong, if anything.

        After a merge, a problem becomes a warning on COMPLETED; before, it is a failure.
        """
        if self._at.state is not WorkflowState.CLEANING:
            raise self._illegal(WorkflowState.COMPLETED, "it is not cleaning")

        end = end_of_cleaning(is_merged=self._at.is_merged, has_failed=bool(problem))
        said: JsonObject = dict(metadata or {})
        if problem and end is WorkflowState.COMPLETED:
            said["warnings"] = [problem]
        elif problem:
            said["reason"] = problem
        self.transition(end, said)

        return end

    def _illegal(self, wanted: WorkflowState, why: str) -> IllegalTransition:
        legal = [state.value for state in self.legal_targets()]
        return IllegalTransition(self._at.state.value, wanted.value, legal, why)

    def _metadata_of(self, after: Position, given: Mapping[str, JsonValue] | None) -> JsonObject:
        metadata: JsonObject = {} if given is None else as_json(given)
        own = facts(self._at, after)
        if own and (taken := sorted(own.keys() & metadata.keys())):
            raise UsageError(f"the machine writes {', '.join(taken)} into this move itself: use another metadata key")
        if after.is_rolling_back and after.state is WorkflowState.ABANDONED:
            metadata.setdefault("rollback", True)
        metadata.update(own)

        return metadata

    # --- retries -----------------------------------------------------------------------------------------------

    def can_retry(self) -> bool:
        """Say whether `mark_retry` may be called now. Earlier marks stay valid even if this is False."""
        return self._is_waiting_for_retry() and self._at.retry_count < self._at.max_retries

    def mark_retry(self) -> None:
        """Count a retry, which the next way out of FAILED uses. Raises RetriesExhausted if no retry is left."""
        self._require_failed("retried")
        if not self.can_retry():
            raise RetriesExhausted(self._at.retry_count, self._at.max_retries)

        self._at = self._at._replace(retry_count=self._at.retry_count + 1, retry_marks=self._at.retry_marks + 1)

    def grant_retries(self, number: int) -> None:
        """Raise the retry limit by *number*, as a person decided; the move out of FAILED records it in the history."""
        self._require_failed("granted retries")
        if _count("the number of retries granted", number) == 0:
            raise UsageError("the number of retries granted must be at least 1")

        limit, granted = self._at.max_retries + number, self._at.retries_granted + number
        self._at = self._at._replace(max_retries=limit, retries_granted=granted)

    def _is_waiting_for_retry(self) -> bool:
        return self._at.state is WorkflowState.FAILED and not self._at.is_rolling_back

    def _require_failed(self, what: str) -> None:
        if self._is_waiting_for_retry():
            return

        shown = "being rolled back" if self._at.is_rolling_back else self._at.state.value
        raise UsageError(f"only a failed workflow can be {what}, and {self._adw_id} is {shown}")

    # --- decisions that are not moves --------------------------------------------------------------------------

    def resume_from(self, phase: WorkflowState | str) -> None:
        """
        Set the phase that a paused or failed workflow returns to, as a person decided.

        The phase may not come after the recorded one: no phase is skipped. Counters stay unchanged.
        """
        wanted = state_named(phase)
        recorded = self._recorded_return()
        if wanted not in PHASE_STATES or wanted not in self._table:
            raise UsageError(f"{wanted.value} is not a phase of this workflow: choose another")
        if recorded is not None and rank(wanted) > rank(recorded):
            raise UsageError(f"{wanted.value} comes after {recorded.value}, where it stopped: no phase may be skipped")

        if self._at.state is WorkflowState.PAUSED:
            self._at = self._at._replace(resume_state=wanted)
        else:
            self._at = failed_in(self._at, wanted)

    def _recorded_return(self) -> WorkflowState | None:
        if self._at.state is WorkflowState.PAUSED:
            return self._at.resume_state
        if self._at.state is WorkflowState.FAILED:
            return self._at.failed_phase

        state = self._at.state.value
        raise UsageError(f"only a paused or failed workflow can be resumed, and {self._adw_id} is {state}")

    def mark_merged(self) -> None:
        """Record that the pull request is merged, which is irreversible."""
        self._at = self._at._replace(is_merged=True)

    def begin_rollback(self) -> None:
        """
        Allow only the way to ROLLED_BACK from now on; an active workflow passes through ABANDONED.

        Raises IllegalTransition after a merge, or if the workflow is already rolled back.
        """
        if self._at.is_merged:
            raise self._illegal(WorkflowState.ROLLED_BACK, "its pull request is merged, which is not undone")
        if self._at.state is WorkflowState.ROLLED_BACK:
            raise self._illegal(WorkflowState.ROLLED_BACK, "it is there already")

        self._at = self._at._replace(is_rolling_back=True)

    # --- persistence -------------------------------------------------------------------------------------------

    @classmethod
    def of(
        cls, document: WorkflowDocument, *, table: Table | None = None, now: Callable[[], datetime] | None = None
    ) -> WorkflowStateMachine:
        """
        Return the machine described by *document*, with the table of the workflow frozen in it.

        Raises StateInvalid if legal moves could not have produced the document.
        """
        machine = cls(document.adw_id, now=now)
        machine._table = read_table(document) if table is None else frozen(table)
        machine._at = read_position(document, machine._table)
        machine._history = read_history(document, machine._table)
        machine._dropped = document.history_dropped

        return machine

    def write_into(self, document: WorkflowDocument) -> None:
        """
        Write state, counters and new moves into *document*, and leave its other fields alone.

        Raises UsageError if the document belongs to another workflow or has moves that this machine does not know.
        """
        moves = self._missing_in(document)
        if moves:
            document.add_history(moves, keep=len(self._history))
        at = self._at
        document.assign(
            history_dropped=self._dropped,
            current_state=at.state._value_,
            resume_state=at.resume_state._value_ if at.resume_state else None,
            failed_phase=at.failed_phase._value_ if at.failed_phase else None,
            furthest_failed=at.furthest_failed._value_ if at.furthest_failed else None,
            retry_count=at.retry_count,
            retry_marks=at.retry_marks,
            max_retries=at.max_retries,
            retries_granted=at.retries_granted,
            reworks=at.reworks,
            max_reworks=at.max_reworks,
            pr_merged=at.is_merged,
        )
        if at.is_rolling_back:
            document.begin_rollback()

    def _missing_in(self, document: WorkflowDocument) -> list[JsonObject]:
        """Return the moves of this machine that follow the last move in *document*."""
        if document.adw_id != self._adw_id:
            raise UsageError(f"the machine of {self._adw_id} cannot be written into the document of {document.adw_id}")

        known = len(document.state_history) + document.history_dropped
        missing = len(self._history) + self._dropped - known
        if missing < 0 or not self._continues(document, missing):
            raise UsageError(f"the document of {self._adw_id} has moves this machine does not know: load it again")

        return [_copy_of(move) for move in self._history[-missing:]] if missing else []

    def _continues(self, document: WorkflowDocument, missing: int) -> bool:
        """Say whether the last move of *document* directly precedes the *missing* moves, if it is still kept here."""
        if not document.state_history or missing >= len(self._history):
            return True

        last, own = document.state_history[-1], self._history[-1 - missing]
        return (last.from_state, last.to_state, last.timestamp) == (own["from"], own["to"], own["timestamp"])


def _ambient_now() -> datetime:
    return default_home.get().clock.now()


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name} must be a whole number of 0 or more, not {value!r}")

    return value
