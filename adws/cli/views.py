"""
`adw status`, `adw list`, `adw events`: read-only views.

They start without SQLAlchemy and the like, because people type them often and scripts call them in loops.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING

import click

from adws.adw_modules import events as events_module
from adws.adw_modules import identifiers, views
from adws.adw_modules.errors import DatabaseError, StateError, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import LeaseRow, Page, PageQuery, WorkflowResult, WorkflowSummary
from adws.adw_modules.views import PhaseView, WorkflowView
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.interfaces import AgentSession
    from adws.adw_modules.recovery.explain import Explanation
    from adws.adw_modules.steps.views import ExecutionLine
    from adws.app import Home


#: Columns for a reason in the table; --json shows it whole, and the newest one is above the table.
_REASON_WIDTH = 60
#: Width of a list, the least width of titles, and the greatest of phases.
_LIST_WIDTH, _TITLE_WIDTH, _PHASE_WIDTH = 100, 20, 14


# --- status ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What `adw status` shows: the view of the workflow, and facts from the database."""

    view: WorkflowView
    session: AgentSession | None = None  #: of its newest agent
    executions: Sequence[ExecutionLine] = ()  #: steps that loop or retry
    ports: Sequence[int] = ()
    explanation: Explanation | None = None  #: why it does not progress, and what to type
    database_problem: str | None = None  #: why the database cannot be read, so that the owner is unknown

    def to_json(self) -> JsonObject:
        """Return the status as plain data."""
        return {
            **self.view.to_json(),
            "agent_session": _session_data(self.session),
            "executions": [one.to_json() for one in self.executions],
            "ports": list(self.ports),
            "why": self.explanation.why if self.explanation else None,
            "then": self.explanation.then if self.explanation else None,
            "commands": list(self.explanation.commands) if self.explanation else [],
            "database_problem": self.database_problem,
        }


def _session_data(session: AgentSession | None) -> JsonObject | None:
    if session is None:
        return None
    names = ("session_id", "phase", "attempt_number", "agent", "host", "reason", "started_at", "ended_at")

    return {
        **{name: getattr(session, name) for name in names},
        "status": session.status.value,
        "executor_session_id": session.executor_session_id or None,
    }


def status_lines(status: Status, now: datetime) -> list[str]:
    """Return the status as text."""
    view = status.view
    failed = view.newest_failure
    failed_in = (view.failure.name if view.failure else view.failed_phase) if view.state == "failed" else ""
    lines = output.facts(
        [
            ("id", view.adw_id),
            ("state", f"{view.state} (resumes with {view.resume_state})" if view.resume_state else view.state),
            ("issue", _issue(view.repository, view.issue_number)),
            ("title", view.title),
            ("workflow", view.workflow or ""),
            ("revision", str(view.revision)),
            ("failed phase", failed_in or ""),
            ("reason", view.terminal_reason or ""),
            ("why paused", _why_paused(view)),
            ("last failure", f"{failed.name}: {failed.last_failure_reason}" if failed else ""),
            ("retries", f"{view.retry_count} of {view.max_retries} used"),
            ("reworks", f"{view.reworks} of {view.max_reworks} used" if view.reworks else ""),
            ("owner", _owner_line(status)),
            ("agent", _session_line(status.session)),
            ("branch", view.branch_name or ""),
            ("worktree", view.worktree_path or ""),
            ("ports", ", ".join(map(str, status.ports))),
            ("pull request", f"#{view.pr_number} {view.pull_request_url}".strip() if view.pr_number else ""),
            ("cost", f"{view.cost_usd:.2f} USD" if view.cost_usd else ""),
            ("duration", identifiers.span(view.work_seconds) if view.work_seconds else ""),
            ("created", output.moment(view.created_at, now) if view.created_at else "unknown"),
            ("updated", output.moment(view.updated_at, now) if view.updated_at else "unknown"),
        ]
    )
    waits = [
        f"waiting: {phase.name}{f' until {output.moment(phase.retry_at, now)}' if phase.retry_at else ''}"
        f": {phase.wait_reason}"
        for phase in view.phases
        if phase.wait_reason and (phase.retry_at or phase.status == "retry_wait")
    ]
    steps = [f"step {one.step}: {_progress(one, now)} ({one.execution_id})" for one in status.executions]
    why = [status.explanation.paragraph()] if status.explanation else []
    decisions = [f"doctor: {_decision(phase, call)}" for phase in view.phases for call in phase.doctor]
    hints = [f"hint: {_hint(hint, now)}" for hint in view.hints]
    notices = [f"notice: {warning}" for warning in view.warnings]
    if view.rollback is not None:
        blocked = ", ".join(view.rollback.blocked_by)
        notices.append(f"notice: a rollback was begun{f', blocked by {blocked}' if blocked else ''}")
    notes = [f"note: {note}" for note in (*view.notices, status.database_problem) if note]
    paragraphs = (_phase_table(view.phases, now), decisions, hints, notices, notes, why)

    return [*lines, *waits, *steps, *(line for paragraph in paragraphs if paragraph for line in ("", *paragraph))]


