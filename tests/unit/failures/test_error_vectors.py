"""What programs and services really say, and the class each of them must get."""

from __future__ import annotations

import time

import pytest

from adws.adw_modules.error_handler import ErrorClassifier, describe
from adws.adw_modules.error_tables import (
    CLASSES,
    LAST_LINES,
    PATTERNS,
    REFINEMENTS,
    ErrorCategory,
    class_of_text,
    last_part,
    refined,
)
from adws.adw_modules.errors import FailedRun, RunFailed

#: Text of an exception -> class it must get.
PART_OF_A_WORD = [
    ("Failed to generate report", "unknown"),
    ("cannot import name", "dependency"),
    ("unsupported operand", "unknown"),
    ("viewport missing", "unknown"),
    ("transport closed: connection reset", "network"),
    ("namespace not allowed", "unknown"),
    ("workspace", "unknown"),
]
WORST_WORD_FIRST = [
    ("Connection refused to config server", "network"),
    ("read timeout: resource not found yet", "timeout"),
]
KNOWN_BUT_MISSED = [
    ("HTTP 429 Too Many Requests", "rate_limited"),
    ("rate_limit_error", "rate_limited"),
    ("overloaded 529", "overloaded"),
    ("Address already in use", "port"),
    ("ETIMEDOUT", "timeout"),
    ("timed out after 300 seconds", "timeout"),
    ("usage limit reached", "quota_window"),
]


def _class(text):
    return describe(Exception(text), "build").klass


@pytest.mark.parametrize(("text", "klass"), PART_OF_A_WORD, ids=[text for text, _ in PART_OF_A_WORD])
def test_a_part_of_a_word_says_nothing_about_resources(text, klass):
    facts = describe(Exception(text), "build")

    assert facts.klass == klass
    assert facts.category is not ErrorCategory.RESOURCE
    assert not facts.needs_cleanup


@pytest.mark.parametrize(("text", "klass"), WORST_WORD_FIRST, ids=[text for text, _ in WORST_WORD_FIRST])
def test_a_passing_trouble_is_retried_also_when_the_text_speaks_of_configuration(text, klass):
    facts = describe(Exception(text), "build")

    assert (facts.klass, facts.category, facts.recoverable) == (klass, ErrorCategory.TRANSIENT, True)


@pytest.mark.parametrize(("text", "klass"), KNOWN_BUT_MISSED, ids=[text for text, _ in KNOWN_BUT_MISSED])
def test_what_can_be_retried_is_not_fatal(text, klass):
    facts = describe(Exception(text), "build")

    assert facts.klass == klass
    assert facts.category is not ErrorCategory.FATAL
    assert facts.recoverable


@pytest.mark.parametrize(
    ("text", "klass", "category", "delay"),
    [
        ("usage limit reached", "quota_window", ErrorCategory.RATE_LIMIT, 1800.0),
        ("rate limit", "rate_limited", ErrorCategory.RATE_LIMIT, 60.0),
        *((text, "unknown", ErrorCategory.FATAL, None) for text in ("", "fail", "the frobnicator is upset")),
    ],
)
def test_a_quota_is_not_a_rate_limit_and_what_is_unknown_is_fatal(text, klass, category, delay):
    facts = describe(Exception(text), "build")

    assert (facts.klass, facts.category, facts.retry_delay) == (klass, category, delay)
    assert facts.recoverable is (category is not ErrorCategory.FATAL)


AGENT_TEXTS = [
    # Claude Code
    ("You've hit your session limit · resets 3:45pm", "quota_window"),
    ("You've hit your weekly limit · resets Mon 12:00am", "quota_window"),
    ("You've hit your Opus limit · resets 9am", "quota_window"),
    ("You've hit your 5-hour limit · resets 2:02am (UTC)", "quota_window"),
    ("Claude AI usage limit reached|1794794537", "quota_window"),
    ("API Error: Repeated 529 Overloaded errors", "overloaded"),
    ("API Error: Server is temporarily limiting requests (not your usage limit)", "rate_limited"),
    ("API Error: Request rejected (429) · This request would exceed your rate limit (stub).", "rate_limited"),
    ("Credit balance is too low", "billing"),
    ("spend limit reached (daily; resets 2026-08-09 00:00 UTC)", "billing"),
    ("Invalid API key · Fix external API key", "auth"),
    ("Not logged in · Please run /login", "auth"),
    ("OAuth token has expired", "auth"),
    ("Prompt is too long", "context"),
    ("API Error: 500 Internal server error. This is a server-side issue, usually temporary", "server"),
    ("Request timed out", "timeout"),
    ("API Error: Connection refused — a firewall or proxy may be blocking it (ECONNREFUSED)", "network"),
    ("Reached maximum number of turns (2)", "turns"),
    # Codex
    ("You've hit your usage limit. Upgrade to Pro or try again at 3:05 PM.", "quota_window"),
    ("You've hit your usage limit for gpt-5.", "quota_window"),
    ("Your workspace is out of credits. Ask your admin.", "billing"),
    ("You hit your spend cap for this month", "billing"),
    ("Quota exceeded. Check your plan and billing details.", "billing"),
    ("Selected model is at capacity. Please try a different model.", "overloaded"),
    ("exceeded retry limit, last status: 429 Too Many Requests", "rate_limited"),
    ("unexpected status 503 Service Unavailable: overloaded (stub), url: http://127.0.0.1:27969/v1", "overloaded"),
    ("stream disconnected before completion: error decoding response body", "network"),
    ("Codex ran out of room in the model's context window. Start a new thread.", "context"),
    ("unexpected status 401 Unauthorized: bad key", "auth"),
    ("We're currently experiencing high demand, which may cause temporary errors.", "overloaded"),
    # Gemini
    (
        "You exceeded your current quota, please check your plan and billing details. Please retry in 34.07s.",
        "rate_limited",
    ),
    ("You exceeded your current quota, please check your plan and billing details.", "billing"),
    ("Quota exceeded for GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quota_window"),
    ("RESOURCE_EXHAUSTED", "rate_limited"),
    ("Reached max session turns for this session.", "turns"),
    ("API key not valid. Please pass a valid API key.", "auth"),
    # opencode, aider, goose
    ("GoUsageLimitError: Monthly usage limit reached", "quota_window"),
    ("litellm.RateLimitError: AnthropicException", "rate_limited"),
    ("litellm.AuthenticationError: no", "auth"),
    ("litellm.ContextWindowExceededError: too much", "context"),
    ('insufficient credits {"code":402}', "billing"),
    ("Rate limit exceeded: slow down", "rate_limited"),
    ("Authentication error: bad key", "auth"),
    ("Context length exceeded: 250000 tokens", "context"),
    ("Credits exhausted: top up", "billing"),
    ("Network error: connection closed", "network"),
    ("I've reached the maximum number of actions I can do without user input", "turns"),
    ("This request violates our usage policy", "refused"),
]


