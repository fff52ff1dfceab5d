"""
What a power cut leaves of a worktree and of git's locks, and how a workflow gets past it.

A cut soon after `git worktree add` leaves files of git's own that are empty; a git that died leaves its locks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests import sampling
from tests.acceptance.cli_lab import Beside, document, has_begun, newest
from tests.integration.work_lab import WorkLab, git, make_work_lab

WORKFLOWS = """
[forge]
kind = "local"
[workflows.two]
[[workflows.two.phases]]
name = "plan"
shell = "echo steps > plan.md"
[[workflows.two.phases]]
name = "build"
shell = "test -e ../../may-build || { echo draft > draft.txt; exit 1; }; echo built >> app.py"
max_attempts = 1
[workflows.gated]
[[workflows.gated.phases]]
name = "plan"
shell = "echo steps > plan.md"
gate = "human"
[[workflows.gated.phases]]
name = "build"
shell = "echo built >> app.py"
[workflows.long]
[[workflows.long.phases]]
name = "plan"
shell = "echo steps > plan.md"
[[workflows.long.phases]]
name = "build"
shell = "test -e ../../may-build || { echo draft > draft.txt; echo up > ../../up; cat ../../go; }; echo built >> app.py"
"""
#: What a cut leaves empty: the worktree's own file, then those of git's directory of that worktree.
FILES = (".git", "gitdir", "commondir", "HEAD", "index", "locked")
DAMAGES = [*((name,) for name in FILES), FILES]


@pytest.fixture
def lab(tmp_path) -> WorkLab:
    made = make_work_lab(tmp_path)
    (made.home / "adw.toml").write_text(WORKFLOWS)
    (made.home / ".git" / "info" / "exclude").write_text("adw.toml\nmay-build\nup\ngo\nforge/\n")
    with made.open() as app:
        for title in ("Add a fine thing", "Add another"):
            app.forge.create_issue(title, "Please.")
    return made


@pytest.fixture
def home(lab) -> Path:
    return lab.home


def files_of(home: Path, adw_id: str) -> dict[str, Path]:
    """Return the files that git knows the worktree by."""
    admin = home / ".git" / "worktrees" / adw_id
    return {name: home / "trees" / adw_id / name if name == ".git" else admin / name for name in FILES}


def empty(home: Path, adw_id: str, *names: str) -> None:
    for name, path in files_of(home, adw_id).items():
        if name in (names or FILES):
            path.write_bytes(b"")


def start(adw, home: Path, workflow: str) -> str:
    adw("run", "1", "--workflow", workflow)
    adw_id = newest(home)
    assert (home / "trees" / adw_id / "plan.md").exists()
    return adw_id


def events(adw, adw_id: str, action: str) -> list[dict]:
    """Return the data of the events of a kind."""
    return [one["data"] for one in adw("events", adw_id, "--json").json()["events"] if one["event_type"] == action]


def content(home: Path, adw_id: str) -> list[str]:
    """Return the files of the workflow's branch, and that none of them is empty."""
    branch = document(home, adw_id)["branch_name"]
    rows = git(home, "ls-tree", "-r", "--long", branch).splitlines()
    assert [row for row in rows if row.split()[3] == "0"] == []
    return sorted(row.split("\t")[1] for row in rows)


# --- a worktree that git does not know any more ----------------------------------------------------------------


@pytest.mark.parametrize("names", sampling.some(DAMAGES, 2), ids=",".join)
def test_a_failed_workflow_whose_worktree_is_damaged_is_completed_by_a_retry(adw, home, names):
    adw_id = start(adw, home, "two")
    empty(home, adw_id, *names)
    (home / "may-build").touch()

    done = adw("retry", adw_id, "--grant", "1")

    assert done.rc == 0, done.stdout + done.stderr
    assert document(home, adw_id)["current_state"] == "completed"
    assert content(home, adw_id) == [".gitignore", "app.py", "plan.md"]
    assert git(home / "trees" / adw_id, "status", "--porcelain") == ""
    assert adw("admin", "verify").rc == 0


