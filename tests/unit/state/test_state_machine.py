"""
The state machine: every move that is no edge, every guard, every counter.
"""

from __future__ import annotations

import ast
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules import default_home, document
from adws.adw_modules.errors import (
    IllegalTransition,
    InvalidAdwId,
    RetriesExhausted,
    StateUnserialisable,
    UsageError,
)
from adws.adw_modules.state_machine import (
    ACTIVE_STATES,
    HISTORY_LIMIT,
    PARKED_STATES,
    PHASE_STATES,
    PIPELINE,
    TERMINAL_STATES,
    StateTransition,
    WorkflowStateMachine,
    derive_table,
    end_of_cleaning,
    is_rework,
)
from tests.unit.state_cases import (
    ADW_ID,
    EDGES,
    START,
    TABLE,
    S,
    Ticking,
    a_document,
    entry,
    machine,
    refuse,
    reloaded,
    snapshot,
    way_to,
)

PACKAGE = Path(document.__file__).parents[1]


# --- states and the table --------------------------------------------------------------------------------------


def test_each_state_is_in_one_group():
    groups = [ACTIVE_STATES, PARKED_STATES, TERMINAL_STATES]

    assert sorted(state.value for group in groups for state in group) == sorted(state.value for state in S)
    assert {S.PENDING} == ACTIVE_STATES - PHASE_STATES


def test_the_pipeline_runs_from_pending_to_completed():
    made = machine(*way_to(S.COMPLETED))

    assert made.current_state is S.COMPLETED
    assert [move["to"] for move in made.state_history] == [state.value for state in (*PIPELINE, S.COMPLETED)]


def test_every_state_has_a_row_and_the_table_cannot_be_changed():
    assert set(TABLE) == set(S)
    with pytest.raises(TypeError):
        TABLE[S.COMPLETED] = (S.PENDING,)


def test_can_transition_knows_every_edge_and_no_other():
    known = {(a, b) for a in S for b in S if StateTransition.can_transition(a, b)}
    by_name = {(a, b) for a in S for b in S if StateTransition.can_transition(a.value, b.value)}

    assert known == by_name == set(EDGES)


def test_a_move_that_is_no_edge_is_refused_and_leaves_no_mark():
    for from_state in S:
        made = machine(*way_to(from_state))

        for to_state in set(S) - set(TABLE[from_state]):
            error = refuse(made, to_state)

            assert (error.current, error.wanted) == (from_state.value, to_state.value), from_state
            assert from_state.value in str(error), from_state
            assert to_state.value in str(error), from_state
            assert all(name in str(error) for name in error.legal), from_state


def test_the_text_of_a_state_is_as_good_as_the_state():
    made = machine()

    made.transition("planning")

    assert made.current_state is S.PLANNING


@pytest.mark.parametrize("value", ["running", "PLANNING", "", None, 3, ["planning"]])
def test_a_state_that_does_not_exist_is_named_with_those_that_do(value):
    made = machine()
    before = snapshot(made)

    with pytest.raises(UsageError, match="is not a workflow state; the states are: pending, planning"):
        made.transition(value)

    assert snapshot(made) == before


# --- constructor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adw_id", ["../../etc", "", "a/b", None, "x" * 65, "-rf"])
def test_an_id_that_is_no_name_is_refused(adw_id):
    with pytest.raises(InvalidAdwId):
        WorkflowStateMachine(adw_id)


