"""
Read the workflows, phases and steps that a user writes in `adw.toml`.

Syntax only: tables become the dataclasses of `workflow.model`, whose fields define the keys and their types. Every
unknown key and every value of the wrong type is a problem at its own place; nothing is silently ignored. Some keys have
several forms, each with one meaning: `retry = true`, `retry = 5`, a table, tables `on_error` and `on_success`, or a
list of rules. `workflow.checks` decides whether the whole is valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

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


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value in a definition, at which problems are noted."""

    problems: list[DefinitionProblem]
    name: str  #: what messages call the value: its key, or what it is an element of
    path: KeyPath = ()

    def below(self, key: str | int, name: str = "") -> Place:
        """Return the place of the value under *key*."""
        return Place(self.problems, name or str(key), (*self.path, key))

    def note(self, sentence: str) -> None:
        """Note a problem at this place."""
        self.problems.append(DefinitionProblem(self.path, sentence))

    def refuse(self, rule: str) -> None:
        """Note that the value breaks *rule*, which completes a sentence begun with its name."""
        self.note(f"{self.name} {rule}")

    def include(self, problems: Iterable[DefinitionProblem], who: str) -> None:
        """Note *problems* of the value at this place, which messages call *who*."""
        self.problems.extend(
            DefinitionProblem((*self.path, *one.path), f"{who}: {one.message}" if who else one.message)
            for one in problems
        )


#: Converts a value. For an invalid value it notes a problem at its place, and the result is dropped.
Read: TypeAlias = Callable[[object, Place], Any]

# --- single values ---------------------------------------------------------------------------------------------


def _reader(is_right: Callable[[object], bool], rule: str) -> Read:
    """Return a reader that returns its value unchanged, and refuses an invalid one."""

    def read(value: object, place: Place) -> object:
        if not is_right(value):
            place.refuse(rule)

        return value

    return read


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


table = _reader(lambda value: isinstance(value, Mapping), "must be a table")
tables = _reader(
    lambda value: isinstance(value, list), "must be a list of tables, each begun by [[workflows.NAME.phases]]"
)
text = _reader(lambda value: isinstance(value, str), "must be a text")
whole = _reader(lambda value: isinstance(value, int) and not isinstance(value, bool), "must be a whole number")
flag = _reader(lambda value: isinstance(value, bool), "must be true or false")
#: A key that has a meaning only by being present.
yes = _reader(lambda value: value is True, "must be true, or be left out")
seconds = _reader(_is_number, "must be a number of seconds")
number = _reader(_is_number, "must be a number")
base = _reader(lambda value: value in BASE_MODES, f"must be one of {', '.join(BASE_MODES)}")
which = _reader(lambda value: value in ("error", "success"), 'must be "error" or "success"')
_clock = _reader(
    lambda value: value is False or _is_number(value), "must be a number of seconds, or false for no limit"
)


def clock(value: object, place: Place) -> Any:
    """Return a number of seconds, or None for false."""
    return None if value is False else _clock(value, place)


def texts(value: object, place: Place) -> tuple[str, ...]:
    """Return a list of texts."""
    if not isinstance(value, list) or not _is_texts(value):
        place.refuse('must be a list of texts, such as ["one", "two"]')
        return ()

    return tuple(value)


def argv(value: object, place: Place) -> tuple[str, ...]:
    """Return a command as its arguments."""
    if isinstance(value, str):
        place.refuse('must be a list, such as ["make", "plan"]; for one line use shell')
        return ()

    return texts(value, place)