def test_what_was_not_committed_in_a_damaged_worktree_is_kept_under_a_ref_that_an_event_names(adw, home):
    adw_id = start(adw, home, "two")
    empty(home, adw_id)
    (home / "may-build").touch()

    done = adw("retry", adw_id, "--grant", "1")

    assert done.rc == 0, done.stdout + done.stderr
    ref = f"refs/adw/salvage/{adw_id}"
    assert git(home, "show", f"{ref}:draft.txt") == "draft"
    assert git(home, "show", f"{ref}:plan.md") == "steps"
    (event,) = events(adw, adw_id, "worktree_damaged")
    assert event["salvaged"] == ref
    assert "is empty" in event["why"]


@pytest.mark.parametrize("is_link_there", [True, False], ids=["with .git", "without .git"])
def test_a_worktree_that_git_has_forgotten_is_made_again_or_removed(adw, home, is_link_there):
    adw_id = start(adw, home, "two")
    tree = home / "trees" / adw_id
    shutil.rmtree(home / ".git" / "worktrees" / adw_id)
    if not is_link_there:
        (tree / ".git").unlink()
    (home / "may-build").touch()

    done = adw("retry", adw_id, "--grant", "1")

    assert done.rc == 0, done.stdout + done.stderr
    assert content(home, adw_id) == [".gitignore", "app.py", "plan.md"]
    shutil.rmtree(home / ".git" / "worktrees" / adw_id)
    if not is_link_there:
        (tree / ".git").unlink()
    undone = adw("rollback", adw_id)
    assert undone.rc == 0, undone.stdout + undone.stderr
    assert not tree.exists()


def test_a_paused_workflow_whose_worktree_is_damaged_goes_on_with_resume(adw, home):
    adw_id = start(adw, home, "gated")
    empty(home, adw_id)

    done = adw("approve", adw_id)
    done = adw("resume", adw_id) if document(home, adw_id)["current_state"] != "completed" else done

    assert done.rc == 0, done.stdout + done.stderr
    assert document(home, adw_id)["current_state"] == "completed"
    assert content(home, adw_id) == [".gitignore", "app.py", "plan.md"]


def test_a_worker_that_comes_back_after_a_cut_completes_a_workflow_whose_worktree_is_damaged(adw, home):
    for name in ("up", "go"):
        os.mkfifo(home / name)
    adw("run", "1", "--workflow", "long", "--detach")
    adw_id = newest(home)
    with Beside(home, "worker", "--once") as worker:
        has_begun(home)
        worker.process.send_signal(signal.SIGKILL)
        worker.end()
    empty(home, adw_id)
    (home / "trees" / adw_id / "app.py").write_bytes(b"")
    (home / "may-build").touch()

    adw("admin", "recover", "--execute")
    done = adw("worker", "--once")

    assert done.rc == 0, done.stdout + done.stderr
    assert document(home, adw_id)["current_state"] == "completed"
    assert content(home, adw_id) == [".gitignore", "app.py", "plan.md"]
    assert git(home, "show", f"refs/adw/salvage/{adw_id}:draft.txt") == "draft"


def test_the_damaged_worktree_of_one_workflow_does_not_keep_others_from_working(adw, home):
    """
    One empty `commondir` makes every `git worktree` of the repository fail.
    """
    adw_id = start(adw, home, "two")
    empty(home, adw_id, "commondir")

    done = adw("run", "2", "--workflow", "gated")

    assert done.rc == 0, done.stdout + done.stderr


def test_a_branch_whose_ref_is_empty_is_restored_from_the_recorded_commit(adw, home):
    adw_id = start(adw, home, "two")
    branch = document(home, adw_id)["branch_name"]
    recorded = git(home, "rev-parse", branch)
    empty(home, adw_id)
    (home / ".git" / "refs" / "heads" / branch).write_bytes(b"")
    (home / "may-build").touch()

    done = adw("retry", adw_id, "--grant", "1")

    assert done.rc == 0, done.stdout + done.stderr
    assert git(home, "rev-parse", f"{branch}~1") == recorded


