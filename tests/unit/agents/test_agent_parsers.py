"""
What single events of an agent mean: answers, counts, refusals, and trouble that is over again.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.process.run import ProcessEnd
from tests.unit.agents.agent_cases import (
    claude_error,
    claude_result,
    codex_failed,
    event,
    gemini_failed,
    klass,
    opencode_failed,
    read,
    shown,
)

FAILED_END = ProcessEnd(exit_code=1)


def claude_said(text: str, *, number: str = "m-1", **fields: object) -> str:
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}
    message = {"id": number, "content": [{"type": "text", "text": text}], "usage": usage}

    return event(type="assistant", message=message, parent_tool_use_id=None, **fields)


CODEX_DONE = event(type="turn.completed", usage={"input_tokens": 1, "output_tokens": 1})
CODEX_SAID = event(type="item.completed", item={"type": "agent_message", "text": "Handled the rate limit."})
GEMINI_DONE = event(type="result", status="success", stats={})
OPENCODE_DONE = event(type="step_finish", sessionID="ses_1", part={"id": "p-9", "reason": "stop"})
OPENCODE_SAID = event(type="text", sessionID="ses_1", part={"text": "Handled the rate limit: 429."})
GEMINI_SAID = event(type="message", role="assistant", content="Handled the rate limit: 429.")


# --- an answer is no text of a failure -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "lines"),
    [
        ("claude", [claude_said("Invalid API key is handled now; rate limit too."), claude_result()]),
        ("claude", [claude_said("Credit balance is too low is handled."), claude_result(is_error=True, result=None)]),
        ("codex", [CODEX_SAID, CODEX_DONE]),
        ("codex", [CODEX_SAID, event(type="turn.failed")]),
        ("gemini", [GEMINI_SAID, GEMINI_DONE]),
        ("gemini", [GEMINI_SAID, event(type="result", status="error")]),
        ("opencode", [OPENCODE_SAID, OPENCODE_DONE]),
        ("opencode", [OPENCODE_SAID]),
        ("aider", ["Here is a RateLimitError: litellm.RateLimitError", "Tokens: 1k sent, 2 received."]),
    ],
)
def test_an_agent_that_speaks_of_rate_limits_did_not_run_into_one(agent, lines):
    assert klass(agent, lines, FAILED_END) == "failed"


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode"])
def test_events_in_the_tail_are_no_text_of_a_failure(agent):
    tail = 'fix the rate limit"}\n{"type":"user","text":"Invalid API key"}\n  {"x": "rate limit"'

    assert klass(agent, [], ProcessEnd(exit_code=1, tail=tail)) == "failed"
    assert klass(agent, [], ProcessEnd(exit_code=1, tail=f"{tail}\nError: Invalid API key")) == "auth"
    assert klass(agent, [], ProcessEnd(exit_code=1, tail='Error: {"message": "Invalid API key"}')) == "auth"


# --- trouble that is over --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "lines"),
    [
        (
            "claude",
            [claude_said("API Error", error="rate_limit", api_error_status=429), claude_said("ok"), claude_result()],
        ),
        (
            "claude",
            [
                event(type="rate_limit_event", rate_limit_info={"status": "rejected"}),
                claude_said("ok"),
                claude_result(),
            ],
        ),
        ("codex", [event(type="error", message="Reconnecting... 1/5 (429)"), CODEX_SAID, CODEX_DONE]),
        ("codex", [event(type="error", message="Reconnecting... 1/5 (429)"), CODEX_DONE]),
        ("codex", [codex_failed("unexpected status 500"), event(type="turn.started"), CODEX_DONE]),
        ("gemini", [event(type="error", severity="error", message="429"), GEMINI_SAID, GEMINI_DONE]),
        ("gemini", [event(type="error", severity="warning", message="Loop detected"), GEMINI_DONE]),
        ("opencode", [opencode_failed("500", statusCode=500), event(type="step_start"), OPENCODE_DONE]),
        ("aider", ["litellm.RateLimitError: slower", "Retrying in 0.2 seconds...", "Tokens: 1 sent, 1 received."]),
    ],
)
def test_trouble_that_is_over_is_none(agent, lines):
    assert klass(agent, lines) is None


@pytest.mark.parametrize(
    ("agent", "lines", "expected"),
    [
        ("claude", [claude_said("API Error: 529", error="overloaded", api_error_status=529)], "overloaded"),
        ("claude", [claude_said("no", error="server_error", api_error="connection_failed")], "network"),
        ("codex", [event(type="error", message="stream disconnected before completion")], "network"),
        ("codex", [event(type="error", message="stream disconnected"), event(type="turn.failed")], "network"),
        ("gemini", [event(type="error", severity="error", message="fetch failed")], "network"),
        (
            "gemini",
            [event(type="error", severity="error", message="fetch failed"), event(type="result", status="error")],
            "network",
        ),
    ],
)
def test_trouble_that_is_not_over_is_what_ended_it(agent, lines, expected):
    assert klass(agent, lines) == expected


# --- Claude Code -----------------------------------------------------------------------------------------------


def test_every_message_of_claude_counts_once_however_many_blocks_it_has():
    reading = read("claude", [claude_said("a"), claude_said("b"), claude_said("c", number="m-2")])

    assert reading.tokens == TokenUsage(input=20, output=10, cache_read=6, cache_write=4)
    assert (reading.turns, reading.text) == (2, "c")


def test_the_result_of_claude_counts_all_models():
    usage = {
        "claude-opus-5": {
            "inputTokens": 1,
            "outputTokens": 2,
            "cacheReadInputTokens": 3,
            "cacheCreationInputTokens": 4,
        },
        "claude-haiku-4-5": {"inputTokens": 10, "outputTokens": 20},
    }
    main_loop = {"input_tokens": 1, "output_tokens": 2}
    reading = read("claude", [claude_said("a"), claude_result(modelUsage=usage, usage=main_loop, total_cost_usd=0.5)])

    assert reading.tokens == TokenUsage(input=11, output=22, cache_read=3, cache_write=4)
    assert reading.cost_usd == 0.5


def test_the_tokens_of_a_call_of_claude_are_told_beside_its_sums_and_have_its_helpers():
    main = {"input_tokens": 10, "output_tokens": 9, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}
    sums = {"big": {"inputTokens": 70, "outputTokens": 60}}
    lines = [claude_said("a"), claude_said("helper", number="m-2"), claude_result(usage=main, modelUsage=sums)]

    reading = read("claude", lines)

    assert reading.tokens == TokenUsage(input=70, output=60)
    assert reading.own_tokens == TokenUsage(input=20, output=10, cache_read=6, cache_write=4)
    assert read("claude", [claude_said("a"), claude_result(usage=main, modelUsage={})]).own_tokens is None


def test_what_a_helper_of_claude_says_is_not_its_answer():
    nested = event(
        type="assistant", message={"id": "m-2", "content": [{"text": "from a helper"}]}, parent_tool_use_id="t-1"
    )

    assert read("claude", [claude_said("mine"), nested]).text == "mine"


def test_an_answer_in_the_form_that_was_asked_for_is_kept():
    reading = read("claude", [claude_result(structured_output={"title": "x", "big": float("inf"), "parts": [1, None]})])

    assert reading.structured == {"title": "x", "big": "inf", "parts": [1, None]}
    assert read("claude", [claude_result(structured_output="x")]).structured is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("completed", None), ("prompt_too_long", "context"), ("max_turns", "turns"), ("something_new", None)],
)
def test_an_end_of_claude_that_is_no_good_one_is_a_failure_whatever_else_it_says(reason, expected):
    assert klass("claude", [claude_result(terminal_reason=reason)]) == expected


@pytest.mark.parametrize("reason", ["api_error", "model_error"])
def test_a_failed_request_of_claude_of_which_nothing_is_known_is_the_service_s_failure(reason):
    line = claude_result(is_error=True, subtype="error_during_execution", terminal_reason=reason, result="Odd.")

    assert klass("claude", [line], FAILED_END) == "server"
    assert klass("claude", [line.replace("Odd.", "socket hang up")], FAILED_END) == "network"


def test_a_refusal_that_claude_tells_on_the_way_is_kept():
    lines = [event(type="system", subtype="permission_denied", tool_name="Write"), claude_result()]

    assert read("claude", lines).denials == ("Write",)
    assert shown("claude", lines) == ["not allowed: Write", "done"]


@pytest.mark.parametrize(
    ("source", "model", "is_subscription"),
    [
        ("none", "claude-sonnet-5", True),
        ("ANTHROPIC_API_KEY", "claude-sonnet-5", False),
        ("none", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", None),
        ("none", "claude-sonnet-4-5@20250929", None),
        ("", "claude-sonnet-5", None),
    ],
)
def test_a_log_in_of_claude_is_paid_by_the_month_and_a_cloud_of_others_is_not_known(source, model, is_subscription):
    line = event(type="system", subtype="init", session_id="s-1", apiKeySource=source, model=model)

    assert read("claude", [line]).is_subscription is is_subscription


def test_an_error_that_claude_tells_beside_a_good_word_is_the_error():
    lines = [claude_said("x"), claude_error("Prompt is too long", terminal_reason="prompt_too_long")]

    assert klass("claude", lines) == "context"


# --- Codex -----------------------------------------------------------------------------------------------------


def test_codex_counts_what_came_from_the_cache_once():
    usage = {
        "input_tokens": 100,
        "cached_input_tokens": 60,
        "cache_write_input_tokens": 10,
        "output_tokens": 7,
        "reasoning_output_tokens": 5,
    }
    reading = read("codex", [event(type="turn.completed", usage=usage)])

    assert reading.tokens == TokenUsage(input=30, output=7, cache_read=60, cache_write=10)


# --- Gemini CLI ------------------------------------------------------------------------------------------------


def test_pieces_of_an_answer_of_gemini_are_put_together():
    def piece(text: str) -> str:
        return event(type="message", role="assistant", content=text, delta=True)

    tool = event(type="tool_use", tool_name="read_file", tool_id="t-1", parameters={"file_path": "a.py"})
    asked = event(type="message", role="user", content="question")
    reading = read("gemini", [asked, piece("I "), piece("look."), tool, piece("It "), piece("works.")])

    assert (reading.text, reading.turns) == ("It works.", 1)
    assert read("gemini", [piece("a"), event(type="message", role="assistant", content="b")]).text == "b"


def test_an_exit_code_of_gemini_says_nothing_against_a_status_in_the_answer():
    failed = agents_base.profile("gemini").failure(
        read("gemini", [gemini_failed('{"code":429}')]), ProcessEnd(exit_code=145)
    )

    assert failed is not None
    assert failed.http_status == 429


# --- OpenCode --------------------------------------------------------------------------------------------------


def test_steps_of_opencode_add_up_and_none_counts_twice():
    def step(number: str, cost: object) -> str:
        tokens = {"input": 10, "output": 5, "reasoning": 2, "cache": {"read": 3, "write": 1}}
        return event(type="step_finish", part={"id": number, "reason": "tool-calls", "cost": cost, "tokens": tokens})

    reading = read("opencode", [step("p-1", 0.25), step("p-1", 0.25), step("p-2", 0.5), step("p-3", None)])

    assert reading.cost_usd == 0.75
    assert reading.tokens == TokenUsage(input=30, output=21, cache_read=9, cache_write=3)
    assert reading.turns == 3
    assert klass("opencode", [step("p-1", 0.25)]) == "bad_output"
    assert read("opencode", [step("p-1", "free")]).cost_usd is None


# --- aider -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "tokens", "cost"),
    [
        ("Tokens: 648 sent, 11 received.", TokenUsage(input=648, output=11), None),
        (
            "Tokens: 12k sent, 1.2k received. Cost: $0.04 message, $0.10 session.",
            TokenUsage(input=12_000, output=1_200),
            0.10,
        ),
        (
            "Tokens: 1,024 sent, 24 cache write, 500 cache hit, 3M received. Cost: $1.5 message, $2.5 session.",
            TokenUsage(input=500, output=3_000_000, cache_read=500, cache_write=24),
            2.5,
        ),
        ("Tokens: 1.2.3 sent, ,, received.", TokenUsage(), None),
    ],
)
def test_counts_of_aider_are_read(line, tokens, cost):
    reading = read("aider", [line])

    assert (reading.tokens, reading.cost_usd, reading.turns) == (tokens, cost, 1)


def test_what_aider_wrote_after_an_answer_says_nothing_about_a_failure():
    end = ProcessEnd(exit_code=1, tail="Invalid API key is handled now")

    assert klass("aider", ["Tokens: 1 sent, 1 received."], end) == "failed"
    assert klass("aider", [], end) == "auth"


# --- single events ---------------------------------------------------------------------------------------------

_INTERRUPTED = {"content": [{"type": "text", "text": "[Request interrupted by user]"}]}
_ALLOWED = {"status": "allowed", "rateLimitType": "five_hour", "isUsingOverage": True}
_DECLINED = {"type": "command_execution", "command": "rm -rf /", "status": "declined"}
_CHANGED = {"type": "file_change", "changes": [{"kind": "add", "path": "a.py"}]}


@pytest.mark.parametrize(
    ("agent", "line", "field", "value"),
    [
        ("claude", event(type="user", parent_tool_use_id="t1", message=_INTERRUPTED), "is_error", False),
        ("claude", event(type="rate_limit_event", rate_limit_info=_ALLOWED), "is_subscription", False),
        ("claude", event(type="system", subtype="init", session_id="--resume"), "session_id", ""),
        ("claude", claude_result(total_cost_usd=True), "cost_usd", None),
        ("claude", claude_result(total_cost_usd=-1), "cost_usd", None),
        ("claude", claude_result(total_cost_usd=1e300), "cost_usd", None),
        ("codex", event(type="item.completed", item=_DECLINED), "denials", ("rm -rf /",)),
        ("codex", event(type="item.completed", item=_CHANGED), "text", ""),
    ],
)
def test_a_single_event_says(agent, line, field, value):
    assert getattr(read(agent, [line]), field) == value


def test_the_newest_count_of_a_message_of_claude_replaces_the_one_before():
    def counted(number: int) -> str:
        return event(type="assistant", message={"id": "m-1", "usage": {"output_tokens": number}})

    assert read("claude", [claude_said("a", number="m-0"), counted(1), counted(30)]).tokens.output == 35
