"""
An agent that does what a scenario says: a program that speaks the streams of Claude Code and of Codex.

Called as `fake_agent.py KIND FOLDER ARGUMENTS...`. FOLDER holds `scenario.json`: a list of turns, one for each start,
the last one for all that follow. What each start was given (arguments, prompt, variables, directory) is added to
`calls.jsonl` there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

#: Never ends by itself, and writes down who it is.
_CHILD = "import os, signal, sys\nopen(sys.argv[1], 'a').write(f'{os.getpid()}\\n')\nwhile True: signal.pause()"


def main() -> None:
    """Play one turn."""
    kind, folder, arguments = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if arguments == ["--version"]:
        emit_text(f"9.9.9 (fake {kind})")
        return
    if arguments in (["auth", "status"], ["login", "status"]):
        sys.exit(0 if not (folder / "logged-out").exists() else 1)
    turns = json.loads((folder / "scenario.json").read_text())
    calls = folder / "calls.jsonl"
    number = len(calls.read_text().splitlines()) if calls.exists() else 0
    prompt = sys.stdin.read()
    call = {"argv": arguments, "prompt": prompt, "env": dict(os.environ), "cwd": str(Path.cwd())}
    with calls.open("a") as file:
        file.write(json.dumps(call) + "\n")
    turn = turns[min(number, len(turns) - 1)]
    play = Claude(arguments) if kind == "claude" else Codex(arguments)
    perform(play, turn, folder)


def perform(play: Claude | Codex, turn: dict, folder: Path) -> None:
    """Do what *turn* says, in the order of an agent's work."""
    refuse(play, turn)
    hang_at("before", turn, folder)
    play.begin(turn)
    work(turn, folder)
    hang_at("during", turn, folder)
    if turn.get("line"):
        emit_text("x" * turn["line"])
    if turn.get("signal"):
        os.kill(os.getpid(), turn["signal"])
    if not turn.get("no_result"):
        play.result(turn)
    hang_at("after", turn, folder)
    sys.exit(turn.get("exit", 0))


def refuse(play: Claude | Codex, turn: dict) -> None:
    """End at once when the turn says so: without a word on the stream, or for a conversation that is not known."""
    if turn.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if turn.get("stderr"):
        sys.stderr.write(turn["stderr"] + "\n")
        sys.stderr.flush()
    if turn.get("knows") is False:
        play.unknown_session()
    if turn.get("knows") is False or turn.get("mute"):
        sys.exit(turn.get("exit", 1))


def work(turn: dict, folder: Path) -> None:
    """Do what an agent does between its first word and its result."""
    for event in turn.get("events", []):
        emit(event)
    for line in turn.get("do", []):
        subprocess.run(["/bin/sh", "-c", line], check=True)
    if "result_file" in turn:
        text = turn["result_file"]
        Path(os.environ["ADW_RESULT_FILE"]).write_text(text if isinstance(text, str) else json.dumps(text))
    leave_behind(turn, folder)


def leave_behind(turn: dict, folder: Path) -> None:
    """Start what does not end with us: a child, and one that has left our session and our group."""
    pids = str(folder / "pids")
    for kind in turn.get("leaves", []):
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, pids],
            start_new_session=kind == "daemon",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    while turn.get("leaves") and len(lines_of(pids)) < len(turn["leaves"]):
        pass  # until every one has said who it is


def lines_of(path: str) -> list[str]:
    """Return the lines of a file that may not be there yet."""
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def hang_at(when: str, turn: dict, folder: Path) -> None:
    """Say that we hang, and do so for ever, when the turn says so."""
    if turn.get("hang") != when:
        return
    up = folder / "up"
    if up.exists():
        with up.open("w") as file:
            file.write("up\n")
    while True:
        signal.pause()


def emit(event: dict) -> None:
    """Say one event."""
    emit_text(json.dumps(event))


def emit_text(text: str) -> None:
    """Say one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def option(arguments: list[str], *names: str) -> str:
    """Return the value of `--name=value`."""
    return next((item.partition("=")[2] for item in arguments if item.partition("=")[0] in names), "")


class Claude:
    """The stream of Claude Code."""

    def __init__(self, arguments: list[str]) -> None:
        self.session = option(arguments, "--resume", "--session-id")
        self.model = option(arguments, "--model") or "claude-sonnet-5"

    def unknown_session(self) -> None:
        """Say that the conversation is not known."""
        words = f"No conversation found with session ID: {self.session}"
        nothing = {"usage": {}, "modelUsage": {}, "total_cost_usd": 0, "num_turns": 0, "result": None}
        self.result({"result": {"subtype": "error_during_execution", "is_error": True, "errors": [words], **nothing}})

    def begin(self, turn: dict) -> None:
        """Say who speaks."""
        emit(
            {
                "type": "system",
                "subtype": "init",
                "session_id": self.session,
                "model": self.model,
                "apiKeySource": "ANTHROPIC_API_KEY",
                "claude_code_version": "9.9.9",
            }
        )
        content = [{"type": "text", "text": turn.get("say", "I look at it.")}]
        usage = {"input_tokens": turn.get("tokens", 100), "output_tokens": 10}
        message = {"id": "msg_1", "model": self.model, "content": content, "usage": usage}
        emit({"type": "assistant", "session_id": self.session, "parent_tool_use_id": None, "message": message})

    def result(self, turn: dict) -> None:
        """Say how it ended."""
        usual = {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": turn.get("answer", "All done."),
            "session_id": self.session,
            "num_turns": 1,
            "total_cost_usd": 0.25,
            "permission_denials": [],
            "usage": {"input_tokens": turn.get("tokens", 100), "output_tokens": 10},
            "modelUsage": {self.model: {"inputTokens": turn.get("tokens", 100), "outputTokens": 10, "costUSD": 0.25}},
        }
        emit({**usual, **turn.get("result", {})})


class Codex:
    """The stream of `codex exec --json`."""

    def __init__(self, arguments: list[str]) -> None:
        place = arguments.index("resume") + 1 if "resume" in arguments else None
        resumed = [item for item in arguments[place:] if not item.startswith("-")] if place else []
        self.session = resumed[0] if resumed else "0199a213-81c0-7800-8aa1-bbab2a035a53"

    def unknown_session(self) -> None:
        """Say that the conversation is not known."""
        sys.stderr.write(f"Error: no rollout found for thread id {self.session}\n")

    def begin(self, turn: dict) -> None:
        """Say who speaks."""
        emit({"type": "thread.started", "thread_id": self.session})
        emit({"type": "turn.started"})
        said = {"id": "item_1", "type": "agent_message", "text": turn.get("say", "I look at it.")}
        emit({"type": "item.completed", "item": said})

    def result(self, turn: dict) -> None:
        """Say how it ended."""
        said = {"id": "item_2", "type": "agent_message", "text": turn.get("answer", "All done.")}
        if "fails" in turn:
            emit({"type": "error", "message": turn["fails"]})
            emit({"type": "turn.failed", "error": {"message": turn["fails"]}})
            return
        emit({"type": "item.completed", "item": said})
        usage = {"input_tokens": 100, "cached_input_tokens": 0, "output_tokens": 10, "reasoning_output_tokens": 0}
        emit({"type": "turn.completed", "usage": usage})


if __name__ == "__main__":
    main()
