"""
What may be pushed.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.git.change_policy import CommitText, DiffRules, added_lines, check_commits, check_diff
from adws.adw_modules.redaction.redactor import Redactor

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
DIFF = f"""diff --git a/app.py b/app.py
index 1..2 100644
--- a/app.py
+++ b/app.py
@@ -3,2 +3,3 @@ def main():
 same
-old {TOKEN}
+new
+token = "{TOKEN}"
diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-x
"""


def has_secret(line: str) -> bool:
    return bool(Redactor().find(line))


def check(diff=DIFF, files=("app.py",), **rules):
    return check_diff(diff, files, DiffRules(**rules), has_secret=has_secret)


def test_the_lines_a_diff_adds_have_their_place():
    assert list(added_lines(DIFF)) == [
        ("app.py", 4, "new"),
        ("app.py", 5, f'token = "{TOKEN}"'),
    ]


def test_a_line_that_looks_like_a_header_is_still_a_line():
    text = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n+++ b/y\n"

    assert list(added_lines(text)) == [("x", 1, "++ b/y")]


def test_a_secret_that_is_added_is_named_by_its_place_and_not_shown():
    [problem] = check()

    assert "app.py:5" in problem
    assert "app.py:4" not in problem
    assert TOKEN not in problem


def test_a_secret_that_is_taken_out_is_no_reason():
    assert check(diff=DIFF.replace("+token", "-token")) == ()


def test_a_secret_can_be_allowed():
    assert check(allowed_paths=("app.py",)) == ()


@pytest.mark.parametrize(
    ("file", "allow", "words"),
    [
        (".github/workflows/ci.yml", "allow_workflow_files", "workflow files"),
        (".gitlab-ci.yml", "allow_workflow_files", "workflow files"),
        (".claude/settings.json", "allow_agent_files", "agent configuration"),
        ("sub/CLAUDE.md", "allow_agent_files", "agent configuration"),
        ("adw.toml", "allow_agent_files", "agent configuration"),
    ],
)
def test_files_that_decide_what_runs_need_leave(file, allow, words):
    [problem] = check(diff="", files=(file,))

    assert words in problem
    assert file in problem
    assert f"ship.{allow}" in problem
    assert check(diff="", files=(file,), **{allow: True}) == ()
    assert check(diff="", files=(file,), allowed_paths=(file,)) == ()


def test_size_has_limits():
    assert check(diff="", files=("a", "b"), max_files=1) == (
        "it changes 2 files, more than the 1 that ship.max_files allows",
    )
    assert check(diff="--- a/x\n+++ b/x\n+1\n-2\n+3\n", max_lines=2) == (
        "it changes 3 lines, more than the 2 that ship.max_lines allows",
    )
    assert check(diff="+1\n\n \n", files=("a",), max_files=1, max_lines=1) == ()


def test_many_findings_are_counted():
    files = tuple(f".claude/{number}" for number in range(12))

    assert "and 2 more" in check(diff="", files=files)[0]


# --- commits ---------------------------------------------------------------------------------------------------


def commit(**fields: str) -> CommitText:
    return CommitText(**{"sha": "0123456789abcdef", "person": "Ada", "message": "Add a thing", "patch": "", **fields})


PASSING = "diff --git a/x b/x\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+fine\n+hush\n"
SPLIT = "diff --git a/x b/x\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+hu\n+sh\n"


def hushes(text: str) -> bool:
    return "hush" in text.replace("\n", "")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (commit(message="Say hush"), "the message of 0123456789ab"),
        (commit(person="hush <a@b>"), "the message of 0123456789ab"),
        (commit(patch=PASSING), "x:2 in 0123456789ab"),
        (commit(patch=SPLIT), "x:1 in 0123456789ab"),
    ],
    ids=["message", "author", "added-once", "over-two-lines"],
)
def test_a_secret_in_any_commit_keeps_all_of_them_here(found, why):
    [said] = check_commits([commit(), found], DiffRules(), has_secret=hushes)

    assert why in said


def test_what_is_allowed_in_a_diff_is_allowed_in_a_commit():
    commits = [commit(patch=PASSING)]

    assert check_commits(commits, DiffRules(allowed_paths=("x",)), has_secret=hushes) == ()


def test_a_secret_over_two_lines_of_a_file_is_found_in_the_diff():
    [said] = check_diff(SPLIT, ["x"], DiffRules(), has_secret=hushes)

    assert "x:1" in said
