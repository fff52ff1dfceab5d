"""What an agent gives back in its last answer, and what counts as a verdict."""

from __future__ import annotations

import pytest

from adws.adw_modules.agent import AgentReading
from adws.adw_modules.engine.runner_agent import answered_result, verdict_problem
from adws.adw_modules.errors import RunFailed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Done.", {}),
        ('Done.\n```json\n{"success": true}\n```', {"success": True}),
        ('```json\n{"a": 1}\n```\nno:\n```json\n{"a": 2}\n```\nbye', {"a": 2}),
        ('say ```json {"a": 1} ``` inline', {}),
    ],
)
def test_the_last_block_of_an_answer_is_its_result(text, found):
    assert answered_result(AgentReading(text=text)) == found


def test_what_the_agent_structured_itself_comes_first():
    assert answered_result(AgentReading(structured={"a": 1}, text='```json\n{"a": 2}\n```')) == {"a": 1}


def test_a_block_that_is_no_object_is_a_bad_result():
    with pytest.raises(RunFailed, match="it is not JSON"):
        answered_result(AgentReading(text="```json\n{nonsense\n```"))


def test_a_verdict_says_yes_or_no():
    for result, subtype in [
        ({"success": True}, None),
        ({"passed": True}, None),
        ({"rework": True}, None),
        ({"success": False, "rework": True}, None),
        ({}, "no_effect"),
        ({"summary": "fine"}, "bad_output"),
        ({"success": "true"}, "bad_output"),
        ({"success": True, "passed": False}, "bad_output"),
        ({"success": False}, "gate"),
        ({"passed": False, "summary": "3 failed"}, "gate"),
    ]:
        problem = verdict_problem(result)

        assert (problem.subtype if problem else None) == subtype, result
