"""What the end of an agent means, as far as its words and its process tell."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from adws.adw_modules.agent import AgentReading
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.engine.runner_agent import failure_of
from adws.adw_modules.engine.service_guard import shut_until
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.process.run import ProcessEnd
from adws.adw_modules.retry_handler import QUOTA_MARGIN_SECONDS

CLAUDE = agents_base.profile("claude")
DONE = AgentReading(has_result=True, text="done")
#: Where the machine stands it is two hours later than in UTC.
NOW = datetime(2026, 8, 3, 14, 0, tzinfo=timezone(timedelta(hours=2)))
END = ProcessEnd(exit_code=0)


@pytest.mark.parametrize("reading", [DONE, replace(DONE, denials=("Write",))])
def test_what_could_not_be_ended_speaks_against_it_whatever_it_said(reading):
    failure = failure_of(CLAUDE, reading, replace(END, survivors=("sleep (77)",)), now=NOW)

    assert "what it started could not be ended: sleep (77)" in failure.text


def test_an_agent_without_a_result_has_failed_even_if_its_own_verdict_lets_it_pass():
    trusting = replace(CLAUDE, failure=lambda _reading, _end: None)

    assert failure_of(trusting, AgentReading(), END, now=NOW).text == "it ended without saying its result"
    silent = replace(trusting, capabilities=replace(CLAUDE.capabilities, tells_result=False))
    assert failure_of(silent, AgentReading(), END, now=NOW) is None


#: What is waited when nobody says how long.
HALF_AN_HOUR_LATER = "2026-08-03T14:30:00+02:00"

# --- when a quota is open again ----------------------------------------------------------------------------------


def codex_says(text):
    return [{"type": "turn.started"}, {"type": "turn.failed", "error": {"message": text}}]


def claude_says(text):
    return [{"type": "result", "subtype": "success", "is_error": True, "result": text, "num_turns": 1}]


def gemini_says(text):
    return [{"type": "result", "status": "error", "error": {"type": "unknown", "message": text}}]


def opencode_says(text):
    return [{"type": "error", "sessionID": "ses_1", "error": {"name": "GoUsageLimitError", "data": {"message": text}}}]


@pytest.mark.parametrize(
    ("name", "events", "moment"),
    [
        ("claude", claude_says("You've hit your session limit · resets 3:45pm"), "2026-08-03T15:45:00+02:00"),
        ("claude", claude_says("You've hit your weekly limit · resets Mon 12:00am"), "2026-08-10T00:00:00+02:00"),
        ("claude", claude_says("You've hit your Opus limit · resets 2:02am (UTC)"), "2026-08-04T02:02:00+00:00"),
        ("claude", claude_says("Claude AI usage limit reached|1785772800"), "2026-08-03T16:00:00+00:00"),
        ("codex", codex_says("You've hit your usage limit. Try again at 3:05 PM."), "2026-08-03T15:05:00+02:00"),
        (
            "codex",
            codex_says("You've hit your usage limit. Upgrade, or try again at Aug 9th, 2026 3:05 PM."),
            "2026-08-09T15:05:00+02:00",
        ),
        ("codex", codex_says("You've hit your usage limit. Try again later."), HALF_AN_HOUR_LATER),
        (
            "gemini",
            gemini_says("TerminalQuotaError: You have exhausted your capacity. Your quota will reset after 18h33m13s."),
            "2026-08-04T08:33:13+02:00",
        ),
        ("opencode", opencode_says("Monthly usage limit reached. Resets Aug 9 at 5pm"), "2026-08-09T17:00:00+02:00"),
    ],
)
def test_the_reset_that_an_agent_names_in_words_is_what_its_workflow_waits_for(name, events, moment):
    profile = agents_base.profile(name)
    parser = profile.parser()
    for event in events:
        parser.line(json.dumps(event))

    failure = failure_of(profile, parser.reading, replace(END, exit_code=1), now=NOW)
    facts = describe(RunFailed(failure), "build")

    assert facts.klass == "quota_window"
    assert shut_until(facts, NOW) == datetime.fromisoformat(moment) + timedelta(seconds=QUOTA_MARGIN_SECONDS)
