"""
Starting a workflow: its document, with the definition frozen in it, its issue lock and its run.

Accepted means durable: when this returns, the document exists in PENDING and a run waits for a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.document import FrozenIssue, PhaseRecord, WorkflowDocument, WorkflowRef
from adws.adw_modules.interfaces import Clock, Owned, Ownership
from adws.adw_modules.runs import NewRun
from adws.adw_modules.workflow import WorkflowSpec, phase_to_json

if TYPE_CHECKING:
    from adws.adw_modules.json_value import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What somebody wants started."""

    issue_number: int | None
    spec: WorkflowSpec
    repository: str = ""
    issue: FrozenIssue = field(default_factory=FrozenIssue)
    model_set: str | None = None
    priority: int = 0
    asked_by: str = ""
    max_retries: int = 3
    max_reworks: int = 3
    max_total_attempts: int | None = None
    max_minutes: float | None = None


class Launcher:
    """Creates workflows."""

    def __init__(self, *, ownership: Ownership, clock: Clock, check: Callable[[WorkflowSpec], None]) -> None:
        """*check* raises when a definition cannot be run here."""
        self._ownership = ownership
        self._clock = clock
        self._check = check

    def document(self, start: Start) -> WorkflowDocument:
        """Return the first revision of a workflow; nothing is stored."""
        self._check(start.spec)
        moment = timestamps.to_text(self._clock.now())

        return WorkflowDocument(
            adw_id=self._clock.token()[:8],
            issue_number=start.issue_number,
            repository=start.repository,
            workflow=WorkflowRef(name=start.spec.name, version=start.spec.version, phases=_frozen(start.spec)),
            issue=start.issue,
            phases=[
                PhaseRecord(name=phase.name, state=phase.state, max_attempts=phase.max_attempts)
                for phase in start.spec.phases
            ],
            model_set=start.model_set,
            max_retries=start.max_retries,
            max_reworks=start.max_reworks,
            max_total_attempts=start.max_total_attempts,
            max_minutes=start.max_minutes,
            created_at=moment,
            updated_at=moment,
        )

    def create(self, document: WorkflowDocument, start: Start) -> AbstractContextManager[Owned]:
        """Store *document* with its lock and its run, and own it inside the block; raise IssueLocked."""
        return self._ownership.create(document, run=_first_run(document, start))

    def start(self, start: Start) -> WorkflowDocument:
        """Create a workflow and leave it to a worker; raise IssueLocked."""
        document = self.document(start)

        return self._ownership.leave(document, run=_first_run(document, start))


def _first_run(document: WorkflowDocument, start: Start) -> NewRun:
    return NewRun(adw_id=document.adw_id, kind="start", priority=start.priority, asked_by=start.asked_by)


def _frozen(spec: WorkflowSpec) -> list[JsonObject]:
    return [phase_to_json(phase) for phase in spec.phases]
