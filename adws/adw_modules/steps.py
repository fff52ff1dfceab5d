"""
The steps of a phase as data: what each does, whether, how often, over what, and where its results go.

Nouns only. A step is one call of a tool. `loop` makes one call for each element of a collection, `retry` calls again
after a failure or for the next page, `sink` saves what a call gave back; each goes with each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from adws.adw_modules.json_value import JsonValue

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
#: The runner of phases that somebody outside does.
EXTERNAL = "external"

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
    mode: str = SEQUENTIAL
    concurrency: int = 1  #: most calls at a time; sequential is one
    chunk_size: int | None = None  #: so many elements make one iteration, which gets them as a list
    where: str = ""  #: a condition; elements for which it does not hold are left out
    order_by: str = ""  #: an expression; elements are done in the order of its values
    limit: int | None = None  #: most iterations
    on_failure: str = FAIL_FAST
    threshold: float = 0.0  #: policy threshold: most failures; below 1 a share of all iterations


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryRule:
    """When to call again, and how. Of several the first one that matches decides."""

    kind: str  #: on_error | on_success
    when: str = ""  #: a condition over `error`, `response`, `attempt`, `page`; "": always (on_error)
    max_attempts: int = 3  #: calls in all, the first one counted
    strategy: str = "exponential"  #: fixed | linear | exponential
    base_seconds: float = 1.0
    max_seconds: float = 60.0
    next_call: Mapping[str, JsonValue] = field(default_factory=dict)  #: inputs of the next call, as templates
    collect: str = "replace"
    merge_path: str = ""  #: where in a response its items are, such as `data.items`
    max_same_failures: int = 5  #: the same failure so often in a row ends the sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkSpec:
    """Where each result is saved, in the job that made it."""

    tool: str
    connection: str = ""  #: name of a `[connections.NAME]`
    table: str = ""
    path: str = ""  #: of a file, below the working directory
    mode: str = "append"
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
    timeout_seconds: float = 600.0  #: of one call

    @property
    def is_queued(self) -> bool:
        """Whether its calls are runs of their own: a loop or a retry is not done inside the phase's own run."""
        return self.loop is not None or bool(self.retry)
