"""Worktrees after the machine went down: restored, kept, verified, as a person at the command line meets it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import LeaseLost
from adws.testing import MemoryOrders
from tests import warm
from tests.integration.work_lab import PLAN, SHIP, WorkLab, git, make_work_lab, step

LONG = "line\n" * 100


@pytest.fixture
def lab(tmp_path) -> WorkLab:
    return make_work_lab(tmp_path)


def adw(lab: WorkLab, *args: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "ADW_HOME": str(lab.home),
        "ADW_FORGE_KIND": "local",
    }
    return warm.run([warm.ADW, *args], cwd=lab.home, env=env, capture_output=True, text=True, check=False, timeout=120)


def at_build(lab: WorkLab, shell: str = "true") -> tuple[str, Path]:
    """Carry a workflow to its phase build, which fails until the file `go` is in the home; return id and worktree."""
    build = step("build", f"test -e {lab.home}/go || exit 1; {shell}", "building", max_attempts=1)
    plan = step("plan", f"printf '{LONG!s}' > plan.md; printf '{LONG!s}' > app.py", "planning")
    adw_id = lab.start(plan, build, SHIP)
    lab.work()
    document = lab.document(adw_id)
    assert (document.current_state, document.phases[0].status) == ("failed", "complete")
    (lab.home / "go").touch()

    return adw_id, Path(document.worktree_path)


def record(lab: WorkLab, adw_id: str, **facts: str) -> None:
    """Write into the ledger's entry of the worktree what it would say had the last write been on another boot."""
    with lab.open() as app, app.ownership.own(adw_id) as owned:
        resources = [
            one.model_copy(update={"undo": {**one.undo, **facts}}) if one.key == "worktree" else one
            for one in owned.document.resources
        ]
        owned.save(owned.document.model_copy(update={"resources": resources}))


def cut_off(lab: WorkLab, adw_id: str, damage) -> None:
    """Let the process of the next attempt die after *damage* was done to the worktree."""

    class Killed:
        """To the document, work that ends like this and a process that is gone are the same."""

        def check(self, phase):
            return ""

        def run(self, phase, context):
            damage(context.cwd)
            raise LeaseLost("its process died")

    with lab.open() as app:
        app.control.resume(adw_id, by="ada", grant=2)
        with app.ownership.own(adw_id) as owned:
            app.phase_runners = {"command": Killed()}
            with pytest.raises(LeaseLost):
                WorkSession(app, owned, MemoryOrders()).attempt()


def shipped(lab: WorkLab, adw_id: str) -> dict[str, str]:
    branch = lab.document(adw_id).branch_name
    names = git(lab.remote, "ls-tree", "-r", "--name-only", branch).splitlines()

    return {name: git(lab.remote, "show", f"{branch}:{name}") for name in names}


def test_after_a_restart_of_the_machine_emptied_files_are_restored_and_kept_under_a_ref(lab):
    adw_id, tree = at_build(lab)
    record(lab, adw_id, boot_id="the boot before")
    for name in ("plan.md", "app.py", "stray.txt"):
        (tree / name).write_text("")
    (tree / ".gitignore").unlink()

    done = adw(lab, "retry", adw_id, "--grant", "2")

    assert done.returncode == 0, done.stderr
    assert f"refs/adw/salvage/{adw_id} keeps what was there" in done.stderr
    assert lab.document(adw_id).current_state == "completed"
    files = shipped(lab, adw_id)
    assert files["plan.md"] == files["app.py"] == LONG.strip()
    assert (".gitignore" in files, "stray.txt" in files) == (True, False)
    salvaged = f"refs/adw/salvage/{adw_id}"
    assert git(lab.home, "show", f"{salvaged}:plan.md") == ""
    assert "stray.txt" in git(lab.home, "ls-tree", "--name-only", salvaged).splitlines()
    with lab.open() as app:
        [event] = [one for one in app.events.of_workflow(adw_id, limit=1000) if one.event_type == "work_salvaged"]
    assert event.data["ref"] == salvaged
    assert event.data["files"] == [".gitignore", "app.py", "plan.md", "stray.txt"]
    assert adw(lab, "admin", "verify").stdout == "all 11 invariants hold\n"


def test_files_that_have_the_size_and_time_git_remembers_are_read_all_the_same(lab):
    adw_id, tree = at_build(lab)
    record(lab, adw_id, boot_id="the boot before")
    known = (tree / "plan.md").stat()
    (tree / "plan.md").write_bytes(bytes(known.st_size))
    os.utime(tree / "plan.md", ns=(known.st_atime_ns, known.st_mtime_ns))
    git_dir = Path(git(tree, "rev-parse", "--git-dir"))
    (git_dir / "index").write_bytes(b"")

    assert adw(lab, "retry", adw_id, "--grant", "2").returncode == 0

    assert shipped(lab, adw_id)["plan.md"] == LONG.strip()


def test_what_a_killed_attempt_left_stays_when_the_machine_did_not_go_down(lab):
    adw_id, _tree = at_build(lab, "test -s half.txt")
    cut_off(lab, adw_id, lambda cwd: (cwd / "half.txt").write_text("half of the work\n"))

    assert adw(lab, "worker", "--once").returncode == 0

    assert shipped(lab, adw_id)["half.txt"] == "half of the work"
    assert git(lab.home, "for-each-ref", "refs/adw/salvage") == ""


