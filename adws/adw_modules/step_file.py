"""
Read the steps of a phase that a user writes in `adw.toml`.

Words only. A step may be written in several ways, each of which means one thing: `retry = true`, `retry = 5`, a table,
tables `on_error` and `on_success`, or a list of rules. Whether the whole is sound is for `step_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from adws.adw_modules import table_values
from adws.adw_modules.json_value import JsonValue
from adws.adw_modules.spelling import hint
from adws.adw_modules.steps import (
    ASYNC,
    DEFAULT_CONCURRENCY,
    INPUTS_OF_TOOL,
    ON_ERROR,
    ON_SUCCESS,
    SINK_TOOLS,
    TOOLS,
    LoopSpec,
    NextRule,
    RetryRule,
    SinkSpec,
    StepSpec,
)
from adws.adw_modules.table_reading import Key, Refused, keys_of, list_of, read_table, whole_table
from adws.adw_modules.table_values import BadValue
from adws.adw_modules.workflow import Problem

#: Calls of a step that goes on by `on_success`, unless it says otherwise: pages are many.
DEFAULT_PAGES = 100

_WORD = re.compile(r"\b(error|response)\b")


def read_steps(value: object) -> tuple[StepSpec, ...]:
    """Return the steps in a list of tables; raise Refused with all that is wrong in them."""
    if not isinstance(value, list):
        raise BadValue("must be a list of tables, each begun by [[workflows.NAME.phases.steps]]")
    found: list[StepSpec] = []
    problems: list[Problem] = []
    for index, raw in enumerate(value):
        wrong: list[Problem] = []
        step = _read_step(raw, wrong)
        who = f"step {step.name!r}" if step.name else f"step number {index + 1}"
        problems += [Problem(path=(index, *one.path), message=f"{who}: {one.message}") for one in wrong]
        found.append(step)
    if problems:
        raise Refused(problems)

    return tuple(found)


def _read_step(raw: object, problems: list[Problem]) -> StepSpec:
    fields: dict[str, object] = {}
    try:
        table = table_values.table(raw)
    except BadValue as exc:
        problems.append(Problem(path=(), message=f"it {exc}"))
        return StepSpec(name="", tool="")
    tool = table.get("tool")
    fields = read_table(table, {**STEP_KEYS, **_input_keys(tool)}, _kind_of(tool), problems, elsewhere=_misplaced(tool))
    own = {key.field for key in STEP_KEYS.values()}
    inputs = {name: fields.pop(name) for name in list(fields) if name not in own}
    unread = {problem.path[:1] for problem in problems}
    for name, words in (("name", "give it one"), ("tool", f"say which it calls, one of {', '.join(TOOLS)}")):
        if not fields.get(name) and (name,) not in unread:
            problems.append(Problem(path=(), message=f"it has no {name}: {words}"))
        fields.setdefault(name, "")

    return StepSpec(inputs=inputs, **fields)  # type: ignore[arg-type]  # the readers of STEP_KEYS saw to the types


def _kind_of(tool: object) -> str:
    return f"a step with the tool {tool}" if tool in TOOLS else "a step"


def _input_keys(tool: object) -> Mapping[str, Key]:
    """Return the keys that are inputs of *tool*; of all tools when there is no such tool, which is told elsewhere."""
    tools = [tool] if tool in TOOLS else TOOLS

    return {name: Key(name, json_value) for one in tools for name in INPUTS_OF_TOOL[str(one)]}


def _misplaced(tool: object) -> Mapping[str, str]:
    """Return a sentence for each input of another tool."""
    own = INPUTS_OF_TOOL.get(str(tool), ())

    return {
        name: f"{name} is for the tool {other}, and the tool here is {tool}: take one of them out"
        for other, names in INPUTS_OF_TOOL.items()
        for name in names
        if name not in own
    }


def json_value(value: object) -> JsonValue:
    """Return a value that can be kept as JSON."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}

    raise BadValue(f"holds {value}, which JSON does not have: write it as a text")


def json_table(value: object) -> Mapping[str, JsonValue]:
    """Return a table of values that can be kept as JSON."""
    return {str(key): json_value(item) for key, item in table_values.table(value).items()}


# --- loops -----------------------------------------------------------------------------------------------------


