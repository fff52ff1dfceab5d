"""
Data types for coding agents: the task, the parsed output, the outcome.

A profile is an agent's command line, its output parser and its verdict, all pure; one driver runs every profile. An
agent's report about itself is evidence but does not decide: success is what can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.errors import FailedRun
from adws.adw_modules.identifiers import JsonObject

if TYPE_CHECKING:
    from adws.adw_modules.process.run import ProcessEnd


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentCapabilities:
    """The features of an agent's command line."""

    reads_stdin: bool = True  #: takes the prompt from its input; otherwise from a file that its arguments name
    chooses_session: bool = False  #: we choose the id of the conversation, so that it is known before the run
    resumes: bool = False  #: can resume a conversation by its id
    tells_result: bool = True  #: reports at its end, in an event, whether it succeeded
    tells_cost: bool = False  #: reports its cost; otherwise it is estimated from tokens
    totals_are_of_session: bool = False  #: its sums are of the whole conversation: earlier usage is subtracted
    tells_own_tokens: bool = False  #: its result also has the tokens of this call alone: they show what its sums are of
    limits_turns: bool = False
    limits_budget: bool = False
    boxes_itself: bool = False  #: has a sandbox of its own, which does not work inside ours
    commits: bool = False  #: commits by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentTask:
    """An agent's task for one attempt; enough to build its command line."""

    prompt_file: Path  #: absolute; also its input, if it reads that
    cwd: Path
    folder: Path  #: for the agent's own files, outside the worktree
    model: str = ""  #: "": the agent's own choice
    session_id: str = ""  #: chosen by us, or that of the conversation to resume
    is_resumed: bool = False
    max_turns: int | None = None
    budget_usd: float | None = None
    permissions: str = "edit"  #: read | edit | all: what it may do without asking
    arguments: tuple[str, ...] = ()  #: additional ones of the user


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenUsage:
    """Token counts, each token counted once."""

    input: int = 0  #: without cached tokens
    output: int = 0  #: including reasoning
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return self.input + self.output + self.cache_read + self.cache_write

    def minus(self, before: TokenUsage) -> TokenUsage:
        """Return these counts minus those of *before*, each at least 0."""
        return self._with(before, lambda own, other: max(own - other, 0))

    def highest(self, other: TokenUsage) -> TokenUsage:
        """Return the higher of each pair of counts."""
        return self._with(other, max)

    def covers(self, other: TokenUsage) -> bool:
        """Say whether each count is at least that of *other*."""
        return all(getattr(self, part.name) >= getattr(other, part.name) for part in fields(self))

    def _with(self, other: TokenUsage, how: Callable[[int, int], int]) -> TokenUsage:
        return TokenUsage(
            **{part.name: how(getattr(self, part.name), getattr(other, part.name)) for part in fields(self)}
        )

    @classmethod
    def sum_of(cls, parts: Collection[TokenUsage]) -> TokenUsage:
        """Return the sum of *parts*."""
        return cls(**{count.name: sum(getattr(part, count.name) for part in parts) for count in fields(cls)})

    def to_json(self) -> JsonObject:
        """Return the counts that are not 0."""
        return {part.name: value for part in fields(self) if (value := getattr(self, part.name))}

    @classmethod
    def from_json(cls, data: object) -> TokenUsage:
        """Return the counts in *data*; anything but a positive integer counts as 0."""
        known = data if isinstance(data, Mapping) else {}
        values = {count.name: known.get(count.name) for count in fields(cls)}

        return cls(**{name: value for name, value in values.items() if type(value) is int and value > 0})


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentReading:
    """The parsed output of an agent so far."""

    session_id: str = ""
    model: str = ""
    version: str = ""
    has_result: bool = False  #: the final event was seen
    is_error: bool = False  #: the agent reports its own failure
    subtype: str = ""  #: the agent's own name for the failure, such as error_max_turns
    text: str = ""  #: its last answer, or its message about the failure
    http_status: int | None = None  #: of the final response
    retry_after_seconds: float | None = None
    resets_at: float | None = None  #: when a used-up quota is available again, seconds since 1970
    cost_usd: float | None = None  #: as reported; of the whole session for some (`AgentCapabilities`)
    tokens: TokenUsage = field(default_factory=TokenUsage)  #: likewise
    own_tokens: TokenUsage | None = None  #: of this call alone, if the result has them beside its sums
    turns: int = 0
    denials: tuple[str, ...] = ()  #: tools that it asked for and was denied
    is_subscription: bool | None = None  #: paid by the month, not by use; None: not reported
    structured: JsonObject | None = None  #: an answer in the requested form

    @property
    def is_answered(self) -> bool:
        """Whether the model has answered: it sent text or tokens, and no error after them."""
        return not self.is_error and bool(self.text or self.tokens.total)


class StreamParser(Protocol):
    """Parses an agent's output line by line; never raises, whatever the line."""

    def line(self, text: str) -> str:
        """Process a line of output; return the text to show to a person, or ""."""

    @property
    def reading(self) -> AgentReading:
        """The result of the lines so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentProfile:
    """One kind of agent."""

    name: str  #: name of the runner and of the program: claude | codex | gemini | opencode | aider
    provider: str  #: who charges for its work, for breakers and costs: anthropic | openai | google | ...
    capabilities: AgentCapabilities
    argv: Callable[[AgentTask], tuple[str, ...]]  #: its arguments, without the program
    parser: Callable[[], StreamParser]
    failure: Callable[[AgentReading, ProcessEnd], FailedRun | None]  #: None: no sign of a failure
    variables: tuple[str, ...] = ()  #: additional environment variables passed on if set: its own credentials
    settings: Mapping[str, str] = field(default_factory=dict)  #: variables that are always set for it
    rules_files: tuple[str, ...] = ()  #: files of the repository with instructions for it
    login_argv: tuple[str, ...] = ()  #: exits with 0 if it is logged in; (): cannot be checked


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The usage of one attempt, without anything before it."""

    provider: str
    model: str
    tokens: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None  #: None: unknown
    is_estimated: bool = False  #: computed from a price table, not reported by the agent
    is_subscription: bool = False  #: paid by the month: it counts against no budget
    #: What the sums of its result are of, "" for an agent with only one possibility; see `costs.scope_of`.
    scope: str = ""
    reported_usd: float | None = None  #: the cost in the result, of the call or of the conversation
    reported_tokens: TokenUsage = field(default_factory=TokenUsage)  #: likewise

    def to_json(self) -> JsonObject:
        """Return it in the form stored in an attempt's report."""
        used: JsonObject = {
            "provider": self.provider,
            "model": self.model,
            "tokens": self.tokens.to_json(),
            "cost_usd": self.cost_usd,
            "is_estimated": self.is_estimated,
            "is_subscription": self.is_subscription,
        }
        if not self.scope:
            return used

        return {
            **used,
            "scope": self.scope,
            "reported_usd": self.reported_usd,
            "reported_tokens": self.reported_tokens.to_json(),
        }
