"""
A workflow as data: named phases in the order they run, and everything each of them may and must do.

Nouns only. `workflow_checks` says whether a definition is sound, `workflow_library` has those that come with adw,
`workflow_file` reads those of a user. A definition is frozen into the document when a workflow starts: what a file says
later changes nothing about a workflow that runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias, TypeVar

from adws.adw_modules.demands import Demands
from adws.adw_modules.errors import StateInvalid, UsageError
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.step_json import step_from_json, step_to_json
from adws.adw_modules.steps import EXTERNAL, STEPS, StepSpec

NO_DEMANDS = Demands()
#: Attempts of a phase in one round, unless its definition says otherwise.
DEFAULT_MAX_ATTEMPTS = 5
#: The runners that are no agents.
COMMAND, PYTHON = "command", "python"
#: The runner of built-in phases: whichever agent is set up.
AGENT = "agent"
#: The runners of the built-in phases that adw does itself.
SHIP, CLEAN = "ship", "clean"
#: The agents, each a runner of that name.
AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
#: What this version can run.
RUNNERS = (COMMAND, PYTHON, STEPS, EXTERNAL, SHIP, CLEAN, AGENT, *AGENTS)
#: What a gate may look at.
GATE_KINDS = ("command", "artifact", "result", "human")
#: The eight phases everybody knows -> the state each runs under.
STATE_OF_PHASE: Mapping[str, str] = MappingProxyType(
    {
        "plan": "planning",
        "build": "building",
        "lint": "linting",
        "test": "testing",
        "review": "reviewing",
        "document": "documenting",
        "ship": "shipping",
        "clean": "cleaning",
    }
)
#: The way to a value in a definition: names of keys, and places in a list.
KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """The three clocks of a phase's process, in seconds; None: that clock is not looked at."""

    wall: float | None = 3600.0  #: from start to end
    idle: float | None = None  #: without a word on its output
    after_result: float | None = 30.0  #: from its result to its end


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrySpec:
    """How a phase waits between attempts; None: what the kind of error asks for."""

    strategy: str | None = None  #: fixed | linear | exponential
    base_seconds: float | None = None
    max_seconds: float | None = None
    categories: tuple[str, ...] | None = None  #: kinds of error that are retried


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What has to hold after a phase's own success; one that cannot be decided does not hold."""

    kind: str  #: command | artifact | result | human
    command: tuple[str, ...] = ()  #: command: exits with 0
    shell: str = ""  #: command, as one line for the shell
    artifact: str = ""  #: artifact: a path or pattern below the working directory that exists and is not empty
    timeout_seconds: float = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSpec:
    """One phase."""

    name: str
    state: str  #: the workflow state it runs under
    runner: str  #: command | python | steps | external | ship | clean | the name of an agent
    tier: int = 0  #: phases of a later tier never start before every required one of an earlier is complete
    needs: tuple[str, ...] = ()  #: phases that must be complete first
    is_required: bool = True  #: False: when it fails for good, the workflow goes on without it
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetrySpec = field(default_factory=RetrySpec)
    gates: tuple[Gate, ...] = ()
    allowed_paths: tuple[str, ...] = ()  #: patterns of files it may change; empty: all
    command: tuple[str, ...] = ()  #: runner command, as arguments
    shell: str = ""  #: runner command, as one line for the shell
    call: str = ""  #: runner python: `package.module:function`
    prompt: str = ""  #: file of the prompt, for agents
    env: tuple[str, ...] = ()  #: names of further environment variables its process gets
    on_rework: str = ""  #: phase to go back to when its result asks for rework
    options: Mapping[str, object] = field(default_factory=dict)  #: what its runner understands beyond this
    steps: tuple[StepSpec, ...] = ()  #: runner steps
    deadline_seconds: float | None = None  #: runner external: when nobody has reported by then, it has failed


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowSpec:
    """A whole workflow."""

    name: str
    phases: tuple[PhaseSpec, ...]
    version: str = "1"
    description: str = ""
    source: str = "built in"  #: where the definition stands, for messages
    demands: Demands = NO_DEMANDS  #: of the workers that may run it
    workload: Mapping[str, JsonValue] = field(default_factory=dict)  #: values that templates of all its steps know

    def phase(self, name: str) -> PhaseSpec | None:
        """Return the phase called *name*."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def catalog_id(self) -> str:
        """Name and version, as events carry them."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something that is wrong with a definition."""

    path: KeyPath  #: inside the definition, such as ("phases", 2, "runner"); () is the definition itself
    message: str  #: one sentence that says what is wrong and what to do

    def below(self, *keys: str | int) -> Problem:
        """Return the same problem of something that stands under *keys*."""
        return Problem(path=(*keys, *self.path), message=self.message)