def json_value(value: object, place: Place) -> JsonValue:
    """Return a value that can be stored as JSON."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [json_value(item, place) for item in value]
    if isinstance(value, Mapping):
        return {str(key): json_value(item, place) for key, item in value.items()}
    place.refuse(f"holds {value}, which JSON does not have: write it as a text")

    return None


def json_table(value: object, place: Place) -> JsonValue:
    """Return a table of values that can be stored as JSON."""
    return json_value(table(value, place), place)


# --- tables ----------------------------------------------------------------------------------------------------

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Key(NamedTuple):
    """A key of a table."""

    field: str  #: the field of the dataclass for its value
    read: Read


def read_table(
    raw: object, keys: Mapping[str, Key], what: str, place: Place, *, elsewhere: Mapping[str, str] = _NOTHING
) -> dict[str, Any]:
    """
    Return the fields in *raw*, and note each unknown key and each bad value.

    *elsewhere* has messages for keys that belong to other places.
    """
    fields: dict[str, Any] = {}
    given: dict[str, str] = {}  #: field -> the key that set it
    if not isinstance(raw, Mapping):
        table(raw, place)
        return fields
    for key, value in raw.items():
        at, before = place.below(key), len(place.problems)
        if key not in keys:
            at.note(elsewhere.get(key) or f"{key!r} is no key of {what}{hint(key, keys, 'the keys are')}")
            continue
        name = keys[key].field
        if name in given:
            at.note(f"give {given[name]} or {key}, not both")
            continue
        given[name] = key
        result = keys[key].read(value, at)
        if len(place.problems) == before:
            fields[name] = result

    return fields


def _read_spec(
    kind: type, keys: Mapping[str, Key], what: str, /, *, needs: str = "", words: str = "", **more: object
) -> Read:
    """Return a reader of tables into *kind*; *words* say that the field *needs* is missing, *more* are fixed fields."""

    def read(value: object, place: Place) -> Any:
        before = len(place.problems)
        fields = read_table(value, keys, what, place)
        if len(place.problems) == before and needs and needs not in fields:
            place.note(words)

        return kind(**more, **fields) if len(place.problems) == before else None

    return read


def _each(value: Iterable[object], read: Read, what: str, place: Place) -> tuple[Any, ...]:
    """Return the elements of a list as read by *read*; messages call an element *what*."""
    return tuple(read(element, place.below(index, what)) for index, element in enumerate(value))


def keys_of(renamed: Mapping[str, str] = _NOTHING, /, **readers: Read) -> Mapping[str, Key]:
    """Return a table of keys; *renamed* has the field of each key that differs from its field's name."""
    return MappingProxyType({key: Key(renamed.get(key, key), read) for key, read in readers.items()})


def keys_for(kind: type, **readers: Read) -> Mapping[str, Key]:
    """Return the keys of the fields of *kind*, read by declared type, or by *readers* where one is given."""
    return keys_of(**{one.name: readers.get(one.name) or _READERS[str(one.type)] for one in fields(kind)})


# --- steps -----------------------------------------------------------------------------------------------------

#: Default for the calls of a step with `on_success`: pages are many.
DEFAULT_PAGES = 100

_WORD = re.compile(r"\b(error|response)\b")


def read_steps(value: object, place: Place) -> tuple[StepSpec, ...]:
    """Return the steps in a list of tables."""
    if not isinstance(value, list):
        place.refuse("must be a list of tables, each begun by [[workflows.NAME.phases.steps]]")
        return ()
    result: list[StepSpec] = []
    for index, raw in enumerate(value):
        problems: list[DefinitionProblem] = []
        step = _read_step(raw, Place(problems, "it"))
        place.below(index).include(problems, f"step {step.name!r}" if step.name else f"step number {index + 1}")
        result.append(step)

    return tuple(result)


def _read_step(raw: object, place: Place) -> StepSpec:
    tool = raw.get("tool") if isinstance(raw, Mapping) else None
    is_known = tool in TOOLS  # an unknown tool is reported elsewhere: then the inputs of all tools are accepted
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
    values = read_table(raw, {**STEP_KEYS, **inputs}, what, place, elsewhere=misplaced)
    given = {name: values.pop(name) for name in list(values) if name not in STEP_KEYS}
    unread = {problem.path[:1] for problem in place.problems}
    for name, words in (("name", "give it one"), ("tool", f"say which it calls, one of {', '.join(TOOLS)}")):
        if not values.get(name) and not unread & {(), (name,)}:
            place.note(f"it has no {name}: {words}")
        values.setdefault(name, "")

    return StepSpec(inputs=given, **values)


