"""
What the facts that the ledger keeps of an effect mean.

Pure. Documents of older versions call them by other names: all of these are known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from adws.adw_modules.interfaces_resources import Effect
from adws.adw_modules.json_value import JsonValue


def name_of(effect: Effect) -> str:
    """Return an effect as people call it."""
    if effect.kind == "pull_request":
        number = number_of(effect.undo)
        return f"#{number}" if number is not None else f"of {branch_of(effect.undo) or effect.key}"

    named = path_of(effect.undo) or branch_of(effect.undo) or effect.undo.get("label") or effect.undo.get("ref")

    return str(named or effect.key)


def path_of(facts: Mapping[str, JsonValue]) -> str:
    """Return where a worktree or directory is, "" when that is not recorded."""
    return _text(facts, "path", "worktree_path")


def branch_of(facts: Mapping[str, JsonValue]) -> str:
    """Return the name of a branch."""
    return _text(facts, "branch", "branch_name", "head")


def commit_of(facts: Mapping[str, JsonValue]) -> str:
    """Return the commit that adw last put there, "" when none is recorded."""
    return _text(facts, "sha", "commit", "head_sha")


def number_of(facts: Mapping[str, JsonValue]) -> int | None:
    """Return the number of an issue or pull request."""
    found = (facts.get(name) for name in ("pr_number", "number"))

    return next((number for number in found if isinstance(number, int)), None)


def _text(facts: Mapping[str, JsonValue], *names: str) -> str:
    found = (facts.get(name) for name in names)

    return next((text for text in found if isinstance(text, str) and text), "")
