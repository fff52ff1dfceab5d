"""
What is an orphan: something of ours that no workflow needs any more, and why.

Pure. What may be there in which state is the table of states and resources; what is kept on request, what somebody
works on, and what cannot be read is never an orphan. Age decides nothing by itself: it only narrows the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.interfaces_resources import OPEN_OUTCOMES
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.state_table import ACTIVE_STATES, PARKED_STATES, TERMINAL_STATES, WorkflowState

_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)
_PARKED = frozenset(state.value for state in PARKED_STATES)
_TERMINAL = frozenset(state.value for state in TERMINAL_STATES)
_COMPLETED, _ROLLED_BACK, _ABANDONED = (
    state.value for state in (WorkflowState.COMPLETED, WorkflowState.ROLLED_BACK, WorkflowState.ABANDONED)
)

#: kind -> states of a workflow in which nothing of that kind may be left.
NOT_IN: dict[str, frozenset[str]] = {
    "process": _PARKED | _TERMINAL,
    "pull_request": frozenset({_ROLLED_BACK}),
    "worktree": frozenset({_COMPLETED, _ROLLED_BACK}),
    "branch": frozenset({_ROLLED_BACK}),
    "remote_branch": frozenset({_ROLLED_BACK}),
    "wip_ref": frozenset({_COMPLETED, _ROLLED_BACK}),
    "port": _PARKED | _TERMINAL,
    "quota": _PARKED | _TERMINAL,
    "lock": _TERMINAL,
    "checkpoint": _TERMINAL,
}
#: What is older than the settings say; see `retention_rules`.
OLD_KINDS = ("workflow_old", "events_old", "logs_old", "deliveries_old")
#: The order in which orphans are removed: a workflow as a whole first, then what would hold on to the next.
ORDER = (
    "workflow",
    "process",
    "pull_request",
    "remote_branch",
    "wip_ref",
    "worktree",
    "branch",
    "port",
    "quota",
    "lock",
    "checkpoint",
    "temp",
    *OLD_KINDS,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known about a workflow."""

    adw_id: str
    state: str = ""  #: "" when its document cannot be read
    updated_at: str = ""
    is_live: bool = False  #: somebody works on it
    is_rolling_back: bool = False  #: a rollback was begun
    has_open_effects: bool = False
    kept: frozenset[str] = frozenset()  #: paths and branches that were kept, on request or because they are not ours
    elsewhere: frozenset[str] = frozenset()  #: other machines that have a worktree or a branch of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """Something that nobody needs any more."""

    kind: str  #: one of ORDER
    name: str
    adw_id: str
    why: str
    since: str = ""  #: since when, "" when nobody knows
    facts: JsonObject | None = None  #: what is needed to remove it

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {"kind": self.kind, "name": self.name, "adw_id": self.adw_id, "why": self.why, "since": self.since}


def known_from(data: JsonObject, *, is_live: bool, host: str = "") -> Known:
    """Return what the document *data* says about its workflow, to *host* where machines share their documents."""
    entries = data.get("resources")
    resources = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    mine = [entry for entry in resources if not host or entry.get("host") in {None, "", host}]
    kept = [value for entry in mine if entry.get("outcome") == "kept" for value in _names_in(entry.get("undo"))]
    others = [entry for entry in resources if entry not in mine and entry.get("kind") in {"worktree", "branch"}]

    return Known(
        adw_id=str(data.get("adw_id") or ""),
        state=str(data.get("current_state") or ""),
        updated_at=str(data.get("updated_at") or ""),
        is_live=is_live,
        is_rolling_back=data.get("rollback") is not None,
        has_open_effects=any(entry.get("outcome") in OPEN_OUTCOMES for entry in resources),
        kept=frozenset(kept),
        elsewhere=frozenset(str(entry.get("host")) for entry in others if entry.get("outcome") in OPEN_OUTCOMES),
    )


def _names_in(undo: JsonValue) -> list[str]:
    facts = undo if isinstance(undo, dict) else {}

    return [value for key in ("path", "branch", "branch_name") if isinstance(value := facts.get(key), str)]


def why_orphan(kind: str, name: str, known: Known | None) -> str:
    """Return why something of a workflow is an orphan, "" when it is none; None: there is no such workflow."""
    if known is None:
        return "there is no such workflow"
    if known.is_live or not known.state or name in known.kept:
        return ""
    if known.state not in NOT_IN[kind]:
        return ""

    return f"its workflow is {known.state.replace('_', ' ')}"


def why_not_here(known: Known) -> str:
    """Return which machine has something of a workflow that is over, in a sentence; "" when none has."""
    if known.is_live or known.state not in {_COMPLETED, _ABANDONED} or not known.elsewhere:
        return ""
    hosts = ", ".join(sorted(known.elsewhere))
    how = "a worker there" if known.state == _COMPLETED else "adw gc there"

    return f"workflow {known.adw_id} is {known.state} and has something on {hosts}: only {how} can look after it"


def why_left_over(known: Known) -> str:
    """Return why a workflow as a whole is one, "" when it is none."""
    if known.is_live or known.state == _ROLLED_BACK:
        return ""
    if known.is_rolling_back:
        return "its rollback is not finished"
    if known.state == _ABANDONED and known.has_open_effects:
        return "it is abandoned, and what it made is still there"

    return ""


def chosen(orphans: Iterable[Orphan], *, older_than: timedelta | None, now: datetime) -> tuple[Orphan, ...]:
    """Return the orphans in the order they are removed; with *older_than* only those that are known to be that old."""
    found = [orphan for orphan in orphans if older_than is None or _age(orphan, now) >= older_than]

    return tuple(sorted(found, key=lambda orphan: (ORDER.index(orphan.kind), orphan.name)))


def _age(orphan: Orphan, now: datetime) -> timedelta:
    try:
        return now - timestamps.parse(orphan.since)
    except ValueError:
        return timedelta.min


def is_active(state: str) -> bool:
    """Say whether work goes on in *state*, or is about to."""
    return state in _ACTIVE