def _loop(value: object, place: Place) -> LoopSpec | None:
    if isinstance(value, str | list):
        return LoopSpec(collection=json_value(value, place))
    if not isinstance(value, Mapping):
        place.refuse('must be a table such as {collection = "{{ workload.users }}", element = "user"}')
        return None
    missing = "loop has no collection: give a template of a list, or a list"
    loop: LoopSpec | None = _read_spec(LoopSpec, LOOP_KEYS, "loop", needs="collection", words=missing)(value, place)
    if loop is not None and loop.mode == ASYNC and "concurrency" not in value:
        return replace(loop, concurrency=DEFAULT_CONCURRENCY)

    return loop


def _retry(value: object, place: Place) -> tuple[RetryRule, ...]:
    if value is False:
        return ()
    if isinstance(value, list):
        return _each(value, _rule, "a rule", place)
    if isinstance(value, Mapping) and {ON_ERROR, ON_SUCCESS} & value.keys():
        return tuple(read_table(value, _RETRY_TABLES, "retry with on_error or on_success", place).values())

    return (_on_error(value, place),)


def _on_error(value: object, place: Place) -> Any:
    if value is True:
        return RetryRule(kind=ON_ERROR)
    if isinstance(value, int):
        return RetryRule(kind=ON_ERROR, max_attempts=value)
    if not isinstance(value, Mapping):
        place.refuse("must be true, a number of attempts, a table, or a list of rules")
        return None

    return _read_spec(RetryRule, ON_ERROR_KEYS, ON_ERROR, kind=ON_ERROR)(value, place)


def _on_success(value: object, place: Place, what: str = ON_SUCCESS, **more: object) -> Any:
    missing = 'on_success has no while: say how long it goes on, such as while = "response.paging.hasMore"'
    needs = "" if more else "when"
    read = _read_spec(RetryRule, ON_SUCCESS_KEYS, what, needs=needs, words=missing, kind=ON_SUCCESS, **more)
    rule: RetryRule | None = read(value, place)
    if rule is None or not isinstance(value, Mapping):
        return None
    if "max_attempts" not in value:
        rule = replace(rule, max_attempts=DEFAULT_PAGES)
    # Pages follow each other at once; only polling waits.
    return replace(rule, base_seconds=0.0) if rule.next_call and "base_seconds" not in value else rule


def _rule(value: object, place: Place) -> Any:
    """Return a rule of the unified list: `when` is its condition, `then` its effect."""
    before = len(place.problems)
    outer = read_table(value, RULE_KEYS, "a rule of retry", place)
    if len(place.problems) > before:
        return None
    when, then, at = outer.get("when", ""), outer.get("then", {}), place.below("then")
    kind = f"on_{outer['on']}" if "on" in outer else _kind_meant(when, then)
    if not kind:
        place.refuse('is about failures or about successes: say on = "error" or on = "success"')
    elif ("when" if kind == ON_ERROR else "while") in then:
        at.note("the condition of a rule is its when, beside then")
    elif kind == ON_SUCCESS:
        return _on_success(then, at, f"then of {kind}", when=when)
    else:
        return _read_spec(RetryRule, ON_ERROR_KEYS, f"then of {kind}", kind=kind, when=when)(then, at)

    return None


def _kind_meant(when: str, then: Mapping[str, object]) -> str:
    """Return the kind of a rule, derived from what it does or tests, or "" if that is unclear."""
    words = {*_WORD.findall(when)}
    if {"next_call", "collect", "merge_path", "on_limit"} & then.keys() or words == {"response"}:
        return ON_SUCCESS

    return ON_ERROR if words == {"error"} else ""


def _names(value: object, place: Place) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else texts(value, place)


def _next(value: object, place: Place) -> tuple[Any, ...]:
    if isinstance(value, list):
        return _each(value, _next_rule, "an element of next", place)

    return (_next_rule(value, place),)


def _next_rule(value: object, place: Place) -> Any:
    if isinstance(value, str):
        return NextRule(step=value)
    if not isinstance(value, Mapping):
        place.refuse('must be the name of a step, or a list of tables such as {step = "other", when = "..."}')
        return None
    missing = 'next has no step: name one, or "" for the end of the phase'

    return _read_spec(NextRule, NEXT_KEYS, "next", needs="step", words=missing)(value, place)


# --- all keys: docs/steps.md explains them ----------------------------------------------------------------------