# --- JSON, as it is frozen in the document ---------------------------------------------------------------------


class FrozenWorkflow(Protocol):
    """What a document keeps of a definition (`document.WorkflowRef`)."""

    @property
    def name(self) -> str:
        """The workflow's name."""

    @property
    def version(self) -> str:
        """The version it had at the start."""

    @property
    def phases(self) -> Sequence[Mapping[str, object]]:
        """Its phases, as `phase_to_json` writes them."""

    @property
    def demands(self) -> Mapping[str, object]:
        """What it demands of workers, as `Demands.to_json` writes it."""

    @property
    def workload(self) -> Mapping[str, JsonValue]:
        """The values that templates of its steps know."""


def freeze(spec: WorkflowSpec) -> JsonObject:
    """Return *spec* as a document keeps it, without what is as usual."""
    rest: JsonObject = {"demands": spec.demands.to_json(), "workload": dict(spec.workload)}

    return {
        "name": spec.name,
        "version": spec.version,
        "phases": [phase_to_json(phase) for phase in spec.phases],
        **{name: value for name, value in rest.items() if value},
    }


def thaw(frozen: FrozenWorkflow) -> WorkflowSpec:
    """Return the definition a document keeps; raise StateInvalid when it keeps none, or not a whole one."""
    if not frozen.phases:
        raise StateInvalid(
            f"the document has no definition of its workflow {frozen.name}: older versions did not keep one"
        )
    try:
        phases = tuple(phase_from_json(phase) for phase in frozen.phases)
        demands = Demands.from_json(frozen.demands)
    except (TypeError, UsageError) as exc:
        raise StateInvalid(f"the definition of {frozen.name} in the document is not whole: {exc}") from exc

    return WorkflowSpec(
        name=frozen.name,
        version=frozen.version,
        phases=phases,
        source="the document",
        demands=demands,
        workload=dict(frozen.workload),
    )


_Part = TypeVar("_Part", Timeouts, RetrySpec, Gate)

_DEFAULTS = PhaseSpec(name="", state="", runner="")
_PHASE_KEYS = frozenset(PhaseSpec.__slots__)


def phase_to_json(phase: PhaseSpec) -> JsonObject:
    """Return *phase* as JSON, without what is as usual."""
    found: JsonObject = {"name": phase.name, "state": phase.state, "runner": phase.runner}
    for name in ("tier", "is_required", "max_attempts", "shell", "call", "prompt", "on_rework", "deadline_seconds"):
        if getattr(phase, name) != getattr(_DEFAULTS, name):
            found[name] = getattr(phase, name)
    for name in ("needs", "allowed_paths", "command", "env"):
        if getattr(phase, name):
            found[name] = list(getattr(phase, name))
    if phase.timeouts != _DEFAULTS.timeouts:
        found["timeouts"] = _plain(phase.timeouts)
    if phase.retry != _DEFAULTS.retry:
        found["retry"] = _plain(phase.retry)
    if phase.gates:
        found["gates"] = [_plain(gate) for gate in phase.gates]
    if phase.options:
        found["options"] = dict(phase.options)  # type: ignore[arg-type]  # JSON, as workflow_checks saw to

    if phase.steps:
        found["steps"] = [step_to_json(step) for step in phase.steps]

    return found


def phase_from_json(data: Mapping[str, object]) -> PhaseSpec:
    """Return the phase written by `phase_to_json`; unknown keys are left out, missing ones are as usual."""
    values: dict[str, object] = {name: value for name, value in data.items() if name in _PHASE_KEYS}
    for name in ("needs", "allowed_paths", "command", "env"):
        if name in data:
            values[name] = _texts(data[name])
    if "timeouts" in data:
        values["timeouts"] = _made(Timeouts, data["timeouts"])
    if "retry" in data:
        values["retry"] = _made(RetrySpec, data["retry"])
    if "gates" in data:
        gates = data["gates"]
        values["gates"] = tuple(_made(Gate, gate) for gate in gates) if isinstance(gates, list) else ()

    if "steps" in data:
        steps = data["steps"]
        values["steps"] = tuple(map(step_from_json, steps)) if isinstance(steps, list) else ()

    return PhaseSpec(**values)  # type: ignore[arg-type]  # written by phase_to_json


def _plain(value: Timeouts | RetrySpec | Gate) -> JsonObject:
    plain: JsonObject = {}
    for name in value.__slots__:
        item = getattr(value, name)
        plain[name] = list(item) if isinstance(item, tuple) else item

    return plain


def _made(kind: type[_Part], data: object) -> _Part:
    given = data if isinstance(data, Mapping) else {}
    values = {name: given[name] for name in kind.__slots__ if name in given}
    for name in ("command", "categories"):
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name])

    return kind(**values)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
