"""
`adw status`, `adw list`, `adw events`: looking, without changing anything.

These start without SQLAlchemy and the like, because people type them often and scripts call them in loops.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from adws.adw_modules import events as events_module
from adws.adw_modules import identifiers, timestamps
from adws.adw_modules.errors import DatabaseError, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import LeaseRow, LoadedState, OwnerRecord, Page, PageQuery, Verdict
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import AgentSession
    from adws.adw_modules.steps.views import ExecutionLine
    from adws.app import Home


# The phases of a workflow as the status shows them: counters, times, failures, and what people said.
#
# Pure, and made from plain JSON: it takes nothing for granted about a field but its name.


_AS_THEY_ARE_PHASE_TEXT = (
    "name",
    "state",
    "status",
    "round",
    "attempts_used",
    "last_attempt_timestamp",
    "last_failure_reason",
    "terminal_reason",
    "retry_at",
    "wait_reason",
    "wait_deadline_at",
    "parks",
)
_OF_AN_ATTEMPT = ("number", "round", "status", "started_at", "ended_at", "duration", "model")
_OF_THE_DOCTOR = ("attempt", "by", "decision", "reason", "model", "problem", "asked_at", "decided_at")
#: Columns for a reason in the table; --json has it whole, and the newest one stands above the table.
_REASON_WIDTH = 60


def phase_data(phase: JsonObject) -> JsonObject:
    """Return what is known about one phase, with the totals of all its rounds."""
    data: JsonObject = {name: phase.get(name) for name in _AS_THEY_ARE_PHASE_TEXT}
    attempts = _objects(phase.get("attempts"))
    times = [float(time) for attempt in attempts if isinstance(time := attempt.get("duration"), float | int)]
    data["max_attempts"] = _number(phase.get("max_attempts")) + _number(phase.get("granted"))
    data["total_attempts"] = len(attempts)
    data["suspended_attempts"] = _ended(attempts, "suspended")
    data["parked_attempts"] = _ended(attempts, "parked")
    data["total_seconds"] = round(sum(times), 3)
    data["average_seconds"] = round(sum(times) / len(times), 3) if times else None
    data["attempts"] = [_attempt(attempt) for attempt in attempts]
    data["agent"] = next((name for one in reversed(attempts) if (name := _agent_name(one))), None)
    data["doctor"] = [
        {name: call.get(name) for name in _OF_THE_DOCTOR if name in call} for call in _objects(phase.get("doctor"))
    ]

    return data


def _ended(attempts: list[JsonObject], status: str) -> int:
    return sum(1 for attempt in attempts if attempt.get("status") == status)


def _attempt(attempt: JsonObject) -> JsonObject:
    error = attempt.get("error")
    known = error if isinstance(error, dict) else {}
    data: JsonObject = {name: attempt.get(name) for name in _OF_AN_ATTEMPT}
    data["agent"] = _agent_name(attempt) or None
    data["error"] = known.get("message")
    data["category"] = known.get("category")

    return data


def _agent_name(attempt: JsonObject) -> str:
    agent = attempt.get("agent")

    return _said(agent.get("name")) if isinstance(agent, dict) else ""


def hint_data(hint: JsonObject) -> JsonObject:
    """Return what a person said to do differently."""
    return {name: hint.get(name) for name in ("text", "by", "at", "phase")}


def failed_phase(phases: list[JsonObject]) -> JsonObject:
    """Return the phase a failed workflow failed in, {} when none did; those before it were not required."""
    return next((phase for phase in reversed(phases) if phase.get("status") == "failed"), {})


def newest_failure(phases: list[JsonObject]) -> str:
    """Return why the newest attempt that failed did so, with its phase; "" when none did, or it was made good."""
    troubled = [
        phase
        for phase in phases
        if phase.get("last_failure_reason") and phase.get("status") not in ("complete", "skipped")
    ]
    if not troubled:
        return ""
    newest = max(troubled, key=lambda phase: str(phase.get("last_attempt_timestamp") or ""))

    return f"{newest.get('name')}: {newest.get('last_failure_reason')}"


def phase_lines(phases: list[JsonObject], now: datetime) -> list[str]:
    """Return the phases as a table, [] when there are none."""
    if not phases:
        return []
    headers = ["PHASE", "STATUS", "ATTEMPTS", "IN ALL", "TIME", "AVERAGE", "NEXT TRY", "LAST FAILURE"]
    rows = [[*_row(phase, now)] for phase in phases]
    if any(phase["agent"] for phase in phases):
        for row, agent in zip([headers, *rows], ["AGENT", *(phase["agent"] for phase in phases)], strict=True):
            row.insert(2, _said(agent) or "-")

    return ["", *output.table(headers, rows)]


def _row(phase: JsonObject, now: datetime) -> tuple[str, ...]:
    retry_at = phase["retry_at"]

    return (
        _said(phase["name"]),
        _said(phase["status"]),
        f"{_said(phase['attempts_used'])}/{_said(phase['max_attempts'])}",
        _in_all(phase),
        identifiers.span(seconds) if isinstance(seconds := phase["total_seconds"], float | int) and seconds else "-",
        identifiers.span(average) if isinstance(average := phase["average_seconds"], float | int) else "-",
        output.moment(retry_at, now) if isinstance(retry_at, str) and retry_at else "-",
        output.shorten(_said(phase["last_failure_reason"] or phase["terminal_reason"]), _REASON_WIDTH) or "-",
    )


def _in_all(phase: JsonObject) -> str:
    kinds = (("suspended", phase["suspended_attempts"]), ("parked", phase["parked_attempts"]))
    uncounted = ", ".join(f"{count} {kind}" for kind, count in kinds if count)

    return f"{phase['total_attempts']}{f' ({uncounted})' if uncounted else ''}"


def wait_lines(phases: list[JsonObject], now: datetime) -> list[str]:
    """Return what a phase waits for that is no failed attempt of its own: a quota, a service, external work."""
    return [
        _wait_line(phase, now)
        for phase in phases
        if phase.get("wait_reason") and (phase.get("retry_at") or phase.get("status") == "retry_wait")
    ]


def _wait_line(phase: JsonObject, now: datetime) -> str:
    at = phase.get("retry_at")
    until = f" until {output.moment(at, now)}" if isinstance(at, str) and at else ""

    return f"waiting: {_said(phase['name'])}{until}: {_said(phase['wait_reason'])}"


def execution_lines(executions: list[JsonObject], now: datetime) -> list[str]:
    """Return how far the steps are that a phase waits for."""
    return [f"step {_said(one['step'])}: {_progress(one, now)} ({_said(one['execution_id'])})" for one in executions]


def _progress(execution: JsonObject, now: datetime) -> str:
    at, total = execution["next_retry"], execution["total"]
    said = [
        f"{_said(execution['done'])} of {'?' if total is None else total} done",
        f"{_said(execution['failed'])} failed",
        f"{_said(execution['running'])} in flight",
        f"{_said(execution['waiting'])} wait for another call" if execution["waiting"] else "",
        f"next retry {output.moment(at, now)}" if isinstance(at, str) else "",
    ]

    return ", ".join(filter(None, said))


def doctor_lines(phases: list[JsonObject]) -> list[str]:
    """Return what the advisor decided, one line each, [] when it was never asked."""
    lines = [f"doctor: {_decision(phase, call)}" for phase in phases for call in _objects(phase.get("doctor"))]

    return ["", *lines] if lines else []


def _decision(phase: JsonObject, call: JsonObject) -> str:
    about = f"{_said(phase.get('name'))}, attempt {_said(call.get('attempt'))}"
    decision = _said(call.get("decision")) or "was asked and gave no answer"
    model = f" {call['model']}" if call.get("model") else ""
    reason = f": {call['reason']}" if call.get("reason") else ""
    problem = f" ({call['problem']})" if call.get("problem") else ""

    return f"{about}: {decision}{model}{reason}{problem} [by {_said(call.get('by'))}]"


def hint_lines(hints: list[JsonObject], now: datetime) -> list[str]:
    """Return what people said to do differently, one line each."""
    return ["", *(f"hint: {_hint(hint, now)}" for hint in hints)] if hints else []


def _hint(hint: Mapping[str, JsonValue], now: datetime) -> str:
    at = hint.get("at")
    facts = [
        f"for {hint['phase']}" if hint.get("phase") else "",
        f"by {hint['by']}" if hint.get("by") else "",
        output.moment(at, now) if isinstance(at, str) and at else "",
    ]
    about = ", ".join(fact for fact in facts if fact)

    return f"{_said(hint.get('text'))}{f' [{about}]' if about else ''}"


def _objects(value: JsonValue) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0


def _said(value: JsonValue) -> str:
    return "" if value is None else str(value)


# What the views show: plain data for `--json`, and lines of text made from that same data.
#
# Pure. It reads documents as plain JSON, because a view must start without the libraries that check them; so it takes
# nothing for granted about a field but its name.


#: Fields of a document that the status shows under their own name.
_AS_THEY_ARE = (
    "adw_id",
    "issue_number",
    "repository",
    "revision",
    "resume_state",
    "failed_phase",
    "terminal_reason",
    "pause_reason",
    "retry_count",
    "max_retries",
    "reworks",
    "max_reworks",
    "branch_name",
    "worktree_path",
    "pr_number",
    "warnings",
    "created_at",
    "updated_at",
)
#: Those of them that may not be known, of a document that came from another set-up.
_MOMENTS = ("created_at", "updated_at")
#: Columns for a title in a list.
_TITLE_WIDTH = 60


def status_data(
    loaded: LoadedState,
    lease: LeaseRow | None,
    verdict: Verdict | None,
    *,
    session: AgentSession | None = None,
    executions: Sequence[ExecutionLine] = (),
    database_problem: str | None = None,
) -> JsonObject:
    """Return the facts about one workflow that a person asks for; with a *database_problem* its owner is not known."""
    document = loaded.data
    data: JsonObject = {name: document.get(name) for name in _AS_THEY_ARE}
    for name in _MOMENTS:
        data[name] = _known_moment(data[name])
    data["state"] = document.get("current_state")
    data["title"] = _object(document.get("issue")).get("title") or ""
    data["workflow"] = _object(document.get("workflow")).get("name")
    data["cost_usd"] = _object(document.get("cost")).get("total_usd")
    data["phases"] = [phase_data(_object(phase)) for phase in _list(document.get("phases"))]
    data["hints"] = [hint_data(_object(hint)) for hint in _list(document.get("hints"))]
    data["rollback"] = _rollback(document.get("rollback"))
    data["owner"] = _owner(lease, verdict)
    data["agent_session"] = _session(session)
    data["executions"] = [one.to_json() for one in executions]
    data["database_problem"] = database_problem
    data["notices"] = [{"kind": n.kind, "path": n.path, "reason": n.reason} for n in loaded.notices]

    return data


def _session(session: AgentSession | None) -> JsonObject | None:
    if session is None:
        return None

    return {
        "session_id": session.session_id,
        "phase": session.phase,
        "attempt_number": session.attempt_number,
        "agent": session.agent,
        "host": session.host,
        "status": session.status.value,
        "executor_session_id": session.executor_session_id or None,
        "reason": session.reason,
        "started_at": session.started_at,
        "ended_at": session.ended_at,
    }


def _session_line(session: Mapping[str, JsonValue]) -> str:
    if not session:
        return ""
    called = f", its session {_said(session['executor_session_id'])}" if session["executor_session_id"] else ""
    where = f"attempt {_said(session['attempt_number'])} of {_said(session['phase'])} on {_said(session['host'])}"

    return f"{_said(session['agent'])} {_said(session['status'])}: {where}{called}"


def status_lines(data: Mapping[str, JsonValue], now: datetime) -> list[str]:
    """Return the status as text."""
    phases = [_object(phase) for phase in _list(data["phases"])]
    hints = [_object(hint) for hint in _list(data["hints"])]
    lines = output.facts(
        [
            ("id", _said(data["adw_id"])),
            ("state", _state(data)),
            ("issue", _issue(data)),
            ("title", _said(data["title"])),
            ("workflow", _said(data["workflow"])),
            ("revision", _said(data["revision"])),
            ("failed phase", _failed_phase(data, phases)),
            ("reason", _said(data["terminal_reason"])),
            ("why paused", _why_paused(data)),
            ("last failure", newest_failure(phases)),
            ("retries", _used(data["retry_count"], data["max_retries"])),
            ("reworks", _used(data["reworks"], data["max_reworks"]) if data["reworks"] else ""),
            ("owner", _owner_line(data)),
            ("agent", _session_line(_object(data.get("agent_session")))),
            ("branch", _said(data["branch_name"])),
            ("worktree", _said(data["worktree_path"])),
            ("pull request", f"#{_said(data['pr_number'])}" if data["pr_number"] else ""),
            ("cost", f"{cost:.2f} USD" if isinstance(cost := data["cost_usd"], float) and cost else ""),
            ("created", _moment(data["created_at"], now) or "unknown"),
            ("updated", _moment(data["updated_at"], now) or "unknown"),
        ]
    )

    return [
        *lines,
        *wait_lines(phases, now),
        *execution_lines([_object(one) for one in _list(data["executions"])], now),
        *phase_lines(phases, now),
        *doctor_lines(phases),
        *hint_lines(hints, now),
        *_notice_lines(data),
        *_note_lines(data),
    ]


def list_data(page: Page) -> JsonObject:
    """Return a page of the list as plain data."""
    return {
        "next_cursor": page.next_cursor,
        "workflows": [
            {
                "adw_id": row.adw_id,
                "created_at": _known_moment(row.created_at),
                "issue_number": row.issue_number,
                "owner": _owner_name(row.owner),
                "repository": row.repository,
                "revision": row.revision,
                "state": row.state,
                "title": row.title,
                "updated_at": _known_moment(row.updated_at),
                "workflow": row.workflow,
            }
            for row in page.rows
        ],
    }


def list_lines(page: Page, now: datetime) -> list[str]:
    """Return a page of the list as a table, and how to see the next one."""
    if not page.rows:
        return ["no workflows"]
    rows = [
        (
            row.adw_id,
            row.state,
            _issue({"issue_number": row.issue_number, "repository": row.repository}),
            row.workflow,
            _moment(row.updated_at, now),
            _owner_name(row.owner) or "-",
            output.shorten(row.title, _TITLE_WIDTH),
        )
        for row in page.rows
    ]
    more = [f"more: add --cursor {page.next_cursor}"] if page.next_cursor else []

    return [*output.table(("ID", "STATE", "ISSUE", "WORKFLOW", "UPDATED", "OWNER", "TITLE"), rows), *more]


def events_data(events: Sequence[Event]) -> JsonObject:
    """Return events as plain data; `last` is what to pass to `--after` for the ones that follow."""
    return {"events": [event.to_json() for event in events], "last": events[-1].event_id if events else None}


def events_lines(events: Sequence[Event], now: datetime) -> list[str]:
    """Return events as a table, in the order they happened."""
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
    """Return one event as a line of its own."""
    where = f" {_where(event)}" if event.node_name else ""
    attempt = f" {event.attempt_number}" if event.attempt_number is not None else ""
    facts = f" {told}" if (told := events_module.facts_of(event)) else ""

    return f"{event.created_at} {event.event_type}{where}{attempt}{facts}"


def _where(event: Event) -> str:
    """Return the phase or step that an event is about, with the number of the element in a loop."""
    is_one_of_many = event.iteration_index is not None and event.total_iterations != 1

    return f"{event.node_name}[{event.iteration_index}]" if is_one_of_many else event.node_name or ""


# --- parts of the status ---------------------------------------------------------------------------------------


def _rollback(record: JsonValue) -> JsonObject | None:
    if not isinstance(record, dict):
        return None

    return {name: record.get(name) for name in ("reason", "started_at", "blocked_by")}


def _owner(lease: LeaseRow | None, verdict: Verdict | None) -> JsonObject | None:
    if lease is None or lease.owner is None:
        return None
    owner = lease.owner

    return {
        "fence": lease.fence,
        "host": owner.host,
        "lease_seconds_left": round(lease.seconds_left, 3),
        "liveness": (verdict or Verdict.UNKNOWN).value,
        "pid": owner.pid,
        "role": owner.role,
        "taken_at": lease.taken_at,
    }


def _owner_line(data: Mapping[str, JsonValue]) -> str:
    if data["database_problem"]:
        return "unknown"
    owner = _object(data["owner"])
    if not owner:
        return "nobody"
    left = owner["lease_seconds_left"]
    ends = f"{left:.0f} s left" if isinstance(left, float | int) and left > 0 else "over"

    return f"{owner['role']} {owner['pid']}@{owner['host']}, {owner['liveness']}, lease {ends}"


def _owner_name(text: str) -> str | None:
    record = OwnerRecord.from_text(text) if text else None

    return record.describe() if record else None


def _failed_phase(data: Mapping[str, JsonValue], phases: list[JsonObject]) -> str:
    """Return the name of the phase that a failed workflow failed in; the document itself only keeps its state."""
    if data["state"] != "failed":
        return ""

    return _said(failed_phase(phases).get("name") or data["failed_phase"])


def _why_paused(data: Mapping[str, JsonValue]) -> str:
    if data["state"] != "paused":
        return ""
    waiting = cli_common.waiting_phase({"current_state": "paused", "phases": data["phases"]})

    return f"waits for approval of {waiting}" if waiting else _said(data["pause_reason"])


def _notice_lines(data: Mapping[str, JsonValue]) -> list[str]:
    notices = [_said(warning) for warning in _list(data["warnings"])]
    rollback = data["rollback"]
    if isinstance(rollback, dict):
        blocked = ", ".join(_said(item) for item in _list(rollback.get("blocked_by")))
        notices.append(f"a rollback was begun{f', blocked by {blocked}' if blocked else ''}")

    return ["", *(f"notice: {notice}" for notice in notices)] if notices else []


def _note_lines(data: Mapping[str, JsonValue]) -> list[str]:
    """Return what was noticed while the document was read, such as that it is not the newest one."""
    notes = [f"{note['path']}: {note['reason']}" for note in (_object(notice) for notice in _list(data["notices"]))]
    if data["database_problem"]:
        notes.append(_said(data["database_problem"]))

    return ["", *(f"note: {note}" for note in notes)] if notes else []


def _state(data: Mapping[str, JsonValue]) -> str:
    """Return the state, and for a parked workflow where it goes on."""
    resumes = f" (resumes with {data['resume_state']})" if data["resume_state"] else ""

    return f"{_said(data['state'])}{resumes}"


def _issue(data: Mapping[str, JsonValue]) -> str:
    number = "-" if data["issue_number"] is None else f"#{data['issue_number']}"

    return f"{data['repository'] or ''}{number}"


# --- plain JSON, taken as it comes ------------------------------------------------------------------------------


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _used(count: JsonValue, limit: JsonValue) -> str:
    return "" if count is None else f"{count} of {_said(limit)} used"


def _known_moment(value: JsonValue) -> JsonValue:
    return None if value == timestamps.UNKNOWN_MOMENT else value


def _moment(value: JsonValue, now: datetime) -> str:
    return output.moment(value, now) if isinstance(value, str) and value else ""


#: Seconds between two polls for more events.
_LOOK_SECONDS = 0.25
#: Executions among which those are that are under way; a phase has one at a time.
_MOST_EXECUTIONS = 20


@click.command()
@cli_common.adw_id_argument
@output.json_option
def status(*, adw_id: str, as_json: bool) -> None:
    """Show one workflow: its state, phases, attempts, owner and what it made."""
    with main.open_home() as app:
        loaded = cli_common.load(app, adw_id)
        lease, problem = _lease_of(app, adw_id)
        verdict = app.processes.verdict(lease.owner) if lease and lease.owner else None
        # Before the first attempt there is neither, and the code for them need not be loaded.
        is_begun_ = problem is None and any(phase.attempts for phase in loaded.document.phases)
        session = _session_of(app, adw_id) if is_begun_ else None
        executions = _executions_of(app, adw_id) if is_begun_ else ()
        data = status_data(loaded, lease, verdict, session=session, executions=executions, database_problem=problem)

        output.emit(data, status_lines(data, app.clock.now()), as_json=as_json)


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
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Workflows on a page, at most 1000."
)
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended.")
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
    query = PageQuery(limit=limit, cursor=cursor, state=state, issue_number=issue, workflow=workflow, search=search)
    with main.open_home() as app:
        page = app.catalogue.page(query) if app.has_database() else Page(rows=())

        output.emit(list_data(page), list_lines(page, app.clock.now()), as_json=as_json)
        old = [] if page.rows or query != PageQuery(limit=limit) else app.files_of_documents()
        if old:
            output.say(
                f"adw: {len(old)} document{'s are' if len(old) > 1 else ' is'} not listed, such as {old[0]}: "
                "adw state migrate brings documents of older versions in"
            )


@click.command()
@cli_common.adw_id_argument
@click.option("--after", metavar="EVENT", help="Only what came after this event.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Events to show.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more happens, until the workflow stops.")
@output.json_option
def events(*, adw_id: str, after: str | None, limit: int, follow: bool, as_json: bool) -> None:
    """Show what happened to a workflow, in order; with -f and --json one document a line."""
    with main.open_home() as app:
        if not app.has_database():
            raise app.no_workflow(adw_id)
        result = app.events.of_workflow(adw_id, after=after, limit=limit)
        if not result and not app.store.exists(adw_id):
            raise app.no_workflow(adw_id)

        if not follow:
            output.emit(events_data(result), events_lines(result, app.clock.now()), as_json=as_json)
            return
        _follow(app, adw_id, after, as_json=as_json)


def _follow(app: Home, adw_id: str, after: str | None, *, as_json: bool) -> None:
    """Print events as they come, until the workflow has stopped and there are none left."""
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


def _lease_of(app: Home, adw_id: str) -> tuple[LeaseRow | None, str | None]:
    """Return the lease, and why it is not known when the database cannot say: the document tells enough without it."""
    try:
        return (app.leases.read(adw_id) if app.has_database() else None), None
    except DatabaseError as exc:
        return None, str(exc)


def _session_of(app: Home, adw_id: str) -> AgentSession | None:
    """Return the newest session of an agent, None when there was none, or when that cannot be told."""
    try:
        result = app.sessions.of_workflow(adw_id) if app.has_database() else ()
    except DatabaseError:
        return None

    return result[-1] if result else None


def _executions_of(app: Home, adw_id: str) -> Sequence[ExecutionLine]:
    """Return the steps that are under way, none when that cannot be told."""
    try:
        result = app.execution_views.of_workflow(adw_id, limit=_MOST_EXECUTIONS) if app.has_database() else ()
    except DatabaseError:
        return ()

    return [one for one in result if one.state == "running"]


def _known_state(text: str | None) -> str | None:
    """Return the state that is meant, in any case; raise UsageError with the list of those there are."""
    if text is None:
        return None
    # Imported only for filters: the other views start without the state machine.
    states = [state.value for state in importlib.import_module("adws.adw_modules.state_machine").WorkflowState]
    if text.lower() not in states:
        raise UsageError(f"{text!r} is not a state; use one of {', '.join(states)}")

    return text.lower()
