"""
The values that expressions work on, and how much work one evaluation may do.

Pure. Values are those of JSON, and rows that are read when they are asked for; nothing else has operators here, and no
value has attributes or methods. Every operation pays for what it is about to touch before it touches it, from a fixed
budget: that is the deadline of an expression, and no load of a machine changes it.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from adws.adw_modules.identifiers import JsonValue

#: Units of work of one evaluation; together they take a second at most, on a slow machine.
MAX_WORK = 300_000
#: Characters of a text that is worked on or made.
MAX_TEXT = 1_000_000
#: Elements of a list that is worked on or made.
MAX_ITEMS = 100_000
#: Size of a whole number that is worked on or made.
MAX_BITS = 512
#: Lists and tables inside each other.
MAX_DEPTH = 100

#: Characters that one unit of work pays for.
_CHARACTERS = 64


class Rows(Sequence[JsonValue]):
    """
    A long list that is read on demand, such as the results of a loop.

    It is passed to expressions as a value: its length and its elements can be asked for, and a template that is nothing
    else returns it as it is.
    """

    @abstractmethod
    def __len__(self) -> int: ...


Value: TypeAlias = JsonValue | Rows


class EvaluationError(Exception):
    """Why an expression has no value; `expressions` makes an ExpressionError of it, which knows the expression."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(why)
        self.why, self.name = why, name


class Missing(EvaluationError):
    """A name, key or element is not there."""


class WorkBudget:
    """What is left of the work that one evaluation may do."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_WORK) -> None:
        self.left = left

    def spend(self, units: int = 1) -> None:
        """Take *units* off, and end the evaluation when they are not there."""
        self.left -= units
        if self.left < 0:
            raise EvaluationError("it takes too much work: let it look at less")

    def spend_on_text(self, text: str) -> None:
        """Pay for going through *text*."""
        self.spend(1 + len(text) // _CHARACTERS)


# --- what a value is -------------------------------------------------------------------------------------------


def kind_of(value: object) -> str:
    """Return what *value* is, as a sentence says it."""
    for name, is_kind in _KINDS.items():
        if is_kind(value):
            return name

    return f"no JSON value ({type(value).__name__})"


def is_number(value: object) -> bool:
    """Whether *value* is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: object) -> bool:
    """Whether *value* is a list or rows."""
    return isinstance(value, list | tuple | Rows)


_KINDS: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "null": lambda value: value is None,
        "true or false": lambda value: isinstance(value, bool),
        "a number": is_number,
        "a text": lambda value: isinstance(value, str),
        "a list": is_list,
        "a table": lambda value: isinstance(value, Mapping),
    }
)


def text_of(value: object, what: str) -> str:
    """Return *value*, which *what* needs to be a text of a length that can be worked on."""
    if not isinstance(value, str):
        raise EvaluationError(f"{what} takes a text, and this is {kind_of(value)}")
    if len(value) > MAX_TEXT:
        raise EvaluationError(f"{what} takes a text of at most {MAX_TEXT} characters, and this one has {len(value)}")

    return value


def whole_of(value: object, what: str) -> int:
    """Return *value*, which *what* needs to be a whole number that can be worked on."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise EvaluationError(f"{what} takes a whole number, and this is {kind_of(value)}")

    return int(_fitting(value))


def number_of(value: object, what: str) -> int | float:
    """Return *value*, which *what* needs to be a number that can be worked on."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise EvaluationError(f"{what} takes numbers, and this is {kind_of(value)}")

    return _fitting(value)


def items_of(budget: WorkBudget, value: object, what: str) -> Sequence[JsonValue]:
    """Return *value*, which *what* needs to be a list that can be worked on, and pay for going through it."""
    if not isinstance(value, list | tuple | Rows):
        raise EvaluationError(f"{what} takes a list, and this is {kind_of(value)}")
    if len(value) > MAX_ITEMS:
        raise EvaluationError(f"{what} takes a list of at most {MAX_ITEMS} elements, and this one has {len(value)}")
    budget.spend(1 + len(value))

    return value


