"""
Gemini CLI: `gemini --output-format=stream-json`, with its prompt as input.

Its exit code is the HTTP status of the failed response, of which the system keeps the low 8 bits. Its counts are of
this run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from adws.adw_modules.agent import AgentCapabilities, AgentProfile, AgentReading, AgentTask, TokenUsage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.base import (
    Event,
    JsonLines,
    count_at,
    object_at,
    session_at,
    storable,
    subject_of,
    text_at,
    value_at,
)
from adws.adw_modules.errors import FailedRun
from adws.adw_modules.process.run import ProcessEnd

_MODES: Mapping[str, str] = MappingProxyType({"read": "plan", "edit": "auto_edit", "all": "yolo"})
_CODE = re.compile(r'"code"\s?:\s?(\d{3})\b')
#: Exit codes that can only be the low 8 bits of an HTTP status from 400 to 511.
_STATUS_CODES = range(400 - 256, 256)


def argv(task: AgentTask) -> tuple[str, ...]:
    """Return the arguments for *task*; values follow `=`, so that none can be read as an option."""
    arguments = ["--output-format=stream-json", f"--approval-mode={_MODES[task.permissions]}", "--skip-trust"]
    if task.session_id:
        option = "--resume" if task.is_resumed else "--session-id"
        arguments.append(f"{option}={agents_base.checked_session(task.session_id)}")
    if task.model:
        arguments.append(f"--model={task.model}")

    return (*arguments, *task.arguments)


class Parser(JsonLines):
    """Parses Gemini CLI's events."""

    def __init__(self) -> None:
        super().__init__()
        self._tools: dict[str, str] = {}  # tool-call id -> name of the tool
        self._goes_on = False  # the next piece of an answer continues the last one

    def on_init(self, event: Event) -> str:
        self.note(session_id=session_at(event, "session_id"), model=text_at(event, "model"))

        return f"conversation {self.reading.session_id}, model {self.reading.model}"

    def on_message(self, event: Event) -> str:
        if text_at(event, "role") != "assistant":
            return ""
        said = text_at(event, "content")
        is_piece = self._goes_on and value_at(event, "delta") is True
        self.note(text=storable(self.reading.text + said) if is_piece else said, is_error=False)
        self._goes_on = True

        return said

    def on_tool_use(self, event: Event) -> str:
        self._goes_on = False
        name = text_at(event, "tool_name")
        self._tools[text_at(event, "tool_id")] = name
        self.note(turns=self.reading.turns + 1, is_error=False)

        return f"{name} {subject_of(value_at(event, 'parameters'))}"

    def on_tool_result(self, event: Event) -> str:
        if text_at(event, "error", "type") != "policy_violation":
            return ""

        return self.refuse(self._tools.get(text_at(event, "tool_id"), ""))

    def on_error(self, event: Event) -> str:
        self._goes_on = False
        said = text_at(event, "message")
        if text_at(event, "severity") == "error":
            self.note(is_error=True, text=said)

        return said

    def on_result(self, event: Event) -> str:
        has_failed = text_at(event, "status") != "success"
        kind, said = text_at(event, "error", "type"), text_at(event, "error", "message")
        match = _CODE.search(said)
        # The text of some failures is in the event before.
        why = said or (self.reading.text if self.reading.is_error else "")
        self.note(
            has_result=True,
            is_error=has_failed,
            subtype=kind if has_failed and kind != "unknown" else "",
            text=why if has_failed else self.reading.text,
            http_status=int(match[1]) if match else None,
            tokens=_tokens(object_at(event, "stats")),
        )

        return f"failed: {why}" if has_failed else "done"


def _tokens(stats: Event) -> TokenUsage:
    sent, cached = count_at(stats, "input_tokens"), count_at(stats, "cached")

    return TokenUsage(
        input=count_at(stats, "input") or max(sent - cached, 0),
        # Reasoning tokens are included in the total only.
        output=max(count_at(stats, "output_tokens"), count_at(stats, "total_tokens") - sent),
        cache_read=cached,
    )


def failure(reading: AgentReading, end: ProcessEnd) -> FailedRun | None:
    """Return why Gemini CLI failed, or None without a sign of failure."""
    code = end.exit_code or 0
    has_status = reading.is_error and reading.http_status is None and code in _STATUS_CODES

    return agents_base.failure(replace(reading, http_status=code + 256) if has_status else reading, end, tool="gemini")


PROFILE = AgentProfile(
    name="gemini",
    provider=agents_base.PROVIDERS["gemini"],
    capabilities=AgentCapabilities(chooses_session=True, resumes=True),
    argv=argv,
    parser=Parser,
    failure=failure,
    variables=(
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_CLOUD_LOCATION",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_GENAI_USE_GCA",
        "GOOGLE_GENAI_USE_VERTEXAI",
    ),
    settings=MappingProxyType({"GEMINI_TELEMETRY_ENABLED": "false"}),
    rules_files=("GEMINI.md", ".gemini/GEMINI.md", ".gemini/settings.json"),
)
