"""`adw run ISSUE` where there is a forge: the issue is read from it and frozen, and the command line wins."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.integration.work_lab import make_work_lab

ADW = warm.ADW
WORKFLOW = """
[forge]
kind = "local"

[workflows.short]
[[workflows.short.phases]]
name = "plan"
shell = "cat $ADW_ISSUE_FILE > issue.json"
"""


@pytest.fixture
def lab(tmp_path):
    made = make_work_lab(tmp_path)
    (made.home / "adw.toml").write_text(WORKFLOW)
    with made.open() as app:
        app.forge.create_issue("Mend the door", "It squeaks.", labels=("bug",), author="ada")
    return made


def adw(lab, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [ADW, *args],
        cwd=lab.home,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ADW_HOME": str(lab.home), **env},
    )


def test_title_text_author_and_labels_come_from_the_forge(lab):
    done = adw(lab, "run", "1", "--workflow", "short", "--json")

    assert done.returncode == 0, done.stderr
    document = lab.document(json.loads(done.stdout)["adw_id"])
    issue = document.issue
    assert (issue.title, issue.body, issue.author, issue.labels) == ("Mend the door", "It squeaks.", "ada", ["bug"])
    assert document.branch_name.startswith("bug-issue-1-adw-")
    told = json.loads((Path(document.worktree_path) / "issue.json").read_text())
    assert (told["title"], told["number"]) == ("Mend the door", 1)


def test_characters_that_no_program_can_be_given_are_cleaned_out_of_an_issue(lab):
    """
    A NUL in a title used to end the workflow at its first commit: git takes none in a message.
    """
    place = lab.home / "state" / "local.forge" / "issues" / "1.json"
    said = {"title": "Oil\0the\x1f door\x07", "body": "It\0 squeaks.\n\tAlways.\x08"}
    place.write_text(json.dumps({**json.loads(place.read_text()), **said}))

    done = adw(lab, "run", "1", "--workflow", "short", "--json")

    assert done.returncode == 0, done.stderr
    document = lab.document(json.loads(done.stdout)["adw_id"])
    assert (document.issue.title, document.issue.body) == ("Oil the door", "It squeaks.\n\tAlways.")
    subject = subprocess.run(
        ["git", "log", "-1", "--format=%s", document.branch_name],
        cwd=lab.home,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert subject.strip().endswith(": Oil the door (#1)")
    assert "Oil the door" in adw(lab, "list").stdout


def test_the_command_line_wins_over_the_forge(lab):
    done = adw(lab, "run", "1", "--workflow", "short", "--title", "Paint the door", "--json")

    issue = lab.document(json.loads(done.stdout)["adw_id"]).issue
    assert (issue.title, issue.body) == ("Paint the door", "It squeaks.")


def test_an_issue_that_is_not_there_is_one_clear_sentence(lab):
    done = adw(lab, "run", "99", "--workflow", "short")

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "adw: there is no issue 99 in the local forge: give the number of an open issue"
    ]


def test_without_a_forge_the_issue_is_what_the_command_line_says(lab):
    (lab.home / "adw.toml").write_text(WORKFLOW.replace('"local"', '"none"'))

    done = adw(lab, "run", "99", "--workflow", "short", "--title", "Anything", "--json")

    assert done.returncode == 0, done.stderr
    assert lab.document(json.loads(done.stdout)["adw_id"]).issue.title == "Anything"


def test_a_run_without_memory_says_which_quota_and_waits(lab):
    done = adw(lab, "run", "1", "--workflow", "short", ADW_QUOTA_MIN_FREE_MEMORY="1000000 GiB")
    [adw_id] = [path.name for path in (lab.home / "state").iterdir() if (path / "adw_state.json").exists()]

    explained = adw(lab, "status", adw_id)

    assert "quota.min_free_memory" in done.stdout + done.stderr
    assert "quota.min_free_memory" in explained.stdout
    assert lab.document(adw_id).phases[0].attempts == []
