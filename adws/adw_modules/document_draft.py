"""
The next revision of a document in the making: changes, moves and the events that tell of them, for one write.

The document that comes in is never changed. State moves only through the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from adws.adw_modules import timestamps
from adws.adw_modules.events import Event, new_event
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.state_table import rank

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument


class Draft:
    """A document being changed; `document` and `events` go into one write."""

    def __init__(
        self,
        document: WorkflowDocument,
        machine: WorkflowStateMachine,
        *,
        now: Callable[[], datetime],
        max_cost_usd: float | None = None,
        queue: JsonObject | None = None,
    ) -> None:
        """*queue* is who makes the changes, and on which run: `queue_id` and `worker_id`."""
        self.document = document.changed(phases=list(document.phases))
        self.machine = machine
        self.now = now
        self.max_cost_usd = max_cost_usd  #: the cap of the settings, for documents that have none; None: no cap
        self._meta: JsonObject = {"queue": queue} if queue else {}
        self.events: list[Event] = []
        self.at = now()  #: the one moment of this write
        self.text = timestamps.to_text(self.at)

    def finished(self) -> WorkflowDocument:
        """Return the document with the machine's state written into it."""
        self.machine.write_into(self.document)

        return self.document

    # --- state -------------------------------------------------------------------------------------------------

    def move(self, state: WorkflowState, metadata: Mapping[str, JsonValue] | None = None) -> None:
        """Move the workflow; nothing when it is there already."""
        before = self.machine.current_state
        if before is state:
            return
        self.machine.transition(state, metadata)
        self.moved(before, metadata)

    def move_on(self, state: WorkflowState) -> None:
        """
        Move forward to *state*, through the states in between whose phases were all passed over.

        The table has no move past a state: one that is left without a word would be one that nobody missed.
        """
        start, table = self.machine.current_state, self.machine.table
        if state not in table[start]:
            for passed in sorted((known for known in table if _is_between(start, known, state)), key=rank):
                self.move(passed, {"reason": "passed_over"})
        self.move(state)

    def moved(self, before: WorkflowState, metadata: Mapping[str, JsonValue] | None = None) -> None:
        """Tell of a move that the machine made since it was in *before*."""
        after = self.machine.current_state
        self.events.append(
            new_event(
                "state_changed",
                status=after.value,
                data={"from": before.value, "to": after.value, **(metadata or {})},
            )
        )

    # --- phases ------------------------------------------------------------------------------------------------

    def phase(self, index: int) -> PhaseRecord:
        """Return the record of a phase as it stands in this draft."""
        return self.document.phases[index]

    def change_phase(self, index: int, **changes: object) -> PhaseRecord:
        """Replace fields of a phase's record."""
        record = self.document.phases[index].changed(**changes)
        self.document.phases[index] = record

        return record

    def end_attempt(self, index: int, status: str, **changes: object) -> AttemptRecord:
        """Close the newest attempt of a phase."""
        record = self.document.phases[index]
        ended = record.attempts[-1].changed(status=status, ended_at=self.text, **changes)
        self.change_phase(index, attempts=[*record.attempts[:-1], ended])

        return ended

    def mark_attempt(self, index: int, **changes: object) -> None:
        """Write something down about the newest attempt of a phase."""
        record = self.document.phases[index]
        self.change_phase(index, attempts=[*record.attempts[:-1], record.attempts[-1].changed(**changes)])

    # --- events ------------------------------------------------------------------------------------------------

    def tell(self, event_type: str, index: int | None = None, *, data: JsonObject | None = None, **fields: Any) -> None:
        """Add an event, about the phase at *index* when one is given."""
        if index is not None:
            record = self.document.phases[index]
            number = record.attempts[-1].number if record.attempts else None
            fields = {
                "node_id": record.name,
                "node_name": record.name,
                "node_type": "phase",
                "status": record.status,
                "attempt_number": number,
                **fields,
                "meta": {**self._meta, **fields.get("meta", {})},
            }
        reference = self.document.workflow
        catalog = f"{reference.name}@{reference.version}" if reference else None
        self.events.append(new_event(event_type, catalog_id=catalog, data=data or {}, **fields))


def _is_between(start: WorkflowState, state: WorkflowState, end: WorkflowState) -> bool:
    """Say whether the pipeline has *state* after *start* and before *end*."""
    return rank(start) < rank(state) < rank(end)
