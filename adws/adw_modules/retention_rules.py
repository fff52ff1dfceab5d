"""
How long what is over is kept: events, logs, deliveries, and finished workflows as a whole.

Pure. Days are counted from the last change; 0 is for ever. A workflow as a whole goes only when nothing of it is left
that somebody may want undone, looked after or given back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from adws.adw_modules import gc_rules, timestamps
from adws.adw_modules.interfaces_resources import OPEN_OUTCOMES
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.state_table import TERMINAL_STATES

#: The states of workflows that are over, as rows and documents have them.
OVER = frozenset(state.value for state in TERMINAL_STATES)
#: What a merge has made part of the repository or of its history: nobody undoes it any more.
MERGED_KINDS = frozenset({"branch", "remote_branch", "pull_request", "comment", "label"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Days:
    """For how many days each is kept; 0: for ever."""

    events: int = 365  #: of finished workflows
    logs: int = 90  #: logs and output of the attempts of finished workflows
    deliveries: int = 14
    workflows: int = 0  #: finished ones, with everything that is stored of them


def limit(days: int, now: datetime) -> str:
    """Return the moment before which things are old, "" when nothing is ever."""
    return timestamps.to_text(now - timedelta(days=days)) if days else ""


def why_kept(data: JsonObject, *, before: str, has_issue: bool = False, has_run: bool = False) -> str:
    """Return why the workflow of the document *data* is not forgotten, "" when it may be."""
    known = gc_rules.known_from(data, is_live=False)
    if known.state not in OVER:
        return f"it is {known.state.replace('_', ' ') or 'in a state that nobody knows'}"
    if not before or not known.updated_at or known.updated_at >= before:
        return "it is not old enough"
    if known.is_rolling_back and known.state != "rolled_back":
        return "its rollback is not finished"
    if has_issue:
        return "it has its issue"
    if has_run:
        return "a run of it waits for a worker"
    if known.kept:
        return f"it keeps {', '.join(sorted(known.kept))}, which gc would take for left over"
    standing = _standing(data)

    return f"what it made still stands: {', '.join(standing)}" if standing else ""


def _standing(data: JsonObject) -> list[str]:
    """Return the keys of effects that are there, or may be."""
    entries = data.get("resources")
    found: list[Mapping[str, JsonValue]] = (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
    is_merged = data.get("pr_merged") is True

    return [
        str(entry.get("key"))
        for entry in found
        if entry.get("outcome") in OPEN_OUTCOMES and not (is_merged and entry.get("kind") in MERGED_KINDS)
    ]
