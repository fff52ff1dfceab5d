"""
Templates and conditions of steps: `{{ expression }}` in texts, and conditions with or without the braces.

Pure, and safe for untrusted templates. Jinja2 only parses the syntax; nothing is compiled to Python or run by Jinja2,
whose sandbox limits neither comparisons, `~` and slices nor the work of an evaluation. Each supported kind of node
becomes one small function over JSON values; any other kind is refused. So an expression cannot reach an attribute,
method or module: only the operations of `expressions.values` exist. An unknown name is an error, never a silent false.
A text that is one expression keeps the type of its value; in a longer text, values other than texts are inserted as
JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.expressions.values import (
    COMPARISONS,
    DEFAULTS,
    FILTERS,
    FUNCTIONS,
    MAX_DEPTH,
    OPERATORS,
    PRESENCE,
    SIGNED,
    TESTS,
    EvaluationError,
    Function,
    Missing,
    Rows,
    Value,
    WorkBudget,
    joined,
    number_of,
    part_of,
    plain,
    slice_of,
    truth_of,
    written,
)
from adws.adw_modules.identifiers import JsonValue, hint

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["ExpressionError", "Path", "Rows", "Value", "evaluate", "filters_of", "holds", "paths_of", "render"]

#: Maximum characters of a template.
MAX_TEMPLATE = 20_000
#: Maximum compiled templates in the cache.
KEPT = 4096
#: Exceptions of an evaluation: our own, and those of Python operators on unexpected values.
_TROUBLES = (EvaluationError, TypeError, ValueError, ArithmeticError, RecursionError)


class Scope(NamedTuple):
    """Names and budget of one evaluation."""

    names: Mapping[str, Value]
    budget: WorkBudget


Compute: TypeAlias = Callable[[Scope], Any]
#: The path to a value that an expression reads: a name, then keys.
Path: TypeAlias = tuple[str, ...]


class Compiled(NamedTuple):
    """A compiled template."""

    compute: Compute
    is_expression: bool  #: whether it is a single expression, whose value keeps its type
    paths: frozenset[Path]  #: values that must exist, as far as the template names them
    filters: tuple[str, ...]  #: last filter of each expression, "" without one


def render(value: JsonValue, context: Mapping[str, Value]) -> JsonValue:
    """Return *value* with the templates in its texts filled in, also in lists and tables; keys are left unchanged."""
    return _rendered(value, Scope(context, WorkBudget()))


def evaluate(template: str, context: Mapping[str, Value]) -> Value:
    """Return the value of *template* without reading rows: for collections, which may be long."""
    return _computed(template, Scope(context, WorkBudget()))


def holds(condition: str, context: Mapping[str, Value]) -> bool:
    """
    Return whether *condition*, with or without `{{ }}`, is true.

    Numbers other than 0 and non-empty lists and tables are true, null is false. The text true is true and the text
    false is false; any other text is an error, because its meaning is unclear.
    """
    made = _condition(condition)
    try:
        return truth_of(made.compute(Scope(context, WorkBudget())))
    except _TROUBLES as exc:
        raise _error(exc, condition) from exc


def paths_of(template: str, *, is_condition: bool = False) -> frozenset[Path]:
    """
    Return the paths that *template* reads, such as ("steps", "fetch", "total"); raise ExpressionError if it is invalid.

    Values in `is defined` and `default` are left out: they need not exist.
    """
    return (_condition if is_condition else _template)(template).paths


def filters_of(template: str) -> tuple[str, ...]:
    """Return the last filter of each expression of *template*, "" for one without."""
    return _template(template).filters


def _rendered(value: JsonValue, scope: Scope) -> JsonValue:
    if isinstance(value, list):
        return [_rendered(item, scope) for item in value]
    if isinstance(value, Mapping):
        return {key: _rendered(item, scope) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    result = _computed(value, scope)
    if isinstance(result, str) or result is None:
        return result
    try:
        return plain(scope.budget, result)
    except _TROUBLES as exc:
        raise _error(exc, value) from exc


def _computed(template: str, scope: Scope) -> Value:
    if "{{" not in template and "{%" not in template:
        return template
    made = _template(template)
    try:
        result: Value = made.compute(scope)
    except _TROUBLES as exc:
        raise _error(exc, template) from exc

    return result


def _error(exc: Exception, expression: str) -> ExpressionError:
    if isinstance(exc, EvaluationError):
        return ExpressionError(exc.why, expression=expression, name=exc.name)
    if isinstance(exc, RecursionError):
        return ExpressionError("a value is nested too deeply", expression=expression)

    return ExpressionError(f"it has no value: {exc}", expression=expression)


# --- compiling -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=KEPT)
def _condition(text: str) -> Compiled:
    if not text.strip():
        raise ExpressionError("a condition is empty: write one, or leave it out")
    made = _template(text if "{{" in text else f"{{{{ {text} }}}}")
    if not made.is_expression:
        raise ExpressionError("a condition is one expression, such as response.next is not none", expression=text)

    return made


@lru_cache(maxsize=KEPT)
def _template(text: str) -> Compiled:
    try:
        parts = _parsed(text)
        compiler = _Compiler()
        computes = [compiler.part(part) for part in parts]
    except EvaluationError as exc:
        raise _error(exc, text) from exc
    filled = [part for part in parts if _kind(part) != "TemplateData"]
    is_expression = len(filled) == 1 and all(part is filled[0] or not part.data.strip() for part in parts)
    compute = computes[parts.index(filled[0])] if is_expression else _mixed(computes)
    filters = tuple(part.name if _kind(part) == "Filter" else "" for part in filled)

    return Compiled(compute, is_expression, frozenset(compiler.paths), filters)


def _parsed(text: str) -> list[Any]:
    """Return the texts and expressions of a template in order; raise EvaluationError if it is invalid."""
    from jinja2 import TemplateError  # noqa: PLC0415 - read-only commands start without it

    if len(text) > MAX_TEMPLATE:
        raise EvaluationError(f"it has {len(text)} characters, and a template has at most {MAX_TEMPLATE}")
    if "{%" in text:
        raise EvaluationError(
            "{% %} is not possible, only expressions in {{ }}; for the characters write {{ '{' ~ '%' }}"
        )
    if "\0" in text:
        raise EvaluationError("it holds a NUL character")
    try:
        body: Any = _syntax().parse(text).body
    except TemplateError as exc:
        raise EvaluationError(f"it cannot be read: {exc.message}") from exc
    except RecursionError:
        raise EvaluationError("it is nested too deeply") from None
    except ValueError as exc:
        raise EvaluationError(f"it cannot be read: {exc}") from exc

    return [part for output in body for part in output.nodes]


@lru_cache(maxsize=1)
def _syntax() -> Environment:
    """Return a parser for `{{ }}` alone: its marks for statements and comments contain NUL, which no template may."""
    from jinja2 import Environment  # noqa: PLC0415 - read-only commands start without it

    return Environment(
        block_start_string="\0{%",
        block_end_string="%}\0",
        comment_start_string="\0{#",
        comment_end_string="#}\0",
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - nothing here is rendered by Jinja2, let alone as HTML
    )


def _kind(node: object) -> str:
    return type(node).__name__


def _mixed(computes: Sequence[Compute]) -> Compute:
    return lambda scope: joined(scope.budget, [written(scope.budget, one(scope)) for one in computes])


class _Compiler:
    """Compiles Jinja2 syntax nodes to functions and collects the names they read."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self._depth = 0
        self._is_guarded = False  #: inside a test of whether a value exists

    def part(self, node: Any) -> Compute:
        """Return the function that computes *node*."""
        kind = _kind(node)
        make = self._operation if kind in OPERATORS or kind in SIGNED else getattr(self, f"_make_{kind.lower()}", None)
        if make is None:
            raise EvaluationError(f"{kind} is not possible in an expression")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise EvaluationError("it is nested too deeply")
        try:
            compute: Compute = make(node)
        finally:
            self._depth -= 1

        return compute

    # --- values

    def _make_templatedata(self, node: Any) -> Compute:
        text = node.data
        return lambda _scope: text

    def _make_const(self, node: Any) -> Compute:
        value = node.value
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise EvaluationError("a text holds half of a surrogate pair, which cannot be stored") from None
        if isinstance(value, int | float) and not isinstance(value, bool):
            number_of(value, "an expression")
        return lambda _scope: value

    def _make_list(self, node: Any) -> Compute:
        parts = [self.part(item) for item in node.items]
        return lambda scope: [part(scope) for part in parts]

    _make_tuple = _make_list

    def _make_dict(self, node: Any) -> Compute:
        pairs = [(self.part(pair.key), self.part(pair.value)) for pair in node.items]

        def compute(scope: Scope) -> dict[str, Value]:
            result = {key(scope): value(scope) for key, value in pairs}
            if not all(isinstance(key, str) for key in result):
                raise EvaluationError("the keys of a table are texts")
            return result

        return compute

    # --- names, keys and elements

    def _make_name(self, node: Any) -> Compute:
        name = node.name
        if not self._is_guarded:
            self.paths.add((name,))

        def compute(scope: Scope) -> Value:
            if name not in scope.names:
                raise Missing(f"there is no {name}{hint(name, list(scope.names))}", name)
            return scope.names[name]

        return compute

    def _make_getattr(self, node: Any) -> Compute:
        if node.attr.startswith("__") and node.attr.endswith("__"):
            raise EvaluationError(
                f"{node.attr} is not possible in an expression: values have keys and elements, nothing else"
            )
        return self._lookup(node, node.attr)

    def _make_getitem(self, node: Any) -> Compute:
        arg = node.arg
        if _kind(arg) == "Slice":
            around = self.part(node.node)
            bounds = [None if part is None else self.part(part) for part in (arg.start, arg.stop, arg.step)]
            return lambda scope: slice_of(
                scope.budget, around(scope), [None if bound is None else bound(scope) for bound in bounds]
            )
        key = getattr(arg, "value", None)
        if isinstance(key, str | int) and not isinstance(key, bool):
            return self._lookup(node, key)
        around, chosen, where = self.part(node.node), self.part(arg), _where(node.node)

        return lambda scope: part_of(around(scope), chosen(scope), where)

    def _lookup(self, node: Any, key: str | int) -> Compute:
        known, path, where = set(self.paths), _path_of(node), _where(node.node)
        around = self.part(node.node)
        if path:
            # The longer path replaces its own beginning.
            self.paths = known if self._is_guarded else known | {path}

        def compute(scope: Scope) -> Value:
            value: Value = around(scope)
            # Fast path for the usual case.
            if type(value) is dict and key in value:
                return value[key]
            return part_of(value, key, where)

        return compute

    # --- operators

    def _operation(self, node: Any) -> Compute:
        if (change := SIGNED.get(_kind(node))) is not None:
            part = self.part(node.node)
            return lambda scope: change(part(scope))
        operate, left, right = OPERATORS[_kind(node)], self.part(node.left), self.part(node.right)
        return lambda scope: operate(scope.budget, left(scope), right(scope))

    def _make_concat(self, node: Any) -> Compute:
        return _mixed([self.part(one) for one in node.nodes])

    def _make_compare(self, node: Any) -> Compute:
        first = self.part(node.expr)
        steps = [(COMPARISONS[operand.op], self.part(operand.expr)) for operand in node.ops]

        def compute(scope: Scope) -> bool:
            left = first(scope)
            for compare, part in steps:
                right = part(scope)
                if not compare(scope.budget, left, right):
                    return False
                left = right
            return True

        return compute

    def _make_and(self, node: Any) -> Compute:
        left, right = self.part(node.left), self.part(node.right)
        return lambda scope: right(scope) if truth_of(value := left(scope)) else value

    def _make_or(self, node: Any) -> Compute:
        left, right = self.part(node.left), self.part(node.right)
        return lambda scope: value if truth_of(value := left(scope)) else right(scope)

    def _make_condexpr(self, node: Any) -> Compute:
        if node.expr2 is None:
            raise EvaluationError("an if needs an else, such as 1 if x else 2")
        test, yes, no = self.part(node.test), self.part(node.expr1), self.part(node.expr2)
        return lambda scope: yes(scope) if truth_of(test(scope)) else no(scope)

    # --- filters, tests, functions

    def _make_filter(self, node: Any) -> Compute:
        if node.name not in DEFAULTS:
            return self._call(node, node.name, FILTERS, "filter", DEFAULTS)
        if len(node.args) != 1 or node.kwargs or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise EvaluationError(f"{node.name} takes one argument: the value in place of one that is not there")
        part, instead = self._guarded(node.node), self.part(node.args[0])

        def compute(scope: Scope) -> Value:
            try:
                result: Value = part(scope)
            except Missing:
                result = instead(scope)
            return result

        return compute

    def _make_test(self, node: Any) -> Compute:
        if node.name not in PRESENCE:
            return self._call(node, node.name, TESTS, "test", PRESENCE)
        part = self._guarded(node.node)
        is_wanted: bool = node.name == "defined"

        def compute(scope: Scope) -> bool:
            try:
                part(scope)
            except Missing:
                return not is_wanted
            return is_wanted

        return compute

    def _make_call(self, node: Any) -> Compute:
        if _kind(node.node) != "Name":
            raise EvaluationError("only functions can be called, and values have none: use a filter, such as x|items")
        return self._call(node, node.node.name, FUNCTIONS, "function")

    def _call(
        self, node: Any, name: str, table: Mapping[str, Function], what: str, more: Sequence[str] = ()
    ) -> Compute:
        """Return the call of a filter, test or function; raise if it does not exist or does not take the arguments."""
        if name not in table:
            raise EvaluationError(f"there is no {what} {name}{hint(name, sorted([*table, *more]))}", name)
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise EvaluationError("arguments with * or ** are not possible")
        function = table[name]
        before = [] if what == "function" else [node.node]
        parts = [self.part(one) for one in (*before, *node.args)]
        named = {str(pair.key): self.part(pair.value) for pair in node.kwargs}
        try:
            inspect.signature(function).bind(None, *parts, **named)
        except TypeError as exc:
            raise EvaluationError(f"{name} does not take these arguments: {exc}") from None

        def compute(scope: Scope) -> Value:
            arguments = {key: part(scope) for key, part in named.items()}
            return function(scope.budget, *[part(scope) for part in parts], **arguments)

        return compute

    def _guarded(self, node: Any) -> Compute:
        """Return the function of *node*, whose value need not exist."""
        before, self._is_guarded = self._is_guarded, True
        try:
            return self.part(node)
        finally:
            self._is_guarded = before


def _path_of(node: Any) -> Path:
    """Return the path from a name by constant keys that *node* is, or () if it is anything else."""
    kind = _kind(node)
    if kind == "Name":
        return (str(node.name),)
    if kind not in ("Getattr", "Getitem"):
        return ()
    key = node.attr if kind == "Getattr" else getattr(node.arg, "value", None)
    around = _path_of(node.node)

    return (*around, str(key)) if around and isinstance(key, str | int) else ()


def _where(node: Any) -> str:
    return ".".join(_path_of(node)) or "the value"
