"""
Say whether each field of a step has the type it is declared with, as a definition made in Python may not.

Pure. Only when all are as declared can be asked what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from adws.adw_modules.phase_checks import shown
from adws.adw_modules.steps import LoopSpec, NextRule, RetryRule, SinkSpec, StepSpec
from adws.adw_modules.workflow import KeyPath, Problem


def shape_problems(step: StepSpec) -> list[Problem]:
    """Return a problem for each field of another type than it is declared with."""
    found = list(_wrong(step, "", ()))
    if found:
        return found

    return [
        problem
        for part, path in (
            (step.loop, ("loop",)),
            (step.sink, ("sink",)),
            *((rule, ("retry", index)) for index, rule in enumerate(step.retry)),
            *((rule, ("next", index)) for index, rule in enumerate(step.next)),
        )
        if part is not None
        for problem in _wrong(part, f"{path[0]}.", path)
    ]


def _wrong(
    part: StepSpec | LoopSpec | RetryRule | SinkSpec | NextRule, before: str, path: KeyPath
) -> Iterator[Problem]:
    for name, (rule, is_right) in _TYPES[type(part)].items():
        value = getattr(part, name)
        if not is_right(value):
            yield Problem(path=(*path, name), message=f"{before}{name} must be {rule}, not {shown(value)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _tuple_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


_TEXT = ("a text", lambda value: isinstance(value, str))
_WHOLE = ("a whole number", _is_whole)
_NUMBER = ("a number", _is_number)
_TABLE = ("a mapping of texts", _is_table)
_MAYBE_WHOLE = ("a whole number or None", lambda value: value is None or _is_whole(value))

_Rule = tuple[str, Callable[[object], bool]]
_TYPES: Mapping[type, Mapping[str, _Rule]] = MappingProxyType(
    {
        StepSpec: {
            **dict.fromkeys(("name", "tool", "when"), _TEXT),
            **dict.fromkeys(("inputs", "vars"), _TABLE),
            "timeout_seconds": _NUMBER,
            "next": ("a tuple of NextRules", _tuple_of(NextRule)),
            "retry": ("a tuple of RetryRules", _tuple_of(RetryRule)),
            "loop": ("a LoopSpec or None", lambda value: value is None or isinstance(value, LoopSpec)),
            "sink": ("a SinkSpec or None", lambda value: value is None or isinstance(value, SinkSpec)),
        },
        LoopSpec: {
            **dict.fromkeys(("element", "mode", "where", "order_by", "on_failure"), _TEXT),
            "concurrency": _WHOLE,
            **dict.fromkeys(("chunk_size", "limit"), _MAYBE_WHOLE),
            "threshold": _NUMBER,
        },
        RetryRule: {
            **dict.fromkeys(("kind", "when", "strategy", "collect", "merge_path"), _TEXT),
            **dict.fromkeys(("max_attempts", "max_same_failures"), _WHOLE),
            **dict.fromkeys(("base_seconds", "max_seconds"), _NUMBER),
            "next_call": _TABLE,
        },
        SinkSpec: {
            **dict.fromkeys(("tool", "connection", "table", "path", "mode", "call", "rows"), _TEXT),
            "key": ("a tuple of texts", _tuple_of(str)),
            "options": _TABLE,
        },
        NextRule: dict.fromkeys(("step", "when"), _TEXT),
    }
)
