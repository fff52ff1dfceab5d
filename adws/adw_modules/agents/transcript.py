"""
Convert an agent's stream of JSON lines to a readable transcript: messages, tool calls and their results.

Pure. The streams of Claude Code, Codex, Gemini and OpenCode are supported; other lines are shown unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from adws.adw_modules.agents.base import Event, list_at, money_at, object_at, parse, subject_of, text_at, value_at
from adws.adw_modules.identifiers import JsonValue, counted

#: Types of the lines in the streams.
_TYPES = frozenset(
    {
        *("system", "assistant", "user", "result", "rate_limit_event"),  # Claude Code
        *("init", "message", "tool_use", "tool_result", "error"),  # Gemini
        *("step_start", "step_finish", "text"),  # OpenCode
        *("thread.started", "turn.started", "turn.completed", "turn.failed"),  # Codex
        *("item.started", "item.updated", "item.completed"),
    }
)
#: Lines of a message, and characters of a tool's result, that are shown before they are folded.
_SAID_LINES, _RESULT_WIDTH = 12, 100
_SHELL = re.compile(r"^/bin/(?:ba|z)?sh -l?c (['\"])(?P<command>.*)\1$", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A message, or a tool call with its result."""

    who: str = ""  #: agent | subagent; "": a note by adw
    text: str = ""
    tool: str = ""  #: name of the called tool, "" for a message
    result: str | None = None  #: what the tool returned; None: no result
    has_failed: bool = False  #: the tool failed or was denied


def is_stream(first_line: str) -> bool:
    """Say whether the first line of an agent's output begins a stream that `entries` reads."""
    event = parse(first_line)

    return event is not None and text_at(event, "type") in _TYPES


def entries(lines: Iterable[str]) -> Iterator[Entry]:
    """Yield the entries of the stream in *lines*, a tool call once its result is there."""
    calls: dict[str, Entry] = {}  #: by id, those without a result so far
    said = ""  #: pieces of one message, which Gemini streams
    for line in lines:
        event = parse(line)
        if event is None:
            if line.strip():
                yield Entry(text=line.strip())
            continue
        kind = text_at(event, "type")
        if kind == "message":
            said += text_at(event, "content") if text_at(event, "role") == "assistant" else ""
            continue
        if said:
            yield Entry(who="agent", text=said)
            said = ""
        if kind in {"assistant", "user"}:
            yield from _of_message(event, calls)
        elif kind == "tool_use" and "part" in event:
            yield _call_of_opencode(object_at(event, "part"))
        elif kind == "tool_use":
            calls[text_at(event, "tool_id")] = _call(text_at(event, "tool_name"), value_at(event, "parameters"))
        elif kind == "tool_result" and (call := calls.pop(text_at(event, "tool_id"), None)) is not None:
            output = text_at(event, "output") or text_at(event, "error", "message")
            yield replace(call, result=output, has_failed=text_at(event, "status") != "success")
        elif kind == "item.completed":
            yield from _of_item(object_at(event, "item"))
        elif kind == "text":
            yield Entry(who="agent", text=text_at(event, "part", "text"))
        else:
            yield from (Entry(text=text) for text in (_note(kind, event),) if text)
    if said:
        yield Entry(who="agent", text=said)
    yield from calls.values()


def _of_message(event: Event, calls: dict[str, Entry]) -> Iterator[Entry]:
    """Yield the content of a Claude message; its tool calls wait in *calls* for their results."""
    who = "subagent" if value_at(event, "parent_tool_use_id") else "agent"
    for block in list_at(object_at(event, "message"), "content"):
        kind = text_at(block, "type")
        if kind == "tool_use":
            calls[text_at(block, "id")] = replace(_call(text_at(block, "name"), value_at(block, "input")), who=who)
        elif kind == "tool_result":
            parts = [text_at(part, "text") for part in list_at(block, "content")]
            result, has_failed = (
                text_at(block, "content") or "\n".join(filter(None, parts)),
                value_at(block, "is_error"),
            )
            call = calls.pop(text_at(block, "tool_use_id"), Entry(tool="tool"))
            yield replace(call, result=result, has_failed=has_failed is True)
        elif text := text_at(block, "text"):
            yield Entry(who=who if text_at(event, "type") == "assistant" else "", text=text)


