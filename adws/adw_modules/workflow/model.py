"""
A workflow as data: named phases in the order they run, and everything each of them may and must do.

Data types only. `workflow.checks` says whether a definition is sound, `workflow.library` has those that come with adw,
`workflow.load` reads those of a user. A definition is frozen into the document when a workflow starts: later edits of a
file change nothing about a running workflow.
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

#: The longest wait that a definition of a workflow may ask for, some thirty years.
MAX_SECONDS = 1e9
#: Tiers a workflow may have, and attempts a phase may have in one round.
MAX_TIER = 1000
MAX_ATTEMPTS = 100
#: The most of what a loop or a retry rule may ask for.
MAX_CONCURRENCY = 1000
MAX_CHUNK = 10_000
MAX_ITERATIONS = 10_000_000
MAX_CALLS = 10_000


class BackoffStrategy(Enum):
    """How waits grow."""

    FIXED = "fixed"  #: always the base
    LINEAR = "linear"  #: the base, twice the base, three times the base ...
    EXPONENTIAL = "exponential"  #: the base, multiplied again by the factor each time


RETRY_STRATEGIES = tuple(strategy.value for strategy in BackoffStrategy)

_Default = TypeVar("_Default")


def _declared(default: _Default, **rules: object) -> _Default:
    """
    Return a field with that default and *rules*, which `workflow.checks.rule_problems` holds its value against.

    `range` is the least and the most; `choice` what it is, and all there are; `seconds` "positive", or "any" when 0 is
    possible; `key` what the file calls it, when that is another name ("": it has none there).
    """
    return field(default=default, metadata=rules)


# --- steps -----------------------------------------------------------------------------------------------------
#
# A step is one call of a tool. `loop` makes one call for each element of a collection, `retry` calls again after a
# failure or for the next page, `sink` saves what a call gave back; each goes with each.


#: What a step can call.
TOOLS = ("command", "python", "http", "agent")
#: tool -> what it gets, in the order of the documentation; texts in it are templates, but for NO_TEMPLATES.
INPUTS_OF_TOOL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "http": ("url", "method", "params", "headers", "headers_env", "json", "body"),
        "command": ("command", "shell", "stdin", "env", "output"),
        "python": ("call", "code", "args"),
        "agent": ("prompt", "prompt_file", "agent", "model", "options"),
    }
)
#: Inputs that stand for themselves: code is never made of values, and names of variables are no templates.
NO_TEMPLATES = ("headers_env", "env", "output", "call", "code", "prompt_file", "agent")
#: What the tool command makes of what a program printed.
OUTPUTS = ("text", "lines", "json")
#: The runner of phases that are made of steps.
STEPS = "steps"

SEQUENTIAL, ASYNC = "sequential", "async"
LOOP_MODES = (SEQUENTIAL, ASYNC)
#: Calls at a time of an async loop that does not say how many.
DEFAULT_CONCURRENCY = 5
#: What a loop does about iterations that failed for good.
FAIL_FAST, CONTINUE, THRESHOLD = "fail_fast", "continue", "threshold"
FAILURE_POLICIES = (FAIL_FAST, CONTINUE, THRESHOLD)

ON_ERROR, ON_SUCCESS = "on_error", "on_success"
#: What becomes of the results of a sequence of calls.
COLLECT_STRATEGIES = ("append", "replace", "collect", "merge")
#: What becomes of a sequence that reaches its `max_attempts` while its condition still holds.
ACCEPT, FAIL = "accept", "fail"
LIMIT_POLICIES = (ACCEPT, FAIL)

SINK_TOOLS = ("sqlite", "postgres", "jsonl", "csv", "python")
SINK_MODES = ("append", "upsert")
#: Sink -> the options it understands; those of `python` are arguments of its function, whatever their names.
SINK_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sqlite": (), "postgres": (), "jsonl": (), "csv": ("delimiter",)}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSpec:
    """One call for each element."""

    collection: JsonValue  #: a template that gives a list, or the list itself
    element: str = "item"  #: the name an element has in templates
    mode: str = _declared(SEQUENTIAL, choice=("mode of a loop", LOOP_MODES))
    concurrency: int = _declared(1, range=(1, MAX_CONCURRENCY))  #: most calls at a time; sequential is one
    chunk_size: int | None = _declared(
        None, range=(1, MAX_CHUNK)
    )  #: so many elements make one iteration, which gets them as a list
    where: str = ""  #: a condition; elements for which it does not hold are left out
    order_by: str = ""  #: an expression; elements are done in the order of its values
    limit: int | None = _declared(None, range=(1, MAX_ITERATIONS))  #: most iterations
    on_failure: str = _declared(FAIL_FAST, choice=("policy about failures", FAILURE_POLICIES))
    threshold: float = 0.0  #: policy threshold: most failures; below 1 a share of all iterations


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryRule:
    """When to call again, and how. Of several the first one that matches decides."""

    kind: str = field(metadata={"choice": ("kind of rule", (ON_ERROR, ON_SUCCESS)), "key": ""})
    when: str = ""  #: a condition over `error`, `response`, `attempt`, `page`; "": always (on_error)
    max_attempts: int = _declared(3, range=(1, MAX_CALLS))  #: calls in all, the first one counted
    strategy: str = _declared("exponential", choice=("way for a wait to grow", RETRY_STRATEGIES), key="backoff")
    base_seconds: float = _declared(1.0, seconds="any")
    max_seconds: float = _declared(60.0, seconds="any")
    next_call: Mapping[str, JsonValue] = field(default_factory=dict)  #: inputs of the next call, as templates
    collect: str = "replace"
    merge_path: str = ""  #: where in a response its items are, such as `data.items`
    max_same_failures: int = _declared(5, range=(1, MAX_CALLS))  #: the same failure so often in a row ends the sequence
    on_limit: str = ACCEPT  #: on_success, when max_attempts calls are made: hand on what was collected, or fail


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkSpec:
    """Where each result is saved, in the job that made it."""

    tool: str
    connection: str = ""  #: name of a `[connections.NAME]`
    table: str = ""
    path: str = ""  #: of a file, below the working directory
    mode: str = _declared("append", choice=("mode of a sink", SINK_MODES))
    key: tuple[str, ...] = ()  #: columns that make two rows the same, for upsert
    call: str = ""  #: tool python: `package.module:function`
    rows: str = ""  #: a template that gives the rows; "": the result itself
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
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)  #: what the tool gets, texts in it are templates
    when: str = ""  #: a condition; when it does not hold the step is skipped
    next: tuple[NextRule, ...] = ()  #: the first that holds; empty: the step after this one
    loop: LoopSpec | None = None
    retry: tuple[RetryRule, ...] = ()
    sink: SinkSpec | None = None
    vars: Mapping[str, JsonValue] = field(default_factory=dict)  #: set when it has ended, as templates over `result`
    timeout_seconds: float = _declared(600.0, seconds="positive")  #: of one call

    @property
    def is_queued(self) -> bool:
        """Whether its calls are runs of their own: a loop or a retry is not done inside the phase's own run."""
        return self.loop is not None or bool(self.retry)


