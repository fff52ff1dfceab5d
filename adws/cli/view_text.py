"""
What the views show: plain data for `--json`, and lines of text made from that same data.

Pure. It reads documents as plain JSON, because a view must start without the libraries that check them; so it takes
nothing for granted about a field but its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules import event_words, timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import LeaseRow, Page, PeekedState
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.cli import looking, output, phase_text

if TYPE_CHECKING:
    from adws.adw_modules.execution_views import ExecutionLine
    from adws.adw_modules.interfaces_coordination import AgentSession

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
    peeked: PeekedState,
    lease: LeaseRow | None,
    verdict: Verdict | None,
    *,
    session: AgentSession | None = None,
    executions: Sequence[ExecutionLine] = (),
    database_problem: str | None = None,
) -> JsonObject:
    """Return the facts about one workflow that a person asks for; with a *database_problem* its owner is not known."""
    document = peeked.data
    data: JsonObject = {name: document.get(name) for name in _AS_THEY_ARE}
    for name in _MOMENTS:
        data[name] = _known_moment(data[name])
    data["state"] = document.get("current_state")
    data["title"] = _object(document.get("issue")).get("title") or ""
    data["workflow"] = _object(document.get("workflow")).get("name")
    data["cost_usd"] = _object(document.get("cost")).get("total_usd")
    data["phases"] = [phase_text.phase_data(_object(phase)) for phase in _list(document.get("phases"))]
    data["hints"] = [phase_text.hint_data(_object(hint)) for hint in _list(document.get("hints"))]
    data["rollback"] = _rollback(document.get("rollback"))
    data["owner"] = _owner(lease, verdict)
    data["agent_session"] = _session(session)
    data["executions"] = [one.to_json() for one in executions]
    data["database_problem"] = database_problem
    data["notices"] = [{"kind": n.kind, "path": n.path, "reason": n.reason} for n in peeked.notices]

    return data


def is_begun(document: JsonObject) -> bool:
    """Say whether an attempt was made at a phase."""
    return any(_list(_object(phase).get("attempts")) for phase in _list(document.get("phases")))


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
            ("last failure", phase_text.newest_failure(phases)),
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
        *phase_text.wait_lines(phases, now),
        *phase_text.execution_lines([_object(one) for one in _list(data["executions"])], now),
        *phase_text.phase_lines(phases, now),
        *phase_text.doctor_lines(phases),
        *phase_text.hint_lines(hints, now),
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
            event_words.facts_of(event),
        )
        for event in events
    ]

    return output.table(("EVENT", "TIME", "WHAT", "WHERE", "ATTEMPT", "FACTS"), rows)


def event_line(event: Event) -> str:
    """Return one event as a line of its own."""
    where = f" {_where(event)}" if event.node_name else ""
    attempt = f" {event.attempt_number}" if event.attempt_number is not None else ""
    facts = f" {told}" if (told := event_words.facts_of(event)) else ""

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

    return _said(phase_text.failed_phase(phases).get("name") or data["failed_phase"])


def _why_paused(data: Mapping[str, JsonValue]) -> str:
    if data["state"] != "paused":
        return ""
    waiting = looking.waiting_phase({"current_state": "paused", "phases": data["phases"]})

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


def _said(value: JsonValue) -> str:
    return "" if value is None else str(value)


def _used(count: JsonValue, limit: JsonValue) -> str:
    return "" if count is None else f"{count} of {_said(limit)} used"


def _known_moment(value: JsonValue) -> JsonValue:
    return None if value == timestamps.UNKNOWN_MOMENT else value


def _moment(value: JsonValue, now: datetime) -> str:
    return output.moment(value, now) if isinstance(value, str) and value else ""
