"""
What steps know, and what the events of an execution show of it.

Decisions are made on the whole. Events get the keys that explain an execution and nothing else: secrets taken out,
large values replaced by their size, results of steps by what kind of thing they were. Long results of loops stay in
the database and are read when a template asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from adws.adw_modules.executions import Executions, NewExecution
from adws.adw_modules.expressions import Rows, Value
from adws.adw_modules.json_value import JsonObject, JsonValue

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: Characters of JSON of one value in an event.
MAX_VALUE = 10_000
#: Characters of JSON of the context of an event, of which every call makes two.
MAX_SMALL = 2_000
#: The key of a table that stands for the results of an execution.
REFERENCE = "_execution"
#: The key of a table that stands for the large result of a single call.
KEPT = "_kept"

_SHOWN = ("workload", "vars")


def truncated(size: int) -> JsonObject:
    """Return what stands for a value of so many characters."""
    return {"_truncated": True, "_size": size}


def limited(value: JsonValue) -> JsonValue:
    """Return *value*, or what is left of it when it is large: the small ones of its keys, or its size."""
    size = len(json.dumps(value))
    if size <= MAX_VALUE:
        return value
    if isinstance(value, dict):
        smaller: JsonObject = {key: limited(item) for key, item in value.items()}
        if len(json.dumps(smaller)) <= MAX_VALUE:
            return smaller

    return truncated(size)


def event_contexts(new: NewExecution, redact: Callable[[JsonValue], JsonValue]) -> tuple[JsonObject, JsonObject]:
    """Return what the first event of an execution shows of its context, and what all others do."""
    steps = new.context.get("steps")
    whole: JsonObject = {
        "execution_id": new.execution_id,
        "parent_execution_id": new.parent_execution_id,
        "catalog_id": new.catalog_id,
        **{name: limited(redact(new.context[name])) for name in _SHOWN if new.context.get(name)},
        "_step_results": {
            name: result_facts(value) for name, value in (steps if isinstance(steps, dict) else {}).items()
        },
    }
    if len(json.dumps(whole)) <= MAX_SMALL:
        return whole, whole
    small = {
        name: value if name not in _SHOWN or len(json.dumps(value)) < MAX_SMALL // 4 else truncated(len(str(value)))
        for name, value in whole.items()
    }
    if len(json.dumps(small)) > MAX_SMALL:
        small["_step_results"] = truncated(len(json.dumps(whole["_step_results"])))

    return whole, small


def result_facts(value: JsonValue) -> JsonObject:
    """Return what a context says about the result of a step: what kind of thing it is, and not the thing."""
    kinds = {dict: "dict", list: "list", str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}
    has_data = value is not None and value not in ([], {}, "")

    return {"has_data": has_data, "status": "success", "data_type": kinds[type(value)]}


# --- what templates know ---------------------------------------------------------------------------------------


def known_of(
    document: WorkflowDocument, phases: Mapping[str, JsonObject], steps: JsonObject, variables: JsonObject
) -> JsonObject:
    """Return what every template of a phase knows; `vars` are those of the phases before, and of the steps so far."""
    issue: JsonObject = {"number": document.issue_number}
    if document.issue is not None:
        issue |= document.issue.model_dump(mode="json", include={"title", "body", "author", "url", "labels"})
    before: JsonObject = {}
    for result in phases.values():
        found = result.get("vars")
        before |= found if isinstance(found, dict) else {}

    return {
        "issue": issue,
        "workload": dict(document.workflow.workload) if document.workflow is not None else {},
        "vars": {**before, **variables},
        "steps": steps,
        "phases": dict(phases),
    }


def resolved(context: JsonObject, executions: Executions) -> dict[str, Value]:
    """Return a stored context with what stands for long results replaced by these, which are read when asked for."""
    steps = context.get("steps")
    values: dict[str, Value] = dict(context)
    if isinstance(steps, dict):
        read: dict[str, Value] = {name: read_result(value, executions) for name, value in steps.items()}
        values["steps"] = read  # type: ignore[assignment]  # rows may stand wherever a value may

    return values


def read_result(value: JsonValue, executions: Executions) -> Value:
    """Return the stored result of a step as templates know it."""
    if not isinstance(value, dict):
        return value
    kept, results = value.get(KEPT), value.get("results")
    if isinstance(kept, str) and len(value) == 1:
        return executions.kept(kept)
    if isinstance(results, dict) and isinstance(results.get(REFERENCE), str):
        total = value.get("total")
        rows = ResultRows(executions, str(results[REFERENCE]), total if isinstance(total, int) else 0)
        return {**value, "results": rows}  # type: ignore[dict-item]  # Rows are values too

    return value


class ResultRows(Rows):
    """The results of an execution, in the order of its collection; null for an iteration that gave none."""

    def __init__(self, executions: Executions, execution_id: str, total: int) -> None:
        self._executions = executions
        self._id = execution_id
        self._total = total

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[JsonValue]:
        return (result for _index, _state, result in self._executions.results(self._id))

    @overload
    def __getitem__(self, index: int) -> JsonValue: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[JsonValue]: ...
    def __getitem__(self, index: int | slice) -> JsonValue | Sequence[JsonValue]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._total))]
        place = index + self._total if index < 0 else index
        if not 0 <= place < self._total:
            raise IndexError(f"there are {self._total} results, and no number {index}")

        return next(result for _index, _state, result in self._executions.results(self._id, first=place))