def _loop(value: object) -> LoopSpec:
    if isinstance(value, str | list):
        return LoopSpec(collection=json_value(value))
    if not isinstance(value, Mapping):
        raise BadValue('must be a table such as {collection = "{{ workload.users }}", element = "user"}')
    fields = whole_table(value, LOOP_KEYS, "loop")
    if "collection" not in fields:
        raise Refused([Problem(path=(), message="loop has no collection: give a template of a list, or a list")])
    if fields.get("mode") == ASYNC:
        fields.setdefault("concurrency", DEFAULT_CONCURRENCY)

    return LoopSpec(**fields)  # type: ignore[arg-type]  # the readers of LOOP_KEYS saw to the types


# --- retry -----------------------------------------------------------------------------------------------------


def _retry(value: object) -> tuple[RetryRule, ...]:
    if value is False:
        return ()
    if isinstance(value, list):
        return tuple(list_of(value, _rule, "a rule"))  # type: ignore[arg-type]  # _rule makes RetryRules
    if isinstance(value, Mapping) and {ON_ERROR, ON_SUCCESS} & value.keys():
        fields = whole_table(value, _RETRY_TABLES, "retry with on_error or on_success")
        return tuple(rule for rule in fields.values() if isinstance(rule, RetryRule))

    return (_on_error(value),)


def _on_error(value: object) -> RetryRule:
    if value is True:
        return RetryRule(kind=ON_ERROR)
    if isinstance(value, int):
        return RetryRule(kind=ON_ERROR, max_attempts=value)
    if not isinstance(value, Mapping):
        raise BadValue("must be true, a number of attempts, a table, or a list of rules")

    return _made(ON_ERROR, whole_table(value, ON_ERROR_KEYS, ON_ERROR))


def _on_success(value: object) -> RetryRule:
    fields = whole_table(value, ON_SUCCESS_KEYS, ON_SUCCESS)
    if "when" not in fields:
        why = 'on_success has no while: say how long it goes on, such as while = "response.paging.hasMore"'
        raise Refused([Problem(path=(), message=why)])

    return _made(ON_SUCCESS, fields)


def _rule(value: object) -> RetryRule:
    """Return a rule of the unified list: when it applies, and then what."""
    outer = whole_table(value, RULE_KEYS, "a rule of retry")
    when, then = str(outer.get("when", "")), outer.get("then", {})
    kind = str(outer.get("on") or _kind_meant(when, table_values.table(then)))
    try:
        fields = whole_table(then, ON_ERROR_KEYS if kind == ON_ERROR else ON_SUCCESS_KEYS, f"then of {kind}")
    except Refused as exc:
        raise Refused([problem.below("then") for problem in exc.problems]) from None
    if "when" in fields:
        raise Refused([Problem(path=("then",), message="the condition of a rule stands beside then, as its when")])
    fields["when"] = when

    return _made(kind, fields)


def _kind_meant(when: str, then: Mapping[str, object]) -> str:
    """Return whether a rule is about failures or successes, by what it does or looks at."""
    words = {*_WORD.findall(when)}
    if {"next_call", "collect", "merge_path"} & then.keys() or words == {"response"}:
        return ON_SUCCESS
    if words == {"error"}:
        return ON_ERROR

    raise BadValue('is about failures or about successes: say on = "error" or on = "success"')


def _made(kind: str, fields: dict[str, object]) -> RetryRule:
    if kind == ON_SUCCESS:
        fields.setdefault("max_attempts", DEFAULT_PAGES)
        if fields.get("next_call"):
            fields.setdefault("base_seconds", 0.0)  # one page after the other; only who polls waits
    fields.pop("jitter", None)  # waits always vary a little
    stop = str(fields.pop("stop_when", ""))
    if stop:
        when = f"({_bare(str(fields['when']))}) and " if fields.get("when") else ""
        fields["when"] = f"{when}not ({_bare(stop)})"
    found = fields.pop("collect", None)
    if isinstance(found, Mapping):
        fields.update(found)
    elif found is not None:
        fields["collect"] = found

    return RetryRule(kind=kind, **fields)  # type: ignore[arg-type]  # the readers saw to the types


def _bare(condition: str) -> str:
    """Return a condition without the braces around it."""
    text = condition.strip()
    if text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1:
        return text[2:-2].strip()

    return text


def _multiplier(value: object) -> str:
    if value == 1 or value == 2:  # noqa: PLR1714 - a list is compared, not hashed
        return "fixed" if value == 1 else "exponential"

    raise BadValue("must be 1 (the same wait each time) or 2 (twice as long each time)")


