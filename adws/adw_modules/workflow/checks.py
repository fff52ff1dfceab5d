"""
Check a workflow definition: what its fields declare, phases, steps, their templates, and how phases fit together.

Pure: it is told which runners there are and whether a file is there. All that is wrong is reported at once, each with
its key. Types and ranges are declared with the fields (`workflow.model`); the rest of this module checks what a type
cannot say.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from adws.adw_modules.error_tables import RETRYABLE
from adws.adw_modules.errors import BadWorkflowGraph, ExpressionError, UsageError
from adws.adw_modules.expressions import expressions
from adws.adw_modules.identifiers import hint
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
    EXTERNAL,
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

__all__ = ["DefinitionProblem", "check_workflow"]


#: Names of workflows and phases; they become parts of file names.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME_RULE = "use letters, digits, '-' and '_' (at most 64), a letter first"
#: Lists and tables inside each other in `options`.
MAX_DEPTH = 20

#: A function, as `call` names it.
CALL = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
#: The name of an environment variable.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What a phase can run -> whose business that is.
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
#: What a gate can hold -> the kind of gate it belongs to.
_GATE_KEYS: Mapping[str, str] = MappingProxyType({"command": "command", "shell": "command", "artifact": "artifact"})


def check_phase(
    phase: PhaseSpec, *, runners: Collection[str], has_file: Callable[[str], bool]
) -> list[DefinitionProblem]:
    """Return all that is wrong with *phase* itself; paths begin at the phase."""
    problems = shape_problems(phase)
    if problems:
        return problems
    if not NAME.fullmatch(phase.name):
        problems.append(_problem(("name",), f"{shown(phase.name)} cannot be the name of a phase: {NAME_RULE}"))

    return [
        *problems,
        *_runner_problems(phase, runners, has_file),
        *rule_problems(phase),
        *rule_problems(phase.timeouts, "timeouts", called="the timeout "),
        *rule_problems(phase.retry, "retry"),
        *(problem.below("retry") for problem in _wait_problems(phase.retry.base_seconds, phase.retry.max_seconds)),
        *_category_problems(phase.retry.categories),
        *_list_problems(phase),
        *(problem.below("gates", index) for index, gate in enumerate(phase.gates) for problem in _gate_problems(gate)),
        *_option_problems(phase.options),
    ]


def _problem(path: KeyPath, message: str) -> DefinitionProblem:
    return DefinitionProblem(path=path, message=message)


def shown(value: object) -> str:
    """Return *value* as a sentence shows it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- what fields declare ---------------------------------------------------------------------------------------

_Part: TypeAlias = PhaseSpec | Timeouts | RetrySpec | Gate | StepSpec | LoopSpec | RetryRule | SinkSpec | NextRule


def shape_problems(part: _Part, *path: str | int) -> list[DefinitionProblem]:
    """Return a problem for each field of another type than it is declared with, as a definition in Python may have."""
    before = f"{path[0]}." if path else ""

    return [
        _problem((*path, one.name), f"{before}{one.name} must be {rule}, not {shown(value)}")
        for one in fields(part)
        for rule, is_right in (_TYPES.get(str(one.type), _ANYTHING),)
        if not is_right(value := getattr(part, one.name))
    ]


def rule_problems(part: _Part, *path: str | int, called: str = "") -> Iterator[DefinitionProblem]:
    """Yield a problem for each value that breaks the rules of its field; *called* stands before its name."""
    for one in fields(part):
        value, rules = getattr(part, one.name), one.metadata
        key = rules.get("key", one.name)
        where, name = (*path, key) if key else path, f"{called}{one.name}"
        if "range" in rules and value is not None and not rules["range"][0] <= value <= rules["range"][1]:
            least, most = rules["range"]
            yield _problem(where, f"{name} is {value} and must be from {least} to {most}")
        if "seconds" in rules and value is not None and not _is_wait(value, may_be_zero=rules["seconds"] == "any"):
            yield _problem(where, f"{name} is {shown(value)} and must be {_WAITS[rules['seconds']]}")
        if "choice" in rules and value is not None:
            yield from _not_one_of(where, rules["choice"][0], value, rules["choice"][1])


_WAITS: Mapping[str, str] = MappingProxyType(
    {"positive": f"more than 0 seconds, at most {MAX_SECONDS:g}", "any": f"from 0 to {MAX_SECONDS:g} seconds"}
)


def _is_wait(value: object, *, may_be_zero: bool) -> bool:
    # Compared, not converted: a whole number may be larger than any float. NaN is not less than anything.
    is_seconds = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS

    return is_seconds and (may_be_zero or value != 0)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_table_of_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _tuple_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def _or_none(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_right(value)


_is_texts = _tuple_of(str)
#: What a field is declared as -> what it must be, and whether a value is that.
_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = MappingProxyType(
    {
        "str": ("a text", _is_text),
        "int": ("a whole number", _is_whole),
        "int | None": ("a whole number or None", _or_none(_is_whole)),
        "float": ("a number", _is_number),
        "bool": ("True or False", lambda value: isinstance(value, bool)),
        "bool | None": ("True, False or None", _or_none(lambda value: isinstance(value, bool))),
        "tuple[str, ...]": ("a tuple of texts", _is_texts),
        "Mapping[str, object]": ("a mapping", lambda value: isinstance(value, Mapping)),
        "Mapping[str, JsonValue]": ("a mapping of texts", _is_table_of_texts),
        "Timeouts": ("Timeouts", lambda value: isinstance(value, Timeouts)),
        "RetrySpec": ("a RetrySpec", lambda value: isinstance(value, RetrySpec)),
        "LoopSpec | None": ("a LoopSpec or None", _or_none(lambda value: isinstance(value, LoopSpec))),
        "SinkSpec | None": ("a SinkSpec or None", _or_none(lambda value: isinstance(value, SinkSpec))),
        "tuple[Gate, ...]": ("a tuple of Gates", _tuple_of(Gate)),
        "tuple[StepSpec, ...]": ("a tuple of StepSpecs", _tuple_of(StepSpec)),
        "tuple[NextRule, ...]": ("a tuple of NextRules", _tuple_of(NextRule)),
        "tuple[RetryRule, ...]": ("a tuple of RetryRules", _tuple_of(RetryRule)),
    }
)
#: Values that may be of any type, or whose rule says it.
_ANYTHING: tuple[str, Callable[[object], bool]] = ("", lambda _value: True)


# --- what it runs ----------------------------------------------------------------------------------------------


def _runner_problems(
    phase: PhaseSpec, runners: Collection[str], has_file: Callable[[str], bool]
) -> Iterator[DefinitionProblem]:
    if phase.runner not in runners:
        yield _problem(("runner",), f"there is no runner {phase.runner!r}{hint(phase.runner, runners)}")
        return  # what an unknown runner needs is not known either

    yield from _foreign_keys(phase)
    if phase.runner == COMMAND:
        yield from _command_problems(phase.command, phase.shell, "the runner command needs")
    elif phase.runner == PYTHON:
        if not phase.call:
            yield _problem((), "the runner python needs call, such as package.module:function")
        elif not CALL.fullmatch(phase.call):
            yield _problem(("call",), f"call is {shown(phase.call)} and must be of the form package.module:function")
    elif phase.runner == STEPS:
        if not phase.steps:
            yield _problem((), "the runner steps needs steps: write at least one [[...phases.steps]]")
    elif phase.runner in (AGENT, *AGENTS):
        if not phase.prompt:
            yield _problem((), f"the agent {phase.runner} needs prompt, the file with what it shall do")
        elif not has_file(phase.prompt):
            yield _problem(("prompt",), f"there is no prompt file {phase.prompt}: write it, or name another")
        yield from (_problem(("options",), words) for words in workflow_model.problems_of(phase))


def _foreign_keys(phase: PhaseSpec) -> Iterator[DefinitionProblem]:
    """Yield a problem for each thing to run that this runner would not look at."""
    named = {one: f"the runner {one}" for one in (COMMAND, PYTHON, STEPS, EXTERNAL)}
    mine = {**named, **dict.fromkeys((AGENT, *AGENTS), "agents")}.get(phase.runner, "")
    for key, whose in _RUNNER_KEYS.items():
        if whose != mine and getattr(phase, key):
            yield _problem((key,), f"{key} is for {whose}, and the runner here is {phase.runner}: take one of them out")


def _command_problems(command: Sequence[str], shell: str, who_needs: str) -> Iterator[DefinitionProblem]:
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


# --- numbers ---------------------------------------------------------------------------------------------------


def _wait_problems(base: float | None, most: float | None) -> Iterator[DefinitionProblem]:
    """Yield a problem when the first wait is longer than the longest; waits that are none are reported elsewhere."""
    if base is None or most is None or not (_is_wait(base, may_be_zero=True) and _is_wait(most, may_be_zero=True)):
        return
    if base > most:
        yield _problem(("max_seconds",), f"max_seconds ({most:g}) is less than base_seconds ({base:g})")


def _category_problems(categories: object) -> Iterator[DefinitionProblem]:
    if categories is None:
        return
    if not isinstance(categories, tuple):
        yield _problem(("retry", "categories"), f"categories must be a tuple of texts, not {shown(categories)}")
        return
    known = sorted(category.value for category in RETRYABLE)
    for index, name in enumerate(categories):
        yield from _not_one_of(("retry", "categories", index), "category of errors that can be retried", name, known)


def _not_one_of(path: KeyPath, what: str, found: object, known: Sequence[str]) -> Iterator[DefinitionProblem]:
    if found not in known:
        yield _problem(path, f"{found!r} is no {what}{hint(str(found), known)}")


# --- lists -----------------------------------------------------------------------------------------------------


def _list_problems(phase: PhaseSpec) -> Iterator[DefinitionProblem]:
    if phase.sandbox:
        yield from _not_one_of(("sandbox",), "sandbox", phase.sandbox, SANDBOXES)
    for index, pattern in enumerate(phase.allowed_paths):
        if why := why_outside(pattern):
            yield _problem(("allowed_paths", index), f"the allowed path {shown(pattern)} {why}")
    for index, name in enumerate(phase.env):
        if not VARIABLE.fullmatch(name):
            yield _problem(("env", index), f"{shown(name)} cannot be the name of an environment variable")


def why_outside(path: str) -> str:
    """Return why *path* cannot be one below the working directory, "" when it is."""
    if not path.strip() or "\0" in path:
        return "is no path"
    pure = PurePosixPath(path)
    if pure.is_absolute() or path.startswith("~"):
        return "is absolute: give one below the working directory"

    return "leaves the working directory: take the '..' out" if ".." in pure.parts else ""


# --- gates -----------------------------------------------------------------------------------------------------


def _gate_problems(gate: Gate) -> Iterator[DefinitionProblem]:
    if gate.kind not in GATE_KINDS:
        yield from _not_one_of(("kind",), "kind of gate", gate.kind, GATE_KINDS)
        return
    if not (_is_texts(gate.command) and _is_text(gate.shell) and _is_text(gate.artifact)):
        yield _problem((), "the command of a gate must be a tuple of texts, its shell and artifact texts")
        return
    for key, kind in _GATE_KEYS.items():
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


# --- options ---------------------------------------------------------------------------------------------------


def _option_problems(options: Mapping[str, object]) -> Iterator[DefinitionProblem]:
    """Yield a problem for each value that a document could not keep: JSON has no dates and no infinities."""
    for key, value in options.items():
        if not _is_text(key):
            yield _problem(("options",), f"{shown(key)} in options is no text, and keys must be texts")
        elif not is_json(value, MAX_DEPTH):
            yield _problem(("options", key), f"the option {key} cannot be kept as JSON: write it as a text or a number")


def is_json(value: object, depth: int) -> bool:
    """Whether *value* can be kept as JSON, with lists and tables at most *depth* deep."""
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


# --- templates -------------------------------------------------------------------------------------------------
#
# Which names a template knows depends on where it stands: that table is here, for checking templates and for
# filling them in. Names that are asked for with `default` or `is defined` need not be there.


#: What every template knows: the frozen issue, `[workflows.NAME.workload]`, values that steps have set, and the results
#: of steps and of phases that are done.
EVERYWHERE = ("issue", "workload", "vars", "steps", "phases")
#: What a call knows besides: the number of the element, and of the call.
OF_A_LOOP = ("index",)
OF_A_CALL = ("attempt", "page")
#: The result of a call: for on_error, for on_success, and for all that is done with a result.
OF_A_FAILURE, OF_A_RESPONSE, OF_A_RESULT = ("error",), ("response",), ("result",)
#: The result of a step, and whether its calls reached `max_attempts` before the last page.
OF_AN_END = (*OF_A_RESULT, "is_cut")
#: Names that no element can have.
RESERVED = frozenset((*EVERYWHERE, *OF_A_LOOP, *OF_A_CALL, *OF_A_FAILURE, *OF_A_RESPONSE, *OF_AN_END))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepScope:
    """What is known around the steps of a phase; None: not known, and not checked."""

    workload: frozenset[str] | None = None
    phases: frozenset[str] | None = None  #: phases before this one
    vars: frozenset[str] = field(default_factory=frozenset)  #: that steps of phases before may have set
    connections: Mapping[str, str] | None = None  #: name -> type
    sinks: Collection[str] = SINK_TOOLS  #: the sinks there are


#: Nothing is known.
UNKNOWN = StepScope()


def template_problems(step: StepSpec, steps: Sequence[StepSpec], around: StepScope) -> Iterator[DefinitionProblem]:
    """Yield a problem for each template or condition of *step*, one of *steps*, that cannot be filled in."""
    known = _known_below(step, steps, around)
    for path, text, names, is_condition in _templates(step):
        try:
            used = expressions.paths_of(text, is_condition=is_condition)
        except ExpressionError as exc:
            yield _problem(path, f"{_said(path)} {str(exc)[:1].lower()}{str(exc)[1:]}")
            continue
        for why in _unknown_names(used, names, known):
            yield _problem(path, f"{_said(path)} names {why}")
    yield from _unquoted(step)


def _said(path: KeyPath) -> str:
    return ".".join(str(key) for key in path)


# --- where templates stand -------------------------------------------------------------------------------------


class _Template(NamedTuple):
    path: KeyPath
    text: str
    names: frozenset[str]  #: that are known there
    is_condition: bool


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


def rule_paths(step: StepSpec) -> Iterator[tuple[KeyPath, RetryRule]]:
    """Yield each rule of retry with its place in the file: by its kind, or in the list."""
    kinds = [rule.kind for rule in step.retry]
    for index, rule in enumerate(step.retry):
        yield ("retry", rule.kind if len({*kinds}) == len(kinds) else index), rule


def _texts(path: KeyPath, value: object, names: frozenset[str]) -> Iterator[_Template]:
    """Yield each template in *value*, however deep it stands."""
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        yield _Template(path, value, names, is_condition=False)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts((*path, key), item, names)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts((*path, index), item, names)


# --- what they name --------------------------------------------------------------------------------------------


def _unknown_names(
    used: frozenset[expressions.Path], names: frozenset[str], known: Mapping[str, _Below]
) -> Iterator[str]:
    for path in sorted(used):
        if path[0] not in names:
            where = " (it is known elsewhere, not here)" if path[0] in RESERVED else ""
            yield f"{path[0]}, which is not known here{where}{hint(path[0], sorted(names))}"
        elif len(path) > 1 and path[0] in known and (why := known[path[0]](path[1])):
            yield f"{path[0]}.{path[1]}, {why}"


#: Says why a key cannot be there, "" when it can.
_Below = Callable[[str], str]


def _known_below(step: StepSpec, steps: Sequence[StepSpec], around: StepScope) -> Mapping[str, _Below]:
    """Return for each name whose keys are known what says whether one of them can be there."""
    result: dict[str, _Below] = {"steps": lambda name: _why_no_step(name, step, steps)}
    if around.workload is not None:
        result["workload"] = _among(around.workload, "and the workload of the workflow has no such value")
    if around.phases is not None:
        result["phases"] = _among(around.phases, "and no phase before this one is called so")
    variables = around.vars | {name for one in steps for name in one.vars}
    result["vars"] = _among(frozenset(variables), "and no step sets it in vars")

    return result


def _among(names: frozenset[str], otherwise: str) -> _Below:
    return lambda name: "" if name in names else f"{otherwise}{hint(name, sorted(names)) if names else ''}"


def _why_no_step(name: str, step: StepSpec, steps: Sequence[StepSpec]) -> str:
    names = [one.name for one in steps]
    if name not in names:
        return f"and there is no such step{hint(name, names)}"
    if name == step.name or names.index(name) < names.index(step.name):
        return ""
    # A step that goes back makes later ones earlier.
    places = {one.name: index for index, one in enumerate(steps)}
    goes_back = any(rule.step in places and places[rule.step] <= places[one.name] for one in steps for rule in one.next)

    return "" if goes_back else "which comes later"


def _unquoted(step: StepSpec) -> Iterator[DefinitionProblem]:
    """Yield a problem when a value would be read by the shell as part of the line, whatever it holds."""
    lines: list[tuple[KeyPath, object]] = [(("shell",), step.inputs.get("shell"))]
    lines += [((*path, "next_call", "shell"), rule.next_call.get("shell")) for path, rule in rule_paths(step)]
    for path, line in lines:
        if isinstance(line, str) and "{{" in line and not _is_quoted(line):
            rule = "shell puts a value into a line for the shell: end it with |quote, or use command with a list"
            yield _problem(path, rule)


def _is_quoted(line: str) -> bool:
    try:
        return all(name == "quote" for name in expressions.filters_of(line))
    except ExpressionError:
        return True  # told already


_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


# --- loops -----------------------------------------------------------------------------------------------------


def loop_problems(step: StepSpec) -> Iterator[DefinitionProblem]:
    """Yield what is wrong with the loop of *step*."""
    if step.loop is not None:
        yield from rule_problems(step.loop, "loop")
        yield from (problem.below("loop") for problem in _of_loop(step.loop))


def _of_loop(loop: LoopSpec) -> Iterator[DefinitionProblem]:
    if not (isinstance(loop.collection, list) and is_json(loop.collection, 20)) and not (
        isinstance(loop.collection, str) and "{{" in loop.collection
    ):
        rule = 'collection must be a list or a template of one, such as "{{ workload.users }}"'
        yield _problem(("collection",), f"{rule}, not {shown(loop.collection)}")
    if not _ELEMENT.fullmatch(loop.element) or loop.element in RESERVED:
        why = "it means something else in templates" if loop.element in RESERVED else "use letters, digits and '_'"
        yield _problem(("element",), f"{shown(loop.element)} cannot be the name of an element: {why}")
    if loop.mode == SEQUENTIAL and loop.concurrency > 1:
        rule = f'concurrency is {loop.concurrency}, and a sequential loop makes one call at a time: say mode = "async"'
        yield _problem(("concurrency",), rule)
    if loop.on_failure != THRESHOLD:
        if loop.threshold:
            yield _problem(("threshold",), 'threshold is for on_failure = "threshold": say that, or take it out')
        return
    if not 0 < loop.threshold <= MAX_ITERATIONS or (loop.threshold > 1 and loop.threshold != int(loop.threshold)):
        rule = "a share of all iterations below 1, or a whole number of them"
        yield _problem(("threshold",), f"threshold is {shown(loop.threshold)} and must be the most failures: {rule}")


# --- retry -----------------------------------------------------------------------------------------------------


def retry_problems(step: StepSpec) -> Iterator[DefinitionProblem]:
    """Yield what is wrong with the rules of *step*."""
    for path, rule in rule_paths(step):
        waits = _wait_problems(rule.base_seconds, rule.max_seconds)
        yield from (problem.below(*path) for problem in (*rule_problems(rule), *waits, *_of_pages(rule, step.tool)))


def _of_pages(rule: RetryRule, tool: str) -> Iterator[DefinitionProblem]:
    if rule.kind == ON_ERROR:
        for name, usual in (("next_call", {}), ("collect", "replace"), ("merge_path", "")):
            if getattr(rule, name) != usual:
                yield _problem((name,), f"{name} is for on_success: a failed call is made again as it was")
        if rule.on_limit != ACCEPT:
            yield _problem(("on_limit",), "on_limit is for on_success: calls that keep failing have failed")
        return
    if not rule.when.strip():
        yield _problem((), "on_success has no while: without one it would never end")
    known = INPUTS_OF_TOOL.get(tool, tuple(rule.next_call))
    for key in rule.next_call:
        if key not in known:
            yield _problem(("next_call", key), f"{key!r} is no input of the tool {tool}{hint(key, known)}")
    yield from _not_one_of(("collect",), "way to collect", rule.collect, COLLECT_STRATEGIES)
    yield from _not_one_of(("on_limit",), "policy about the limit", rule.on_limit, LIMIT_POLICIES)
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
) -> Iterator[DefinitionProblem]:
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
    yield from (problem.below("sink") for problem in (*_keys_of_sink(sink), *rule_problems(sink), *_of_sink(sink)))
    if connections is not None and sink.tool in CONNECTION_TYPES:
        yield from (problem.below("sink") for problem in _of_connection(sink, connections))


