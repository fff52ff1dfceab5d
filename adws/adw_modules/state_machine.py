"""
The state machine of a workflow: the one way to change its state.

Pure: the clock comes in, nothing is read or written. All that decides about a move is in the machine, never in a
caller, and nothing else in adw assigns a state. A move that is refused leaves no mark.

Retries. `mark_retry()` counts one retry and leaves a mark; leaving FAILED for work uses one mark, and counts one itself
when there is none. So every way out of FAILED is counted exactly once, marks that were not used stay good, and with
neither a mark nor a retry left the way is closed. The count goes back to 0 when the furthest phase that failed has
succeeded; a retry, a replan or a rework never sets it back.

A machine belongs to one thread. Several processes are kept apart by who owns the workflow, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules import ambient, timestamps
from adws.adw_modules.errors import IllegalTransition, RetriesExhausted, UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.state_position import Position, advance, facts, failed_in, refusal
from adws.adw_modules.state_record import as_json, copied, read_history, read_position, read_table
from adws.adw_modules.state_table import (
    PHASE_STATES,
    StateTransition,
    Table,
    WorkflowState,
    frozen,
    rank,
    state_named,
)

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

__all__ = ["HISTORY_LIMIT", "StateTransition", "WorkflowState", "WorkflowStateMachine", "end_of_cleaning"]

#: Moves kept in a document; older ones are counted, and stay in the event log.
HISTORY_LIMIT = 1000


def end_of_cleaning(*, is_merged: bool, has_failed: bool) -> WorkflowState:
    """Return where CLEANING ends: work that is merged is completed, however the clean-up went."""
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

        *now* gives the moment of each move; without it the clock of the home that is open is asked.
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

    # --- what it knows -----------------------------------------------------------------------------------------

    @property
    def adw_id(self) -> str:
        """The workflow this is the machine of."""
        return self._adw_id

    @property
    def table(self) -> Table:
        """The moves of this workflow, guards left aside."""
        return self._table

    @property
    def position(self) -> Position:
        """Everything but the history, as one value that never changes."""
        return self._at

    @property
    def current_state(self) -> WorkflowState:
        """Where the workflow stands; only `transition` changes it."""
        return self._at.state

    @property
    def resume_state(self) -> WorkflowState | None:
        """Where PAUSED goes back to."""
        return self._at.resume_state

    @property
    def failed_phase(self) -> WorkflowState | None:
        """The state of the phase that failed and has not succeeded since."""
        return self._at.failed_phase

    @property
    def retry_count(self) -> int:
        """Retries counted since the furthest phase that failed began to fail."""
        return self._at.retry_count

    @property
    def max_retries(self) -> int:
        """How many there may be, with what a person granted."""
        return self._at.max_retries

    @property
    def retries_left(self) -> int:
        """How often the workflow can still leave FAILED for work: marks not used, and retries not counted."""
        return self._at.retry_marks + max(0, self._at.max_retries - self._at.retry_count)

    @property
    def reworks(self) -> int:
        """How often work was sent back; never shrinks."""
        return self._at.reworks

    @property
    def max_reworks(self) -> int:
        """How often work may be sent back."""
        return self._at.max_reworks

    @property
    def is_merged(self) -> bool:
        """Whether the pull request is merged: nothing is rolled back any more."""
        return self._at.is_merged

    @property
    def rollback_pending(self) -> bool:
        """Whether a rollback was begun: the only way left is to ROLLED_BACK."""
        return self._at.is_rolling_back

    @property
    def state_history(self) -> list[JsonObject]:
        """The moves, oldest first, as {from, to, timestamp, metadata}; a copy."""
        return [copied(move) for move in self._history]

    @property
    def history_dropped(self) -> int:
        """How many moves before the first of `state_history` were let go."""
        return self._dropped

    def legal_targets(self) -> tuple[WorkflowState, ...]:
        """Return where the workflow may go now, with every guard applied."""
        return tuple(state for state in self._table[self._at.state] if not refusal(self._at, self._table, state))

    # --- moving ------------------------------------------------------------------------------------------------

    def transition(self, new_state: WorkflowState | str, metadata: Mapping[str, JsonValue] | None = None) -> JsonObject:
        """
        Move to *new_state* and return a copy of the history entry; *metadata* is copied and must be JSON.

        Raises IllegalTransition, which says why and what would be legal; then nothing has changed.
        """
        wanted = state_named(new_state)
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
        # Nothing below can fail: a refused move has left no mark.
        self._at = after
        self._history.append(move)
        surplus = len(self._history) - HISTORY_LIMIT
        if surplus > 0:
            del self._history[:surplus]
            self._dropped += surplus

        return copied(move)

    def finish_cleaning(self, problem: str = "", metadata: Mapping[str, JsonValue] | None = None) -> WorkflowState:
        """
        End CLEANING and return where that led; *problem* says what went wrong, if anything did.

        After a merge a problem is a warning on COMPLETED, before it is a failure.
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
        """Say whether `mark_retry` may be called now; a mark made before is still good when this is False."""
        return self._is_waiting_for_retry() and self._at.retry_count < self._at.max_retries

    def mark_retry(self) -> None:
        """Count a retry; the next way out of FAILED uses it. Raises RetriesExhausted when none is left."""
        self._require_failed("retried")
        if not self.can_retry():
            raise RetriesExhausted(self._at.retry_count, self._at.max_retries)

        self._at = self._at._replace(retry_count=self._at.retry_count + 1, retry_marks=self._at.retry_marks + 1)

    def grant_retries(self, number: int) -> None:
        """Raise the limit by *number*, as a person decided; the move out of FAILED tells it in the history."""
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
        Choose the phase that a paused or failed workflow goes back to, as a person decided.

        It may not be later than the recorded one: no phase is skipped. Counters stay as they are.
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
        """Write down that the pull request is merged; there is no way back from that."""
        self._at = self._at._replace(is_merged=True)

    def begin_rollback(self) -> None:
        """
        Close every way but the one to ROLLED_BACK; an active workflow passes through ABANDONED.

        Raises IllegalTransition after a merge and when it is rolled back already.
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
        Return the machine that *document* describes, with the table of the workflow frozen in it.

        Raises StateInvalid when the document could not have come about by legal moves.
        """
        machine = cls(document.adw_id, now=now)
        machine._table = read_table(document) if table is None else frozen(table)
        machine._at = read_position(document, machine._table)
        machine._history = read_history(document, machine._table)
        machine._dropped = document.history_dropped

        return machine

    def write_into(self, document: WorkflowDocument) -> None:
        """
        Write state, counters and the moves it does not have yet into *document*; its other fields are left alone.

        Raises UsageError when the document is of another workflow, or has moves that this machine does not know.
        """
        moves = self._missing_in(document)
        if moves:
            document.add_history(moves, keep=len(self._history))
        at = self._at
        document.assign(
            history_dropped=self._dropped,
            current_state=at.state._value_,
            resume_state=_value(at.resume_state),
            failed_phase=_value(at.failed_phase),
            furthest_failed=_value(at.furthest_failed),
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
        """Return the moves of this machine that come after the last one of *document*."""
        if document.adw_id != self._adw_id:
            raise UsageError(f"the machine of {self._adw_id} cannot be written into the document of {document.adw_id}")

        known = len(document.state_history) + document.history_dropped
        missing = len(self._history) + self._dropped - known
        if missing < 0 or not self._continues(document, missing):
            raise UsageError(f"the document of {self._adw_id} has moves this machine does not know: load it again")

        return [copied(move) for move in self._history[-missing:]] if missing else []

    def _continues(self, document: WorkflowDocument, missing: int) -> bool:
        """Say whether the last move of *document* is the one before the *missing* ones here, as far as it is kept."""
        if not document.state_history or missing >= len(self._history):
            return True

        last, own = document.state_history[-1], self._history[-1 - missing]
        return (last.from_state, last.to_state, last.timestamp) == (own["from"], own["to"], own["timestamp"])


def _value(state: WorkflowState | None) -> str | None:
    return None if state is None else state._value_  # `value` is a Python function, and this is on every step


def _ambient_now() -> datetime:
    return ambient.parts().clock.now()


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name} must be a whole number of 0 or more, not {value!r}")

    return value
