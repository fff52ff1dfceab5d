"""An agent as the doctor, through the one driver: what it is asked, what it may do, what is made of its answer."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from adws.adw_modules.document import WorkflowRef
from adws.adw_modules.engine.advisor import Advice, AgentAdvisor, Case
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import GateFailed
from adws.adw_modules.workflow.model import WorkflowSpec, freeze
from tests.integration.agent_lab import SECRET, AgentWorld, phase

ANSWER = {"success": True, "summary": "decided", "decision": "replan", "reason": "the plan is wrong", "model": ""}


@pytest.fixture
def world(tmp_path):
    return AgentWorld(tmp_path)


def asked(world: AgentWorld, turn: dict) -> Advice:
    item = phase()
    world.document.workflow = WorkflowRef(**freeze(WorkflowSpec(name="tried", phases=(item,))))
    world.agent.plays(turn)
    home = SimpleNamespace(
        settings=SimpleNamespace(advisor_use="claude", agent_model={"advisor": "large"}),
        clock=world.clock,
        redactor=world.app.redactor,
        agent_runners={"claude": world.runner},
    )
    doctor = AgentAdvisor(home)
    facts = describe(GateFailed("build", f"{{{{goal}}}} fails with {SECRET}"), "build")
    return doctor.ask(
        Case(facts=facts, phase=item, record=world.record, document=world.document, context=world.context)
    )


def test_an_agent_decides_and_what_it_used_is_known(world):
    result = asked(world, {"answer": f"I looked.\n```json\n{json.dumps(ANSWER)}\n```"})

    assert (result.decision, result.reason) == ("replan", "the plan is wrong")
    assert (result.by, result.problem, result.report.cost_usd) == ("claude", "", 0.25)


def test_an_agent_is_asked_apart_from_the_attempt_and_sees_no_secret(world):
    asked(world, {"answer": f"```json\n{json.dumps(ANSWER)}\n```"})

    [call] = world.agent.calls
    assert world.facts == []  # the conversation of the attempt stays what it was
    # But a crash finds the process, and others learn that the provider answers.
    assert world.order_of_things == ["process", "answered"]
    assert SECRET not in call["prompt"]
    assert "{ {goal} }" in call["prompt"]
    assert "retry_model" in call["prompt"]
    assert call["prompt"].count("write one JSON object") == 1
    assert any("large" in argument for argument in call["argv"])
    assert not any(argument.startswith("--resume") for argument in call["argv"])
    assert (world.folder / "phases/build-doctor/attempt-1.case.md").exists()


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        ({"answer": "try again, I guess"}, "no result"),
        ({"answer": '```json\n{"success": true, "decision": "panic", "reason": "x"}\n```'}, "its decision is 'panic'"),
        ({"exit_code": 1, "answer": "oops"}, ""),
    ],
    ids=["no-object", "no-decision", "failed"],
)
def test_an_agent_whose_answer_is_no_use_leaves_it_to_what_was_judged(world, turn, problem):
    result = asked(world, turn)

    assert result.decision == "retry"
    assert problem in result.problem
    assert result.problem
    assert result.report is not None
