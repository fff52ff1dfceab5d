"""
Say from an agent's words and its end whether anything speaks against its success.

No single sign is trusted: an agent that failed may exit with 0, and one that says "success" may have an error beside
it. What the agent says about the failure comes before its exit code, and its text last.
"""

from __future__ import annotations

import re

from adws.adw_modules.agent import AgentEnd, AgentReading
from adws.adw_modules.agents.json_lines import is_session
from adws.adw_modules.errors import UsageError
from adws.adw_modules.failed_run import FailedRun

#: What agents say that do nothing because of how they were called.
_BAD_CALL = re.compile(
    r"\b(?:unknown (?:option|argument|flag)s?|unrecognized arguments?|unexpected argument|invalid value"
    r"|not inside a trusted directory)\b",
    re.IGNORECASE,
)
#: Characters kept of an agent's own name for its failure.
MAX_SUBTYPE = 100
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

#: What agents say about a conversation that they were to go on with and do not have.
_UNKNOWN_SESSION = re.compile(
    r"\b(?:no (?:conversation|rollout) found|error resuming session|invalid session identifier|session not found)\b",
    re.IGNORECASE,
)


def failure(reading: AgentReading, end: AgentEnd, *, tool: str) -> FailedRun | None:
    """
    Return why the agent failed, None when nothing speaks against its success.

    A refused tool is reported as `denied`; whether the work was done all the same is for the caller to see. An agent
    that said its result and then did not end is none that failed.
    """
    if reading.is_error or reading.subtype:
        return _failed(reading, end, tool, subtype=reading.subtype, text=reading.text)
    if not reading.has_result:
        return _without_result(reading, end, tool)
    if end.timed_out != "after_result" and not _is_good(end):
        return _failed(reading, end, tool)
    if reading.denials:
        names = ", ".join(dict.fromkeys(reading.denials))
        return _failed(reading, end, tool, subtype="denied", text=f"it was not allowed to use: {names}")

    return None


def said_last(end: AgentEnd) -> str:
    """Return the lines of the tail that are no events: those are full of words that describe no failure."""
    lines = [line.strip() for line in _COLOURS.sub("", end.tail).splitlines()]
    # The tail may begin in the middle of an event.
    first = [line for line in lines[:1] if line.count("}") <= line.count("{")]

    return "\n".join(line for line in (*first, *lines[1:]) if line and not line.startswith("{"))


def is_unknown_session(text: str) -> bool:
    """Say whether *text* is that of an agent that does not have the conversation it was to go on with."""
    return _UNKNOWN_SESSION.search(text) is not None


def checked_session(session_id: str) -> str:
    """Return *session_id*; raise UsageError when it could be read as an option or as several arguments."""
    if not is_session(session_id):
        raise UsageError(f"{session_id!r} cannot be the id of an agent's conversation; use letters, digits, - and _")

    return session_id


def _is_good(end: AgentEnd) -> bool:
    return end.exit_code == 0 and end.signal is None and end.timed_out is None


def _without_result(reading: AgentReading, end: AgentEnd, tool: str) -> FailedRun:
    if _is_good(end):
        return _failed(reading, end, tool, subtype="bad_output")

    return _failed(reading, end, tool, subtype="" if reading.turns else _refusal(said_last(end)))


def _refusal(text: str) -> str:
    """Return the name of a failure before any work: the agent was called in a way that it does not take."""
    if is_unknown_session(text):
        return "unknown_session"

    return "invalid" if _BAD_CALL.search(text) is not None else ""


def _failed(reading: AgentReading, end: AgentEnd, tool: str, *, subtype: str = "", text: str = "") -> FailedRun:
    # An answer of the agent is no text of a failure: it may speak of rate limits because it works on some.
    said = "it did not say that it was done" if not reading.has_result else "it did not end well after it was done"

    return FailedRun(
        exit_code=end.exit_code,
        signal=end.signal,
        timed_out=end.timed_out,
        text=text or said_last(end) or said,
        subtype=subtype[:MAX_SUBTYPE],
        http_status=reading.http_status,
        retry_after_seconds=reading.retry_after_seconds,
        resets_at=reading.resets_at,
        tool=tool,
    )
