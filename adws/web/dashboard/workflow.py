"""
All that the page of a workflow shows, gathered: its document, and what the database, the disk and git know of it.

Looking changes nothing. What cannot be told now (git takes too long, files are gone) is said on the page, and the rest
of it is there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from adws.adw_modules import attempt_files, costs, effects, events, views
from adws.adw_modules.attempt_files import Followed
from adws.adw_modules.costs import cap_of
from adws.adw_modules.errors import AdwError
from adws.adw_modules.queue.model import FINAL_RUNS, ROLLBACK
from adws.adw_modules.recovery.explain import Explanation, claim_of, diagnosis_of, explain
from adws.adw_modules.reports import charts
from adws.adw_modules.reports.timeline import Timeline, timeline
from adws.adw_modules.rollback.plan import recorded_steps
from adws.adw_modules.state_machine import read_table
from adws.adw_modules.worker.control import Possible, allowed_actions
from adws.web.dashboard import frame
from adws.web.dependencies import AdwId, HomeOf

if TYPE_CHECKING:
    from adws.adw_modules.checkpoint import CheckpointLine
    from adws.adw_modules.costs import CostEntry
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.adw_modules.effects import Effect
    from adws.adw_modules.events import Event
    from adws.adw_modules.git.worktree import DiffStat
    from adws.adw_modules.identifiers import JsonValue
    from adws.adw_modules.interfaces import AgentSession, IssueLock, LeaseRow, Verdict
    from adws.adw_modules.queue.model import Run
    from adws.adw_modules.recovery.plan import Claim
    from adws.adw_modules.resources.ports import PortRow
    from adws.adw_modules.rollback.plan import Step
    from adws.adw_modules.steps.views import ExecutionLine
    from adws.adw_modules.views import AttemptView, WorkflowView
    from adws.app import Home


#: Attempts that the page lists, the newest.
MOST_ATTEMPTS = 200


def attempts_of(document: WorkflowDocument, view: WorkflowView) -> list[tuple[AttemptView, CostEntry | None]]:
    """Return the attempts, the newest first, each with what it cost."""
    paid = {(one.phase, one.attempt): one for one in costs.of_document(document)}

    return [(attempt, paid.get((attempt.phase, attempt.number))) for attempt in view.attempts]


def find_attempt(document: WorkflowDocument, phase: str, number: int) -> tuple[PhaseRecord, AttemptRecord] | None:
    """Return an attempt with its phase, None when there is none."""
    result = (
        (record, attempt)
        for record in document.phases
        if record.name == phase
        for attempt in record.attempts
        if attempt.number == number
    )

    return next(result, None)


# --- rollback --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackFacts:
    """How far a rollback is."""

    reason: str
    started_at: str | None
    steps: tuple[Step, ...]
    blocked_by: Sequence[str]

    @property
    def done(self) -> int:
        """How many steps are over."""
        return sum(1 for step in self.steps if step.is_over)


def rollback_of(document: WorkflowDocument) -> RollbackFacts | None:
    """Return the rollback that was begun, None when none was."""
    record = document.rollback
    if record is None:
        return None

    return RollbackFacts(
        reason=record.reason,
        started_at=record.started_at,
        steps=recorded_steps(document),
        blocked_by=record.blocked_by,
    )


# --- plain JSON ------------------------------------------------------------------------------------------------


def text_of(data: Mapping[str, JsonValue], name: str) -> str:
    """Return a text of plain JSON, "" for anything else."""
    value = data.get(name)

    return value if isinstance(value, str) else ""


def plain_facts(data: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    """Return the texts and numbers of plain JSON, each with its name as people write it."""
    return [
        (name.replace("_", " "), str(value))
        for name, value in data.items()
        if isinstance(value, str | int | float) and value not in ("", None)
    ]


#: Rows of lists on the page; the pages behind it have all.
MOST_EVENTS = 15
MOST_EXECUTIONS = 20
MOST_FILES = 40
MOST_CHECKPOINTS = 20
MOST_MOVES = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Ownership:
    """Who has the workflow."""

    lease: LeaseRow | None
    verdict: Verdict
    claim: Claim
    run: Run | None  #: its newest
    asked: tuple[str, ...]  #: of its owner, and not answered
    session: AgentSession | None  #: the newest of its agents
    lock: IssueLock | None  #: who has its issue
    ports: tuple[PortRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures:
    """What is drawn."""

    line: Timeline
    timeline: Markup
    legend: Sequence[tuple[str, str, bool]]
    states: Markup


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What its branch changes."""

    stat: DiffStat | None = None
    problem: str = ""  #: why that cannot be told


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowFacts:
    """Everything."""

    document: WorkflowDocument
    explanation: Explanation
    possible: Possible
    ownership: Ownership
    pictures: Pictures
    view: WorkflowView
    attempts: Sequence[tuple[AttemptView, CostEntry | None]]
    executions: tuple[ExecutionLine, ...]
    effects: tuple[Effect, ...]
    checkpoints: tuple[CheckpointLine, ...]
    events: tuple[Event, ...]
    changes: Changes
    output: Followed
    cap_usd: float | None
    rollback: RollbackFacts | None


