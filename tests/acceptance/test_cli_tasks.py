"""`adw run --task`: a workflow without an issue."""

from __future__ import annotations

import pytest

from tests.acceptance import cli_lab


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


def test_two_tasks_have_workflows_of_their_own_that_are_listed_resumed_and_rolled_back(adw, home):
    waiting = adw("run", "--task", "Add a door", "--workflow", "gated", "--json").json()
    other = adw("run", "--task", "Add a door", "--workflow", "short")

    assert other.stderr.splitlines()[0].endswith(": short for task 'Add a door'")
    assert other.stdout.endswith("is completed\n")
    first, second = adw("list", "--json").json()["workflows"]
    assert {row["issue_number"] for row in (first, second)} == {None}
    assert (first["title"], first["phase"]) == ("Add a door", None)
    assert (second["adw_id"], second["state"], second["phase"]) == (waiting["adw_id"], "paused", "plan")
    assert adw("status").stdout.splitlines()[1].split()[:2] == [waiting["adw_id"], "paused"]
    assert adw("approve", waiting["adw_id"]).rc == 0
    assert adw("resume", waiting["adw_id"], "--json").json()["state"] == "completed"
    assert adw("run", "--id", first["adw_id"], "--workflow", "gated", "--json").json()["adw_id"] == first["adw_id"]
    assert adw("rollback", waiting["adw_id"]).rc == 0
    assert "all 11 invariants hold" in adw("admin", "verify").stdout


@pytest.mark.parametrize(
    ("typed", "title", "body"),
    [
        (("Add a door", ""), "Add a door", ""),
        (("  Add a door\n\nThe house has none.\n", ""), "Add a door", "Add a door\n\nThe house has none."),
        (("-", "Add a door\nThe house has none.\n"), "Add a door", "Add a door\nThe house has none."),
        (("x" * 300, ""), "x" * 247 + "...", "x" * 300),
    ],
    ids=["line", "lines", "stdin", "long-line"],
)
def test_the_first_line_of_a_task_is_its_title_and_no_text_is_lost(adw, home, typed, title, body):
    text, stdin = typed
    ended = adw("run", "--task", text, "--workflow", "short", "--json", stdin=stdin).json()

    issue = cli_lab.document(home, ended["adw_id"])["issue"]
    assert (issue["title"], issue["body"]) == (title, body)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--task", " \n"], "the task is empty: say what to do, such as --task"),
        (["7", "--task", "x"], "--task starts a workflow without an issue, so an issue cannot be given with it"),
        (["--task", "x", "--again"], "so --again cannot be given with it"),
        (["--task", "x", "--repository", "acme/shop"], "so --repository cannot be given with it"),
        (["--task", "x", "--workflow", "build"], "build continues an earlier workflow: name that with --id"),
        ([], "nothing to work on: give the number of an issue, or --task"),
    ],
)
def test_wrong_use_of_a_task_is_one_sentence_and_leaves_nothing(adw, home, args, words):
    done = adw("run", *args)

    assert (done.rc, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
    assert not list(home.glob("state/*/adw_state.json"))


def test_a_dry_run_of_a_task_starts_nothing(adw, home):
    shown = adw("run", "--task", "Add a door", "--workflow", "short", "--dry-run")

    assert shown.stdout.startswith("task 'Add a door' would go through short (")
    assert not list(home.glob("state/*/adw_state.json"))
