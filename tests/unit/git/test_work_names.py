"""What work is called outside, and whose something is by its name or its lock."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.git import git
from tests.unit.engine_cases import ADW_ID, document_of, spec_of


def document(**fields):
    return document_of(spec_of("plan"), **fields)


@pytest.mark.parametrize(
    ("recorded", "labels", "expected"),
    [
        ("/bug", [], "bug"),
        ("chore", ["bug"], "chore"),
        (None, ["adw", "Enhancement"], "feature"),
        (None, ["good first issue", "fix"], "bug"),
        ("/nonsense", ["docs"], "chore"),
        (None, [], "feature"),
    ],
)
def test_the_class_is_the_recorded_one_then_the_labels_then_a_feature(recorded, labels, expected):
    result = document(issue_class=recorded, issue=FrozenIssue(labels=labels))

    assert git.issue_class(result) == expected


def test_a_workflow_without_an_issue_has_a_class_and_a_message():
    result = document(issue=None, issue_number=None)

    assert git.issue_class(result) == "feature"
    assert git.commit_message(result, "plan").splitlines() == [
        f"feat: work of {ADW_ID}",
        "",
        f"ADW-ID: {ADW_ID}",
        "ADW-Phase: plan",
    ]


@pytest.mark.parametrize(
    ("template", "first"),
    [
        (git.COMMIT_MESSAGE, "fix: Make the very long title of this issue fit into (#42)"),
        ("[<phase>] <summary>", "[polish] Make the very long title of this issue fit into"),
        ("#<issue> <id> <other>", f"#42 {ADW_ID} <other>"),
    ],
)
def test_a_commit_has_a_first_line_by_the_template_and_trailers(template, first):
    title = "Make the very long title of this issue fit into the first line of a commit."
    result = document(issue=FrozenIssue(title=title, labels=["bug"]))

    subject, _, *trailers = git.commit_message(result, "polish", template).splitlines()

    assert subject == first
    assert "ADW-Issue: #42" in trailers


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("refs/heads/bug-issue-1-adw-99999999-x", True),
        (f"refs/heads/bug-issue-1-adw-{ADW_ID}-x", False),
        ("refs/heads/spike", False),
    ],
)
def test_a_ref_of_another_workflow_is_known_by_its_name(ref, expected):
    assert git.is_of_another(ref, ADW_ID) is expected


@pytest.mark.parametrize(
    ("reason", "owner"),
    [
        (git.lock_reason(ADW_ID), ADW_ID),
        ("adw 1a2b3c4d", "1a2b3c4d"),
        ("adw older_id-1", "older_id-1"),
        ("", ""),
        ("mine", ""),
        ("adw a b", ""),
    ],
)
def test_a_worktree_is_ours_by_the_reason_it_was_locked_with(reason, owner):
    assert git.owner_of_lock(reason) == owner


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
    assert git.workflow_of(branch, known) == owner