def _collect(value: object) -> object:
    if isinstance(value, Mapping):
        fields = whole_table(value, COLLECT_KEYS, "collect")
        return {"collect": "replace", **fields}

    return table_values.text(value)


def _which(value: object) -> str:
    if value not in ("error", "success"):
        raise BadValue('must be "error" or "success"')

    return ON_ERROR if value == "error" else ON_SUCCESS


# --- sink and next ---------------------------------------------------------------------------------------------


def _sink(value: object) -> SinkSpec:
    fields = whole_table(value, SINK_KEYS, "sink")
    if "tool" not in fields:
        raise Refused([Problem(path=(), message=f"sink has no tool{hint('', SINK_TOOLS)}")])

    return SinkSpec(**fields)  # type: ignore[arg-type]  # the readers of SINK_KEYS saw to the types


def _names(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else table_values.texts(value)


def _next(value: object) -> tuple[NextRule, ...]:
    if isinstance(value, list):
        return tuple(list_of(value, _next_rule, "an element of next"))  # type: ignore[arg-type]  # makes NextRules

    return (_next_rule(value),)


def _next_rule(value: object) -> NextRule:
    if isinstance(value, str):
        return NextRule(step=value)
    if not isinstance(value, Mapping):
        raise BadValue('must be the name of a step, or a list of tables such as {step = "other", when = "..."}')
    fields = whole_table(value, NEXT_KEYS, "next")
    if "step" not in fields:
        raise Refused([Problem(path=(), message='next has no step: name one, or "" for the end of the phase')])

    return NextRule(**fields)  # type: ignore[arg-type]  # the readers of NEXT_KEYS saw to the types


# --- every key there is: docs/steps.md explains the same --------------------------------------------------------


LOOP_KEYS = keys_of(
    collection=json_value,
    element=table_values.text,
    mode=table_values.text,
    concurrency=table_values.whole,
    chunk_size=table_values.whole,
    where=table_values.text,
    order_by=table_values.text,
    limit=table_values.whole,
    on_failure=table_values.text,
    threshold=table_values.number,
)
_BACKOFF: Mapping[str, Callable[[object], object]] = MappingProxyType(
    {
        "max_attempts": table_values.whole,
        "strategy": table_values.text,
        "backoff": table_values.text,
        "backoff_multiplier": _multiplier,
        "base_seconds": table_values.seconds,
        "initial_delay": table_values.seconds,
        "max_seconds": table_values.seconds,
        "max_delay": table_values.seconds,
        "jitter": table_values.yes,
        "max_same_failures": table_values.whole,
    }
)
_RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "backoff": "strategy",
        "backoff_multiplier": "strategy",
        "initial_delay": "base_seconds",
        "max_delay": "max_seconds",
        "retry_when": "when",
        "while": "when",
    }
)
ON_ERROR_KEYS = keys_of(
    _RENAMED, **_BACKOFF, when=table_values.text, retry_when=table_values.text, stop_when=table_values.text
)
ON_SUCCESS_KEYS = keys_of(
    _RENAMED,
    **{"while": table_values.text},
    **_BACKOFF,
    when=table_values.text,
    next_call=json_table,
    collect=_collect,
    merge_path=table_values.text,
)
COLLECT_KEYS = keys_of(
    {"strategy": "collect", "path": "merge_path"}, strategy=table_values.text, path=table_values.text
)
RULE_KEYS = keys_of(when=table_values.text, then=table_values.table, on=_which)
_RETRY_TABLES = keys_of(on_error=_on_error, on_success=_on_success)
SINK_KEYS = keys_of(
    tool=table_values.text,
    connection=table_values.text,
    table=table_values.text,
    path=table_values.text,
    mode=table_values.text,
    key=_names,
    call=table_values.text,
    rows=table_values.text,
    options=json_table,
)
NEXT_KEYS = keys_of(step=table_values.text, when=table_values.text)
#: The keys of every step; those of its tool stand beside them.
STEP_KEYS = keys_of(
    name=table_values.text,
    tool=table_values.text,
    when=table_values.text,
    next=_next,
    loop=_loop,
    retry=_retry,
    sink=_sink,
    vars=json_table,
    timeout_seconds=table_values.seconds,
)
