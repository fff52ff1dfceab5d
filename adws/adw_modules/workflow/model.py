"""
A workflow as data: named phases in the order they run, and everything each of them may and must do.

Data types only. `workflow.checks` validates a definition, `workflow.library` has the built-in ones, `workflow.load`
reads those of a user. A definition is frozen into the document when a workflow starts: later edits of a file do not
change a running workflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from adws.adw_modules.errors import StateInvalid, UsageError
from adws.adw_modules.identifiers import JsonObject, hint, shown
from adws.adw_modules.phase import EXTERNAL
from adws.adw_modules.workflow.requirements import NO_DEMANDS, Requirements

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowRef

# --- limits ----------------------------------------------------------------------------------------------------

#: The longest wait that a workflow definition may request, about thirty years.
MAX_SECONDS = 1e9
#: Most tiers of a workflow, and attempts of a phase in one round.
MAX_TIER = 1000
MAX_ATTEMPTS = 100
#: The most that a loop or a retry rule may request.
MAX_CONCURRENCY = 1000
MAX_CHUNK = 10_000
MAX_ITERATIONS = 10_000_000
MAX_CALLS = 10_000


class BackoffStrategy(Enum):
    """How wait times grow."""

    FIXED = "fixed"  #: always the base
    LINEAR = "linear"  #: the base, twice the base, three times the base ...
    EXPONENTIAL = "exponential"  #: the base, then multiplied by the factor each time


RETRY_STRATEGIES = tuple(strategy.value for strategy in BackoffStrategy)

_Default = TypeVar("_Default")


def _declared(default: _Default, **rules: object) -> _Default:
    """
    Return a field with *default* and *rules*, which `workflow.checks.rule_problems` checks.

    `range` is the least and the most; `choice` what the value is, and all allowed ones; `seconds` "positive", or "any"
    if 0 is allowed; `key` the field's name in the file, if it differs ("": it has none there).
    """
    return field(default=default, metadata=rules)


# --- steps -----------------------------------------------------------------------------------------------------
#
# A step is one call of a tool. `loop` makes one call for each element of a collection, `retry` repeats the call after a
# failure or for the next page, `sink` saves the result of each call; all three can be combined.


#: What a step can call.
TOOLS = ("command", "python", "http", "agent")
#: tool -> its inputs, in the order of the documentation; texts in them are templates, except in NO_TEMPLATES.
INPUTS_OF_TOOL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "http": ("url", "method", "params", "headers", "headers_env", "json", "body"),
        "command": ("command", "shell", "stdin", "env", "output"),
        "python": ("call", "code", "args"),
        "agent": ("prompt", "prompt_file", "agent", "model", "options"),
    }
)
#: Inputs that are taken literally: code is never made of values, and names of variables are not templates.
NO_TEMPLATES = ("headers_env", "env", "output", "call", "code", "prompt_file", "agent")
#: How the tool command interprets the output of a program.
OUTPUTS = ("text", "lines", "json")
#: The runner of phases that are made of steps.
STEPS = "steps"

SEQUENTIAL, ASYNC = "sequential", "async"
LOOP_MODES = (SEQUENTIAL, ASYNC)
#: Concurrent calls of an async loop that does not specify them.
DEFAULT_CONCURRENCY = 5
#: What a loop does about iterations that failed for good.
FAIL_FAST, CONTINUE, THRESHOLD = "fail_fast", "continue", "threshold"
FAILURE_POLICIES = (FAIL_FAST, CONTINUE, THRESHOLD)

ON_ERROR, ON_SUCCESS = "on_error", "on_success"
#: How the results of a sequence of calls are combined.
COLLECT_STRATEGIES = ("append", "replace", "collect", "merge")
#: What happens to a sequence that reaches its `max_attempts` while its condition still holds.
ACCEPT, FAIL = "accept", "fail"
LIMIT_POLICIES = (ACCEPT, FAIL)

SINK_TOOLS = ("sqlite", "postgres", "jsonl", "csv", "python")
SINK_MODES = ("append", "upsert")
#: Sink -> its options; those of `python` are arguments of its function, of any name.
SINK_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sqlite": (), "postgres": (), "jsonl": (), "csv": ("delimiter",)}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSpec:
    """One call for each element."""

    collection: JsonValue  #: a template of a list, or the list itself
    element: str = "item"  #: the name of an element in templates
    mode: str = _declared(SEQUENTIAL, choice=("mode of a loop", LOOP_MODES))
    concurrency: int = _declared(1, range=(1, MAX_CONCURRENCY))  #: most concurrent calls; sequential is one
    chunk_size: int | None = _declared(None, range=(1, MAX_CHUNK))  #: elements per iteration, which gets them as a list
    where: str = ""  #: a condition; elements that do not meet it are left out
    order_by: str = ""  #: an expression whose values give the order of the elements
    limit: int | None = _declared(None, range=(1, MAX_ITERATIONS))  #: most iterations
    on_failure: str = _declared(FAIL_FAST, choice=("policy about failures", FAILURE_POLICIES))
    threshold: float = 0.0  #: policy threshold: most failures; below 1 a share of all iterations


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryRule:
    """When and how to call again. Of several rules the first match decides."""

    kind: str = field(metadata={"choice": ("kind of rule", (ON_ERROR, ON_SUCCESS)), "key": ""})
    when: str = ""  #: a condition over `error`, `response`, `attempt`, `page`; "": always (on_error)
    max_attempts: int = _declared(3, range=(1, MAX_CALLS))  #: calls in all, including the first
    strategy: str = _declared("exponential", choice=("way for a wait to grow", RETRY_STRATEGIES), key="backoff")
    base_seconds: float = _declared(1.0, seconds="any")
    max_seconds: float = _declared(60.0, seconds="any")
    next_call: Mapping[str, JsonValue] = field(default_factory=dict)  #: inputs of the next call, as templates
    collect: str = "replace"
    merge_path: str = ""  #: path to the items of a response, such as `data.items`
    max_same_failures: int = _declared(5, range=(1, MAX_CALLS))  #: this many equal failures in a row end the sequence
    on_limit: str = ACCEPT  #: on_success, after max_attempts calls: use what was collected, or fail


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkSpec:
    """Where each result is saved, in the job that made it."""

    tool: str
    connection: str = ""  #: name of a `[connections.NAME]`
    table: str = ""
    path: str = ""  #: of a file, below the working directory
    mode: str = _declared("append", choice=("mode of a sink", SINK_MODES))
    key: tuple[str, ...] = ()  #: columns that identify a row, for upsert
    call: str = ""  #: tool python: `package.module:function`
    rows: str = ""  #: a template of the rows; "": the result itself
    options: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class NextRule:
    """Which step comes next."""

    step: str  #: "": the end of the phase
    when: str = ""  #: a condition; "": always


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSpec:
    """One step."""

    name: str
    tool: str
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)  #: inputs of the tool, with texts as templates
    when: str = ""  #: a condition; the step is skipped if it does not hold
    next: tuple[NextRule, ...] = ()  #: the first that holds; empty: the step after this one
    loop: LoopSpec | None = None
    retry: tuple[RetryRule, ...] = ()
    sink: SinkSpec | None = None
    vars: Mapping[str, JsonValue] = field(default_factory=dict)  #: set when the step ends; templates over `result`
    timeout_seconds: float = _declared(600.0, seconds="positive")  #: of one call

    @property
    def is_queued(self) -> bool:
        """Whether its calls are separate runs: loops and retries do not happen inside the phase's own run."""
        return self.loop is not None or bool(self.retry)