def gather(home: Home, adw_id: str) -> WorkflowFacts:
    """Return all about a workflow; raise StateNotFound, or why its document cannot be read."""
    loaded = home.store.load(adw_id)
    document, now = loaded.document, home.clock.now()
    view = views.workflow(document, notices=loaded.notices)
    ownership = _ownership(home, document)
    settings_cap = home.settings.quota_max_cost
    has_rollback_run = bool(ownership.run and ownership.run.kind == ROLLBACK and ownership.run.state not in FINAL_RUNS)

    return WorkflowFacts(
        document=document,
        explanation=explain(diagnosis_of(home, document, now=now)),
        possible=allowed_actions(
            document,
            is_live=ownership.claim.is_live,
            is_rolled_back_next=has_rollback_run,
            max_cost_usd=settings_cap,
            now=home.clock.now,
        ),
        ownership=ownership,
        pictures=pictures_of(document, now=now, say=sayer(home)),
        view=view,
        attempts=attempts_of(document, view),
        executions=home.execution_views.of_workflow(adw_id, limit=MOST_EXECUTIONS),
        effects=effects.effects(document)[::-1],
        checkpoints=home.checkpoints.lines_of(adw_id),
        events=home.events.newest(adw_id, limit=MOST_EVENTS),
        changes=_changes(home, document),
        output=_output(home, document),
        cap_usd=cap_of(document, settings_cap),
        rollback=rollback_of(document),
    )


def sayer(home: Home) -> Callable[[str], str]:
    """Return what makes a strange text fit to be drawn: without secrets, and without characters that do something."""
    redact = home.redactor.redact_text

    return lambda text: frame.plain(redact(text))


def _ownership(home: Home, document: WorkflowDocument) -> Ownership:
    adw_id, number = document.adw_id, document.issue_number
    lease = home.leases.read(adw_id)
    sessions = home.sessions.of_workflow(adw_id)
    locks = home.locks
    ports = home.ports.all()

    return Ownership(
        lease=lease if lease and lease.owner else None,
        verdict=home.processes.verdict(lease.owner if lease else None),
        claim=claim_of(lease, home.processes),
        run=next(iter(home.runs.of_workflow(adw_id, limit=1)), None),
        asked=tuple(request.kind for request in home.requests.open_for(adw_id)),
        session=sessions[-1] if sessions else None,
        lock=locks.holder(number, document.repository) if number is not None else None,
        ports=tuple(port for port in ports if port.adw_id == adw_id),
    )


