"""
Steps as JSON: in the document, and in the row of an execution.

Words only. What is as usual is left out; what is missing is as usual, so that a later version may add fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TypeVar

from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.steps import LoopSpec, NextRule, RetryRule, SinkSpec, StepSpec

_Part = TypeVar("_Part", LoopSpec, NextRule, RetryRule, SinkSpec)


def step_to_json(step: StepSpec) -> JsonObject:
    """Return *step* as JSON."""
    found = _plain(step)
    if step.next:
        found["next"] = [_plain(rule) for rule in step.next]
    if step.loop is not None:
        found["loop"] = _plain(step.loop)
    if step.retry:
        found["retry"] = [_plain(rule) for rule in step.retry]
    if step.sink is not None:
        found["sink"] = _plain(step.sink)

    return found


def step_from_json(data: Mapping[str, object]) -> StepSpec:
    """Return the step written by `step_to_json`; raise TypeError when that is not whole. Unknown keys are left out."""
    if not isinstance(data, Mapping):
        raise TypeError(f"a step is {data!r}, and no table")
    values = {one.name: data[one.name] for one in fields(StepSpec) if one.name in data}
    for name, kind in (("next", NextRule), ("retry", RetryRule)):
        if name in data:
            values[name] = tuple(_made(kind, rule) for rule in _listed(data[name]))  # type: ignore[type-var]  # of _Part
    for name, part in (("loop", LoopSpec), ("sink", SinkSpec)):
        if name in data:
            values[name] = _made(part, data[name])  # type: ignore[type-var]  # of _Part

    return StepSpec(**values)  # type: ignore[arg-type]  # written by step_to_json


def _plain(part: StepSpec | LoopSpec | NextRule | RetryRule | SinkSpec) -> JsonObject:
    """Return the fields that are not as usual, but for parts that are nouns themselves."""
    found: JsonObject = {}
    for one in fields(part):
        value = getattr(part, one.name)
        usual = one.default_factory() if one.default_factory is not MISSING else one.default
        if value == usual or one.name in ("next", "loop", "retry", "sink"):
            continue
        found[one.name] = _json(value)

    return found


def _json(value: object) -> JsonValue:
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]

    return value  # type: ignore[return-value]  # a text, a number, true, false or null, as step_checks sees to


def _made(kind: type[_Part], data: object) -> _Part:
    if not isinstance(data, Mapping):
        raise TypeError(f"{kind.__name__} is {data!r}, and no table")
    values = {one.name: data[one.name] for one in fields(kind) if one.name in data}
    if "key" in values:
        values["key"] = tuple(str(name) for name in _listed(values["key"]))

    return kind(**values)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")

    return value
