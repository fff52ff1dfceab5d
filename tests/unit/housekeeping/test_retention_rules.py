"""What is old enough to be forgotten, and which finished workflow has to stay."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from adws.adw_modules.document import Resource, WorkflowDocument
from adws.adw_modules.housekeeping import retention

NOW = datetime(2026, 3, 1, tzinfo=UTC)
BEFORE = "2026-02-01T00:00:00.000000Z"
OLD = "2026-01-01T00:00:00.000000Z"


def document(**fields):
    known = {"adw_id": "aaaaaaaa", "issue_number": 42, "created_at": OLD, "updated_at": OLD}
    return WorkflowDocument(**{**known, "current_state": "completed", **fields})


def effect(kind: str, outcome: str = "made", **undo: str):
    return Resource(key=f"{kind}:x", kind=kind, outcome=outcome, undo=undo)


def test_0_days_are_for_ever():
    assert retention.limit(0, NOW) == ""
    assert retention.limit(28, NOW) == BEFORE


@pytest.mark.parametrize("state", ["completed", "abandoned", "rolled_back"])
def test_a_workflow_that_is_over_and_old_and_left_nothing_may_be_forgotten(state):
    assert retention.why_kept(document(current_state=state), before=BEFORE) == ""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"current_state": "failed"}, "it is failed"),
        ({"current_state": "building"}, "it is building"),
        ({"current_state": ""}, "in a state that nobody knows"),
        ({"updated_at": BEFORE}, "not old enough"),
        ({"updated_at": ""}, "not old enough"),
        ({"current_state": "abandoned", "rollback": {"steps": []}}, "its rollback is not finished"),
        ({"resources": [effect("pull_request")]}, "still stands: pull_request:x"),
        ({"resources": [effect("branch", "adopted")]}, "still stands: branch:x"),
        ({"resources": [effect("worktree")], "pr_merged": True}, "still stands: worktree:x"),
        ({"resources": [effect("port", "intended")], "pr_merged": True}, "still stands: port:x"),
        ({"resources": [effect("branch", "kept", branch="adw-1")]}, "it keeps adw-1"),
    ],
)
def test_what_somebody_may_want_undone_or_looked_after_stays(fields, why):
    assert why in retention.why_kept(document(**fields), before=BEFORE)


def test_one_that_has_its_issue_or_a_run_stays():
    assert retention.why_kept(document(), before=BEFORE, has_issue=True) == "it has its issue"
    assert "a run of it waits" in retention.why_kept(document(), before=BEFORE, has_run=True)


def test_nothing_is_old_when_it_is_kept_for_ever():
    assert retention.why_kept(document(), before="") == "it is not old enough"


@pytest.mark.parametrize("kind", sorted(retention.MERGED_KINDS))
def test_what_was_merged_is_nobodys_to_undo(kind):
    assert retention.why_kept(document(resources=[effect(kind)], pr_merged=True), before=BEFORE) == ""
    assert retention.why_kept(document(resources=[effect(kind)]), before=BEFORE)


def test_what_was_undone_does_not_stand():
    done = [effect("branch", "undone"), effect("worktree", "gone")]

    assert retention.why_kept(document(resources=done, rollback={}, current_state="rolled_back"), before=BEFORE) == ""
