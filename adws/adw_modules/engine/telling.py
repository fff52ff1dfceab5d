"""
What the log of a workflow is told about what is stored.

Told after the write and never before: the log may lack a line that a crash cut off, and has none that is not true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adws.adw_modules.phase_choice import limit
from adws.adw_modules.state_table import PHASE_STATES
from adws.adw_modules.structured_logger import StructuredLogger

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.redaction import Redactor

#: States whose entry is said by the line before or after already; that work was parked or is over is not.
_UNLOGGED_STATES = frozenset(state.value for state in PHASE_STATES)
_LEVELS = {"attempt_failed": "WARNING", "attempt_interrupted": "WARNING", "phase_failed": "ERROR"}


def tell_log(document: WorkflowDocument, events: Sequence[Event], redactor: Redactor | None) -> None:
    """Tell the log of what is now stored, with the counters that the document has."""
    for event in events:
        if _is_said_already(event):
            continue
        record = next((phase for phase in document.phases if phase.name == event.node_name), None)
        used, allowed = (record.attempts_used, limit(record)) if record else (None, None)
        StructuredLogger(document.adw_id, event.node_name or "workflow", redactor=redactor).log(
            _LEVELS.get(event.event_type, "INFO"),
            _sentence(event, used, allowed),
            event_type=event.event_type,
            status=event.status,
            attempt=event.attempt_number,
            attempts_used=used,
            max_attempts=allowed,
            revision=document.revision,
            details=event.data,
        )


def _is_said_already(event: Event) -> bool:
    is_entry = event.event_type == "state_changed" and event.status in _UNLOGGED_STATES
    return is_entry or event.event_type == "phase_completed"


def _sentence(event: Event, used: int | None, allowed: int | None) -> str:
    words = event.event_type.replace("_", " ")
    if event.event_type == "attempt_started":
        return f"Attempt {used}/{allowed}"

    return words[0].upper() + words[1:]
