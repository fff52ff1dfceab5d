"""
The states, the literal table, the tables derived from smaller workflows, and the proof that a table is sound.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import (
    BadWorkflowGraph,
)
from adws.adw_modules.state_machine import (
    PHASE_STATES,
    PIPELINE,
    TERMINAL_STATES,
    WorkflowStateMachine,
    check_table,
    derive_table,
    is_terminal,
)
from tests.unit.state_cases import (
    ADW_ID,
    TABLE,
    S,
    machine,
    refuse,
)

# --- states as documents name them -----------------------------------------------------------------------------


def test_a_document_names_an_end_by_the_value_of_its_state():
    assert {state for state in S if is_terminal(state.value)} == TERMINAL_STATES


# --- tables of smaller workflows -------------------------------------------------------------------------------


def test_the_table_derived_from_the_whole_pipeline_is_the_literal_one():
    assert dict(derive_table([(state.value, state) for state in PIPELINE])) == dict(TABLE)


def test_a_workflow_with_fewer_phases_skips_the_others():
    table = derive_table([("plan", S.PLANNING), ("build", S.BUILDING), ("test", S.TESTING)])
    made = machine(S.PLANNING, S.BUILDING, S.TESTING, table=table)

    error = refuse(made, S.REVIEWING, "this workflow has no reviewing phase")
    assert error.legal == ("completed", "building", "paused", "failed", "abandoned")
    made.transition(S.COMPLETED)
    assert set(table) == set(S) - {S.LINTING, S.REVIEWING, S.DOCUMENTING, S.SHIPPING, S.CLEANING}


def test_a_workflow_without_planning_cannot_be_planned_again():
    made = machine(S.BUILDING, S.FAILED, table=derive_table([("build", S.BUILDING)]))

    refuse(made, S.PLANNING, "this workflow has no planning phase")
    assert made.legal_targets() == (S.BUILDING, S.ROLLED_BACK, S.ABANDONED)


def test_work_is_sent_back_only_where_there_is_a_building_phase():
    assert S.BUILDING not in derive_table([("test", S.TESTING), ("review", S.REVIEWING)])[S.TESTING]
    assert S.BUILDING in derive_table([("build", S.BUILDING), ("review", S.REVIEWING)])[S.REVIEWING]


def test_phases_that_share_a_state_are_one_state_of_the_table():
    shared = derive_table([("build", S.BUILDING), ("unit", S.TESTING), ("e2e", S.TESTING)])

    assert shared == derive_table([("build", S.BUILDING), ("test", S.TESTING)])
    assert S.TESTING not in shared[S.TESTING]


@pytest.mark.parametrize("state", PIPELINE)
def test_a_completed_workflow_is_carried_on_at_any_phase_it_has(state):
    made = machine(*PIPELINE, S.COMPLETED)

    made.transition(state, {"reason": "continued"})

    assert made.current_state is state
    assert made.state_history[-1]["metadata"] == {"reason": "continued"}


@pytest.mark.parametrize("state", [*PIPELINE[:-1], S.ROLLED_BACK])
def test_after_a_merge_a_completed_workflow_is_only_cleaned_up(state):
    made = machine(*PIPELINE, S.COMPLETED)
    made.mark_merged()

    refuse(made, state, "its pull request is merged")
    assert made.legal_targets() == (S.CLEANING,)


def test_every_table_that_can_be_derived_is_sound():
    for bits in range(1, 1 << len(PIPELINE)):
        states = [state for number, state in enumerate(PIPELINE) if bits >> number & 1]

        table = derive_table([(state.value, state) for state in states])

        check_table(table)
        assert PHASE_STATES & set(table) == set(states)


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        ([], "a workflow needs at least one phase"),
        ([("wait", S.PAUSED)], "phase 'wait' cannot run under paused; a phase runs under: planning, building"),
        (
            [("test", S.TESTING), ("lint", S.LINTING)],
            r"phase 'lint' \(linting\) comes after 'test' \(testing\), but the pipeline has linting first",
        ),
    ],
)
def test_phases_that_make_no_pipeline_are_refused_with_the_reason(phases, why):
    with pytest.raises(BadWorkflowGraph, match=why):
        derive_table(phases)


def changed(**rows) -> dict:
    """The full table with some rows replaced; None takes one out."""
    table = {**TABLE, **{S[name]: row for name, row in rows.items()}}
    return {state: row for state, row in table.items() if row is not None}


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (changed(PENDING=None), "the table has no pending state"),
        (changed(PENDING=(S.FAILED,)), "no phase can be begun from pending"),
        (changed(LINTING=None), "linting is the target of a move but has no row"),
        (
            changed(BUILDING=(S.TESTING,), FAILED=(S.ABANDONED,), PAUSED=(S.ABANDONED,), COMPLETED=(S.ROLLED_BACK,)),
            "linting cannot be reached from pending",
        ),
        (changed(ABANDONED=()), "abandoned has no way out"),
        (
            {S.PENDING: (S.PLANNING, S.COMPLETED), S.PLANNING: (S.PAUSED,), S.PAUSED: (S.PLANNING,), S.COMPLETED: ()},
            "planning, paused has no path to an end",
        ),
    ],
    ids=["no-start", "no-entry", "unknown", "unreachable", "trap", "no-end"],
)
def test_an_unsound_table_is_refused_and_the_state_named(table, why):
    with pytest.raises(BadWorkflowGraph, match=why):
        check_table(table)
    with pytest.raises(BadWorkflowGraph, match=why):
        WorkflowStateMachine(ADW_ID, table=table)
