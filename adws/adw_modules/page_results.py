"""
What becomes of the results of a chain of calls, such as the pages of an API.

Pure. Of each page the part is taken that `merge_path` leads to, and the parts are put together as `collect` says.
A page that does not have what is asked of it is an error, never left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.steps import COLLECT_STRATEGIES

#: Keys of a path.
MAX_KEYS = 50

APPEND, REPLACE, COLLECT, MERGE = COLLECT_STRATEGIES


def path_problem(path: str) -> str:
    """Return how a sentence about *path* goes on that is none, "" when it is one."""
    keys = path.split(".")
    if path and (len(keys) > MAX_KEYS or not all(key.strip() == key and key for key in keys)):
        return f"is {path[:60]!r} and must be keys with dots between, such as data.items"

    return ""


def at_path(value: JsonValue, path: str) -> JsonValue:
    """Return what *path* leads to in *value*, such as `data.items` or `pages.0.rows`; *value* itself for ""."""
    found, way = value, "the result"
    for key in path.split(".") if path else ():
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise ExpressionError(f"merge_path {path}: there is no {key} in {way}{_has(found)}", name=key)
        way = key if way == "the result" else f"{way}.{key}"

    return found


def part_of_page(strategy: str, result: JsonValue, merge_path: str) -> JsonValue:
    """Return what is kept of one page; raise ExpressionError when *strategy* can do nothing with it."""
    part = at_path(result, merge_path)
    needed = {APPEND: list, MERGE: dict}.get(strategy)
    if needed is not None and not isinstance(part, needed):
        kind = "a list" if needed is list else "a table"
        where = f"at {merge_path} in the result" if merge_path else "as the result"
        why = f"{strategy} needs {kind} {where}, and there is {_kind(part)}: look at merge_path"
        raise ExpressionError(why, name=merge_path)

    return part


def collected(strategy: str, results: Iterable[JsonValue], merge_path: str = "") -> JsonValue:
    """
    Return the results of all pages, in their order, put together; raise ExpressionError when one does not fit.

    Parts that `part_of_page` has taken already are given without *merge_path*.
    """
    parts = (part_of_page(strategy, result, merge_path) for result in results)
    if strategy == COLLECT:
        return list(parts)
    if strategy == APPEND:
        return [item for part in parts for item in part]  # type: ignore[union-attr]  # lists, as part_of_page saw to
    found: JsonValue = {} if strategy == MERGE else None
    for part in parts:
        found = merged(found, part) if strategy == MERGE else part  # type: ignore[arg-type]  # tables, the same

    return found


def merged(first: JsonObject, second: JsonObject) -> JsonObject:
    """Return two tables as one: tables inside are merged, of all else the second one counts."""
    found = dict(first)
    for key, value in second.items():
        before = found.get(key)
        found[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value

    return found


def _kind(value: JsonValue) -> str:
    names = {dict: "a table", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

    return names.get(type(value), "a number")


def _has(value: JsonValue) -> str:
    if isinstance(value, Mapping):
        return f"; it has: {', '.join(list(value)[:10])}" if value else ", it is empty"

    return f", which is {_kind(value)}"
