"""What belongs to which workflow is told by locks and names, and by nothing weaker."""

from __future__ import annotations

import pytest

from adws.adw_modules.git import git
from adws.adw_modules.git.git import workflow_of


@pytest.mark.parametrize(
    ("reason", "owner"),
    [("adw 1a2b3c4d", "1a2b3c4d"), ("adw older_id-1", "older_id-1"), ("", ""), ("mine", ""), ("adw a b", "")],
)
def test_a_worktree_is_ours_by_the_reason_it_was_locked_with(reason, owner):
    assert git.owner_of_lock(reason) == owner


def test_the_reason_a_worktree_is_locked_with_names_its_owner():
    assert git.owner_of_lock(git.lock_reason("1a2b3c4d")) == "1a2b3c4d"


@pytest.mark.parametrize(
    ("branch", "known", "owner"),
    [
        ("feature-issue-42-adw-1a2b3c4d-add-it", {}, "1a2b3c4d"),
        ("feature-issue-42-adw-older_id-add-it", {"older_id": None}, "older_id"),
        ("feature-issue-42-adw-older_id-add-it", {}, ""),
        ("adw-1a2b3c4d", {}, "1a2b3c4d"),
        ("adwords-1a2b3c4d-x", {}, ""),
        ("my-adw-notes", {}, ""),
        ("main", {"1a2b3c4d": None}, ""),
    ],
)
def test_a_branch_is_of_the_workflow_it_is_named_for(branch, known, owner):
    assert workflow_of(branch, known) == owner