#: Most keys of a path.
MAX_KEYS = 50


def path_problem(path: str) -> str:
    """Return the end of a message about an invalid *path*, or "" if it is valid."""
    keys = path.split(".")
    if path and (len(keys) > MAX_KEYS or not all(key.strip() == key and key for key in keys)):
        return f"is {path[:60]!r} and must be keys with dots between, such as data.items"

    return ""


# --- connections: databases that sinks save to; instead of a password they name the environment variable with it ------

#: The supported databases; each is also the tool of a sink.
CONNECTION_TYPES = ("sqlite", "postgres")


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """A `[connections.NAME]`."""

    name: str
    type: str  #: sqlite | postgres
    path: str = ""  #: sqlite: the file, below the home unless it is absolute
    url: str = ""  #: postgres: `postgresql://user@host:5432/database`, without a password
    url_env: str = ""  #: postgres: environment variable with the whole URL
    password_env: str = ""  #: postgres: environment variable with the password


def chosen(name: str, tool: str, types: Mapping[str, str]) -> str:
    """
    Return the connection that a sink with *tool* means by *name*, or "" if there is no such one.

    An empty *name* means the only connection of that type. *types* has the type of each connection.
    """
    if name:
        return name if types.get(name) == tool else ""
    fitting = [one for one, kind in types.items() if kind == tool]

    return fitting[0] if len(fitting) == 1 else ""


