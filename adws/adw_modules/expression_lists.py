"""
The filters of expressions that go through lists and tables.

Pure. Each gets the budget of the evaluation first and pays for what it goes through.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from adws.adw_modules.expression_values import (
    COMPARISONS,
    Budget,
    Missing,
    Rows,
    Trouble,
    Value,
    is_list,
    is_number,
    items_of,
    kind_of,
    number_of,
    part_of,
    plain,
    table_of,
    text_of,
    truth_of,
)
from adws.adw_modules.json_value import JsonValue

#: A filter, test or function: gets the budget, the value it stands behind (functions: none), and its arguments.
Function: TypeAlias = Callable[..., Value]


def _length(budget: Budget, value: Value) -> Value:
    budget.spend()
    if isinstance(value, str | list | tuple | Rows | Mapping):
        return len(value)

    raise Trouble(f"length takes a text, a list or a table, and this is {kind_of(value)}")


def _list(budget: Budget, value: Value) -> Value:
    if isinstance(value, str):
        return list(items_of(budget, list(text_of(value, "list")), "list"))
    if isinstance(value, Mapping):
        return list(table_of(budget, value, "list"))

    return list(items_of(budget, value, "list"))


def _first(budget: Budget, value: Value) -> Value:
    budget.spend()
    return part_of(_a_list(value, "first"), 0, "the list before first")


def _last(budget: Budget, value: Value) -> Value:
    budget.spend()
    return part_of(_a_list(value, "last"), -1, "the list before last")


def _a_list(value: Value, what: str) -> Value:
    if not isinstance(value, str) and not is_list(value):
        raise Trouble(f"{what} takes a list, and this is {kind_of(value)}")

    return value


def _reverse(budget: Budget, value: Value) -> Value:
    if isinstance(value, str):
        return text_of(value, "reverse")[::-1]

    return list(items_of(budget, value, "reverse"))[::-1]


def _sort(budget: Budget, value: Value, reverse: Value = False, attribute: Value = None) -> Value:
    items = items_of(budget, value, "sort")
    keys = _keys(budget, items, attribute, "sort")
    # Comparing texts may read each of them to its end, once for each doubling of the list. It goes fast, though.
    rounds = len(items).bit_length()
    budget.spend(rounds * sum(1 + len(key) // 64 if isinstance(key, str) else 1 for key in keys) // 16)
    places = sorted(range(len(items)), key=keys.__getitem__, reverse=truth_of(reverse))  # type: ignore[arg-type]  # numbers, or texts

    return [items[place] for place in places]


def _keys(budget: Budget, items: Sequence[JsonValue], attribute: Value, what: str) -> list[Value]:
    """Return what *items* are compared by; raise unless those are all numbers or all texts."""
    keys = [_attribute(budget, item, attribute) for item in items]
    if not (all(isinstance(key, str) for key in keys) or all(is_number(key) for key in keys)):
        raise Trouble(f"{what} compares numbers, or texts, and this list has others or both")

    return keys


def _attribute(budget: Budget, item: JsonValue, path: Value) -> Value:
    """Return what *path*, such as `user.name`, leads to in *item*; the item itself without a path."""
    if path is None:
        return item
    found: Value = item
    for key in text_of(path, "attribute").split("."):
        budget.spend()
        found = part_of(found, int(key) if key.isdecimal() and is_list(found) else key, "an element")

    return found


def _extreme(name: str, choose: Callable[..., int]) -> Function:
    def operate(budget: Budget, value: Value, *others: Value, attribute: Value = None) -> Value:
        items = [value, *others] if others else items_of(budget, value, name)
        if not items:
            raise Missing(f"{name} of an empty list is nothing", name)
        keys = _keys(budget, items, attribute, name)  # type: ignore[arg-type]  # rows are seen to in _keys
        budget.spend(sum(1 + len(key) // 64 if isinstance(key, str) else 1 for key in keys))

        return items[choose(range(len(keys)), key=keys.__getitem__)]

    return operate


def _sum(budget: Budget, value: Value, attribute: Value = None, start: Value = 0) -> Value:
    total = number_of(start, "sum")
    for item in items_of(budget, value, "sum"):
        total = number_of(total + number_of(_attribute(budget, item, attribute), "sum"), "sum")

    return total


def _unique(budget: Budget, value: Value, attribute: Value = None) -> Value:
    found: dict[str, JsonValue] = {}
    for item in items_of(budget, value, "unique"):
        key = plain(budget, _attribute(budget, item, attribute))
        found.setdefault(json.dumps(key, sort_keys=True), item)

    return list(found.values())


def _flatten(budget: Budget, value: Value) -> Value:
    found: list[JsonValue] = []
    for item in items_of(budget, value, "flatten"):
        found.extend(items_of(budget, item, "flatten"))
    items_of(budget, found, "flatten")

    return found


def _map(budget: Budget, value: Value, attribute: Value) -> Value:
    return [_attribute(budget, item, attribute) for item in items_of(budget, value, "map")]  # type: ignore[misc]  # rows too


def _chosen(name: str, *, wanted: bool) -> Function:
    def operate(budget: Budget, value: Value, attribute: Value, test: Value = "true", than: Value = None) -> Value:
        compare = COMPARISONS.get(SIGNS.get(text_of(test, name), ""))
        found: list[JsonValue] = []
        for item in items_of(budget, value, name):
            part = _attribute(budget, item, attribute)
            is_so = truth_of(part) if test == "true" else _compared(compare, budget, part, than, name)
            if is_so is wanted:
                found.append(item)

        return found

    return operate


def _compared(compare: Function | None, budget: Budget, part: Value, than: Value, name: str) -> bool:
    if compare is None:
        raise Trouble(f"{name} knows the comparisons {', '.join(SIGNS)}")

    return truth_of(compare(budget, part, than))


#: Comparisons that are named in a text -> the operator.
SIGNS: Mapping[str, str] = MappingProxyType(
    {
        "==": "eq",
        "eq": "eq",
        "equalto": "eq",
        "!=": "ne",
        "ne": "ne",
        "<": "lt",
        "lt": "lt",
        "<=": "lteq",
        "le": "lteq",
        ">": "gt",
        "gt": "gt",
        ">=": "gteq",
        "ge": "gteq",
        "in": "in",
    }
)


def _items(budget: Budget, value: Value) -> Value:
    return [[key, item] for key, item in table_of(budget, value, "items").items()]


def _table_keys(budget: Budget, value: Value) -> Value:
    return list(table_of(budget, value, "keys"))


def _table_values(budget: Budget, value: Value) -> Value:
    return list(table_of(budget, value, "values").values())


LIST_FILTERS: Mapping[str, Function] = MappingProxyType(
    {
        "count": _length,
        "first": _first,
        "flatten": _flatten,
        "items": _items,
        "keys": _table_keys,
        "last": _last,
        "length": _length,
        "list": _list,
        "map": _map,
        "max": _extreme("max", max),
        "min": _extreme("min", min),
        "rejectattr": _chosen("rejectattr", wanted=False),
        "reverse": _reverse,
        "selectattr": _chosen("selectattr", wanted=True),
        "sort": _sort,
        "sum": _sum,
        "unique": _unique,
        "values": _table_values,
    }
)
