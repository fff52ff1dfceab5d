"""
How far an attempt came with the steps of its phase: kept as a checkpoint after each step.

An attempt that waited goes on from it, and so does the next attempt of the same round: a step that is done is not done
again. Large results are kept apart, and a key stands for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from adws.adw_modules import expressions
from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.expressions import Rows, Value
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.steps import LoopSpec, StepSpec

#: Characters of JSON of the results of a loop that stand in the checkpoint itself, which has those of all steps.
MAX_INLINE = 64 * 1024
#: Steps that an attempt may go through, those that it comes to again counted.
MAX_VISITS = 10_000


@dataclass(kw_only=True, slots=True)
class Progress:
    """What is done."""

    at: str | None = None  #: the step that comes next, "" at the end, None at the beginning
    steps: JsonObject = field(default_factory=dict)  #: results by name, null for one that was skipped
    statuses: JsonObject = field(default_factory=dict)  #: completed | skipped
    vars: JsonObject = field(default_factory=dict)
    visits: JsonObject = field(default_factory=dict)  #: how often each step was begun
    execution: str = ""  #: what the step that comes next waits for
    call: str = ""  #: the single call with a sink that was begun
    metas: list[JsonValue] = field(default_factory=list)  #: what single calls used that no attempt has reported yet
    began_at: str = ""  #: when the step that comes next was begun
    told: int = 0  #: events
    last_event: str = ""  #: the last one of them

    def to_json(self) -> JsonObject:
        """Return it as a checkpoint."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Progress:
        """Return what `to_json` wrote."""
        known = {one.name: data[one.name] for one in fields(cls) if one.name in data}

        return cls(**known)  # type: ignore[arg-type]  # written by to_json

    def visit(self, step: str) -> int:
        """Count that a step is begun, and return how often it was; raise ExpressionError when all that has no end."""
        known = [count for count in self.visits.values() if isinstance(count, int)]
        if sum(known) >= MAX_VISITS:
            raise ExpressionError(f"its steps were begun {MAX_VISITS} times: look at next of step {step}", name=step)
        before = self.visits.get(step)
        count = (before if isinstance(before, int) else 0) + 1
        self.visits[step] = count

        return count

    def finish(self, step: str, status: str, stored: JsonValue) -> None:
        """Note the result of a step."""
        self.steps[step] = stored
        self.statuses[step] = status
        self.execution = self.call = ""


def next_step(steps: tuple[StepSpec, ...], step: StepSpec, values: Mapping[str, Value]) -> str:
    """Return the name of the step after *step*, "" at the end of the phase."""
    for rule in step.next:
        if not rule.when or expressions.holds(rule.when, values):
            return rule.step
    names = [one.name for one in steps]
    place = names.index(step.name) + 1

    return names[place] if place < len(names) else ""


# --- loops -----------------------------------------------------------------------------------------------------


def elements_of(loop: LoopSpec, values: Mapping[str, Value]) -> Iterator[JsonValue]:
    """Yield what each iteration gets: elements that are meant, in their order, in pieces where that is asked for."""
    found = _meant(loop, _collection(loop, values), values)
    pieces = found if loop.chunk_size is None else _pieces(found, loop.chunk_size)
    for number, piece in enumerate(pieces):
        if loop.limit is not None and number >= loop.limit:
            return
        yield piece


def _collection(loop: LoopSpec, values: Mapping[str, Value]) -> Iterator[JsonValue]:
    found = loop.collection
    value = expressions.evaluate(found, values) if isinstance(found, str) else expressions.render(found, values)
    if isinstance(value, list | Rows):
        return iter(value)
    if isinstance(value, dict):
        return iter([{"key": key, "value": item} for key, item in value.items()])

    raise ExpressionError(
        f"a loop goes over a list, and its collection is {json.dumps(value)[:60]}", expression=str(found)
    )


def _meant(loop: LoopSpec, elements: Iterator[JsonValue], values: Mapping[str, Value]) -> Iterator[JsonValue]:
    if loop.where:
        elements = (one for one in elements if expressions.holds(loop.where, {**values, loop.element: one}))
    if not loop.order_by:
        return elements
    by = loop.order_by if "{{" in loop.order_by else f"{{{{ {loop.order_by} }}}}"
    keyed = [(expressions.render(by, {**values, loop.element: one}), one) for one in elements]
    try:
        keyed.sort(key=lambda pair: pair[0])  # type: ignore[arg-type, return-value]  # said below when they do not sort
    except TypeError as exc:
        raise ExpressionError(f"its values have no order: {exc}", expression=loop.order_by) from exc

    return iter([one for _key, one in keyed])


def _pieces(elements: Iterator[JsonValue], size: int) -> Iterator[JsonValue]:
    piece: list[JsonValue] = []
    for one in elements:
        piece.append(one)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece
