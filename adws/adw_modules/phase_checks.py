"""
Say whether one phase of a workflow is sound in itself, whatever the phases around it.

Pure. How phases hang together is checked in `workflow_checks`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType

from adws.adw_modules import agent_options
from adws.adw_modules.error_classes import RETRYABLE
from adws.adw_modules.retry_policy import MAX_SECONDS, BackoffStrategy
from adws.adw_modules.spelling import hint
from adws.adw_modules.steps import EXTERNAL, STEPS, StepSpec
from adws.adw_modules.workflow import (
    AGENT,
    AGENTS,
    COMMAND,
    GATE_KINDS,
    PYTHON,
    Gate,
    KeyPath,
    PhaseSpec,
    Problem,
    RetrySpec,
    Timeouts,
)

#: Names of workflows and phases; they become parts of file names.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME_RULE = "use letters, digits, '-' and '_' (at most 64), a letter first"
#: Tiers a workflow may have.
MAX_TIER = 1000
#: Attempts a phase may have in one round.
MAX_ATTEMPTS = 100
#: How the wait between attempts may grow.
RETRY_STRATEGIES = tuple(strategy.value for strategy in BackoffStrategy)
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


def check_phase(phase: PhaseSpec, *, runners: Collection[str], has_file: Callable[[str], bool]) -> list[Problem]:
    """Return all that is wrong with *phase* itself; paths begin at the phase."""
    return shape_problems(phase) or [
        *_name_problems(phase),
        *_runner_problems(phase, runners, has_file),
        *_number_problems(phase),
        *_retry_problems(phase.retry),
        *_list_problems(phase),
        *(problem for index, gate in enumerate(phase.gates) for problem in _gate_problems(gate, index)),
        *_option_problems(phase.options),
    ]


def shape_problems(phase: PhaseSpec) -> list[Problem]:
    """Return a problem for each field of another type than it is declared with, as a definition in Python may have."""
    return [
        _problem((name,), f"{name} must be {rule}, not {shown(getattr(phase, name))}")
        for rule, (names, is_right) in _TYPES.items()
        for name in names
        if not is_right(getattr(phase, name))
    ]


def _problem(path: KeyPath, message: str) -> Problem:
    return Problem(path=path, message=message)


def shown(value: object) -> str:
    """Return *value* as a sentence shows it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- types -----------------------------------------------------------------------------------------------------


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_seconds(value: object) -> bool:
    """Whether *value* is a number of seconds that a clock can be set to."""
    # Compared, not converted: a whole number may be larger than any float. NaN is not less than anything.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_SECONDS


#: what a field must be -> the fields, and whether a value is that
_TYPES: Mapping[str, tuple[tuple[str, ...], Callable[[object], bool]]] = MappingProxyType(
    {
        "a text": (("name", "state", "runner", "shell", "call", "prompt", "on_rework"), _is_text),
        "a tuple of texts": (("needs", "allowed_paths", "command", "env"), _is_texts),
        "a whole number": (("tier", "max_attempts"), _is_whole),
        "True or False": (("is_required",), lambda value: isinstance(value, bool)),
        "Timeouts": (("timeouts",), lambda value: isinstance(value, Timeouts)),
        "a RetrySpec": (("retry",), lambda value: isinstance(value, RetrySpec)),
        "a tuple of Gates": (
            ("gates",),
            lambda value: isinstance(value, tuple) and all(isinstance(gate, Gate) for gate in value),
        ),
        "a tuple of StepSpecs": (
            ("steps",),
            lambda value: isinstance(value, tuple) and all(isinstance(step, StepSpec) for step in value),
        ),
        "a mapping": (("options",), lambda value: isinstance(value, Mapping)),
    }
)


# --- what it runs ----------------------------------------------------------------------------------------------


def _name_problems(phase: PhaseSpec) -> Iterator[Problem]:
    if not NAME.fullmatch(phase.name):
        yield _problem(("name",), f"{shown(phase.name)} cannot be the name of a phase: {NAME_RULE}")


def _runner_problems(phase: PhaseSpec, runners: Collection[str], has_file: Callable[[str], bool]) -> Iterator[Problem]:
    if phase.runner not in runners:
        yield _problem(("runner",), f"there is no runner {phase.runner!r}{hint(phase.runner, runners)}")
        return  # what an unknown runner needs is not known either

    yield from _foreign_keys(phase)
    if phase.runner == COMMAND:
        yield from _command_problems(phase.command, phase.shell, "the runner command needs")
    elif phase.runner == PYTHON:
        yield from _call_problems(phase.call)
    elif phase.runner == STEPS:
        if not phase.steps:
            yield _problem((), "the runner steps needs steps: write at least one [[...phases.steps]]")
    elif phase.runner in (AGENT, *AGENTS):
        yield from _prompt_problems(phase, has_file)
        yield from (_problem(("options",), words) for words in agent_options.problems_of(phase))


def _foreign_keys(phase: PhaseSpec) -> Iterator[Problem]:
    """Yield a problem for each thing to run that this runner would not look at."""
    named = {one: f"the runner {one}" for one in (COMMAND, PYTHON, STEPS, EXTERNAL)}
    mine = {**named, **dict.fromkeys((AGENT, *AGENTS), "agents")}.get(phase.runner, "")
    for key, whose in _RUNNER_KEYS.items():
        if whose != mine and getattr(phase, key):
            yield _problem((key,), f"{key} is for {whose}, and the runner here is {phase.runner}: take one of them out")


