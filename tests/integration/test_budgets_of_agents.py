"""
Budgets around a fake agent, through the real worker and the real prices.

A million tokens of the model that the agent names cost 3 USD to read; the agent says sums of its whole conversation.
"""

from __future__ import annotations

import signal

import pytest

from adws.adw_modules.errors import UsageError
from adws.adw_modules.workflow.model import PhaseSpec
from tests.integration.agent_lab import FakeAgent
from tests.integration.work_lab import QUICK, make_work_lab

BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=2)
MILLION = 1_000_000
CHANGE = ["echo built >> app.py"]
#: Reads a million tokens, says so, and works on without an end.
DEAR = {"hang": "during", "tokens": MILLION}


def built(total=0.25, tokens=100, output=10, own=None):
    """A success with its sums; *own* are the tokens of this call alone, where the sums are of the conversation."""
    usage = {"claude-sonnet-5": {"inputTokens": tokens, "outputTokens": output}}
    told = {"total_cost_usd": total, "modelUsage": usage}
    return {"do": CHANGE, "answer": "Built.", "result": told, "tokens": tokens if own is None else own}


@pytest.fixture
def agent(tmp_path):
    return FakeAgent(tmp_path / "agent")


@pytest.fixture
def make(tmp_path, agent, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-a-real-key")

    def lab(**env):
        return make_work_lab(tmp_path, ADW_AGENT_PROGRAMS=f"claude={agent.program}", ADW_ADVISOR_USE="off", **env)

    return lab


def attempts(lab, adw_id):
    return lab.document(adw_id).phases[-1].attempts


def resume(lab, adw_id, **how):
    with lab.open() as app:
        app.control.resume(adw_id, by="someone", **how)


def test_the_cap_stops_a_running_agent_and_a_raised_one_lets_its_conversation_go_on(make, agent):
    lab = make(ADW_QUOTA_MAX_COST="2")
    agent.plays(DEAR, built(total=3.5, tokens=MILLION + 50, output=20, own=50))
    adw_id = lab.start(BUILD)

    lab.work()

    document, (first,) = lab.document(adw_id), attempts(lab, adw_id)
    assert (document.current_state, document.terminal_reason) == ("failed", "BUDGET")
    assert (first.error["klass"], first.report["usage"]["is_estimated"]) == ("budget", True)
    assert document.cost.total_usd == pytest.approx(3.00015), "a million to read, 10 to write"
    assert "about 3.0002 USD, and the workflow may cost 2.0000 USD" in first.error["message"]
    with pytest.raises(UsageError, match=f"adw resume {adw_id} --budget USD"):
        resume(lab, adw_id)

    resume(lab, adw_id, budget=10.0)
    lab.work()

    document, (first, second) = lab.document(adw_id), attempts(lab, adw_id)
    assert document.current_state == "completed"
    assert f"--resume={first.agent['session_id']}" in agent.calls[1]["argv"]
    assert second.report["cost_usd"] == pytest.approx(3.5 - 3.00015), "the sum of the conversation, less what was there"
    assert second.report["usage"]["tokens"] == {"input": 50, "output": 10}
    assert (second.report["usage"]["scope"], second.report["usage"]["reported_usd"]) == ("conversation", 3.5)
    assert document.cost.total_usd == pytest.approx(3.5)
    assert document.cost.token_counts == {"input": MILLION + 50, "output": 20}
    assert document.cost.by_provider == {"anthropic": pytest.approx(3.5)}
    assert document.cost.is_estimated


def test_what_all_may_spend_in_a_day_stops_an_agent_too(make, agent):
    lab = make(ADW_QUOTA_MAX_COST_PER_DAY="1")
    agent.plays(DEAR)
    adw_id = lab.start(BUILD)

    lab.work()

    (first,) = attempts(lab, adw_id)
    assert "1.0000 USD were left for today: wait until midnight UTC" in first.error["message"]


def test_a_subscription_is_stopped_by_no_budget_and_counts_nothing(make, agent):
    lab = make(ADW_QUOTA_MAX_COST="0.01", ADW_AGENT_BILLING="subscription")
    agent.plays({**built(total=9.0, tokens=MILLION), "tokens": MILLION})
    adw_id = lab.start(BUILD)

    lab.work()

    document, (only,) = lab.document(adw_id), attempts(lab, adw_id)
    assert (document.current_state, document.cost.total_usd) == ("completed", 0.0)
    assert (only.report["usage"]["is_subscription"], only.report["usage"]["cost_usd"]) == (True, 9.0)
    assert document.cost.token_counts["input"] == MILLION


def test_an_attempt_that_was_killed_has_cost_what_it_used(make, agent):
    lab = make()
    dying = {"signal": int(signal.SIGKILL), "tokens": MILLION}
    agent.plays(dying, built(total=3.5, tokens=MILLION + 100, output=20, own=100))
    adw_id = lab.start(BUILD)

    lab.work()

    first, second = attempts(lab, adw_id)
    assert (first.status, second.status) == ("failed", "succeeded")
    assert first.report["cost_usd"] == pytest.approx(3.00015)
    assert lab.document(adw_id).cost.total_usd == pytest.approx(3.5)


#: An attempt that changes nothing fails, and the next one resumes its conversation.
IDLE = {**built(total=0.25, tokens=100), "do": []}


def test_every_attempt_counts_when_the_agent_reports_the_cost_of_each_call(make, agent):
    lab = make()
    agent.plays(IDLE, built(total=0.25, tokens=90))
    adw_id = lab.start(BUILD)

    lab.work()

    document, (first, second) = lab.document(adw_id), attempts(lab, adw_id)
    assert f"--resume={first.agent['session_id']}" in agent.calls[1]["argv"]
    assert (first.report["cost_usd"], second.report["cost_usd"]) == (0.25, 0.25)
    assert (first.report["usage"]["scope"], second.report["usage"]["scope"]) == ("either", "call")
    assert (document.cost.total_usd, document.cost.token_counts) == (0.5, {"input": 190, "output": 20})
    assert document.warnings == []


def test_a_cost_that_may_be_of_the_attempt_or_of_its_conversation_counts_in_full_with_a_warning(make, agent):
    lab = make()
    # More than this call, and less than this call and the one before together.
    agent.plays(IDLE, built(total=0.45, tokens=160, output=20, own=90))
    adw_id = lab.start(BUILD)

    lab.work()

    document, (_, second) = lab.document(adw_id), attempts(lab, adw_id)
    assert (document.current_state, second.report["usage"]["scope"]) == ("completed", "unclear")
    assert document.cost.total_usd == pytest.approx(0.7)
    (warning,) = document.warnings
    assert warning.startswith("build: claude-sonnet-5 reported 0.4500 USD, and its tokens do not show whether")
    with lab.open() as app:
        types = [event.event_type for event in app.events.of_workflow(adw_id)]
    assert types.count("cost_unclear") == 1


def test_a_model_without_a_price_is_of_unknown_cost_until_the_user_gives_one(make, agent):
    lab = make()
    dying = {"signal": int(signal.SIGKILL), "tokens": MILLION}
    agent.plays(dying)
    phase = PhaseSpec(
        name="build", state="building", runner="agent", prompt="build", max_attempts=1, options={"model": "mine-7"}
    )
    unknown = lab.start(phase)
    lab.work()
    (lab.home / "adw.toml").write_text("[prices.mine-7]\ninput = 1\noutput = 0\n")
    known = lab.start(phase, title="Another thing")
    lab.work()

    (first,), (second,) = attempts(lab, unknown), attempts(lab, known)
    assert (first.report["usage"]["cost_usd"], "cost_usd" in first.report) == (None, False)
    assert (second.report["cost_usd"], second.report["usage"]["is_estimated"]) == (1.0, True)