def test_what_agents_say_when_they_fail_is_understood():
    for text, klass in AGENT_TEXTS:
        failed = RunFailed(FailedRun(exit_code=1, text=f"some output\n{text}\n", subtype="success"))

        assert describe(failed, "build").klass == klass, text


MACHINE_TEXTS = [
    ("OSError: [Errno 28] No space left on device", "disk"),
    ("bash: ruff: command not found", "missing"),
    ("fatal: not a git repository (or any of the parent directories): .git", "missing"),
    ("fatal: Unable to create '/x/.git/index.lock': File exists.", "busy"),
    ("sqlite3.OperationalError: database is locked", "busy"),
    ("ssl: CERTIFICATE_VERIFY_FAILED", "tls"),
    ("git@github.com: Permission denied (publickey).", "auth"),
    ("cp: cannot create regular file 'x': Permission denied", "permission"),
    ("fork: Cannot allocate memory", "memory"),
    ("OSError: Too many open files", "descriptors"),
    ("Could not resolve host: github.com", "network"),
    ("fatal: the remote end hung up unexpectedly", "network"),
    ("Error: port 9101 is already in use", "port"),
    ("error: unrecognized arguments: --frobnicate", "config"),
    ("error_max_budget_usd", "budget"),
    ("ModuleNotFoundError: No module named 'x'", "dependency"),
]


def test_what_machines_say_when_they_fail_is_understood():
    for text, klass in MACHINE_TEXTS:
        assert _class(text) == klass, text


def test_numbers_and_words_that_only_look_alike_say_nothing():
    for text in [
        *(
            "FAILED tests/test_api.py:429: AssertionError",
            "line 503 is wrong",
            "processed 529 files",
            "wrote report.py",
        ),
        *("the importer is unlimited", "separate limits", "overloadedness", "see the timeoutable flag", "diskette"),
        *("the maintainer resolved it", "a quotation", "accredited", "generated 401 lines"),
    ]:
        assert class_of_text(text) is None, text


def test_only_the_end_of_a_text_is_read():
    long_ago = "rate limit\n" + "all is well\n" * LAST_LINES

    assert class_of_text(long_ago) is None
    assert class_of_text(long_ago + "rate limit") == "rate_limited"
    assert len(last_part("x" * 100_000)) == 8_000


def test_words_that_end_all_trying_must_stand_at_the_very_end():
    """A test that talks of permissions and passes, or fails, is no reason to ask a person for credentials."""
    output = "test_login: 401 unauthorized, permission denied: ok\n" + "test: ok\n\n" * 5

    assert class_of_text(output + "2 failed, 40 passed") is None
    assert class_of_text("401 unauthorized\n" + "\n  \n" * 90 + "1\n2\n3\n4\n") == "auth"
    assert class_of_text("401 unauthorized\n1\n2\n3\n4\n5\n") is None
    assert class_of_text("connection reset\n" + output) == "network"


def test_a_long_text_is_read_in_no_time():
    """No pattern goes back and forth over a hostile text."""
    started = time.process_time()
    for hostile in ("a" * 50_000, "your " * 10_000, "environment variable " + "x " * 20_000, "retry in " + "1" * 9_000):
        class_of_text(hostile)

    assert time.process_time() - started < 2.0


def test_every_pattern_and_every_refinement_names_a_class():
    names = {name for name, _ in PATTERNS} | set(REFINEMENTS) | {name for item in REFINEMENTS.values() for name in item}

    assert names <= set(CLASSES)


@pytest.mark.parametrize(
    ("name", "text", "klass"),
    [
        ("rate_limited", "You've hit your weekly limit", "quota_window"),
        ("rate_limited", "connection refused", "rate_limited"),
        ("auth", "You have exceeded a secondary rate limit", "rate_limited"),
        ("invalid", "prompt is too long", "context"),
        ("server", "Overloaded", "overloaded"),
        ("killed", "rate limit", "killed"),
    ],
)
def test_the_text_makes_a_class_finer_only_where_that_makes_sense(name, text, klass):
    assert refined(name, text) == klass


def test_what_a_gate_or_an_agent_calls_the_failure_comes_before_its_text():
    """An agent may well write about rate limits."""
    failed = RunFailed(FailedRun(subtype="no_effect", text="I added a test for 'rate limit exceeded' and HTTP 429"))

    assert ErrorClassifier.classify(failed, "build").metadata["class"] == "no_effect"
