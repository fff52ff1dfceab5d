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

#: An agent that does not know an option says so and does nothing else.
_BAD_OPTION = re.compile(
    r"\b(?:unknown (?:option|argument|flag)s?|unrecognized arguments?|unexpected argument|invalid value)\b",
    re.IGNORECASE,
)

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
        return _failed(reading, end, tool, subtype=reading.subtype)
    if not reading.has_result:
        return _without_result(reading, end, tool)
    if end.timed_out != "after_result" and (end.timed_out or end.signal is not None or end.exit_code != 0):
        return _failed(reading, end, tool, text=said_last(end) or reading.text)
    if reading.denials:
        names = ", ".join(dict.fromkeys(reading.denials))
        return _failed(reading, end, tool, subtype="denied", text=f"it was not allowed to use: {names}")

    return None


def said_last(end: AgentEnd) -> str:
    """Return the lines of the tail that are no events: those are full of words that describe no failure."""
    return "\n".join(line for line in end.tail.splitlines() if line.strip() and not line.lstrip().startswith("{"))


def is_unknown_session(text: str) -> bool:
    """Say whether *text* is that of an agent that does not have the conversation it was to go on with."""
    return _UNKNOWN_SESSION.search(text) is not None


def checked_session(session_id: str) -> str:
    """Return *session_id*; raise UsageError when it could be read as an option or as several arguments."""
    if not is_session(session_id):
        raise UsageError(f"{session_id!r} cannot be the id of an agent's conversation; use letters, digits, - and _")

    return session_id


def _without_result(reading: AgentReading, end: AgentEnd, tool: str) -> FailedRun:
    text = reading.text or said_last(end)
    if end.exit_code == 0 and end.signal is None and end.timed_out is None:
        said = text or "it ended without saying its result"
        return _failed(reading, end, tool, subtype="bad_output", text=said)

    return _failed(reading, end, tool, subtype="" if reading.turns else _refusal(text), text=text)


def _refusal(text: str) -> str:
    """Return the name of a failure before any work: the agent was called in a way that it does not take."""
    if is_unknown_session(text):
        return "unknown_session"

    return "invalid" if _BAD_OPTION.search(text) is not None else ""


def _failed(reading: AgentReading, end: AgentEnd, tool: str, *, subtype: str = "", text: str = "") -> FailedRun:
    return FailedRun(
        exit_code=end.exit_code,
        signal=end.signal,
        timed_out=end.timed_out,
        text=text or reading.text or said_last(end),
        subtype=subtype,
        http_status=reading.http_status,
        retry_after_seconds=reading.retry_after_seconds,
        resets_at=reading.resets_at,
        tool=tool,
    )
