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
    return moved(made, *ways[state])


def moved(made, *states: str):
    moves = [
        HistoryEntry(from_state=before, to_state=after, timestamp="2026-01-31T09:00:00.000000Z")
        for before, after in pairwise(["pending", *states])
    ]
    return made.model_copy(update={"current_state": states[-1], "state_history": moves})


def records(**changes):
    first, *others = records_of(SPEC)
    return [first.model_copy(update=changes), *others]


def with_status(spec, *statuses: str):
    made = zip(records_of(spec), statuses, strict=True)
    return [record.model_copy(update={"status": status}) for record, status in made]


def completed(statuses, phases=("plan", "build"), steps=("planning", "building", "completed"), **fields):
    spec = spec_of(*phases)
    return moved(document_of(spec, phases=with_status(spec, *statuses), **fields), *steps)


def asked_about_plan(times: int):
    made = document()
    made.phases[0].parks, made.phases[0].doctor = 60, [{}] * times  # waits for a service have no limit
    return made


OPEN_LEDGER = {
    "resources": [Resource(key="worktree", kind="worktree", outcome="made")],
    "rollback": RollbackRecord(blocked_by=["it"]),
    "pr_merged": True,
}
BROKEN = WorkflowRef(name="x", phases=[{"name": "plan"}])
OPTIONAL = (phase("plan", is_required=False), "build")
CLEANED = {"phases": ("plan", "clean"), "steps": ("planning", "cleaning", "completed")}
ATTEMPTS = [attempt(1), attempt(2, "suspended"), attempt(3)]
PARKED = [attempt(1, "failed"), attempt(2, "parked")]
RUNNING = records(attempts=[attempt(1, "running")], attempts_used=1)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (document(), []),
        (document("failed"), []),
        # the third: attempts are numbered, and none runs in a workflow that rests
        *(
            (
                document(records=records(attempts=[attempt(number) for number in numbers], attempts_used=2)),
                [(3, f"the attempts of plan are numbered {numbers}")],
            )
            for numbers in ([2], [1, 3], [2, 1])
        ),
        (document("failed", records=RUNNING), [(3, "plan has an attempt that runs, though it is failed")]),
        # the fourth: limits
        (document(records=records(attempts_used=6)), [(4, "plan used 6 of 5 attempts")]),
        (document(records=records(attempts_used=6, granted=1)), []),
        (
            document(records=records(attempts=ATTEMPTS, attempts_used=1)),
            [(4, "plan was tried 2 times in round 1, and 1 are counted")],
        ),
        (document(records=records(attempts=PARKED, attempts_used=1)), []),
        (document(reworks=4), [(4, "it was sent back 4 of 3 times")]),
        (document(replans=3), [(4, "it was planned again 3 of 2 times")]),
        (document(doctor_calls=11), [(4, "the doctor was asked 11 of 10 times")]),
        (asked_about_plan(2), []),
        (asked_about_plan(3), [(4, "the doctor was asked about plan 3 of 2 times")]),
        # the seventh: rolled back
        (document("rolled_back"), []),
        (
            document("rolled_back", **OPEN_LEDGER),
            [
                (7, "it is rolled back, and its ledger still has: worktree"),
                (7, "it is rolled back, though its pull request is merged"),
                (7, "it is rolled back, and blocked by: it"),
            ],
        ),
        # the ninth: what is required has succeeded, the rest has ended; a clean-up may fail after a merge
        (completed(("complete", "complete")), []),
        (completed(("failed", "complete")), [(9, "it is completed, and plan is failed")]),
        (completed(("failed", "complete"), OPTIONAL), []),
        (completed(("skipped", "complete"), OPTIONAL), []),
        (completed(("running", "complete"), OPTIONAL), [(9, "it is completed, and plan is running")]),
        (completed(("complete", "failed"), **CLEANED, pr_merged=True), []),
        (completed(("complete", "failed"), **CLEANED), [(9, "it is completed, and clean is failed")]),
    ],
)
def test_each_breach_of_a_rule_is_named_and_nothing_else(made, expected):
    assert [(violation.invariant, violation.what) for violation in check_document(made)] == expected


@pytest.mark.parametrize(
    ("made", "invariants"),
    [
        (document().model_copy(update={"current_state": "shipping"}), {2}),
        (document("completed").model_copy(update={"workflow": BROKEN}), {2, 9}),
        # One of an older version has no definition to be held against.
        (document("completed").model_copy(update={"workflow": None}), {2}),
    ],
    ids=["no-move-led-there", "broken-definition", "no-definition"],
)
def test_a_document_that_makes_no_sense_breaks_a_rule(made, invariants):
    result = check_document(made)

    assert {violation.invariant for violation in result} == invariants
    assert {violation.where for violation in result} == {ADW_ID}


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
