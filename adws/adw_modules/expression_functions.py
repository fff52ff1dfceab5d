"""
The filters, tests and functions that expressions may use: these and no others.

Pure. Each gets the budget of the evaluation first and pays for what it goes through.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import quote

from adws.adw_modules.expression_lists import LIST_FILTERS, SIGNS, Function
from adws.adw_modules.expression_values import (
    COMPARISONS,
    MAX_BITS,
    MAX_ITEMS,
    MAX_TEXT,
    Budget,
    Trouble,
    Value,
    contains,
    equal,
    is_list,
    is_number,
    items_of,
    joined,
    number_of,
    plain,
    text_of,
    whole_of,
    written,
)

#: Digits that round keeps at most.
MAX_DIGITS = 15


# --- texts -----------------------------------------------------------------------------------------------------


def _on_text(name: str, change: Callable[[str], str]) -> Function:
    def operate(budget: Budget, value: Value) -> Value:
        text = text_of(value, name)
        budget.spend_on_text(text)

        return text_of(change(text), name)

    return operate


def _replace(budget: Budget, value: Value, old: Value, new: Value) -> Value:
    text, before, after = (text_of(one, "replace") for one in (value, old, new))
    if not before:
        raise Trouble("replace needs the text that is replaced")
    budget.spend_on_text(text)
    size = len(text) + text.count(before) * (len(after) - len(before))
    if size > MAX_TEXT:
        raise Trouble(f"replace would make a text of {size} characters, and at most {MAX_TEXT} can be made")

    return text.replace(before, after)


def _split(budget: Budget, value: Value, separator: Value = None) -> Value:
    text = text_of(value, "split")
    between = None if separator is None else text_of(separator, "split")
    if between == "":
        raise Trouble("split needs a separator that is not empty")
    budget.spend_on_text(text)
    parts = text.split(between, MAX_ITEMS)
    items_of(budget, parts, "split")

    return list(parts)


def _join(budget: Budget, value: Value, separator: Value = "") -> Value:
    texts = [written(budget, item) for item in items_of(budget, value, "join")]
    return joined(budget, texts, text_of(separator, "join"))


def _from_json(budget: Budget, value: Value) -> Value:
    text = text_of(value, "fromjson")
    budget.spend(1 + len(text) // 4)
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
        json.dumps(found, ensure_ascii=False).encode()
    except ValueError as exc:
        raise Trouble(f"fromjson cannot read the text as JSON: {exc}") from exc

    return plain(budget, found)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no number of JSON")

    return number


def _to_json(budget: Budget, value: Value) -> Value:
    made = json.dumps(plain(budget, value), ensure_ascii=False, allow_nan=False)
    return text_of(made, "tojson")


# --- numbers ---------------------------------------------------------------------------------------------------


def _int(budget: Budget, value: Value) -> Value:
    budget.spend()
    if isinstance(value, str):
        try:
            value = int(value) if len(value) <= MAX_BITS else math.inf
        except ValueError:
            raise Trouble(f"int cannot read {value!r} as a whole number") from None
    if isinstance(value, bool):
        return int(value)

    return whole_of(int(number_of(value, "int")), "int")


def _float(budget: Budget, value: Value) -> Value:
    budget.spend()
    if isinstance(value, str):
        try:
            value = float(value) if len(value) <= MAX_BITS else math.inf
        except ValueError:
            raise Trouble(f"float cannot read {value!r} as a number") from None

    return float(number_of(value, "float"))


def _round(budget: Budget, value: Value, precision: Value = 0) -> Value:
    budget.spend()
    digits = whole_of(precision, "round")
    if not 0 <= digits <= MAX_DIGITS:
        raise Trouble(f"round keeps 0 to {MAX_DIGITS} digits")
    number = round(number_of(value, "round"), digits)

    return int(number) if digits == 0 else number


def _abs(budget: Budget, value: Value) -> Value:
    budget.spend()
    return abs(number_of(value, "abs"))


def _range(budget: Budget, start: Value, stop: Value = None, step: Value = 1) -> Value:
    first, last = (0, start) if stop is None else (start, stop)
    width = whole_of(step, "range")
    if width == 0:
        raise Trouble("range cannot go on by 0")
    numbers = range(whole_of(first, "range"), whole_of(last, "range"), width)
    # Not len(): a range may be longer than any list, and then len() fails.
    if numbers and abs(numbers[-1] - numbers[0]) // abs(width) >= MAX_ITEMS:
        raise Trouble(f"range makes at most {MAX_ITEMS} numbers")
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
#: Filters that look at whether their value is there; `expression_nodes` does them.
DEFAULTS = ("default", "d")


# --- tests -----------------------------------------------------------------------------------------------------


def _divisible(budget: Budget, value: Value, by: Value) -> bool:
    budget.spend()
    divisor = whole_of(by, "divisibleby")
    if divisor == 0:
        raise Trouble("divisibleby 0 cannot be said")

    return whole_of(value, "divisibleby") % divisor == 0


def _is(check: Callable[[object], bool]) -> Function:
    def operate(budget: Budget, value: Value) -> bool:
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
#: Tests of whether a value is there; `expression_nodes` does them.
PRESENCE = ("defined", "undefined")


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "len": LIST_FILTERS["length"],
        "max": FILTERS["max"],
        "min": FILTERS["min"],
        "range": _range,
    }
)
