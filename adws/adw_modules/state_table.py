"""
The states of a workflow, the table of its legal moves, and the proof that a table is sound.

Pure. All that says which move exists stands here, as data. What else has to hold for a move (retries left, where it was
paused) is in `state_machine`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from adws.adw_modules.errors import BadWorkflowGraph, UsageError


class WorkflowState(Enum):
    """Where a workflow stands; the phases are in the order of the pipeline."""

    # Each state exists once. Enum's own hash is a Python function, and every look at a set or a table would call it.
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
    COMPLETED = "completed"  #: done; an unmerged pull request can still be rolled back
    FAILED = "failed"  #: a phase used up its attempts; waits for a retry or a person
    PAUSED = "paused"  #: stopped on purpose; goes on where it was
    ROLLED_BACK = "rolled_back"  #: everything it made is undone
    ABANDONED = "abandoned"  #: given up; what it made is kept until a rollback


#: state -> the states it may go to. Read-only.
Table: TypeAlias = Mapping[WorkflowState, tuple[WorkflowState, ...]]

_S = WorkflowState

#: The states phases run under, in the order of the pipeline.
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
#: Work is going on or about to: the ports are held, a process may run.
ACTIVE_STATES = PHASE_STATES | {_S.PENDING}
#: Nothing runs, the workflow keeps its issue and waits.
PARKED_STATES = frozenset({_S.PAUSED, _S.FAILED})
#: The issue is free again.
TERMINAL_STATES = frozenset({_S.COMPLETED, _S.ABANDONED, _S.ROLLED_BACK})
_TERMINAL_NAMES = frozenset(state.value for state in TERMINAL_STATES)
#: The two ends that every state must be able to reach; only these may have no way out.
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
            _S.COMPLETED: (_S.ROLLED_BACK,),
            _S.FAILED: (*PIPELINE, _S.ROLLED_BACK, _S.ABANDONED),
            _S.PAUSED: (_S.PENDING, *PIPELINE, _S.FAILED, _S.ROLLED_BACK, _S.ABANDONED),
            _S.ROLLED_BACK: (),
            _S.ABANDONED: (_S.ROLLED_BACK,),
        }
    )

    @classmethod
    def can_transition(cls, from_state: WorkflowState | str, to_state: WorkflowState | str) -> bool:
        """Say whether the full table has this move; a machine's guards may still refuse it."""
        return state_named(to_state) in cls.TRANSITIONS[state_named(from_state)]


def is_terminal(name: object) -> bool:
    """Say whether *name*, as a document has it, is a state in which a workflow has no more claim to its issue."""
    return isinstance(name, str) and name in _TERMINAL_NAMES


def state_named(value: object) -> WorkflowState:
    """Return the state that *value* is or names; raise UsageError listing the states there are."""
    if isinstance(value, WorkflowState):
        return value
    try:
        return WorkflowState(value)
    except ValueError as exc:
        known = ", ".join(state.value for state in WorkflowState)
        raise UsageError(f"{value!r} is not a workflow state; the states are: {known}") from exc


def rank(state: WorkflowState) -> int:
    """Return the place of *state* in the pipeline: PENDING 0, then the phases, COMPLETED after the last."""
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
    Return the table of a workflow whose phases (name, state it runs under) are given in the order they run.

    Phases that share a state are one state of the table: the move between them is an event of the phase, not of the
    workflow. A state without a phase is left out and its neighbours are joined. Raises BadWorkflowGraph for no phases,
    for a state no phase can run under, and for phases out of the order of the pipeline.
    """
    found = tuple(phases)
    if not found:
        raise BadWorkflowGraph("a workflow needs at least one phase")
    for name, state in found:
        if state not in PHASE_STATES:
            allowed = ", ".join(phase.value for phase in PIPELINE)
            raise BadWorkflowGraph(f"phase {name!r} cannot run under {state.value}; a phase runs under: {allowed}")
    for (earlier, before), (name, state) in pairwise(found):
        if rank(state) < rank(before):
            raise BadWorkflowGraph(
                f"phase {name!r} ({state.value}) comes after {earlier!r} ({before.value}), but the pipeline has "
                f"{state.value} first: move {name!r} up, or give it another state"
            )

    return _table_of(tuple(dict.fromkeys(state for _, state in found)))


@lru_cache(maxsize=256)  # one for each subset of the pipeline: there are 255
def _table_of(states: tuple[WorkflowState, ...]) -> Table:
    followers = (*states[1:], WorkflowState.COMPLETED)
    table = {
        WorkflowState.PENDING: (states[0], *_STOP),
        **{
            state: (following, *_rework_of(state, states), *_STOP)
            for state, following in zip(states, followers, strict=True)
        },
        WorkflowState.COMPLETED: (WorkflowState.ROLLED_BACK,),
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


# --- the proof -------------------------------------------------------------------------------------------------


def frozen(table: Mapping[WorkflowState, Iterable[WorkflowState]]) -> Table:
    """Return a read-only copy of *table* that has passed `check_table`."""
    copy = MappingProxyType({state: tuple(targets) for state, targets in table.items()})
    check_table(copy)

    return copy


def check_table(table: Table) -> None:
    """Raise BadWorkflowGraph, naming the states, when one is unknown, unreachable, a trap, or cut off from the ends."""
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
    """Return every state that can be reached from *starts*, breadth first."""
    seen = set(starts)
    queue = list(seen)
    for state in queue:  # the list grows while it is walked
        fresh = [target for target in table[state] if target not in seen]
        seen.update(fresh)
        queue.extend(fresh)

    return seen


check_table(StateTransition.TRANSITIONS)
