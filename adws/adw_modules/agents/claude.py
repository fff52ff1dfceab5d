"""
Claude Code: `claude -p` with its stream of JSON lines.

An API failure arrives as subtype "success" with is_error true, and a denied write or an interrupt ends with exit code
0: success needs all signs to be good. `total_cost_usd` and `modelUsage` are of this call in some versions (2.1.197) and
of the whole conversation in others (2.1.325); `usage` is always of this call, and `costs.scope_of` compares them. Until
there is a result, the tokens are those of this run alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from adws.adw_modules.agent import AgentCapabilities, AgentProfile, AgentTask, TokenUsage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.base import (
    Event,
    JsonLines,
    amount_at,
    count_at,
    list_at,
    money_at,
    object_at,
    session_at,
    status_at,
    subject_of,
    text_at,
    value_at,
)
from adws.adw_modules.error_tables import class_of_text
from adws.adw_modules.structured_logger import to_plain

#: The arguments for each permission level; the tools are named, so that no permission prompt is needed.
_READ_TOOLS = "Read,Glob,Grep,LS,NotebookRead,TodoWrite,Task,WebFetch,WebSearch"
_PERMISSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "read": (
            "--permission-mode=default",
            f"--allowedTools={_READ_TOOLS},Bash(git log *),Bash(git show *),Bash(git diff *),Bash(git status *)",
            "--disallowedTools=Write,Edit,MultiEdit,NotebookEdit",
        ),
        "edit": (
            "--permission-mode=acceptEdits",
            f"--allowedTools={_READ_TOOLS},Bash,Write,Edit,MultiEdit,NotebookEdit",
        ),
        "all": ("--dangerously-skip-permissions",),
    }
)

#: Reasons for the end of a turn that are more specific than the result's subtype; see `error_tables.SUBTYPES`.
_TELLING_REASONS = frozenset(
    {
        "aborted_streaming",
        "aborted_tools",
        "budget_exhausted",
        "image_error",
        "malformed_tool_use_exhausted",
        "max_turns",
        "prompt_too_long",
        "structured_output_retry_exhausted",
    }
)
_INTERRUPTED_REASONS = frozenset({"aborted_streaming", "aborted_tools"})
#: Beginning of the message that marks an interruption in the conversation.
_INTERRUPTION = "[Request interrupted by user"
#: Prefix of diagnostics for Claude Code's developers among the errors of a result.
_DIAGNOSTIC = "[ede_diagnostic]"
#: Names of API errors that are more specific than the HTTP status.
_TELLING_ERRORS = frozenset({"usage_limit_reached", "connection_failed", "credits_required", "billing_error"})


def argv(task: AgentTask) -> tuple[str, ...]:
    """Return the arguments for *task*; values follow `=`, so that none can be read as an option."""
    arguments = ["-p", "--output-format=stream-json", "--verbose"]
    if task.session_id:
        option = "--resume" if task.is_resumed else "--session-id"
        arguments.append(f"{option}={agents_base.checked_session(task.session_id)}")
    if task.model:
        arguments.append(f"--model={task.model}")
    if task.max_turns is not None:
        arguments.append(f"--max-turns={task.max_turns}")
    if task.budget_usd is not None:
        arguments.append(f"--max-budget-usd={task.budget_usd:.4f}")

    return (*arguments, *_PERMISSIONS[task.permissions], *task.arguments)


class Parser(JsonLines):
    """Parses Claude Code's events."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, TokenUsage] = {}  # by message id: every block of a message repeats its usage

    def on_system(self, event: Event) -> str:
        kind = text_at(event, "subtype")
        if kind == "init":
            return self._init(event)
        if kind == "api_retry":
            delay = (amount_at(event, "retry_delay_ms") or 0.0) / 1000
            why = status_at(event, "error_status") or text_at(event, "error")
            return f"the API did not answer ({why}), asking again in {delay:.1f} s"
        if kind == "permission_denied":
            return self.refuse(text_at(event, "tool_name"))

        return ""

    def _init(self, event: Event) -> str:
        source, model = text_at(event, "apiKeySource"), text_at(event, "model")
        # A log-in is a subscription; other clouds have no key of ours either, but other names for models.
        is_log_in = source == "none" and model.startswith("claude-") and "@" not in model
        self.note(
            session_id=session_at(event, "session_id"),
            model=model,
            version=text_at(event, "claude_code_version"),
            is_subscription=False if source not in {"", "none"} else True if is_log_in else None,
        )

        return f"conversation {self.reading.session_id}, model {model}"

    def on_assistant(self, event: Event) -> str:
        message = object_at(event, "message")
        tokens = self._count(text_at(message, "id"), _tokens(object_at(message, "usage")))
        blocks = list_at(message, "content")
        said = "\n".join(text for block in blocks if (text := text_at(block, "text")))
        error = text_at(event, "error")
        self.note(
            tokens=tokens,
            turns=len(self._messages),
            is_error=bool(error),
            subtype=_name_of_error(event) or self.reading.subtype if error else "",
            http_status=status_at(event, "api_error_status"),
            resets_at=self.reading.resets_at if error else None,
        )
        # Output of subagents is not the agent's answer.
        if said and value_at(event, "parent_tool_use_id") is None:
            self.note(text=said)

        tools = [block for block in blocks if text_at(block, "type") == "tool_use"]

        return said or ", ".join(
            f"{text_at(one, 'name')} {subject_of(value_at(one, 'input'))}".strip() for one in tools
        )

    def _count(self, message_id: str, usage: TokenUsage) -> TokenUsage:
        """Return the tokens of all messages so far; a message's newest count replaces the previous one."""
        before = self._messages.get(message_id, TokenUsage())
        self._messages[message_id] = usage

        return TokenUsage.sum_of([self.reading.tokens.minus(before), usage])

    def on_user(self, event: Event) -> str:
        """Record an interruption of the turn: after SIGINT it ends with exit code 0, and often without a result."""
        blocks = list_at(object_at(event, "message"), "content")
        if not any(text_at(block, "text").startswith(_INTERRUPTION) for block in blocks):
            return ""  # results of tools
        if text_at(event, "parent_tool_use_id"):
            return ""  # of a subagent
        self.note(is_error=True, subtype="aborted_streaming", text=agents_base.INTERRUPTED)

        return agents_base.INTERRUPTED

    def on_rate_limit_event(self, event: Event) -> str:
        info = object_at(event, "rate_limit_info")
        if text_at(info, "rateLimitType"):
            self.note(is_subscription=value_at(info, "isUsingOverage") is not True)
        if text_at(info, "status") != "rejected":
            return ""
        is_unpaid = text_at(info, "errorCode") == "credits_required"
        self.note(
            is_error=True,
            subtype="credits_required" if is_unpaid else "quota_window",
            text="the account's usage for this period is used up",
            resets_at=amount_at(info, "resetsAt"),
        )

        return self.reading.text

    def on_result(self, event: Event) -> str:
        kind, reason = text_at(event, "subtype"), text_at(event, "terminal_reason")
        has_failed = value_at(event, "is_error") is not False or kind != "success" or reason in _TELLING_REASONS
        # The last answer is not a failure message, unless it was an error.
        before = self.reading.text if self.reading.is_error or not has_failed else ""
        self.note(
            has_result=True,
            is_error=has_failed,
            subtype=self._name_of_failure(event, kind) if has_failed else "",
            http_status=status_at(event, "api_error_status"),
            session_id=session_at(event, "session_id") or self.reading.session_id,
            text=_words(event) or (agents_base.INTERRUPTED if reason in _INTERRUPTED_REASONS else before),
            cost_usd=money_at(event, "total_cost_usd"),
            tokens=_totals(event) or self.reading.tokens,
            own_tokens=_own_tokens(event, streamed=TokenUsage.sum_of(self._messages.values())),
            turns=count_at(event, "num_turns") or self.reading.turns,
            structured=plain if isinstance(plain := to_plain(value_at(event, "structured_output")), dict) else None,
        )

        # The result lists all denials, including those reported before.
        denials = list_at(event, "permission_denials")
        self.note(denials=() if denials else self.reading.denials)
        for denial in denials:
            self.refuse(text_at(denial, "tool_name"))

        return f"failed: {self.reading.text}" if has_failed else "done"

    def _name_of_failure(self, event: Event, kind: str) -> str:
        """Return the most specific name of the failure; "" leaves it to the HTTP status and the text."""
        reason = text_at(event, "terminal_reason")
        if reason in _TELLING_REASONS:
            return reason
        if not count_at(event, "num_turns") and agents_base.is_unknown_session(_words(event)):
            return "unknown_session"
        # A limit that was reported before ended it, unless the response had another reason.
        if self.reading.subtype in {"quota_window", "credits_required"}:
            return self.reading.subtype

        known = _name_of_error(event) or status_at(event, "api_error_status") or class_of_text(_words(event))
        if reason in {"api_error", "model_error"} and not known:
            return "server_error"

        return _name_of_error(event) or ("" if kind == "success" else kind)


