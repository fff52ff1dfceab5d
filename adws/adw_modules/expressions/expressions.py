"""
Turn the syntax of an expression into a function that computes it.

Pure. The syntax is read by Jinja2's parser; nothing of it is compiled to Python and nothing is run by Jinja2. Each kind
of node that is known here becomes one small function over values; a node of any other kind is refused. So there is no
way from an expression to an attribute, a method or a module: only the operators, filters, tests and functions of
`expressions.functions` exist.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.expressions.functions import DEFAULTS, FILTERS, FUNCTIONS, PRESENCE, TESTS, Function
from adws.adw_modules.expressions.values import (
    COMPARISONS,
    MAX_DEPTH,
    OPERATORS,
    EvaluationError,
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
    from jinja2 import Environment, nodes

__all__ = ["ExpressionError", "Path", "Rows", "Value", "evaluate", "filters_of", "holds", "paths_of", "render"]


#: Characters of a template.
MAX_TEMPLATE = 20_000


class Scope(NamedTuple):
    """What one evaluation has."""

    names: Mapping[str, Value]
    budget: WorkBudget


Compute: TypeAlias = Callable[[Scope], Value]
#: The way to a value that an expression reads: a name, and the keys behind it.
Path: TypeAlias = tuple[str, ...]


class Compiled(NamedTuple):
    """A template that can be computed."""

    compute: Compute
    is_expression: bool  #: it is one expression and nothing else: its value keeps its type
    paths: frozenset[Path]  #: what must be there, as far as it is written down
    filters: tuple[str, ...]  #: for each expression the filter that it ends with, "" without one


def compiled(text: str) -> Compiled:
    """Return the template *text*; raise Trouble when it is none, or uses what there is not."""
    if len(text) > MAX_TEMPLATE:
        raise EvaluationError(f"it has {len(text)} characters, and a template has at most {MAX_TEMPLATE}")
    if "{%" in text:
        raise EvaluationError(
            "{% %} is not possible, only expressions in {{ }}; for the characters write {{ '{' ~ '%' }}"
        )
    if "\0" in text:
        raise EvaluationError("it holds a NUL character")
    parts = _parsed(text)
    compiler = _Compiler()
    computes = [compiler.part(part) for part in parts]
    filled = [part for part in parts if not _is_text(part)]
    is_expression = len(filled) == 1 and all(not _text(part).strip() for part in parts if part is not filled[0])
    compute = computes[parts.index(filled[0])] if is_expression else _mixed(computes)

    return Compiled(compute, is_expression, frozenset(compiler.paths), tuple(map(_last_filter, filled)))


def _parsed(text: str) -> list[nodes.Expr]:
    """Return the texts and expressions of a template, in order."""
    from jinja2 import TemplateError  # noqa: PLC0415 - commands that only look start without it

    try:
        body = _syntax().parse(text).body
    except TemplateError as exc:
        raise EvaluationError(f"it cannot be read: {exc.message}") from exc
    except RecursionError:
        raise EvaluationError("it is nested too deeply") from None
    except ValueError as exc:
        raise EvaluationError(f"it cannot be read: {exc}") from exc

    return [part for output in body for part in output.nodes]  # type: ignore[attr-defined]  # there are only outputs


@lru_cache(maxsize=1)
def _syntax() -> Environment:
    """Return what reads `{{ }}`. Statements and comments have marks that no template can hold: it has no NUL."""
    from jinja2 import Environment  # noqa: PLC0415 - commands that only look start without it

    return Environment(
        block_start_string="\0{%",
        block_end_string="%}\0",
        comment_start_string="\0{#",
        comment_end_string="#}\0",
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - nothing here is rendered by Jinja2, let alone as HTML
    )


def _is_text(part: nodes.Expr) -> bool:
    return type(part).__name__ == "TemplateData"


def _text(part: nodes.Expr) -> str:
    return str(getattr(part, "data", "-"))


def _last_filter(part: nodes.Expr) -> str:
    return str(getattr(part, "name", "")) if type(part).__name__ == "Filter" else ""


def _mixed(computes: Sequence[Compute]) -> Compute:
    def compute(scope: Scope) -> Value:
        return joined(scope.budget, [written(scope.budget, one(scope)) for one in computes])

    return compute


# --- one node at a time ----------------------------------------------------------------------------------------


class _Compiler:
    """Makes functions of nodes, and notes which names they read."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self._depth = 0
        self._is_guarded = False  #: inside something that asks whether a value is there

    def part(self, node: object) -> Compute:
        """Return the function that computes *node*."""
        kind = type(node).__name__
        make = self._operation if kind in OPERATORS else getattr(self, f"_make_{kind.lower()}", None)
        if make is None:
            raise EvaluationError(f"{kind} is not possible in an expression")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise EvaluationError("it is nested too deeply")
        try:
            return make(node)  # type: ignore[arg-type]  # the method is the one for this kind of node
        finally:
            self._depth -= 1

    def _parts(self, found: Sequence[object]) -> list[Compute]:
        return [self.part(node) for node in found]

    # --- values

    def _make_templatedata(self, node: nodes.TemplateData) -> Compute:
        text = node.data
        return lambda _scope: text

    def _make_const(self, node: nodes.Const) -> Compute:
        value = node.value
        if isinstance(value, str) and not _is_storable(value):
            raise EvaluationError("a text holds half of a surrogate pair, which cannot be stored")
        if isinstance(value, int | float) and not isinstance(value, bool):
            number_of(value, "an expression")
        return lambda _scope: value

    def _make_list(self, node: nodes.List | nodes.Tuple) -> Compute:
        parts = self._parts(node.items)
        return lambda scope: [part(scope) for part in parts]  # type: ignore[misc]  # rows are read when it is done

    _make_tuple = _make_list

    def _make_dict(self, node: nodes.Dict) -> Compute:
        pairs = [(self.part(pair.key), self.part(pair.value)) for pair in node.items]
        return lambda scope: {_key(key(scope)): value(scope) for key, value in pairs}  # type: ignore[misc]  # the same

    # --- names and what is behind them

    def _make_name(self, node: nodes.Name) -> Compute:
        name = node.name
        self._note((name,))

        def compute(scope: Scope) -> Value:
            if name not in scope.names:
                raise Missing(f"there is no {name}{hint(name, list(scope.names))}", name)
            return scope.names[name]

        return compute

    def _make_getattr(self, node: nodes.Getattr) -> Compute:
        key, where = node.attr, _said(node.node)
        if key.startswith("__") and key.endswith("__"):
            raise EvaluationError(
                f"{key} is not possible in an expression: values have keys and elements, nothing else"
            )
        return self._lookup(node, key, where)

    def _make_getitem(self, node: nodes.Getitem) -> Compute:
        if type(node.arg).__name__ == "Slice":
            return self._slice(node)
        key = getattr(node.arg, "value", None)
        if isinstance(key, str | int) and not isinstance(key, bool):
            return self._lookup(node, key, _said(node.node))
        around, chosen, where = self.part(node.node), self.part(node.arg), _said(node.node)

        return lambda scope: part_of(around(scope), chosen(scope), where)

    def _lookup(self, node: nodes.Getattr | nodes.Getitem, key: str | int, where: str) -> Compute:
        known = set(self.paths)
        around = self.part(node.node)
        path = _path_of(node)
        if path:
            self.paths = known  # the longer path takes the place of the one it goes on from
            self._note(path)

        def compute(scope: Scope) -> Value:
            value = around(scope)
            # The usual case, without the detour.
            if type(value) is dict and key in value:
                return value[key]
            return part_of(value, key, where)

        return compute

    def _slice(self, node: nodes.Getitem) -> Compute:
        around, arg = self.part(node.node), node.arg
        bounds = [_NOTHING if part is None else self.part(part) for part in (arg.start, arg.stop, arg.step)]  # type: ignore[attr-defined]  # a Slice

        return lambda scope: slice_of(scope.budget, around(scope), [bound(scope) for bound in bounds])

    def _note(self, path: Path) -> None:
        if not self._is_guarded:
            self.paths.add(path)

    # --- operators

    def _operation(self, node: nodes.BinExpr) -> Compute:
        operate = OPERATORS[type(node).__name__]
        left, right = self._parts((node.left, node.right))

        return lambda scope: operate(scope.budget, left(scope), right(scope))

    def _make_neg(self, node: nodes.Neg) -> Compute:
        part = self.part(node.node)
        return lambda scope: -number_of(part(scope), "-")

    def _make_pos(self, node: nodes.Pos) -> Compute:
        part = self.part(node.node)
        return lambda scope: number_of(part(scope), "+")

    def _make_concat(self, node: nodes.Concat) -> Compute:
        return _mixed(self._parts(node.nodes))

    def _make_compare(self, node: nodes.Compare) -> Compute:
        first = self.part(node.expr)
        steps = [(COMPARISONS[operand.op], self.part(operand.expr)) for operand in node.ops]

        def compute(scope: Scope) -> Value:
            left = first(scope)
            for compare, part in steps:
                right = part(scope)
                if not compare(scope.budget, left, right):
                    return False
                left = right
            return True

        return compute

    def _make_and(self, node: nodes.And) -> Compute:
        left, right = self._parts((node.left, node.right))
        return lambda scope: right(scope) if truth_of(value := left(scope)) else value

    def _make_or(self, node: nodes.Or) -> Compute:
        left, right = self._parts((node.left, node.right))
        return lambda scope: value if truth_of(value := left(scope)) else right(scope)

    def _make_not(self, node: nodes.Not) -> Compute:
        part = self.part(node.node)
        return lambda scope: not truth_of(part(scope))

    def _make_condexpr(self, node: nodes.CondExpr) -> Compute:
        if node.expr2 is None:
            raise EvaluationError("an if needs an else, such as 1 if x else 2")
        test, yes, no = self._parts((node.test, node.expr1, node.expr2))

        return lambda scope: yes(scope) if truth_of(test(scope)) else no(scope)

    # --- filters, tests, functions

    def _make_filter(self, node: nodes.Filter) -> Compute:
        if node.name in DEFAULTS:
            return self._default(node)
        return self._called(_known(node.name, FILTERS, "filter", DEFAULTS), node, self.part(node.node))

    def _make_test(self, node: nodes.Test) -> Compute:
        if node.name in PRESENCE:
            return self._presence(node)
        return self._called(_known(node.name, TESTS, "test", PRESENCE), node, self.part(node.node))

    def _make_call(self, node: nodes.Call) -> Compute:
        name = getattr(node.node, "name", None)
        if type(node.node).__name__ != "Name" or not isinstance(name, str):
            raise EvaluationError("only functions can be called, and values have none: use a filter, such as x|items")
        return self._called(_known(name, FUNCTIONS, "function"), node, None)

    def _called(
        self, function: Function, node: nodes.Filter | nodes.Test | nodes.Call, value: Compute | None
    ) -> Compute:
        """Return the call of *function* with *value* first, if there is one; its arguments must be such as it takes."""
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise EvaluationError("arguments with * or ** are not possible")
        given = [] if value is None else [value]
        parts = [*given, *self._parts(node.args)]
        named = {str(pair.key): self.part(pair.value) for pair in node.kwargs}
        try:
            inspect.signature(function).bind(None, *parts, **named)
        except TypeError as exc:
            what = getattr(node, "name", None) or node.node.name  # type: ignore[union-attr]  # a function's Name
            raise EvaluationError(f"{what} does not take these arguments: {exc}") from None
        if not named and len(parts) == 1:
            only = parts[0]
            return lambda scope: function(scope.budget, only(scope))

        def compute(scope: Scope) -> Value:
            arguments = {key: part(scope) for key, part in named.items()}
            return function(scope.budget, *(part(scope) for part in parts), **arguments)

        return compute

    def _default(self, node: nodes.Filter) -> Compute:
        if len(node.args) != 1 or node.kwargs or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise EvaluationError(f"{node.name} takes one argument: the value in place of one that is not there")
        part, instead = self._guarded(node.node), self.part(node.args[0])

        def compute(scope: Scope) -> Value:
            try:
                return part(scope)
            except Missing:
                return instead(scope)

        return compute

    def _presence(self, node: nodes.Test) -> Compute:
        part, is_wanted = self._guarded(node.node), node.name == "defined"

        def compute(scope: Scope) -> Value:
            try:
                part(scope)
            except Missing:
                return not is_wanted
            return is_wanted

        return compute

    def _guarded(self, node: object) -> Compute:
        """Return the function of *node*, which need not be there."""
        before, self._is_guarded = self._is_guarded, True
        try:
            return self.part(node)
        finally:
            self._is_guarded = before


