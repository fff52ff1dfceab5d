"""
Read the workflows and phases that a user writes in `adw.toml`.

Words only: it makes nouns of tables and says which key has a value of the wrong kind or is not known. Whether the whole
is sound is for `workflow_checks`. Nothing that is written is left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from adws.adw_modules import table_values
from adws.adw_modules.demands import Demands
from adws.adw_modules.errors import UsageError
from adws.adw_modules.spelling import hint
from adws.adw_modules.step_file import json_table, read_steps
from adws.adw_modules.steps import STEPS
from adws.adw_modules.table_reading import Key, Refused, keys_of, list_of, read_table, whole_table
from adws.adw_modules.table_values import BadValue
from adws.adw_modules.workflow import (
    AGENT,
    COMMAND,
    DEFAULT_MAX_ATTEMPTS,
    NO_DEMANDS,
    PYTHON,
    STATE_OF_PHASE,
    Gate,
    KeyPath,
    PhaseSpec,
    Problem,
    RetrySpec,
    Timeouts,
    WorkflowSpec,
)

#: What a phase can run -> who runs it.
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
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlay:
    """A `[phases.NAME]`: fields of PhaseSpec that replace those of the built-in phases of that name."""

    name: str
    fields: Mapping[str, object]
    problems: tuple[Problem, ...] = ()


def read_workflow(
    name: str, raw: object, *, source: str = "adw.toml", max_attempts: int = DEFAULT_MAX_ATTEMPTS
) -> Definition:
    """Return the definition in *raw*; *max_attempts* is for phases that do not say how many they have."""
    problems: list[Problem] = []
    values: Mapping[str, object] = {}
    try:
        values = read_table(raw, WORKFLOW_KEYS, "a workflow", problems)
    except BadValue as exc:
        problems.append(Problem(path=(), message=f"{name} {exc}, such as [workflows.{name}]"))
    phases = []
    for index, table in enumerate(table_values.tables(values.get("phases", []))):
        found: list[Problem] = []
        phases.append(_read_phase(table, index, max_attempts, found))
        problems += [_of_phase(problem, phases[-1].name).below("phases", index) for problem in found]
    spec = WorkflowSpec(
        name=name,
        phases=tuple(phases),
        version=str(values.get("version", "1")),
        description=str(values.get("description", "")),
        source=source,
        workload=values.get("workload", {}),  # type: ignore[arg-type]  # its reader saw to the type
        demands=values.get("demands", NO_DEMANDS),  # type: ignore[arg-type]  # its reader saw to the type
    )

    return Definition(spec=spec, is_replacement=bool(values.get("replace")), problems=tuple(problems))


def _of_phase(problem: Problem, name: str) -> Problem:
    """Return *problem* with the name of its phase in the message; one of the phase as a whole has it there already."""
    if not problem.path or not name:
        return problem

    return Problem(path=problem.path, message=f"phase {name!r}: {problem.message}")


def read_overlay(name: str, raw: object) -> Overlay:
    """Return the overlay in *raw*."""
    problems: list[Problem] = []
    fields: dict[str, object] = {}
    if name not in STATE_OF_PHASE:
        problems.append(Problem(path=(), message=f"no built-in phase is called {name!r}{hint(name, STATE_OF_PHASE)}"))
    try:
        fields = read_table(raw, OVERLAY_KEYS, "a built-in phase", problems, elsewhere=_PLACING)
    except BadValue as exc:
        problems.append(Problem(path=(), message=f"{name} {exc}, such as [phases.{name}]"))
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


def _read_phase(raw: object, index: int, max_attempts: int, problems: list[Problem]) -> PhaseSpec:
    """Return the phase in *raw* with what is missing left empty, and note each thing that is wrong."""
    fields: dict[str, object] = {}
    try:
        fields = read_table(raw, PHASE_KEYS, "a phase", problems)
    except BadValue as exc:
        problems.append(Problem(path=(), message=f"phase number {index + 1} {exc}"))
        fields["name"] = ""
    name = str(fields.setdefault("name", ""))
    fields.setdefault("state", STATE_OF_PHASE.get(name, ""))
    fields["runner"] = _runner_of(fields)
    fields.setdefault("max_attempts", max_attempts)
    problems += _missing(fields, f"phase {name!r}" if name else f"phase number {index + 1}", problems)

    return PhaseSpec(**fields)  # type: ignore[arg-type]  # the readers of PHASE_KEYS saw to the types


def _missing(fields: Mapping[str, object], phase: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return a problem for each thing a phase must have; what is there and could not be read is not missing."""
    unread = {key for problem in problems for key in problem.path[:1]}
    if any(not problem.path for problem in problems):
        return []
    needed = {
        "name": ({"name"}, "give it one"),
        "state": ({"name", "state"}, f"say under which it runs, one of {', '.join(STATE_OF_PHASE.values())}"),
        "runner": ({"runner", *_RUNNER_OF_KEY}, "give it one of command, shell, call, prompt and steps"),
    }

    return [
        Problem(path=(), message=f"{phase} has no {key}: {words}")
        for key, (sources, words) in needed.items()
        if not fields[key] and not sources & unread
    ]


