"""
Check a workflow definition: the rules of its fields, phases, steps, templates, and how phases fit together.

Pure: the caller says which runners and files exist. All problems are reported at once, each with its key. Types and
ranges are declared with the fields (`workflow.model`); the rest of this module checks what a type cannot say.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import PurePosixPath
from types import MappingProxyType, NoneType
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from adws.adw_modules.error_tables import RETRYABLE
from adws.adw_modules.errors import BadWorkflowGraph, ExpressionError, UsageError
from adws.adw_modules.expressions import expressions
from adws.adw_modules.identifiers import hint, shown
from adws.adw_modules.state_machine import PIPELINE, REWORKABLE_STATES, WorkflowState, derive_table, state_named
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import (
    ACCEPT,
    AGENT,
    AGENTS,
    BASE_MODES,
    COLLECT_STRATEGIES,
    COMMAND,
    CONNECTION_TYPES,
    GATE_KINDS,
    INPUTS_OF_TOOL,
    LIMIT_POLICIES,
    MAX_ITERATIONS,
    MAX_SECONDS,
    NO_TEMPLATES,
    ON_ERROR,
    OUTPUTS,
    PYTHON,
    SANDBOXES,
    SEQUENTIAL,
    SINK_OPTIONS,
    SINK_TOOLS,
    STEPS,
    THRESHOLD,
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
    chosen,
    path_problem,
)

Problems: TypeAlias = Iterator[DefinitionProblem]

#: Names of workflows and phases, which become parts of file names.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME_RULE = "use letters, digits, '-' and '_' (at most 64), a letter first"
#: Names of steps and variables: they appear in templates, where `-` is minus.
STEP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
STEP_NAME_RULE = "use letters, digits and '_' (at most 64), a letter first"
#: A function as given in `call`.
CALL = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
#: The name of an environment variable.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
#: Most levels of nested lists and tables in `options`.
MAX_DEPTH = 20
#: Most steps of a phase.
MAX_STEPS = 200


_problem = DefinitionProblem


# --- single values ---------------------------------------------------------------------------------------------

_Part: TypeAlias = PhaseSpec | Timeouts | RetrySpec | Gate | StepSpec | LoopSpec | RetryRule | SinkSpec | NextRule
_Test: TypeAlias = Callable[[object], bool]


def _is(*kinds: type) -> _Test:
    """Return a test for values of *kinds*; booleans are not numbers."""
    return lambda value: isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _tuple_of(kind: type) -> _Test:
    return lambda value: isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


_is_text = _is(str)
#: Declared type of a field -> how messages describe it, and a test for values. Other fields may have any type, or a
#: rule checks it.
_TYPES: Mapping[str, tuple[str, _Test]] = MappingProxyType(
    {
        "str": ("a text", _is_text),
        "int": ("a whole number", _is(int)),
        "int | None": ("a whole number or None", _is(int, NoneType)),
        "float": ("a number", _is(int, float)),
        "bool": ("True or False", _is(bool)),
        "bool | None": ("True, False or None", _is(bool, NoneType)),
        "tuple[str, ...]": ("a tuple of texts", _tuple_of(str)),
        "Mapping[str, object]": ("a mapping", _is(Mapping)),
        "Mapping[str, JsonValue]": (
            "a mapping of texts",
            lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
        ),
        "Timeouts": ("Timeouts", _is(Timeouts)),
        "RetrySpec": ("a RetrySpec", _is(RetrySpec)),
        "LoopSpec | None": ("a LoopSpec or None", _is(LoopSpec, NoneType)),
        "SinkSpec | None": ("a SinkSpec or None", _is(SinkSpec, NoneType)),
        "tuple[Gate, ...]": ("a tuple of Gates", _tuple_of(Gate)),
        "tuple[StepSpec, ...]": ("a tuple of StepSpecs", _tuple_of(StepSpec)),
        "tuple[NextRule, ...]": ("a tuple of NextRules", _tuple_of(NextRule)),
        "tuple[RetryRule, ...]": ("a tuple of RetryRules", _tuple_of(RetryRule)),
    }
)


def shape_problems(part: _Part, *path: str | int) -> list[DefinitionProblem]:
    """Return a problem for each field without its declared type, which a definition in Python may contain."""
    before = f"{path[0]}." if path else ""
    result = []
    for one in fields(part):
        rule, is_right = _TYPES.get(str(one.type), ("", None))
        value = getattr(part, one.name)
        if is_right is not None and not is_right(value):
            result.append(_problem((*path, one.name), f"{before}{one.name} must be {rule}, not {shown(value)}"))

    return result


def rule_problems(part: _Part, *path: str | int, called: str = "") -> Problems:
    """Yield a problem for each value that breaks the rules of its field; messages put *called* before its name."""
    for one in fields(part):
        value, rules = getattr(part, one.name), one.metadata
        if value is None:
            continue
        key = rules.get("key", one.name)
        where, name = (*path, key) if key else path, f"{called}{one.name}"
        if "range" in rules and not rules["range"][0] <= value <= rules["range"][1]:
            yield _problem(where, f"{name} is {value} and must be from {rules['range'][0]} to {rules['range'][1]}")
        if "seconds" in rules and not (_is_wait(value) and (value or rules["seconds"] == "any")):
            least = "from 0 to" if rules["seconds"] == "any" else "more than 0 seconds, at most"
            limit = f"{MAX_SECONDS:g}" if rules["seconds"] == "positive" else f"{MAX_SECONDS:g} seconds"
            yield _problem(where, f"{name} is {shown(value)} and must be {least} {limit}")
        if "choice" in rules:
            yield from _not_one_of(where, rules["choice"][0], value, rules["choice"][1])


def _is_wait(value: object) -> bool:
    # Compared, not converted: an integer may exceed any float. NaN compares as false.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS


def _wait_problems(base: float | None, most: float | None) -> Problems:
    """Yield a problem if the first wait exceeds the longest one; invalid waits are reported elsewhere."""
    if base is not None and most is not None and _is_wait(base) and _is_wait(most) and base > most:
        yield _problem(("max_seconds",), f"max_seconds ({most:g}) is less than base_seconds ({base:g})")


def _not_one_of(path: KeyPath, what: str, value: object, known: Sequence[str]) -> Problems:
    if value not in known:
        yield _problem(path, f"{value!r} is no {what}{hint(str(value), known)}")


def _call_problems(call: str) -> Problems:
    if not CALL.fullmatch(call):
        yield _problem(("call",), f"call is {shown(call)} and must be of the form package.module:function")


def why_outside(path: str) -> str:
    """Return why *path* cannot be below the working directory, or "" if it can."""
    if not path.strip() or "\0" in path:
        return "is no path"
    pure = PurePosixPath(path)
    if pure.is_absolute() or path.startswith("~"):
        return "is absolute: give one below the working directory"

    return "leaves the working directory: take the '..' out" if ".." in pure.parts else ""


def is_json(value: object, depth: int = MAX_DEPTH) -> bool:
    """Return whether *value* can be stored as JSON, with lists and tables nested at most *depth* deep."""
    if isinstance(value, float):
        return math.isfinite(value)
    if value is None or isinstance(value, str | int):
        return True
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(is_json(item, depth - 1) for item in value)

    return isinstance(value, dict) and all(
        isinstance(key, str) and is_json(item, depth - 1) for key, item in value.items()
    )


# --- phases ----------------------------------------------------------------------------------------------------

#: Fields that say what a phase runs -> the runner they are for.
_RUNNER_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "command": "the runner command",
        "shell": "the runner command",
        "call": "the runner python",
        "prompt": "agents",
        "steps": "the runner steps",
        "deadline_seconds": "the runner external",
    }
)


def check_phase(
    phase: PhaseSpec, *, runners: Collection[str], has_file: Callable[[str], bool]
) -> list[DefinitionProblem]:
    """Return all problems of *phase* itself; paths begin at the phase."""
    problems = shape_problems(phase)
    if problems:
        return problems
    if not NAME.fullmatch(phase.name):
        problems.append(_problem(("name",), f"{shown(phase.name)} cannot be the name of a phase: {NAME_RULE}"))
    problems += _runner_problems(phase, runners, has_file)
    problems += rule_problems(phase)
    problems += rule_problems(phase.timeouts, "timeouts", called="the timeout ")
    problems += rule_problems(phase.retry, "retry")
    problems += (one.below("retry") for one in _wait_problems(phase.retry.base_seconds, phase.retry.max_seconds))
    if not _is(tuple, NoneType)(phase.retry.categories):
        message = f"categories must be a tuple of texts, not {shown(phase.retry.categories)}"
        problems.append(_problem(("retry", "categories"), message))
    else:
        known = sorted(category.value for category in RETRYABLE)
        for index, name in enumerate(phase.retry.categories or ()):
            what = "category of errors that can be retried"
            problems += _not_one_of(("retry", "categories", index), what, name, known)
    if phase.sandbox:
        problems += _not_one_of(("sandbox",), "sandbox", phase.sandbox, SANDBOXES)
    for index, pattern in enumerate(phase.allowed_paths):
        if why := why_outside(pattern):
            problems.append(_problem(("allowed_paths", index), f"the allowed path {shown(pattern)} {why}"))
    for index, name in enumerate(phase.env):
        if not VARIABLE.fullmatch(name):
            message = f"{shown(name)} cannot be the name of an environment variable"
            problems.append(_problem(("env", index), message))
    for index, gate in enumerate(phase.gates):
        problems += (problem.below("gates", index) for problem in _gate_problems(gate))
    for key, value in phase.options.items():  # stored in documents, and JSON has no dates or infinities
        if not _is_text(key):
            problems.append(_problem(("options",), f"{shown(key)} in options is no text, and keys must be texts"))
        elif not is_json(value):
            message = f"the option {key} cannot be kept as JSON: write it as a text or a number"
            problems.append(_problem(("options", key), message))

    return problems


def _runner_problems(phase: PhaseSpec, runners: Collection[str], has_file: Callable[[str], bool]) -> Problems:
    if phase.runner not in runners:
        yield _problem(("runner",), f"there is no runner {phase.runner!r}{hint(phase.runner, runners)}")
        return  # the needs of an unknown runner are unknown, too

    is_agent = phase.runner in (AGENT, *AGENTS)
    own = "agents" if is_agent else f"the runner {phase.runner}"
    for key, whose in _RUNNER_KEYS.items():
        if whose != own and getattr(phase, key):
            yield _problem((key,), f"{key} is for {whose}, and the runner here is {phase.runner}: take one of them out")
    if phase.runner == COMMAND:
        yield from _command_problems(phase.command, phase.shell, "the runner command needs")
    elif phase.runner == PYTHON:
        if not phase.call:
            yield _problem((), "the runner python needs call, such as package.module:function")
        else:
            yield from _call_problems(phase.call)
    elif phase.runner == STEPS:
        if not phase.steps:
            yield _problem((), "the runner steps needs steps: write at least one [[...phases.steps]]")
    elif is_agent:
        if not phase.prompt:
            yield _problem((), f"the agent {phase.runner} needs prompt, the file with what it shall do")
        elif not has_file(phase.prompt):
            yield _problem(("prompt",), f"there is no prompt file {phase.prompt}: write it, or name another")
        yield from (_problem(("options",), words) for words in workflow_model.problems_of(phase))


def _command_problems(command: Sequence[str], shell: str, who_needs: str) -> Problems:
    if bool(command) == bool(shell):
        result = "both" if command else "neither"
        yield _problem((), f"{who_needs} command (a list) or shell (one line), and has {result}")
        return
    if shell and not shell.strip():
        yield _problem(("shell",), "shell is empty: write the line to run")
    if command and not command[0]:
        yield _problem(("command",), "the first element of command is empty: it is the program to run")
    for key, texts in (("command", command), ("shell", (shell,))):
        if any("\0" in text for text in texts):
            yield _problem((key,), f"{key} holds a NUL character, which no program can be given")


def _gate_problems(gate: Gate) -> Problems:
    if gate.kind not in GATE_KINDS:
        yield from _not_one_of(("kind",), "kind of gate", gate.kind, GATE_KINDS)
        return
    if not (_tuple_of(str)(gate.command) and _is_text(gate.shell) and _is_text(gate.artifact)):
        yield _problem((), "the command of a gate must be a tuple of texts, its shell and artifact texts")
        return
    for key, kind in (("command", "command"), ("shell", "command"), ("artifact", "artifact")):
        if kind != gate.kind and getattr(gate, key):
            yield _problem((key,), f"a gate is one thing: this one is of the kind {gate.kind}, and has {key} too")
    if gate.base and gate.base not in BASE_MODES:
        yield from _not_one_of(("base",), "way to treat a red base", gate.base, BASE_MODES)
    elif gate.base and gate.kind != "command":
        yield _problem(("base",), f"base is for gates that run a command, and this one is of the kind {gate.kind}")
    if gate.sandbox:
        yield from _not_one_of(("sandbox",), "sandbox", gate.sandbox, SANDBOXES)
    if gate.kind == "command":
        yield from _command_problems(gate.command, gate.shell, "a gate of the kind command needs")
    if gate.kind == "artifact" and (why := why_outside(gate.artifact)):
        yield _problem(("artifact",), f"the artifact {shown(gate.artifact)} {why}")
    yield from rule_problems(gate)


# --- templates -------------------------------------------------------------------------------------------------
#
# Which names a template knows depends on where it is: these tables are used to check templates and to render them.
# Names used with `default` or `is defined` may be missing.


#: Known to every template: the frozen issue, `[workflows.NAME.workload]`, variables set by steps, and the results of
#: finished steps and phases.
EVERYWHERE = ("issue", "workload", "vars", "steps", "phases")
#: Known to a call as well: the index of the element, and the numbers of attempt and page.
OF_A_LOOP = ("index",)
OF_A_CALL = ("attempt", "page")
#: The result of a call: for on_error, for on_success, and for sinks and variables.
OF_A_FAILURE, OF_A_RESPONSE, OF_A_RESULT = ("error",), ("response",), ("result",)
#: The result of a step, and whether its calls reached `max_attempts` before the last page.
OF_AN_END = (*OF_A_RESULT, "is_cut")
#: Names that an element cannot have.
RESERVED = frozenset((*EVERYWHERE, *OF_A_LOOP, *OF_A_CALL, *OF_A_FAILURE, *OF_A_RESPONSE, *OF_AN_END))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepScope:
    """What is known around the steps of a phase; None: unknown, and not checked."""

    workload: frozenset[str] | None = None
    phases: frozenset[str] | None = None  #: earlier phases
    vars: frozenset[str] = field(default_factory=frozenset)  #: that steps of earlier phases may have set
    connections: Mapping[str, str] | None = None  #: name -> type
    sinks: Collection[str] = SINK_TOOLS  #: the available sinks


#: Nothing is known around the steps.
UNKNOWN = StepScope()


class _Template(NamedTuple):
    path: KeyPath
    text: str
    names: frozenset[str]  #: known to the template
    is_condition: bool = False


def template_problems(step: StepSpec, steps: Sequence[StepSpec], around: StepScope) -> Problems:
    """Yield a problem for each template or condition of *step*, one of *steps*, that cannot be rendered."""
    variables = around.vars | {name for one in steps for name in one.vars}
    known = {
        "workload": (around.workload, "and the workload of the workflow has no such value"),
        "phases": (around.phases, "and no phase before this one is called so"),
        "vars": (variables, "and no step sets it in vars"),
    }
    for template in _templates(step):
        path, said = template.path, ".".join(str(key) for key in template.path)
        try:
            used = expressions.paths_of(template.text, is_condition=template.is_condition)
        except ExpressionError as exc:
            yield _problem(path, f"{said} {str(exc)[:1].lower()}{str(exc)[1:]}")
            continue
        for name, *below in sorted(used):
            if name not in template.names:
                where = " (it is known elsewhere, not here)" if name in RESERVED else ""
                names = sorted(template.names)
                yield _problem(path, f"{said} names {name}, which is not known here{where}{hint(name, names)}")
            elif below and name == "steps":
                if why := _why_no_step(below[0], step, steps):
                    yield _problem(path, f"{said} names steps.{below[0]}, {why}")
            elif below and name in known:
                there, why = known[name]
                if there is not None and below[0] not in there:
                    near = hint(below[0], sorted(there)) if there else ""
                    yield _problem(path, f"{said} names {name}.{below[0]}, {why}{near}")

    lines: list[tuple[KeyPath, object]] = [(("shell",), step.inputs.get("shell"))]
    lines += [((*path, "next_call", "shell"), rule.next_call.get("shell")) for path, rule in rule_paths(step)]
    for path, line in lines:
        if not is_template(line):
            continue
        try:
            is_quoted = all(name == "quote" for name in expressions.filters_of(str(line)))
        except ExpressionError:
            continue  # reported above
        if not is_quoted:  # the shell would parse any value as part of the line
            rule = "shell puts a value into a line for the shell: end it with |quote, or use command with a list"
            yield _problem(path, rule)


def _templates(step: StepSpec) -> Iterator[_Template]:
    """Yield every template of *step*."""
    base = frozenset(EVERYWHERE)
    call = base | {*OF_A_CALL} if step.loop is None else base | {*OF_A_CALL, *OF_A_LOOP, step.loop.element}
    if step.when:
        yield _Template(("when",), step.when, base, is_condition=True)
    if step.loop is not None:
        yield from _texts(("loop", "collection"), step.loop.collection, base)
        for key in ("where", "order_by"):
            if condition := getattr(step.loop, key):
                yield _Template(("loop", key), condition, base | {step.loop.element}, is_condition=True)
    for key, value in step.inputs.items():
        if key not in NO_TEMPLATES:
            yield from _texts((key,), value, call)
    for path, rule in rule_paths(step):
        names = call | {*(OF_A_FAILURE if rule.kind == ON_ERROR else OF_A_RESPONSE)}
        if rule.when:
            place = (*path, "when" if rule.kind == ON_ERROR else "while")
            yield _Template(place, rule.when, names, is_condition=True)
        yield from _texts((*path, "next_call"), rule.next_call, names)
    if step.sink is not None:
        for key in ("path", "rows", "options"):
            yield from _texts(("sink", key), getattr(step.sink, key), call | {*OF_A_RESULT})
    yield from _texts(("vars",), step.vars, base | {*OF_AN_END})
    for index, following in enumerate(step.next):
        if following.when:
            yield _Template(("next", index, "when"), following.when, base | {*OF_AN_END}, is_condition=True)


def _texts(path: KeyPath, value: object, names: frozenset[str]) -> Iterator[_Template]:
    """Yield each template in *value*, at any depth."""
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        yield _Template(path, value, names)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts((*path, key), item, names)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts((*path, index), item, names)


def rule_paths(step: StepSpec) -> Iterator[tuple[KeyPath, RetryRule]]:
    """Yield each retry rule with its place in the file: its kind, or its index in the list."""
    kinds = [rule.kind for rule in step.retry]
    for index, rule in enumerate(step.retry):
        yield ("retry", rule.kind if len({*kinds}) == len(kinds) else index), rule


def is_template(value: object) -> bool:
    """Return whether *value* is a text to be rendered."""
    return isinstance(value, str) and "{{" in value


def _why_no_step(name: str, step: StepSpec, steps: Sequence[StepSpec]) -> str:
    places = {one.name: index for index, one in enumerate(steps)}
    if name not in places:
        return f"and there is no such step{hint(name, list(places))}"
    # A step that goes back lets later steps run before earlier ones.
    goes_back = any(rule.step in places and places[rule.step] <= places[one.name] for one in steps for rule in one.next)

    return "" if goes_back or places[name] <= places[step.name] else "which comes later"


# --- steps -----------------------------------------------------------------------------------------------------

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: Headers that hold a credential.
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"})
#: tool -> two inputs of which a step gives exactly one
_ALTERNATIVES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"command": ("command", "shell"), "python": ("call", "code"), "agent": ("prompt", "prompt_file")}
)


def check_steps(
    steps: Sequence[StepSpec], *, has_file: Callable[[str], bool], around: StepScope = UNKNOWN
) -> list[DefinitionProblem]:
    """Return all problems of the steps of a phase; paths begin at the phase."""

    def named(problems: Sequence[DefinitionProblem], step: StepSpec, index: int) -> list[DefinitionProblem]:
        who = f"step {step.name!r}" if step.name else f"step number {index + 1}"
        return [_problem(("steps", index, *one.path), f"{who}: {one.message}") for one in problems]

    problems = [one for index, step in enumerate(steps) for one in named(step_shape_problems(step), step, index)]
    if problems:
        return problems  # with values of wrong types, further checks would fail
    if len(steps) > MAX_STEPS:
        return [_problem(("steps",), f"there are {len(steps)} steps, and a phase has at most {MAX_STEPS}")]
    for index, step in enumerate(steps):
        result = [
            *_own_problems(step, steps[:index]),
            *_tool_problems(step, has_file),
            *loop_problems(step),
            *_retry_problems(step),
            *_sink_problems(step, around),
            *template_problems(step, steps, around),
        ]
        problems += named(result, step, index)

    return problems + [problem.below("steps") for problem in _next_problems(steps)]


def step_shape_problems(step: StepSpec) -> list[DefinitionProblem]:
    """Return a problem for each field without its declared type; nested parts are checked only if the step is valid."""
    problems = shape_problems(step)
    if problems:
        return problems
    if step.loop is not None:
        problems += shape_problems(step.loop, "loop")
    if step.sink is not None:
        problems += shape_problems(step.sink, "sink")
    for index, rule in enumerate(step.retry):
        problems += shape_problems(rule, "retry", index)
    for index, following in enumerate(step.next):
        problems += shape_problems(following, "next", index)

    return problems


def _own_problems(step: StepSpec, before: Sequence[StepSpec]) -> Problems:
    if not STEP_NAME.fullmatch(step.name):
        yield _problem(("name",), f"{shown(step.name)} cannot be the name of a step: {STEP_NAME_RULE}")
    if any(step.name == one.name for one in before):
        yield _problem(("name",), "there are two steps of that name: give one of them another")
    yield from rule_problems(step)
    for name in step.vars:
        if not STEP_NAME.fullmatch(name):
            yield _problem(("vars", name), f"{shown(name)} cannot be the name of a variable: {STEP_NAME_RULE}")
    for key, value in (*step.inputs.items(), ("vars", dict(step.vars))):
        if not is_json(value):
            yield _problem((key,), f"{key} cannot be kept as JSON: write it as a text or a number")


def _tool_problems(step: StepSpec, has_file: Callable[[str], bool]) -> Problems:
    tool, inputs = step.tool, step.inputs
    if tool not in TOOLS:
        yield _problem(("tool",), f"there is no tool {tool!r}{hint(tool, TOOLS)}")
        return
    known = INPUTS_OF_TOOL[tool]
    for key in inputs:
        if key not in known:
            yield _problem((key,), f"{key!r} is no input of the tool {tool}{hint(key, known)}")
    yield from _kind_problems(inputs)
    if tool in _ALTERNATIVES:
        first, second = _ALTERNATIVES[tool]
        given = [key for key in (first, second) if key in inputs]
        if len(given) != 1:
            yield _problem((), f"the tool {tool} needs {first} or {second}, and has {'both' if given else 'neither'}")
        elif isinstance(inputs[given[0]], str) and not str(inputs[given[0]]).strip():
            yield _problem((given[0],), f"{given[0]} is empty")
    # Inputs of a wrong kind are reported already and not checked further.
    texts = {key: value for key, value in inputs.items() if isinstance(value, str) and value.strip()}
    if tool == "http":
        if not inputs.get("url", ""):
            yield _problem((), "the tool http needs url")
        if "json" in inputs and "body" in inputs:
            yield _problem(("body",), "give json or body, not both")
        yield from _http_values(inputs)
    elif tool == "command":
        output = inputs.get("output", OUTPUTS[0])
        if isinstance(output, str) and output not in OUTPUTS:
            yield from _not_one_of(("output",), "form of output", output, OUTPUTS)
    elif tool == "python":
        yield from _python_problems(texts)
    else:
        if "prompt_file" in texts and not has_file(texts["prompt_file"]):
            name = texts["prompt_file"]
            yield _problem(("prompt_file",), f"there is no prompt file {name}: write it, or name another")
        agent = inputs.get("agent", AGENTS[0])
        if isinstance(agent, str) and agent not in AGENTS:
            yield _problem(("agent",), f"there is no agent {agent!r}{hint(agent, AGENTS)}")


def _python_problems(texts: Mapping[str, str]) -> Problems:
    if "call" in texts:
        yield from _call_problems(texts["call"])
    if "code" not in texts:
        return
    try:
        body = ast.parse(texts["code"]).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        yield _problem(("code",), f"code cannot be read as Python: {exc}")
    else:
        if not any(isinstance(one, ast.FunctionDef) and one.name == "main" for one in body):
            yield _problem(("code",), "code has no function main: that is what is called")


def _http_values(inputs: Mapping[str, object]) -> Problems:
    url = inputs.get("url", "")
    if isinstance(url, str) and url and not url.startswith("{{"):
        if not url.lower().startswith(("http://", "https://")):
            yield _problem(("url",), f"url is {shown(url)} and must begin with http:// or https://")
        else:
            try:
                if urlsplit(url).password is not None:
                    rule = "url holds a password: name an environment variable in headers_env instead"
                    yield _problem(("url",), rule)
            except ValueError:
                yield _problem(("url",), f"url is {shown(url)}, which is no address")
    method = inputs.get("method", "GET")
    if isinstance(method, str) and not is_template(method) and method.upper() not in METHODS:
        yield _problem(("method",), f"{method!r} is no method of HTTP{hint(method, METHODS)}")
    headers = inputs.get("headers")
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if str(name).lower() in SECRET_HEADERS and not is_template(value):
            rule = f"the header {name} has its value here: name an environment variable in headers_env instead"
            yield _problem(("headers", name), rule)


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and VARIABLE.fullmatch(value) is not None


#: input -> how messages describe it, and a test for values
_KINDS: Mapping[str, tuple[str, _Test]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("url", "method", "shell", "stdin", "output", "call", "code", "prompt", "prompt_file", "agent", "model"),
            ("a text", _is_text),
        ),
        **dict.fromkeys(
            ("params", "headers", "args", "options"),
            ("a table, or a template of one", lambda value: isinstance(value, Mapping) or is_template(value)),
        ),
        "headers_env": (
            "a table of headers and names of environment variables",
            lambda value: isinstance(value, Mapping) and all(_is_variable(name) for name in value.values()),
        ),
        "env": (
            "a list of names of environment variables",
            lambda value: isinstance(value, list | tuple) and all(map(_is_variable, value)),
        ),
        "command": (
            'a list of texts that is not empty, such as ["make", "plan"]; for one line use shell',
            lambda value: isinstance(value, list | tuple) and bool(value) and all(isinstance(x, str) for x in value),
        ),
    }
)


def _kind_problems(inputs: Mapping[str, object]) -> Problems:
    """Yield a problem for each input of the wrong kind; a template of one expression may give any kind."""
    for key, value in inputs.items():
        if key in _KINDS and not _KINDS[key][1](value):
            yield _problem((key,), f"{key} must be {_KINDS[key][0]}, not {shown(value)}")


# --- loops, retries, sinks and next ----------------------------------------------------------------------------


def loop_problems(step: StepSpec) -> Problems:
    """Yield the problems of the loop of *step*."""
    loop = step.loop
    if loop is None:
        return
    yield from rule_problems(loop, "loop")
    if not (isinstance(loop.collection, list) and is_json(loop.collection)) and not is_template(loop.collection):
        rule = 'collection must be a list or a template of one, such as "{{ workload.users }}"'
        yield _problem(("loop", "collection"), f"{rule}, not {shown(loop.collection)}")
    if not _ELEMENT.fullmatch(loop.element) or loop.element in RESERVED:
        why = "it means something else in templates" if loop.element in RESERVED else "use letters, digits and '_'"
        yield _problem(("loop", "element"), f"{shown(loop.element)} cannot be the name of an element: {why}")
    if loop.mode == SEQUENTIAL and loop.concurrency > 1:
        rule = f'concurrency is {loop.concurrency}, and a sequential loop makes one call at a time: say mode = "async"'
        yield _problem(("loop", "concurrency"), rule)
    if loop.on_failure != THRESHOLD:
        if loop.threshold:
            rule = 'threshold is for on_failure = "threshold": say that, or take it out'
            yield _problem(("loop", "threshold"), rule)
    elif not 0 < loop.threshold <= MAX_ITERATIONS or (loop.threshold > 1 and loop.threshold != int(loop.threshold)):
        rule = "a share of all iterations below 1, or a whole number of them"
        message = f"threshold is {shown(loop.threshold)} and must be the most failures: {rule}"
        yield _problem(("loop", "threshold"), message)


def _retry_problems(step: StepSpec) -> Problems:
    """Yield the problems of the retry rules of *step*; later pages are made of responses, which strangers write."""
    for path, rule in rule_paths(step):
        problems = [*rule_problems(rule), *_wait_problems(rule.base_seconds, rule.max_seconds)]
        if rule.kind == ON_ERROR:
            for name, usual in (("next_call", {}), ("collect", "replace"), ("merge_path", "")):
                if getattr(rule, name) != usual:
                    message = f"{name} is for on_success: a failed call is made again as it was"
                    problems.append(_problem((name,), message))
            if rule.on_limit != ACCEPT:
                message = "on_limit is for on_success: calls that keep failing have failed"
                problems.append(_problem(("on_limit",), message))
        else:
            if not rule.when.strip():
                problems.append(_problem((), "on_success has no while: without one it would never end"))
            problems += _not_one_of(("collect",), "way to collect", rule.collect, COLLECT_STRATEGIES)
            problems += _not_one_of(("on_limit",), "policy about the limit", rule.on_limit, LIMIT_POLICIES)
            if why := path_problem(rule.merge_path):
                problems.append(_problem(("merge_path",), f"merge_path {why}"))
            problems += (problem.below("next_call") for problem in _next_call_problems(step, rule.next_call))
        yield from (problem.below(*path) for problem in problems)


def _next_call_problems(step: StepSpec, asked: Mapping[str, object]) -> Problems:
    known = INPUTS_OF_TOOL.get(step.tool, tuple(asked))
    for key in asked:
        if key not in known:
            yield _problem((key,), f"{key!r} is no input of the tool {step.tool}{hint(key, known)}")
        if key in NO_TEMPLATES:
            yield _problem((key,), f"{key} is the same for all calls of a step, so next_call has none")
    changing = {key: value for key, value in asked.items() if key not in NO_TEMPLATES}
    yield from _kind_problems(changing)
    if step.tool == "http":
        yield from _http_values(changing)
    for pair in (("json", "body"), ("command", "shell"), ("prompt", "prompt_file")):
        for first, second in (pair, pair[::-1]):
            if first in step.inputs and second in changing:
                yield _problem((second,), f"the step has {first}, so its next call cannot have {second}")


#: tool -> the keys it requires, and those it also allows
_SINK_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sqlite": (("table",), ("connection", "key")),
    "postgres": (("table",), ("connection", "key")),
    "jsonl": (("path",), ()),
    "csv": (("path",), ()),
    "python": (("call",), ()),
}


def _sink_problems(step: StepSpec, around: StepScope) -> Problems:
    """Yield the problems of the sink of *step*."""
    if step.sink is None:
        return
    if step.sink.tool not in around.sinks:
        yield _problem(("sink", "tool"), f"there is no sink {step.sink.tool!r}{hint(step.sink.tool, around.sinks)}")
        return
    problems = [*_of_sink(step.sink)]
    if around.connections is not None and step.sink.tool in CONNECTION_TYPES:
        problems += _of_connection(step.sink, around.connections)
    yield from (problem.below("sink") for problem in problems)


def _of_sink(sink: SinkSpec) -> Problems:
    needed, possible = _SINK_KEYS.get(sink.tool, ((), ()))  # a plugin has only options
    for name in needed:
        if not getattr(sink, name):
            yield _problem((), f"a sink with the tool {sink.tool} needs {name}")
    for name in ("connection", "table", "key", "path", "call"):
        if getattr(sink, name) and name not in (*needed, *possible):
            yield _problem((name,), f"{name} is not for a sink with the tool {sink.tool}: take it out")
    yield from rule_problems(sink)
    if sink.mode == "upsert" and sink.tool not in CONNECTION_TYPES:
        which = " and ".join(CONNECTION_TYPES)
        yield _problem(("mode",), f"the sink {sink.tool} can only append: upsert is for {which}")
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
    if sink.call:
        yield from _call_problems(sink.call)


def _of_connection(sink: SinkSpec, connections: Mapping[str, str]) -> Problems:
    if chosen(sink.connection, sink.tool, connections):
        return
    if not sink.connection:
        fitting = [name for name, kind in connections.items() if kind == sink.tool]
        what = f"write [connections.NAME] type = {sink.tool!r}"
        if fitting:
            what = f"there are {', '.join(fitting)}: say which"
        yield _problem((), f"a sink with the tool {sink.tool} needs connection; {what}")
    elif sink.connection in connections:
        kind = connections[sink.connection]
        yield _problem(("connection",), f"the connection {sink.connection} is of the type {kind}, not {sink.tool}")
    else:
        what = hint(sink.connection, connections) if connections else f": write [connections.{sink.connection}]"
        yield _problem(("connection",), f"there is no connection {sink.connection!r}{what}")


def _next_problems(steps: Sequence[StepSpec]) -> Problems:
    """Yield the problems in the order of *steps*; paths begin at the list of steps."""
    names = [step.name for step in steps]
    after: dict[str, str] = {}  #: step -> the one that always follows it
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
        if not step.next:
            after[step.name] = names[index + 1] if index + 1 < len(steps) else ""
        elif not step.next[0].when:
            after[step.name] = step.next[0].step

    seen: set[str] = set()
    for start in names:
        way: list[str] = []
        name = start
        while name in after and name not in seen:
            seen.add(name)
            way.append(name)
            name = after[name]
        if name in way:
            circle = way[way.index(name) :]
            why = f"the steps {' -> '.join((*circle, name))} go round for ever: give one of them a next with when"
            yield _problem((names.index(name), "next"), why)


# --- the workflow ----------------------------------------------------------------------------------------------


def check_workflow(
    spec: WorkflowSpec,
    *,
    runners: Collection[str],
    has_file: Callable[[str], bool],
    connections: Mapping[str, str] | None = None,
    sinks: Collection[str] = SINK_TOOLS,
) -> list[DefinitionProblem]:
    """
    Return all problems of *spec*; a definition without any can be started.

    *connections* has the type of each named connection, or is None if they are unknown here. *sinks* are those
    available.
    """
    problems: list[DefinitionProblem] = []
    if not (_is_text(spec.name) and NAME.fullmatch(spec.name)):
        problems.append(_problem((), f"{spec.name!r} cannot be the name of a workflow: {NAME_RULE}"))
    if not (_is_text(spec.version) and _VERSION.fullmatch(spec.version)):
        rule = "use letters, digits, '.', '_', '+' and '-' (at most 64)"
        problems.append(_problem(("version",), f"{spec.version!r} cannot be a version: {rule}"))
    if not is_json(spec.workload):
        problems.append(_problem(("workload",), "workload cannot be kept as JSON: write texts and numbers"))
    if spec.base:
        problems += _not_one_of(("base",), "way to treat a red base", spec.base, BASE_MODES)
    if not spec.phases:
        problems.append(_problem(("phases",), _graph_problem([])))

    def of_phase(index: int, result: Sequence[DefinitionProblem]) -> None:
        who = f"phase {spec.phases[index].name!r}"
        problems.extend(_problem(("phases", index, *one.path), f"{who}: {one.message}") for one in result)

    for index, phase in enumerate(spec.phases):
        of_phase(index, check_phase(phase, runners=runners, has_file=has_file))
    if any(shape_problems(phase) for phase in spec.phases):
        return problems  # with values of wrong types, the relations between phases cannot be checked
    for index, phase in enumerate(spec.phases):
        earlier = spec.phases[:index]
        around = StepScope(
            workload=frozenset(spec.workload),
            phases=frozenset(one.name for one in earlier),
            vars=frozenset(name for one in earlier for step in one.steps for name in step.vars),
            connections=connections,
            sinks=sinks,
        )
        of_phase(index, check_steps(phase.steps, has_file=has_file, around=around))
    for check in (_order_problems, _state_problems, _need_problems, _rework_problems):
        problems += (problem.below("phases") for problem in check(spec.phases))

    return problems


def _order_problems(phases: Sequence[PhaseSpec]) -> Problems:
    """Yield a problem for each duplicate name and each decreasing tier."""
    for index, phase in enumerate(phases):
        if any(phase.name == one.name for one in phases[:index]):
            message = f"there are two phases called {phase.name!r}: give one of them another name"
            yield _problem((index, "name"), message)
        if index and phase.tier < phases[index - 1].tier:
            before = phases[index - 1]
            yield _problem(
                (index, "tier"),
                f"phase {phase.name!r} (tier {phase.tier}) comes after {before.name!r} (tier {before.tier}): "
                "a tier can only be followed by itself or a later one",
            )


def _state_problems(phases: Sequence[PhaseSpec]) -> Problems:
    """Yield the problems with the state table: phases are checked one by one and in pairs, to report all of them."""
    sound: list[tuple[int, tuple[str, WorkflowState]]] = []
    for index, phase in enumerate(phases):
        try:
            place = (phase.name, state_named(phase.state))
        except UsageError:
            known = [state.value for state in PIPELINE]
            why = f"phase {phase.name!r}: {phase.state!r} is no state{hint(phase.state, known, 'a phase runs under')}"
            yield _problem((index, "state"), why)
            continue
        if why := _graph_problem([place]):
            yield _problem((index, "state"), why)
        else:
            sound.append((index, place))
    for (_, before), (index, place) in pairwise(sound):
        if why := _graph_problem([before, place]):
            yield _problem((index, "state"), why)


def _graph_problem(phases: Sequence[tuple[str, WorkflowState]]) -> str:
    try:
        derive_table(phases)
    except BadWorkflowGraph as exc:
        return str(exc)

    return ""


def _need_problems(phases: Sequence[PhaseSpec]) -> Problems:
    """Yield a problem for each need that can never, or not surely, be met, and for each cycle of needs."""
    places = {phase.name: index for index, phase in reversed([*enumerate(phases)])}
    needs = {phase.name: phase.needs for phase in phases}
    reached: dict[str, set[str]] = {}  #: all phases that a phase waits for, directly or not
    for name, needed_names in needs.items():
        reached[name], queue = set(), list(needed_names)
        for other in queue:  # the list grows during the iteration
            if other not in reached[name]:
                reached[name].add(other)
                queue.extend(needs.get(other, ()))
    waiting = [name for name in needs if name in reached[name]]
    circles = [
        frozenset(other for other in waiting if {name, other} <= reached[name] & reached[other]) for name in waiting
    ]
    for circle in dict.fromkeys(circles):
        names = sorted(circle, key=places.__getitem__)
        said = f"the phases {', '.join(map(repr, names))} need each other, so none could ever start: take one need away"
        if len(names) == 1:
            said = f"phase {names[0]!r} needs itself, so it could never start: take that away"
        yield _problem((places[names[0]], "needs"), said)

    for index, phase in enumerate(phases):
        for number, name in enumerate(phase.needs):
            if any({name, phase.name} <= circle for circle in circles):
                continue
            needed = phases[places[name]] if name in places else None
            why = ""
            if needed is None:
                why = f", but there is no such phase{hint(name, sorted(places, key=places.__getitem__))}"
            elif needed.tier > phase.tier:
                why = f" of the later tier {needed.tier}, so it could never start: move it to a tier that is no earlier"
            elif places[name] > index:
                why = ", which comes later, so it could never start: phases run in the order they are written"
            elif phase.is_required and not needed.is_required:
                why = (
                    ", which may fail without ending the workflow, and then it could never start: "
                    f"make {name!r} required, or take the need away"
                )
            if why:
                yield _problem((index, "needs", number), f"phase {phase.name!r} needs {name!r}{why}")


def _rework_problems(phases: Sequence[PhaseSpec]) -> Problems:
    names = [item.name for item in phases]
    reworkable = sorted(state.value for state in REWORKABLE_STATES)
    for index, phase in enumerate(phases):
        if not phase.on_rework:
            continue
        target = next((item for item in phases[:index] if item.name == phase.on_rework), None)
        if target is None and phase.on_rework in names:
            why = "it does not come earlier"
        elif target is None:
            why = f"there is no such phase{hint(phase.on_rework, names)}"
        elif phase.state not in reworkable:
            why = f"only phases under {' or '.join(reworkable)} can ask for rework, and it runs under {phase.state}"
        elif target.state != WorkflowState.BUILDING.value:
            why = f"rework goes to a phase under building, and {target.name!r} runs under {target.state}"
        else:
            continue
        message = f"phase {phase.name!r} cannot go back to {phase.on_rework!r}: {why}"
        yield _problem((index, "on_rework"), message)
