"""
Every kind of failure that an agent can report, for each agent that has a sign of it, ends in the right class.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import FailedRun, RunFailed
from adws.adw_modules.process.run import ProcessEnd
from tests.unit.agents.agent_cases import (
    claude_error,
    claude_result,
    codex_failed,
    event,
    facts,
    gemini_failed,
    klass,
    opencode_failed,
)

#: What Codex tells of a request that was refused as wrong: the body of the answer, and no status.
WRONG_BODY = event(type="error", error={"type": "invalid_request_error", "message": "no such field", "code": None})
LONG_BODY = event(error={"type": "invalid_request_error", "message": "too long", "code": "context_length_exceeded"})
STARTED = event(type="system", subtype="init", session_id="s-1", model="claude-sonnet-4-5", apiKeySource="none")
REJECTED = event(
    type="rate_limit_event",
    rate_limit_info={"status": "rejected", "resetsAt": 1794794537, "rateLimitType": "five_hour"},
)
UNPAID = event(
    type="rate_limit_event",
    rate_limit_info={"status": "rejected", "rateLimitType": "overage", "errorCode": "credits_required"},
)
TOKENS = "Tokens: 1.2k sent, 40 received. Cost: $0.01 message, $0.01 session."
STEP = event(type="step_finish", sessionID="ses_1", part={"id": "p", "reason": "stop"})


def sign(agent: str, lines: list[str], code: int = 1, tail: str = "") -> tuple[str, list[str], int, str]:
    """Return an agent, lines of its output, its exit code, and what its error output says."""
    return agent, lines, code, tail


#: Class of failure -> the signs of it.
SIGNS = {
    "quota_window": [
        sign("claude", [STARTED, REJECTED, claude_error("Limit reached", api_error_status=429)]),
        sign("claude", [STARTED, REJECTED], 143),
        sign("claude", [claude_error("You've hit your session limit · resets 3:45pm")]),
        sign("claude", [claude_error("You've hit your weekly limit · resets Mon 12:00am")]),
        sign("claude", [claude_error("You've hit your Opus limit · resets 3:45pm", api_error_status=429)]),
        sign("claude", [claude_error("Claude AI usage limit reached|1794794537")]),
        sign("codex", [codex_failed("You've hit your usage limit. Try again at 3:05 PM.")]),
        sign("codex", [codex_failed("You've hit your usage limit for gpt-5. Try again later.")]),
        sign("gemini", [gemini_failed("[API Error: You have exhausted your daily quota on this model.]")], 173),
        sign("gemini", [gemini_failed("the day is over", "TerminalQuotaError")], 173),
        sign("gemini", [gemini_failed("Quota exceeded for RequestsPerDay, QUOTA_EXHAUSTED")], 173),
        sign("opencode", [opencode_failed("Monthly usage limit reached", statusCode=429)]),
        sign("opencode", [opencode_failed("no", statusCode=429, responseBody='{"type":"GoUsageLimitError"}')]),
    ],
    "rate_limited": [
        sign("claude", [claude_error("API Error: Request rejected (429) · slow down", api_error_status=429)]),
        sign("claude", [claude_error("API Error: Server is temporarily limiting requests (not your usage limit)")]),
        sign("codex", [codex_failed("exceeded retry limit, last status: 429 Too Many Requests")]),
        sign("gemini", [gemini_failed("RESOURCE_EXHAUSTED: RequestsPerMinute. Please retry in 34.07s")], 173),
        sign("gemini", [gemini_failed("slower", "RetryableQuotaError")], 173),
        sign("opencode", [opencode_failed("Too many requests", statusCode=429)]),
        sign("aider", ["litellm.RateLimitError: RateLimitError: slower", "Retrying in 0.2 seconds..."], 0),
    ],
    "overloaded": [
        sign("claude", [claude_error("API Error: Repeated 529 Overloaded errors", api_error_status=529)]),
        sign("claude", [claude_error("API Error: Repeated 529 Overloaded errors")]),
        sign("codex", [codex_failed("Selected model is at capacity. Please try a different model.")]),
        sign("codex", [codex_failed("We're currently experiencing high demand, which may cause errors.")]),
        sign("gemini", [gemini_failed("[API Error: The model is overloaded]")], 247),
        sign("opencode", [opencode_failed("Overloaded", statusCode=529)]),
        sign("aider", ["litellm.ServiceUnavailableError: down"], 0),
    ],
    "billing": [
        sign("claude", [claude_error("Credit balance is too low", api_error_status=400)]),
        sign("claude", [UNPAID, claude_error("not included", api_error_status=429)]),
        sign("claude", [claude_error("spend limit reached (daily; resets 2026-08-09 00:00 UTC)")]),
        sign("codex", [codex_failed("Your workspace is out of credits. Ask an owner to add more.")]),
        sign("codex", [codex_failed("You hit your spend cap for this month")]),
        sign("codex", [codex_failed("Quota exceeded. Check your plan and billing details.")]),
        sign("codex", [codex_failed("To use Codex with your ChatGPT plan, upgrade to Plus: https://x")]),
        sign("opencode", [opencode_failed("Payment required", statusCode=402)]),
        sign("aider", ['litellm.APIError: {"error":{"message":"Insufficient credits","code":402}}'], 0),
    ],
    "auth": [
        sign("claude", [claude_error("Invalid API key · Fix external API key", api_error_status=401)]),
        sign("claude", [claude_error("Not logged in · Please run /login")]),
        sign("claude", [claude_error("OAuth token has expired · Please obtain a new token")]),
        sign("claude", [], 1, "Not logged in · Please run /login"),
        sign("codex", [codex_failed("unexpected status 401 Unauthorized: Missing bearer, url: https://x")]),
        sign("gemini", [gemini_failed("no key", "FatalAuthenticationError")], 41),
        sign("gemini", [], 41, "Please set an Auth method"),
        sign("gemini", [gemini_failed("[API Error: refused]")], 145),
        sign("opencode", [opencode_failed("no key", "ProviderAuthError")]),
        sign("opencode", [opencode_failed("invalid x-api-key", statusCode=401)]),
        sign("aider", ["litellm.AuthenticationError: AuthenticationError: bad key"], 0),
    ],
    "context": [
        sign("codex", [codex_failed(LONG_BODY)]),
        sign("claude", [claude_error("Prompt is too long", api_error_status=400)]),
        sign("claude", [claude_result(is_error=True, terminal_reason="prompt_too_long")]),
        sign("codex", [codex_failed("Codex ran out of room in the model's context window. Start a new thread")]),
        sign("codex", [codex_failed("unexpected status 400 Bad Request: context_length_exceeded")]),
        sign("gemini", [gemini_failed('{"code":400} the input exceeds the maximum context length')], 144),
        sign("opencode", [opencode_failed("too long", "ContextOverflowError")]),
        sign("opencode", [event(type="step_finish", part={"id": "p", "reason": "length"})], 0),
        sign("aider", ["litellm.ContextWindowExceededError: too long"], 0),
        sign("aider", ["Model openai/stub has hit a token limit!"], 0),
    ],
    "budget": [
        sign("claude", [claude_result(is_error=True, subtype="error_max_budget_usd")]),
        sign("claude", [claude_result(is_error=True, terminal_reason="budget_exhausted")]),
    ],
    "turns": [
        sign("claude", [claude_result(is_error=True, subtype="error_max_turns")]),
        sign("gemini", [gemini_failed("Reached max session turns for this session.", "FatalTurnLimitedError")], 53),
        sign("gemini", [], 53, "Reached max session turns for this session."),
    ],
    "network": [
        sign("claude", [claude_error("API Error: Connection refused", api_error="connection_failed")]),
        sign("claude", [claude_error("API Error: Unable to connect to API (ECONNRESET)")]),
        sign("codex", [codex_failed("stream disconnected before completion: error sending request")]),
        sign("gemini", [gemini_failed("[API Error: fetch failed]")]),
        sign(
            "opencode", [opencode_failed("Unable to connect. Is the computer able to access the url?", "UnknownError")]
        ),
        sign("aider", ["litellm.APIConnectionError: Connection error"], 0),
    ],
    "tls": [
        sign("claude", [claude_error("API Error: self-signed certificate in certificate chain")]),
    ],
    "server": [
        sign("claude", [claude_error("API Error: 500 Internal server error.", api_error_status=500)]),
        sign(
            "claude",
            [
                claude_result(
                    is_error=True, subtype="error_during_execution", api_error_status=502, errors=["bad gateway"]
                )
            ],
        ),
        sign("codex", [codex_failed("unexpected status 500 Internal Server Error: oops")]),
        sign("gemini", [gemini_failed("[API Error: oops]")], 244),
        sign("opencode", [opencode_failed("oops", statusCode=500)]),
        sign("aider", ["litellm.InternalServerError: oops"], 0),
    ],
    "timeout": [
        sign("claude", [claude_error("Request timed out")]),
        sign("aider", ["litellm.Timeout: no answer"], 0),
    ],
    "invalid": [
        sign("codex", [codex_failed(WRONG_BODY)]),
        sign("codex", [codex_failed(event(detail="Unsupported parameter"))]),
        sign("claude", [claude_error("API Error: 404 model: nope", api_error_status=404)]),
        sign("claude", [], 1, "error: unknown option '--bogus'"),
        sign("codex", [codex_failed("unexpected status 422 Unprocessable Entity: no")]),
        sign("codex", [], 2, "error: unexpected argument '--bogus' found"),
        sign("codex", [], 1, "Not inside a trusted directory and --skip-git-repo-check was not specified."),
        sign("gemini", [gemini_failed("bad thing")], 144),
        sign("gemini", [], 42, "No input provided via stdin."),
        sign("gemini", [], 1, "Unknown argument: bogus"),
        sign("gemini", [], 52, "Invalid settings"),
        sign("gemini", [], 55, "Gemini CLI is not running in a trusted directory."),
        sign("opencode", [opencode_failed("no such model", statusCode=404)]),
        sign("aider", ["litellm.NotFoundError: model"], 0),
        sign("aider", [], 2, "aider: error: unrecognized arguments: --bogus"),
    ],
    "denied": [
        sign("claude", [claude_result(permission_denials=[{"tool_name": "Write"}])], 0),
        sign(
            "codex",
            [
                event(type="item.completed", item={"type": "file_change", "status": "declined"}),
                event(type="turn.completed"),
            ],
            0,
        ),
        sign(
            "gemini",
            [
                event(type="tool_result", status="error", error={"type": "policy_violation"}),
                event(type="result", status="success"),
            ],
            0,
        ),
        sign(
            "opencode",
            [
                event(
                    type="tool_use",
                    part={"tool": "edit", "state": {"status": "error", "error": "The user rejected permission to"}},
                ),
                STEP,
            ],
            0,
        ),
    ],
    "refused": [
        sign("claude", [claude_error("API Error: this violates our Usage Policy", api_error_status=400)]),
        sign("codex", [codex_failed("This request was blocked: CyberPolicy")]),
        sign("gemini", [gemini_failed("The response was blocked by safety filters")]),
        sign("opencode", [event(type="step_finish", part={"id": "p", "reason": "content-filter"})], 0),
        sign("aider", ["litellm.ContentPolicyViolationError: no"], 0),
    ],
    "killed": [
        sign("claude", [STARTED], 143),
        sign(
            "claude",
            [
                STARTED,
                claude_result(is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming"),
            ],
            0,
        ),
        sign("codex", [event(type="thread.started", thread_id="t-1"), event(type="turn.started")], 137),
        sign("gemini", [event(type="init", session_id="s-1")], 143),
        sign("opencode", [event(type="step_start", sessionID="ses_1")], 143),
        sign("aider", ["Aider v0.86.2"], 143),
    ],
    "interrupted": [
        sign("gemini", [gemini_failed("Operation cancelled.", "FatalCancellationError")], 130),
    ],
    "disk": [
        sign("gemini", [gemini_failed("No space left on device", "no_space_left")], 54),
    ],
    "bad_output": [
        sign("claude", [STARTED], 0),
        sign("codex", [event(type="turn.started")], 0),
        sign("gemini", [event(type="init", session_id="s-1")], 0),
        sign("opencode", [event(type="step_start", sessionID="ses_1")], 0),
        sign("aider", ["Aider v0.86.2"], 0),
        sign("aider", [TOKENS, "Only 3 reflections allowed, stopping."], 0),
        sign("claude", [claude_result(is_error=True, subtype="error_max_structured_output_retries")]),
    ],
    "failed": [
        sign("codex", [codex_failed("[1]")]),
        *[sign(agent, [], 1, "something nobody has seen before") for agent in agents_base.names()],
    ],
}
TABLE = [(expected, *one) for expected, signs in SIGNS.items() for one in signs]


@pytest.mark.parametrize(
    ("expected", "agent", "lines", "code", "tail"),
    TABLE,
    ids=[f"{expected}-{agent}-{number}" for number, (expected, agent, *_) in enumerate(TABLE)],
)
def test_every_sign_of_a_failure_leads_to_its_class(expected, agent, lines, code, tail):
    assert klass(agent, lines, ProcessEnd(exit_code=code, tail=tail)) == expected


@pytest.mark.parametrize("agent", agents_base.names())
@pytest.mark.parametrize("clock", ["wall", "idle"])
def test_an_agent_that_one_of_our_clocks_ended_is_timed_out(agent, clock):
    assert klass(agent, [], ProcessEnd(exit_code=None, signal=15, timed_out=clock)) == "timeout"


@pytest.mark.parametrize("agent", agents_base.names())
def test_an_agent_that_a_signal_ended_was_killed(agent):
    assert klass(agent, [], ProcessEnd(exit_code=None, signal=9)) == "killed"


def test_success_without_an_effect_is_a_class_of_its_own():
    result = describe(RunFailed(FailedRun(subtype="no_effect", exit_code=0), "nothing changed"), "build")

    assert result.klass == "no_effect"


# --- when to come back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "lines", "moment"),
    [
        ("claude", [REJECTED, claude_error("Limit", api_error_status=429)], "2026-11-16T02:02:17.000000Z"),
        ("claude", [claude_error("Claude AI usage limit reached|1794794537")], "2026-11-16T02:02:17.000000Z"),
    ],
)
def test_a_used_up_quota_says_when_it_is_open_again(agent, lines, moment):
    result = facts(agent, lines, ProcessEnd(exit_code=1))

    assert result is not None
    assert (result.klass, result.metadata["retry_at"]) == ("quota_window", moment)


@pytest.mark.parametrize(
    ("agent", "line", "seconds"),
    [
        ("gemini", gemini_failed("RESOURCE_EXHAUSTED. Please retry in 34.07s"), 34.07),
        ("opencode", opencode_failed("slower", statusCode=429, responseHeaders={"retry-after": "17"}), 17.0),
        ("codex", codex_failed("Rate limit reached for gpt-5. Please try again in 1.5s."), 1.5),
    ],
)
def test_a_wait_that_the_server_asked_for_is_kept(agent, line, seconds):
    result = facts(agent, [line], ProcessEnd(exit_code=1))

    assert result is not None
    assert (result.klass, result.retry_delay) == ("rate_limited", seconds)


# --- conversations that are gone -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "lines", "tail"),
    [
        (
            "claude",
            [
                claude_result(
                    is_error=True,
                    subtype="error_during_execution",
                    result=None,
                    errors=["No conversation found with session ID: x"],
                )
            ],
            "",
        ),
        ("codex", [], "Error: thread/resume: thread/resume failed: no rollout found for thread id x (code -32600)"),
        ("gemini", [], "Error resuming session: No previous sessions found for this project."),
        ("gemini", [], 'Error resuming session: Invalid session identifier "x".'),
        ("opencode", [], "\x1b[91m\x1b[1mError: \x1b[0mSession not found"),
    ],
)
def test_a_conversation_that_the_agent_does_not_have_is_named_so(agent, lines, tail):
    result = facts(agent, lines, ProcessEnd(exit_code=1, tail=tail))

    assert result is not None
    assert (result.metadata["subtype"], result.klass) == ("unknown_session", "failed")
