"""
All that the page of a workflow shows, gathered: its document, and what the database, the disk and git know of it.

Looking changes nothing. What cannot be told now (git takes too long, files are gone) is said on the page, and the rest
of it is there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from adws.adw_modules import attempt_output, effect_rules, state_svg, timeline_svg
from adws.adw_modules.attempt_output import Followed
from adws.adw_modules.coordination.situation import Desks, claim_of, situation_of
from adws.adw_modules.cost_rules import cap_of
from adws.adw_modules.errors import AdwError
from adws.adw_modules.explanation import Explanation, explain
from adws.adw_modules.possible_orders import Possible, possible_orders
from adws.adw_modules.runs import FINAL_RUNS, ROLLBACK
from adws.adw_modules.state_record import read_table
from adws.adw_modules.timeline import Timeline, timeline
from adws.web.pages import shown, workflow_rows

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.execution_views import ExecutionLine
    from adws.adw_modules.interfaces import IssueLock, LeaseRow, LoadNotice
    from adws.adw_modules.interfaces_coordination import AgentSession
    from adws.adw_modules.interfaces_durability import CheckpointLine
    from adws.adw_modules.interfaces_resources import DiffStat, Effect, PortRow
    from adws.adw_modules.json_value import JsonObject
    from adws.adw_modules.owner_record import Verdict
    from adws.adw_modules.recovery_facts import Claim
    from adws.adw_modules.runs import Run
    from adws.web.home import Home

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
    notices: tuple[LoadNotice, ...]
    explanation: Explanation
    possible: Possible
    ownership: Ownership
    pictures: Pictures
    phases: tuple[workflow_rows.PhaseRow, ...]
    attempts: tuple[workflow_rows.AttemptRow, ...]
    executions: tuple[ExecutionLine, ...]
    effects: tuple[Effect, ...]
    checkpoints: tuple[CheckpointLine, ...]
    events: tuple[Event, ...]
    changes: Changes
    output: Followed
    cap_usd: float | None
    issue_url: str
    pull_request_url: str
    rollback: workflow_rows.RollbackFacts | None


def gather(home: Home, adw_id: str) -> WorkflowFacts:
    """Return all about a workflow; raise StateNotFound, or why its document cannot be read."""
    loaded = home.part(lambda app: app.store).load(adw_id)
    document, now = loaded.document, home.part(lambda app: app.clock).now()
    data: JsonObject = document.model_dump(mode="json", by_alias=True)
    ownership = _ownership(home, document)
    settings_cap = home.settings.quota_max_cost
    has_rollback_run = bool(ownership.run and ownership.run.kind == ROLLBACK and ownership.run.state not in FINAL_RUNS)

    return WorkflowFacts(
        document=document,
        notices=tuple(loaded.notices),
        explanation=explain(situation_of(_desks(home), adw_id, data, now=now)),
        possible=possible_orders(
            document,
            is_live=ownership.claim.is_live,
            is_rolled_back_next=has_rollback_run,
            max_cost_usd=settings_cap,
            now=home.part(lambda app: app.clock).now,
        ),
        ownership=ownership,
        pictures=pictures_of(document, now=now, say=sayer(home)),
        phases=workflow_rows.phase_rows(document),
        attempts=workflow_rows.attempt_rows(document),
        executions=home.part(lambda app: app.execution_views).of_workflow(adw_id, limit=MOST_EXECUTIONS),
        effects=effect_rules.effects(document)[::-1],
        checkpoints=home.part(lambda app: app.checkpoints).lines_of(adw_id),
        events=home.part(lambda app: app.events).newest(adw_id, limit=MOST_EVENTS),
        changes=_changes(home, document),
        output=_output(home, adw_id, data),
        cap_usd=cap_of(document, settings_cap),
        issue_url=workflow_rows.issue_url(document),
        pull_request_url=workflow_rows.pull_request_url(document),
        rollback=workflow_rows.rollback_of(document),
    )


def sayer(home: Home) -> Callable[[str], str]:
    """Return what makes a strange text fit to be drawn: without secrets, and without characters that do something."""
    redact = home.part(lambda app: app.redactor).redact_text

    return lambda text: shown.plain(redact(text))


def _desks(home: Home) -> Desks:
    return home.part(
        lambda app: Desks(leases=app.leases, runs=app.runs, requests=app.requests, processes=app.processes)
    )


def _ownership(home: Home, document: WorkflowDocument) -> Ownership:
    adw_id, number = document.adw_id, document.issue_number
    desks = _desks(home)
    lease = desks.leases.read(adw_id)
    sessions = home.part(lambda app: app.sessions).of_workflow(adw_id)
    locks = home.part(lambda app: app.locks)
    ports = home.part(lambda app: app.ports).all()

    return Ownership(
        lease=lease if lease and lease.owner else None,
        verdict=desks.processes.verdict(lease.owner if lease else None),
        claim=claim_of(lease, desks.processes),
        run=next(iter(desks.runs.of_workflow(adw_id, limit=1)), None),
        asked=tuple(request.kind for request in desks.requests.open_for(adw_id)),
        session=sessions[-1] if sessions else None,
        lock=locks.holder(number, document.repository) if number is not None else None,
        ports=tuple(port for port in ports if port.adw_id == adw_id),
    )


def pictures_of(document: WorkflowDocument, *, now: datetime, say: Callable[[str], str]) -> Pictures:
    """Return what is drawn of the workflow in *document*; *say* is what every strange text passes."""
    line = timeline(document, now=now)
    made = state_svg.moves_of(document.state_history)
    # Both make markup of what they are given and escape every text in it; that is what they are for.
    drawn = Markup(timeline_svg.timeline_svg(line, title="Timeline of the phases", say=say))  # noqa: S704 - see above
    states = Markup(state_svg.state_svg(read_table(document), document.current_state, made))  # noqa: S704 - see above

    return Pictures(line=line, timeline=drawn, legend=timeline_svg.legend(line), states=states)


def _changes(home: Home, document: WorkflowDocument) -> Changes:
    """Return what the branch of the workflow changes; nothing is asked of git where there is none."""
    if not document.branch_name:
        return Changes()
    undo = next((entry.undo for entry in document.resources if entry.kind == "branch"), {})
    base = workflow_rows.text_of(undo, "start") or workflow_rows.text_of(undo, "base")
    if not base:
        return Changes(problem="Nobody wrote down where its branch begins.")
    try:
        stats = home.part(lambda app: app.git_room.diff_stats)
        found = stats.of_branch(document.branch_name, base=base, mark=document.revision)
    except AdwError as exc:
        return Changes(problem=f"git does not tell: {exc}.")

    return Changes(stat=found, problem="" if found else "Its branch is not here any more.")


# --- output ----------------------------------------------------------------------------------------------------


def folder_of(home: Home, adw_id: str) -> Path:
    """Return the directory of a workflow."""
    return home.settings.state_dir / adw_id


def _output(home: Home, adw_id: str, data: JsonObject) -> Followed:
    folder = folder_of(home, adw_id)

    return readable(lambda: attempt_output.begin(folder, attempt_output.outputs(folder, data)))


def readable(read: Callable[[], Followed]) -> Followed:
    """Return what *read* gives; nothing when the files go away under it, as those of old workflows do."""
    try:
        return read()
    except OSError:
        return Followed(text="", spot=None)