#: Attempts of a phase in one round, unless its definition says otherwise.
DEFAULT_MAX_ATTEMPTS = 5
#: The runners that are not agents.
COMMAND, PYTHON = "command", "python"
#: The runner of built-in phases: the configured agent.
AGENT = "agent"
#: The runners of the built-in phases that adw runs itself.
SHIP, CLEAN = "ship", "clean"
#: Runners that use no model.
NO_MODEL = frozenset({COMMAND, PYTHON, SHIP, CLEAN})
#: The agents, each a runner of that name.
AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
#: All runners of this version.
RUNNERS = (COMMAND, PYTHON, STEPS, EXTERNAL, SHIP, CLEAN, AGENT, *AGENTS)
#: What a gate may check.
GATE_KINDS = ("command", "artifact", "result", "human")
#: If a gate is red on the base commit: start no agent, count only new failures, or do not run the gate there.
BASE_MODES = ("require", "compare", "ignore")
#: Sandboxes that a command can run in.
SANDBOXES = ("auto", "off", "landlock", "bubblewrap")
#: The eight standard phases -> the state each runs under.
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
#: States whose phases only report, and those in which only an agent changes files.
_READING_STATES = frozenset({"reviewing", "cleaning"})
_CHECKING_STATES = frozenset({"linting", "testing"})
#: The path to a value in a definition: keys of tables and indexes of lists.
KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """The three time limits of a phase's process, in seconds; None: no such limit."""

    wall: float | None = _declared(3600.0, seconds="positive")  #: from start to end
    idle: float | None = _declared(None, seconds="positive")  #: without output
    after_result: float | None = _declared(30.0, seconds="positive")  #: from its result to its end


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrySpec:
    """How a phase waits between attempts; None: as the category of the error requires."""

    strategy: str | None = _declared(None, choice=("retry strategy", RETRY_STRATEGIES))
    base_seconds: float | None = _declared(None, seconds="any")
    max_seconds: float | None = _declared(None, seconds="any")
    categories: tuple[str, ...] | None = None  #: categories of errors that are retried


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A condition checked after a phase's own success; one that cannot be decided fails."""

    kind: str  #: command | artifact | result | human
    command: tuple[str, ...] = ()  #: command: must exit with 0
    shell: str = ""  #: command, as a shell line
    artifact: str = ""  #: artifact: a path or pattern below the working directory that exists and is not empty
    timeout_seconds: float = _declared(600.0, seconds="positive")
    base: str = ""  #: command: one of BASE_MODES; "": as set for the workflow or by gates.base
    sandbox: str = ""  #: command: one of SANDBOXES; "": as set for the phase or by sandbox.mode


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSpec:
    """One phase."""

    name: str
    state: str  #: the workflow state it runs under
    runner: str  #: command | python | steps | external | ship | clean | the name of an agent
    tier: int = _declared(
        0, range=(0, MAX_TIER)
    )  #: a phase never starts before every required phase of earlier tiers is complete
    needs: tuple[str, ...] = ()  #: phases that must be complete first
    is_required: bool = True  #: False: if it fails for good, the workflow continues without it
    max_attempts: int = _declared(DEFAULT_MAX_ATTEMPTS, range=(1, MAX_ATTEMPTS))
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetrySpec = field(default_factory=RetrySpec)
    gates: tuple[Gate, ...] = ()
    allowed_paths: tuple[str, ...] = ()  #: patterns of files it may change; empty: all
    command: tuple[str, ...] = ()  #: runner command, as arguments
    shell: str = ""  #: runner command, as a shell line
    call: str = ""  #: runner python: `package.module:function`
    prompt: str = ""  #: file of the prompt, for agents
    env: tuple[str, ...] = ()  #: names of further environment variables for its process
    on_rework: str = ""  #: phase to go back to when its result asks for rework
    options: Mapping[str, object] = field(default_factory=dict)  #: further options of its runner
    steps: tuple[StepSpec, ...] = ()  #: runner steps
    deadline_seconds: float | None = _declared(
        None, seconds="positive"
    )  #: runner external: it fails if no result is reported within this time
    sandbox: str = ""  #: one of SANDBOXES; "": as set by sandbox.mode
    egress: tuple[str, ...] = ()  #: hosts it may reach besides those of its agent and of sandbox.egress
    setup: tuple[str, ...] = ()  #: shell lines run before it, each once for the same lock files
    setup_egress: tuple[str, ...] = ()  #: hosts that only the setup may reach
    commits: bool | None = None  #: whether its changes are committed or discarded; None: decided by runner and state

    @property
    def commits_work(self) -> bool:
        """Whether its changes in the worktree are committed; those of other phases are discarded."""
        if self.commits is not None:
            return self.commits
        if self.runner in (AGENT, *AGENTS):
            return self.state not in _READING_STATES

        return self.runner not in (COMMAND, PYTHON) or self.state not in {*_READING_STATES, *_CHECKING_STATES}

    @property
    def is_paid(self) -> bool:
        """Whether an agent works on it, as its runner or in one of its steps."""
        return self.runner in (AGENT, *AGENTS) or any(step.tool == AGENT for step in self.steps)

    @property
    def has_model(self) -> bool:
        """Whether an agent, and so a model, works on it."""
        return self.runner not in NO_MODEL


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowSpec:
    """A whole workflow."""

    name: str
    phases: tuple[PhaseSpec, ...]
    version: str = "1"
    description: str = ""
    source: str = "built in"  #: where the definition comes from, for messages
    demands: Requirements = NO_DEMANDS  #: on the workers that may run it
    workload: Mapping[str, JsonValue] = field(default_factory=dict)  #: values for the templates of all its steps
    base: str = ""  #: one of BASE_MODES, the default of its gates; "": as set by gates.base

    def phase(self, name: str) -> PhaseSpec | None:
        """Return the phase called *name*."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def catalog_id(self) -> str:
        """Name and version, as in events."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class DefinitionProblem:
    """A problem of a definition."""

    path: KeyPath  #: inside the definition, such as ("phases", 2, "runner"); () is the definition itself
    message: str  #: one sentence that says what is wrong and what to do

    def below(self, *keys: str | int) -> DefinitionProblem:
        """Return the same problem with its path below *keys*."""
        return DefinitionProblem((*keys, *self.path), self.message)