def _keys_of_sink(sink: SinkSpec) -> Iterator[DefinitionProblem]:
    needed, possible = _SINK_KEYS.get(sink.tool, ((), ()))  # a plugin has options and nothing else
    for name in needed:
        if not getattr(sink, name):
            yield _problem((), f"a sink with the tool {sink.tool} needs {name}")
    for name in ("connection", "table", "key", "path", "call"):
        if getattr(sink, name) and name not in (*needed, *possible):
            yield _problem((name,), f"{name} is not for a sink with the tool {sink.tool}: take it out")


def _of_sink(sink: SinkSpec) -> Iterator[DefinitionProblem]:
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


def _of_connection(sink: SinkSpec, connections: Mapping[str, str]) -> Iterator[DefinitionProblem]:
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


def next_problems(steps: Sequence[StepSpec]) -> Iterator[DefinitionProblem]:
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


def step_shape_problems(step: StepSpec) -> list[DefinitionProblem]:
    """Return a problem for each field of another type than it is declared with; what it holds only when it is sound."""
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


# --- steps -----------------------------------------------------------------------------------------------------

#: Steps of a phase.
MAX_STEPS = 200
#: Names of steps and variables: they stand in templates, where `-` is minus.
STEP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
STEP_NAME_RULE = "use letters, digits and '_' (at most 64), a letter first"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: Headers whose value is a credential.
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"})


