"""
Decide what follows one call of a step: repeat the call, request the next page, or end the iteration.

Pure. The first rule of the step that matches the whole response or error decides. The number of calls comes from the
iteration row alone. The decision is stored in the event of the call (`data.retry`), from which later decisions and a
replay of the log read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from adws.adw_modules.error_handler import ErrorFacts
from adws.adw_modules.error_tables import ErrorCategory
from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.expressions import expressions
from adws.adw_modules.expressions.values import Value, kind_of
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.retry_handler import Backoff, Retry, RetryPolicies, decide
from adws.adw_modules.steps.http_client import origin_of
from adws.adw_modules.steps.model import Assignment, CallReport, Iteration, NewExecution
from adws.adw_modules.workflow.model import (
    ACCEPT,
    COLLECT_STRATEGIES,
    NO_TEMPLATES,
    ON_ERROR,
    ON_SUCCESS,
    BackoffStrategy,
    RetryRule,
    StepSpec,
)

APPEND, REPLACE, COLLECT, MERGE = COLLECT_STRATEGIES


def at_path(value: JsonValue, path: str) -> JsonValue:
    """Return the value at *path* in *value*, such as `data.items` or `pages.0.rows`; *value* itself for ""."""
    result, way = value, "the result"
    for key in path.split(".") if path else ():
        if isinstance(result, Mapping) and key in result:
            result = result[key]
        elif isinstance(result, list) and key.isdecimal() and int(key) < len(result):
            result = result[int(key)]
        else:
            raise ExpressionError(f"merge_path {path}: there is no {key} in {way}{_has(result)}", name=key)
        way = key if way == "the result" else f"{way}.{key}"

    return result


def part_of_page(strategy: str, result: JsonValue, merge_path: str) -> JsonValue:
    """Return the part of a page that is kept; raise ExpressionError if *strategy* cannot use it."""
    part = at_path(result, merge_path)
    needed = {APPEND: list, MERGE: dict}.get(strategy)
    if needed is not None and not isinstance(part, needed):
        kind = "a list" if needed is list else "a table"
        where = f"at {merge_path} in the result" if merge_path else "as the result"
        why = f"{strategy} needs {kind} {where}, and there is {kind_of(part)}: look at merge_path"
        raise ExpressionError(why, name=merge_path)

    return part


def collected(strategy: str, parts: Iterable[Any]) -> JsonValue:
    """Return the parts of all pages (made by `part_of_page`) combined in page order."""
    if strategy == COLLECT:
        return list(parts)
    if strategy == APPEND:
        return [item for part in parts for item in part]

    result: JsonObject = {}
    for part in parts:
        result = merged(result, part)

    return result


def merged(first: JsonObject, second: JsonObject) -> JsonObject:
    """Merge two tables recursively; a value of *second* that is not a table replaces that of *first*."""
    result = dict(first)
    for key, value in second.items():
        before = result.get(key)
        result[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value

    return result


def _has(value: JsonValue) -> str:
    if isinstance(value, Mapping):
        return f"; it has: {', '.join(list(value)[:10])}" if value else ", it is empty"

    return f", which is {kind_of(value)}"


#: Most repetitions of a call whose worker vanished.
MAX_INTERRUPTIONS = 5
#: The rule stored for such a repetition.
INTERRUPTION = "interrupted"
#: The error of such a call, in the form of the error classifier.
INTERRUPTED: Mapping[str, JsonValue] = MappingProxyType(
    {
        "type": "Interrupted",
        "category": ErrorCategory.TRANSIENT.value,
        "klass": "interrupted",
        "recoverable": True,
        "message": "the worker that made the call vanished",
        "has_stack_trace": False,
    }
)

COMPLETED, EXHAUSTED, FAILED = "completed", "exhausted", "failed"

#: Characters of a digest in `marks`.
_DIGEST = 16

#: Makes the values available to templates; called only if a rule needs them.
Values = Callable[[], Mapping[str, Value]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What follows from a call, and what the iteration row records about it."""

    facts: JsonObject  #: for the event: again, after_seconds, page, call, rule | sequence, reason, is_cut
    fingerprint: str = ""
    same_failures: int = 0
    marks: str = ""
    part: JsonValue = None  #: the part of this page that is kept
    keeps_part: bool = False