def _nothing(_scope: Scope) -> Value:
    return None


_NOTHING: Compute = _nothing


def _known(name: str, table: Mapping[str, Function], what: str, more: Sequence[str] = ()) -> Function:
    if name not in table:
        raise EvaluationError(f"there is no {what} {name}{hint(name, sorted([*table, *more]))}", name)

    return table[name]


def _key(value: Value) -> str:
    if not isinstance(value, str):
        raise EvaluationError("the keys of a table are texts")

    return value


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False

    return True


def _path_of(node: object) -> Path:
    """Return the way that *node* writes down from a name by keys; () when it begins elsewhere or is computed."""
    kind = type(node).__name__
    if kind == "Name":
        return (str(getattr(node, "name", "")),)
    key = getattr(node, "attr", None) if kind == "Getattr" else getattr(getattr(node, "arg", None), "value", None)
    around = _path_of(node.node) if kind in ("Getattr", "Getitem") else ()  # type: ignore[attr-defined]  # both have one

    return (*around, str(key)) if around and isinstance(key, str | int) else ()


def _said(node: object) -> str:
    return ".".join(_path_of(node)) or "the value"


# Templates and conditions of steps: `{{ expression }}` in texts, and conditions with or without the braces.
#
# Pure, and safe with whatever is written in them: values of JSON go in and come out, only what `expressions.functions`
# lists can be done to them, and work, sizes and depth are bounded. A name that is not there is an error, never a silent
# false. A text that is one expression gives its value with its type; in a longer text values are written out, all but
# texts as JSON.


