"""The driver with agents of other kinds: one that names its conversation itself, and one that reads a file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.agent import AgentCapabilities, AgentReading
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import FailedRun
from tests.integration.agent_lab import AgentWorld, phase

THREAD = "0199a213-81c0-7800-8aa1-bbab2a035a53"


@pytest.fixture
def codex(tmp_path):
    return AgentWorld(tmp_path, "codex")


def test_a_conversation_that_the_agent_names_is_recorded_as_soon_as_it_does(codex):
    report = codex.run()

    assert report.ok
    assert codex.order_of_things[:2] == ["agent", "process"]
    assert codex.facts[0]["session_id"] == ""
    assert codex.facts[1]["session_id"] == THREAD
    assert (report.usage.provider, report.usage.tokens.input) == ("openai", 100)


def test_what_a_conversation_had_used_before_comes_off(codex):
    before = {"cost_usd": None, "tokens": {"input": 60, "output": 4}}
    facts = {"name": "codex", "session_id": THREAD}
    codex.after({"status": "interrupted", "agent": facts, "report": {"usage": before}})

    report = codex.run()

    assert THREAD in codex.agent.calls[0]["argv"]
    assert (report.usage.tokens.input, report.usage.tokens.output) == (40, 6)


@pytest.mark.parametrize(
    ("words", "klass"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests", "rate_limited"),
        ("unexpected status 401 Unauthorized", "auth"),
        ("Selected model is at capacity. Please try a different model.", "overloaded"),
        ("stream disconnected before completion: reset", "network"),
        ("Codex ran out of room in the model's context window.", "context"),
        ("Your workspace is out of credits.", "billing"),
    ],
)
def test_what_codex_says_is_classed(codex, words, klass):
    report = codex.run({"fails": words, "exit": 1})

    assert describe(report.error, "build").klass == klass


class _Plain:
    """The parser of an agent that says nothing that could be read."""

    reading = AgentReading()

    def line(self, text):
        return text


@pytest.fixture
def plain(tmp_path):
    """An agent without events: it reads a file, and tells its end by its exit code alone."""
    world = AgentWorld(tmp_path)
    profile = replace(
        agents_base.profile("claude"),
        capabilities=AgentCapabilities(reads_stdin=False, tells_result=False),
        argv=lambda task: (f"--message-file={task.prompt_file}", *task.arguments),
        parser=_Plain,
        failure=lambda _reading, end: None if end.exit_code == 0 else FailedRun(exit_code=end.exit_code),
    )
    world.change(profile=lambda _name: profile)
    return world


def test_an_agent_that_takes_its_prompt_from_a_file_gets_no_input(plain):
    report = plain.run()

    [call] = plain.agent.calls
    assert (report.ok, report.summary) == (True, "claude ended well")
    assert call["prompt"] == ""
    assert call["argv"] == [f"--message-file={plain.file('prompt.md')}"]


def test_an_agent_that_says_nothing_about_its_end_still_has_to_have_changed_something(plain):
    plain.changed = False

    assert describe(plain.run().error, "build").klass == "no_effect"


def test_turns_that_an_agent_cannot_limit_are_refused(plain):
    words = plain.runner.check(phase(options={"max_turns": 3}))

    assert words == "phase build: claude cannot limit its turns: take max_turns out"