def _why_paused(view: WorkflowView) -> str:
    if view.state != "paused":
        return ""

    return f"waits for approval of {view.waiting_phase}" if view.waiting_phase else view.pause_reason or ""


def _owner_line(status: Status) -> str:
    if status.database_problem:
        return "unknown"
    owner = status.view.owner
    if owner is None:
        return "nobody"
    ends = f"{owner.lease_seconds_left:.0f} s left" if owner.lease_seconds_left > 0 else "over"

    return f"{owner.role} {owner.pid}@{owner.host}, {owner.liveness}, lease {ends}"


def _session_line(session: AgentSession | None) -> str:
    if session is None:
        return ""
    called = f", its session {session.executor_session_id}" if session.executor_session_id else ""
    where = f"attempt {session.attempt_number} of {session.phase} on {session.host}"

    return f"{session.agent} {session.status.value}: {where}{called}"


def _progress(execution: ExecutionLine, now: datetime) -> str:
    facts = [
        "" if execution.state == "running" else execution.state,
        f"{execution.done} of {'?' if execution.total is None else execution.total} done",
        f"{execution.failed} failed",
        f"{execution.running} in flight",
        f"{execution.waiting} wait for another call" if execution.waiting else "",
        f"next retry {output.moment(execution.next_retry, now)}" if execution.next_retry else "",
    ]

    return ", ".join(filter(None, facts))


def _phase_table(phases: Sequence[PhaseView], now: datetime) -> list[str]:
    if not phases:
        return []
    headers = ["PHASE", "STATUS", "ATTEMPTS", "IN ALL", "TIME", "AVERAGE", "COST", "NEXT TRY", "LAST FAILURE"]
    rows = [_phase_row(phase, now) for phase in phases]
    if any(phase.agent for phase in phases):
        headers.insert(2, "AGENT")
        for row, phase in zip(rows, phases, strict=True):
            row.insert(2, phase.agent or "-")

    return output.table(headers, rows)


def _phase_row(phase: PhaseView, now: datetime) -> list[str]:
    counts = (("suspended", phase.suspended_attempts), ("parked", phase.parked_attempts))
    uncounted = ", ".join(f"{count} {kind}" for kind, count in counts if count)
    average = phase.average_seconds

    return [
        phase.name,
        phase.status,
        f"{phase.attempts_used}/{phase.max_attempts}",
        f"{len(phase.attempts)} ({uncounted})" if uncounted else str(len(phase.attempts)),
        identifiers.span(phase.total_seconds) if phase.total_seconds else "-",
        "-" if average is None else identifiers.span(average),
        f"{phase.cost_usd:.4f}" if phase.cost_usd else "-",
        output.moment(phase.retry_at, now) if phase.retry_at else "-",
        identifiers.shortened(phase.last_failure_reason or phase.terminal_reason or "", _REASON_WIDTH) or "-",
    ]


def _decision(phase: PhaseView, call: JsonObject) -> str:
    decision = call.get("decision") or "was asked and gave no answer"
    model = f" {call['model']}" if call.get("model") else ""
    reason = f": {call['reason']}" if call.get("reason") else ""
    problem = f" ({call['problem']})" if call.get("problem") else ""

    return f"{phase.name}, attempt {call.get('attempt')}: {decision}{model}{reason}{problem} [by {call.get('by')}]"


def _hint(hint: JsonObject, now: datetime) -> str:
    at = hint.get("at")
    facts = [
        f"for {hint['phase']}" if hint.get("phase") else "",
        f"by {hint['by']}" if hint.get("by") else "",
        output.moment(at, now) if isinstance(at, str) and at else "",
    ]
    about = ", ".join(filter(None, facts))

    return f"{hint.get('text') or ''}{f' [{about}]' if about else ''}"


# --- lists and events ------------------------------------------------------------------------------------------