def _name_of_error(event: Event) -> str:
    return next((name for key in ("api_error", "error") if (name := text_at(event, key)) in _TELLING_ERRORS), "")


def _tokens(usage: Event) -> TokenUsage:
    return TokenUsage(
        input=count_at(usage, "input_tokens"),
        output=count_at(usage, "output_tokens"),
        cache_read=count_at(usage, "cache_read_input_tokens"),
        cache_write=count_at(usage, "cache_creation_input_tokens"),
    )


def _totals(result: Event) -> TokenUsage | None:
    """Return the tokens of all models; `usage` in the same result covers the main loop only."""
    parts = [
        TokenUsage(
            input=count_at(part, "inputTokens"),
            output=count_at(part, "outputTokens"),
            cache_read=count_at(part, "cacheReadInputTokens"),
            cache_write=count_at(part, "cacheCreationInputTokens"),
        )
        for part in object_at(result, "modelUsage").values()
    ]
    value = TokenUsage.sum_of(parts) if parts else _tokens(object_at(result, "usage"))

    return value if value.total else None


def _own_tokens(result: Event, *, streamed: TokenUsage) -> TokenUsage | None:
    """
    Return the tokens of this call alone; None if the result lacks them, or the sums to compare them with.

    `usage` omits the usage of subagents, which the *streamed* messages include; those in turn may lack the end of an
    output. So the higher count of each is taken.
    """
    if not object_at(result, "usage") or not object_at(result, "modelUsage"):
        return None

    return _tokens(object_at(result, "usage")).highest(streamed)


def _words(result: Event) -> str:
    errors = [text for error in list_at(result, "errors") if (text := text_at({"error": error}, "error"))]

    return text_at(result, "result") or "\n".join(text for text in errors if not text.startswith(_DIAGNOSTIC))


PROFILE = AgentProfile(
    name="claude",
    provider=agents_base.PROVIDERS["claude"],
    capabilities=AgentCapabilities(
        chooses_session=True,
        resumes=True,
        tells_cost=True,
        totals_are_of_session=True,
        tells_own_tokens=True,
        limits_turns=True,
        limits_budget=True,
    ),
    argv=argv,
    parser=Parser,
    failure=partial(agents_base.failure, tool="claude"),
    variables=(
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_CUSTOM_HEADERS",
        "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "API_TIMEOUT_MS",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX",
        "CLAUDE_CONFIG_DIR",
        "IS_SANDBOX",
    ),
    settings=MappingProxyType(
        {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "2",  # adw decides how often and when to retry
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        }
    ),
    rules_files=("CLAUDE.md", "CLAUDE.local.md", ".claude/CLAUDE.md", ".claude/settings.json"),
    login_argv=("auth", "status"),
)
