"""
What a lane of an execution does next: which iterations it takes, or what it waits for.

Pure; rows are read through a `Shelf`, and none of them is read twice in a turn. A sequential loop begins an iteration
only when the one before is over, with all its calls. Of many that wait a lane takes no more than its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from adws.adw_modules.call_rules import INTERRUPTION
from adws.adw_modules.execution_state import RETRY_WAIT, Head, Iteration
from adws.adw_modules.execution_turn import ExecutionTurn
from adws.adw_modules.execution_words import ExecutionState
from adws.adw_modules.executions import Taken
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.steps import ASYNC, StepSpec

#: Iterations that are cancelled in one transaction.
CANCELLED_AT_ONCE = 500
#: Why calls of workflows that are over are cancelled.
LEFT = "its workflow is over"


class Shelf(Protocol):
    """The rows of one execution, as they were when the turn began."""

    def due(self, moment: str, most: int) -> list[Iteration]:
        """Return iterations whose next call is due, the earliest first."""

    def waiting(self, most: int) -> list[Iteration]:
        """Return iterations that wait for their next call, whenever that is."""

    def first_waiting(self) -> Iteration | None:
        """Return the first of those in the order of the collection."""

    def next_at(self) -> str | None:
        """Return when the next call is due, None when none waits."""

    def not_begun(self, first: int, most: int) -> list[Iteration]:
        """Return iterations from number *first* on, which nobody has begun."""

    def orphans(self) -> list[Iteration]:
        """Return iterations that are being called by a lane which does not exist any more."""


def is_sequential(step: StepSpec) -> bool:
    """Say whether the iterations of *step* are done one after the other."""
    return step.loop is None or step.loop.mode != ASYNC


def lanes_of(step: StepSpec, total: int) -> int:
    """Return how many lanes *step* has for so many iterations."""
    return 1 if step.loop is None or is_sequential(step) else max(1, min(step.loop.concurrency, total))


def pick(turn: ExecutionTurn, shelf: Shelf, *, moment: str, most: int, is_wanted: bool) -> Taken:
    """Give the lane its next iterations, or say what it waits for."""
    head = turn.head
    if head.cancel_reason and not turn.is_over:
        cancel_some(turn, shelf)
    if turn.is_over:
        return Taken(is_over=True)
    if not is_wanted or head.execution.total is None or most < 1:
        return Taken()
    if head.cancel_reason:
        return Taken(wait_until=moment) if _is_left_to_cancel(head) else Taken()
    again = [row for row in turn.changed.values() if row.state == RETRY_WAIT]
    rows = _in_order(turn, shelf, again, moment, most) if is_sequential(head.execution.step) else None
    if rows is None:
        rows = _side_by_side(turn, shelf, again, moment, most)
    if rows:
        return Taken(assignments=turn.begin(rows))

    return _nothing_now(turn, shelf, again, moment)


def _nothing_now(turn: ExecutionTurn, shelf: Shelf, again: Sequence[Iteration], moment: str) -> Taken:
    known = {row.index for row in turn.changed.values()}
    lost = [row for row in shelf.orphans() if row.index not in known]
    if lost:
        turn.interrupt(lost)
        return Taken(wait_until=moment, is_over=turn.is_over)
    moments = [row.next_at for row in again]
    stored = shelf.next_at()
    if stored is not None:
        moments.append(stored)

    return Taken(wait_until=max(min(moments), moment) if moments else "")


def _in_order(turn: ExecutionTurn, shelf: Shelf, again: Sequence[Iteration], moment: str, most: int) -> list[Iteration]:
    stored = shelf.first_waiting()
    first = min([*again, *([stored] if stored else [])], key=_place, default=None)
    if first is not None:
        return [first] if first.next_at <= moment else []
    has_rules = bool(turn.head.execution.step.retry)

    return _fresh(turn.head, shelf, 1 if has_rules else most)


def _side_by_side(
    turn: ExecutionTurn, shelf: Shelf, again: Sequence[Iteration], moment: str, most: int
) -> list[Iteration]:
    due = [*(row for row in again if row.next_at <= moment), *shelf.due(moment, most)]
    rows = sorted(due, key=lambda row: (row.next_at, row.index))[:most]
    suspects = [row for row in rows if row.why == INTERRUPTION]
    if suspects:
        return suspects[:1]  # a call that takes its worker along shall not take others with it again
    left = most - len(rows)
    if left:
        rows += _fresh(turn.head, shelf, min(left, _share(turn.head)))

    return rows


def _share(head: Head) -> int:
    """Return how many of those that wait a lane takes, so that there are some for the others."""
    left = (head.execution.total or 0) - head.next_index

    return max(1, left // (2 * head.lanes))


def _fresh(head: Head, shelf: Shelf, most: int) -> list[Iteration]:
    if head.next_index >= (head.execution.total or 0):
        return []
    rows = shelf.not_begun(head.next_index, most)
    head.next_index += len(rows)

    return rows


def _place(row: Iteration) -> int:
    return row.index


# --- cancelling ------------------------------------------------------------------------------------------------


def cancel_some(turn: ExecutionTurn, shelf: Shelf) -> bool:
    """End some of what waits; say whether there may be more."""
    head = turn.head
    again = [row for row in turn.changed.values() if row.state == RETRY_WAIT]
    waiting = shelf.waiting(CANCELLED_AT_ONCE)
    turn.cancel([*again, *waiting], head.cancel_reason)
    turn.cancel(_fresh(head, shelf, CANCELLED_AT_ONCE), head.cancel_reason)

    return not turn.is_over and (len(waiting) == CANCELLED_AT_ONCE or _is_left_to_cancel(head))


def _is_left_to_cancel(head: Head) -> bool:
    return head.next_index < (head.execution.total or 0)


# --- for people ------------------------------------------------------------------------------------------------


def shown_facts(head: Head, *, running: int, waiting: int, next_at: str | None) -> JsonObject:
    """Return the counts of an execution."""
    done = head.execution

    return {
        "execution_id": done.execution_id,
        "step": done.step.name,
        "state": done.state.value,
        "reason": done.reason,
        "total": done.total,
        "done": done.ended,
        "succeeded": done.succeeded,
        "failed": done.failed,
        "cancelled": done.cancelled,
        "running": running,
        "waiting": waiting,
        "pending": max(0, head.stored - head.next_index) if done.state is ExecutionState.RUNNING else 0,
        "next_retry": next_at,
    }
