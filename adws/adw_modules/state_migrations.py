"""
The migration steps from an old document to the current version: 1.0 -> 2.0 -> 3.0.

Pure: JSON object in, new JSON object out, the argument unchanged. A workflow whose state cannot be determined never
gets a running state by guessing: it becomes `paused`, with the reason. Version 1.0 is any file that older ADW set-ups
wrote; none of them has a `state_version`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import TypeGuard

from adws.adw_modules import timestamps
from adws.adw_modules.identifiers import JsonObject, JsonValue, shown
from adws.adw_modules.timestamps import UNKNOWN_MOMENT

# --- the script names of older ADW set-ups -------------------------------------------------------------------------
#
# `all_adws` lists the scripts that were *started*, so the last one that names a phase shows how far the work got, not
# what was finished.


#: Word in a script's name -> the state it runs in. `patch` plans before it builds; `validate` runs after the plan.
PHASE_OF_WORD: Mapping[str, str] = MappingProxyType(
    {
        "plan": "planning",
        "patch": "planning",
        "validate": "building",
        "build": "building",
        "lint": "linting",
        "test": "testing",
        "review": "reviewing",
        "document": "documenting",
        "ship": "shipping",
        "cleanup": "cleaning",
        "verify": "cleaning",
    }
)
PHASE_STATES = frozenset(PHASE_OF_WORD.values())
#: The values of all workflow states.
STATES = PHASE_STATES | {"pending", "completed", "failed", "paused", "rolled_back", "abandoned"}
#: Scripts that run a whole pipeline without naming its phases: only its start is known.
WHOLE_PIPELINES = frozenset({"sdlc", "sdlc_zte", "sdlc_complete", "sdlc_complete_zte", "lightweight", "stepwise"})


def state_named(value: JsonValue) -> str | None:
    """Return the state that *value* names in any case, or None."""
    word = value.strip().lower().removeprefix("workflowstate.") if isinstance(value, str) else ""

    return word if word in STATES else None


def short_name(script: str) -> str:
    """Return `plan_build` for `adw_plan_build_iso`, `adw_plan_build.py` and the like."""
    return script.strip().lower().removesuffix(".py").removeprefix("adw_").removesuffix("_iso")


def phase_of(scripts: Sequence[str]) -> str | None:
    """Return the state of the last script that names a phase; in a chain its last word counts."""
    names = [short_name(script) for script in scripts]
    for name in reversed(names):
        phase = PHASE_OF_WORD.get(name.rpartition("_")[2])
        if phase is not None:
            return phase

    return "planning" if WHOLE_PIPELINES.intersection(names) else None


def workflow_name(template: JsonValue, scripts: Sequence[str]) -> str | None:
    """Return the likely name of the workflow: its template, else its last chain, else its steps in order."""
    if isinstance(template, str) and short_name(template):
        return short_name(template)

    names = [short_name(script) for script in scripts]
    for name in reversed(names):
        *first, last = name.split("_")
        if name in WHOLE_PIPELINES or (first and last in PHASE_OF_WORD):
            return name

    return "_".join(dict.fromkeys(name for name in names if name in PHASE_OF_WORD)) or None


# --- a document during a migration ---------------------------------------------------------------------------------

_TEXTS = ("branch_name", "plan_file", "worktree_path", "issue_class", "model_set", "terminal_reason")
_NUMBERS = ("issue_number", "backend_port", "frontend_port", "pr_number")
_COUNTERS: Mapping[str, int] = MappingProxyType({"retry_count": 0, "max_retries": 3})
_WHOLE_NUMBER = re.compile(r"#?([0-9]{1,15})")


class MigrationDraft:
    """
    A copy of a document that is migrated to the next version.

    No value is lost: one that does not fit the schema moves to `legacy_<key>`, with a warning.
    """

    def __init__(self, data: JsonObject) -> None:
        self.fields: JsonObject = dict(data)
        self.warnings: list[str] = []
        warnings = self.fields.get("warnings")
        if isinstance(warnings, list) and all(isinstance(warning, str) for warning in warnings):
            self.warnings = [str(warning) for warning in warnings]
        elif warnings is not None:
            self.set_aside("warnings", "was not a list of texts")
        self.fields.pop("warnings", None)

    def set_aside(self, key: str, why: str) -> None:
        """Move the value of *key* to a name that no schema uses, and add a warning."""
        name = f"legacy_{key}"
        while name in self.fields:
            name = f"legacy_{name}"

        self.fields[name] = self.fields.pop(key)
        self.warnings.append(f"{key} {why}; its old value is kept as {name}")

    def settle(self, key: str, value: JsonValue, why: str) -> None:
        """Set *key* to its clean *value*; if that is None, set an unusable old value aside."""
        if value is None and self.fields.get(key) not in (None, ""):
            self.set_aside(key, why)

        self.fields[key] = value

    def settle_fields(self) -> None:
        """Convert every field of versions 1.0 and 2.0 to its type."""
        fields = self.fields
        for key in _TEXTS:
            value = fields.get(key)
            self.settle(key, value if isinstance(value, str) else None, "was not a text")
        for key in _NUMBERS:
            self.settle(key, whole_number_in(fields.get(key)), "was not a whole number")
        for key, default in _COUNTERS.items():
            value = fields.get(key, default)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**15:
                self.settle(key, None, "was not a count")
                value = default
            fields[key] = value
        if fields.get("all_adws") is not None and self.scripts() != fields["all_adws"]:
            self.set_aside("all_adws", "was not a list of script names")
        fields["all_adws"] = list(self.scripts())

        born = [moment_in(fields.get(key)) for key in ("created_at", "start_time", "worktree_created_at", "updated_at")]
        changed = [moment_in(fields.get(key)) for key in ("updated_at", "end_time")]
        for key in ("created_at", "updated_at"):
            self.settle(key, moment_in(fields.get(key)), "was not a timestamp")
        fields["created_at"] = next((moment for moment in born if moment), UNKNOWN_MOMENT)
        fields["updated_at"] = next((moment for moment in changed if moment), fields["created_at"])
        if not any(born):
            self.warnings.append("when the workflow was created is not known: no timestamp was recorded")

        history = fields.get("state_history")
        entries = history if isinstance(history, list) else [] if history is None else [history]
        strange: list[JsonValue] = [entry for entry in entries if not is_move(entry)]
        clean: list[JsonValue] = [_clean_move(move, fields["created_at"]) for move in self.moves()]
        if strange:
            fields["state_history"] = strange
            self.set_aside("state_history", "had entries that are not moves")
        fields["state_history"] = clean

    def scripts(self) -> list[str]:
        """Return the names in `all_adws`."""
        result = self.fields.get("all_adws")
        return [script for script in result if isinstance(script, str)] if isinstance(result, list) else []

    def moves(self) -> list[JsonObject]:
        """Return the history entries that are state changes."""
        result = self.fields.get("state_history")
        return [entry for entry in result if is_move(entry)] if isinstance(result, list) else []


# --- single values ---------------------------------------------------------------------------------------------


def whole_number_in(value: JsonValue) -> int | None:
    """Return the positive whole number in *value* (7, "7" and "#7" are the same), or None."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None

    match = _WHOLE_NUMBER.fullmatch(str(value).strip())
    return (int(match[1]) or None) if match else None