@pytest.mark.parametrize("names", sampling.some(DAMAGES, 2), ids=",".join)
def test_rollback_removes_a_damaged_worktree_and_keeps_its_files(adw, home, names):
    adw_id = start(adw, home, "two")
    empty(home, adw_id, *names)

    done = adw("rollback", adw_id)

    assert done.rc == 0, done.stdout + done.stderr
    assert not (home / "trees" / adw_id).exists()
    assert not (home / ".git" / "worktrees" / adw_id).exists()
    assert git(home, "branch", "--list", "*adw*") == ""
    refs = git(home, "for-each-ref", "--format=%(refname)", "refs/adw/salvage").split()
    kept = [ref for ref in refs if "draft.txt" in git(home, "ls-tree", "-r", "--name-only", ref)]
    patch = home / "state" / adw_id / "salvage.patch"
    assert kept or "draft.txt" in patch.read_text()
    assert adw("admin", "verify").rc == 0
    assert "nothing left over" in adw("admin", "gc").stdout


def test_gc_removes_the_damaged_worktree_of_a_completed_workflow(adw, home):
    adw_id = start(adw, home, "gated")
    adw("approve", adw_id)
    adw("resume", adw_id)
    assert document(home, adw_id)["current_state"] == "completed"
    tree = home / "trees" / adw_id
    assert tree.exists(), "its branch is not pushed"
    empty(home, adw_id)

    shown = adw("admin", "gc").stdout
    done = adw("admin", "gc", "--execute")

    assert str(tree) in shown
    assert done.rc == 0, done.stdout + done.stderr
    assert not tree.exists()
    assert not (home / ".git" / "worktrees" / adw_id).exists()


def test_doctor_and_adopt_say_that_a_worktree_is_damaged_and_what_to_type(adw, home):
    adw_id = start(adw, home, "two")
    empty(home, adw_id)

    found = [row for row in adw("doctor", "--json").json()["findings"] if "is damaged" in row["what"]]
    refused = adw("admin", "adopt", adw_id)

    assert len(found) == 1
    assert str(home / "trees" / adw_id) in found[0]["what"]
    assert f"adw retry {adw_id}" in found[0]["fix"]
    assert f"adw rollback {adw_id}" in found[0]["fix"]
    assert refused.rc == 2
    assert "is damaged" in refused.stderr
    assert f"adw rollback {adw_id}" in refused.stderr


def test_a_directory_that_nothing_says_is_ours_is_left_alone_with_a_way_out(adw, home):
    adw_id = start(adw, home, "two")
    tree = home / "trees" / adw_id
    git(home, "worktree", "remove", "--force", "--force", str(tree))
    git(tree.parent, "init", "-q", str(tree))
    (tree / "precious.txt").write_text("precious")
    (home / "may-build").touch()

    done = adw("retry", adw_id, "--grant", "1")

    assert done.rc == 1
    assert f"{tree} is a repository of its own now" in done.stdout
    assert "move it away" in done.stdout
    assert (tree / "precious.txt").read_text() == "precious"


# --- locks that a dead git left --------------------------------------------------------------------------------


def locks_of(home: Path, adw_id: str) -> list[Path]:
    common, branch = home / ".git", document(home, adw_id)["branch_name"]
    admin = common / "worktrees" / adw_id
    return [
        common / "refs" / "heads" / f"{branch}.lock",
        common / "packed-refs.lock",
        common / "packed-refs.new",
        admin / "index.lock",
        admin / "HEAD.lock",
    ]


@pytest.mark.parametrize("number", sampling.some(range(5), 2))
def test_a_lock_that_a_dead_git_left_costs_no_attempt_and_an_event_names_it(adw, home, number):
    adw_id = start(adw, home, "two")
    lock = locks_of(home, adw_id)[number]
    lock.touch()
    (home / "may-build").touch()

    done = adw("retry", adw_id, "--grant", "1")

    assert done.rc == 0, done.stdout + done.stderr
    assert not lock.exists()
    (event,) = events(adw, adw_id, "stale_locks_removed")
    assert event["locks"] == [str(lock.relative_to(home / ".git"))]


