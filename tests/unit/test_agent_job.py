"""What the end of an agent means, as far as its words and its process tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules import agents
from adws.adw_modules.agent import AgentReading
from adws.adw_modules.engine.runners.agent_job import failure_of
from adws.adw_modules.interfaces_engine import Order
from adws.adw_modules.process_run import ProcessEnd

CLAUDE = agents.profile("claude")
DONE = AgentReading(has_result=True, text="done")
END = ProcessEnd(exit_code=0, signal=None, timed_out=None, ordered=None, duration=1.0, tail="")


def test_nothing_speaks_against_an_agent_that_said_its_result_and_ended_well():
    assert failure_of(CLAUDE, DONE, END) is None


@pytest.mark.parametrize("reading", [DONE, replace(DONE, denials=("Write",))])
def test_what_could_not_be_ended_speaks_against_it_whatever_it_said(reading):
    failure = failure_of(CLAUDE, reading, replace(END, survivors=("sleep (77)",)))

    assert "what it started could not be ended: sleep (77)" in failure.text


def test_an_agent_without_a_result_has_failed_even_if_its_own_verdict_lets_it_pass():
    trusting = replace(CLAUDE, failure=lambda _reading, _end: None)

    assert failure_of(trusting, AgentReading(), END).text == "it ended without saying its result"
    silent = replace(trusting, capabilities=replace(CLAUDE.capabilities, tells_result=False))
    assert failure_of(silent, AgentReading(), END) is None


def test_an_agent_that_was_ended_on_order_has_not_failed():
    assert failure_of(CLAUDE, AgentReading(), replace(END, ordered=Order(kind="drain"))) is None
