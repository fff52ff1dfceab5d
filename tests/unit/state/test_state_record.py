"""
The state machine and its document: nothing is lost either way, and what no legal moves led to is refused.
"""

from __future__ import annotations

import pytest

from adws.adw_modules import document
from adws.adw_modules.errors import (
    AdwError,
    StateInvalid,
    UsageError,
)
from adws.adw_modules.state_machine import (
    HISTORY_LIMIT,
    Position,
    WorkflowStateMachine,
)
from tests.unit.state_cases import (
    ADW_ID,
    TABLE,
    S,
    Ticking,
    a_document,
    entry,
    machine,
    reloaded,
    snapshot,
    stored,
    way_to,
)

# --- documents -------------------------------------------------------------------------------------------------


def test_a_machine_comes_back_from_its_document_as_it_was():
    for state in list(S):
        made = machine(*way_to(state))

        assert snapshot(reloaded(made)) == snapshot(made), state
        assert stored(made).current_state == state.value, state


def test_every_field_of_a_position_comes_back():
    doc = a_document(
        current_state="paused",
        resume_state="testing",
        failed_phase="building",
        furthest_failed="reviewing",
        retry_count=2,
        retry_marks=1,
        max_retries=5,
        retries_granted=2,
        reworks=1,
        max_reworks=4,
        pr_merged=True,
        rollback=document.RollbackRecord(reason="asked"),
        state_history=[entry("planning", "paused", source="v1_migration")],
    )
    made = WorkflowStateMachine.of(doc)

    assert made.position == Position(
        state=S.PAUSED,
        resume_state=S.TESTING,
        failed_phase=S.BUILDING,
        furthest_failed=S.REVIEWING,
        retry_count=2,
        retry_marks=1,
        max_retries=5,
        retries_granted=2,
        reworks=1,
        max_reworks=4,
        is_merged=True,
        is_rolling_back=True,
    )
    assert reloaded(made).position == made.position
    defaults = Position()
    assert [name for name in Position._fields if getattr(made.position, name) == getattr(defaults, name)] == []


def test_writing_adds_only_the_moves_a_document_does_not_have():
    doc = a_document()
    made = machine(S.PLANNING)
    made.write_into(doc)
    first = doc.state_history[0]
    made.transition(S.BUILDING, {"note": [1]})

    made.write_into(doc)
    made.write_into(doc)

    assert doc.state_history[0] is first
    assert [move.to_state for move in doc.state_history] == ["planning", "building"]
    doc.state_history[1].metadata["note"].append(2)
    assert made.state_history[1]["metadata"] == {"note": [1]}


def test_a_document_that_lags_far_behind_gets_the_moves_that_are_kept():
    made = machine(S.PLANNING)
    lagging = a_document()
    made.write_into(lagging)
    for _ in range(HISTORY_LIMIT):
        made.transition(S.PAUSED)
        made.transition(S.PLANNING)

    made.write_into(lagging)

    assert [dict(move) for move in WorkflowStateMachine.of(lagging).state_history] == made.state_history
    assert lagging.history_dropped == made.history_dropped


def test_a_machine_is_not_written_into_the_document_of_another_workflow():
    with pytest.raises(UsageError, match="the machine of 1a2b3c4d cannot be written into the document of ffffffff"):
        machine().write_into(a_document(adw_id="ffffffff"))


@pytest.mark.parametrize(
    "path",
    [[S.PLANNING, S.BUILDING], [S.PLANNING, S.BUILDING, S.LINTING, S.TESTING], [S.PAUSED]],
    ids=["ahead", "far-ahead", "elsewhere"],
)
def test_a_machine_is_not_written_over_moves_it_does_not_know(path):
    doc = a_document()
    machine(*path).write_into(doc)
    before = doc.model_dump()

    with pytest.raises(UsageError, match="has moves this machine does not know: load it again"):
        machine(S.PLANNING).write_into(doc)

    assert doc.model_dump() == before


def test_unknown_keys_of_a_history_entry_survive():
    doc = a_document()
    machine(S.PLANNING).write_into(doc)
    doc.state_history[0] = document.HistoryEntry.model_validate(
        {**doc.state_history[0].model_dump(by_alias=True), "x": 1}
    )

    made = WorkflowStateMachine.of(doc)

    assert made.state_history[0]["x"] == 1
    assert reloaded(made).state_history[0]["x"] == 1


def test_the_table_comes_from_the_workflow_frozen_in_the_document():
    phases = [{"name": "build", "state": "building"}, {"name": "unit", "state": "testing"}]
    doc = a_document(workflow=document.WorkflowRef(name="small", phases=phases))

    assert WorkflowStateMachine.of(doc).legal_targets()[0] is S.BUILDING
    assert WorkflowStateMachine.of(doc, table=TABLE).legal_targets()[0] is S.PLANNING


@pytest.mark.parametrize(
    ("phase", "why"),
    [
        ({"name": "build"}, "phase build has no state it runs under: None is not a workflow state"),
        ({"state": "works"}, "phase number 1 has no state it runs under: 'works' is not a workflow state"),
    ],
)
def test_a_frozen_phase_without_a_state_is_named(phase, why):
    doc = a_document(workflow=document.WorkflowRef(name="small", phases=[phase]))

    with pytest.raises(StateInvalid, match=why):
        WorkflowStateMachine.of(doc)


