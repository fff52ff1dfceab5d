"""
Say whether the loop, the rules of retry, the sink and the next steps of a step are sound.

Pure. `step_checks` asks this of each step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from adws.adw_modules.connections import CONNECTION_TYPES, chosen
from adws.adw_modules.page_results import path_problem
from adws.adw_modules.phase_checks import CALL, RETRY_STRATEGIES, is_json, is_seconds, shown, why_outside
from adws.adw_modules.retry_policy import MAX_SECONDS
from adws.adw_modules.spelling import hint
from adws.adw_modules.step_templates import RESERVED, rule_paths
from adws.adw_modules.steps import (
    COLLECT_STRATEGIES,
    FAILURE_POLICIES,
    INPUTS_OF_TOOL,
    LOOP_MODES,
    ON_ERROR,
    ON_SUCCESS,
    SEQUENTIAL,
    SINK_MODES,
    SINK_OPTIONS,
    SINK_TOOLS,
    THRESHOLD,
    LoopSpec,
    RetryRule,
    SinkSpec,
    StepSpec,
)
from adws.adw_modules.workflow import KeyPath, Problem

#: The most of each number; each is at least 1.
MAX_CONCURRENCY = 1000
MAX_CHUNK = 10_000
MAX_ITERATIONS = 10_000_000
MAX_CALLS = 10_000

_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


def _problem(path: KeyPath, message: str) -> Problem:
    return Problem(path=path, message=message)


def _not_one_of(path: KeyPath, what: str, found: str, known: Sequence[str]) -> Iterator[Problem]:
    if found not in known:
        yield _problem(path, f"{found!r} is no {what}{hint(found, known)}")


def _out_of_range(path: KeyPath, value: int | None, most: int) -> Iterator[Problem]:
    if value is not None and not 1 <= value <= most:
        yield _problem(path, f"{path[-1]} is {value} and must be from 1 to {most}")


# --- loops -----------------------------------------------------------------------------------------------------


def loop_problems(step: StepSpec) -> Iterator[Problem]:
    """Yield what is wrong with the loop of *step*."""
    loop = step.loop
    if loop is not None:
        yield from (problem.below("loop") for problem in _of_loop(loop))


def _of_loop(loop: LoopSpec) -> Iterator[Problem]:
    if not (isinstance(loop.collection, list) and is_json(loop.collection, 20)) and not (
        isinstance(loop.collection, str) and "{{" in loop.collection
    ):
        rule = 'collection must be a list or a template of one, such as "{{ workload.users }}"'
        yield _problem(("collection",), f"{rule}, not {shown(loop.collection)}")
    if not _ELEMENT.fullmatch(loop.element) or loop.element in RESERVED:
        why = "it means something else in templates" if loop.element in RESERVED else "use letters, digits and '_'"
        yield _problem(("element",), f"{shown(loop.element)} cannot be the name of an element: {why}")
    yield from _not_one_of(("mode",), "mode of a loop", loop.mode, LOOP_MODES)
    yield from _out_of_range(("concurrency",), loop.concurrency, MAX_CONCURRENCY)
    yield from _out_of_range(("chunk_size",), loop.chunk_size, MAX_CHUNK)
    yield from _out_of_range(("limit",), loop.limit, MAX_ITERATIONS)
    if loop.mode == SEQUENTIAL and loop.concurrency > 1:
        rule = f'concurrency is {loop.concurrency}, and a sequential loop makes one call at a time: say mode = "async"'
        yield _problem(("concurrency",), rule)
    yield from _not_one_of(("on_failure",), "policy about failures", loop.on_failure, FAILURE_POLICIES)
    yield from _threshold_problems(loop)


def _threshold_problems(loop: LoopSpec) -> Iterator[Problem]:
    if loop.on_failure != THRESHOLD:
        if loop.threshold:
            yield _problem(("threshold",), 'threshold is for on_failure = "threshold": say that, or take it out')
        return
    if not 0 < loop.threshold <= MAX_ITERATIONS or (loop.threshold > 1 and loop.threshold != int(loop.threshold)):
        rule = "a share of all iterations below 1, or a whole number of them"
        yield _problem(("threshold",), f"threshold is {shown(loop.threshold)} and must be the most failures: {rule}")


# --- retry -----------------------------------------------------------------------------------------------------


def retry_problems(step: StepSpec) -> Iterator[Problem]:
    """Yield what is wrong with the rules of *step*."""
    for path, rule in rule_paths(step):
        yield from (problem.below(*path) for problem in (*_of_rule(rule), *_of_pages(rule, step.tool)))


def _of_rule(rule: RetryRule) -> Iterator[Problem]:
    yield from _not_one_of((), "kind of rule", rule.kind, (ON_ERROR, ON_SUCCESS))
    yield from _out_of_range(("max_attempts",), rule.max_attempts, MAX_CALLS)
    yield from _out_of_range(("max_same_failures",), rule.max_same_failures, MAX_CALLS)
    yield from _not_one_of(("backoff",), "way for a wait to grow", rule.strategy, RETRY_STRATEGIES)
    wrong = [name for name in ("base_seconds", "max_seconds") if not _is_wait(getattr(rule, name))]
    for name in wrong:
        said = shown(getattr(rule, name))
        yield _problem((name,), f"{name} is {said} and must be from 0 to {MAX_SECONDS:g} seconds")
    if not wrong and rule.base_seconds > rule.max_seconds:
        rule_of = f"max_seconds ({rule.max_seconds:g}) is less than base_seconds ({rule.base_seconds:g})"
        yield _problem(("max_seconds",), rule_of)


def _is_wait(value: float) -> bool:
    return is_seconds(value) and value >= 0


def _of_pages(rule: RetryRule, tool: str) -> Iterator[Problem]:
    if rule.kind == ON_ERROR:
        for name, usual in (("next_call", {}), ("collect", "replace"), ("merge_path", "")):
            if getattr(rule, name) != usual:
                yield _problem((name,), f"{name} is for on_success: a failed call is made again as it was")
        return
    if not rule.when.strip():
        yield _problem((), "on_success has no while: without one it would never end")
    known = INPUTS_OF_TOOL.get(tool, tuple(rule.next_call))
    for key in rule.next_call:
        if key not in known:
            yield _problem(("next_call", key), f"{key!r} is no input of the tool {tool}{hint(key, known)}")
    yield from _not_one_of(("collect",), "way to collect", rule.collect, COLLECT_STRATEGIES)
    if why := path_problem(rule.merge_path):
        yield _problem(("merge_path",), f"merge_path {why}")


# --- sinks -----------------------------------------------------------------------------------------------------


#: tool -> the keys it needs, and those it may have besides
_SINK_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sqlite": (("table",), ("connection", "key")),
    "postgres": (("table",), ("connection", "key")),
    "jsonl": (("path",), ()),
    "csv": (("path",), ()),
    "python": (("call",), ()),
}


def sink_problems(
    step: StepSpec, connections: Mapping[str, str] | None, sinks: Collection[str] = SINK_TOOLS
) -> Iterator[Problem]:
    """
    Yield what is wrong with the sink of *step*.

    *connections* has the type of each, None when they are not known; *sinks* are those there are.
    """
    sink = step.sink
    if sink is None:
        return
    if sink.tool not in sinks:
        yield _problem(("sink", "tool"), f"there is no sink {sink.tool!r}{hint(sink.tool, sinks)}")
        return
    yield from (problem.below("sink") for problem in (*_keys_of_sink(sink), *_of_sink(sink)))
    if connections is not None and sink.tool in CONNECTION_TYPES:
        yield from (problem.below("sink") for problem in _of_connection(sink, connections))


def _keys_of_sink(sink: SinkSpec) -> Iterator[Problem]:
    needed, possible = _SINK_KEYS.get(sink.tool, ((), ()))  # a plugin has options and nothing else
    for name in needed:
        if not getattr(sink, name):
            yield _problem((), f"a sink with the tool {sink.tool} needs {name}")
    for name in ("connection", "table", "key", "path", "call"):
        if getattr(sink, name) and name not in (*needed, *possible):
            yield _problem((name,), f"{name} is not for a sink with the tool {sink.tool}: take it out")


def _of_sink(sink: SinkSpec) -> Iterator[Problem]:
    yield from _not_one_of(("mode",), "mode of a sink", sink.mode, SINK_MODES)
    if sink.mode == "upsert" and sink.tool not in CONNECTION_TYPES:
        yield _problem(
            ("mode",), f"the sink {sink.tool} can only append: upsert is for {' and '.join(CONNECTION_TYPES)}"
        )
    elif (sink.mode == "upsert") != bool(sink.key) and sink.tool in CONNECTION_TYPES:
        yield _problem(("key",), "upsert needs key, the columns that make two rows the same; append has none")
    if sink.table and not _TABLE.fullmatch(sink.table):
        yield _problem(("table",), f"{shown(sink.table)} cannot be the name of a table: use letters, digits and '_'")
    for name in sink.key:
        if not _COLUMN.fullmatch(name):
            yield _problem(("key",), f"{shown(name)} cannot be the name of a column: use letters, digits and '_'")
    if sink.path and (why := why_outside(sink.path)):
        yield _problem(("path",), f"the path {shown(sink.path)} {why}")
    known = SINK_OPTIONS.get(sink.tool, tuple(sink.options))
    for name in sink.options:
        if name not in known:
            which = hint(name, known) if known else ", which has none"
            yield _problem(("options", name), f"{name!r} is no option of the sink {sink.tool}{which}")
    if sink.call and not CALL.fullmatch(sink.call):
        yield _problem(("call",), f"call is {shown(sink.call)} and must be of the form package.module:function")


def _of_connection(sink: SinkSpec, connections: Mapping[str, str]) -> Iterator[Problem]:
    if chosen(sink.connection, sink.tool, connections):
        return
    fitting = [name for name, kind in connections.items() if kind == sink.tool]
    if not sink.connection:
        what = (
            f"there are {', '.join(fitting)}: say which"
            if fitting
            else f"write [connections.NAME] type = {sink.tool!r}"
        )
        yield _problem((), f"a sink with the tool {sink.tool} needs connection; {what}")
    elif sink.connection in connections:
        kind = connections[sink.connection]
        yield _problem(("connection",), f"the connection {sink.connection} is of the type {kind}, not {sink.tool}")
    else:
        what = hint(sink.connection, connections) if connections else f": write [connections.{sink.connection}]"
        yield _problem(("connection",), f"there is no connection {sink.connection!r}{what}")


# --- what comes next -------------------------------------------------------------------------------------------


def next_problems(steps: Sequence[StepSpec]) -> Iterator[Problem]:
    """Yield what is wrong with the order of *steps*; paths begin at the list of them."""
    names = [step.name for step in steps]
    for index, step in enumerate(steps):
        for number, rule in enumerate(step.next):
            if rule.step and rule.step not in names:
                why = f"step {step.name!r}: next names {rule.step!r}, and there is no such step{hint(rule.step, names)}"
                yield _problem((index, "next", number), why)
            if not rule.when and number < len(step.next) - 1:
                why = (
                    f"step {step.name!r}: next has {rule.step!r} without a condition, so what follows is never reached"
                )
                yield _problem((index, "next", number), why)
    for circle in _circles(steps):
        said = " -> ".join((*circle, circle[0]))
        why = f"the steps {said} go round for ever: give one of them a next with when"
        yield _problem((names.index(circle[0]), "next"), why)


def _circles(steps: Sequence[StepSpec]) -> Iterator[tuple[str, ...]]:
    """Yield each ring of steps that go on to each other without a condition, from its first step on."""
    after: dict[str, str] = {}
    for index, step in enumerate(steps):
        if not step.next:
            after[step.name] = steps[index + 1].name if index + 1 < len(steps) else ""
        elif not step.next[0].when:
            after[step.name] = step.next[0].step
    seen: set[str] = set()
    for step in steps:
        way: list[str] = []
        name = step.name
        while name in after and name not in seen:
            seen.add(name)
            way.append(name)
            name = after[name]
        if name in way:
            yield tuple(way[way.index(name) :])
