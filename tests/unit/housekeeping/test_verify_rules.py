"""What must hold of a document, and how each breach of it is named."""

from __future__ import annotations

from itertools import pairwise

import pytest

from adws.adw_modules.document import HistoryEntry, Resource, RollbackRecord, WorkflowRef
from adws.adw_modules.housekeeping import verify
from adws.adw_modules.housekeeping.verify import INVARIANTS, Violation, check_document, check_issues
from tests.unit.engine_cases import ADW_ID, attempt, document_of, phase, records_of, spec_of

SPEC = spec_of("plan", "build")


def document(state="pending", *, records=None, **fields):
    made = document_of(SPEC, phases=records or records_of(SPEC), **fields)
    if state == "pending":
        return made
    ways = {
        "completed": ["planning", "building", "completed"],
        "rolled_back": ["planning", "failed", "rolled_back"],
        "failed": ["planning", "failed"],
    }
    steps = ["pending", *ways.get(state, [state])]
    moves = [
        HistoryEntry(from_state=before, to_state=after, timestamp="2026-01-31T09:00:00.000000Z")
        for before, after in pairwise(steps)
    ]
    return made.model_copy(update={"current_state": state, "state_history": moves})


def records(**changes):
    first, *others = records_of(SPEC)
    return [first.model_copy(update=changes), *others]


def broken(found):
    return [(violation.invariant, violation.what) for violation in found]


def test_a_good_document_breaks_nothing():
    assert check_document(document()) == ()
    assert check_document(document("failed")) == ()


def test_a_state_that_no_move_led_to_breaks_the_second():
    result = check_document(document().model_copy(update={"current_state": "shipping"}))

    assert [violation.invariant for violation in result] == [2]
    assert ADW_ID in result[0].where


@pytest.mark.parametrize("numbers", [[2], [1, 3], [2, 1]])
def test_attempts_that_are_not_counted_through_break_the_third(numbers):
    made = records(attempts=[attempt(number) for number in numbers], attempts_used=2)

    assert broken(check_document(document(records=made))) == [(3, f"the attempts of plan are numbered {numbers}")]


def test_an_attempt_that_runs_in_a_workflow_that_rests_breaks_the_third():
    made = records(attempts=[attempt(1, "running")], attempts_used=1)

    assert broken(check_document(document("failed", records=made))) == [
        (3, "plan has an attempt that runs, though it is failed")
    ]


def test_more_attempts_than_allowed_break_the_fourth():
    assert broken(check_document(document(records=records(attempts_used=6)))) == [(4, "plan used 6 of 5 attempts")]
    assert check_document(document(records=records(attempts_used=6, granted=1))) == ()


def test_attempts_that_were_made_and_not_counted_break_the_fourth():
    made = records(attempts=[attempt(1), attempt(2, "suspended"), attempt(3)], attempts_used=1)

    assert broken(check_document(document(records=made))) == [
        (4, "plan was tried 2 times in round 1, and 1 are counted")
    ]


def test_more_reworks_than_allowed_break_the_fourth():
    assert broken(check_document(document(reworks=4))) == [(4, "it was sent back 4 of 3 times")]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"replans": 3}, "it was planned again 3 of 2 times"),
        ({"doctor_calls": 11}, "the doctor was asked 11 of 10 times"),
    ],
)
def test_a_doctor_without_limits_breaks_the_fourth(fields, what):
    assert broken(check_document(document(**fields))) == [(4, what)]


def test_calls_of_the_doctor_have_a_limit_for_each_phase_and_waits_for_a_service_have_none():
    result = document()
    result.phases[0].parks, result.phases[0].doctor = 60, [{}, {}, {}]
    name = result.phases[0].name

    assert broken(check_document(result)) == [(4, f"the doctor was asked about {name} 3 of 2 times")]


