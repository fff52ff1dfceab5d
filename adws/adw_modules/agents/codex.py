"""
Codex: `codex exec --json` with its stream of JSON lines.

A failure is reported only as text, without a status field; `error` in a turn that continues is a note, not the end. The
tokens are those of the whole conversation; there is no cost, and no limit of turns or money.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from adws.adw_modules.agent import AgentCapabilities, AgentProfile, AgentTask, TokenUsage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.base import Event, JsonLines, count_at, list_at, object_at, session_at, text_at

_SANDBOXES: Mapping[str, str] = MappingProxyType({"read": "read-only", "edit": "workspace-write"})
_BYPASS = "--dangerously-bypass-approvals-and-sandbox"
_QUIET = ("--config=check_for_update_on_startup=false", "--config=analytics.enabled=false")
_STATUS = re.compile(r"\b(?:unexpected status|last status:?) (\d{3})\b")
#: A rejected request is reported only by the unchanged body of the response.
_REFUSED_BODY = re.compile(r"\s*\{.*\"(?:error|detail)\"\s*:", re.DOTALL)
_BAD_REQUEST = 400


def argv(task: AgentTask) -> tuple[str, ...]:
    """Return the arguments for *task*; the final `-` makes it read the prompt from its input."""
    arguments = ["--json", *_QUIET]
    # Its sandbox confines it to the working directory, but it writes its result elsewhere.
    opened = (f"--add-dir={task.folder}",) if task.permissions == "edit" else ()
    if task.model:
        arguments.append(f"--model={task.model}")
    if task.is_resumed:
        # `resume` has no --sandbox or --add-dir of its own. After `--` nothing is an option.
        access = _access(task, '--config=sandbox_mode="{}"')
        return (
            "exec",
            *opened,
            "resume",
            *arguments,
            access,
            *task.arguments,
            "--",
            agents_base.checked_session(task.session_id),
            "-",
        )

    return ("exec", *arguments, _access(task, "--sandbox={}"), *opened, *task.arguments, "-")


def _access(task: AgentTask, form: str) -> str:
    return _BYPASS if task.permissions == "all" else form.format(_SANDBOXES[task.permissions])


class Parser(JsonLines):
    """Parses Codex's events."""

    def on_thread_started(self, event: Event) -> str:
        self.note(session_id=session_at(event, "thread_id"))

        return f"conversation {self.reading.session_id}"

    def on_turn_started(self, _event: Event) -> str:
        self.note(turns=self.reading.turns + 1, has_result=False, is_error=False, http_status=None)

        return ""

    def on_turn_completed(self, event: Event) -> str:
        usage = object_at(event, "usage")
        cached, written = count_at(usage, "cached_input_tokens"), count_at(usage, "cache_write_input_tokens")
        tokens = TokenUsage(
            input=max(count_at(usage, "input_tokens") - cached - written, 0),
            output=count_at(usage, "output_tokens"),
            cache_read=cached,
            cache_write=written,
        )
        self.note(has_result=True, is_error=False, tokens=tokens)

        return "done"

    def on_turn_failed(self, event: Event) -> str:
        text = text_at(event, "error", "message") or (self.reading.text if self.reading.is_error else "")
        self.note(has_result=True, is_error=True, text=text, http_status=_status_of(text))

        return f"failed: {text}"

    def on_error(self, event: Event) -> str:
        # It may be only a lost connection: work that continues clears this error.
        self.note(is_error=True, text=text_at(event, "message"))

        return self.reading.text

    def on_item_started(self, event: Event) -> str:
        self.note(is_error=False)

        return text_at(event, "item", "command")

    def on_item_completed(self, event: Event) -> str:
        item = object_at(event, "item")
        kind = text_at(item, "type")
        self.note(is_error=False)
        if text_at(item, "status") == "declined":
            return self.refuse(text_at(item, "command") or kind)
        if kind == "agent_message":
            self.note(text=text_at(item, "text"))
        if kind == "file_change":
            return ", ".join(f"{text_at(one, 'kind')} {text_at(one, 'path')}" for one in list_at(item, "changes"))

        return text_at(item, "text") or text_at(item, "message")


def _status_of(text: str) -> int | None:
    """Return the HTTP status mentioned in the text of a failure, or None."""
    match = _STATUS.search(text)
    if match:
        return int(match[1])

    return _BAD_REQUEST if _REFUSED_BODY.match(text) else None


PROFILE = AgentProfile(
    name="codex",
    provider=agents_base.PROVIDERS["codex"],
    capabilities=AgentCapabilities(boxes_itself=True, resumes=True, totals_are_of_session=True),
    argv=argv,
    parser=Parser,
    failure=partial(agents_base.failure, tool="codex"),
    variables=(
        "CODEX_API_KEY",
        "CODEX_HOME",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_ORGANIZATION",
        "OPENAI_PROJECT",
    ),
    rules_files=("AGENTS.md", "AGENTS.override.md", ".codex/config.toml"),
    login_argv=("login", "status"),
)