def values_of(
    new: NewExecution, known: Mapping[str, Value], *, index: int, element: JsonValue, attempt: int, page: int
) -> dict[str, Value]:
    """Return the values available to the templates of one call."""
    values = {**known, "attempt": attempt, "page": page}
    if new.step.loop is not None:
        values["index"] = index
        values[new.step.loop.element] = element

    return values


def inputs_of(step: StepSpec, assignment: Assignment, values: Mapping[str, Value]) -> JsonObject:
    """
    Return the inputs of a call: the rendered inputs of the step, overridden by what the previous page requested.

    Content of a response is never rendered as a template, and cannot send credentials to another host.
    """
    filled: JsonObject = {
        key: value if key in NO_TEMPLATES else expressions.render(value, values) for key, value in step.inputs.items()
    }

    if not assignment.call:
        return filled
    if filled.get("headers_env") and "url" in assignment.call:
        own, asked = str(filled.get("url")), str(assignment.call["url"])
        if origin_of(own) != origin_of(asked):
            there, here = (origin_of(url)[1] or url[:60] for url in (asked, own))
            why = f"the next page is asked of {there}, and headers_env is for {here}: credentials go to no other host"
            raise ExpressionError(why, name="url")

    return merged(filled, assignment.call)


def collecting(step: StepSpec) -> RetryRule | None:
    """Return the rule that says how the pages of *step* are collected, or None if it has no pages."""
    return next((rule for rule in step.retry if rule.kind == ON_SUCCESS), None)


def judge(
    step: StepSpec,
    row: Iteration,
    report: CallReport | None,
    values: Values,
    *,
    now: datetime,
    random: float | None = None,
) -> Judgement:
    """Return what follows from *report*; None means that the call was interrupted and has no report."""
    fingerprint, same = row.fingerprint, row.same_failures
    try:
        if report is not None and report.ok:
            return _after_success(step, row, report, values, random)
        if report is not None:
            same = same + 1 if report.fingerprint and report.fingerprint == fingerprint else 1
            fingerprint = report.fingerprint
            facts = _after_failure(step, row, report.error or {}, same, values, now=now, random=random)
        # A vanished worker uses up no rule: it had several calls, and which of them crashed it is unknown.
        elif row.interruptions >= MAX_INTERRUPTIONS:
            facts = _over(step, FAILED, f"{row.interruptions + 1} workers vanished while they made this call")
        else:
            call = json.loads(row.call)
            facts = {"again": True, "rule": INTERRUPTION, "page": row.page, "after_seconds": 0.0, "call": call}
    except ExpressionError as exc:
        return Judgement(facts=_over(step, FAILED, str(exc)), marks=row.marks)

    return Judgement(facts=facts, fingerprint=fingerprint, same_failures=same, marks=row.marks)


def _over(step: StepSpec, sequence: str, reason: str = "") -> JsonObject:
    """Return the facts of an ended iteration; a sequence is reported only if the step has rules."""
    if not step.retry and sequence == COMPLETED:
        return {}
    result: JsonObject = {"again": False, "reason": reason} if reason else {"again": False}
    if step.retry or sequence != FAILED:
        result["sequence"] = sequence

    return result