#: Keys of a path.
MAX_KEYS = 50


def path_problem(path: str) -> str:
    """Return how a sentence about *path* goes on that is none, "" when it is one."""
    keys = path.split(".")
    if path and (len(keys) > MAX_KEYS or not all(key.strip() == key and key for key in keys)):
        return f"is {path[:60]!r} and must be keys with dots between, such as data.items"

    return ""


# --- connections: where sinks save to; they have no password, and name the environment variable that has it -----------

#: The databases that there can be connections to; each is the tool of a sink, too.
CONNECTION_TYPES = ("sqlite", "postgres")


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """A `[connections.NAME]`."""

    name: str
    type: str  #: sqlite | postgres
    path: str = ""  #: sqlite: the file, below the home unless it is absolute
    url: str = ""  #: postgres: `postgresql://user@host:5432/database`, without a password
    url_env: str = ""  #: postgres: the variable that has the whole address
    password_env: str = ""  #: postgres: the variable that has the password


def chosen(name: str, tool: str, types: Mapping[str, str]) -> str:
    """
    Return the connection that a sink with *tool* means by *name*, "" when it cannot be said.

    Without a name it is the only one of that type. *types* has the type of each connection.
    """
    if name:
        return name if types.get(name) == tool else ""
    fitting = [one for one, kind in types.items() if kind == tool]

    return fitting[0] if len(fitting) == 1 else ""