def _command_problems(command: Sequence[str], shell: str, who_needs: str) -> Iterator[Problem]:
    if bool(command) == bool(shell):
        found = "both" if command else "neither"
        yield _problem((), f"{who_needs} command (a list) or shell (one line), and has {found}")
        return
    if shell and not shell.strip():
        yield _problem(("shell",), "shell is empty: write the line to run")
    if command and not command[0]:
        yield _problem(("command",), "the first element of command is empty: it is the program to run")
    for key, texts in (("command", command), ("shell", (shell,))):
        if any("\0" in text for text in texts):
            yield _problem((key,), f"{key} holds a NUL character, which no program can be given")


def _call_problems(call: str) -> Iterator[Problem]:
    if not call:
        yield _problem((), "the runner python needs call, such as package.module:function")
    elif not CALL.fullmatch(call):
        yield _problem(("call",), f"call is {shown(call)} and must be of the form package.module:function")


def _prompt_problems(phase: PhaseSpec, has_file: Callable[[str], bool]) -> Iterator[Problem]:
    if not phase.prompt:
        yield _problem((), f"the agent {phase.runner} needs prompt, the file with what it shall do")
    elif not has_file(phase.prompt):
        yield _problem(("prompt",), f"there is no prompt file {phase.prompt}: write it, or name another")


# --- numbers ---------------------------------------------------------------------------------------------------


def _number_problems(phase: PhaseSpec) -> Iterator[Problem]:
    if not 0 <= phase.tier <= MAX_TIER:
        yield _problem(("tier",), f"tier is {phase.tier} and must be from 0 to {MAX_TIER}")
    if not 1 <= phase.max_attempts <= MAX_ATTEMPTS:
        yield _problem(("max_attempts",), f"max_attempts is {phase.max_attempts} and must be from 1 to {MAX_ATTEMPTS}")
    if phase.deadline_seconds is not None and not (is_seconds(phase.deadline_seconds) and phase.deadline_seconds > 0):
        said = shown(phase.deadline_seconds)
        yield _problem(
            ("deadline_seconds",),
            f"deadline_seconds is {said} and must be more than 0 seconds, at most {MAX_SECONDS:g}",
        )
    for name in Timeouts.__slots__:
        value = getattr(phase.timeouts, name)
        if value is not None and not (is_seconds(value) and value > 0):
            yield _problem(
                ("timeouts", name),
                f"the timeout {name} is {shown(value)} and must be more than 0 seconds, at most {MAX_SECONDS:g}",
            )


def _retry_problems(retry: RetrySpec) -> Iterator[Problem]:
    if retry.strategy is not None and retry.strategy not in RETRY_STRATEGIES:
        yield _unknown(("retry", "strategy"), "retry strategy", retry.strategy, RETRY_STRATEGIES)
    wrong = [
        name
        for name in ("base_seconds", "max_seconds")
        if (value := getattr(retry, name)) is not None and not (is_seconds(value) and value >= 0)
    ]
    for name in wrong:
        yield _problem(
            ("retry", name), f"{name} is {shown(getattr(retry, name))} and must be from 0 to {MAX_SECONDS:g} seconds"
        )
    if not wrong and retry.base_seconds is not None and retry.max_seconds is not None:
        yield from _retry_bounds(retry.base_seconds, retry.max_seconds)
    yield from _category_problems(retry.categories)


def _retry_bounds(base: float, most: float) -> Iterator[Problem]:
    if base > most:
        yield _problem(("retry", "max_seconds"), f"max_seconds ({most:g}) is less than base_seconds ({base:g})")


def _category_problems(categories: object) -> Iterator[Problem]:
    if categories is None:
        return
    if not isinstance(categories, tuple):
        yield _problem(("retry", "categories"), f"categories must be a tuple of texts, not {shown(categories)}")
        return
    known = sorted(category.value for category in RETRYABLE)
    for index, name in enumerate(categories):
        if name not in known:
            yield _unknown(("retry", "categories", index), "kind of error that may be tried again", name, known)


def _unknown(path: KeyPath, what: str, found: object, known: Sequence[str]) -> Problem:
    return _problem(path, f"{found!r} is no {what}{hint(str(found), known)}")


# --- lists -----------------------------------------------------------------------------------------------------


def _list_problems(phase: PhaseSpec) -> Iterator[Problem]:
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


def _gate_problems(gate: Gate, index: int) -> Iterator[Problem]:
    yield from (problem.below("gates", index) for problem in _problems_of_gate(gate))


def _problems_of_gate(gate: Gate) -> Iterator[Problem]:
    if gate.kind not in GATE_KINDS:
        yield _unknown(("kind",), "kind of gate", gate.kind, GATE_KINDS)
        return
    if not (_is_texts(gate.command) and _is_text(gate.shell) and _is_text(gate.artifact)):
        yield _problem((), "the command of a gate must be a tuple of texts, its shell and artifact texts")
        return
    for key, kind in _GATE_KEYS.items():
        if kind != gate.kind and getattr(gate, key):
            yield _problem((key,), f"a gate is one thing: this one is of the kind {gate.kind}, and has {key} too")
    if gate.kind == "command":
        yield from _command_problems(gate.command, gate.shell, "a gate of the kind command needs")
    if gate.kind == "artifact" and (why := why_outside(gate.artifact)):
        yield _problem(("artifact",), f"the artifact {shown(gate.artifact)} {why}")
    if not (is_seconds(gate.timeout_seconds) and gate.timeout_seconds > 0):
        said = shown(gate.timeout_seconds)
        yield _problem(
            ("timeout_seconds",), f"timeout_seconds is {said} and must be more than 0 seconds, at most {MAX_SECONDS:g}"
        )


# --- options ---------------------------------------------------------------------------------------------------


def _option_problems(options: Mapping[str, object]) -> Iterator[Problem]:
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
