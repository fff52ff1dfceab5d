"""
Recorded output of the real agents is read right, and so is what is left of it when anything goes wrong on the way.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.base import MAX_LINE, MAX_SHOWN
from adws.adw_modules.errors import FailedRun
from adws.adw_modules.process.run import ProcessEnd
from tests.unit.agents.agent_cases import (
    GOOD_END,
    RECORDED,
    STREAMS,
    SUCCESSES,
    agent_of,
    claude_result,
    event,
    facts,
    klass,
    read,
    recorded,
    shown,
)

#: What the last sign of success is in each recorded success; without it there is none.
EVIDENCE = {
    "aider": "Tokens: ",
    "claude": '"type":"result"',
    "codex": '"type":"turn.completed"',
    "gemini": '"type":"result"',
    "opencode": '"reason":"stop"',
}

#: Those in which the model never got to say anything.
UNANSWERED = {
    *("claude_400", "claude_401", "claude_429", "claude_500", "claude_connrefused", "claude_SIGTERM"),
    "claude_SIGINT",
    *("claude_usage_limit", "codex_429", "codex_503"),
}


def has_evidence(agent: str, lines: list[str]) -> bool:
    return any(EVIDENCE[agent] in line for line in lines)


# --- as recorded -----------------------------------------------------------------------------------------------


def test_every_recorded_stream_has_its_line_in_the_table():
    assert {path.name for path in STREAMS.iterdir()} - {"README.md"} == set(RECORDED)


@pytest.mark.parametrize("stream", sorted(RECORDED))
def test_a_model_has_answered_where_its_words_or_tokens_are_in_the_stream(stream):
    parser = agents_base.profile(agent_of(stream)).parser()
    answered = []
    for line in recorded(stream):
        parser.line(line)
        answered.append(parser.reading.is_answered)

    assert any(answered) is (stream.partition(".")[0] not in UNANSWERED)


@pytest.mark.parametrize("stream", sorted(RECORDED))
def test_recorded_streams_are_classified_right(stream):
    code, expected = RECORDED[stream]

    assert klass(agent_of(stream), recorded(stream), ProcessEnd(exit_code=code)) == expected


@pytest.mark.parametrize("stream", [name for name in sorted(RECORDED) if RECORDED[name][1] not in {None, "killed"}])
def test_a_recorded_failure_is_one_whatever_the_exit_code_says(stream):
    code, expected = RECORDED[stream]

    assert code != 0
    assert klass(agent_of(stream), recorded(stream)) == expected


@pytest.mark.parametrize("agent", agents_base.names())
@pytest.mark.parametrize("end", [ProcessEnd(exit_code=None, signal=2), ProcessEnd(exit_code=130)])
def test_the_end_of_any_agent_by_sigint_is_told_as_such(agent, end):
    result = facts(agent, [], end)

    assert result is not None
    assert result.klass == "interrupted"
    assert "it was interrupted from outside (SIGINT)" in result.message


@pytest.mark.parametrize("stream", SUCCESSES)
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ProcessEnd(exit_code=1), "failed"),
        (ProcessEnd(exit_code=143), "killed"),
        (ProcessEnd(exit_code=None, signal=9), "killed"),
        (ProcessEnd(exit_code=None), "failed"),
        (ProcessEnd(exit_code=0, timed_out="wall"), "timeout"),
        (ProcessEnd(exit_code=None, signal=15, timed_out="after_result"), None),
    ],
)
def test_a_good_result_needs_a_good_end_unless_only_the_end_was_missing(stream, end, expected):
    assert klass(agent_of(stream), recorded(stream), end) == expected


@pytest.mark.parametrize(
    ("stream", "session", "model", "cost", "used"),
    [
        ("claude_stream.jsonl", "74a13641-132c-4dbe-bfdb-4df3ef8951db", "claude-opus-5-5", 0.0016, (200, 40, 2)),
        ("claude_max_turns.jsonl", "2d032258-1a05-4839-992c-ba96164272fe", "claude-opus-5-5", 0.0016, (200, 40, 3)),
        ("codex_stream.jsonl", "01a1e1d4-6419-7162-8622-e37afbabc472", "", None, (200, 40, 1)),
        ("gemini_stream.jsonl", "3fc16d9c-130b-4105-819f-42058dd009e3", "gemini-2.5-pro", None, (200, 40, 1)),
        ("opencode_stream.jsonl", "ses_e1e29bf51ffeM2QomWTC8PpbS8", "", 0.0012, (200, 40, 2)),
        ("aider_stream.txt", "", "openai/stub", None, (648, 11, 1)),
    ],
)
def test_recorded_streams_say_what_was_used(stream, session, model, cost, used):
    reading = read(agent_of(stream), recorded(stream))
    sent, received, turns = used

    assert (reading.session_id, reading.model, reading.turns) == (session, model, turns)
    assert reading.cost_usd == (None if cost is None else pytest.approx(cost))
    assert reading.tokens == TokenUsage(input=sent, output=received)


@pytest.mark.parametrize("stream", sorted(RECORDED))
def test_what_is_shown_of_a_stream_is_short_and_has_its_last_word(stream):
    lines = shown(agent_of(stream), recorded(stream))

    assert lines
    assert all(len(line) <= MAX_SHOWN and line.isprintable() for line in lines)
    if stream == "claude_stream.jsonl":
        assert lines[1:] == ["Write /repo/hello_0.txt", "Done: wrote hello file (stub).", "done"]


# --- cut off ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", SUCCESSES)
def test_a_stream_that_ends_early_is_never_a_success(stream):
    agent, lines = agent_of(stream), recorded(stream)
    for count in range(len(lines)):
        # aider's evidence is the line about tokens, and what follows it is about commits.
        expected = None if has_evidence(agent, lines[:count]) else "bad_output"
        assert klass(agent, lines[:count]) == expected, count
        assert expected == "bad_output" or agent == "aider"


@pytest.mark.parametrize("stream", sorted(RECORDED))
def test_a_stream_cut_at_any_byte_is_read_without_an_error(stream, rng):
    agent, payload = agent_of(stream), (STREAMS / stream).read_bytes()
    for position in sorted(rng.randrange(len(payload)) for _ in range(200)):
        lines = payload[:position].decode(errors="replace").splitlines()
        # The last line may be whole although its line break is missing.
        may_succeed = RECORDED[stream][1] is None and has_evidence(agent, lines)
        failed = agents_base.profile(agent).failure(read(agent, lines), GOOD_END)
        assert failed is not None or may_succeed, position
        assert klass(agent, lines, ProcessEnd(exit_code=143)) is not None, position


# --- more than was expected ------------------------------------------------------------------------------------

STRANGE_LINES = {
    "unknown type": event(type="something_new", session_id=7, message=None),
    "unknown subtype": event(type="system", subtype="something_new"),
    "no type": "{}",
    "type of no text": event(type=["result"]),
    "a list": "[1, 2]",
    "a number": "42",
    "no JSON": "Loaded cached credentials.",
    "blank": "   ",
    "binary": "\x00\x01\ufffd\x7f\udcff\x1b[2J",
    "half": '{"type":"resu',
    "deep": "[" * 100_000,
    "deep object": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "giant number": '{"type":"result","total_cost_usd":' + "9" * 5_000 + "}",
    "not a number": '{"type":"something","x":NaN}',
    "10 MB": event(type="user", message={"content": "x" * 10_000_000}),
    "10 MB of no JSON": "x" * 10_000_000,
}


@pytest.mark.parametrize("stream", [*SUCCESSES, "claude_usage_limit.jsonl", "codex_429.jsonl"])
@pytest.mark.parametrize("strange", STRANGE_LINES)
def test_strange_lines_anywhere_change_nothing(stream, strange):
    agent, (code, expected) = agent_of(stream), RECORDED[stream]
    lines = recorded(stream)
    places = range(len(lines) + 1) if len(STRANGE_LINES[strange]) < MAX_LINE else (0, len(lines))
    for place in places:
        mixed = [*lines[:place], STRANGE_LINES[strange], *lines[place:]]
        assert klass(agent, mixed, ProcessEnd(exit_code=code)) == expected, place


@pytest.mark.parametrize("length", [MAX_LINE - 100, MAX_LINE, MAX_LINE + 1])
def test_the_result_after_a_line_that_is_too_long_is_read(length):
    long = event(type="user", content="x" * length)[:length]

    assert read("claude", [long, claude_result()]).has_result
    assert read("aider", ["x" * length, "Tokens: 1 sent, 1 received."]).turns == 1


@pytest.mark.parametrize("stream", sorted(RECORDED))
def test_lines_that_come_twice_count_once(stream):
    agent, (code, expected) = agent_of(stream), RECORDED[stream]
    doubled = [line for line in recorded(stream) for _ in range(2)]
    once, twice = read(agent, recorded(stream)), read(agent, doubled)

    assert klass(agent, doubled, ProcessEnd(exit_code=code)) == expected
    assert (twice.tokens, twice.cost_usd) == (once.tokens, once.cost_usd)


# --- fields of other types -------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("success"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def paths_of(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the paths of everything inside *value*."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()

    return [path] * bool(path) + [result for key, item in inside for result in paths_of(item, (*path, key))]


def changed(value: object, path: tuple[object, ...], new: object) -> object:
    copy = json.loads(json.dumps(value))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new

    return copy


@pytest.mark.parametrize("stream", [name for name in sorted(RECORDED) if name.endswith(".jsonl")])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_field_of_any_other_type_raises_nothing(stream, data):
    agent, lines = agent_of(stream), recorded(stream)
    number = data.draw(st.integers(0, len(lines) - 1))
    parsed = json.loads(lines[number])
    path = data.draw(st.sampled_from(paths_of(parsed)))
    lines[number] = json.dumps(changed(parsed, path, data.draw(JSON)))
    reading = read(agent, lines)
    failed = agents_base.profile(agent).failure(reading, GOOD_END)

    assert failed is None or isinstance(failed, FailedRun)
    assert reading.tokens.total >= 0
    json.dumps(reading.structured, allow_nan=False)
    (reading.text + reading.model + reading.session_id + reading.version).encode()


@pytest.mark.parametrize("value", [None, True, 0, 1, "false", "no", [], {}])
def test_only_a_plain_false_clears_a_result_of_claude_from_error(value):
    assert klass("claude", [claude_result(is_error=value)]) is not None


@pytest.mark.parametrize("value", [None, True, 0, "Success", "ok", "", [], {}])
def test_only_the_word_success_is_one(value):
    assert klass("claude", [claude_result(subtype=value)]) is not None
    assert klass("gemini", [event(type="result", status=value)]) is not None


@settings(max_examples=200, deadline=None)
@given(agent=st.sampled_from(agents_base.names()), lines=st.lists(st.text(max_size=200), max_size=5))
def test_any_text_is_read_without_an_error_and_is_no_success(agent, lines):
    assert klass(agent, lines) is not None
