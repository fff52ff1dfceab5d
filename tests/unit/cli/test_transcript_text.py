"""What `adw logs` shows of the streams that agents write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adws.adw_modules.agents import transcript

STREAMS = Path(__file__).parents[2] / "data" / "agent_streams"


def shown(lines, **options):
    return [line for entry in transcript.entries(lines) for line in transcript.lines_of(entry, **options)]


@pytest.mark.parametrize(
    ("name", "call", "end"),
    [
        ("claude", "  Write hello_0.txt -> ok: File created successfully at: hello_0.txt (file state", "done, 2 turns"),
        ("codex", "  Bash echo hello from stub > hello.txt -> ok", "done"),
        ("gemini", "  write_file hello.txt -> ok", "done"),
        ("opencode", "  write hello_0.txt -> ok: Wrote file successfully.", "agent: Done: wrote hello file (stub)."),
    ],
)
def test_every_agent_has_one_line_for_each_call_of_a_tool_and_what_it_said(name, call, end):
    lines = (STREAMS / f"{name}_stream.jsonl").read_text().splitlines()
    told = shown(lines, worktree="/repo")

    assert transcript.is_stream(lines[0])
    assert [line for line in told if line.startswith(call)]
    assert any(line.startswith("agent: Done: wrote hello") for line in told)
    assert told[-1] == end
    assert not any("/repo" in line for line in told)


def claude(*blocks, kind="assistant", parent=None):
    return json.dumps({"type": kind, "parent_tool_use_id": parent, "message": {"content": list(blocks)}})


def test_long_results_and_texts_are_folded_with_a_count_and_shown_whole_on_request():
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "pytest -q"}}
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "1 failed\n" + "x\n" * 40}
    said = {"type": "text", "text": "\n".join(map(str, range(20)))}
    lines = [claude(call), claude(result, kind="user"), claude(said)]

    folded, full = shown(lines), shown(lines, is_full=True)

    assert folded[0] == "  Bash pytest -q -> failed: 1 failed (+40 lines)"
    assert folded[1:3] == ["agent: 0", "  1"]
    assert folded[-1] == "  ... 10 more lines"
    assert full[:3] == ["  Bash pytest -q -> failed", "    1 failed", "    x"]
    assert (len(full), full[-1]) == (42 + 20, "  19")


def test_results_belong_to_their_calls_in_whatever_order_they_come():
    calls = [{"type": "tool_use", "id": name, "name": "Read", "input": {"file_path": name}} for name in "abc"]
    results = [{"type": "tool_result", "tool_use_id": name, "content": [{"text": f"of {name}"}]} for name in "ba"]

    told = shown([claude(*calls, parent="p"), claude(*results, kind="user")])

    assert told == [
        "  subagent: Read b -> ok: of b",
        "  subagent: Read a -> ok: of a",
        "  subagent: Read c -> no result",
    ]


def test_what_is_no_stream_is_left_to_be_shown_as_it_is():
    assert not transcript.is_stream("Aider v0.80")
    assert not transcript.is_stream('{"type": 7}')
    assert shown(["no JSON", "", '{"type": "system"}', '{"type": "assistant", "message": 3}']) == ["no JSON"]