def pictures_of(document: WorkflowDocument, *, now: datetime, say: Callable[[str], str]) -> Pictures:
    """Return what is drawn of the workflow in *document*; *say* is what every strange text passes."""
    line = timeline(document, now=now)
    made = charts.moves_of(document.state_history)
    # Both make markup of what they are given and escape every text in it; that is what they are for.
    drawn = Markup(charts.timeline_svg(line, title="Timeline of the phases", say=say))  # noqa: S704 - see above
    states = Markup(charts.state_svg(read_table(document), document.current_state, made))  # noqa: S704 - see above

    return Pictures(line=line, timeline=drawn, legend=charts.legend(line), states=states)


def _changes(home: Home, document: WorkflowDocument) -> Changes:
    """Return what the branch of the workflow changes; nothing is asked of git where there is none."""
    if not document.branch_name:
        return Changes()
    undo = next((entry.undo for entry in document.resources if entry.kind == "branch"), {})
    base = text_of(undo, "start") or text_of(undo, "base")
    if not base:
        return Changes(problem="Nobody wrote down where its branch begins.")
    try:
        stats = home.diff_stats
        result = stats.of_branch(document.branch_name, base=base, mark=document.revision)
    except AdwError as exc:
        return Changes(problem=f"git does not tell: {exc}.")

    return Changes(stat=result, problem="" if result else "Its branch is not here any more.")


# --- output ----------------------------------------------------------------------------------------------------


def folder_of(home: Home, adw_id: str) -> Path:
    """Return the directory of a workflow."""
    return home.settings.state_dir / adw_id


def _output(home: Home, document: WorkflowDocument) -> Followed:
    folder = folder_of(home, document.adw_id)

    return readable(lambda: attempt_files.begin(folder, attempt_files.outputs(folder, document)))


def readable(read: Callable[[], Followed]) -> Followed:
    """Return what *read* gives; nothing when the files go away under it, as those of old workflows do."""
    try:
        return read()
    except OSError:
        return Followed(text="", spot=None)


# `/workflows/{id}`: one workflow, with all that is known about it.


router = APIRouter(prefix="/workflows/{adw_id}", include_in_schema=False)

#: Events of a page.
EVENTS_OF_A_PAGE = 100
#: Effects that are listed, the newest.
MOST_EFFECTS = 40


@router.get("")
def show_workflow(request: Request, home: HomeOf, adw_id: AdwId) -> HTMLResponse:
    """Show it."""
    facts = gather(home, adw_id)

    return frame.render(
        request,
        "workflow.html",
        topic=f"workflow:{adw_id}",
        facts=facts,
        name=facts.view.name,
        output=frame.readable(facts.output.text),
        events=[(event, events.facts_of(event)) for event in facts.events],
        moves=[(entry, why_of(entry.metadata)) for entry in facts.document.state_history[::-1]][:MOST_MOVES],
        effects=[(effect, effects.name_of(effect)) for effect in facts.effects],
        most_attempts=MOST_ATTEMPTS,
        most_effects=MOST_EFFECTS,
        most_files=MOST_FILES,
        most_checkpoints=MOST_CHECKPOINTS,
    )


@router.get("/events")
def show_events(
    request: Request, home: HomeOf, adw_id: AdwId, before: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """Show what happened, the newest first, one page at a time."""
    document = home.store.load(adw_id).document
    log = home.events
    result = log.newest(adw_id, before=before or None, limit=EVENTS_OF_A_PAGE + 1)
    page = result[:EVENTS_OF_A_PAGE]

    return frame.render(
        request,
        "workflow_events.html",
        topic="" if before else f"workflow:{adw_id}",
        adw_id=adw_id,
        name=views.workflow(document).name,
        events=[(event, events.facts_of(event)) for event in page],
        before=before,
        older=page[-1].event_id if len(result) > EVENTS_OF_A_PAGE else "",
    )


def why_of(metadata: Mapping[str, JsonValue]) -> str:
    """Return why a move was made, in a line."""
    said = (text_of(metadata, name) for name in ("reason", "phase"))
    by = text_of(metadata, "by")

    return ", ".join([*filter(None, said), *([f"by {by}"] if by else [])])