# --- JSON as frozen in the document ----------------------------------------------------------------------------


def freeze(spec: WorkflowSpec) -> JsonObject:
    """Return *spec* as stored in a document, without defaults."""
    rest: JsonObject = {"demands": spec.demands.to_json(), "workload": dict(spec.workload), "base": spec.base}

    return {
        "name": spec.name,
        "version": spec.version,
        "phases": [to_json(phase) for phase in spec.phases],
        **{name: value for name, value in rest.items() if value},
    }


def thaw(frozen: WorkflowRef) -> WorkflowSpec:
    """Return the definition in a document; raise StateInvalid if it is missing or incomplete."""
    if not frozen.phases:
        raise StateInvalid(
            f"the document has no definition of its workflow {frozen.name}: older versions did not keep one"
        )
    try:
        phases = tuple(from_json(PhaseSpec, phase) for phase in frozen.phases)
        demands = Requirements.from_json(frozen.demands)
    except (TypeError, UsageError) as exc:
        raise StateInvalid(f"the definition of {frozen.name} in the document is not whole: {exc}") from exc

    return WorkflowSpec(
        name=frozen.name,
        version=frozen.version,
        phases=phases,
        source="the document",
        demands=demands,
        workload=dict(frozen.workload),
        base=frozen.base,
    )


