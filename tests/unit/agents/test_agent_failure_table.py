"""
Every kind of failure that an agent can report, for each agent that has a sign of it, ends in the right class.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.agent import AgentEnd
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import FailedRun, RunFailed
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

#: (class, agent, lines of its output, exit code, what its error output says)
TABLE: list[tuple[str, str, list[str], int, str]] = [
    # --- quota_window
    ("quota_window", "claude", [STARTED, REJECTED, claude_error("Limit reached", api_error_status=429)], 1, ""),
    ("quota_window", "claude", [STARTED, REJECTED], 143, ""),
    ("quota_window", "claude", [claude_error("You've hit your session limit · resets 3:45pm")], 1, ""),
    ("quota_window", "claude", [claude_error("You've hit your weekly limit · resets Mon 12:00am")], 1, ""),
    (
        "quota_window",
        "claude",
        [claude_error("You've hit your Opus limit · resets 3:45pm", api_error_status=429)],
        1,
        "",
    ),
    ("quota_window", "claude", [claude_error("Claude AI usage limit reached|1794794537")], 1, ""),
    ("quota_window", "codex", [codex_failed("You've hit your usage limit. Try again at 3:05 PM.")], 1, ""),
    ("quota_window", "codex", [codex_failed("You've hit your usage limit for gpt-5. Try again later.")], 1, ""),
    (
        "quota_window",
        "gemini",
        [gemini_failed("[API Error: You have exhausted your daily quota on this model.]")],
        173,
        "",
    ),
    ("quota_window", "gemini", [gemini_failed("the day is over", "TerminalQuotaError")], 173, ""),
    ("quota_window", "gemini", [gemini_failed("Quota exceeded for RequestsPerDay, QUOTA_EXHAUSTED")], 173, ""),
    ("quota_window", "opencode", [opencode_failed("Monthly usage limit reached", statusCode=429)], 1, ""),
    (
        "quota_window",
        "opencode",
        [opencode_failed("no", statusCode=429, responseBody='{"type":"GoUsageLimitError"}')],
        1,
        "",
    ),
    # --- rate_limited
    (
        "rate_limited",
        "claude",
        [claude_error("API Error: Request rejected (429) · slow down", api_error_status=429)],
        1,
        "",
    ),
    (
        "rate_limited",
        "claude",
        [claude_error("API Error: Server is temporarily limiting requests (not your usage limit)")],
        1,
        "",
    ),
    ("rate_limited", "codex", [codex_failed("exceeded retry limit, last status: 429 Too Many Requests")], 1, ""),
    (
        "rate_limited",
        "gemini",
        [gemini_failed("RESOURCE_EXHAUSTED: RequestsPerMinute. Please retry in 34.07s")],
        173,
        "",
    ),
    ("rate_limited", "gemini", [gemini_failed("slower", "RetryableQuotaError")], 173, ""),
    ("rate_limited", "opencode", [opencode_failed("Too many requests", statusCode=429)], 1, ""),
    ("rate_limited", "aider", ["litellm.RateLimitError: RateLimitError: slower", "Retrying in 0.2 seconds..."], 0, ""),
    # --- overloaded
    ("overloaded", "claude", [claude_error("API Error: Repeated 529 Overloaded errors", api_error_status=529)], 1, ""),
    ("overloaded", "claude", [claude_error("API Error: Repeated 529 Overloaded errors")], 1, ""),
    ("overloaded", "codex", [codex_failed("Selected model is at capacity. Please try a different model.")], 1, ""),
    ("overloaded", "codex", [codex_failed("We're currently experiencing high demand, which may cause errors.")], 1, ""),
    ("overloaded", "gemini", [gemini_failed("[API Error: The model is overloaded]")], 247, ""),
    ("overloaded", "opencode", [opencode_failed("Overloaded", statusCode=529)], 1, ""),
    ("overloaded", "aider", ["litellm.ServiceUnavailableError: down"], 0, ""),
    # --- billing
    ("billing", "claude", [claude_error("Credit balance is too low", api_error_status=400)], 1, ""),
    ("billing", "claude", [UNPAID, claude_error("not included", api_error_status=429)], 1, ""),
    ("billing", "claude", [claude_error("spend limit reached (daily; resets 2026-08-09 00:00 UTC)")], 1, ""),
    ("billing", "codex", [codex_failed("Your workspace is out of credits. Ask an owner to add more.")], 1, ""),
    ("billing", "codex", [codex_failed("You hit your spend cap for this month")], 1, ""),
    ("billing", "codex", [codex_failed("Quota exceeded. Check your plan and billing details.")], 1, ""),
    ("billing", "codex", [codex_failed("To use Codex with your ChatGPT plan, upgrade to Plus: https://x")], 1, ""),
    ("billing", "opencode", [opencode_failed("Payment required", statusCode=402)], 1, ""),
    ("billing", "aider", ['litellm.APIError: {"error":{"message":"Insufficient credits","code":402}}'], 0, ""),
    # --- auth
    ("auth", "claude", [claude_error("Invalid API key · Fix external API key", api_error_status=401)], 1, ""),
    ("auth", "claude", [claude_error("Not logged in · Please run /login")], 1, ""),
    ("auth", "claude", [claude_error("OAuth token has expired · Please obtain a new token")], 1, ""),
    ("auth", "claude", [], 1, "Not logged in · Please run /login"),
    ("auth", "codex", [codex_failed("unexpected status 401 Unauthorized: Missing bearer, url: https://x")], 1, ""),
    ("auth", "gemini", [gemini_failed("no key", "FatalAuthenticationError")], 41, ""),
    ("auth", "gemini", [], 41, "Please set an Auth method"),
    ("auth", "gemini", [gemini_failed("[API Error: refused]")], 145, ""),
    ("auth", "opencode", [opencode_failed("no key", "ProviderAuthError")], 1, ""),
    ("auth", "opencode", [opencode_failed("invalid x-api-key", statusCode=401)], 1, ""),
    ("auth", "aider", ["litellm.AuthenticationError: AuthenticationError: bad key"], 0, ""),
    # --- context
    ("context", "claude", [claude_error("Prompt is too long", api_error_status=400)], 1, ""),
    ("context", "claude", [claude_result(is_error=True, terminal_reason="prompt_too_long")], 1, ""),
    (
        "context",
        "codex",
        [codex_failed("Codex ran out of room in the model's context window. Start a new thread")],
        1,
        "",
    ),
    ("context", "codex", [codex_failed("unexpected status 400 Bad Request: context_length_exceeded")], 1, ""),
    ("context", "gemini", [gemini_failed('{"code":400} the input exceeds the maximum context length')], 144, ""),
    ("context", "opencode", [opencode_failed("too long", "ContextOverflowError")], 1, ""),
    ("context", "opencode", [event(type="step_finish", part={"id": "p", "reason": "length"})], 0, ""),
    ("context", "aider", ["litellm.ContextWindowExceededError: too long"], 0, ""),
    ("context", "aider", ["Model openai/stub has hit a token limit!"], 0, ""),
    # --- budget and turns
    ("budget", "claude", [claude_result(is_error=True, subtype="error_max_budget_usd")], 1, ""),
    ("budget", "claude", [claude_result(is_error=True, terminal_reason="budget_exhausted")], 1, ""),
    ("turns", "claude", [claude_result(is_error=True, subtype="error_max_turns")], 1, ""),
    (
        "turns",
        "gemini",
        [gemini_failed("Reached max session turns for this session.", "FatalTurnLimitedError")],
        53,
        "",
    ),
    ("turns", "gemini", [], 53, "Reached max session turns for this session."),
    # --- network and server
    ("network", "claude", [claude_error("API Error: Connection refused", api_error="connection_failed")], 1, ""),
    ("network", "claude", [claude_error("API Error: Unable to connect to API (ECONNRESET)")], 1, ""),
    ("network", "codex", [codex_failed("stream disconnected before completion: error sending request")], 1, ""),
    ("network", "gemini", [gemini_failed("[API Error: fetch failed]")], 1, ""),
    (
        "network",
        "opencode",
        [opencode_failed("Unable to connect. Is the computer able to access the url?", "UnknownError")],
        1,
        "",
    ),
    ("network", "aider", ["litellm.APIConnectionError: Connection error"], 0, ""),
    ("tls", "claude", [claude_error("API Error: self-signed certificate in certificate chain")], 1, ""),
    ("server", "claude", [claude_error("API Error: 500 Internal server error.", api_error_status=500)], 1, ""),
    (
        "server",
        "claude",
        [claude_result(is_error=True, subtype="error_during_execution", api_error_status=502, errors=["bad gateway"])],
        1,
        "",
    ),
    ("server", "codex", [codex_failed("unexpected status 500 Internal Server Error: oops")], 1, ""),
    ("server", "gemini", [gemini_failed("[API Error: oops]")], 244, ""),
    ("server", "opencode", [opencode_failed("oops", statusCode=500)], 1, ""),
    ("server", "aider", ["litellm.InternalServerError: oops"], 0, ""),
    ("timeout", "claude", [claude_error("Request timed out")], 1, ""),
    ("timeout", "aider", ["litellm.Timeout: no answer"], 0, ""),
    # --- invalid
    ("invalid", "claude", [claude_error("API Error: 404 model: nope", api_error_status=404)], 1, ""),
    ("invalid", "claude", [], 1, "error: unknown option '--bogus'"),
    ("invalid", "codex", [codex_failed("unexpected status 422 Unprocessable Entity: no")], 1, ""),
    ("invalid", "codex", [], 2, "error: unexpected argument '--bogus' found"),
    ("invalid", "codex", [], 1, "Not inside a trusted directory and --skip-git-repo-check was not specified."),
    ("invalid", "gemini", [gemini_failed("bad thing")], 144, ""),
    ("invalid", "gemini", [], 42, "No input provided via stdin."),
    ("invalid", "gemini", [], 1, "Unknown argument: bogus"),
    ("invalid", "gemini", [], 52, "Invalid settings"),
    ("invalid", "gemini", [], 55, "Gemini CLI is not running in a trusted directory."),
    ("invalid", "opencode", [opencode_failed("no such model", statusCode=404)], 1, ""),
    ("invalid", "aider", ["litellm.NotFoundError: model"], 0, ""),
    ("invalid", "aider", [], 2, "aider: error: unrecognized arguments: --bogus"),
    # --- denied and refused
    ("denied", "claude", [claude_result(permission_denials=[{"tool_name": "Write"}])], 0, ""),
    (
        "denied",
        "codex",
        [
            event(type="item.completed", item={"type": "file_change", "status": "declined"}),
            event(type="turn.completed"),
        ],
        0,
        "",
    ),
    (
        "denied",
        "gemini",
        [
            event(type="tool_result", status="error", error={"type": "policy_violation"}),
            event(type="result", status="success"),
        ],
        0,
        "",
    ),
    (
        "denied",
        "opencode",
        [
            event(
                type="tool_use",
                part={"tool": "edit", "state": {"status": "error", "error": "The user rejected permission to"}},
            ),
            STEP,
        ],
        0,
        "",
    ),
    ("refused", "claude", [claude_error("API Error: this violates our Usage Policy", api_error_status=400)], 1, ""),
    ("refused", "codex", [codex_failed("This request was blocked: CyberPolicy")], 1, ""),
    ("refused", "gemini", [gemini_failed("The response was blocked by safety filters")], 1, ""),
    ("refused", "opencode", [event(type="step_finish", part={"id": "p", "reason": "content-filter"})], 0, ""),
    ("refused", "aider", ["litellm.ContentPolicyViolationError: no"], 0, ""),
    # --- killed, and what is not said
    ("killed", "claude", [STARTED], 143, ""),
    (
        "killed",
        "claude",
        [STARTED, claude_result(is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming")],
        0,
        "",
    ),
    ("killed", "codex", [event(type="thread.started", thread_id="t-1"), event(type="turn.started")], 137, ""),
    ("killed", "gemini", [event(type="init", session_id="s-1")], 143, ""),
    ("killed", "opencode", [event(type="step_start", sessionID="ses_1")], 143, ""),
    ("killed", "aider", ["Aider v0.86.2"], 143, ""),
    ("interrupted", "gemini", [gemini_failed("Operation cancelled.", "FatalCancellationError")], 130, ""),
    ("disk", "gemini", [gemini_failed("No space left on device", "no_space_left")], 54, ""),
    ("bad_output", "claude", [STARTED], 0, ""),
    ("bad_output", "codex", [event(type="turn.started")], 0, ""),
    ("bad_output", "gemini", [event(type="init", session_id="s-1")], 0, ""),
    ("bad_output", "opencode", [event(type="step_start", sessionID="ses_1")], 0, ""),
    ("bad_output", "aider", ["Aider v0.86.2"], 0, ""),
    ("bad_output", "aider", [TOKENS, "Only 3 reflections allowed, stopping."], 0, ""),
    ("bad_output", "claude", [claude_result(is_error=True, subtype="error_max_structured_output_retries")], 1, ""),
    *[("failed", agent, [], 1, "something nobody has seen before") for agent in agents_base.names()],
]


@pytest.mark.parametrize(
    ("expected", "agent", "lines", "code", "tail"),
    TABLE,
    ids=[f"{expected}-{agent}-{number}" for number, (expected, agent, *_) in enumerate(TABLE)],
)
def test_every_sign_of_a_failure_leads_to_its_class(expected, agent, lines, code, tail):
    assert klass(agent, lines, AgentEnd(exit_code=code, tail=tail)) == expected


@pytest.mark.parametrize("agent", agents_base.names())
@pytest.mark.parametrize("clock", ["wall", "idle"])
def test_an_agent_that_one_of_our_clocks_ended_is_timed_out(agent, clock):
    assert klass(agent, [], AgentEnd(exit_code=None, signal=15, timed_out=clock)) == "timeout"


@pytest.mark.parametrize("agent", agents_base.names())
def test_an_agent_that_a_signal_ended_was_killed(agent):
    assert klass(agent, [], AgentEnd(exit_code=None, signal=9)) == "killed"


def test_success_without_an_effect_is_a_class_of_its_own():
    result = describe(RunFailed(FailedRun(subtype="no_effect", exit_code=0), "nothing changed"), "build")

    assert result.klass == "no_effect"


@pytest.mark.parametrize("name", ["quota_window", "rate_limited", "overloaded", "auth", "context", "network", "server"])
def test_every_agent_has_a_sign_of_the_failures_that_all_of_them_know(name):
    known = {agent for expected, agent, *_ in TABLE if expected == name}

    # aider asks for a model by its key: no windows of use.
    assert known >= set(agents_base.names()) - ({"aider"} if name in {"quota_window", "context"} else set()) - (
        {"gemini"} if name == "context" else set()
    )


# --- when to come back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "lines", "moment"),
    [
        ("claude", [REJECTED, claude_error("Limit", api_error_status=429)], "2026-11-16T02:02:17.000000Z"),
        ("claude", [claude_error("Claude AI usage limit reached|1794794537")], "2026-11-16T02:02:17.000000Z"),
    ],
)
def test_a_used_up_quota_says_when_it_is_open_again(agent, lines, moment):
    result = facts(agent, lines, AgentEnd(exit_code=1))

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
    result = facts(agent, [line], AgentEnd(exit_code=1))

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
    result = facts(agent, lines, AgentEnd(exit_code=1, tail=tail))

    assert result is not None
    assert (result.metadata["subtype"], result.klass) == ("unknown_session", "failed")