def check_steps(
    steps: Sequence[StepSpec], *, has_file: Callable[[str], bool], around: StepScope = UNKNOWN
) -> list[DefinitionProblem]:
    """Return all that is wrong with the steps of a phase; paths begin at the phase."""
    problems = [
        problem for index, step in enumerate(steps) for problem in _named(step_shape_problems(step), step, index)
    ]
    if problems:
        return problems  # a name that is a number: what it is good for cannot be asked
    if len(steps) > MAX_STEPS:
        return [_problem(("steps",), f"there are {len(steps)} steps, and a phase has at most {MAX_STEPS}")]
    for index, step in enumerate(steps):
        result = [
            *_own_problems(step, steps[:index]),
            *_tool_problems(step, has_file),
            *loop_problems(step),
            *retry_problems(step),
            *_next_call_problems(step),
            *sink_problems(step, around.connections, around.sinks),
            *template_problems(step, steps, around),
        ]
        problems += _named(result, step, index)

    return problems + [problem.below("steps") for problem in next_problems(steps)]


def _named(problems: Sequence[DefinitionProblem], step: StepSpec, index: int) -> list[DefinitionProblem]:
    who = f"step {step.name!r}" if step.name else f"step number {index + 1}"

    return [_problem(("steps", index, *one.path), f"{who}: {one.message}") for one in problems]


