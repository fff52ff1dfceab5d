"""
Templates and conditions of steps: `{{ expression }}` in texts, and conditions with or without the braces.

Pure, and safe with whatever is written in them: values of JSON go in and come out, only what `expression_functions`
lists can be done to them, and work, sizes and depth are bounded. A name that is not there is an error, never a silent
false. A text that is one expression gives its value with its type; in a longer text values are written out, all but
texts as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.expression_nodes import Compiled, Path, Scope, compiled
from adws.adw_modules.expression_values import Budget, Rows, Trouble, Value, plain, truth_of
from adws.adw_modules.json_value import JsonValue

__all__ = ["ExpressionError", "Path", "Rows", "Value", "evaluate", "filters_of", "holds", "paths_of", "render"]

#: Templates that are kept ready to be computed.
KEPT = 4096


def render(value: JsonValue, context: Mapping[str, Value]) -> JsonValue:
    """Return *value* with the templates in its texts filled in, also in lists and tables; keys stay as they are."""
    return _rendered(value, Scope(context, Budget()))


def evaluate(template: str, context: Mapping[str, Value]) -> Value:
    """Return what *template* gives, without reading rows: for collections, which may be long."""
    return _computed(template, Scope(context, Budget()))


def holds(condition: str, context: Mapping[str, Value]) -> bool:
    """
    Return whether *condition* holds, with or without `{{ }}`.

    Numbers other than 0 and lists and tables that are not empty hold, null does not. A text holds when it is the word
    true and does not when it is the word false; any other text is an error, since nobody can say what is meant by it.
    """
    made = _condition(condition)
    try:
        return truth_of(made.compute(Scope(context, Budget())))
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
_TROUBLES = (Trouble, TypeError, ValueError, ArithmeticError, RecursionError)


def _rendered(value: JsonValue, scope: Scope) -> JsonValue:
    if isinstance(value, str):
        return _text(value, scope)
    if isinstance(value, list):
        return [_rendered(item, scope) for item in value]
    if isinstance(value, Mapping):
        return {key: _rendered(item, scope) for key, item in value.items()}

    return value


def _text(template: str, scope: Scope) -> JsonValue:
    found = _computed(template, scope)
    if isinstance(found, str) or found is None:
        return found
    try:
        return plain(scope.budget, found)
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
    except Trouble as exc:
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
    if isinstance(exc, Trouble):
        return ExpressionError(exc.why, expression=expression, name=exc.name)
    if isinstance(exc, RecursionError):
        return ExpressionError("a value is nested too deeply", expression=expression)

    return ExpressionError(f"it has no value: {exc}", expression=expression)
