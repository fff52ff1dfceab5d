"""Is an agent there, which version, logged in: what is said of each, and that it is asked once."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from adws.adw_modules.agents.base import profile
from adws.adw_modules.agents.preflight import AgentPreflight
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.redaction.redactor import Redactor
from adws.testing import FakeClock

CLAUDE = profile("claude")
ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "claude"

    def write(script):
        path.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/asked\n{script}\n")
        path.chmod(0o755)
        return path

    return write


def preflight(programs=None, **changes):
    settings = SimpleNamespace(agent_programs=programs)
    home = {
        "settings": settings,
        "clock": FakeClock(),
        "processes": SystemProcesses(clock=SystemClock()),
        "redactor": Redactor(),
        "env": ENV,
    }
    return AgentPreflight(SimpleNamespace(**{**home, **changes}))


def test_one_that_cannot_be_asked_for_its_log_in_is_not_asked(program):
    path = program("echo 1")

    state = preflight(programs={"claude": str(path)}).look(replace(CLAUDE, login_argv=()), ENV)

    assert (state.is_logged_in, state.problem) == (None, "")


@pytest.mark.parametrize(("script", "how"), [("exit 3", "exit code 3"), ("kill -9 $$", "signal 9")])
def test_one_that_is_broken_is_told(program, script, how):
    path = program(script)

    state = preflight(programs={"claude": str(path)}).look(CLAUDE, ENV)

    assert state.problem == f"{path} does not say its version ({how}): install it again"
    assert state.to_json()["problem"] == state.problem


def test_one_that_does_not_answer_is_not_waited_for(program):
    class Hurry(FakeClock):
        def monotonic(self):
            self.advance(5.0)
            return super().monotonic()

    path = program("cat /dev/zero | tail -c 0; sleep 1000")

    state = preflight(programs={"claude": str(path)}, clock=Hurry()).look(CLAUDE, ENV)

    assert "it took longer than 20 seconds" in state.problem


def test_one_that_is_not_there_is_told_with_what_to_do(tmp_path):
    asker = preflight(env={"PATH": str(tmp_path)})

    words = asker.missing(CLAUDE)

    assert words == "there is no program 'claude' in PATH: install it, or say where it is with agent.programs"
    assert asker.look(CLAUDE, ENV).problem == words
    assert asker.program(CLAUDE) == "claude"