_Spec = TypeVar("_Spec", PhaseSpec, StepSpec)
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}  #: made on first use, so that read-only commands start faster


def _adapter(kind: type[_Spec]) -> TypeAdapter[_Spec]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)

    return _ADAPTERS[kind]


def to_json(spec: _Spec) -> JsonObject:
    """Return a phase or a step as JSON without fields that have their defaults."""
    # Definitions made in Python may have tuples where JSON has lists, which needs no warning.
    result: JsonObject = _adapter(type(spec)).dump_python(spec, mode="json", exclude_defaults=True, warnings=False)

    return result


def from_json(kind: type[_Spec], data: Mapping[str, object]) -> _Spec:
    """Return the spec written by `to_json`, ignoring unknown keys; raise TypeError if it is incomplete."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        place = ".".join(map(str, error["loc"])) or "it"
        raise TypeError(f"{place} is {error['input']!r:.80} ({error['msg']})") from exc


# --- options of agents -----------------------------------------------------------------------------------------

#: Highest sensible numbers of turns and dollars for one attempt.
MAX_TURNS = 10_000
MAX_BUDGET_USD = 100_000.0

#: States whose phases must produce evidence -> its kind, unless the phase specifies it.
_EVIDENCE_OF_STATE: Mapping[str, str] = MappingProxyType(
    {"planning": "change", "building": "change", "testing": "result", "reviewing": "result"}
)
#: The name of a model: neither a command-line option nor control characters.
_ModelName = Annotated[str, Field(pattern=r"^[^-\s]\P{C}*$")]
_Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class AgentOptions(BaseModel):
    """The `options` of an agent's phase; each description completes the message about a wrong value."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: _ModelName | None = Field(None, description="the name of a model")
    models: Annotated[tuple[_ModelName, ...], Field(min_length=1, strict=False)] | None = Field(
        None, description="a list of names of models, one for each attempt"
    )
    max_turns: int | None = Field(None, ge=1, le=MAX_TURNS, description=f"a whole number from 1 to {MAX_TURNS}")
    arguments: Annotated[tuple[_Argument, ...], Field(strict=False)] = Field(
        (), min_length=1, description="a list of texts, further arguments of the agent"
    )
    #: Whether an attempt continues the conversation of the previous one.
    session: Literal["continue", "fresh"] = Field("continue", description="one of continue, fresh")
    budget_usd: float | None = Field(None, gt=0, le=MAX_BUDGET_USD, description="an amount of US dollars, more than 0")
    #: What the agent may do without asking; None: as set in the settings.
    permissions: Literal["read", "edit", "all"] | None = Field(None, description="one of read, edit, all")
    #: The evidence required after the agent reports success; None: by the state and gates of the phase.
    evidence: Literal["change", "result", "none"] | None = Field(None, description="one of change, result, none")


#: All options, for the documentation.
OPTIONS = tuple(AgentOptions.model_fields)


def evidence_of(phase: PhaseSpec) -> str:
    """Return the evidence required after the agent reports success: change | result | none."""
    said = phase.options.get("evidence")
    if isinstance(said, str) and said:
        return said
    kinds = {gate.kind for gate in phase.gates} - {"human"}
    if "result" in kinds:
        return "result"
    # A plan may be a file that git ignores: then a gate shows that the work is done.
    if kinds and phase.state == "planning":
        return "none"

    return _EVIDENCE_OF_STATE.get(phase.state, "none")


def problems_of(phase: PhaseSpec) -> Iterator[str]:
    """Yield a sentence for each unknown option of *phase* and each invalid value."""
    try:
        AgentOptions.model_validate(dict(phase.options))
    except ValidationError as exc:
        for name in dict.fromkeys(str(error["loc"][0]) for error in exc.errors(include_url=False)):
            if name not in OPTIONS:
                yield f"{name!r} is no option of an agent{hint(name, OPTIONS)}"
                continue
            must = f"must be {AgentOptions.model_fields[name].description}"
            yield f"the option {name} is {shown(phase.options[name])} and {must}"