#: Templates that are kept ready to be computed.
KEPT = 4096


def render(value: JsonValue, context: Mapping[str, Value]) -> JsonValue:
    """Return *value* with the templates in its texts filled in, also in lists and tables; keys stay as they are."""
    return _rendered(value, Scope(context, WorkBudget()))


def evaluate(template: str, context: Mapping[str, Value]) -> Value:
    """Return what *template* gives, without reading rows: for collections, which may be long."""
    return _computed(template, Scope(context, WorkBudget()))


def holds(condition: str, context: Mapping[str, Value]) -> bool:
    """
    Return whether *condition* holds, with or without `{{ }}`.

    Numbers other than 0 and lists and tables that are not empty hold, null does not. A text holds when it is the word
    true and does not when it is the word false; any other text is an error, since nobody can say what is meant by it.
    """
    made = _condition(condition)
    try:
        return truth_of(made.compute(Scope(context, WorkBudget())))
    except _TROUBLES as exc:
        raise _error(exc, condition) from exc


def paths_of(template: str, *, is_condition: bool = False) -> frozenset[Path]:
    """
    Return what *template* reads, such as ("steps", "fetch", "total"); raise ExpressionError when it is none.

    What is only asked for (`is defined`, `default`) is left out: it need not be there.
    """
    return (_condition if is_condition else _template)(template).paths


