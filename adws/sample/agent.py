"""
A program that plays the coding agent in `adw demo`: it writes the stream of Claude Code and calls no model.

It is called as `agent.py FOLDER PACE ARGUMENTS...`, works in the current directory, and takes PACE seconds for each
answer. It reads its task from the prompt, as an agent does: where the plan goes, and whether an earlier attempt failed.
When FOLDER has a file `stop-half-way`, the first build stops in the middle, writes its pid to `half-way`, and waits to
be killed. It imports nothing of adw.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

VERSION = "1.0 (scripted agent of adw demo)"
MODEL = "scripted"
#: Seconds after which a stopped build continues if nobody killed it.
_PATIENCE_SECONDS = 120.0

_PLAN = """\
# Greet with an exclamation mark

- `greet.py`: end the greeting with `!`; greet nobody as `you`.
- `test_greet.py` says what has to hold; it stays as it is.
"""
_README = """\
# greet

`greet(name)` says hello, with an exclamation mark. Without a name it greets `you`.
"""
_REVIEW = """\
Small, tested, as planned.

```json
{"success": true, "summary": "small, tested, as planned", "findings": []}
```
"""
_TESTED = """\
Every case of the issue has a test.

```json
{"success": true, "summary": "every case of the issue has a test", "findings": []}
```
"""


def main(arguments: list[str]) -> int:
    """Answer one call."""
    folder, pace, *rest = arguments
    if rest == ["--version"]:
        _write(VERSION)
        return 0
    if rest[:1] == ["auth"]:
        return 0
    prompt = sys.stdin.read()
    phase = os.environ.get("ADW_PHASE", "")
    work = PHASES.get(phase)
    session = next((item.partition("=")[2] for item in rest if re.match(r"--(session-id|resume)=", item)), "")
    _say({"type": "system", "subtype": "init", "session_id": session, "model": MODEL, "apiKeySource": "none"})
    if work is None:
        _end(session, f"There is nothing in the script for the phase {phase!r}.", is_error=True)
        return 1
    time.sleep(float(pace))
    answer = work(prompt, Path(folder))
    _say(
        {
            "type": "assistant",
            "session_id": session,
            "parent_tool_use_id": None,
            "message": {"id": "msg_1", "model": MODEL, "content": [{"type": "text", "text": answer}]},
        }
    )
    _end(session, answer)

    return 0


# --- the phases


def plan(prompt: str, folder: Path) -> str:
    """Write the plan to the file that the prompt names."""
    del folder
    match = re.search(r"`(specs/[^`\s]+\.md)`", prompt)
    path = Path(match[1] if match else "specs/plan.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_PLAN, encoding="utf-8")

    return f"The plan is in {path}."


def build(prompt: str, folder: Path) -> str:
    """Build the change; handle the empty name only after a test has failed for it."""
    target = Path("greet.py")
    if (folder / "stop-half-way").exists():
        _stop_half_way(target, folder)
    name = '(name or "you")' if "AssertionError" in prompt else "name"
    target.write_text(f'def greet(name):\n    return "Hello, " + {name} + "!"\n', encoding="utf-8")

    return "greet() greets nobody as you now." if name != "name" else "greet() ends with an exclamation mark now."


def review(prompt: str, folder: Path) -> str:
    """Report no findings."""
    del prompt, folder
    return _REVIEW


def document(prompt: str, folder: Path) -> str:
    """Write the README."""
    del prompt, folder
    Path("README.md").write_text(_README, encoding="utf-8")

    return "README.md says what greet() does."


def lint(prompt: str, folder: Path) -> str:
    """Fix what a check reported."""
    return build(prompt, folder) if "AssertionError" in prompt else "There is nothing to fix."


def test(prompt: str, folder: Path) -> str:
    """Report success; the command that runs after it does the testing."""
    del prompt, folder
    return _TESTED


PHASES: dict[str, Callable[[str, Path], str]] = {
    "plan": plan,
    "build": build,
    "lint": lint,
    "test": test,
    "review": review,
    "document": document,
}


def _stop_half_way(target: Path, folder: Path) -> None:
    target.write_text("def greet(name):\n    return ", encoding="utf-8")
    (folder / "stop-half-way").unlink()
    half_way = folder / "half-way.new"
    half_way.write_text(str(os.getpid()), encoding="ascii")
    half_way.rename(folder / "half-way")
    time.sleep(_PATIENCE_SECONDS)


# --- the stream


def _end(session: str, text: str, *, is_error: bool = False) -> None:
    _say(
        {
            "type": "result",
            "subtype": "success",
            "is_error": is_error,
            "result": text,
            "session_id": session,
            "num_turns": 1,
            "total_cost_usd": 0.0,
            "permission_denials": [],
        }
    )


def _say(event: dict[str, object]) -> None:
    _write(json.dumps(event))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