def _runner_of(fields: Mapping[str, object]) -> str:
    """Return the runner that *fields* name, or that what they run speaks of."""
    if "runner" in fields:
        return str(fields["runner"])

    return next((runner for key, runner in _RUNNER_OF_KEY.items() if key in fields), "")


# --- tables ----------------------------------------------------------------------------------------------------


def _sub_table(kind: type[Timeouts | RetrySpec], keys: Mapping[str, Key], what: str) -> Callable[[object], object]:
    """Return a reader of the table that makes a *kind*."""

    def read(value: object) -> object:
        fields = whole_table(value, keys, what)

        return kind(**fields)  # type: ignore[arg-type]  # the readers of *keys* saw to the types

    return read


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
    problems: list[Problem] = []
    fields = read_table(raw, GATE_KEYS, "a gate", problems)
    things = [key for key in table_values.table(raw) if key in _GATE_THINGS]
    if len(things) != 1:
        rule = f"a gate is one thing: give exactly one of {', '.join(_GATE_THINGS)}"
        problems.append(Problem(path=(), message=rule))
    if problems:
        raise Refused(problems)
    for key in ("result", "human"):
        fields.pop(key, None)

    return Gate(kind=_GATE_THINGS[things[0]], **fields)  # type: ignore[arg-type]  # GATE_KEYS saw to the types


#: What a gate looks at -> its kind.
_GATE_THINGS: Mapping[str, str] = MappingProxyType(
    {"command": "command", "shell": "command", "artifact": "artifact", "result": "result", "human": "human"}
)


# --- every key there is: docs/workflows.md explains the same ------------------------------------------------------


def _demands(value: object) -> Demands:
    try:
        return Demands.from_json(value)
    except UsageError as exc:
        raise BadValue(f'must be such as {{host = "alpha", tags = ["gpu"]}}: {exc}') from exc


WORKFLOW_KEYS = keys_of(
    description=table_values.text,
    version=table_values.text,
    replace=table_values.flag,
    demands=_demands,
    workload=json_table,
    phases=table_values.tables,
)
TIMEOUT_KEYS = keys_of(wall=table_values.clock, idle=table_values.clock, after_result=table_values.clock)
RETRY_KEYS = keys_of(
    strategy=table_values.text,
    base_seconds=table_values.seconds,
    max_seconds=table_values.seconds,
    categories=table_values.texts,
)
GATE_KEYS = keys_of(
    command=table_values.argv,
    shell=table_values.text,
    artifact=table_values.text,
    result=table_values.yes,
    human=table_values.yes,
    timeout_seconds=table_values.seconds,
)
PHASE_KEYS = keys_of(
    {"required": "is_required", "gate": "gates"},
    name=table_values.text,
    state=table_values.text,
    runner=table_values.text,
    command=table_values.argv,
    shell=table_values.text,
    call=table_values.text,
    prompt=table_values.text,
    options=table_values.table,
    tier=table_values.whole,
    needs=table_values.texts,
    required=table_values.flag,
    max_attempts=table_values.whole,
    timeouts=_sub_table(Timeouts, TIMEOUT_KEYS, "timeouts"),
    retry=_sub_table(RetrySpec, RETRY_KEYS, "retry"),
    gate=_gate_word,
    gates=_gates,
    allowed_paths=table_values.texts,
    env=table_values.texts,
    on_rework=table_values.text,
    steps=read_steps,
    deadline_seconds=table_values.seconds,
)
#: Keys that say how a phase stands among others; a built-in workflow has decided that.
PLACING_KEYS = ("name", "state", "tier", "needs", "on_rework")
_PLACING: Mapping[str, str] = MappingProxyType(
    {
        key: f"{key} says how a phase stands in its workflow: define a workflow of your own to change that"
        for key in PLACING_KEYS
    }
)
OVERLAY_KEYS: Mapping[str, Key] = MappingProxyType(
    {key: value for key, value in PHASE_KEYS.items() if key not in PLACING_KEYS}
)
