"""
What a coding agent is asked, what its output says, how it ended.

Data types only. A profile is an agent's command line, the parser of its output and its verdict, all pure; one driver
runs every profile. What an agent says about itself is evidence and does not decide: success is what can be checked.
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
    """What an agent's command line can do."""

    reads_stdin: bool = True  #: takes the prompt from its input; else from a file that its arguments name
    chooses_session: bool = False  #: we say under which id the conversation is kept, so that it is known before it runs
    resumes: bool = False  #: can resume a conversation of which the id is known
    tells_result: bool = True  #: says at its end, in an event, whether it worked
    tells_cost: bool = False  #: says what it cost; else that is reckoned from tokens
    totals_are_of_session: bool = False  #: its sums are of the whole conversation: what was there before comes off
    tells_own_tokens: bool = False  #: its result also has the tokens of this call alone: they show what its sums are of
    limits_turns: bool = False
    limits_budget: bool = False
    boxes_itself: bool = False  #: has a sandbox of its own, which does not work inside of ours
    commits: bool = False  #: makes commits by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentTask:
    """What an agent is asked in one attempt; enough for its command line."""

    prompt_file: Path  #: absolute; also its input, when it reads that
    cwd: Path
    folder: Path  #: for files of the agent itself, outside of the worktree
    model: str = ""  #: "": the agent's own choice
    session_id: str = ""  #: chosen by us, or that of the conversation to resume
    is_resumed: bool = False
    max_turns: int | None = None
    budget_usd: float | None = None
    permissions: str = "edit"  #: read | edit | all: what it may do without asking
    arguments: tuple[str, ...] = ()  #: further ones, of the user


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenUsage:
    """Tokens, each counted once."""

    input: int = 0  #: without what came from the cache
    output: int = 0  #: with what was reasoned
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.input + self.output + self.cache_read + self.cache_write

    def minus(self, before: TokenUsage) -> TokenUsage:
        """Return what came on top of *before*; never less than nothing."""
        return self._with(before, lambda own, other: max(own - other, 0))

    def highest(self, other: TokenUsage) -> TokenUsage:
        """Return the higher one of each two counts."""
        return self._with(other, max)

    def covers(self, other: TokenUsage) -> bool:
        """Say whether none of these counts is below that of *other*."""
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
        """Return the counts in *data*; what is no number from 0 up counts as 0."""
        known = data if isinstance(data, Mapping) else {}
        values = {count.name: known.get(count.name) for count in fields(cls)}

        return cls(**{name: value for name, value in values.items() if type(value) is int and value > 0})


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentReading:
    """What an agent's output has said so far."""

    session_id: str = ""
    model: str = ""
    version: str = ""
    has_result: bool = False  #: the event that ends its work was seen
    is_error: bool = False  #: it says itself that it failed
    subtype: str = ""  #: the agent's own name for the failure, such as error_max_turns
    text: str = ""  #: its last answer, or what it says about the failure
    http_status: int | None = None  #: of the answer that ended it
    retry_after_seconds: float | None = None
    resets_at: float | None = None  #: when a used-up quota is open again, seconds since 1970
    cost_usd: float | None = None  #: as it says; of the whole session for some (`AgentCapabilities`)
    tokens: TokenUsage = field(default_factory=TokenUsage)  #: likewise
    own_tokens: TokenUsage | None = None  #: of this call alone, where the result has them beside its sums
    turns: int = 0
    denials: tuple[str, ...] = ()  #: tools that it wanted and did not get
    is_subscription: bool | None = None  #: it is paid by the month, not by use; None: it does not say
    structured: JsonObject | None = None  #: an answer in the form that was asked for

    @property
    def is_answered(self) -> bool:
        """Whether the model behind it has answered: it sent text or tokens, and no error after them."""
        return not self.is_error and bool(self.text or self.tokens.total)


class StreamParser(Protocol):
    """Reads an agent's output line by line; never raises, whatever the line."""

    def line(self, text: str) -> str:
        """Take in a line of its output; return what to show of it to a person, "" for nothing."""

    @property
    def reading(self) -> AgentReading:
        """What the lines so far say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentProfile:
    """One kind of agent."""

    name: str  #: as a runner and its program are called: claude | codex | gemini | opencode | aider
    provider: str  #: whom its work is paid to, for breakers and costs: anthropic | openai | google | ...
    capabilities: AgentCapabilities
    argv: Callable[[AgentTask], tuple[str, ...]]  #: its arguments, without the program
    parser: Callable[[], StreamParser]
    failure: Callable[[AgentReading, ProcessEnd], FailedRun | None]  #: None: nothing speaks against its success
    variables: tuple[str, ...] = ()  #: further environment variables it gets when they are set: its own credentials
    settings: Mapping[str, str] = field(default_factory=dict)  #: variables that are always set for it
    rules_files: tuple[str, ...] = ()  #: files of the repository that tell it how to work
    login_argv: tuple[str, ...] = ()  #: exits with 0 when it is logged in; (): cannot be asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What one attempt used, everything before it taken off."""

    provider: str
    model: str
    tokens: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None  #: None: nobody can tell
    is_estimated: bool = False  #: reckoned from a price table, not said by the agent
    is_subscription: bool = False  #: paid by the month: it counts against no budget
    #: What the sums of its result are of, "" for an agent that leaves no choice; see `costs.scope_of`.
    scope: str = ""
    reported_usd: float | None = None  #: the cost as the result has it, of the call or of the conversation
    reported_tokens: TokenUsage = field(default_factory=TokenUsage)  #: likewise

    def to_json(self) -> JsonObject:
        """Return it as the report of an attempt keeps it."""
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