def moment_in(value: JsonValue) -> str | None:
    """Return the timestamp in *value* in adw's format, or None if it is not one."""
    if not isinstance(value, str):
        return None
    try:
        return timestamps.to_text(timestamps.parse(value.strip()))
    except (ValueError, OverflowError):
        return None


def is_move(entry: JsonValue) -> TypeGuard[JsonObject]:
    """Return whether *entry* is a move in a history: from, to, and metadata that is an object or missing."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("from"), str)
        and isinstance(entry.get("to"), str)
        and isinstance(entry.get("metadata", {}), (dict, NoneType))
    )


def _clean_move(move: JsonObject, born: JsonValue) -> JsonObject:
    """Return *move* with normalised states and a sortable timestamp; a missing one becomes the creation time."""
    clean: JsonObject = {
        "from": state_named(move["from"]) or move["from"],
        "to": state_named(move["to"]) or move["to"],
        "timestamp": moment_in(move.get("timestamp")) or born,
        "metadata": move.get("metadata") or {},
    }

    return {**clean, **{key: value for key, value in move.items() if key not in clean}}


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

#: `source` of the move that represents the history before version 2.0.
V1_SOURCE = "v1_migration"

_OWNER_AND_NAME = r"([A-Za-z0-9][\w.-]*/[\w.-]*?\w[\w.-]*?)"
_REPOSITORY = re.compile(_OWNER_AND_NAME, re.ASCII)
_REPOSITORY_URL = re.compile(
    r"(?:(?:https?|ssh|git)://[^/]+/|[\w.-]+@[\w.-]+:)" + _OWNER_AND_NAME + r"(?:\.git)?(?:[/?#].*)?", re.ASCII
)


# --- 1.0 -> 2.0 ------------------------------------------------------------------------------------------------


def v1_to_v2(data: JsonObject) -> JsonObject:
    """Return a 1.0 document as 2.0: one `current_state`, derived from `status` and `all_adws`."""
    draft = MigrationDraft(data)
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
    """Return the state for a 1.0 *status*, and the reason if it is not the named one."""
    if status is None or status == "":
        return "paused", "imported without a status"
    if isinstance(status, str) and status.strip().lower() == "running":
        return (phase, None) if phase else ("paused", "imported as running, but all_adws names no phase")

    state = state_named(status)
    return (state, None) if state else ("paused", f"imported with the unknown status {shown(status)}")


def _settle_return(draft: MigrationDraft, phase: str | None) -> None:
    """Set where a paused or failed workflow resumes: its own field, else from its history, else *phase*."""
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


def _left_for(draft: MigrationDraft, state: str) -> str | None:
    """Return the phase from which the last move into *state* came, or None."""
    origin = next((move["from"] for move in reversed(draft.moves()) if move["to"] == state), None)

    return state_named(origin) if origin in PHASE_STATES else None


def _record_move(
    draft: MigrationDraft, came_from: JsonValue, moved_at: str, metadata: JsonObject, reason: str | None
) -> None:
    """Add the migration's move to the history; its `source` exempts it from the check against the state table."""
    if reason:
        metadata["reason"] = reason
        draft.warnings.append(reason)

    state, moment = draft.fields["current_state"], draft.fields[moved_at]
    move: JsonObject = {"from": came_from, "to": state, "timestamp": moment, "metadata": metadata}
    draft.fields["state_history"] = [*draft.moves(), move]