def filters_of(template: str) -> tuple[str, ...]:
    """Return for each expression of *template* the filter that it ends with, "" for one without."""
    return _template(template).filters


#: What evaluating may raise: troubles, and what Python's own operators say about values nobody foresaw.
_TROUBLES = (EvaluationError, TypeError, ValueError, ArithmeticError, RecursionError)


def _rendered(value: JsonValue, scope: Scope) -> JsonValue:
    if isinstance(value, str):
        return _text_expressions(value, scope)
    if isinstance(value, list):
        return [_rendered(item, scope) for item in value]
    if isinstance(value, Mapping):
        return {key: _rendered(item, scope) for key, item in value.items()}

    return value


def _text_expressions(template: str, scope: Scope) -> JsonValue:
    result = _computed(template, scope)
    if isinstance(result, str) or result is None:
        return result
    try:
        return plain(scope.budget, result)
    except _TROUBLES as exc:
        raise _error(exc, template) from exc


def _computed(template: str, scope: Scope) -> Value:
    if "{{" not in template and "{%" not in template:
        return template
    made = _template(template)
    try:
        return made.compute(scope)
    except _TROUBLES as exc:
        raise _error(exc, template) from exc


@lru_cache(maxsize=KEPT)
def _template(text: str) -> Compiled:
    try:
        return compiled(text)
    except EvaluationError as exc:
        raise _error(exc, text) from exc


@lru_cache(maxsize=KEPT)
def _condition(text: str) -> Compiled:
    if not text.strip():
        raise ExpressionError("a condition is empty: write one, or leave it out")
    made = _template(text if "{{" in text else f"{{{{ {text} }}}}")
    if not made.is_expression:
        raise ExpressionError("a condition is one expression, such as response.next is not none", expression=text)

    return made


def _error(exc: Exception, expression: str) -> ExpressionError:
    if isinstance(exc, EvaluationError):
        return ExpressionError(exc.why, expression=expression, name=exc.name)
    if isinstance(exc, RecursionError):
        return ExpressionError("a value is nested too deeply", expression=expression)

    return ExpressionError(f"it has no value: {exc}", expression=expression)