def test_rollback_gets_past_every_lock_that_a_dead_git_left(adw, home):
    adw_id = start(adw, home, "two")
    git(home, "pack-refs", "--all")
    locks = locks_of(home, adw_id)
    for lock in locks:
        lock.touch()

    done = adw("rollback", adw_id)

    assert done.rc == 0, done.stdout + done.stderr
    assert [lock for lock in locks if lock.exists()] == []
    assert git(home, "branch", "--list", "*adw*") == ""


def test_a_lock_that_a_process_has_open_is_left_and_the_failure_names_it(adw, home):
    adw_id = start(adw, home, "two")
    lock = locks_of(home, adw_id)[0]
    (home / "may-build").touch()

    with lock.open("w"):
        done = adw("retry", adw_id, "--grant", "1")
        assert lock.exists()

    assert done.rc == 1
    assert lock.name in done.stdout


@pytest.mark.parametrize(
    "name", sampling.some(["refs/heads/their-work.lock", "config.lock", "index.lock", "refs/tags/v1.lock"], 2)
)
def test_doctor_names_any_other_stale_lock_and_the_command_to_remove_it(adw, home, name):
    lock = home / ".git" / name
    lock.touch()

    found = [row for row in adw("doctor", "--json").json()["findings"] if "locks that a killed git left" in row["what"]]

    assert [row["fix"] for row in found] == [f"rm {lock}"]
    assert lock.exists()


# --- what a rollback leaves ------------------------------------------------------------------------------------


def test_a_rollback_that_leaves_something_ends_with_exit_code_1_and_goes_on_when_it_is_out_of_the_way(adw, home):
    adw_id = start(adw, home, "two")
    tree = home / "trees" / adw_id
    git(home, "worktree", "unlock", str(tree))
    git(home, "worktree", "lock", "--reason", "mine now", str(tree))

    done = adw("rollback", adw_id)

    assert done.rc == 1, done.stdout
    assert f"left: not done: remove the worktree {tree}" in done.stdout
    assert f"adw rollback {adw_id}" in done.stdout.splitlines()[-1]
    assert adw("rollback", adw_id).rc == 1
    assert adw("rollback", adw_id, "--json").json()["left"]

    git(home, "worktree", "remove", "--force", "--force", str(tree))
    again = adw("rollback", adw_id)
    assert again.rc == 0, again.stdout
    assert "left:" not in again.stdout
    assert git(home, "branch", "--list", "*adw*") == ""


def test_a_rollback_that_keeps_what_it_was_asked_to_keep_ends_with_exit_code_0(adw, home):
    adw_id = start(adw, home, "two")

    done = adw("rollback", adw_id, "--keep-branch")

    assert done.rc == 0, done.stdout
    assert "kept on request" in done.stdout
    assert "left:" not in done.stdout


@pytest.mark.parametrize("is_cut", [False, True], ids=["killed", "power cut"])
def test_a_rebase_that_was_stopped_in_the_middle_is_given_up_and_the_work_goes_on(adw, lab, home, is_cut):
    adw_id = start(adw, home, "two")
    tree = home / "trees" / adw_id
    git(home, "switch", "-q", "-c", "elsewhere")
    (home / "plan.md").write_text("other steps\n")
    git(home, "add", "plan.md")
    git(home, "commit", "-q", "-m", "Plan otherwise")
    begun = subprocess.run(["git", "rebase", "-q", "elsewhere"], cwd=tree, capture_output=True, check=False)
    assert begun.returncode == 1, "it stopped at the conflict"
    left = home / ".git" / "worktrees" / adw_id / "rebase-merge"
    if is_cut:
        for file in left.iterdir():
            file.write_bytes(b"")
    (home / "may-build").touch()

    done = adw("retry", adw_id, "--grant", "1")

    assert (done.rc, document(home, adw_id)["current_state"]) == (0, "completed"), done.stderr
    branch = document(home, adw_id)["branch_name"]
    assert git(home, "show", f"{branch}:plan.md") == "steps"
    assert not left.exists()