@pytest.mark.parametrize("setting", ["max_retries", "max_reworks"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", True, None])
def test_a_limit_is_a_whole_number(setting, value):
    with pytest.raises(UsageError, match=f"{setting} must be a whole number"):
        machine(**{setting: value})


def test_nothing_about_a_machine_can_be_assigned_from_outside():
    made = machine()

    for name in ("current_state", "retry_count", "max_retries", "reworks", "state_history", "adw_id", "position"):
        with pytest.raises(AttributeError):
            setattr(made, name, None)


def test_a_machine_shows_its_workflow_and_state():
    assert repr(machine(S.PLANNING)) == "<WorkflowStateMachine 1a2b3c4d planning>"


# --- history ---------------------------------------------------------------------------------------------------


def test_a_move_is_recorded_with_moment_and_metadata():
    made = machine()

    returned = made.transition(S.PLANNING, {"by": "lead"})

    assert made.state_history == [
        {"from": "pending", "to": "planning", "timestamp": "2026-01-31T09:00:01.000000Z", "metadata": {"by": "lead"}}
    ]
    assert returned == made.state_history[0]


def test_callers_cannot_reach_into_the_history():
    made = machine()
    given = {"nested": {"list": [1]}}

    returned = made.transition(S.PLANNING, given)
    before = made.state_history
    given["nested"]["list"].append(2)
    returned["metadata"]["nested"]["list"].append(3)
    made.state_history[0]["metadata"]["nested"]["list"].append(4)
    made.state_history.clear()

    assert made.state_history == before
    assert before[0]["metadata"] == {"nested": {"list": [1]}}


def circular() -> dict:
    itself: dict = {}
    itself["self"] = itself
    return itself


def nested(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth):
        value = {"in": value}
    return value


@pytest.mark.parametrize(
    "metadata",
    [
        {"at": START},
        {"cost": float("nan")},
        {1: "one"},
        {"pair": (1, 2)},
        {"name": "\ud800"},
        circular(),
        nested(100_000),
        ["not", "an", "object"],
        "text",
    ],
    ids=["datetime", "nan", "int-key", "tuple", "surrogate", "circular", "deep", "list", "text"],
)
def test_metadata_that_is_not_json_is_refused_and_leaves_no_mark(metadata):
    made = machine()
    before = snapshot(made)

    with pytest.raises(StateUnserialisable, match="metadata"):
        made.transition(S.PLANNING, metadata)

    assert snapshot(made) == before


def test_a_clock_without_a_zone_is_refused_and_leaves_no_mark():
    made = WorkflowStateMachine(ADW_ID, now=lambda: datetime(2026, 1, 31))  # noqa: DTZ001 - that is what is tested
    before = snapshot(made)

    with pytest.raises(ValueError, match="needs a time zone"):
        made.transition(S.PLANNING)

    assert snapshot(made) == before


def test_without_a_clock_the_one_of_the_open_home_is_asked():
    made = WorkflowStateMachine(ADW_ID)

    with default_home.using(SimpleNamespace(clock=Ticking())):
        move = made.transition(S.PLANNING)

    assert move["timestamp"] == "2026-01-31T09:00:01.000000Z"


def test_the_history_is_bounded_and_counts_what_it_let_go():
    made = machine(S.PLANNING)
    for _ in range(HISTORY_LIMIT // 2 + 5):
        made.transition(S.PAUSED)
        made.transition(S.PLANNING)

    assert len(made.state_history) == HISTORY_LIMIT
    assert made.history_dropped == 1 + 2 * (HISTORY_LIMIT // 2 + 5) - HISTORY_LIMIT
    assert snapshot(reloaded(made)) == snapshot(made)


def test_the_machine_does_not_let_its_own_facts_be_overwritten():
    made = machine(S.PLANNING, S.FAILED)
    before = snapshot(made)

    with pytest.raises(UsageError, match="the machine writes retry_number into this move itself"):
        made.transition(S.PLANNING, {"retry_number": 0})

    assert snapshot(made) == before


# --- pause and resume ------------------------------------------------------------------------------------------


def test_a_paused_workflow_goes_back_only_to_where_it_was():
    for state in sorted(ACTIVE_STATES, key=lambda state: state.value):
        made = machine(*way_to(state), S.PAUSED)
        assert made.resume_state is state, state

        for other in ACTIVE_STATES - {state}:
            refuse(made, other, f"it was paused in {state.value}")
        made.transition(state)

        assert made.current_state is state, state
        assert made.resume_state is None, state


def test_a_paused_workflow_without_a_record_starts_again():
    doc = a_document(current_state="paused", state_history=[entry("pending", "paused", source="v1_migration")])
    made = WorkflowStateMachine.of(doc, now=Ticking().now)

    refuse(made, S.BUILDING, "where it was paused is not recorded")
    made.transition(S.PENDING)

    assert made.current_state is S.PENDING


def test_a_workflow_that_fails_while_paused_failed_in_the_phase_it_left():
    made = machine(S.PLANNING, S.BUILDING, S.PAUSED, S.FAILED)

    assert made.failed_phase is S.BUILDING
    assert made.resume_state is None
    assert made.legal_targets() == (S.PLANNING, S.BUILDING, S.ROLLED_BACK, S.ABANDONED)


@pytest.mark.parametrize("path", [[S.FAILED], [S.PAUSED, S.FAILED]], ids=["pending", "paused-in-pending"])
def test_a_workflow_that_fails_before_its_first_phase_goes_back_to_that(path):
    table = derive_table([("build", S.BUILDING), ("test", S.TESTING)])
    made = machine(*path, table=table)

    assert made.failed_phase is S.BUILDING
    assert made.legal_targets() == (S.BUILDING, S.ROLLED_BACK, S.ABANDONED)


def test_a_person_may_choose_an_earlier_phase_for_a_paused_workflow():
    made = machine(*way_to(S.TESTING), S.PAUSED)

    made.resume_from("building")
    made.transition(S.BUILDING)

    assert made.current_state is S.BUILDING


def test_a_person_may_choose_an_earlier_phase_for_a_failed_workflow():
    """
    The count is set back only when the phase that really failed has succeeded.
    """
    made = machine(*way_to(S.TESTING), S.FAILED)

    made.resume_from(S.BUILDING)
    refuse(made, S.TESTING, "building failed: it goes back there")
    for state in (S.BUILDING, S.LINTING, S.TESTING):
        made.transition(state)
        assert made.retry_count == 1
    made.transition(S.REVIEWING)

    assert made.retry_count == 0


def test_a_person_may_choose_any_phase_when_none_is_recorded():
    doc = a_document(current_state="failed", state_history=[entry("pending", "failed", source="v1_migration")])
    made = WorkflowStateMachine.of(doc, now=Ticking().now)
    assert made.legal_targets() == (S.PLANNING, S.ROLLED_BACK, S.ABANDONED)

    made.resume_from(S.TESTING)
    made.transition(S.TESTING)

    assert made.current_state is S.TESTING


@pytest.mark.parametrize(
    ("path", "phase", "why"),
    [
        ([S.PLANNING, S.PAUSED], S.BUILDING, "building comes after planning, where it stopped"),
        ([S.PAUSED], S.PLANNING, "planning comes after pending, where it stopped"),
        ([S.PLANNING, S.FAILED], S.TESTING, "testing comes after planning, where it stopped"),
        ([S.PLANNING, S.PAUSED], S.COMPLETED, "completed is not a phase of this workflow"),
        ([S.PLANNING, S.PAUSED], S.PENDING, "pending is not a phase of this workflow"),
        ([S.PLANNING, S.PAUSED], S.LINTING, "linting is not a phase of this workflow"),
        ([S.PLANNING], S.PLANNING, "only a paused or failed workflow can be resumed, and 1a2b3c4d is planning"),
    ],
)
def test_a_person_may_not_skip_a_phase(path, phase, why):
    made = machine(*path, table=derive_table([(s.value, s) for s in PIPELINE if s is not S.LINTING]))
    before = snapshot(made)

    with pytest.raises(UsageError, match=why):
        made.resume_from(phase)

    assert snapshot(made) == before


# --- failure and retries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PIPELINE)
def test_a_failed_workflow_goes_back_to_the_phase_that_failed_or_is_planned_again(phase):
    made = machine(*way_to(phase), S.FAILED)

    for other in PHASE_STATES - {phase, S.PLANNING}:
        refuse(made, other, f"{phase.value} failed: it goes back there, or is planned again")

    assert set(made.legal_targets()) == {phase, S.PLANNING, S.ROLLED_BACK, S.ABANDONED}


def test_no_more_than_max_retries_ways_lead_out_of_failed():
    made = machine(S.PLANNING, S.FAILED)
    for _ in range(3):
        made.mark_retry()
        made.transition(S.PLANNING)
        made.transition(S.FAILED)

    assert not made.can_retry()
    with pytest.raises(RetriesExhausted, match="3 of 3 retries are used"):
        made.mark_retry()
    refuse(made, S.PLANNING, "3 of 3 retries are used; a person may grant more")
    assert made.legal_targets() == (S.ROLLED_BACK, S.ABANDONED)


def test_leaving_failed_without_a_mark_counts_a_retry_all_the_same():
    made = machine(S.PLANNING, S.FAILED, S.PLANNING)

    assert made.retry_count == 1
    assert made.state_history[-1]["metadata"] == {"retry_number": 1, "retry_limit": 3}


def test_a_mark_is_used_once():
    made = machine(S.PLANNING, S.FAILED)

    made.mark_retry()
    made.transition(S.PLANNING)
    assert (made.retry_count, made.retries_left) == (1, 2)
    made.transition(S.FAILED)
    made.transition(S.PLANNING)

    assert (made.retry_count, made.retries_left) == (2, 1)


def test_marks_that_were_not_used_stay_good():
    made = machine(S.PLANNING, S.FAILED)
    for _ in range(3):
        assert made.can_retry()
        made.mark_retry()
    assert not made.can_retry()
    assert made.retries_left == 3

    for left in (2, 1, 0):
        made = reloaded(made)
        made.transition(S.PLANNING)
        made.transition(S.FAILED)
        assert (made.retry_count, made.retries_left) == (3, left)

    numbers = [move["metadata"].get("retry_number") for move in made.state_history if move["from"] == "failed"]
    assert numbers == [1, 2, 3]
    refuse(made, S.PLANNING, "3 of 3 retries are used")


@pytest.mark.parametrize("state", [state for state in S if state is not S.FAILED])
def test_only_a_failed_workflow_is_retried(state):
    made = machine(*way_to(state))
    before = snapshot(made)

    assert not made.can_retry()
    with pytest.raises(UsageError, match=f"only a failed workflow can be retried, and 1a2b3c4d is {state.value}"):
        made.mark_retry()
    with pytest.raises(UsageError, match="only a failed workflow can be granted retries"):
        made.grant_retries(1)

    assert snapshot(made) == before


def test_a_retry_does_not_set_the_count_back_but_success_of_the_phase_does():
    made = machine(*way_to(S.BUILDING), S.FAILED, S.BUILDING)
    assert (made.retry_count, made.failed_phase) == (1, S.BUILDING)

    made.transition(S.LINTING)

    assert (made.retry_count, made.failed_phase) == (0, None)


def test_success_drops_marks_that_were_not_used():
    made = machine(S.PLANNING, S.FAILED)
    made.mark_retry()
    made.mark_retry()
    made.transition(S.PLANNING)
    made.transition(S.BUILDING)

    assert (made.retry_count, made.retries_left) == (0, 3)


def test_a_replan_does_not_set_the_count_back():
    """
    Planning and building again is no proof that testing will work: the count waits for that.
    """
    made = machine(*way_to(S.TESTING), S.FAILED)
    for used in (1, 2, 3):
        for state in (S.PLANNING, S.BUILDING, S.LINTING, S.TESTING):
            made.transition(state)
            assert made.retry_count == used
        made.transition(S.FAILED)

    refuse(made, S.PLANNING, "3 of 3 retries are used")
    refuse(made, S.TESTING, "3 of 3 retries are used")


def test_an_earlier_phase_that_fails_and_works_does_not_set_the_count_back():
    """
    Else: testing fails, replan, building fails, retry, building works, testing fails, and so on without end.
    """
    made = machine(*way_to(S.TESTING), S.FAILED, S.PLANNING, S.BUILDING, S.FAILED, S.BUILDING)
    assert (made.retry_count, made.failed_phase) == (2, S.BUILDING)
    made.transition(S.LINTING)
    assert (made.retry_count, made.failed_phase) == (2, None)
    made.transition(S.TESTING)
    made.transition(S.REVIEWING)

    assert made.retry_count == 0


def test_a_grant_raises_the_limit_and_is_told_in_the_history():
    made = machine(S.PLANNING, S.FAILED, max_retries=0)
    refuse(made, S.PLANNING, "0 of 0 retries are used")

    made.grant_retries(2)
    assert (made.max_retries, made.can_retry(), made.retries_left) == (2, True, 2)
    made.transition(S.PLANNING)

    assert made.state_history[-1]["metadata"] == {"retry_number": 1, "retry_limit": 2, "retries_granted": 2}


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "1"])
def test_a_grant_is_at_least_one(number):
    made = machine(S.PLANNING, S.FAILED)
    before = snapshot(made)

    with pytest.raises(UsageError, match="the number of retries granted must be"):
        made.grant_retries(number)

    assert snapshot(made) == before


# --- rework ----------------------------------------------------------------------------------------------------


def test_reworks_are_counted_and_bounded():
    made = machine(*way_to(S.TESTING), max_reworks=2)
    for number in (1, 2):
        assert made.transition(S.BUILDING)["metadata"] == {"rework_number": number}
        made.transition(S.LINTING)
        made.transition(S.TESTING)
    made.transition(S.REVIEWING)

    refuse(made, S.BUILDING, "2 of 2 reworks are used")
    assert (made.reworks, made.max_reworks) == (2, 2)


def test_only_a_move_to_an_earlier_phase_is_a_rework():
    result = {(a, b) for a, b in EDGES if is_rework(a, b)}

    assert result == {(S.TESTING, S.BUILDING), (S.REVIEWING, S.BUILDING), (S.SHIPPING, S.BUILDING)}


# --- rollback and merge ----------------------------------------------------------------------------------------


def test_a_rollback_that_was_begun_leaves_one_way():
    for state in [state for state in S if state is not S.ROLLED_BACK]:
        made = machine(*way_to(state))

        made.begin_rollback()

        assert made.rollback_pending, state
        for other in set(TABLE[state]) - {S.ABANDONED, S.ROLLED_BACK}:
            refuse(made, other, "a rollback was begun and has to be finished")
        if state in ACTIVE_STATES:
            assert made.legal_targets() == (S.ABANDONED,), state
            assert made.transition(S.ABANDONED)["metadata"] == {"rollback": True}, state
        made.transition(S.ROLLED_BACK)
        assert made.legal_targets() == (), state


def test_a_workflow_that_is_being_rolled_back_is_not_retried():
    made = machine(S.PLANNING, S.FAILED)
    made.begin_rollback()

    assert not made.can_retry()
    with pytest.raises(UsageError, match="is being rolled back"):
        made.mark_retry()


def test_what_is_rolled_back_is_not_rolled_back_again():
    with pytest.raises(IllegalTransition, match="it is there already"):
        machine(*way_to(S.ROLLED_BACK)).begin_rollback()


@pytest.mark.parametrize("state", [S.COMPLETED, S.FAILED, S.PAUSED, S.ABANDONED])
def test_nothing_is_rolled_back_after_a_merge(state):
    made = machine(*way_to(state))
    assert S.ROLLED_BACK in made.legal_targets()

    made.mark_merged()

    assert made.is_merged
    refuse(made, S.ROLLED_BACK, "its pull request is merged, which is not undone")
    with pytest.raises(IllegalTransition, match="its pull request is merged, which is not undone"):
        made.begin_rollback()
    assert not made.rollback_pending


@pytest.mark.parametrize("path", [[], [S.PAUSED]], ids=["cleaning", "paused-in-cleaning"])
def test_cleaning_does_not_fail_after_a_merge(path):
    made = machine(*way_to(S.CLEANING), *path)
    made.mark_merged()

    refuse(made, S.FAILED, "a failed clean-up is completed with warnings")


def test_another_phase_may_fail_after_a_merge_but_is_not_planned_again():
    made = machine(*way_to(S.SHIPPING))
    made.mark_merged()
    made.transition(S.FAILED)

    refuse(made, S.PLANNING, "its pull request is merged, so it is not planned again")
    assert made.legal_targets() == (S.SHIPPING, S.ABANDONED)


def test_planning_that_failed_after_a_merge_can_be_retried():
    made = machine(S.PLANNING)
    made.mark_merged()
    made.transition(S.FAILED)

    assert made.legal_targets() == (S.PLANNING, S.ABANDONED)


@pytest.mark.parametrize(
    ("is_merged", "has_failed", "end"),
    [
        (False, False, S.COMPLETED),
        (False, True, S.FAILED),
        (True, False, S.COMPLETED),
        (True, True, S.COMPLETED),
    ],
)
def test_a_failed_clean_up_fails_the_workflow_only_before_a_merge(is_merged, has_failed, end):
    assert end_of_cleaning(is_merged=is_merged, has_failed=has_failed) is end

    made = machine(*way_to(S.CLEANING))
    if is_merged:
        made.mark_merged()
    assert made.finish_cleaning("the worktree is busy" if has_failed else "", {"by": "worker"}) is end

    said = {"by": "worker"}
    if has_failed:
        said |= {"warnings": ["the worktree is busy"]} if is_merged else {"reason": "the worktree is busy"}
    assert made.current_state is end
    assert made.state_history[-1]["metadata"] == said


def test_only_cleaning_can_be_finished():
    made = machine(S.PLANNING)
    before = snapshot(made)

    with pytest.raises(IllegalTransition, match="it is not cleaning"):
        made.finish_cleaning("no")

    assert snapshot(made) == before


# --- the only place that assigns a state -----------------------------------------------------------------------


def assignments(tree: ast.AST) -> list[int]:
    """The lines that assign `current_state`: to an attribute, by keyword, by setattr, or by model_copy(update=...)."""
    return [node.lineno for node in ast.walk(tree) if _assigns(node)]


def _assigns(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "current_state" and isinstance(node.ctx, ast.Store | ast.Del)
    if isinstance(node, ast.keyword) and node.arg == "update" and isinstance(node.value, ast.Dict):
        return any(isinstance(key, ast.Constant) and key.value == "current_state" for key in node.value.keys)
    if isinstance(node, ast.keyword):
        return node.arg == "current_state"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        constants = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        return name in ("setattr", "__setattr__") and "current_state" in constants
    return False


def test_nothing_but_the_machine_assigns_a_state():
    """
    The migrations work on plain JSON and are exempt; the default of the model is no assignment to an attribute.
    """
    exempt = {"state_schema.py", "state_migrations.py"}
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.name not in exempt}
    result = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path, source in sources.items()
        if "current_state" in source and (lines := assignments(ast.parse(source)))
    }

    assert {path: len(lines) for path, lines in result.items()} == {"adw_modules/state_machine.py": 1}, result


def test_the_watch_over_assignments_sees():
    for code in [
        "document.current_state = 'failed'",
        "document.current_state: str = 'failed'",
        "document.current_state += 'x'",
        "a, document.current_state = 1, 'failed'",
        "del document.current_state",
        "WorkflowDocument(current_state='failed')",
        "document.model_copy(update={'current_state': 'failed'})",
        "setattr(document, 'current_state', 'failed')",
        "object.__setattr__(document, 'current_state', 'failed')",
    ]:
        assert assignments(ast.parse(code)) == [1], code


def test_the_state_machine_loads_without_pydantic():
    import subprocess
    import sys

    code = "import adws.adw_modules.state_machine, sys; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
