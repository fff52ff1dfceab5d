"""
The values of expressions and every operation on them: operators, filters, tests and functions.

Pure. Values are JSON values and rows read on demand; no other type has operators here, and no value has attributes or
methods. Each operation pays from a fixed budget before it touches data: that is the deadline of an expression, and it
does not depend on the load of the machine.
"""

from __future__ import annotations

import json
import math
import operator
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from adws.adw_modules.identifiers import JsonValue

#: Work units of one evaluation, which take at most a second on a slow machine.
MAX_WORK = 300_000
#: Maximum characters of a text taken or made.
MAX_TEXT = 1_000_000
#: Maximum elements of a list taken or made.
MAX_ITEMS = 100_000
#: Maximum size of a whole number taken or made.
MAX_BITS = 512
#: Maximum nesting of lists and tables.
MAX_DEPTH = 100
#: Maximum digits that round keeps.
MAX_DIGITS = 15
#: Characters per work unit.
_CHARACTERS = 64


class Rows(Sequence[JsonValue]):
    """
    A long list that is read on demand, such as the results of a loop.

    Expressions can read its length and its elements; a template that consists of it alone returns it unchanged.
    """

    @abstractmethod
    def __len__(self) -> int: ...


Value: TypeAlias = JsonValue | Rows
#: An operator, filter, test or function: takes the budget, the value it applies to (except functions), and arguments.
Function: TypeAlias = Callable[..., Value]


class EvaluationError(Exception):
    """The reason why an expression has no value; `expressions` turns it into an ExpressionError with the expression."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(why)
        self.why, self.name = why, name


class Missing(EvaluationError):
    """A name, key or element does not exist."""


class WorkBudget:
    """The remaining work units of one evaluation."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_WORK) -> None:
        self.left = left

    def spend(self, units: int = 1) -> None:
        """Deduct *units*; raise EvaluationError if they are not left."""
        self.left -= units
        if self.left < 0:
            raise EvaluationError("it takes too much work: let it look at less")

    def spend_on_text(self, text: str) -> None:
        """Pay for reading all of *text*."""
        self.spend(1 + len(text) // _CHARACTERS)


# --- types of values -------------------------------------------------------------------------------------------


def kind_of(value: object) -> str:
    """Return the kind of *value* as used in messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, Mapping):
        return "a table"
    if is_list(value):
        return "a list"

    return "a number" if is_number(value) else f"no JSON value ({type(value).__name__})"


def is_number(value: object) -> bool:
    """Return whether *value* is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: object) -> bool:
    """Return whether *value* is a list or rows."""
    return isinstance(value, list | tuple | Rows)


def text_of(value: object, what: str) -> str:
    """Return *value* if it is a text within the size limit; *what* names the operation in the error."""
    if not isinstance(value, str):
        raise EvaluationError(f"{what} takes a text, and this is {kind_of(value)}")
    if len(value) > MAX_TEXT:
        raise EvaluationError(f"{what} takes a text of at most {MAX_TEXT} characters, and this one has {len(value)}")

    return value


def whole_of(value: object, what: str) -> int:
    """Return *value* if it is a whole number within the size limit; *what* names the operation in the error."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise EvaluationError(f"{what} takes a whole number, and this is {kind_of(value)}")

    return int(number_of(value, what))


def number_of(value: object, what: str) -> int | float:
    """Return *value* if it is a finite number within the size limit; *what* names the operation in the error."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise EvaluationError(f"{what} takes numbers, and this is {kind_of(value)}")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise EvaluationError(f"a whole number of more than {MAX_BITS} bits cannot be worked on")
    if not math.isfinite(value):
        raise EvaluationError("a number is too large, or none")

    return value