#: Declared type of a field -> its reader.
_READERS: Mapping[str, Read] = MappingProxyType(
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
_BACKOFF: Mapping[str, Read] = MappingProxyType(
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
RULE_KEYS = keys_of(when=text, then=table, on=which)
_RETRY_TABLES = keys_of(on_error=_on_error, on_success=_on_success)
SINK_KEYS = keys_for(SinkSpec, key=_names)
NEXT_KEYS = keys_for(NextRule)
_sink = _read_spec(SinkSpec, SINK_KEYS, "sink", needs="tool", words=f"sink has no tool{hint('', SINK_TOOLS)}")
#: The keys of every step, besides those of its tool.
STEP_KEYS: Mapping[str, Key] = MappingProxyType(
    {
        name: key
        for name, key in keys_for(StepSpec, next=_next, loop=_loop, retry=_retry, sink=_sink).items()
        if name != "inputs"
    }
)


# --- workflows and phases --------------------------------------------------------------------------------------

#: Key that says what a phase runs -> its runner.
_RUNNER_OF_KEY: Mapping[str, str] = MappingProxyType(
    {"command": COMMAND, "shell": COMMAND, "call": PYTHON, "prompt": AGENT, "steps": STEPS}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A `[workflows.NAME]`; with problems, the part of it that could be read."""

    spec: WorkflowSpec
    is_replacement: bool = False  #: may take the name of a built-in workflow
    problems: tuple[DefinitionProblem, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlay:
    """A `[phases.NAME]`: fields that replace those of the built-in phases of that name."""

    name: str
    fields: Mapping[str, object]
    problems: tuple[DefinitionProblem, ...] = ()


def read_workflow(
    name: str, raw: object, *, source: str = "adw.toml", max_attempts: int = DEFAULT_MAX_ATTEMPTS
) -> Definition:
    """Return the definition in *raw*; *max_attempts* is the default for phases."""
    place = Place([], name)
    values = _read_named(raw, WORKFLOW_KEYS, "a workflow", place, "workflows")
    phases = []
    for index, written in enumerate(values.get("phases", [])):
        of_phase = Place([], f"phase number {index + 1}")
        phases.append(_read_phase(written, of_phase, max_attempts))
        at, who = place.below("phases").below(index), f"phase {phases[-1].name!r}" if phases[-1].name else ""
        for one in of_phase.problems:
            at.include([one], who if one.path else "")  # a problem of the whole phase has its name already
    spec = WorkflowSpec(
        name=name,
        phases=tuple(phases),
        source=source,
        **{key: value for key, value in values.items() if key not in {"phases", "replace"}},
    )

    return Definition(spec=spec, is_replacement=bool(values.get("replace")), problems=tuple(place.problems))


def read_overlay(name: str, raw: object) -> Overlay:
    """Return the overlay in *raw*."""
    place = Place([], name)
    if name not in STATE_OF_PHASE:
        place.note(f"no built-in phase is called {name!r}{hint(name, STATE_OF_PHASE)}")
    fields = _read_named(raw, OVERLAY_KEYS, "a built-in phase", place, "phases", elsewhere=_PLACING)
    if runner := _runner_of(fields):
        fields["runner"] = runner

    return Overlay(name=name, fields=fields, problems=tuple(place.problems))


def _read_named(
    raw: object, keys: Mapping[str, Key], what: str, place: Place, section: str, **options: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of the table `[SECTION.NAME]`."""
    if not isinstance(raw, Mapping):
        place.refuse(f"must be a table, such as [{section}.{place.name}]")
        return {}

    return read_table(raw, keys, what, place, **options)


def written_path(raw: object, path: KeyPath) -> KeyPath:
    """Return the path in *raw* for *path* in its definition: a gate given by the key `gate` is in no list."""
    if "gates" not in path:
        return path
    place = path.index("gates")
    around: Any = raw
    for key in path[:place]:
        around = around[key]

    return path if "gates" in around else (*path[:place], "gate")


# --- phases ----------------------------------------------------------------------------------------------------


def _read_phase(raw: object, place: Place, max_attempts: int) -> PhaseSpec:
    """Return the phase in *raw*, with missing fields left empty, and note all problems."""
    fields = read_table(raw, PHASE_KEYS, "a phase", place)
    name = fields.setdefault("name", "")
    fields.setdefault("state", STATE_OF_PHASE.get(name, ""))
    fields["runner"] = _runner_of(fields)
    fields.setdefault("max_attempts", max_attempts)
    # A value that could not be read is not missing.
    unread = {key for problem in place.problems for key in problem.path[:1]}
    needed = {
        "name": ({"name"}, "give it one"),
        "state": ({"name", "state"}, f"say under which it runs, one of {', '.join(STATE_OF_PHASE.values())}"),
        "runner": ({"runner", *_RUNNER_OF_KEY}, "give it one of command, shell, call, prompt and steps"),
    }
    who = f"phase {name!r}" if name else place.name
    for key, (sources, words) in needed.items() if isinstance(raw, Mapping) else ():
        if not fields[key] and not sources & unread:
            place.note(f"{who} has no {key}: {words}")

    return PhaseSpec(**fields)


def _runner_of(fields: Mapping[str, object]) -> str:
    """Return the runner named in *fields*, or implied by what they run."""
    if "runner" in fields:
        return str(fields["runner"])

    return next((runner for key, runner in _RUNNER_OF_KEY.items() if key in fields), "")


# --- gates -----------------------------------------------------------------------------------------------------


def _gate_word(value: object, place: Place) -> tuple[Gate, ...]:
    if not isinstance(value, str) or value not in {"human", "result"}:
        place.refuse('must be "human" or "result"; other gates are tables in gates')
        return ()

    return (Gate(kind=value),)


def _gates(value: object, place: Place) -> tuple[Any, ...]:
    if not isinstance(value, list):
        place.refuse('must be a list of tables, such as [{artifact = "plan.md"}]')
        return ()

    return _each(value, _gate, "a gate", place)


def _gate(raw: object, place: Place) -> Gate | None:
    before = len(place.problems)
    fields = read_table(raw, GATE_KEYS, "a gate", place)
    things = [key for key in raw if key in _GATE_THINGS] if isinstance(raw, Mapping) else ["command"]
    if len(things) != 1:
        place.note(f"a gate is one thing: give exactly one of {', '.join(_GATE_THINGS)}")
    if len(place.problems) > before:
        return None
    for key in ("result", "human"):
        fields.pop(key, None)

    return Gate(kind=_GATE_THINGS[things[0]], **fields)


#: What a gate checks -> its kind.
_GATE_THINGS: Mapping[str, str] = MappingProxyType(
    {"command": "command", "shell": "command", "artifact": "artifact", "result": "result", "human": "human"}
)


# --- all keys: docs/workflows.md explains them --------------------------------------------------------------------


def _demands(value: object, place: Place) -> Requirements:
    try:
        return Requirements.from_json(value)
    except UsageError as exc:
        place.refuse(f'must be such as {{host = "alpha", tags = ["gpu"]}}: {exc}')
        return NO_DEMANDS


WORKFLOW_KEYS = keys_of(
    description=text,
    version=text,
    replace=flag,
    demands=_demands,
    workload=json_table,
    base=base,
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
    base=base,
    sandbox=text,
)
PHASE_KEYS: Mapping[str, Key] = MappingProxyType(
    {
        **{
            "required" if name == "is_required" else name: key
            for name, key in keys_for(
                PhaseSpec,
                command=argv,
                timeouts=_read_spec(Timeouts, TIMEOUT_KEYS, "timeouts"),
                retry=_read_spec(RetrySpec, RETRY_KEYS, "retry"),
                gates=_gates,
                steps=read_steps,
            ).items()
        },
        "gate": Key("gates", _gate_word),
    }
)
#: Keys that place a phase among others; fixed for a built-in workflow.
PLACING_KEYS = ("name", "state", "tier", "needs", "on_rework")
_PLACING: Mapping[str, str] = MappingProxyType(
    {key: f"{key} places a phase in its workflow: define a workflow of your own to change that" for key in PLACING_KEYS}
)
OVERLAY_KEYS: Mapping[str, Key] = MappingProxyType(
    {key: value for key, value in PHASE_KEYS.items() if key not in PLACING_KEYS}
)
