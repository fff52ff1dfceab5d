"""
The values available to the templates of steps, and the extract of them that the events of an execution show.

Decisions use the full values. Events get only the keys that explain an execution: with secrets redacted, large values
replaced by their size, and step results by their kind. Long results of loops stay in the database and are read when a
template needs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from adws.adw_modules.expressions.values import Rows, Value
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.steps.execution_update import MAX_VALUE, REFERENCE, truncated
from adws.adw_modules.steps.model import NewExecution

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.redaction.redactor import Redactor
    from adws.adw_modules.steps.store import Executions

#: Characters of JSON for the short context of an event; every call makes two events.
MAX_SMALL = 2_000
#: The key of a table that replaces a large result, and its key for the kind of that result.
KEPT, _KIND = "_kept", "_type"

_SHOWN = ("workload", "vars")
_KINDS = {dict: "dict", list: "list", str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}


def limited(value: JsonValue) -> JsonValue:
    """Return *value* if it is small; else a table with its large values truncated, or only its size."""
    size = len(json.dumps(value))
    if size <= MAX_VALUE:
        return value
    if isinstance(value, dict):
        smaller: JsonObject = {key: limited(item) for key, item in value.items()}
        if len(json.dumps(smaller)) <= MAX_VALUE:
            return smaller

    return truncated(size)


def shown_context(
    ids: Mapping[str, JsonValue],
    context: JsonObject,
    redactor: Redactor,
    statuses: Mapping[str, JsonValue] = MappingProxyType({}),
) -> JsonObject:
    """Return the extract of a phase's template values that an event shows; *statuses* are those of the steps."""
    steps = context.get("steps")

    return {
        **ids,
        **{name: limited(redactor.redact(context[name])) for name in _SHOWN if context.get(name)},
        "_step_results": {
            name: result_facts(value, status="skipped" if statuses.get(name) == "skipped" else "success")
            for name, value in (steps if isinstance(steps, dict) else {}).items()
        },
    }


def event_contexts(new: NewExecution, redactor: Redactor) -> tuple[JsonObject, JsonObject]:
    """Return two contexts: for the first and last event of an execution, and for all events between."""
    ids: JsonObject = {
        "execution_id": new.execution_id,
        "parent_execution_id": new.parent_execution_id,
        "catalog_id": new.catalog_id,
    }
    whole = shown_context(ids, new.context, redactor)
    if len(json.dumps(whole)) <= MAX_SMALL:
        return whole, whole
    sizes = {name: len(json.dumps(value)) for name, value in whole.items()}
    small = {
        name: value if name not in _SHOWN or sizes[name] < MAX_SMALL // 4 else truncated(sizes[name])
        for name, value in whole.items()
    }
    if len(json.dumps(small)) > MAX_SMALL:
        small["_step_results"] = truncated(sizes["_step_results"])

    return whole, small


def result_facts(value: JsonValue, *, status: str = "success") -> JsonObject:
    """Return what a context shows of a step's result: whether it has data, its status and its kind."""
    has_data = value is not None and value not in ([], {}, "")
    kind = value[_KIND] if isinstance(value, dict) and KEPT in value and _KIND in value else _KINDS[type(value)]

    return {"has_data": has_data, "status": status, "data_type": kind}


# --- large results ---------------------------------------------------------------------------------------------


def stored_result(result: JsonValue, key: str, executions: Executions) -> JsonValue:
    """
    Return what is stored in place of a result: the result itself, or a reference to the key that stores it.

    A result that merely looks like a reference is stored under a key, too: results come from outside.
    """
    size = len(json.dumps(result))
    if size <= MAX_VALUE and not _is_reference(result):
        return result
    executions.keep(key, result)

    return {KEPT: key, _KIND: _KINDS[type(result)], **truncated(size)}


def _is_reference(value: JsonValue) -> bool:
    if not isinstance(value, dict):
        return False
    results = value.get("results")

    return KEPT in value or (isinstance(results, dict) and REFERENCE in results)


# --- template values -------------------------------------------------------------------------------------------


def known_of(
    document: WorkflowDocument, phases: Mapping[str, JsonObject], steps: JsonObject, variables: JsonObject
) -> JsonObject:
    """Return the values for all templates of a phase; `vars` merges those of earlier phases and of the steps so far."""
    issue: JsonObject = {"number": document.issue_number}
    if document.issue is not None:
        issue |= document.issue.model_dump(mode="json", include={"title", "body", "author", "url", "labels"})
    before: JsonObject = {}
    for result in phases.values():
        variables_before = result.get("vars")
        before |= variables_before if isinstance(variables_before, dict) else {}

    return {
        "issue": issue,
        "workload": dict(document.workflow.workload) if document.workflow is not None else {},
        "vars": {**before, **variables},
        "steps": steps,
        "phases": dict(phases),
    }


def resolved(context: JsonObject, executions: Executions, adw_id: str) -> dict[str, Value]:
    """Return a stored context with the references to large results of *adw_id* resolved."""
    steps, phases = context.get("steps"), context.get("phases")
    values: dict[str, Any] = dict(context)
    if isinstance(steps, dict):
        values["steps"] = {name: read_result(value, executions, adw_id) for name, value in steps.items()}
    if isinstance(phases, dict):
        values["phases"] = {
            name: {**phase, "result": read_result(phase["result"], executions, adw_id)}
            if isinstance(phase, dict) and "result" in phase
            else phase
            for name, phase in phases.items()
        }

    return values


def read_result(value: JsonValue, executions: Executions, adw_id: str) -> Value:
    """Return a stored step result as templates see it; results of loops are read lazily."""
    if not isinstance(value, dict) or not _is_reference(value):
        return value
    kept, results, ours = value.get(KEPT), value.get("results"), f"{adw_id}."
    if isinstance(kept, str):
        return executions.kept(kept) if kept.startswith(ours) else value
    if isinstance(results, dict) and str(results[REFERENCE]).startswith(ours):
        total = value.get("total")
        rows = ResultRows(executions, str(results[REFERENCE]), total if isinstance(total, int) else 0)
        return {**value, "results": rows}  # type: ignore[dict-item]  # Rows are values too

    return value


class ResultRows(Rows):
    """The results of an execution in the order of its collection; null for an iteration without a result."""

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
            raise IndexError(f"there is no result number {index}: there are {self._total}")

        return next(result for _index, _state, result in self._executions.results(self._id, first=place))