# --- the step itself -------------------------------------------------------------------------------------------


def _own_problems(step: StepSpec, before: Sequence[StepSpec]) -> Iterator[DefinitionProblem]:
    if not STEP_NAME.fullmatch(step.name):
        yield _problem(("name",), f"{shown(step.name)} cannot be the name of a step: {STEP_NAME_RULE}")
    if step.name in {one.name for one in before}:
        yield _problem(("name",), "there are two steps of that name: give one of them another")
    yield from rule_problems(step)
    for name in step.vars:
        if not STEP_NAME.fullmatch(name):
            yield _problem(("vars", name), f"{shown(name)} cannot be the name of a variable: {STEP_NAME_RULE}")
    for key, value in (*step.inputs.items(), ("vars", dict(step.vars))):
        if not is_json(value, MAX_DEPTH):
            yield _problem((key,), f"{key} cannot be kept as JSON: write it as a text or a number")


def _tool_problems(step: StepSpec, has_file: Callable[[str], bool]) -> Iterator[DefinitionProblem]:
    if step.tool not in TOOLS:
        yield _problem(("tool",), f"there is no tool {step.tool!r}{hint(step.tool, TOOLS)}")
        return
    known = INPUTS_OF_TOOL[step.tool]
    for key in step.inputs:
        if key not in known:
            yield _problem((key,), f"{key!r} is no input of the tool {step.tool}{hint(key, known)}")
    yield from _kind_problems(step.inputs)
    if step.tool == "agent":
        yield from _agent_problems(step.inputs, has_file)
    else:
        yield from _CHECKS[step.tool](step.inputs)