def test_moves_before_and_by_a_migration_are_taken_as_they_are():
    history = [
        entry("started", "building"),
        entry("pending", "testing", source="v1_migration"),
        entry("testing", "reviewing"),
    ]
    made = WorkflowStateMachine.of(a_document(current_state="reviewing", state_history=history))

    assert len(made.state_history) == 3


def test_a_document_without_a_history_gets_a_move_that_says_so():
    made = WorkflowStateMachine.of(a_document(current_state="testing"), now=Ticking().now)

    assert made.state_history == [
        {
            "from": "pending",
            "to": "testing",
            "timestamp": "2026-01-31T09:00:00.000000Z",
            "metadata": {"source": "history_migration", "reason": "the document had no history"},
        }
    ]
    made.transition(S.REVIEWING)
    assert snapshot(reloaded(made)) == snapshot(made)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"current_state": "running"}, "current_state is 'running'; in this workflow it may be: pending, planning"),
        ({"resume_state": "completed"}, "resume_state is 'completed'; in this workflow it may be: pending, planning"),
        ({"failed_phase": "pending"}, "failed_phase is 'pending'; in this workflow it may be: planning, building"),
        ({"furthest_failed": "x"}, "furthest_failed is 'x'; in this workflow it may be: planning"),
        ({"retry_count": -1, "reworks": -2}, "retry_count, reworks cannot be below 0"),
        ({"retry_marks": 1}, "retry_marks is 1, above retry_count 0"),
        ({"history_dropped": 2}, "its history is empty, though 2 older moves are counted"),
        (
            {"current_state": "testing", "state_history": [entry("pending", "planning")]},
            "current_state is 'testing', but its history leads to 'planning'",
        ),
        (
            {"current_state": "building", "state_history": [entry("planning", "building")]},
            r"its history starts with planning -> building \(2026-01-31T09:00:00.000000Z\), not in pending",
        ),
        (
            {"current_state": "testing", "state_history": [entry("pending", "testing")]},
            "its history has the move pending -> testing .*, which its table does not have",
        ),
        (
            {"current_state": "linting", "state_history": [entry("pending", "planning"), entry("building", "linting")]},
            "its history has a gap between pending -> planning .* and building -> linting",
        ),
        (
            {
                "current_state": "linting",
                "state_history": [entry("pending", "planning", source="v1_migration"), entry("building", "linting")],
            },
            "its history has a gap between pending -> planning .* and building -> linting",
        ),
    ],
)
def test_a_document_that_no_legal_moves_led_to_is_refused(fields, why):
    with pytest.raises(StateInvalid, match=f"the document of {ADW_ID} is not valid: {why}"):
        WorkflowStateMachine.of(a_document(**fields))


def test_a_history_whose_start_was_let_go_may_start_anywhere():
    doc = a_document(current_state="linting", state_history=[entry("building", "linting")], history_dropped=2)

    assert WorkflowStateMachine.of(doc).history_dropped == 2


def test_an_older_document_that_names_only_the_phase_that_failed_sets_its_count_back_there():
    doc = a_document(
        current_state="building",
        failed_phase="building",
        retry_count=2,
        state_history=[entry("failed", "building", source="v2_migration")],
    )
    made = WorkflowStateMachine.of(doc, now=Ticking().now)

    made.transition(S.LINTING)

    assert made.retry_count == 0


# --- several definitions one after the other -------------------------------------------------------------------


def continued(**changes) -> document.WorkflowDocument:
    """A document that was planned under a definition without building, and then built."""
    moves = [
        entry("pending", "planning"),
        entry("planning", "completed"),
        entry("completed", "building", reason="continued"),
    ]
    phases = [{"name": "plan", "state": "planning"}, {"name": "build", "state": "building"}]
    earlier = [{"name": "plan", "version": "1", "states": ["planning"], "moves": 2}]
    reference = {"name": "build", "phases": phases, "earlier": earlier, **changes}

    return a_document(
        current_state="building", state_history=moves, workflow=document.WorkflowRef.model_validate(reference)
    )


def test_each_move_is_checked_by_the_table_of_the_definition_it_was_made_under():
    made = WorkflowStateMachine.of(continued())

    assert (made.current_state, len(made.state_history)) == (S.BUILDING, 3)
    assert made.legal_targets() == (S.COMPLETED, S.PAUSED, S.FAILED, S.ABANDONED)


@pytest.mark.parametrize(
    ("earlier", "why"),
    [
        ([], "planning -> completed .* which its table does not have"),
        ([{"states": ["planning"], "moves": 1}], "planning -> completed .* which its table does not have"),
        ([{"states": ["planning"], "moves": 3}], "completed -> building .* which its table does not have"),
        ([{"states": ["planning"]}], "definition 1 of those before the present one is not whole"),
        ([{"states": ["paused"], "moves": 2}], "cannot run under paused"),
        ([{"states": ["flying"], "moves": 2}], "has no state it runs under"),
        (
            [{"states": ["planning"], "moves": 2}, {"states": ["planning"], "moves": 1}],
            "definition 2 of those before the present one is not whole",
        ),
    ],
)
def test_a_history_that_no_definition_allowed_is_refused(earlier, why):
    with pytest.raises(AdwError, match=why):
        WorkflowStateMachine.of(continued(earlier=earlier))


def test_a_definition_whose_moves_are_dropped_is_not_asked_any_more():
    made = continued(earlier=[{"states": ["planning"], "moves": 12}])
    made.state_history, made.history_dropped = made.state_history[1:], 11

    assert WorkflowStateMachine.of(made).current_state is S.BUILDING
