"""
A document on its way to the next version: every plain field brought to its type.

Pure. Nothing that stood in a document is lost: a value the schema has no room for moves to `legacy_<key>`, and a
warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType, NoneType
from typing import TypeGuard

from adws.adw_modules import timestamps
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.legacy_scripts import state_named
from adws.adw_modules.timestamps import UNKNOWN_MOMENT

_TEXTS = ("branch_name", "plan_file", "worktree_path", "issue_class", "model_set", "terminal_reason")
_NUMBERS = ("issue_number", "backend_port", "frontend_port", "pr_number")
_COUNTERS: Mapping[str, int] = MappingProxyType({"retry_count": 0, "max_retries": 3})
_WHOLE_NUMBER = re.compile(r"#?([0-9]{1,15})")


class Draft:
    """A document on its way to the next version; the one it was made of stays as it is."""

    def __init__(self, data: JsonObject) -> None:
        self.fields: JsonObject = dict(data)
        self.warnings: list[str] = []
        self._settle_warnings()

    def set_aside(self, key: str, why: str) -> None:
        """Move the value of *key* to a name no schema uses, and say so."""
        name = f"legacy_{key}"
        while name in self.fields:
            name = f"legacy_{name}"

        self.fields[name] = self.fields.pop(key)
        self.warnings.append(f"{key} {why}; its old value is kept as {name}")

    def settle(self, key: str, value: JsonValue, why: str) -> None:
        """Give *key* its clean *value*; None where something stood means that it could not be used."""
        if value is None and self.fields.get(key) not in (None, ""):
            self.set_aside(key, why)

        self.fields[key] = value

    def settle_fields(self) -> None:
        """Bring every field that versions 1.0 and 2.0 know to its type."""
        for key in _TEXTS:
            self.settle(key, text_in(self.fields.get(key)), "was not a text")
        for key in _NUMBERS:
            self.settle(key, whole_number_in(self.fields.get(key)), "was not a whole number")
        for key, default in _COUNTERS.items():
            self._settle_counter(key, default)

        self._settle_scripts()
        self._settle_moments()
        self._settle_history()

    def scripts(self) -> list[str]:
        """Return the names in `all_adws`."""
        found = self.fields.get("all_adws")
        return [script for script in found if isinstance(script, str)] if isinstance(found, list) else []

    def moves(self) -> list[JsonObject]:
        """Return the entries of the history that are moves from one state to another."""
        found = self.fields.get("state_history")
        return [entry for entry in found if is_move(entry)] if isinstance(found, list) else []

    def add_move(self, move: JsonObject) -> None:
        """Add the move that a migration makes."""
        self.fields["state_history"] = [*self.moves(), move]

    def _settle_warnings(self) -> None:
        found = self.fields.get("warnings")
        if isinstance(found, list) and all(isinstance(warning, str) for warning in found):
            self.warnings = [str(warning) for warning in found]
        elif found is not None:
            self.set_aside("warnings", "was not a list of texts")

        self.fields.pop("warnings", None)

    def _settle_counter(self, key: str, default: int) -> None:
        value = self.fields.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15:
            self.fields[key] = value
            return

        self.settle(key, None, "was not a count")
        self.fields[key] = default

    def _settle_scripts(self) -> None:
        found = self.fields.get("all_adws")
        if found is not None and self.scripts() != found:
            self.set_aside("all_adws", "was not a list of script names")

        self.fields["all_adws"] = list(self.scripts())

    def _settle_moments(self) -> None:
        fields = self.fields
        born = [moment_in(fields.get(key)) for key in ("created_at", "start_time", "worktree_created_at", "updated_at")]
        changed = [moment_in(fields.get(key)) for key in ("updated_at", "end_time")]
        for key in ("created_at", "updated_at"):
            self.settle(key, moment_in(fields.get(key)), "was not a timestamp")

        fields["created_at"] = next((moment for moment in born if moment), UNKNOWN_MOMENT)
        fields["updated_at"] = next((moment for moment in changed if moment), fields["created_at"])
        if not any(born):
            self.warnings.append("when the workflow was created is not known: no timestamp was recorded")

    def _settle_history(self) -> None:
        found = self.fields.get("state_history")
        entries = found if isinstance(found, list) else [] if found is None else [found]
        strange: list[JsonValue] = [entry for entry in entries if not is_move(entry)]
        clean: list[JsonValue] = [_clean_move(move, self.fields["created_at"]) for move in self.moves()]
        if strange:
            self.fields["state_history"] = strange
            self.set_aside("state_history", "had entries that are not moves")

        self.fields["state_history"] = clean


# --- single values ---------------------------------------------------------------------------------------------


def whole_number_in(value: JsonValue) -> int | None:
    """Return the positive whole number written in *value*: 7, "7" and "#7" are the same."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None

    match = _WHOLE_NUMBER.fullmatch(str(value).strip())
    return (int(match[1]) or None) if match else None


def text_in(value: JsonValue) -> str | None:
    """Return *value* when it is a text."""
    return value if isinstance(value, str) else None


def moment_in(value: JsonValue) -> str | None:
    """Return the timestamp in *value* in our spelling, None when it is not one."""
    if not isinstance(value, str):
        return None
    try:
        return timestamps.to_text(timestamps.parse(value.strip()))
    except (ValueError, OverflowError):
        return None


def shown(value: JsonValue) -> str:
    """Return *value* short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_move(entry: JsonValue) -> TypeGuard[JsonObject]:
    """Say whether *entry* is a move of a history: from, to, and metadata that is an object or missing."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("from"), str)
        and isinstance(entry.get("to"), str)
        and isinstance(entry.get("metadata", {}), (dict, NoneType))
    )


def _clean_move(move: JsonObject, born: JsonValue) -> JsonObject:
    """Return *move* with states in our spelling and a moment that sorts: an empty one becomes the creation."""
    clean: JsonObject = {
        "from": state_named(move["from"]) or move["from"],
        "to": state_named(move["to"]) or move["to"],
        "timestamp": moment_in(move.get("timestamp")) or born,
        "metadata": move.get("metadata") or {},
    }

    return {**clean, **{key: value for key, value in move.items() if key not in clean}}