def test_what_an_attempt_left_is_not_believed_when_its_file_system_was_mounted_again(lab):
    adw_id, _tree = at_build(lab, "test ! -e half.txt && test -s plan.md")

    def damage(cwd: Path) -> None:
        (cwd / "half.txt").write_text("")
        (cwd / "plan.md").write_text("")
        git(cwd, "add", "half.txt")
        git(cwd, "commit", "-q", "-m", "Half of the work", "--", "half.txt")

    cut_off(lab, adw_id, damage)
    record(lab, adw_id, boot_id=lab_boot(lab), mount="another mount")

    assert adw(lab, "worker", "--once").returncode == 0

    files = shipped(lab, adw_id)
    assert (files["plan.md"], "half.txt" in files) == (LONG.strip(), False)
    assert git(lab.home, "log", "-2", "--format=%s", f"refs/adw/salvage/{adw_id}").splitlines()[1] == "Half of the work"
    assert "refs/adw/salvage" in str(lab.document(adw_id).hints)


def lab_boot(lab: WorkLab) -> str:
    with lab.open() as app:
        return app.processes.boot_id


def test_a_commit_that_a_person_made_stays_on_the_branch_after_a_restart(lab):
    adw_id, tree = at_build(lab)
    (tree / "by-hand.txt").write_text("a fix\n")
    git(tree, "add", "by-hand.txt")
    git(tree, "commit", "-q", "-m", "Fix it by hand")
    (tree / "by-hand.txt").write_text("")
    record(lab, adw_id, boot_id="the boot before")

    assert adw(lab, "retry", adw_id, "--grant", "2").returncode == 0

    assert shipped(lab, adw_id)["by-hand.txt"] == "a fix"


@pytest.mark.strace
def test_a_phase_whose_files_cannot_be_synced_is_not_recorded_as_complete(lab):
    adw_id = lab.start(PLAN)
    env = {
        **os.environ,
        "ADW_HOME": str(lab.home),
        "ADW_FORGE_KIND": "local",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    # The first two come after the worktree was made and filled.
    fault = "inject=syncfs:error=EIO:when=3"
    command = ["strace", "-f", "-o", "/dev/null", "-e", "trace=syncfs", "-e", fault]
    command += [sys.executable, "-m", "adws.cli", "worker", "--once"]
    done = subprocess.run(command, cwd=lab.home, env=env, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    record = lab.document(adw_id).phases[0]
    assert record.status != "complete"
    assert "could not be synced (Input/output error)" in record.last_failure_reason
    assert adw(lab, "retry", adw_id).returncode == 0
    assert lab.document(adw_id).current_state == "completed"


def test_verify_names_a_commit_that_empties_files_until_they_are_back(lab):
    adw_id, tree = at_build(lab, f": > plan.md; : > app.py; : > {lab.home}/new.txt")
    assert adw(lab, "retry", adw_id, "--grant", "2").returncode == 0
    branch = lab.document(adw_id).branch_name
    commit = git(lab.home, "rev-parse", branch)

    told = adw(lab, "admin", "verify")

    assert told.returncode == 1
    assert f"{adw_id}: commit {commit[:12]} on its branch {branch} reduces app.py, plan.md to 0 bytes" in told.stdout
    git(lab.home, "worktree", "add", "-q", str(tree), branch)  # that of a completed workflow is removed
    git(tree, "restore", f"--source={commit}^", "--", "plan.md", "app.py")
    git(tree, "commit", "-q", "-a", "-m", "Bring them back")
    assert adw(lab, "admin", "verify").returncode == 0


def test_verify_names_a_phase_whose_commit_is_not_on_the_branch_any_more(lab):
    adw_id, tree = at_build(lab)
    document = lab.document(adw_id)
    [commit] = [attempt.commit for attempt in document.phases[0].attempts]
    assert commit == git(tree, "rev-parse", "HEAD")
    git(tree, "reset", "-q", "--hard", "HEAD^")

    told = adw(lab, "admin", "verify")

    assert told.returncode == 1
    said = f"commit {commit[:12]} of attempt 1 of plan is not on its branch {document.branch_name} any more"
    assert said in told.stdout
    shutil.rmtree(tree)
    git(lab.home, "worktree", "prune", "--expire=now")
    git(lab.home, "update-ref", "-d", f"refs/heads/{document.branch_name}")
    assert f"its branch {document.branch_name} is gone: git branch" in adw(lab, "admin", "verify").stdout


def test_verify_has_nothing_to_say_about_commits_that_shipping_rebased(lab):
    adw_id, _tree = at_build(lab)
    other = lab.home.parent / "other"
    git(lab.home.parent, "clone", "-q", str(lab.remote), str(other))
    (other / "elsewhere.txt").write_text("of somebody else\n")
    git(other, "add", "elsewhere.txt")
    git(other, "commit", "-q", "-m", "Elsewhere")
    git(other, "push", "-q", "origin", "HEAD:main")

    assert adw(lab, "retry", adw_id, "--grant", "2").returncode == 0

    assert "elsewhere.txt" in shipped(lab, adw_id)
    assert adw(lab, "admin", "verify").stdout == "all 11 invariants hold\n"
