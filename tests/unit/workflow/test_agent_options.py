"""What a phase says to its agent, and what has to be seen of its work."""

from __future__ import annotations

import pytest

from adws.adw_modules.workflow.model import (
    OPTIONS,
    AgentOptions,
    Gate,
    PhaseSpec,
    evidence_of,
    problems_of,
)


def phase(**changes):
    return PhaseSpec(**{"name": "build", "state": "building", "runner": "agent", "prompt": "build", **changes})


ALL = {
    "model": "sonnet",
    "models": ["haiku", "opus"],
    "max_turns": 7,
    "arguments": ["--effort=low"],
    "session": "fresh",
    "budget_usd": 2,
    "permissions": "read",
    "evidence": "none",
}


def test_the_options_of_a_phase_are_read():
    assert set(ALL) == set(OPTIONS)
    assert list(problems_of(phase(options=ALL))) == []
    assert AgentOptions.model_validate(ALL).model_dump(mode="json") == ALL


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modle": "x"}, "'modle' is no option of an agent, did you mean model?"),
        ({"model": ""}, "the option model is '' and must be the name of a model"),
        ({"model": "--yolo"}, "the option model is '--yolo' and must be the name of a model"),
        ({"model": "a\nb"}, "must be the name of a model"),
        ({"models": "opus"}, "the option models is 'opus' and must be a list of names"),
        ({"models": []}, "must be a list of names"),
        ({"models": ["a", 1]}, "must be a list of names"),
        ({"max_turns": 0}, "must be a whole number from 1 to 10000"),
        ({"max_turns": 2.5}, "must be a whole number from 1 to 10000"),
        ({"max_turns": True}, "must be a whole number from 1 to 10000"),
        ({"arguments": "--x"}, "must be a list of texts"),
        ({"arguments": ["a\0b"]}, "must be a list of texts"),
        ({"session": "new"}, "must be one of continue, fresh"),
        ({"budget_usd": 0}, "must be an amount of US dollars, more than 0"),
        ({"budget_usd": "1"}, "must be an amount of US dollars"),
        ({"permissions": "root"}, "must be one of read, edit, all"),
        ({"evidence": "trust"}, "must be one of change, result, none"),
        ({"session": "x" * 100}, "..."),
    ],
)
def test_an_option_that_cannot_be_is_told(options, words):
    [problem] = problems_of(phase(options=options))

    assert words in problem
    assert len(problem) < 200


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({}, "change"),
        ({"state": "planning"}, "change"),
        ({"state": "testing"}, "result"),
        ({"state": "reviewing"}, "result"),
        ({"state": "documenting"}, "none"),
        ({"state": "building", "options": {"evidence": "none"}}, "none"),
        ({"state": "documenting", "options": {"evidence": "change"}}, "change"),
        ({"state": "planning", "gates": (Gate(kind="artifact", artifact="x"),)}, "none"),
        ({"state": "planning", "gates": (Gate(kind="human"),)}, "change"),
        ({"state": "building", "gates": (Gate(kind="command", shell="x"),)}, "change"),
        ({"state": "documenting", "gates": (Gate(kind="result"),)}, "result"),
        ({"state": "testing", "gates": (Gate(kind="command", shell="x"),)}, "result"),
        ({"state": "reviewing", "gates": (Gate(kind="artifact", artifact="x"),)}, "result"),
    ],
)
def test_what_has_to_be_seen_depends_on_what_the_phase_is_for(changes, evidence):
    assert evidence_of(phase(**changes)) == evidence
