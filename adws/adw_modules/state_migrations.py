"""
The steps that bring an old document to the current version: 1.0 -> 2.0 -> 3.0.

Pure: JSON object in, new JSON object out, the argument untouched. What cannot be told is never guessed into a state
that runs: it becomes `paused`, with the reason. Version 1.0 is every file that older ADW set-ups wrote; none of them
has a `state_version`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.legacy_scripts import PHASE_STATES, phase_of, state_named, workflow_name
from adws.adw_modules.migration_draft import Draft, moment_in, shown

#: Version 2.0: field -> type.
FIELDS_V2: Mapping[str, str] = MappingProxyType(
    {
        "state_version": "str",
        "adw_id": "str",
        "issue_number": "int | None",
        "current_state": "str",
        "retry_count": "int",
        "state_history": "list",
        "branch_name": "str | None",
        "plan_file": "str | None",
        "worktree_path": "str | None",
        "backend_port": "int | None",
        "frontend_port": "int | None",
        "pr_number": "int | None",
        "created_at": "str",
        "updated_at": "str",
    }
)

#: `source` of the move that stands for all that happened before version 2.0.
V1_SOURCE = "v1_migration"

_OWNER_AND_NAME = r"([A-Za-z0-9][\w.-]*/[\w.-]*?\w[\w.-]*?)"
_REPOSITORY = re.compile(_OWNER_AND_NAME, re.ASCII)
_REPOSITORY_URL = re.compile(
    r"(?:(?:https?|ssh|git)://[^/]+/|[\w.-]+@[\w.-]+:)" + _OWNER_AND_NAME + r"(?:\.git)?(?:[/?#].*)?", re.ASCII
)


# --- 1.0 -> 2.0 ------------------------------------------------------------------------------------------------


def v1_to_v2(data: JsonObject) -> JsonObject:
    """Return a 1.0 document as 2.0: one `current_state`, placed by `status` and `all_adws`."""
    draft = Draft(data)
    fields = draft.fields
    if fields.get("issue_number") in (None, ""):
        draft.warnings.append("the issue number is not known: none was recorded")
    draft.settle_fields()

    metadata: JsonObject = {"source": V1_SOURCE, "status": fields.pop("status", None)}
    if fields.get("current_state") is not None:
        metadata["current_state"] = fields["current_state"]
    said = metadata["status"] if metadata["status"] is not None else fields.get("current_state")
    phase = phase_of(draft.scripts())
    state, reason = _place_by_status(said, phase)

    fields["current_state"] = state
    _settle_return(draft, phase)
    _record_move(draft, "pending", "created_at", metadata, reason)

    return {**fields, "state_version": "2.0", "warnings": list(draft.warnings)}


def _place_by_status(status: JsonValue, phase: str | None) -> tuple[str, str | None]:
    """Return the state a 1.0 *status* stands for, and why when it is not the one that was named."""
    if status is None or status == "":
        return "paused", "imported without a status"
    if isinstance(status, str) and status.strip().lower() == "running":
        return (phase, None) if phase else ("paused", "imported as running, but all_adws names no phase")

    state = state_named(status)
    return (state, None) if state else ("paused", f"imported with the unknown status {shown(status)}")


def _settle_return(draft: Draft, phase: str | None) -> None:
    """Write down where a paused or failed workflow goes on: what it says itself, else its history, else *phase*."""
    state = draft.fields["current_state"]
    ways = (
        ("resume_state", "paused", PHASE_STATES | {"pending"}, "pending"),
        ("failed_phase", "failed", PHASE_STATES, None),
    )
    for key, parked, allowed, fallback in ways:
        named = state_named(draft.fields.get(key))
        draft.settle(key, named if named in allowed else None, "did not name a phase")
        if draft.fields[key] is None and state == parked:
            draft.fields[key] = _left_for(draft, parked) or phase or fallback


def _left_for(draft: Draft, state: str) -> str | None:
    """Return the phase that the last move into *state* came from."""
    origin = next((move["from"] for move in reversed(draft.moves()) if move["to"] == state), None)

    return state_named(origin) if origin in PHASE_STATES else None


def _record_move(draft: Draft, came_from: JsonValue, moved_at: str, metadata: JsonObject, reason: str | None) -> None:
    """Add the move that the migration made; its `source` exempts it from the check against the state table."""
    if reason:
        metadata["reason"] = reason
        draft.warnings.append(reason)

    state, moment = draft.fields["current_state"], draft.fields[moved_at]
    draft.add_move({"from": came_from, "to": state, "timestamp": moment, "metadata": metadata})


# --- 2.0 -> 3.0 ------------------------------------------------------------------------------------------------


def v2_to_v3(data: JsonObject) -> JsonObject:
    """Return a 2.0 document as 3.0: what it owns becomes resources that a rollback knows."""
    draft = Draft(data)
    draft.settle_fields()
    fields = draft.fields
    if "checksum" in fields:
        draft.set_aside("checksum", "is the name of adw's own seal")

    _settle_state(draft)
    _settle_repository(draft)
    new = _new_in_v3(draft)
    for key, value in new.items():
        if fields.get(key) is not None and fields[key] != value:
            draft.set_aside(key, "meant something else before version 3.0")

    return {**fields, **new, "state_version": "3.0", "warnings": list(draft.warnings)}


def _settle_state(draft: Draft) -> None:
    """Settle the state, and end the history with a move that says who wrote what stands before it."""
    found, status = draft.fields.get("current_state"), draft.fields.pop("status", None)
    state = state_named(found)
    moves = draft.moves()
    reached = next((move["to"] for move in reversed(moves) if move["to"] in PHASE_STATES), None)
    draft.fields["current_state"] = state or "paused"
    _settle_return(draft, state_named(reached) or phase_of(draft.scripts()))
    if status is None and _is_accounted_for(moves, state):
        return

    metadata: JsonObject = {"source": "v2_migration"}
    if status is not None:
        metadata["status"] = status
    if state is None:
        metadata["current_state"] = found
    reason = None if state else f"migrated with the unknown state {shown(found)}"
    came_from = moves[-1]["to"] if moves else "pending"
    _record_move(draft, came_from, "updated_at", metadata, reason)


def _is_accounted_for(moves: Sequence[JsonObject], state: str | None) -> bool:
    """Say whether the history explains *state* without a further move: nothing happened yet, or 1.0 came before."""
    if not moves:
        return state == "pending"

    last = moves[-1]
    return last["to"] == state and isinstance(last["metadata"], dict) and last["metadata"].get("source") == V1_SOURCE


def _settle_repository(draft: Draft) -> None:
    named = repository_in(draft.fields.get("repository"))
    draft.settle("repository", named, "did not name a repository as owner/name")

    draft.fields["repository"] = named or repository_in(draft.fields.get("github_url")) or ""


def repository_in(value: JsonValue) -> str | None:
    """Return `owner/name` from such a text or from an address on any host; only a final `.git` is cut off."""
    if not isinstance(value, str):
        return None

    match = _REPOSITORY.fullmatch(value.strip()) or _REPOSITORY_URL.fullmatch(value.strip())
    return match[1] if match else None


def _new_in_v3(draft: Draft) -> JsonObject:
    fields = draft.fields
    name = workflow_name(fields.get("workflow_template"), draft.scripts())

    return {
        "revision": 0,
        "fence": 0,
        "furthest_failed": fields["failed_phase"],
        "retry_marks": 0,
        "retries_granted": 0,
        "reworks": 0,
        "max_reworks": 3,
        "history_dropped": 0,
        "pause_reason": None,
        "hints": [],
        "max_total_attempts": None,
        "max_minutes": None,
        "max_cost_usd": None,
        "doctor_calls": 0,
        "replans": 0,
        "deliveries": [],
        "continues": None,
        "followups": 0,
        "workflow": {"name": name, "version": "1", "phases": []} if name else None,
        "issue": _issue(fields.get("nl_input")),
        "phases": [],
        "resources": [] if fields["current_state"] == "rolled_back" else list(_adopted(fields)),
        "cost": _cost(fields),
        "rollback": None,
        "pr_merged": _is_merged(fields),
        "outbox": [],
    }


def _is_merged(fields: JsonObject) -> bool:
    """Say whether anything shows that the pull request was merged: then nothing may be rolled back."""
    return (
        fields.get("pr_merged") is True
        or fields.get("merge_status") == "success"
        or moment_in(fields.get("ship_timestamp")) is not None
    )


def _issue(request: JsonValue) -> JsonValue:
    """Return the issue as far as the request in plain words tells: its first line is the title."""
    text = request.strip() if isinstance(request, str) else ""
    if not text:
        return None

    title, _, body = text.partition("\n")
    return {"title": title.strip(), "body": body.strip(), "author": None, "url": None, "labels": []}


#: field -> kind of resource, and what its undo has to know, in the order they were made.
_ADOPTED: tuple[tuple[str, str, Callable[[JsonValue], JsonObject]], ...] = (
    ("branch_name", "branch", lambda value: {"branch": value}),
    ("worktree_path", "worktree", lambda value: {"path": value}),
    ("backend_port", "port", lambda value: {"port": value, "use": "backend"}),
    ("frontend_port", "port", lambda value: {"port": value, "use": "frontend"}),
    ("pr_number", "pull_request", lambda value: {"pr_number": value}),
)


def _adopted(fields: JsonObject) -> Iterator[JsonValue]:
    """Yield what the workflow made before adw kept a ledger, so that a later rollback knows it."""
    for field, kind, undo in _ADOPTED:
        value = fields[field]
        if value:
            key = f"{kind}:{value}"
            yield {"key": key, "kind": kind, "outcome": "adopted", "host": None, "undo": undo(value)}


def _cost(fields: JsonObject) -> JsonObject:
    breakdown = fields.get("estimated_cost_breakdown")
    by_phase = {phase: _dollars(value) for phase, value in (breakdown if isinstance(breakdown, dict) else {}).items()}
    known: JsonObject = {phase: value for phase, value in by_phase.items() if value is not None}
    total = _dollars(fields.get("estimated_cost_total"))

    return {
        "total_usd": total if total is not None else round(math.fsum(v for v in by_phase.values() if v), 6),
        "by_phase": known,
    }


def _dollars(value: JsonValue) -> float | None:
    """Return an amount of money; None for what is not a number, or less than nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None

    return float(value) if 0 <= value < 1e12 else None