def _of_item(item: Event) -> Iterator[Entry]:
    """Yield the content of a Codex item."""
    kind = text_at(item, "type")
    if kind == "command_execution":
        command = text_at(item, "command")
        shell = _SHELL.match(command)
        code = value_at(item, "exit_code")
        result, failure = text_at(item, "aggregated_output"), "" if code in (0, None) else f"exit code {code}"
        yield Entry(
            who="agent",
            tool="Bash",
            text=shell["command"] if shell else command,
            result="\n".join(filter(None, (failure, result))),
            has_failed=bool(failure) or text_at(item, "status") in {"failed", "declined"},
        )
    elif kind == "file_change":
        for change in list_at(item, "changes"):
            has_failed = text_at(item, "status") == "failed"
            yield Entry(
                who="agent",
                tool=text_at(change, "kind") or "change",
                text=text_at(change, "path"),
                result="",
                has_failed=has_failed,
            )
    elif kind == "mcp_tool_call":
        error = text_at(item, "error", "message")
        name = f"{text_at(item, 'server')}.{text_at(item, 'tool')}"
        call = _call(name, value_at(item, "arguments"))
        yield replace(call, result=error, has_failed=bool(error))
    elif text := text_at(item, "text") or text_at(item, "message"):
        yield Entry(who="agent" if kind in {"agent_message", "reasoning"} else "", text=text)


def _call_of_opencode(part: Event) -> Entry:
    state = object_at(part, "state")
    error = text_at(state, "error")

    return replace(
        _call(text_at(part, "tool"), value_at(state, "input")),
        result=error or text_at(state, "output"),
        has_failed=bool(error) or text_at(state, "status") == "error",
    )


def _call(tool: str, given: JsonValue) -> Entry:
    return Entry(who="agent", tool=tool or "tool", text=subject_of(given))


def _note(kind: str, event: Event) -> str:
    """Return a note for a line that is neither a message nor a tool call: the beginning, the end, an error."""
    if kind == "init" or (kind == "system" and text_at(event, "subtype") == "init"):
        return f"session {text_at(event, 'session_id')}, model {text_at(event, 'model')}"
    if kind == "thread.started":
        return f"session {text_at(event, 'thread_id')}"
    if kind == "result":
        has_failed = value_at(event, "is_error") is True or text_at(event, "status") == "error"
        turns, cost = value_at(event, "num_turns"), money_at(event, "total_cost_usd")
        end = f"failed: {text_at(event, 'result') or text_at(event, 'error', 'message')}" if has_failed else "done"
        facts = [
            counted(turns, "turn") if isinstance(turns, int) else "",
            f"{cost:.2f} USD" if cost and cost >= 0.005 else "",
        ]
        return ", ".join(filter(None, [end.removesuffix(": "), *facts]))
    if kind == "turn.completed":
        return "done"
    if kind in {"turn.failed", "error"}:
        error = text_at(event, "error", "message") or text_at(event, "error", "data", "message")
        return f"failed: {error or text_at(event, 'message')}".removesuffix(": ")

    return ""


def lines_of(entry: Entry, *, worktree: str = "", is_full: bool = False) -> list[str]:
    """Return an entry as lines for people; a long text is folded, with the number of omitted lines."""
    place = f"{worktree.rstrip('/')}/" if worktree else "\0"
    text, result = entry.text.replace(place, ""), (entry.result or "").replace(place, "").strip()
    if not entry.tool:
        said = text.strip().splitlines() or [""]
        if not is_full and len(said) > _SAID_LINES:
            said = [*said[: _SAID_LINES - 2], f"... {counted(len(said) - _SAID_LINES + 2, 'more line')}"]
        return [f"{entry.who}: {said[0]}" if entry.who else said[0], *(f"  {line}" for line in said[1:])]
    about = text if is_full else _first(text, _RESULT_WIDTH)
    call = f"  {'subagent: ' if entry.who == 'subagent' else ''}{entry.tool} {about}".rstrip()
    if entry.result is None:
        return [f"{call} -> no result"]
    verdict = "failed" if entry.has_failed else "ok"
    if is_full:
        return [f"{call} -> {verdict}", *(f"    {line}" for line in result.splitlines())]
    head = _first(result, _RESULT_WIDTH)

    return [f"{call} -> {verdict}{f': {head}' if head else ''}"]


def _first(text: str, width: int) -> str:
    """Return the first line of *text*, cut to *width*, with the number of the lines after it."""
    lines = text.splitlines() or [""]
    first = lines[0] if len(lines[0]) <= width else f"{lines[0][: width - 3].rstrip()}..."

    return f"{first} (+{counted(len(lines) - 1, 'line')})" if len(lines) > 1 else first