#: Attempts of a phase in one round, unless its definition says otherwise.
DEFAULT_MAX_ATTEMPTS = 5
#: The runners that are no agents.
COMMAND, PYTHON = "command", "python"
#: The runner of built-in phases: whichever agent is set up.
AGENT = "agent"
#: The runners of the built-in phases that adw does itself.
SHIP, CLEAN = "ship", "clean"
#: Runners that ask no model.
NO_MODEL = frozenset({COMMAND, PYTHON, SHIP, CLEAN})
#: The agents, each a runner of that name.
AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
#: What this version can run.
RUNNERS = (COMMAND, PYTHON, STEPS, EXTERNAL, SHIP, CLEAN, AGENT, *AGENTS)
#: What a gate may look at.
GATE_KINDS = ("command", "artifact", "result", "human")
#: What a gate means that is red on the base commit: no agent starts, only new failures count, or it is not run there.
BASE_MODES = ("require", "compare", "ignore")
#: Which box a command runs in.
SANDBOXES = ("auto", "off", "landlock", "bubblewrap")
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
#: States whose phases report and change nothing, and those where only an agent changes something.
_READING_STATES = frozenset({"reviewing", "cleaning"})
_CHECKING_STATES = frozenset({"linting", "testing"})
#: The way to a value in a definition: names of keys, and places in a list.
KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """The three clocks of a phase's process, in seconds; None: that clock is not looked at."""

    wall: float | None = _declared(3600.0, seconds="positive")  #: from start to end
    idle: float | None = _declared(None, seconds="positive")  #: without output
    after_result: float | None = _declared(30.0, seconds="positive")  #: from its result to its end


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrySpec:
    """How a phase waits between attempts; None: what the kind of error asks for."""

    strategy: str | None = _declared(None, choice=("retry strategy", RETRY_STRATEGIES))
    base_seconds: float | None = _declared(None, seconds="any")
    max_seconds: float | None = _declared(None, seconds="any")
    categories: tuple[str, ...] | None = None  #: kinds of error that are retried


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What has to hold after a phase's own success; one that cannot be decided does not hold."""

    kind: str  #: command | artifact | result | human
    command: tuple[str, ...] = ()  #: command: exits with 0
    shell: str = ""  #: command, as one line for the shell
    artifact: str = ""  #: artifact: a path or pattern below the working directory that exists and is not empty
    timeout_seconds: float = _declared(600.0, seconds="positive")
    base: str = ""  #: command: one of BASE_MODES; "": as the workflow or the setting gates.base says
    sandbox: str = ""  #: command: one of SANDBOXES; "": as its phase or the setting sandbox.mode says


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSpec:
    """One phase."""

    name: str
    state: str  #: the workflow state it runs under
    runner: str  #: command | python | steps | external | ship | clean | the name of an agent
    tier: int = _declared(
        0, range=(0, MAX_TIER)
    )  #: phases of a later tier never start before every required one of an earlier is complete
    needs: tuple[str, ...] = ()  #: phases that must be complete first
    is_required: bool = True  #: False: when it fails for good, the workflow goes on without it
    max_attempts: int = _declared(DEFAULT_MAX_ATTEMPTS, range=(1, MAX_ATTEMPTS))
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
    deadline_seconds: float | None = _declared(
        None, seconds="positive"
    )  #: runner external: when nobody has reported by then, it has failed
    sandbox: str = ""  #: one of SANDBOXES; "": as the setting sandbox.mode says
    egress: tuple[str, ...] = ()  #: hosts it may reach besides those of its agent and of sandbox.egress
    setup: tuple[str, ...] = ()  #: lines of shell before it, each done once for the same lock files
    setup_egress: tuple[str, ...] = ()  #: what only they may reach
    commits: bool | None = None  #: whether what it leaves is committed, or discarded; None: by its runner and its state

    @property
    def commits_work(self) -> bool:
        """Whether what it leaves in the worktree is committed; what other phases leave there is discarded."""
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
    source: str = "built in"  #: where the definition stands, for messages
    demands: Requirements = NO_DEMANDS  #: of the workers that may run it
    workload: Mapping[str, JsonValue] = field(default_factory=dict)  #: values that templates of all its steps know
    base: str = ""  #: one of BASE_MODES, for gates that do not say their own; "": as the setting gates.base says

    def phase(self, name: str) -> PhaseSpec | None:
        """Return the phase called *name*."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def catalog_id(self) -> str:
        """Name and version, as events carry them."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class DefinitionProblem:
    """Something that is wrong with a definition."""

    path: KeyPath  #: inside the definition, such as ("phases", 2, "runner"); () is the definition itself
    message: str  #: one sentence that says what is wrong and what to do

    def below(self, *keys: str | int) -> DefinitionProblem:
        """Return the same problem of something that stands under *keys*."""
        return DefinitionProblem((*keys, *self.path), self.message)


# --- JSON, as it is frozen in the document ---------------------------------------------------------------------


