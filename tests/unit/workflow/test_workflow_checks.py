"""
How the phases of a workflow hang together: order, needs, tiers, rework.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.state_machine import PIPELINE
from adws.adw_modules.workflow.checks import check_workflow
from adws.adw_modules.workflow.model import DefinitionProblem, PhaseSpec, WorkflowSpec

STATES = {"plan": "planning", "build": "building", "lint": "linting", "test": "testing", "review": "reviewing"}


def phase(name, **fields):
    return PhaseSpec(
        **{"name": name, "state": STATES.get(name, "building"), "runner": "command", "shell": "x"} | fields
    )


def problems(*phases, **fields):
    spec = WorkflowSpec(**{"name": "mine", "phases": phases} | fields)
    return check_workflow(spec, runners=("command",), has_file=lambda _name: False)


def said(*phases):
    """What is wrong, as (key, message)."""
    return [(problem.path[1:], problem.message) for problem in problems(*phases)]


def test_a_sound_workflow_has_no_problem():
    assert (
        problems(
            phase("plan"),
            phase("build", needs=("plan",)),
            phase("lint", tier=1, is_required=False, needs=("build",)),
            phase("test", tier=1, on_rework="build"),
            phase("extra", state="testing", tier=1, is_required=False, needs=("lint",)),
            phase("review", tier=3, needs=("plan", "test"), on_rework="build"),
        )
        == []
    )


def test_a_workflow_needs_a_phase():
    assert problems() == [DefinitionProblem(path=("phases",), message="a workflow needs at least one phase")]


@pytest.mark.parametrize("name", ["", "my flow", "../x", "-x", "a" * 65, None, 7])
def test_a_workflow_is_named_by_letters_and_digits(name):
    [problem] = problems(phase("build"), name=name)

    assert problem.path == ()
    assert f"{name!r} cannot be the name of a workflow" in problem.message


def test_a_problem_of_a_phase_names_the_phase_and_its_place():
    [problem] = problems(phase("plan"), phase("build", runner="comand"))

    assert problem.path == ("phases", 1, "runner")
    assert problem.message == "phase 'build': there is no runner 'comand', did you mean command?"


@pytest.mark.parametrize(
    ("phases", "path", "message"),
    [
        (
            (phase("build"), phase("lint"), phase("build", state="testing")),
            (2, "name"),
            "there are two phases called 'build': give one of them another name",
        ),
        (
            (phase("plan", tier=1), phase("build"), phase("lint", tier=2)),
            (1, "tier"),
            "phase 'build' (tier 0) comes after 'plan' (tier 1): a tier can only be followed by itself or a later one",
        ),
    ],
)
def test_names_are_unique_and_tiers_never_go_down(phases, path, message):
    assert said(*phases) == [(path, message)]


# --- states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("buidling", "phase 'build': 'buidling' is no state, did you mean building?"),
        ("", "phase 'build': '' is no state; a phase runs under: planning, building, linting"),
        ("completed", "phase 'build' cannot run under completed; a phase runs under: planning"),
        ("pending", "phase 'build' cannot run under pending"),
    ],
)
def test_a_phase_runs_under_a_state_of_the_pipeline(state, words):
    [(path, message)] = said(phase("plan"), phase("build", state=state), phase("test"))

    assert path == (1, "state")
    assert message.startswith(words)


@given(st.lists(st.sampled_from(PIPELINE), min_size=1, max_size=9))
def test_exactly_the_orders_of_the_pipeline_are_accepted(states):
    result = said(*(phase(f"p{index}", state=state.value) for index, state in enumerate(states)))

    assert (result == []) == (states == sorted(states, key=PIPELINE.index))


# --- needs and tiers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "path", "words"),
    [
        (
            [phase("plan"), phase("build", needs=("plna",))],
            (1, "needs", 0),
            "phase 'build' needs 'plna', but there is no such phase, did you mean plan?",
        ),
        (
            [phase("plan"), phase("build", needs=("plan", "zzz"))],
            (1, "needs", 1),
            "phase 'build' needs 'zzz', but there is no such phase; there are: plan, build",
        ),
        (
            [phase("plan", needs=("build",)), phase("build")],
            (0, "needs", 0),
            "phase 'plan' needs 'build', which comes later, so it could never start",
        ),
        (
            [phase("plan", needs=("build",)), phase("build", tier=2)],
            (0, "needs", 0),
            "phase 'plan' needs 'build' of the later tier 2, so it could never start",
        ),
        (
            [phase("plan", is_required=False), phase("build", needs=("plan",))],
            (1, "needs", 0),
            "phase 'build' needs 'plan', which may fail without ending the workflow, and then it could never start",
        ),
        ([phase("plan", needs=("plan",))], (0, "needs"), "phase 'plan' needs itself"),
        (
            [phase("plan"), phase("build", needs=("test",)), phase("lint"), phase("test", needs=("lint", "build"))],
            (1, "needs"),
            "the phases 'build', 'test' need each other, so none could ever start: take one need away",
        ),
    ],
    ids=["unknown", "unlike-any", "later", "later-tier", "optional", "itself", "circle"],
)
def test_a_need_that_can_never_be_met_is_refused(phases, path, words):
    [(found_path, message)] = said(*phases)

    assert found_path == path
    assert message.startswith(words)


def test_each_circle_is_told_once_and_what_waits_for_it_is_not_in_it():
    result = said(
        phase("a", needs=("b",)),
        phase("b", needs=("c",)),
        phase("c", needs=("a",)),
        phase("d", needs=("e",)),
        phase("e", needs=("d",)),
        phase("f", needs=("a",)),
    )

    assert [path for path, _ in result] == [(0, "needs"), (3, "needs")]
    assert "'a', 'b', 'c'" in result[0][1]
    assert "'d', 'e'" in result[1][1]


@given(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=6))
def test_a_definition_without_problems_can_run_to_its_end(needs):
    """
    The oracle is the run itself: in the order they are written, each phase finds its needs complete.
    """
    phases = [phase(f"p{index}", needs=tuple(f"p{n}" for n in needed)) for index, needed in enumerate(needs)]
    runs = all(n < index for index, needed in enumerate(needs) for n in needed)

    assert (said(*phases) == []) == runs


# --- rework ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        (
            [phase("build"), phase("test", on_rework="biuld")],
            "phase 'test' cannot go back to 'biuld': there is no such phase, did you mean build?",
        ),
        ([phase("build"), phase("test", on_rework="review"), phase("review")], "it does not come earlier"),
        ([phase("build"), phase("test", on_rework="test")], "it does not come earlier"),
        (
            [phase("build"), phase("lint", on_rework="build")],
            "only phases under reviewing or shipping or testing can ask for rework, and it runs under linting",
        ),
        (
            [phase("plan"), phase("build"), phase("test", on_rework="plan")],
            "rework goes to a phase under building, and 'plan' runs under planning",
        ),
    ],
    ids=["unknown", "later", "itself", "from-lint", "to-plan"],
)
def test_rework_goes_from_tests_reviews_and_shipping_back_to_building(phases, words):
    [(path, message)] = said(*phases)

    assert path[1] == "on_rework"
    assert words in message


# --- together --------------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once():
    result = problems(
        phase("test", runner="x", tier=2),
        phase("build", max_attempts=0, needs=("nope",), on_rework="nope"),
        phase("build", state="nope"),
        name="no name",
        version="",
    )

    assert {problem.path for problem in result} == {
        (),
        ("version",),
        ("phases", 0, "runner"),
        ("phases", 1, "max_attempts"),
        ("phases", 2, "name"),
        ("phases", 2, "state"),
        ("phases", 1, "state"),
        ("phases", 1, "tier"),
        ("phases", 1, "needs", 0),
        ("phases", 1, "on_rework"),
    }


def test_phases_of_another_type_are_named_and_their_order_not_asked():
    result = problems(phase("build", needs="plan"), phase("plan", tier="x"))

    assert [problem.path for problem in result] == [("phases", 0, "needs"), ("phases", 1, "tier")]