def items_of(budget: WorkBudget, value: object, what: str) -> Sequence[JsonValue]:
    """Return *value* if it is a list within the size limit, and pay for reading it; *what* is for the error."""
    if not isinstance(value, list | tuple | Rows):
        raise EvaluationError(f"{what} takes a list, and this is {kind_of(value)}")
    if len(value) > MAX_ITEMS:
        raise EvaluationError(f"{what} takes a list of at most {MAX_ITEMS} elements, and this one has {len(value)}")
    budget.spend(1 + len(value))

    return value


def table_of(budget: WorkBudget, value: object, what: str) -> Mapping[str, JsonValue]:
    """Return *value* if it is a table, and pay for reading it; *what* is for the error."""
    if not isinstance(value, Mapping):
        raise EvaluationError(f"{what} takes a table, and this is {kind_of(value)}")
    budget.spend(1 + len(value))

    return value


def plain(budget: WorkBudget, value: object, depth: int = MAX_DEPTH) -> JsonValue:
    """Return *value* as JSON with rows read into lists, and pay for its content; raise if it is not JSON."""
    budget.spend()
    if isinstance(value, str):
        budget.spend_on_text(value)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth == 0:
        raise EvaluationError(f"lists and tables are more than {MAX_DEPTH} deep")
    if isinstance(value, list | tuple | Rows):
        return [plain(budget, item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        return {text_of(key, "a key"): plain(budget, item, depth - 1) for key, item in value.items()}

    raise EvaluationError(f"there is {kind_of(value)} in it")


def truth_of(value: object) -> bool:
    """
    Return whether *value* is true: a number other than 0, or a list or table that is not empty.

    The text true is true and the text false is false; any other text raises EvaluationError.
    """
    if isinstance(value, str):
        word = value.strip().lower() if len(value) < len("false") * 4 else ""
        if word not in ("true", "false"):
            short = value if len(value) <= 40 else f"{value[:37]}..."
            raise EvaluationError(f"the text {short!r} is neither true nor false: compare it with something")
        return word == "true"
    if isinstance(value, list | tuple | Rows | Mapping):
        return len(value) > 0
    if value is None or isinstance(value, bool | int | float):
        return bool(value)

    raise EvaluationError(f"{kind_of(value)} is neither true nor false")


def written(budget: WorkBudget, value: object) -> str:
    """Return *value* as inserted into a text: texts unchanged, all else as JSON."""
    if isinstance(value, str):
        budget.spend_on_text(value)
        return text_of(value, "a text around it")

    return text_of(json.dumps(plain(budget, value), ensure_ascii=False, allow_nan=False), "a text around it")


def joined(budget: WorkBudget, parts: Sequence[str], separator: str = "") -> str:
    """Return *parts* as one text."""
    size = sum(map(len, parts)) + len(separator) * max(0, len(parts) - 1)
    if size > MAX_TEXT:
        raise EvaluationError(f"the text would have {size} characters, and at most {MAX_TEXT} can be made")
    budget.spend(1 + size // _CHARACTERS)

    return separator.join(parts)


# --- parts of values -------------------------------------------------------------------------------------------


def part_of(value: Value, key: Value, where: str) -> Value:
    """Return the element or key *key* of *value*; *where* names *value* in the error."""
    if isinstance(value, Mapping) and isinstance(key, str) and key in value:
        return value[key]
    if isinstance(value, str | list | tuple | Rows) and isinstance(key, int) and not isinstance(key, bool):
        if -len(value) <= key < len(value):
            return value[key]
        raise Missing(f"{where} has {len(value)} elements, and no [{key}]", str(key))
    named = f"[{key}]" if is_number(key) else key if isinstance(key, str) and len(key) <= 60 else kind_of(key)
    if not isinstance(value, Mapping):
        raise Missing(f"{where} is {kind_of(value)}, which has no {named}", str(named))
    known = ", ".join(list(value)[:10]) + (", ..." if len(value) > 10 else "")
    raise Missing(f"there is no {named} in {where}{f'; it has: {known}' if value else ', it is empty'}", str(key))


def slice_of(budget: WorkBudget, value: Value, bounds: Sequence[Value]) -> Value:
    """Return a slice of a list or a text."""
    start, stop, step = (None if bound is None else whole_of(bound, "a slice") for bound in bounds)
    if step == 0:
        raise EvaluationError("a slice cannot go on by 0")
    if isinstance(value, str):
        return text_of(value, "a slice")[start:stop:step]

    return list(items_of(budget, value, "a slice"))[start:stop:step]


def _attribute(budget: WorkBudget, item: JsonValue, path: Value) -> Value:
    """Return the value at *path*, such as `user.name`, in *item*, or the item itself without a path."""
    result: Value = item
    for key in () if path is None else text_of(path, "attribute").split("."):
        budget.spend()
        result = part_of(result, int(key) if key.isdecimal() and is_list(result) else key, "an element")

    return result


# --- operators and comparisons ---------------------------------------------------------------------------------


def _add(budget: WorkBudget, left: Value, right: Value) -> Value:
    if isinstance(left, str) and isinstance(right, str):
        return joined(budget, (left, right))
    if is_list(left) and is_list(right):
        both = [*items_of(budget, left, "+"), *items_of(budget, right, "+")]
        items_of(budget, both, "+")
        return both

    return number_of(number_of(left, "+") + number_of(right, "+"), "+")


def _arithmetic(sign: str, compute: Callable[[Any, Any], float]) -> Function:
    def operate(_budget: WorkBudget, left: Value, right: Value) -> Value:
        first, second = number_of(left, sign), number_of(right, sign)
        if sign in ("/", "//", "%") and second == 0:
            raise EvaluationError(f"{sign} divides by 0")

        return number_of(compute(first, second), sign)

    return operate


def _power(_budget: WorkBudget, left: Value, right: Value) -> Value:
    base, exponent = number_of(left, "**"), number_of(right, "**")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise EvaluationError(f"a whole number of more than {MAX_BITS} bits cannot be made")
    made = base**exponent
    if isinstance(made, complex):
        raise EvaluationError("a root of a number below 0 is no number")

    return number_of(made, "**")


def _equal(budget: WorkBudget, left: Value, right: Value) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        budget.spend_on_text(left)
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right  # true is not 1
    if is_list(left) or isinstance(left, Mapping):
        return plain(budget, left) == plain(budget, right)

    return left == right


def _ordered(sign: str, compare: Callable[[Any, Any], bool]) -> Function:
    def operate(budget: WorkBudget, left: Value, right: Value) -> Value:
        if isinstance(left, str) and isinstance(right, str):
            budget.spend_on_text(left)
        elif not (is_number(left) and is_number(right)):
            raise EvaluationError(
                f"{sign} compares numbers, or texts; here it has {kind_of(left)} and {kind_of(right)}"
            )

        return compare(left, right)

    return operate


def _contains(budget: WorkBudget, item: Value, whole: Value) -> bool:
    """Return whether *item* is in a list, a key of a table or a part of a text."""
    if isinstance(whole, str):
        budget.spend_on_text(whole)
        return text_of(item, "in a text") in whole
    if isinstance(whole, Mapping):
        return isinstance(item, str) and item in whole

    return any(_equal(budget, item, other) for other in items_of(budget, whole, "in"))


#: Operators by the name of Jinja2's syntax node.
OPERATORS: Mapping[str, Function] = {
    "Add": _add,
    "Sub": _arithmetic("-", operator.sub),
    "Mul": _arithmetic("*", operator.mul),
    "Div": _arithmetic("/", operator.truediv),
    "FloorDiv": _arithmetic("//", operator.floordiv),
    "Mod": _arithmetic("%", operator.mod),
    "Pow": _power,
}
#: Unary operators by the name of the node.
SIGNED: Mapping[str, Callable[[Value], Value]] = {
    "Neg": lambda value: -number_of(value, "-"),
    "Pos": lambda value: number_of(value, "+"),
    "Not": lambda value: not truth_of(value),
}
#: Comparisons by the name of Jinja2's operator.
COMPARISONS: Mapping[str, Function] = {
    "eq": _equal,
    "ne": lambda budget, left, right: not _equal(budget, left, right),
    "lt": _ordered("<", operator.lt),
    "lteq": _ordered("<=", operator.le),
    "gt": _ordered(">", operator.gt),
    "gteq": _ordered(">=", operator.ge),
    "in": _contains,
    "notin": lambda budget, left, right: not _contains(budget, left, right),
}
#: Names of comparisons in filters and tests -> the operator.
SIGNS: Mapping[str, str] = {
    **dict.fromkeys(("==", "eq", "equalto"), "eq"),
    **dict.fromkeys(("!=", "ne"), "ne"),
    **dict.fromkeys(("<", "lt"), "lt"),
    **dict.fromkeys(("<=", "le"), "lteq"),
    **dict.fromkeys((">", "gt"), "gt"),
    **dict.fromkeys((">=", "ge"), "gteq"),
    "in": "in",
}


# --- filters of lists and tables -------------------------------------------------------------------------------


def _length(budget: WorkBudget, value: Value) -> int:
    budget.spend()
    if isinstance(value, str | list | tuple | Rows | Mapping):
        return len(value)

    raise EvaluationError(f"length takes a text, a list or a table, and this is {kind_of(value)}")


def _list(budget: WorkBudget, value: Value) -> Value:
    if isinstance(value, str):
        value = list(text_of(value, "list"))
    elif isinstance(value, Mapping):
        return list(table_of(budget, value, "list"))

    return list(items_of(budget, value, "list"))


def _end(name: str, index: int) -> Function:
    def operate(budget: WorkBudget, value: Value) -> Value:
        budget.spend()
        if not isinstance(value, str) and not is_list(value):
            raise EvaluationError(f"{name} takes a list, and this is {kind_of(value)}")

        return part_of(value, index, f"the list before {name}")

    return operate


def _reverse(budget: WorkBudget, value: Value) -> Value:
    if isinstance(value, str):
        return text_of(value, "reverse")[::-1]

    return list(items_of(budget, value, "reverse"))[::-1]


def _keys(budget: WorkBudget, items: Sequence[Any], attribute: Value, what: str) -> tuple[list[Any], int]:
    """Return the sort keys of *items* and the work of one pass; raise unless all are numbers or all are texts."""
    keys = [_attribute(budget, item, attribute) for item in items]
    if not (all(isinstance(key, str) for key in keys) or all(map(is_number, keys))):
        raise EvaluationError(f"{what} compares numbers, or texts, and this list has others or both")

    return keys, sum(1 + len(key) // _CHARACTERS if isinstance(key, str) else 1 for key in keys)


def _sort(budget: WorkBudget, value: Value, reverse: Value = False, attribute: Value = None) -> Value:
    items = items_of(budget, value, "sort")
    keys, work = _keys(budget, items, attribute, "sort")
    # Comparing texts may read each to its end, once per doubling of the list, but a comparison is cheap.
    budget.spend(len(items).bit_length() * work // 16)
    places = sorted(range(len(items)), key=keys.__getitem__, reverse=truth_of(reverse))

    return [items[place] for place in places]


def _extreme(name: str, choose: Callable[..., int]) -> Function:
    def operate(budget: WorkBudget, value: Value, *others: Value, attribute: Value = None) -> Value:
        items: Sequence[Any] = [value, *others] if others else items_of(budget, value, name)
        if not items:
            raise Missing(f"{name} of an empty list is nothing", name)
        keys, work = _keys(budget, items, attribute, name)
        budget.spend(work)
        result: Value = items[choose(range(len(keys)), key=keys.__getitem__)]

        return result

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
    return [_attribute(budget, item, attribute) for item in items_of(budget, value, "map")]  # type: ignore[misc]  # elements may be rows


def _chosen(name: str, *, wanted: bool) -> Function:
    def operate(budget: WorkBudget, value: Value, attribute: Value, test: Value = "true", than: Value = None) -> Value:
        compare = COMPARISONS.get(SIGNS.get(text_of(test, name), ""))
        if compare is None and test != "true":
            raise EvaluationError(f"{name} knows the comparisons {', '.join(SIGNS)}")
        result: list[JsonValue] = []
        for item in items_of(budget, value, name):
            part = _attribute(budget, item, attribute)
            if truth_of(compare(budget, part, than) if compare is not None else part) is wanted:
                result.append(item)

        return result

    return operate


# --- filters of texts and numbers ------------------------------------------------------------------------------


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
    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:40]} is no number of JSON")
        return number

    text = text_of(value, "fromjson")
    budget.spend(1 + len(text) // 4)
    try:
        result = json.loads(text, parse_float=finite, parse_constant=finite)
        json.dumps(result, ensure_ascii=False).encode()
    except ValueError as exc:
        raise EvaluationError(f"fromjson cannot read the text as JSON: {exc}") from exc

    return plain(budget, result)


def _to_json(budget: WorkBudget, value: Value) -> Value:
    return text_of(json.dumps(plain(budget, value), ensure_ascii=False, allow_nan=False), "tojson")


def _read_number(name: str, kind: type[int | float], what: str) -> Function:
    def operate(budget: WorkBudget, value: Value) -> Value:
        budget.spend()
        if isinstance(value, str):
            try:
                value = kind(value) if len(value) <= MAX_BITS else math.inf
            except ValueError:
                raise EvaluationError(f"{name} cannot read {value!r} as {what}") from None
        if kind is int and isinstance(value, bool):
            return int(value)

        return number_of(kind(number_of(value, name)), name)

    return operate


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


# --- tables ----------------------------------------------------------------------------------------------------

FILTERS: Mapping[str, Function] = {
    "abs": _abs,
    "capitalize": _on_text("capitalize", str.capitalize),
    "count": _length,
    "first": _end("first", 0),
    "flatten": _flatten,
    "float": _read_number("float", float, "a number"),
    "fromjson": _from_json,
    "int": _read_number("int", int, "a whole number"),
    "items": lambda budget, value: [[key, item] for key, item in table_of(budget, value, "items").items()],
    "join": _join,
    "keys": lambda budget, value: list(table_of(budget, value, "keys")),
    "last": _end("last", -1),
    "length": _length,
    "list": _list,
    "lower": _on_text("lower", str.lower),
    "map": _map,
    "max": _extreme("max", max),
    "min": _extreme("min", min),
    "quote": lambda budget, value: shlex.quote(written(budget, value)),
    "rejectattr": _chosen("rejectattr", wanted=False),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "selectattr": _chosen("selectattr", wanted=True),
    "sort": _sort,
    "split": _split,
    "string": written,
    "sum": _sum,
    "tojson": _to_json,
    "trim": _on_text("trim", str.strip),
    "unique": _unique,
    "upper": _on_text("upper", str.upper),
    "urlencode": lambda budget, value: quote(written(budget, value), safe=""),
    "values": lambda budget, value: list(table_of(budget, value, "values").values()),
}
TESTS: Mapping[str, Function] = {
    "boolean": _is(lambda value: isinstance(value, bool)),
    "divisibleby": _divisible,
    "empty": lambda budget, value: _length(budget, value) == 0,
    "even": lambda budget, value: _divisible(budget, value, 2),
    "false": _is(lambda value: value is False),
    "float": _is(lambda value: isinstance(value, float)),
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
    **{name: COMPARISONS[sign] for name, sign in SIGNS.items() if name.isalpha()},
}
FUNCTIONS: Mapping[str, Function] = {"len": _length, "max": FILTERS["max"], "min": FILTERS["min"], "range": _range}
#: Filters and tests of whether a value exists; `expressions.expressions` evaluates them.
DEFAULTS = ("default", "d")
PRESENCE = ("defined", "undefined")
