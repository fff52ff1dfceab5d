"""
Read the workflows, phases and steps that a user writes in `adw.toml`.

Syntax only: tables become the dataclasses of `workflow.model`, whose fields say which keys there are and of which type.
Every unknown key and every value of the wrong type is a problem at its own place; nothing is silently left out. A step
may be written in several ways, each of which means one thing: `retry = true`, `retry = 5`, a table, tables `on_error`
and `on_success`, or a list of rules. Whether the whole is sound is decided by `workflow.checks`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonValue, hint
from adws.adw_modules.workflow.model import (
    AGENT,
    ASYNC,
    BASE_MODES,
    COMMAND,
    DEFAULT_CONCURRENCY,
    DEFAULT_MAX_ATTEMPTS,
    INPUTS_OF_TOOL,
    ON_ERROR,
    ON_SUCCESS,
    PYTHON,
    SINK_TOOLS,
    STATE_OF_PHASE,
    STEPS,
    TOOLS,
    DefinitionProblem,
    Gate,
    KeyPath,
    LoopSpec,
    NextRule,
    PhaseSpec,
    RetryRule,
    RetrySpec,
    SinkSpec,
    StepSpec,
    Timeouts,
    WorkflowSpec,
)
from adws.adw_modules.workflow.requirements import NO_DEMANDS, Requirements

# --- single values ---------------------------------------------------------------------------------------------
#
# Each reader returns the value, or raises BadValue; its message goes on where the name of the key stops.


class BadValue(ValueError):
    """A value is of another kind than its key asks for."""


def _reader(is_right: Callable[[object], bool], rule: str) -> Callable[[object], Any]:
    """Return what gives a value back that *is_right*, and raises BadValue with *rule* for others."""

    def read(value: object) -> object:
        if not is_right(value):
            raise BadValue(rule)

        return value

    return read


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


table: Callable[[object], Mapping[str, object]] = _reader(lambda value: isinstance(value, Mapping), "must be a table")
tables: Callable[[object], list[object]] = _reader(
    lambda value: isinstance(value, list), "must be a list of tables, each begun by [[workflows.NAME.phases]]"
)
text: Callable[[object], str] = _reader(lambda value: isinstance(value, str), "must be a text")
whole = _reader(lambda value: isinstance(value, int) and not isinstance(value, bool), "must be a whole number")
flag = _reader(lambda value: isinstance(value, bool), "must be true or false")
#: A key that says something by being there.
yes = _reader(lambda value: value is True, "must be true, or be left out")
seconds: Callable[[object], float] = _reader(_is_number, "must be a number of seconds")
number = _reader(_is_number, "must be a number")
_list_of_texts = _reader(
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    'must be a list of texts, such as ["one", "two"]',
)


def texts(value: object) -> tuple[str, ...]:
    """Return a list of texts."""
    return tuple(_list_of_texts(value))


def argv(value: object) -> tuple[str, ...]:
    """Return a command as its arguments."""
    if isinstance(value, str):
        raise BadValue('must be a list, such as ["make", "plan"]; for one line use shell')

    return texts(value)


def clock(value: object) -> float | None:
    """Return a number of seconds, None for false."""
    if value is False:
        return None
    try:
        return seconds(value)
    except BadValue as exc:
        raise BadValue(f"{exc}, or false for no limit") from None


# --- tables ----------------------------------------------------------------------------------------------------

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Key(NamedTuple):
    """A key of a table."""

    field: str  #: where its value goes in the dataclass
    read: Callable[[object], object]  #: raises BadValue, or InvalidValue with problems further inside


class InvalidValue(Exception):
    """Something inside a value is wrong."""

    def __init__(self, problems: Sequence[DefinitionProblem] | str) -> None:
        """*problems*, or what is wrong with the value as a whole."""
        super().__init__()
        if isinstance(problems, str):
            problems = [DefinitionProblem((), problems)]
        self.problems = problems


def read_table(
    raw: object,
    keys: Mapping[str, Key],
    what: str,
    problems: list[DefinitionProblem],
    *,
    elsewhere: Mapping[str, str] = _NOTHING,
) -> dict[str, object]:
    """
    Return the fields in *raw* and add a problem for each key that is not known or has a bad value.

    *elsewhere* says of keys that are known in other places what to do about them. Raises BadValue when *raw* is no
    table.
    """
    fields: dict[str, object] = {}
    given: dict[str, str] = {}  #: field -> the key that gave it
    for key, value in table(raw).items():
        if key not in keys:
            unknown = elsewhere.get(key) or f"{key!r} is no key of {what}{hint(key, keys, 'the keys are')}"
            problems.append(DefinitionProblem((key,), unknown))
            continue
        name = keys[key].field
        if name in given:
            problems.append(DefinitionProblem((key,), f"give {given[name]} or {key}, not both"))
            continue
        given[name] = key
        try:
            fields[name] = keys[key].read(value)
        except BadValue as exc:
            problems.append(DefinitionProblem((key,), f"{key} {exc}"))
        except InvalidValue as exc:
            problems += [problem.below(key) for problem in exc.problems]

    return fields


def whole_table(raw: object, keys: Mapping[str, Key], what: str) -> dict[str, object]:
    """Return the fields in *raw*; raise InvalidValue with all that is wrong in it, BadValue when it is no table."""
    problems: list[DefinitionProblem] = []
    fields = read_table(raw, keys, what, problems)
    if problems:
        raise InvalidValue(problems)

    return fields


def list_of(raw: Sequence[object], read: Callable[[object], object], what: str) -> list[object]:
    """Return what *read* makes of each element; raise InvalidValue with all that is wrong in them."""
    result: list[object] = []
    problems: list[DefinitionProblem] = []
    for index, element in enumerate(raw):
        try:
            result.append(read(element))
        except BadValue as exc:
            problems.append(DefinitionProblem((index,), f"{what} {exc}"))
        except InvalidValue as exc:
            problems += [problem.below(index) for problem in exc.problems]
    if problems:
        raise InvalidValue(problems)

    return result


def keys_of(renamed: Mapping[str, str] = _NOTHING, /, **readers: Callable[[object], object]) -> Mapping[str, Key]:
    """Return a table of keys; *renamed* has the fields of those that are called otherwise in the dataclass."""
    return MappingProxyType({key: Key(renamed.get(key, key), read) for key, read in readers.items()})


def keys_for(kind: type, **readers: Callable[[object], object]) -> Mapping[str, Key]:
    """Return the keys of the fields of *kind*, read as they are declared; *readers* are for those that are special."""
    return keys_of(**{one.name: readers.get(one.name) or _READERS[str(one.type)] for one in fields(kind)})


#: Calls of a step that goes on by `on_success`, unless it says otherwise: pages are many.
DEFAULT_PAGES = 100

_WORD = re.compile(r"\b(error|response)\b")


def read_steps(value: object) -> tuple[StepSpec, ...]:
    """Return the steps in a list of tables; raise InvalidValue with all that is wrong in them."""
    if not isinstance(value, list):
        raise BadValue("must be a list of tables, each begun by [[workflows.NAME.phases.steps]]")
    result: list[StepSpec] = []
    problems: list[DefinitionProblem] = []
    for index, raw in enumerate(value):
        wrong: list[DefinitionProblem] = []
        step = _read_step(raw, wrong)
        who = f"step {step.name!r}" if step.name else f"step number {index + 1}"
        problems += [DefinitionProblem((index, *one.path), f"{who}: {one.message}") for one in wrong]
        result.append(step)
    if problems:
        raise InvalidValue(problems)

    return tuple(result)


def _read_step(raw: object, problems: list[DefinitionProblem]) -> StepSpec:
    if not isinstance(raw, Mapping):
        problems.append(DefinitionProblem((), "it must be a table"))
        return StepSpec(name="", tool="")
    tool = raw.get("tool")
    is_known = tool in TOOLS  # an unknown tool is reported elsewhere: then inputs of all tools are read
    own = INPUTS_OF_TOOL.get(str(tool), ())
    inputs_of = {str(tool): own} if is_known else INPUTS_OF_TOOL
    inputs = {name: Key(name, json_value) for names in inputs_of.values() for name in names}
    misplaced = {
        name: f"{name} is for the tool {other}, and the tool here is {tool}: take one of them out"
        for other, names in INPUTS_OF_TOOL.items()
        for name in names
        if name not in own
    }
    what = f"a step with the tool {tool}" if is_known else "a step"
    values = read_table(raw, {**STEP_KEYS, **inputs}, what, problems, elsewhere=misplaced)
    given = {name: values.pop(name) for name in list(values) if name not in STEP_KEYS}
    unread = {problem.path[:1] for problem in problems}
    for name, words in (("name", "give it one"), ("tool", f"say which it calls, one of {', '.join(TOOLS)}")):
        if not values.get(name) and (name,) not in unread:
            problems.append(DefinitionProblem((), f"it has no {name}: {words}"))
        values.setdefault(name, "")

    return StepSpec(inputs=given, **values)  # type: ignore[arg-type]  # the readers of STEP_KEYS saw to the types


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
    return {str(key): json_value(item) for key, item in table(value).items()}


# --- loops -----------------------------------------------------------------------------------------------------


def _loop(value: object) -> LoopSpec:
    if isinstance(value, str | list):
        return LoopSpec(collection=json_value(value))
    if not isinstance(value, Mapping):
        raise BadValue('must be a table such as {collection = "{{ workload.users }}", element = "user"}')
    fields = whole_table(value, LOOP_KEYS, "loop")
    if "collection" not in fields:
        raise InvalidValue("loop has no collection: give a template of a list, or a list")
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
        raise InvalidValue(
            'on_success has no while: say how long it goes on, such as while = "response.paging.hasMore"'
        )

    return _made(ON_SUCCESS, fields)


def _rule(value: object) -> RetryRule:
    """Return a rule of the unified list: when it applies, and then what."""
    outer = whole_table(value, RULE_KEYS, "a rule of retry")
    when, then = str(outer.get("when", "")), outer.get("then", {})
    kind = str(outer.get("on") or _kind_meant(when, table(then)))
    try:
        fields = whole_table(then, ON_ERROR_KEYS if kind == ON_ERROR else ON_SUCCESS_KEYS, f"then of {kind}")
    except InvalidValue as exc:
        raise InvalidValue([problem.below("then") for problem in exc.problems]) from None
    if "when" in fields:
        raise InvalidValue([DefinitionProblem(("then",), "the condition of a rule is its when, beside then")])
    fields["when"] = when

    return _made(kind, fields)


def _kind_meant(when: str, then: Mapping[str, object]) -> str:
    """Return whether a rule is about failures or successes, by what it does or tests."""
    words = {*_WORD.findall(when)}
    if {"next_call", "collect", "merge_path", "on_limit"} & then.keys() or words == {"response"}:
        return ON_SUCCESS
    if words == {"error"}:
        return ON_ERROR

    raise BadValue('is about failures or about successes: say on = "error" or on = "success"')


def _made(kind: str, fields: dict[str, object]) -> RetryRule:
    if kind == ON_SUCCESS:
        fields.setdefault("max_attempts", DEFAULT_PAGES)
        if fields.get("next_call"):
            fields.setdefault("base_seconds", 0.0)  # one page after the other; only polling waits
    return RetryRule(kind=kind, **fields)  # type: ignore[arg-type]  # the readers saw to the types


def _which(value: object) -> str:
    if value not in ("error", "success"):
        raise BadValue('must be "error" or "success"')

    return ON_ERROR if value == "error" else ON_SUCCESS


# --- sink and next ---------------------------------------------------------------------------------------------


def _sink(value: object) -> SinkSpec:
    fields = whole_table(value, SINK_KEYS, "sink")
    if "tool" not in fields:
        raise InvalidValue(f"sink has no tool{hint('', SINK_TOOLS)}")

    return SinkSpec(**fields)  # type: ignore[arg-type]  # the readers of SINK_KEYS saw to the types


def _names(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else texts(value)


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
        raise InvalidValue('next has no step: name one, or "" for the end of the phase')

    return NextRule(**fields)  # type: ignore[arg-type]  # the readers of NEXT_KEYS saw to the types


# --- every key there is: docs/steps.md explains the same --------------------------------------------------------

#: What a field is declared as -> what reads it.
_READERS: Mapping[str, Callable[[object], object]] = MappingProxyType(
    {
        "str": text,
        "str | None": text,
        "int": whole,
        "int | None": whole,
        "float": seconds,
        "float | None": seconds,
        "bool": flag,
        "bool | None": flag,
        "tuple[str, ...]": texts,
        "tuple[str, ...] | None": texts,
        "JsonValue": json_value,
        "Mapping[str, JsonValue]": json_table,
        "Mapping[str, object]": table,
    }
)
LOOP_KEYS = keys_for(LoopSpec, threshold=number)
_BACKOFF: Mapping[str, Callable[[object], object]] = MappingProxyType(
    {
        "max_attempts": whole,
        "backoff": text,
        "base_seconds": seconds,
        "max_seconds": seconds,
        "max_same_failures": whole,
    }
)
_RENAMED: Mapping[str, str] = MappingProxyType({"backoff": "strategy", "while": "when"})
ON_ERROR_KEYS = keys_of(_RENAMED, **_BACKOFF, when=text)
ON_SUCCESS_KEYS = keys_of(
    _RENAMED,
    **{"while": text},
    **_BACKOFF,
    next_call=json_table,
    collect=text,
    merge_path=text,
    on_limit=text,
)
RULE_KEYS = keys_of(when=text, then=table, on=_which)
_RETRY_TABLES = keys_of(on_error=_on_error, on_success=_on_success)
SINK_KEYS = keys_for(SinkSpec, key=_names)
NEXT_KEYS = keys_for(NextRule)
#: The keys of every step; those of its tool stand beside them.
STEP_KEYS: Mapping[str, Key] = MappingProxyType(
    {
        name: key
        for name, key in keys_for(StepSpec, next=_next, loop=_loop, retry=_retry, sink=_sink).items()
        if name != "inputs"
    }
)


# --- workflows and phases --------------------------------------------------------------------------------------

#: What a phase can run -> its runner.
_RUNNER_OF_KEY: Mapping[str, str] = MappingProxyType(
    {"command": COMMAND, "shell": COMMAND, "call": PYTHON, "prompt": AGENT, "steps": STEPS}
)


class RawTable(Protocol):
    """A top-level table of `adw.toml`, as it was parsed, and where its keys stand."""

    @property
    def data(self) -> Mapping[str, object]:
        """The content; empty when the file has no such table."""

    @property
    def path(self) -> Path | None:
        """The file that has it, None when there is none."""

    def line_of(self, *keys: str | int) -> int | None:
        """Return the line of what *keys* lead to, or of the innermost table around it that is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainTable:
    """A table that stands in no file."""

    data: Mapping[str, object] = field(default_factory=dict)
    path: Path | None = None

    def line_of(self, *keys: str | int) -> int | None:
        """Return None: there are no lines."""
        del keys
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A `[workflows.NAME]`; with problems it is as much of it as could be read."""

    spec: WorkflowSpec
    is_replacement: bool = False  #: may take the name of a workflow that comes with adw
    problems: tuple[DefinitionProblem, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlay:
    """A `[phases.NAME]`: fields of PhaseSpec that replace those of the built-in phases of that name."""

    name: str
    fields: Mapping[str, object]
    problems: tuple[DefinitionProblem, ...] = ()


def read_workflow(
    name: str, raw: object, *, source: str = "adw.toml", max_attempts: int = DEFAULT_MAX_ATTEMPTS
) -> Definition:
    """Return the definition in *raw*; *max_attempts* is for phases that do not say how many they have."""
    problems: list[DefinitionProblem] = []
    values: Mapping[str, object] = {}
    try:
        values = read_table(raw, WORKFLOW_KEYS, "a workflow", problems)
    except BadValue as exc:
        problems.append(DefinitionProblem((), f"{name} {exc}, such as [workflows.{name}]"))
    phases = []
    for index, table in enumerate(tables(values.get("phases", []))):
        result: list[DefinitionProblem] = []
        phases.append(_read_phase(table, index, max_attempts, result))
        # A problem of the phase as a whole has its name already.
        who = f"phase {phases[-1].name!r}: " if phases[-1].name else ""
        problems += [
            DefinitionProblem(("phases", index, *one.path), f"{who if one.path else ''}{one.message}") for one in result
        ]
    spec = WorkflowSpec(
        name=name,
        phases=tuple(phases),
        version=str(values.get("version", "1")),
        description=str(values.get("description", "")),
        source=source,
        workload=values.get("workload", {}),  # type: ignore[arg-type]  # its reader saw to the type
        demands=values.get("demands", NO_DEMANDS),  # type: ignore[arg-type]  # its reader saw to the type
        base=str(values.get("base", "")),
    )

    return Definition(spec=spec, is_replacement=bool(values.get("replace")), problems=tuple(problems))


def read_overlay(name: str, raw: object) -> Overlay:
    """Return the overlay in *raw*."""
    problems: list[DefinitionProblem] = []
    fields: dict[str, object] = {}
    if name not in STATE_OF_PHASE:
        problems.append(DefinitionProblem((), f"no built-in phase is called {name!r}{hint(name, STATE_OF_PHASE)}"))
    try:
        fields = read_table(raw, OVERLAY_KEYS, "a built-in phase", problems, elsewhere=_PLACING)
    except BadValue as exc:
        problems.append(DefinitionProblem((), f"{name} {exc}, such as [phases.{name}]"))
    if runner := _runner_of(fields):
        fields["runner"] = runner

    return Overlay(name=name, fields=fields, problems=tuple(problems))


def written_path(raw: object, path: KeyPath) -> KeyPath:
    """Return where in *raw* stands what its definition has at *path*: the gate of the key `gate` is in no list."""
    if "gates" not in path:
        return path
    place = path.index("gates")
    around: Any = raw
    for key in path[:place]:
        around = around[key]

    return path if "gates" in around else (*path[:place], "gate")


# --- phases ----------------------------------------------------------------------------------------------------


def _read_phase(raw: object, index: int, max_attempts: int, problems: list[DefinitionProblem]) -> PhaseSpec:
    """Return the phase in *raw* with what is missing left empty, and note each thing that is wrong."""
    fields: dict[str, object] = {}
    try:
        fields = read_table(raw, PHASE_KEYS, "a phase", problems)
    except BadValue as exc:
        problems.append(DefinitionProblem((), f"phase number {index + 1} {exc}"))
        fields["name"] = ""
    name = str(fields.setdefault("name", ""))
    fields.setdefault("state", STATE_OF_PHASE.get(name, ""))
    fields["runner"] = _runner_of(fields)
    fields.setdefault("max_attempts", max_attempts)
    # What is there and could not be read is not missing.
    unread = {key for problem in problems for key in problem.path[:1]}
    is_table = all(problem.path for problem in problems)
    needed = {
        "name": ({"name"}, "give it one"),
        "state": ({"name", "state"}, f"say under which it runs, one of {', '.join(STATE_OF_PHASE.values())}"),
        "runner": ({"runner", *_RUNNER_OF_KEY}, "give it one of command, shell, call, prompt and steps"),
    }
    who = f"phase {name!r}" if name else f"phase number {index + 1}"
    for key, (sources, words) in needed.items():
        if is_table and not fields[key] and not sources & unread:
            problems.append(DefinitionProblem((), f"{who} has no {key}: {words}"))

    return PhaseSpec(**fields)  # type: ignore[arg-type]  # the readers of PHASE_KEYS saw to the types


def _runner_of(fields: Mapping[str, object]) -> str:
    """Return the runner that *fields* name, or that what they run speaks of."""
    if "runner" in fields:
        return str(fields["runner"])

    return next((runner for key, runner in _RUNNER_OF_KEY.items() if key in fields), "")


def _sub_table(kind: type[Timeouts | RetrySpec], keys: Mapping[str, Key], what: str) -> Callable[[object], object]:
    """Return a reader of the table that makes a *kind*."""
    return lambda value: kind(**whole_table(value, keys, what))  # type: ignore[arg-type]  # the readers of *keys* saw to it


# --- gates -----------------------------------------------------------------------------------------------------


def _gate_word(value: object) -> tuple[Gate, ...]:
    if not isinstance(value, str) or value not in {"human", "result"}:
        raise BadValue('must be "human" or "result"; other gates are tables in gates')

    return (Gate(kind=value),)


def _gates(value: object) -> tuple[Gate, ...]:
    if not isinstance(value, list):
        raise BadValue('must be a list of tables, such as [{artifact = "plan.md"}]')

    return tuple(list_of(value, _gate, "a gate"))  # type: ignore[arg-type]  # _gate makes Gates


def _gate(raw: object) -> Gate:
    problems: list[DefinitionProblem] = []
    fields = read_table(raw, GATE_KEYS, "a gate", problems)
    things = [key for key in table(raw) if key in _GATE_THINGS]
    if len(things) != 1:
        rule = f"a gate is one thing: give exactly one of {', '.join(_GATE_THINGS)}"
        problems.append(DefinitionProblem((), rule))
    if problems:
        raise InvalidValue(problems)
    for key in ("result", "human"):
        fields.pop(key, None)

    return Gate(kind=_GATE_THINGS[things[0]], **fields)  # type: ignore[arg-type]  # GATE_KEYS saw to the types


#: What a gate checks -> its kind.
_GATE_THINGS: Mapping[str, str] = MappingProxyType(
    {"command": "command", "shell": "command", "artifact": "artifact", "result": "result", "human": "human"}
)


# --- every key there is: docs/workflows.md explains the same ------------------------------------------------------


def _demands(value: object) -> Requirements:
    try:
        return Requirements.from_json(value)
    except UsageError as exc:
        raise BadValue(f'must be such as {{host = "alpha", tags = ["gpu"]}}: {exc}') from exc


def _base(value: object) -> str:
    if value not in BASE_MODES:
        raise BadValue(f"must be one of {', '.join(BASE_MODES)}")

    return str(value)


WORKFLOW_KEYS = keys_of(
    description=text,
    version=text,
    replace=flag,
    demands=_demands,
    workload=json_table,
    base=_base,
    phases=tables,
)
TIMEOUT_KEYS = keys_for(Timeouts, wall=clock, idle=clock, after_result=clock)
RETRY_KEYS = keys_for(RetrySpec)
GATE_KEYS = keys_of(
    command=argv,
    shell=text,
    artifact=text,
    result=yes,
    human=yes,
    timeout_seconds=seconds,
    base=_base,
    sandbox=text,
)
PHASE_KEYS: Mapping[str, Key] = MappingProxyType(
    {
        **{
            "required" if name == "is_required" else name: key
            for name, key in keys_for(
                PhaseSpec,
                command=argv,
                timeouts=_sub_table(Timeouts, TIMEOUT_KEYS, "timeouts"),
                retry=_sub_table(RetrySpec, RETRY_KEYS, "retry"),
                gates=_gates,
                steps=read_steps,
            ).items()
        },
        "gate": Key("gates", _gate_word),
    }
)
#: Keys that say how a phase stands among others; a built-in workflow has decided that.
PLACING_KEYS = ("name", "state", "tier", "needs", "on_rework")
_PLACING: Mapping[str, str] = MappingProxyType(
    {key: f"{key} places a phase in its workflow: define a workflow of your own to change that" for key in PLACING_KEYS}
)
OVERLAY_KEYS: Mapping[str, Key] = MappingProxyType(
    {key: value for key, value in PHASE_KEYS.items() if key not in PLACING_KEYS}
)