def row_data(row: WorkflowSummary) -> JsonObject:
    """Return a row as plain data, always with every key."""
    names = ("adw_id", "state", "repository", "issue_number", "title", "workflow", "revision")
    made = {field.name: getattr(row.result, field.name, None) for field in fields(WorkflowResult)}

    return {
        **{name: getattr(row, name) for name in names},
        **made,
        "pull_request_url": made["pull_request_url"] or None,
        "owner": views.owner_name(row.owner),
        "created_at": views.known_moment(row.created_at),
        "updated_at": views.known_moment(row.updated_at),
    }


def list_lines(page: Page, now: datetime) -> list[str]:
    """Return a page of the list as a table, and the command for the next page."""
    if not page.rows:
        return ["no workflows"]
    # The repository is shown only if the rows have more than one.
    is_one_repository = len({row.repository for row in page.rows}) == 1
    rows = []
    for row in page.rows:
        result = row.result
        number = "-" if row.issue_number is None else f"#{row.issue_number}"
        rows.append(
            (
                row.adw_id,
                row.state,
                identifiers.shortened(result.phase or "-", _PHASE_WIDTH) if result else "-",
                number if is_one_repository else _issue(row.repository, row.issue_number),
                f"#{result.pr_number}" if result and result.pr_number else "-",
                f"{result.cost_usd:.2f}" if result and result.cost_usd else "-",
                _short_span(result.work_seconds) if result and result.work_seconds else "-",
                output.age(row.updated_at, now),
            )
        )
    table = output.table(("ID", "STATE", "PHASE", "ISSUE", "PR", "USD", "TIME", "UPDATED"), rows)
    # The title comes last and gets the rest of the line.
    width = max(map(len, table))
    room = max(_LIST_WIDTH - width - 2, _TITLE_WIDTH)
    titles = ["TITLE", *(identifiers.shortened(row.title, room) for row in page.rows)]
    more = [f"more: add --cursor {page.next_cursor}"] if page.next_cursor else []

    return [*(f"{line:<{width}}  {title}".rstrip() for line, title in zip(table, titles, strict=True)), *more]