def test_a_parked_attempt_is_not_counted():
    made = [attempt(1, "failed"), attempt(2, "parked")]

    assert check_document(document(records=records(attempts=made, attempts_used=1))) == ()


def test_a_rolled_back_workflow_with_an_open_ledger_breaks_the_seventh():
    made = [Resource(key="worktree", kind="worktree", outcome="made")]
    result = document("rolled_back", resources=made, rollback=RollbackRecord(blocked_by=["it"]), pr_merged=True)

    assert broken(check_document(result)) == [
        (7, "it is rolled back, and its ledger still has: worktree"),
        (7, "it is rolled back, though its pull request is merged"),
        (7, "it is rolled back, and blocked by: it"),
    ]
    assert check_document(document("rolled_back")) == ()


def test_a_completed_workflow_without_the_success_of_a_required_phase_breaks_the_ninth():
    done = [record.model_copy(update={"status": "complete"}) for record in records_of(SPEC)]
    half = [done[0].model_copy(update={"status": "failed"}), done[1]]

    assert check_document(document("completed", records=done)) == ()
    assert broken(check_document(document("completed", records=half))) == [(9, "it is completed, and plan is failed")]


def test_a_phase_that_is_not_required_has_to_have_ended_at_least():
    spec = spec_of(phase("plan", is_required=False), "build")
    done = records_of(spec)[1].model_copy(update={"status": "complete"})
    for status, expected in (("failed", 0), ("skipped", 0), ("running", 1)):
        made = [records_of(spec)[0].model_copy(update={"status": status}), done]
        result = document("completed", records=made)
        result = result.model_copy(update={"workflow": document_of(spec).workflow})
        assert len(check_document(result)) == expected


def test_a_clean_up_that_failed_after_a_merge_is_forgiven():
    spec = spec_of("plan", "clean")
    made = [
        records_of(spec)[0].model_copy(update={"status": "complete"}),
        records_of(spec)[1].model_copy(update={"status": "failed"}),
    ]
    steps = ["pending", "planning", "cleaning", "completed"]
    moves = [
        HistoryEntry(from_state=before, to_state=after, timestamp="2026-01-31T09:00:00.000000Z")
        for before, after in pairwise(steps)
    ]
    document = document_of(spec, phases=made, pr_merged=True, state_history=moves, current_state="completed")

    assert check_document(document) == ()
    assert [one.invariant for one in check_document(document.model_copy(update={"pr_merged": False}))] == [9]


def test_a_completed_workflow_with_a_broken_definition_breaks_the_ninth():
    made = document("completed").model_copy(update={"workflow": WorkflowRef(name="x", phases=[{"name": "plan"}])})

    assert 9 in [violation.invariant for violation in check_document(made)]


def test_a_completed_workflow_of_an_older_version_has_no_definition_to_be_held_against():
    made = document("completed").model_copy(update={"workflow": None})

    assert [violation.invariant for violation in check_document(made)] == [2]


def test_two_live_workflows_of_one_issue_break_the_fifth():
    one, two = document(), document(adw_id="5e6f7a8b", repository="acme/shop")
    over = document("rolled_back", adw_id="99999999")
    without = document(adw_id="77777777", issue_number=None)

    result = check_issues([one, two, over, without], lambda repository: repository or "acme/shop")

    assert result == (
        Violation(
            invariant=5,
            where="issue 42 of acme/shop",
            what="more than one live workflow has it: 1a2b3c4d, 5e6f7a8b",
        ),
    )
    assert check_issues([one, two], lambda repository: repository) == ()
    assert check_issues([one, document(adw_id="5e6f7a8b")], str)[0].where == "issue 42"


def test_each_violation_names_its_rule():
    result = Violation(invariant=3, where="x", what="y")

    assert result.to_json() == {"invariant": 3, "rule": INVARIANTS[3], "where": "x", "what": "y"}
    assert verify.count_by_invariant([result, result]) == {**dict.fromkeys(range(1, 12), 0), 3: 2}