# --- 2.0 -> 3.0 ------------------------------------------------------------------------------------------------


def v2_to_v3(data: JsonObject) -> JsonObject:
    """Return a 2.0 document as 3.0: what it owns becomes resources that a rollback can remove."""
    draft = MigrationDraft(data)
    draft.settle_fields()
    fields = draft.fields
    if "checksum" in fields:
        draft.set_aside("checksum", "is the name of adw's own seal")

    _settle_state(draft)
    named = repository_in(fields.get("repository"))
    draft.settle("repository", named, "did not name a repository as owner/name")
    fields["repository"] = named or repository_in(fields.get("github_url")) or ""
    new = _new_in_v3(draft)
    for key, value in new.items():
        if fields.get(key) is not None and fields[key] != value:
            draft.set_aside(key, "meant something else before version 3.0")

    return {**fields, **new, "state_version": "3.0", "warnings": list(draft.warnings)}


def _settle_state(draft: MigrationDraft) -> None:
    """Settle the state, and if needed end the history with a move whose source marks the entries before it."""
    result, status = draft.fields.get("current_state"), draft.fields.pop("status", None)
    state = state_named(result)
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
        metadata["current_state"] = result
    reason = None if state else f"migrated with the unknown state {shown(result)}"
    came_from = moves[-1]["to"] if moves else "pending"
    _record_move(draft, came_from, "updated_at", metadata, reason)


def _is_accounted_for(moves: Sequence[JsonObject], state: str | None) -> bool:
    """Return whether the history explains *state*: nothing happened yet, or the 1.0 migration added its move."""
    if not moves:
        return state == "pending"

    last = moves[-1]
    return last["to"] == state and isinstance(last["metadata"], dict) and last["metadata"].get("source") == V1_SOURCE


def repository_in(value: JsonValue) -> str | None:
    """Return `owner/name` from such a text or a URL on any host, or None; only a final `.git` is removed."""
    if not isinstance(value, str):
        return None

    match = _REPOSITORY.fullmatch(value.strip()) or _REPOSITORY_URL.fullmatch(value.strip())
    return match[1] if match else None


def _new_in_v3(draft: MigrationDraft) -> JsonObject:
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
    """Return whether anything shows that the pull request was merged: then nothing may be rolled back."""
    return (
        fields.get("pr_merged") is True
        or fields.get("merge_status") == "success"
        or moment_in(fields.get("ship_timestamp")) is not None
    )


def _issue(request: JsonValue) -> JsonValue:
    """Return the issue from the plain-text *request*, whose first line is the title, or None if it is empty."""
    text = request.strip() if isinstance(request, str) else ""
    if not text:
        return None

    title, _, body = text.partition("\n")
    return {"title": title.strip(), "body": body.strip(), "author": None, "url": None, "labels": []}


#: (field, kind of resource, data for its undo), in the order in which they were made.
_ADOPTED: tuple[tuple[str, str, Callable[[JsonValue], JsonObject]], ...] = (
    ("branch_name", "branch", lambda value: {"branch": value}),
    ("worktree_path", "worktree", lambda value: {"path": value}),
    ("backend_port", "port", lambda value: {"port": value, "use": "backend"}),
    ("frontend_port", "port", lambda value: {"port": value, "use": "frontend"}),
    ("pr_number", "pull_request", lambda value: {"pr_number": value}),
)


def _adopted(fields: JsonObject) -> Iterator[JsonValue]:
    """Yield the resources that the workflow made before adw kept a ledger, so that a rollback finds them."""
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
    """Return *value* as US dollars, or None if it is not a number, negative or absurdly large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None

    return float(value) if 0 <= value < 1e12 else None