def _kind_problems(inputs: Mapping[str, object]) -> Iterator[DefinitionProblem]:
    """Yield a problem for each input of the wrong kind; a template of one expression may give any."""
    for key, value in inputs.items():
        rule, is_right = _KINDS.get(key, ("", lambda _value: True))
        if not is_right(value):
            yield _problem((key,), f"{key} must be {rule}, not {shown(value)}")


def _next_call_problems(step: StepSpec) -> Iterator[DefinitionProblem]:
    """Yield what is wrong with the inputs of later pages: they are made of responses, which strangers write."""
    for path, rule in rule_paths(step):
        fixed = [key for key in rule.next_call if key in NO_TEMPLATES]
        asked = {key: value for key, value in rule.next_call.items() if key not in fixed}
        result = [
            *(_problem((key,), f"{key} is the same for all calls of a step, so next_call has none") for key in fixed),
            *_kind_problems(asked),
            *(_http_values(asked) if step.tool == "http" else ()),
            *_second_choice(step.inputs, asked),
        ]
        yield from (problem.below(*path, "next_call") for problem in result)


def _second_choice(inputs: Mapping[str, object], asked: Mapping[str, object]) -> Iterator[DefinitionProblem]:
    """Yield a problem where *asked* gives what *inputs* give in another way."""
    for pair in (("json", "body"), ("command", "shell"), ("prompt", "prompt_file")):
        for first, second in (pair, pair[::-1]):
            if first in inputs and second in asked:
                yield _problem((second,), f"the step has {first}, so its next call cannot have {second}")


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or is_template(value)


def is_template(value: object) -> bool:
    """Whether *value* is a text that is filled in."""
    return isinstance(value, str) and "{{" in value


#: input -> what it must be, and whether a value is that
_KINDS: Mapping[str, tuple[str, Callable[[object], bool]]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("url", "method", "shell", "stdin", "output", "call", "code", "prompt", "prompt_file", "agent", "model"),
            ("a text", _is_text),
        ),
        **dict.fromkeys(("params", "headers", "args", "options"), ("a table, or a template of one", _is_table)),
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
            lambda value: isinstance(value, list | tuple) and bool(value) and all(map(_is_text, value)),
        ),
    }
)


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and VARIABLE.fullmatch(value) is not None


def _one_of(inputs: Mapping[str, object], first: str, second: str, tool: str) -> Iterator[DefinitionProblem]:
    """Yield a problem unless exactly one of two inputs is there, and not empty."""
    result = [key for key in (first, second) if key in inputs]
    if len(result) != 1:
        number = "both" if result else "neither"
        yield _problem((), f"the tool {tool} needs {first} or {second}, and has {number}")
    elif isinstance(inputs[result[0]], str) and not str(inputs[result[0]]).strip():
        yield _problem((result[0],), f"{result[0]} is empty")


# --- tools -----------------------------------------------------------------------------------------------------


def _http_problems(inputs: Mapping[str, object]) -> Iterator[DefinitionProblem]:
    if not inputs.get("url", ""):
        yield _problem((), "the tool http needs url")
    if "json" in inputs and "body" in inputs:
        yield _problem(("body",), "give json or body, not both")
    yield from _http_values(inputs)


def _http_values(inputs: Mapping[str, object]) -> Iterator[DefinitionProblem]:
    url = inputs.get("url", "")
    if isinstance(url, str) and url and (why := _why_no_address(url)):
        yield _problem(("url",), f"url {why}")
    method = inputs.get("method", "GET")
    if isinstance(method, str) and not is_template(method) and method.upper() not in METHODS:
        yield _problem(("method",), f"{method!r} is no method of HTTP{hint(method, METHODS)}")
    headers = inputs.get("headers")
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if str(name).lower() in SECRET_HEADERS and not is_template(value):
            rule = f"the header {name} stands here with its value: name an environment variable in headers_env instead"
            yield _problem(("headers", name), rule)


def _why_no_address(url: str) -> str:
    if url.startswith("{{"):
        return ""
    if not url.lower().startswith(("http://", "https://")):
        return f"is {shown(url)} and must begin with http:// or https://"
    try:
        has_password = urlsplit(url).password is not None
    except ValueError:
        return f"is {shown(url)}, which is no address"

    return "holds a password: name an environment variable in headers_env instead" if has_password else ""