def _short_span(seconds: float) -> str:
    """Return a short duration, such as `42 s`, `12:05` (minutes) or `1:02:09` (hours)."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"

    return f"{minutes}:{rest:02}" if minutes else identifiers.span(seconds)


def events_lines(events: Sequence[Event], now: datetime) -> list[str]:
    """Return events as a table, in order."""
    if not events:
        return ["no events"]
    rows = [
        (
            event.event_id,
            _moment(event.created_at, now),
            event.event_type,
            _where(event) or "-",
            "-" if event.attempt_number is None else str(event.attempt_number),
            events_module.facts_of(event),
        )
        for event in events
    ]

    return output.table(("EVENT", "TIME", "WHAT", "WHERE", "ATTEMPT", "FACTS"), rows)


def event_line(event: Event) -> str:
    """Return an event as one line."""
    where = f" {_where(event)}" if event.node_name else ""
    attempt = f" {event.attempt_number}" if event.attempt_number is not None else ""
    facts = f" {told}" if (told := events_module.facts_of(event)) else ""

    return f"{event.created_at} {event.event_type}{where}{attempt}{facts}"


def _where(event: Event) -> str:
    """Return the phase or step of an event, with the index of the element in a loop."""
    is_one_of_many = event.iteration_index is not None and event.total_iterations != 1

    return f"{event.node_name}[{event.iteration_index}]" if is_one_of_many else event.node_name or ""


def _issue(repository: str, number: int | None) -> str:
    return f"{repository}{'-' if number is None else f'#{number}'}"


def _moment(moment: str, now: datetime) -> str:
    return output.moment(moment, now) if moment else ""


#: Seconds between two polls for more events.
_LOOK_SECONDS = 0.25
_OVER = frozenset({"completed", "abandoned", "rolled_back"})
_NEEDS_PERSON = frozenset({"paused", "failed"})


@click.command()
@click.argument("name", metavar="[ID]", required=False, default="", shell_complete=cli_common.offer_ids)
@click.option("--failed", "only_failed", is_flag=True, help="Of a step: only iterations that failed.")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="Of a step: one iteration, its calls and pages.")
@click.option("--after", type=click.IntRange(min=-1), default=-1, metavar="N", help="Of a step: iterations after N.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 1000), default=50, show_default=True, help="Lines to show."
)
@output.json_option
def status(*, name: str, only_failed: bool, index: int | None, after: int, limit: int, as_json: bool) -> None:
    """
    Show running, waiting and stuck workflows with the command that helps; or the workflow ID.

    Of a workflow: state, phases, attempts, cost, pull request, branch, worktree, steps, why it waits and what to type.
    ID may also be a step, as the status of its workflow names it (1a2b3c4d.build.1.fetch): then its iterations.
    """
    is_step = re.fullmatch(r"[^./]+(\.[^./]+)+", name) is not None
    if not is_step and (only_failed or index is not None or after >= 0):
        raise UsageError("--failed, --index and --after are for a step: name one, as adw status ID shows them")
    if is_step:
        importlib.import_module("adws.cli.steps").show_step(
            name, only_failed=only_failed, index=index, after=after, limit=limit, as_json=as_json
        )
        return
    with main.open_home() as app:
        if not name:
            _overview(app, limit, as_json=as_json)
            return
        adw_id = cli_common.workflow_id(name)
        loaded = cli_common.load(app, adw_id)
        lease: LeaseRow | None = None
        sessions: Sequence[AgentSession] = ()
        executions: Sequence[ExecutionLine] = ()
        ports: Sequence[int] = ()
        problem: str | None = None
        try:  # the document is enough without these
            if app.has_database():
                lease = app.leases.read(adw_id)
                ports = [row.port for row in app.ports.all() if row.adw_id == adw_id]
                # Before the first attempt there are no sessions or executions, so their code is not loaded.
                if any(phase.attempts for phase in loaded.document.phases):
                    sessions = app.sessions.of_workflow(adw_id)
                    executions = app.execution_views.of_workflow(adw_id, limit=limit)
        except DatabaseError as exc:
            problem = str(exc)
        verdict = app.processes.verdict(lease.owner) if lease and lease.owner else None
        shown = Status(
            view=views.workflow(loaded.document, lease=lease, verdict=verdict, notices=loaded.notices),
            session=sessions[-1] if sessions else None,
            executions=executions,
            ports=ports,
            explanation=_explanation_of(app, loaded.document),
            database_problem=problem,
        )

        output.emit(shown.to_json(), status_lines(shown, app.clock.now()), as_json=as_json)


def _explanation_of(app: Home, document: WorkflowDocument) -> Explanation | None:
    """Return why the workflow does not progress and what to type, or None if the database cannot be read."""
    from adws.adw_modules.recovery.explain import Diagnosis, diagnosis_of, explain
    from adws.adw_modules.recovery.plan import Claim

    try:
        if app.has_database():
            return explain(diagnosis_of(app, document, now=app.clock.now()))
    except DatabaseError:
        return None

    return explain(Diagnosis(workflow=views.workflow(document), lease=Claim()))


def _overview(app: Home, limit: int, *, as_json: bool) -> None:
    """Show running, waiting and stuck workflows."""
    from adws.adw_modules.reports.reports import stuck_json
    from adws.adw_modules.state_machine import WorkflowState
    from adws.cli.reports import stuck_lines

    now = app.clock.now()
    states = [state.value for state in WorkflowState if state.value not in _OVER] if app.has_database() else []
    pages = [app.catalogue.page(PageQuery(limit=limit, state=state, with_results=True)) for state in states]
    rows = sorted((row for page in pages for row in page.rows), key=lambda row: row.created_at, reverse=True)
    found = app.reporting.stuck() if app.has_database() else ()
    limits = app.quotas.reached() if app.has_database() else ()
    stuck_ids = {one.subject.adw_id for one in found}
    open_rows = [row for row in rows if row.state not in _OVER and row.adw_id not in stuck_ids]
    running = [row for row in open_rows if row.state not in _NEEDS_PERSON][:limit]
    waiting = []
    for row in [row for row in open_rows if row.state in _NEEDS_PERSON][:limit]:
        try:
            waiting.append((row, _explanation_of(app, cli_common.load(app, row.adw_id).document)))
        except StateError as exc:
            output.say(f"adw: {exc}")
    data: JsonObject = {
        "running": [row_data(row) for row in running],
        "waiting": [
            {
                **row_data(row),
                "why": told.why if told else None,
                "commands": list(told.commands) if told else [],
            }
            for row, told in waiting
        ],
        "stuck": [stuck_json(one) for one in found],
        "limits": [{"name": one.name, "used": one.used, "limit": one.limit, "why": one.detail} for one in limits],
    }
    lines = [f"the quota {one.name} is used up, so that new work waits: {one.detail}" for one in limits]
    if running:
        lines += ["Running or queued:", *(f"  {line}" for line in list_lines(Page(rows=tuple(running)), now)), ""]
    if waiting:
        lines.append("Waiting for a person:")
        for row, told in waiting:
            lines.append(
                f"  {row.adw_id}  {row.state} ({identifiers.shortened(row.title, 50)}), {_moment(row.updated_at, now)}"
            )
            if row.result and (made := output.result_line(row.result)):
                lines.append(f"    {made}")
            if told:
                lines += [f"    {told.why}", *([f"    type: {', or '.join(told.commands)}"] if told.commands else [])]
        lines.append("")
    lines += ["Stuck:", *(f"  {line}" for line in stuck_lines(found, now))] if found else ["nothing is stuck"]

    output.emit(data, lines, as_json=as_json)


@click.command(name="list")
@click.option(
    "--state",
    shell_complete=cli_common.offer_states,
    metavar="STATE",
    callback=lambda _ctx, _param, value: _known_state(value),
    help="Only those in this state.",
)
@click.option("--issue", type=click.IntRange(min=1), metavar="NUMBER", help="Only the workflows of this issue.")
@click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=cli_common.offer_names,
    help="Only workflows made from this definition.",
)
@click.option(
    "--search",
    metavar="WORDS",
    default="",
    help="Only those that have all these words in title, repository, id or issue.",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Workflows on a page, at most 1000.",
)
@click.option("--cursor", metavar="CURSOR", help="Start where the previous page ended.")
@output.json_option
def list_(
    *,
    state: str | None,
    issue: int | None,
    workflow: str | None,
    search: str,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List workflows, newest first, one page at a time."""
    query = PageQuery(
        limit=limit,
        cursor=cursor,
        state=state,
        issue_number=issue,
        workflow=workflow,
        search=search,
        with_results=True,
    )
    with main.open_home() as app:
        page = app.catalogue.page(query) if app.has_database() else Page(rows=())

        data: JsonObject = {"next_cursor": page.next_cursor, "workflows": [row_data(row) for row in page.rows]}
        output.emit(data, list_lines(page, app.clock.now()), as_json=as_json)
        old = [] if page.rows or query != PageQuery(limit=limit, with_results=True) else app.files_of_documents()
        if old:
            output.say(
                f"adw: {len(old)} document{'s are' if len(old) > 1 else ' is'} not listed, such as {old[0]}: "
                "adw state migrate brings documents of older versions in"
            )