def freeze(spec: WorkflowSpec) -> JsonObject:
    """Return *spec* as a document keeps it, without what is as usual."""
    rest: JsonObject = {"demands": spec.demands.to_json(), "workload": dict(spec.workload), "base": spec.base}

    return {
        "name": spec.name,
        "version": spec.version,
        "phases": [to_json(phase) for phase in spec.phases],
        **{name: value for name, value in rest.items() if value},
    }


def thaw(frozen: WorkflowRef) -> WorkflowSpec:
    """Return the definition a document keeps; raise StateInvalid when it keeps none, or not a whole one."""
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
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}  #: made when first used: commands that only look start faster


def _adapter(kind: type[_Spec]) -> TypeAdapter[_Spec]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)

    return _ADAPTERS[kind]


def to_json(spec: _Spec) -> JsonObject:
    """Return a phase or a step as JSON; fields with their defaults are left out."""
    # Definitions made in Python may have tuples where JSON has lists: no reason to warn.
    result: JsonObject = _adapter(type(spec)).dump_python(spec, mode="json", exclude_defaults=True, warnings=False)

    return result


def from_json(kind: type[_Spec], data: Mapping[str, object]) -> _Spec:
    """Return what `to_json` wrote, unknown keys left out; raise TypeError when it is not whole."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        place = ".".join(map(str, error["loc"])) or "it"
        raise TypeError(f"{place} is {error['input']!r:.80} ({error['msg']})") from exc


# --- options of agents -----------------------------------------------------------------------------------------

#: Most turns and most dollars of one attempt that make sense.
MAX_TURNS = 10_000
MAX_BUDGET_USD = 100_000.0

#: States whose phases must leave something behind -> what, when the phase itself does not say.
_EVIDENCE_OF_STATE: Mapping[str, str] = MappingProxyType(
    {"planning": "change", "building": "change", "testing": "result", "reviewing": "result"}
)
#: The name of a model: no option of a command line, no control characters.
_ModelName = Annotated[str, Field(pattern=r"^[^-\s]\P{C}*$")]
_Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class AgentOptions(BaseModel):
    """What a phase says to its agent in `options`; each description ends the sentence about a wrong value."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: _ModelName | None = Field(None, description="the name of a model")
    models: Annotated[tuple[_ModelName, ...], Field(min_length=1, strict=False)] | None = Field(
        None, description="a list of names of models, one for each attempt"
    )
    max_turns: int | None = Field(None, ge=1, le=MAX_TURNS, description=f"a whole number from 1 to {MAX_TURNS}")
    arguments: Annotated[tuple[_Argument, ...], Field(strict=False)] = Field(
        (), min_length=1, description="a list of texts, further arguments of the agent"
    )
    #: Whether an attempt goes on with the conversation of the one before.
    session: Literal["continue", "fresh"] = Field("continue", description="one of continue, fresh")
    budget_usd: float | None = Field(None, gt=0, le=MAX_BUDGET_USD, description="an amount of US dollars, more than 0")
    #: What the agent may do without asking; None: as the settings say.
    permissions: Literal["read", "edit", "all"] | None = Field(None, description="one of read, edit, all")
    #: What is looked for after the agent said that it worked; None: by the state and the gates of the phase.
    evidence: Literal["change", "result", "none"] | None = Field(None, description="one of change, result, none")


#: Every option there is, for the documentation.
OPTIONS = tuple(AgentOptions.model_fields)


def evidence_of(phase: PhaseSpec) -> str:
    """Return what has to be seen after the agent said that it worked: change | result | none."""
    said = phase.options.get("evidence")
    if isinstance(said, str) and said:
        return said
    kinds = {gate.kind for gate in phase.gates} - {"human"}
    if "result" in kinds:
        return "result"
    # A plan may be a file that git ignores: there a gate is what shows that the work is done.
    if kinds and phase.state == "planning":
        return "none"

    return _EVIDENCE_OF_STATE.get(phase.state, "none")


def problems_of(phase: PhaseSpec) -> Iterator[str]:
    """Yield a sentence for each option of *phase* that is not known or has a value it cannot have."""
    try:
        AgentOptions.model_validate(dict(phase.options))
    except ValidationError as exc:
        for name in dict.fromkeys(str(error["loc"][0]) for error in exc.errors(include_url=False)):
            if name not in OPTIONS:
                yield f"{name!r} is no option of an agent{hint(name, OPTIONS)}"
                continue
            must = f"must be {AgentOptions.model_fields[name].description}"
            yield f"the option {name} is {shown(phase.options[name])} and {must}"