def table_of(budget: WorkBudget, value: object, what: str) -> Mapping[str, JsonValue]:
    """Return *value*, which *what* needs to be a table that can be worked on, and pay for going through it."""
    if not isinstance(value, Mapping):
        raise EvaluationError(f"{what} takes a table, and this is {kind_of(value)}")
    budget.spend(1 + len(value))

    return value


def _fitting(value: float) -> int | float:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise EvaluationError(f"a whole number of more than {MAX_BITS} bits cannot be worked on")
    if not math.isfinite(value):
        raise EvaluationError("a number is too large, or none")

    return value


def plain(budget: WorkBudget, value: object, depth: int = MAX_DEPTH) -> JsonValue:
    """Return *value* as JSON with rows read into lists, and pay for all that is in it; raise when it is no JSON."""
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
    Return whether *value* holds: numbers that are not 0, lists and tables with something in them.

    A text holds when it is the word true and does not when it is the word false; of any other it cannot be said.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower() if len(value) < len("false") * 4 else ""
        if word not in ("true", "false"):
            raise EvaluationError(f"the text {_short(value)} is neither true nor false: compare it with something")
        return word == "true"
    if value is None or is_number(value):
        return bool(value)
    if is_list(value) or isinstance(value, Mapping):
        return len(value) > 0  # type: ignore[arg-type]  # lists, rows and tables have a length

    raise EvaluationError(f"{kind_of(value)} is neither true nor false")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def written(budget: WorkBudget, value: object) -> str:
    """Return *value* as it stands in a text: texts as they are, all else as JSON."""
    if isinstance(value, str):
        budget.spend_on_text(value)
        return text_of(value, "a text around it")
    made = json.dumps(plain(budget, value), ensure_ascii=False, allow_nan=False)

    return text_of(made, "a text around it")


def joined(budget: WorkBudget, parts: Sequence[str], separator: str = "") -> str:
    """Return *parts* as one text."""
    size = sum(map(len, parts)) + len(separator) * max(0, len(parts) - 1)
    if size > MAX_TEXT:
        raise EvaluationError(f"the text would have {size} characters, and at most {MAX_TEXT} can be made")
    budget.spend(1 + size // _CHARACTERS)

    return separator.join(parts)


# --- operators -------------------------------------------------------------------------------------------------


#: Returns the result of an operator on two values; raises Trouble for values it is not defined for.
Operator: TypeAlias = Callable[[WorkBudget, Value, Value], Value]


def add(budget: WorkBudget, left: Value, right: Value) -> Value:
    """Return the sum of two numbers, two texts as one, two lists as one."""
    if isinstance(left, str) and isinstance(right, str):
        return joined(budget, (left, right))
    if is_list(left) and is_list(right):
        both = [*items_of(budget, left, "+"), *items_of(budget, right, "+")]
        items_of(budget, both, "+")
        return both

    return _fitting(number_of(left, "+") + number_of(right, "+"))


def _arithmetic(sign: str, compute: Callable[[float, float], float]) -> Operator:
    def operate(budget: WorkBudget, left: Value, right: Value) -> Value:
        del budget
        first, second = number_of(left, sign), number_of(right, sign)
        if sign in ("/", "//", "%") and second == 0:
            raise EvaluationError(f"{sign} divides by 0")

        return _fitting(compute(first, second))

    return operate


def power(budget: WorkBudget, left: Value, right: Value) -> Value:
    """Return a power; one that would be too large is not computed."""
    del budget
    base, exponent = number_of(left, "**"), number_of(right, "**")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise EvaluationError(f"a whole number of more than {MAX_BITS} bits cannot be made")
    made = base**exponent
    if isinstance(made, complex):
        raise EvaluationError("a root of a number below 0 is no number")

    return _fitting(made)


OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        "Add": add,
        "Sub": _arithmetic("-", lambda left, right: left - right),
        "Mul": _arithmetic("*", lambda left, right: left * right),
        "Div": _arithmetic("/", lambda left, right: left / right),
        "FloorDiv": _arithmetic("//", lambda left, right: left // right),
        "Mod": _arithmetic("%", lambda left, right: left % right),
        "Pow": power,
    }
)