@click.command()
@cli_common.adw_id_argument
@click.option("--after", metavar="EVENT", help="Only what came after this event.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Events to show."
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing events, until the workflow stops.")
@output.json_option
def events(*, adw_id: str, after: str | None, limit: int, follow: bool, as_json: bool) -> None:
    """List the events of a workflow, in order; with -f and --json one document a line."""
    with main.open_home() as app:
        if not app.has_database():
            raise app.no_workflow(adw_id)
        result = app.events.of_workflow(adw_id, after=after, limit=limit)
        if not result and not app.store.exists(adw_id):
            raise app.no_workflow(adw_id)

        if not follow:
            # *last* is the argument of --after for the events that follow.
            last = result[-1].event_id if result else None
            data: JsonObject = {"events": [event.to_json() for event in result], "last": last}
            output.emit(data, events_lines(result, app.clock.now()), as_json=as_json)
            return
        _follow(app, adw_id, after, as_json=as_json)


def _follow(app: Home, adw_id: str, after: str | None, *, as_json: bool) -> None:
    """Print events as they come, until the workflow has stopped and all are printed."""
    while True:
        has_stopped = cli_common.has_stopped(app, adw_id)
        result = app.events.of_workflow(adw_id, after=after)
        for event in result:
            after = event.event_id
            output.emit_line(event.to_json(), event_line(event), as_json=as_json)
        if has_stopped and not result:
            return
        if not result:
            app.clock.sleep(_LOOK_SECONDS)


def _known_state(text: str | None) -> str | None:
    """Return the state named in any case, or None; raise UsageError with the list of states."""
    if text is None:
        return None
    # Imported only for filters: the other views start without the state machine.
    states = [state.value for state in importlib.import_module("adws.adw_modules.state_machine").WorkflowState]
    if text.lower() not in states:
        raise UsageError(f"{text!r} is not a state; use one of {', '.join(states)}")

    return text.lower()
