"""
The filters, tests and functions that expressions may use: these and no others.

Pure. Each gets the budget of the evaluation first and pays for what it goes through.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias
from urllib.parse import quote

from adws.adw_modules.expressions.values import (
    COMPARISONS,
    MAX_BITS,
    MAX_ITEMS,
    MAX_TEXT,
    EvaluationError,
    Missing,
    Rows,
    Value,
    WorkBudget,
    contains,
    equal,
    is_list,
    is_number,
    items_of,
    joined,
    kind_of,
    number_of,
    part_of,
    plain,
    table_of,
    text_of,
    truth_of,
    whole_of,
    written,
)
from adws.adw_modules.identifiers import JsonValue

# The filters of expressions that go through lists and tables.
#
# Pure. Each gets the budget of the evaluation first and pays for what it goes through.


#: A filter, test or function: gets the budget, the value it stands behind (functions: none), and its arguments.
Function: TypeAlias = Callable[..., Value]


def _length(budget: WorkBudget, value: Value) -> Value:
    budget.spend()
    if isinstance(value, str | list | tuple | Rows | Mapping):
        return len(value)

    raise EvaluationError(f"length takes a text, a list or a table, and this is {kind_of(value)}")


def _list(budget: WorkBudget, value: Value) -> Value:
    if isinstance(value, str):
        return list(items_of(budget, list(text_of(value, "list")), "list"))
    if isinstance(value, Mapping):
        return list(table_of(budget, value, "list"))

    return list(items_of(budget, value, "list"))


def _first(budget: WorkBudget, value: Value) -> Value:
    budget.spend()
    return part_of(_a_list(value, "first"), 0, "the list before first")


def _last(budget: WorkBudget, value: Value) -> Value:
    budget.spend()
    return part_of(_a_list(value, "last"), -1, "the list before last")


def _a_list(value: Value, what: str) -> Value:
    if not isinstance(value, str) and not is_list(value):
        raise EvaluationError(f"{what} takes a list, and this is {kind_of(value)}")

    return value


def _reverse(budget: WorkBudget, value: Value) -> Value:
    if isinstance(value, str):
        return text_of(value, "reverse")[::-1]

    return list(items_of(budget, value, "reverse"))[::-1]


def _sort(budget: WorkBudget, value: Value, reverse: Value = False, attribute: Value = None) -> Value:
    items = items_of(budget, value, "sort")
    keys = _keys(budget, items, attribute, "sort")
    # Comparing texts may read each of them to its end, once for each doubling of the list. It goes fast, though.
    rounds = len(items).bit_length()
    budget.spend(rounds * sum(1 + len(key) // 64 if isinstance(key, str) else 1 for key in keys) // 16)
    places = sorted(range(len(items)), key=keys.__getitem__, reverse=truth_of(reverse))  # type: ignore[arg-type]  # numbers, or texts

    return [items[place] for place in places]


def _keys(budget: WorkBudget, items: Sequence[JsonValue], attribute: Value, what: str) -> list[Value]:
    """Return what *items* are compared by; raise unless those are all numbers or all texts."""
    keys = [_attribute(budget, item, attribute) for item in items]
    if not (all(isinstance(key, str) for key in keys) or all(is_number(key) for key in keys)):
        raise EvaluationError(f"{what} compares numbers, or texts, and this list has others or both")

    return keys


def _attribute(budget: WorkBudget, item: JsonValue, path: Value) -> Value:
    """Return what *path*, such as `user.name`, leads to in *item*; the item itself without a path."""
    if path is None:
        return item
    result: Value = item
    for key in text_of(path, "attribute").split("."):
        budget.spend()
        result = part_of(result, int(key) if key.isdecimal() and is_list(result) else key, "an element")

    return result


def _extreme(name: str, choose: Callable[..., int]) -> Function:
    def operate(budget: WorkBudget, value: Value, *others: Value, attribute: Value = None) -> Value:
        items = [value, *others] if others else items_of(budget, value, name)
        if not items:
            raise Missing(f"{name} of an empty list is nothing", name)
        keys = _keys(budget, items, attribute, name)  # type: ignore[arg-type]  # rows are seen to in _keys
        budget.spend(sum(1 + len(key) // 64 if isinstance(key, str) else 1 for key in keys))

        return items[choose(range(len(keys)), key=keys.__getitem__)]

    return operate


def _sum(budget: WorkBudget, value: Value, attribute: Value = None, start: Value = 0) -> Value:
    total = number_of(start, "sum")
    for item in items_of(budget, value, "sum"):
        total = number_of(total + number_of(_attribute(budget, item, attribute), "sum"), "sum")

    return total


def _unique(budget: WorkBudget, value: Value, attribute: Value = None) -> Value:
    result: dict[str, JsonValue] = {}
    for item in items_of(budget, value, "unique"):
        key = plain(budget, _attribute(budget, item, attribute))
        result.setdefault(json.dumps(key, sort_keys=True), item)

    return list(result.values())


def _flatten(budget: WorkBudget, value: Value) -> Value:
    result: list[JsonValue] = []
    for item in items_of(budget, value, "flatten"):
        result.extend(items_of(budget, item, "flatten"))
    items_of(budget, result, "flatten")

    return result


def _map(budget: WorkBudget, value: Value, attribute: Value) -> Value:
    return [_attribute(budget, item, attribute) for item in items_of(budget, value, "map")]  # type: ignore[misc]  # rows too


def _chosen(name: str, *, wanted: bool) -> Function:
    def operate(budget: WorkBudget, value: Value, attribute: Value, test: Value = "true", than: Value = None) -> Value:
        compare = COMPARISONS.get(SIGNS.get(text_of(test, name), ""))
        result: list[JsonValue] = []
        for item in items_of(budget, value, name):
            part = _attribute(budget, item, attribute)
            is_so = truth_of(part) if test == "true" else _compared(compare, budget, part, than, name)
            if is_so is wanted:
                result.append(item)

        return result

    return operate


def _compared(compare: Function | None, budget: WorkBudget, part: Value, than: Value, name: str) -> bool:
    if compare is None:
        raise EvaluationError(f"{name} knows the comparisons {', '.join(SIGNS)}")

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


def _items(budget: WorkBudget, value: Value) -> Value:
    return [[key, item] for key, item in table_of(budget, value, "items").items()]


def _table_keys(budget: WorkBudget, value: Value) -> Value:
    return list(table_of(budget, value, "keys"))


def _table_values(budget: WorkBudget, value: Value) -> Value:
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


#: Digits that round keeps at most.
MAX_DIGITS = 15


# --- texts -----------------------------------------------------------------------------------------------------


def _on_text(name: str, change: Callable[[str], str]) -> Function:
    def operate(budget: WorkBudget, value: Value) -> Value:
        text = text_of(value, name)
        budget.spend_on_text(text)

        return text_of(change(text), name)

    return operate


def _replace(budget: WorkBudget, value: Value, old: Value, new: Value) -> Value:
    text, before, after = (text_of(one, "replace") for one in (value, old, new))
    if not before:
        raise EvaluationError("replace needs the text that is replaced")
    budget.spend_on_text(text)
    size = len(text) + text.count(before) * (len(after) - len(before))
    if size > MAX_TEXT:
        raise EvaluationError(f"replace would make a text of {size} characters, and at most {MAX_TEXT} can be made")

    return text.replace(before, after)


def _split(budget: WorkBudget, value: Value, separator: Value = None) -> Value:
    text = text_of(value, "split")
    between = None if separator is None else text_of(separator, "split")
    if between == "":
        raise EvaluationError("split needs a separator that is not empty")
    budget.spend_on_text(text)
    parts = text.split(between, MAX_ITEMS)
    items_of(budget, parts, "split")

    return list(parts)


def _join(budget: WorkBudget, value: Value, separator: Value = "") -> Value:
    texts = [written(budget, item) for item in items_of(budget, value, "join")]
    return joined(budget, texts, text_of(separator, "join"))


def _from_json(budget: WorkBudget, value: Value) -> Value:
    text = text_of(value, "fromjson")
    budget.spend(1 + len(text) // 4)
    try:
        result = json.loads(text, parse_float=_finite, parse_constant=_finite)
        json.dumps(result, ensure_ascii=False).encode()
    except ValueError as exc:
        raise EvaluationError(f"fromjson cannot read the text as JSON: {exc}") from exc

    return plain(budget, result)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no number of JSON")

    return number


def _to_json(budget: WorkBudget, value: Value) -> Value:
    made = json.dumps(plain(budget, value), ensure_ascii=False, allow_nan=False)
    return text_of(made, "tojson")


# --- numbers ---------------------------------------------------------------------------------------------------


def _int(budget: WorkBudget, value: Value) -> Value:
    budget.spend()
    if isinstance(value, str):
        try:
            value = int(value) if len(value) <= MAX_BITS else math.inf
        except ValueError:
            raise EvaluationError(f"int cannot read {value!r} as a whole number") from None
    if isinstance(value, bool):
        return int(value)

    return whole_of(int(number_of(value, "int")), "int")


def _float(budget: WorkBudget, value: Value) -> Value:
    budget.spend()
    if isinstance(value, str):
        try:
            value = float(value) if len(value) <= MAX_BITS else math.inf
        except ValueError:
            raise EvaluationError(f"float cannot read {value!r} as a number") from None

    return float(number_of(value, "float"))


def _round(budget: WorkBudget, value: Value, precision: Value = 0) -> Value:
    budget.spend()
    digits = whole_of(precision, "round")
    if not 0 <= digits <= MAX_DIGITS:
        raise EvaluationError(f"round keeps 0 to {MAX_DIGITS} digits")
    number = round(number_of(value, "round"), digits)

    return int(number) if digits == 0 else number


def _abs(budget: WorkBudget, value: Value) -> Value:
    budget.spend()
    return abs(number_of(value, "abs"))


def _range(budget: WorkBudget, start: Value, stop: Value = None, step: Value = 1) -> Value:
    first, last = (0, start) if stop is None else (start, stop)
    width = whole_of(step, "range")
    if width == 0:
        raise EvaluationError("range cannot go on by 0")
    numbers = range(whole_of(first, "range"), whole_of(last, "range"), width)
    # Not len(): a range may be longer than any list, and then len() fails.
    if numbers and abs(numbers[-1] - numbers[0]) // abs(width) >= MAX_ITEMS:
        raise EvaluationError(f"range makes at most {MAX_ITEMS} numbers")
    budget.spend(1 + len(numbers))

    return list(numbers)


FILTERS: Mapping[str, Function] = MappingProxyType(
    {
        **LIST_FILTERS,
        "abs": _abs,
        "capitalize": _on_text("capitalize", str.capitalize),
        "float": _float,
        "fromjson": _from_json,
        "int": _int,
        "join": _join,
        "lower": _on_text("lower", str.lower),
        "quote": lambda budget, value: shlex.quote(written(budget, value)),
        "replace": _replace,
        "round": _round,
        "split": _split,
        "string": written,
        "tojson": _to_json,
        "trim": _on_text("trim", str.strip),
        "upper": _on_text("upper", str.upper),
        "urlencode": lambda budget, value: quote(written(budget, value), safe=""),
    }
)
#: Filters that test whether their value is there; `expressions.expressions` evaluates them.
DEFAULTS = ("default", "d")


# --- tests -----------------------------------------------------------------------------------------------------


def _divisible(budget: WorkBudget, value: Value, by: Value) -> bool:
    budget.spend()
    divisor = whole_of(by, "divisibleby")
    if divisor == 0:
        raise EvaluationError("divisibleby 0 cannot be said")

    return whole_of(value, "divisibleby") % divisor == 0


def _is(check: Callable[[object], bool]) -> Function:
    def operate(budget: WorkBudget, value: Value) -> bool:
        budget.spend()
        return check(value)

    return operate


TESTS: Mapping[str, Function] = MappingProxyType(
    {
        "boolean": _is(lambda value: isinstance(value, bool)),
        "divisibleby": _divisible,
        "empty": lambda budget, value: LIST_FILTERS["length"](budget, value) == 0,
        "even": lambda budget, value: _divisible(budget, value, 2),
        "false": _is(lambda value: value is False),
        "float": _is(lambda value: isinstance(value, float)),
        "in": contains,
        "integer": _is(lambda value: isinstance(value, int) and not isinstance(value, bool)),
        "list": _is(is_list),
        "lower": _is(lambda value: isinstance(value, str) and value.islower()),
        "mapping": _is(lambda value: isinstance(value, Mapping)),
        "none": _is(lambda value: value is None),
        "number": _is(is_number),
        "odd": lambda budget, value: not _divisible(budget, value, 2),
        "sequence": _is(is_list),
        "string": _is(lambda value: isinstance(value, str)),
        "true": _is(lambda value: value is True),
        "equalto": equal,
        **{name: COMPARISONS[sign] for name, sign in SIGNS.items() if name.isalpha()},
    }
)
#: Tests of whether a value is there; `expressions.expressions` evaluates them.
PRESENCE = ("defined", "undefined")


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "len": LIST_FILTERS["length"],
        "max": FILTERS["max"],
        "min": FILTERS["min"],
        "range": _range,
    }
)
