"""The wiring of agents in a real home: model sets, budgets, prices, and looking at them."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.workflow.model import PhaseSpec
from tests.integration.agent_lab import FakeAgent
from tests.integration.work_lab import QUICK, make_work_lab

BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=2)
BUILT = {"do": ["echo built >> app.py"], "answer": "Built."}


@pytest.fixture
def agent(tmp_path):
    return FakeAgent(tmp_path / "agent")


def make_lab(tmp_path, agent, **env):
    return make_work_lab(tmp_path, ADW_AGENT_PROGRAMS=f"claude={agent.program}", ADW_ADVISOR_USE="off", **env)


def test_the_model_set_of_a_workflow_reaches_the_agent_and_stands_on_the_attempt(tmp_path, agent):
    lab = make_lab(tmp_path, agent)
    agent.plays(BUILT)
    adw_id = lab.start(BUILD, model_set="heavy")

    lab.work()

    [attempt] = lab.document(adw_id).phases[0].attempts
    assert "--model=opus" in agent.calls[0]["argv"]
    assert (attempt.model, attempt.agent["model"]) == ("opus", "opus")


def test_a_workflow_that_has_spent_its_cap_starts_no_agent_any_more(tmp_path, agent):
    lab = make_lab(tmp_path, agent, ADW_QUOTA_MAX_COST="0.25", ADW_AGENT_BILLING="api")
    plan = PhaseSpec(name="plan", state="planning", runner="agent", prompt="plan", retry=QUICK)
    agent.plays(BUILT)
    adw_id = lab.start(plan, BUILD)

    lab.work()

    document = lab.document(adw_id)
    assert "--max-budget-usd=0.2500" in agent.calls[0]["argv"]
    assert len(agent.calls) == 1
    assert document.cost.total_usd == 0.25
    assert document.current_state != "completed"


def test_prices_that_are_none_are_told(tmp_path, agent):
    lab = make_lab(tmp_path, agent)
    (lab.home / "adw.toml").write_text("[prices.x]\ninput = -1\noutput = 0\n")

    with lab.open() as app, pytest.raises(ConfigError, match=r"\[prices\.x\]: input is -1"):
        _ = app.cost_of


def test_agents_are_looked_at_with_the_variables_they_would_get(tmp_path, agent, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_ours")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "theirs")
    agent.program.write_text(f'#!/bin/sh\nenv > {agent.place}/env\necho "1.0"\n')

    with make_lab(tmp_path, agent).open() as app:
        profile, state = app.look_at_agent("claude")

    seen = (agent.place / "env").read_text()
    assert (profile.name, state.version, state.is_logged_in) == ("claude", "1.0", True)
    assert "ANTHROPIC_API_KEY=theirs" in seen
    assert "ghp_ours" not in seen