# --- comparisons -----------------------------------------------------------------------------------------------


def equal(budget: WorkBudget, left: Value, right: Value) -> bool:
    """Return whether two values are the same; true is not 1."""
    if isinstance(left, str) and isinstance(right, str):
        budget.spend_on_text(left)
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if is_list(left) or isinstance(left, Mapping):
        return plain(budget, left) == plain(budget, right)

    return left == right


def _ordered(sign: str, compare: Callable[[str | float, str | float], bool]) -> Operator:
    def operate(budget: WorkBudget, left: Value, right: Value) -> Value:
        if isinstance(left, str) and isinstance(right, str):
            budget.spend_on_text(left)
            return compare(left, right)
        if not (is_number(left) and is_number(right)):
            raise EvaluationError(
                f"{sign} compares numbers, or texts; here it has {kind_of(left)} and {kind_of(right)}"
            )

        return compare(left, right)  # type: ignore[arg-type]  # numbers, as was just seen

    return operate


def contains(budget: WorkBudget, item: Value, whole: Value) -> bool:
    """Return whether *item* is in a list, a key of a table or a part of a text."""
    if isinstance(whole, str):
        budget.spend_on_text(whole)
        return text_of(item, "in a text") in whole
    if isinstance(whole, Mapping):
        return isinstance(item, str) and item in whole

    return any(equal(budget, item, other) for other in items_of(budget, whole, "in"))


COMPARISONS: Mapping[str, Operator] = MappingProxyType(
    {
        "eq": equal,
        "ne": lambda budget, left, right: not equal(budget, left, right),
        "lt": _ordered("<", lambda left, right: left < right),  # type: ignore[operator]  # two of one kind
        "lteq": _ordered("<=", lambda left, right: left <= right),  # type: ignore[operator]  # two of one kind
        "gt": _ordered(">", lambda left, right: left > right),  # type: ignore[operator]  # two of one kind
        "gteq": _ordered(">=", lambda left, right: left >= right),  # type: ignore[operator]  # two of one kind
        "in": contains,
        "notin": lambda budget, left, right: not contains(budget, left, right),
    }
)


# --- parts of values -------------------------------------------------------------------------------------------


def part_of(value: Value, key: Value, where: str) -> Value:
    """Return the element or the key of *value*; *where* is how it was reached, for the message."""
    if isinstance(value, Mapping):
        if not isinstance(key, str) or key not in value:
            raise Missing(f"there is no {_named(key)} in {where}{_keys_of(value)}", str(key))
        return value[key]
    if isinstance(value, str | list | tuple | Rows) and isinstance(key, int) and not isinstance(key, bool):
        if not -len(value) <= key < len(value):
            raise Missing(f"{where} has {len(value)} elements, and no [{key}]", str(key))
        return value[key]

    raise Missing(f"{where} is {kind_of(value)}, which has no {_named(key)}", _named(key))


def slice_of(budget: WorkBudget, value: Value, bounds: Sequence[Value]) -> Value:
    """Return a piece of a list or a text."""
    start, stop, step = (None if bound is None else whole_of(bound, "a slice") for bound in bounds)
    if step == 0:
        raise EvaluationError("a slice cannot go on by 0")
    if isinstance(value, str):
        return text_of(value, "a slice")[start:stop:step]

    return list(items_of(budget, value, "a slice"))[start:stop:step]


def _named(key: Value) -> str:
    return key if isinstance(key, str) and len(key) <= 60 else kind_of(key) if not is_number(key) else f"[{key}]"


def _keys_of(table: Mapping[str, JsonValue]) -> str:
    known = [str(key) for key in list(table)[:10]]
    return f"; it has: {', '.join(known)}{', ...' if len(table) > len(known) else ''}" if known else ", it is empty"
