"""
OpenCode: `opencode run --format=json`, with its prompt as input.

It has no final event: success is a last step that finished because the model stopped, and exit code 0. Each step
reports its own cost and tokens; they are of this run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from adws.adw_modules import error_tables
from adws.adw_modules.agent import AgentCapabilities, AgentProfile, AgentReading, AgentTask, TokenUsage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.base import (
    Event,
    JsonLines,
    count_at,
    money_at,
    object_at,
    parse,
    session_at,
    status_at,
    text_at,
    value_at,
)
from adws.adw_modules.errors import FailedRun
from adws.adw_modules.process.run import ProcessEnd

_PERMISSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"read": ("--agent=plan",), "edit": (), "all": ("--auto",)}
)
#: A denied tool's error; "permission denied" alone comes from a file system.
_REFUSED = re.compile(r"rejected permission|a rule which prevents", re.IGNORECASE)
#: A state, not a failure: a step has begun or called tools, and the model has not stopped yet.
_UNFINISHED = "unfinished"
#: Bad reasons for the end of a step -> name of the failure.
_BAD_REASONS: Mapping[str, str] = MappingProxyType({"length": "max_output_tokens", "content-filter": "refused"})


def argv(task: AgentTask) -> tuple[str, ...]:
    """Return the arguments for *task*; values follow `=`, so that none can be read as an option."""
    arguments = ["run", "--format=json"]
    if task.is_resumed:
        arguments.append(f"--session={agents_base.checked_session(task.session_id)}")
    if task.model:
        arguments.append(f"--model={task.model}")

    return (*arguments, *_PERMISSIONS[task.permissions], *task.arguments)


class Parser(JsonLines):
    """Parses OpenCode's events."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[str, tuple[TokenUsage, float | None]] = {}  # by id, so that none is counted twice

    def _named(self, event: Event) -> Event:
        """Return the part of *event*; every event names the conversation."""
        self.note(session_id=session_at(event, "sessionID") or self.reading.session_id)

        return object_at(event, "part")

    def on_step_start(self, event: Event) -> str:
        self._named(event)
        self.note(is_error=False, subtype=_UNFINISHED, http_status=None)

        return ""

    def on_text(self, event: Event) -> str:
        said = text_at(self._named(event), "text")
        self.note(text=said or self.reading.text)

        return said

    def on_tool_use(self, event: Event) -> str:
        part = self._named(event)
        name, state = text_at(part, "tool"), object_at(part, "state")
        if text_at(state, "status") == "error" and _REFUSED.search(text_at(state, "error")):
            return self.refuse(name)

        return f"{name} {text_at(state, 'title')}"

    def on_step_finish(self, event: Event) -> str:
        part = self._named(event)
        self._steps[text_at(part, "id")] = (_tokens(object_at(part, "tokens")), money_at(part, "cost"))
        costs = [cost for _, cost in self._steps.values() if cost is not None]
        reason = text_at(part, "reason")
        self.note(
            subtype="" if reason == "stop" else _BAD_REASONS.get(reason, _UNFINISHED),
            tokens=TokenUsage.sum_of([tokens for tokens, _ in self._steps.values()]),
            cost_usd=sum(costs) if costs else None,
            turns=len(self._steps),
        )

        return "done" if reason == "stop" else ""

    def on_error(self, event: Event) -> str:
        self._named(event)
        error = object_at(event, "error")
        data = object_at(error, "data")
        # The response body, a text, has the provider's own name of the error.
        body = parse(text_at(data, "responseBody")) or {}
        kinds = [kind for kind in (text_at(body, "error", "type"), text_at(body, "type")) if kind not in {"", "error"}]
        said = text_at(data, "message") or text_at(error, "name")
        wait = error_tables.in_seconds(value_at(data, "responseHeaders", "retry-after"))
        self.note(
            is_error=True,
            subtype=text_at(error, "name"),
            text=f"{said} ({kinds[0]})" if kinds else said,
            http_status=status_at(data, "statusCode"),
            retry_after_seconds=wait.seconds,
        )

        return f"failed: {said}"


def _tokens(counts: Event) -> TokenUsage:
    return TokenUsage(
        input=count_at(counts, "input"),
        output=count_at(counts, "output") + count_at(counts, "reasoning"),
        cache_read=count_at(counts, "cache", "read"),
        cache_write=count_at(counts, "cache", "write"),
    )


def failure(reading: AgentReading, end: ProcessEnd) -> FailedRun | None:
    """Return why OpenCode failed, or None without a sign of failure."""
    is_open = reading.subtype == _UNFINISHED
    seen = replace(reading, has_result=reading.turns > 0 and not is_open, subtype="" if is_open else reading.subtype)

    return agents_base.failure(seen, end, tool="opencode")


PROFILE = AgentProfile(
    name="opencode",
    provider=agents_base.PROVIDERS["opencode"],
    capabilities=AgentCapabilities(resumes=True, tells_result=False, tells_cost=True),
    argv=argv,
    parser=Parser,
    failure=failure,
    variables=(
        "ANTHROPIC_API_KEY",
        "DEEPSEEK_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_GENERATIVE_AI_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "OPENAI_API_KEY",
        "OPENCODE_API_KEY",
        "OPENCODE_CONFIG",
        "OPENCODE_CONFIG_DIR",
        "OPENROUTER_API_KEY",
        "XAI_API_KEY",
    ),
    settings=MappingProxyType({"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}),
    rules_files=("AGENTS.md", "CLAUDE.md", "opencode.json", "opencode.jsonc"),
)
