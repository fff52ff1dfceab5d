"""
Starting a workflow: its document with the definition frozen in it, its issue lock and its run.

Accepted means durable: when this returns, the document exists in PENDING and a run waits for a worker.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adws.adw_modules import effects, timestamps
from adws.adw_modules.document import FrozenIssue, PhaseRecord, Resource, WorkflowDocument, WorkflowRef
from adws.adw_modules.events import Event
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.workflow.model import WorkflowSpec, to_json
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.identifiers import JsonObject
    from adws.adw_modules.ownership.ownership import OwnedWorkflow
    from adws.app import Home

#: How many times a workflow may leave the failed state.
MAX_RETRIES = 3
#: How many times tests, a review or a conflict with the base may send a workflow back to building.
MAX_REWORKS = 3
#: Attempts of a whole workflow over all its phases, after which it fails.
MAX_TOTAL_ATTEMPTS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class NewWorkflow:
    """A workflow to be started."""

    issue_number: int | None
    spec: WorkflowSpec
    repository: str = ""
    issue: FrozenIssue = field(default_factory=FrozenIssue)
    model_set: str | None = None
    priority: int = 0
    asked_by: str = ""
    max_total_attempts: int | None = MAX_TOTAL_ATTEMPTS
    adw_id: str = ""  #: chosen by the caller; "": a new one
    hint: str = ""  #: what to do differently from the issue, by `asked_by`
    delivery: str = ""  #: guid of the delivery that requested it
    cause: str = ""  #: what triggered the request: label, comment, review ...
    demands: Requirements | None = None  #: on workers; None: those of its definition
    continues: WorkflowDocument | None = None  #: the workflow whose branch and pull request it continues


class WorkflowCreator:
    """Creates workflows."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def document(self, start: NewWorkflow) -> WorkflowDocument:
        """Return the first revision of a workflow; nothing is stored."""
        self._home.workflows.check_ready(start.spec)
        moment = timestamps.to_text(self._home.clock.now())

        made = WorkflowDocument(
            adw_id=start.adw_id or self._home.clock.token()[:8],
            issue_number=start.issue_number,
            repository=start.repository,
            workflow=WorkflowRef(
                name=start.spec.name,
                version=start.spec.version,
                phases=[to_json(phase) for phase in start.spec.phases],
                demands=(start.demands or start.spec.demands).to_json(),
                workload=dict(start.spec.workload),
                base=start.spec.base,
            ),
            issue=start.issue.cleaned(),
            phases=[
                PhaseRecord(name=phase.name, state=phase.state, max_attempts=phase.max_attempts)
                for phase in start.spec.phases
            ],
            model_set=start.model_set,
            max_retries=MAX_RETRIES,
            max_reworks=MAX_REWORKS,
            max_total_attempts=start.max_total_attempts,
            max_minutes=self._home.settings.max_minutes,
            created_at=moment,
            updated_at=moment,
            hints=[{"text": start.hint, "by": start.asked_by, "at": moment, "phase": ""}] if start.hint else [],
            deliveries=[start.delivery] if start.delivery else [],
        )

        return made if start.continues is None else _continued(made, start.continues)

    def create(self, document: WorkflowDocument, start: NewWorkflow) -> AbstractContextManager[OwnedWorkflow]:
        """Store *document* with its lock and its run, and own it inside the block; raise IssueLocked."""
        return self._home.ownership.create(document, events=_asked(start), run=self._first_run(document, start))

    def start(self, start: NewWorkflow) -> WorkflowDocument:
        """Create a workflow for a worker to run; raise IssueLocked, or StateExists if its id is taken."""
        document = self.document(start)

        return self._home.ownership.leave(document, events=_asked(start), run=self._first_run(document, start))

    def _first_run(self, document: WorkflowDocument, start: NewWorkflow) -> NewRun:
        return self._home.run_factory.of(document, "start", asked_by=start.asked_by, priority=start.priority)


def _asked(start: NewWorkflow) -> tuple[Event, ...]:
    """Return the event that records the delivery that requested the workflow, if one did."""
    if not start.delivery:
        return ()
    data: JsonObject = {"delivery": start.delivery, "cause": start.cause, "by": start.asked_by}
    if start.continues is not None:
        data["continues"] = start.continues.adw_id

    return (Event(event_type="work_asked_for", data=data),)


#: Kinds of effects that a workflow shares with the workflow it continues.
_SHARED = frozenset({"branch", "remote_branch", "pull_request"})


def _continued(made: WorkflowDocument, before: WorkflowDocument) -> WorkflowDocument:
    """Return *made* on the branch and pull request of *before*, which stay effects of *before*."""
    # The pull request is found by its marker, which names the first workflow in the series.
    first = before.continues or before.adw_id
    shared = [
        Resource(
            key=item.key,
            kind=item.kind,
            outcome="adopted",
            host=item.host or None,
            undo={**item.undo, "made_by": item.undo.get("made_by") or before.adw_id},
        )
        for item in before.resources
        if item.kind in _SHARED and item.outcome in effects.MADE
    ]

    return made.changed(
        continues=first,
        followups=before.followups + 1,
        resources=shared,
        branch_name=before.branch_name,
        pr_number=before.pr_number,
        plan_file=before.plan_file,
        issue_class=before.issue_class,
    )
