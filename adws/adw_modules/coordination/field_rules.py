"""
Which values a person may give a field: what the type alone does not say.

Pure. A document is read as it is, whatever an older tool wrote into it; only `adw state set` asks here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from adws.adw_modules.cost_entries import money
from adws.adw_modules.errors import UsageError
from adws.adw_modules.json_value import JsonValue
from adws.adw_modules.repository_name import normalise

#: Largest number of an issue, of a pull request and of a count.
LARGEST = 2**31 - 1
LARGEST_PORT = 65535
#: What git does not take in the name of a branch (git help check-ref-format).
_NOT_IN_A_BRANCH = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^@$|^-|^/|/$|(?:^|/)\.|\.$|\.lock(?:/|$)|^refs/", re.ASCII
)


class Rule(NamedTuple):
    """What one field may hold."""

    allows: Callable[[JsonValue], bool]
    must_be: str  #: the end of the sentence `FIELD must be ...`


def check(key: str, value: JsonValue) -> None:
    """Raise UsageError when the field *key* may not hold *value*; a field without a rule takes what its type takes."""
    rule = RULES.get(key)
    if rule is not None and not rule.allows(value):
        raise UsageError(f"{key} must be {rule.must_be}")


def _whole(least: int, most: int, *, or_null: bool = True) -> Rule:
    def allows(value: JsonValue) -> bool:
        if value is None:
            return or_null
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return Rule(allows, f"a whole number from {least} to {most}{', or null' if or_null else ''}")


def _is_minutes(value: JsonValue) -> bool:
    return value is None or (_is_number(value) and value > 0)


def _is_cap(value: JsonValue) -> bool:
    return value is None or money(value) is not None


def _is_cost(value: JsonValue) -> bool:
    """Say whether the amounts are amounts; the model looks at the names."""
    if not isinstance(value, dict):
        return False
    tables = [value.get(name, {}) for name in ("by_phase", "by_provider", "token_counts")]
    amounts = [value.get("total_usd", 0), *(amount for table in tables for amount in _amounts(table))]

    return all(_is_number(amount) and amount >= 0 for amount in amounts)


def _amounts(table: JsonValue) -> list[JsonValue]:
    return list(table.values()) if isinstance(table, dict) else [None]


def _is_number(value: JsonValue) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_branch(value: JsonValue) -> bool:
    return value is None or (isinstance(value, str) and value != "" and _NOT_IN_A_BRANCH.search(value) is None)


def _is_directory(value: JsonValue) -> bool:
    return value is None or (isinstance(value, str) and value.startswith("/") and value.isprintable())


def _is_repository(value: JsonValue) -> bool:
    try:
        return isinstance(value, str) and normalise(value) is not None
    except UsageError:
        return False


#: Field -> what it may hold.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "issue_number": _whole(1, LARGEST),
        "pr_number": _whole(1, LARGEST),
        "backend_port": _whole(1, LARGEST_PORT),
        "frontend_port": _whole(1, LARGEST_PORT),
        "max_reworks": _whole(0, LARGEST, or_null=False),
        "max_total_attempts": _whole(1, LARGEST),
        "max_minutes": Rule(_is_minutes, "a number above 0, or null"),
        "max_cost_usd": Rule(_is_cap, "a number of US dollars from 0 up, or null"),
        "pr_merged": Rule(lambda value: isinstance(value, bool), "true or false"),
        "cost": Rule(_is_cost, 'an object of amounts of 0 or more, such as {"total_usd": 1.5}'),
        "branch_name": Rule(_is_branch, "the name of a branch as git takes it, or null"),
        "worktree_path": Rule(_is_directory, "an absolute path, or null"),
        "repository": Rule(_is_repository, "owner/name, the address of a repository, or empty for the one of the home"),
    }
)