def _command_tool_problems(inputs: Mapping[str, object]) -> Iterator[DefinitionProblem]:
    yield from _one_of(inputs, "command", "shell", "command")
    output = inputs.get("output", OUTPUTS[0])
    if isinstance(output, str) and output not in OUTPUTS:
        yield _problem(("output",), f"{output!r} is no form of output{hint(output, OUTPUTS)}")


def _python_problems(inputs: Mapping[str, object]) -> Iterator[DefinitionProblem]:
    yield from _one_of(inputs, "call", "code", "python")
    call, code = inputs.get("call"), inputs.get("code")
    if isinstance(call, str) and call.strip() and not CALL.fullmatch(call):
        yield _problem(("call",), f"call is {shown(call)} and must be of the form package.module:function")
    if isinstance(code, str) and code.strip() and (why := _why_no_code(code)):
        yield _problem(("code",), f"code {why}")


def _why_no_code(code: str) -> str:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        return f"cannot be read as Python: {exc}"
    if not any(isinstance(one, ast.FunctionDef) and one.name == "main" for one in body):
        return "has no function main: that is what is called"

    return ""


def _agent_problems(inputs: Mapping[str, object], has_file: Callable[[str], bool]) -> Iterator[DefinitionProblem]:
    yield from _one_of(inputs, "prompt", "prompt_file", "agent")
    name = inputs.get("prompt_file")
    if isinstance(name, str) and name.strip() and not has_file(name):
        yield _problem(("prompt_file",), f"there is no prompt file {name}: write it, or name another")
    agent = inputs.get("agent", AGENTS[0])
    if isinstance(agent, str) and agent not in AGENTS:
        yield _problem(("agent",), f"there is no agent {agent!r}{hint(agent, AGENTS)}")


_CHECKS: Mapping[str, Callable[[Mapping[str, object]], Iterator[DefinitionProblem]]] = MappingProxyType(
    {"http": _http_problems, "command": _command_tool_problems, "python": _python_problems}
)


# --- the workflow ----------------------------------------------------------------------------------------------

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def check_workflow(
    spec: WorkflowSpec,
    *,
    runners: Collection[str],
    has_file: Callable[[str], bool],
    connections: Mapping[str, str] | None = None,
    sinks: Collection[str] = SINK_TOOLS,
) -> list[DefinitionProblem]:
    """
    Return all that is wrong with *spec*; a definition without a problem can be started.

    *connections* has the type of each named connection; None: which there are is not known here. *sinks* are those
    there are.
    """
    problems = list(_workflow_problems(spec))
    for index, phase in enumerate(spec.phases):
        for item in check_phase(phase, runners=runners, has_file=has_file):
            named = _problem(item.path, f"phase {phase.name!r}: {item.message}")
            problems.append(named.below("phases", index))
    if any(shape_problems(phase) for phase in spec.phases):
        return problems  # a need that is a number, a name that is none: how they hang together cannot be asked
    problems += _steps(spec, has_file, StepScope(connections=connections, sinks=sinks))

    return problems + [
        problem.below("phases")
        for check in (_names, _states, _tiers, _needs, _reworks)
        for problem in check(spec.phases)
    ]


def _steps(spec: WorkflowSpec, has_file: Callable[[str], bool], home: StepScope) -> Iterator[DefinitionProblem]:
    """Yield what is wrong with the steps of phases: they know the workload, and what phases before them have done."""
    for index, phase in enumerate(spec.phases):
        earlier = spec.phases[:index]
        around = replace(
            home,
            workload=frozenset(spec.workload),
            phases=frozenset(one.name for one in earlier),
            vars=frozenset(name for one in earlier for step in one.steps for name in step.vars),
        )
        for item in check_steps(phase.steps, has_file=has_file, around=around):
            named = _problem(item.path, f"phase {phase.name!r}: {item.message}")
            yield named.below("phases", index)


def _at(index: int, key: str, message: str) -> DefinitionProblem:
    return _problem((index, key), message)


def _workflow_problems(spec: WorkflowSpec) -> Iterator[DefinitionProblem]:
    if not (_is_text(spec.name) and NAME.fullmatch(spec.name)):
        yield _problem((), f"{spec.name!r} cannot be the name of a workflow: {NAME_RULE}")
    if not (_is_text(spec.version) and _VERSION.fullmatch(spec.version)):
        yield _problem(
            ("version",),
            f"{spec.version!r} cannot be a version: use letters, digits, '.', '_', '+' and '-' (at most 64)",
        )
    if not is_json(spec.workload, MAX_DEPTH):
        yield _problem(("workload",), "workload cannot be kept as JSON: write texts and numbers")
    if spec.base:
        yield from _not_one_of(("base",), "way to treat a red base", spec.base, BASE_MODES)
    if not spec.phases:
        yield _problem(("phases",), _graph_problem([]))


def _names(phases: Sequence[PhaseSpec]) -> Iterator[DefinitionProblem]:
    seen: set[str] = set()
    for index, phase in enumerate(phases):
        if phase.name in seen:
            yield _at(index, "name", f"there are two phases called {phase.name!r}: give one of them another name")
        seen.add(phase.name)


# --- states ----------------------------------------------------------------------------------------------------