def _after_success(
    step: StepSpec, row: Iteration, report: CallReport, values: Values, random: float | None
) -> Judgement:
    """Return whether the next page is requested, by the first success rule whose condition holds."""
    collector = collecting(step)
    if collector is None:
        return Judgement(facts=_over(step, COMPLETED))
    part = part_of_page(collector.collect, report.result, collector.merge_path)
    known = {**values(), "response": report.result, "attempt": row.attempts, "page": row.page}
    rules = (one for one in step.retry if one.kind == ON_SUCCESS and expressions.holds(one.when or "true", known))
    rule = next(rules, None)
    if rule is None:
        return Judgement(facts=_over(step, COMPLETED), part=part, keeps_part=True)
    if row.page >= rule.max_attempts:
        why = f"{row.page} of {rule.max_attempts} calls are made, and {rule.when} still holds"
        if rule.on_limit != ACCEPT:
            return Judgement(facts=_over(step, EXHAUSTED, why), part=part, keeps_part=True)
        cut: JsonObject = {"is_cut": True, "rule": ON_SUCCESS, "max_attempts": rule.max_attempts}
        return Judgement(facts={**_over(step, COMPLETED, why), **cut}, part=part, keeps_part=True)

    asked: JsonObject = {key: expressions.render(value, known) for key, value in rule.next_call.items()}
    call = merged(json.loads(row.call), asked)
    marks = row.marks
    if rule.next_call:
        text = json.dumps(call, sort_keys=True)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        if digest in marks.split():
            said = json.dumps(asked, ensure_ascii=False)[:200]
            why = f"no progress: after page {row.page} the same call is asked for that was made before: {said}"
            return Judgement(facts=_over(step, FAILED, why), part=part, keeps_part=True)
        marks = f"{marks} {digest}".strip()
    # Pages follow each other without a growing delay; polling waits longer each time.
    wait = _backoff(rule).delay(0 if rule.next_call else row.page - 1, random)
    facts: JsonObject = {
        "again": True,
        "rule": ON_SUCCESS,
        "page": row.page + 1,
        "after_seconds": round(wait, 6),
        "call": call,
        "max_attempts": rule.max_attempts,
    }

    return Judgement(facts=facts, marks=marks, part=part, keeps_part=True)


def _after_failure(
    step: StepSpec,
    row: Iteration,
    error: JsonObject,
    same: int,
    values: Values,
    *,
    now: datetime,
    random: float | None = None,
) -> JsonObject:
    """Return whether a failed call is repeated, by the first error rule whose condition holds."""
    message = str(error.get("message") or error.get("type") or "the call failed")[:500]
    known: Mapping[str, Value] | None = None
    for rule in step.retry:
        if rule.kind != ON_ERROR:
            continue
        if rule.when and known is None:
            known = {**values(), "error": error, "attempt": row.attempts, "page": row.page}
        if not rule.when or expressions.holds(rule.when, known or {}):
            break
    else:
        return _over(step, FAILED, message)

    calls = row.same_call - row.interruptions
    if same >= rule.max_same_failures > 0 and calls < rule.max_attempts:
        return _over(step, EXHAUSTED, f"the same failure came {same} times in a row: {message}")
    if error.get("category") not in {category.value for category in ErrorCategory}:
        error = {**error, "category": ErrorCategory.FATAL.value}
    facts, waits = ErrorFacts.from_json(error), _backoff(rule)
    if rule.when and not facts.recoverable:  # an error matched by a condition is retried whatever its category
        facts = replace(facts, category=ErrorCategory.TRANSIENT, recoverable=True, metadata={})
    decision = decide(
        facts,
        attempts_used=calls,
        max_attempts=rule.max_attempts,
        policy=RetryPolicies(
            transient=waits, rate_limit=waits, resource=waits, keeps_class_delay=False, keeps_class_retries=False
        ),
        now=now,
        random=random,
    )
    if not isinstance(decision, Retry):
        is_used_up = decision.terminal_reason == "MAX_ATTEMPTS_EXHAUSTED"
        return _over(step, EXHAUSTED if is_used_up else FAILED, decision.reason)

    return {
        "again": True,
        "rule": ON_ERROR,
        "page": row.page,
        "after_seconds": round(decision.delay_seconds, 6),
        "call": json.loads(row.call),
        "max_attempts": rule.max_attempts,
    }


def _backoff(rule: RetryRule) -> Backoff:
    return Backoff(
        base_seconds=rule.base_seconds,
        max_seconds=max(rule.max_seconds, rule.base_seconds),
        strategy=BackoffStrategy(rule.strategy),
    )
