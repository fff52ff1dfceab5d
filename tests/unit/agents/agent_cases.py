"""
What the tests of agents share: recorded output, feeding it to a parser, and the class that comes out in the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from adws.adw_modules.agent import AgentReading
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.error_handler import ErrorFacts, describe
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.process.run import ProcessEnd

STREAMS = Path(__file__).parents[2] / "data" / "agent_streams"

#: Recorded stream -> exit code and the class of its failure, None for a success.
RECORDED: dict[str, tuple[int, str | None]] = {
    "aider_stream.txt": (0, None),
    "claude_400.jsonl": (1, "context"),
    "claude_401.jsonl": (1, "auth"),
    "claude_429.jsonl": (1, "rate_limited"),
    "claude_500.jsonl": (1, "server"),
    "claude_SIGINT.jsonl": (0, "killed"),
    "claude_SIGINT_tool.jsonl": (0, "killed"),
    "claude_SIGTERM.jsonl": (143, "killed"),
    "claude_connrefused.jsonl": (1, "network"),
    "claude_max_turns.jsonl": (1, "turns"),
    "claude_midstream_error.jsonl": (0, None),
    "claude_stream.jsonl": (0, None),
    "claude_usage_limit.jsonl": (1, "quota_window"),
    "codex_429.jsonl": (1, "rate_limited"),
    "codex_503.jsonl": (1, "overloaded"),
    "codex_stream.jsonl": (0, None),
    "gemini_stream.jsonl": (0, None),
    "opencode_stream.jsonl": (0, None),
}
SUCCESSES = sorted(name for name, (_, klass) in RECORDED.items() if klass is None)

GOOD_END = ProcessEnd(exit_code=0)


def agent_of(stream: str) -> str:
    return stream.split("_", maxsplit=1)[0]


def recorded(stream: str) -> list[str]:
    return (STREAMS / stream).read_text(encoding="utf-8").splitlines()


def read(agent: str, lines: Iterable[str]) -> AgentReading:
    parser = agents_base.profile(agent).parser()
    for line in lines:
        parser.line(line)

    return parser.reading


def shown(agent: str, lines: Iterable[str]) -> list[str]:
    parser = agents_base.profile(agent).parser()

    return [text for line in lines if (text := parser.line(line))]


def facts(agent: str, lines: Iterable[str], end: ProcessEnd = GOOD_END) -> ErrorFacts | None:
    """Return the classified failure, None when nothing speaks against a success."""
    failed = agents_base.profile(agent).failure(read(agent, lines), end)

    return None if failed is None else describe(RunFailed(failed, failed.text), "build")


def klass(agent: str, lines: Iterable[str], end: ProcessEnd = GOOD_END) -> str | None:
    result = facts(agent, lines, end)

    return None if result is None else result.klass


def event(**fields: object) -> str:
    return json.dumps(fields)


# --- what ends an agent's work ---------------------------------------------------------------------------------


def claude_result(**fields: object) -> str:
    return event(**{"type": "result", "subtype": "success", "is_error": False, "result": "Done."} | fields)


def claude_error(text: str, **fields: object) -> str:
    """Return the result of a failed request: its subtype is "success" all the same."""
    return claude_result(**{"is_error": True, "result": text, "terminal_reason": "api_error"} | fields)


def codex_failed(text: str) -> str:
    return event(type="turn.failed", error={"message": text})


def gemini_failed(text: str, kind: str = "unknown") -> str:
    return event(type="result", status="error", error={"type": kind, "message": text})


def opencode_failed(text: str, name: str = "APIError", **data: object) -> str:
    return event(type="error", sessionID="ses_1", error={"name": name, "data": {"message": text, **data}})