def _states(phases: Sequence[PhaseSpec]) -> Iterator[DefinitionProblem]:
    """Yield what the table of states refuses: looked at one by one and in pairs, so that all of it is said."""
    sound: list[tuple[int, tuple[str, WorkflowState]]] = []
    for index, phase in enumerate(phases):
        try:
            place = (phase.name, state_named(phase.state))
        except UsageError:
            known = [state.value for state in PIPELINE]
            why = f"phase {phase.name!r}: {phase.state!r} is no state{hint(phase.state, known, 'a phase runs under')}"
            yield _at(index, "state", why)
            continue
        if why := _graph_problem([place]):
            yield _at(index, "state", why)
        else:
            sound.append((index, place))
    for (_, before), (index, place) in pairwise(sound):
        if why := _graph_problem([before, place]):
            yield _at(index, "state", why)


def _graph_problem(phases: Sequence[tuple[str, WorkflowState]]) -> str:
    try:
        derive_table(phases)
    except BadWorkflowGraph as exc:
        return str(exc)

    return ""


# --- the order of phases ---------------------------------------------------------------------------------------


def _tiers(phases: Sequence[PhaseSpec]) -> Iterator[DefinitionProblem]:
    for index, (before, phase) in enumerate(pairwise(phases), 1):
        if phase.tier < before.tier:
            yield _at(
                index,
                "tier",
                f"phase {phase.name!r} (tier {phase.tier}) comes after {before.name!r} (tier {before.tier}): "
                "a tier can only be followed by itself or a later one",
            )


def _needs(phases: Sequence[PhaseSpec]) -> Iterator[DefinitionProblem]:
    places = {phase.name: index for index, phase in reversed([*enumerate(phases)])}
    circles = _circles_of_needs(phases)
    for circle in circles:
        first = min(places[name] for name in circle)
        yield _at(first, "needs", _said_circle(sorted(circle, key=places.__getitem__)))
    for index, phase in enumerate(phases):
        for number, name in enumerate(phase.needs):
            if any({name, phase.name} <= circle for circle in circles):
                continue
            if why := _why_unmet(phase, index, phases[places[name]] if name in places else None, name, places):
                yield _problem((index, "needs", number), f"phase {phase.name!r} needs {name!r}{why}")


def _why_unmet(phase: PhaseSpec, index: int, needed: PhaseSpec | None, name: str, places: Mapping[str, int]) -> str:
    """Return why the need of *name* can never be met, or not for sure; "" when it can."""
    if needed is None:
        return f", but there is no such phase{hint(name, sorted(places, key=places.__getitem__))}"
    if needed.tier > phase.tier:
        return f" of the later tier {needed.tier}, so it could never start: move it to a tier that is no earlier"
    if places[name] > index:
        return ", which comes later, so it could never start: phases run in the order they are written"
    if phase.is_required and not needed.is_required:
        return (
            ", which may fail without ending the workflow, and then it could never start: "
            f"make {name!r} required, or take the need away"
        )

    return ""


def _said_circle(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"phase {names[0]!r} needs itself, so it could never start: take that away"

    return f"the phases {', '.join(map(repr, names))} need each other, so none could ever start: take one need away"


def _circles_of_needs(phases: Sequence[PhaseSpec]) -> list[frozenset[str]]:
    """Return the groups of phases that wait for each other."""
    needs = {phase.name: phase.needs for phase in phases}
    reached = {name: _reached(name, needs) for name in needs}
    result = [
        frozenset(other for other in reached[name] if name in reached.get(other, ()))
        for name in needs
        if name in reached[name]
    ]

    return list(dict.fromkeys(result))


def _reached(start: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return everything *start* waits for, directly or not."""
    result: set[str] = set()
    queue = list(needs[start])
    for name in queue:  # the list grows while it is walked
        if name not in result:
            result.add(name)
            queue.extend(needs.get(name, ()))

    return result


# --- rework ----------------------------------------------------------------------------------------------------


def _reworks(phases: Sequence[PhaseSpec]) -> Iterator[DefinitionProblem]:
    for index, phase in enumerate(phases):
        if phase.on_rework and (why := _why_no_rework(phase, phases[:index], phases)):
            yield _at(index, "on_rework", f"phase {phase.name!r} cannot go back to {phase.on_rework!r}: {why}")


def _why_no_rework(phase: PhaseSpec, earlier: Sequence[PhaseSpec], phases: Sequence[PhaseSpec]) -> str:
    target = next((item for item in earlier if item.name == phase.on_rework), None)
    if target is None:
        names = [item.name for item in phases]
        if phase.on_rework in names:
            return "it does not come earlier"
        return f"there is no such phase{hint(phase.on_rework, names)}"
    reworkable = sorted(state.value for state in REWORKABLE_STATES)
    if phase.state not in reworkable:
        return f"only phases under {' or '.join(reworkable)} can ask for rework, and it runs under {phase.state}"
    if target.state != WorkflowState.BUILDING.value:
        return f"rework goes to a phase under building, and {target.name!r} runs under {target.state}"

    return ""
