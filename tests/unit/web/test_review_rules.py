"""What is compared for the changes of an attempt, and how a diff becomes a tree and marked lines."""

from __future__ import annotations

import re

import pytest

from adws.adw_modules.document import AttemptRecord, Resource
from adws.adw_modules.git.diff import Diff, FileDiff
from adws.web import changes
from adws.web.dashboard import frame
from tests.unit.timeline_cases import document, phase

BRANCH = "feature-1"


def attempt(number: int, minute: int, commit: str | None) -> AttemptRecord:
    return AttemptRecord(number=number, started_at=f"2026-01-31T09:{minute:02}:00.000000Z", commit=commit)


def worked(*, replaced: tuple[str, ...] = (), start: str = "base"):
    """Return a workflow that planned, built twice with a test between, and shipped."""
    facts = {"branch": BRANCH, "start": start, "sha": "ship-1", "replaced": list(replaced)}
    return document(
        phase("plan", attempt(1, 1, "plan-1")),
        phase("build", attempt(1, 2, "build-1"), attempt(2, 4, "build-2")),
        phase("test", attempt(1, 3, None)),
        phase("ship", attempt(1, 5, "ship-1")),
        branch_name=BRANCH,
        resources=[Resource(key=f"branch:{BRANCH}", kind="branch", outcome="undone", undo=facts)],
    )


def test_an_attempt_is_compared_with_the_commit_before_it():
    ranges = [(one.phase, one.attempt, one.base, one.head) for one in changes.ranges_of(worked())]

    assert ranges == [
        ("plan", 1, "base", "plan-1"),
        ("build", 1, "plan-1", "build-1"),
        ("build", 2, "build-1", "build-2"),
        ("ship", 1, "build-2", "ship-1"),
    ]


def test_the_first_attempt_after_a_rebase_is_its_last_commit_and_what_was_rebased_keeps_its_own():
    ranges = changes.ranges_of(worked(replaced=("plan-1", "build-1", "build-2"), start="new-base"))

    assert [(one.base, one.head) for one in ranges] == [
        ("new-base", "plan-1"),  # from where they part: git compares with the common ancestor
        ("plan-1", "build-1"),
        ("build-1", "build-2"),
        ("ship-1^", "ship-1"),
    ]


def test_a_workflow_without_a_branch_has_no_changes():
    assert changes.ranges_of(document(phase("plan", attempt(1, 1, "plan-1")))) == ()


def files(*names: str) -> list[FileDiff]:
    return [FileDiff(name=name, status="changed", added=1, deleted=0) for name in names]


def drawn(nodes: list[changes.TreeNode], depth: int = 0) -> list[str]:
    return [
        line
        for node in nodes
        for line in (
            f"{'  ' * depth}{node.name}{f' {node.number}' if node.file else '/'}",
            *drawn(node.children, depth + 1),
        )
    ]


def test_files_are_a_tree_in_which_folders_with_one_folder_are_one_line():
    tree = changes.tree_of(files("a.txt", "docs/api/http/index.md", "src/app.py", "src/web/one.py", "src/web/two.py"))

    assert drawn(tree) == [
        "a.txt 1",
        "docs/api/http/",
        "  index.md 2",
        "src/",
        "  app.py 3",
        "  web/",
        "    one.py 4",
        "    two.py 5",
    ]


def test_folders_that_go_very_deep_are_part_of_the_name():
    assert len(drawn(changes.tree_of(files("/".join("d" * 2000))))) < 12


@pytest.mark.parametrize(
    ("line", "markup"),
    [
        ("+<b>", '<span class="ins">+&lt;b&gt;\n</span>'),
        ("-a & b", '<span class="del">-a &amp; b\n</span>'),
        ("@@ -1 +1 @@", '<span class="hunk">@@ -1 +1 @@\n</span>'),
        (" \u202eevil\x1b[2J", '<span class="same"> \ufffdevil\ufffd[2J\n</span>'),
    ],
)
def test_lines_are_marked_escaped_and_harmless(line, markup):
    assert frame.patch(f"{line}\n") == markup


def test_files_are_open_until_there_is_much_to_read():
    patch = "@@ -0,0 +1 @@\n" + "+line\n" * 9
    many = tuple(FileDiff(name=name, status="added", added=9, deleted=0, patch=patch) for name in "abc")
    diff = Diff(base="a", head="b", files=many, file_count=3, added=27, deleted=0)

    found = changes.Changes(diff=diff, problem="", ranges=())
    template = frame._environment(str).from_string('{% import "diff_parts.html" as parts %}{{ parts.diff(found, 20) }}')

    assert re.findall(r'id="file-(.)"( open)?', template.render(found=found)) == [
        ("1", " open"),
        ("2", " open"),
        ("3", ""),
    ]
