"""Working in a worktree: commits, patches and rebases, also after a git that was killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from adws.adw_modules.git import locks
from tests.integration.git_lab import Lab, commit_on_remote, git, make_lab


@pytest.fixture
def lab(tmp_path) -> Lab:
    return make_lab(tmp_path)


@pytest.fixture
def tree(lab) -> Path:
    return lab.add().path


def test_everything_is_committed_but_what_adw_put_there(lab, tree):
    (tree / "app.py").unlink()
    (tree / "new file.txt").write_text("new")
    (tree / "ünï.txt").write_text("unicode")
    (tree / ".gitignore").write_text(".env\n")
    (tree / ".env").write_text("SECRET=1")
    (tree / ".ports.env").write_text("PORT=1")

    assert sorted(lab.workplace.status(tree)) == [".gitignore", "app.py", "new file.txt", "ünï.txt"]
    commit = lab.workplace.commit_all(tree, "feat: change\n\nADW-ID: 1a2b3c4d\n")

    assert git(tree, "ls-tree", "-r", "--name-only", "-z", commit).split("\0")[:-1] == [
        ".gitignore",
        "new file.txt",
        "ünï.txt",
    ]
    assert git(tree, "log", "-1", "--format=%B") == "feat: change\n\nADW-ID: 1a2b3c4d"
    assert lab.workplace.status(tree) == ()
    assert lab.workplace.commit_all(tree, "nothing") is None


def test_every_kind_of_change_is_named_with_the_commit_it_comes_after(lab, tree):
    for name in ("deleted.txt", "changed.txt", "moved.txt"):
        (tree / name).write_text(name)
    head = lab.workplace.commit_all(tree, "before")
    (tree / "deleted.txt").unlink()
    (tree / "changed.txt").write_text("now")
    git(tree, "mv", "moved.txt", "to here.txt")
    (tree / "two words\nand a line").write_text("new")
    (tree / ".ports.env").write_text("PORT=1\n")
    git(
        tree,
        "update-index",
        "--add",
        "--cacheinfo",
        f"100644,{git(tree, 'hash-object', '-w', 'changed.txt')},staged only",
    )

    names = {"changed.txt", "deleted.txt", "moved.txt", "to here.txt", "two words\nand a line", "staged only"}
    assert lab.workplace.head_and_status(tree)[0] == head
    assert set(lab.workplace.status(tree)) == names


def test_files_in_conflict_are_named_too(lab, tree):
    (tree / "app.py").write_text("mine")
    mine = lab.workplace.commit_all(tree, "mine")
    git(tree, "checkout", "-q", "--detach", "HEAD~1")
    (tree / "app.py").write_text("theirs")
    git(tree, "commit", "-q", "-a", "-m", "theirs")
    subprocess.run(["git", "merge", "-q", mine], cwd=tree, check=False, capture_output=True)

    assert lab.workplace.status(tree) == ("app.py",)


def test_a_patch_brings_uncommitted_work_back_and_changes_nothing(lab, tree):
    (tree / "app.py").write_text("print('changed')\n")
    (tree / "new.bin").write_bytes(b"\x00\xff")
    (tree / ".env").write_text("SECRET=1")
    git(tree, "add", "app.py")
    index = (lab.workplace.git_dir(tree) / "index").read_bytes()
    (lab.workplace.git_dir(tree) / "index.lock").write_text("")  # a git was killed here

    patch = lab.workplace.patch_of_changes(tree)

    assert (lab.workplace.git_dir(tree) / "index").read_bytes() == index
    assert b"SECRET" not in patch
    other = lab.add("5e6f7a8b", "other-branch").path
    subprocess.run(["git", "apply", "--binary", "-"], cwd=other, input=patch, check=True)
    assert (other / "app.py").read_text() == "print('changed')\n"
    assert (other / "new.bin").read_bytes() == b"\x00\xff"


# --- rebase ----------------------------------------------------------------------------------------------------


def test_a_patch_has_what_changed_at_the_very_moment_of_the_commit(lab, tree):
    """
    Most gits look at whole seconds: then nothing but the content of a file tells that it is another one.
    """
    moment = 1_700_000_000

    def at_that_moment() -> None:
        for file in (tree / "app.py", lab.workplace.git_dir(tree) / "index"):
            os.utime(file, (moment, moment))

    git(tree, "config", "core.trustctime", "false")
    at_that_moment()
    git(tree, "update-index", "--refresh")
    (tree / "app.py").write_text("print('two')\n")
    at_that_moment()
    base = git(tree, "rev-parse", "HEAD").strip()

    assert b"+print('two')" in lab.workplace.patch_of_paths(tree, base, ("app.py",))


@pytest.mark.parametrize("is_committed", [False, True], ids=["changed", "committed"])
def test_files_are_put_back_to_a_commit_and_all_others_stay(lab, tree, tmp_path, is_committed):
    """
    What was done to them can be brought back from the patch; a file with a star in its name means itself alone.
    """
    (tree / "gone.txt").write_text("to be deleted")
    (tree / "kept.txt").write_text("one")
    base = lab.workplace.commit_all(tree, "before the phase")
    (tree / "gone.txt").unlink()
    (tree / "app.py").write_text("print('two')\n")
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "ünï *.bin").write_bytes(bytes(range(256)))
    (tree / "link").symlink_to("/etc")
    (tree / "kept.txt").write_text("two")
    (tree / "k*").write_text("star")
    (tree / ".ports.env").write_text("PORT=1")
    if is_committed:
        lab.workplace.commit_all(tree, "of the agent")
        (tree / "app.py").write_text("print('three')\n")
    names = ("app.py", "deep/er/ünï *.bin", "gone.txt", "k*", "link")
    after = {name: (tree / name).read_bytes() for name in names[:2]}

    patch = lab.workplace.patch_of_paths(tree, base, names)
    assert lab.workplace.put_back(tree, base, names) == ()

    assert lab.workplace.status(tree) == ("kept.txt",)
    assert lab.workplace.changed_files(tree, base) == ()
    assert ((tree / "kept.txt").read_text(), (tree / "gone.txt").read_text()) == ("two", "to be deleted")
    assert (tree / "app.py").read_text() == "print('one')\n"
    assert not (tree / "deep").exists()
    assert not (tree / "link").is_symlink()
    assert (tree / ".ports.env").exists()
    (tmp_path / "patch").write_bytes(patch)
    git(tree, "apply", str(tmp_path / "patch"))
    assert {name: (tree / name).read_bytes() for name in names[:2]} == after
    assert ((tree / "link").readlink(), (tree / "gone.txt").exists()) == (Path("/etc"), False)


def test_a_repository_of_its_own_is_not_put_back(lab, tree):
    git(tree, "init", "-q", "clone")
    (tree / "clone" / "x").write_text("x")
    git(tree / "clone", "add", "x")
    git(tree / "clone", "commit", "-q", "-m", "Begin")
    base = lab.repository.commit_of("HEAD")
    names = lab.workplace.status(tree)

    assert names == ("clone/",)
    assert lab.workplace.put_back(tree, base, names) == ("clone/",)
    assert (tree / "clone" / "x").exists()


def test_a_rebase_moves_the_work_onto_the_new_base(lab, tree):
    (tree / "mine.txt").write_text("mine")
    lab.workplace.commit_all(tree, "mine")
    onto = commit_on_remote(lab, "theirs.txt", "theirs") and lab.repository.fetch("main")

    assert lab.workplace.rebase(tree, onto) == ()

    assert git(tree, "rev-parse", "HEAD~1") == onto
    assert (tree / "theirs.txt").exists()


@pytest.mark.parametrize("is_squashed", [False, True], ids=["commits", "squashed"])
def test_the_plan_is_taken_out_of_the_branch_once_and_all_other_work_stays(lab, tree, is_squashed):
    base = git(tree, "rev-parse", "HEAD").strip()
    (tree / "specs").mkdir()
    for name in ("specs/plan.md", "one.txt", "two.txt"):
        (tree / name).write_text(f"{name}\n")
        assert lab.workplace.commit_all(tree, f"Add {name}\n")
    (tree / "notes.txt").write_text("not committed\n")

    def trim() -> list[str]:
        lab.workplace.trim(tree, base, without="specs/plan.md", message="feat: All of it\n", is_squashed=is_squashed)
        return git(tree, "log", "--format=%s", f"{base}..HEAD").splitlines()

    subjects = trim()
    head = git(tree, "rev-parse", "HEAD")

    assert subjects == (
        ["feat: All of it"]
        if is_squashed
        else ["Remove specs/plan.md", "Add two.txt", "Add one.txt", "Add specs/plan.md"]
    )
    assert git(tree, "diff", "--name-only", base, "HEAD").split() == ["one.txt", "two.txt"]
    assert git(tree, "status", "--porcelain").split() == ["??", "notes.txt"]
    assert (trim(), git(tree, "rev-parse", "HEAD")) == (subjects, head)


def test_a_plan_that_is_all_the_work_or_belongs_to_the_base_stays(lab, tree):
    base = git(tree, "rev-parse", "HEAD").strip()
    (tree / "app.py").write_text("print('changed')\n")
    (tree / "plan.md").write_text("steps\n")
    first = lab.workplace.commit_all(tree, "Work\n")
    lab.workplace.trim(tree, base, without="app.py", message="x", is_squashed=False)
    assert git(tree, "rev-parse", "HEAD").strip() == first
    git(tree, "checkout", "-q", base, "--", "app.py")
    only = lab.workplace.commit_all(tree, "Only the plan\n")

    lab.workplace.trim(tree, base, without="plan.md", message="x", is_squashed=False)

    assert git(tree, "rev-parse", "HEAD").strip() == only


def test_a_conflict_is_named_and_nothing_is_changed(lab, tree):
    (tree / "app.py").write_text("print('mine')\n")
    mine = lab.workplace.commit_all(tree, "mine")
    commit_on_remote(lab, "app.py", "print('theirs')\n")

    assert lab.workplace.rebase(tree, lab.repository.fetch("main")) == ("app.py",)

    assert git(tree, "rev-parse", "HEAD") == mine
    assert lab.workplace.branch(tree) == "feature-issue-1-adw-1a2b3c4d-work"
    assert lab.workplace.status(tree) == ()


# --- locks of a git that is gone -------------------------------------------------------------------------------


def test_the_lock_stays_while_a_git_works_in_the_worktree(lab, tree, tmp_path):
    """
    Its lock is closed before git is done with it: so a git that works there is enough.
    """
    lock = lab.workplace.git_dir(tree) / "index.lock"
    lock.write_text("")
    proc = tmp_path / "proc"
    me = proc / str(os.getpid())
    for name, comm in ((str(os.getpid()), "python"), ("4711", "git")):
        (proc / name / "fd").mkdir(parents=True)
        (proc / name / "comm").write_text(f"{comm}\n")
        (proc / name / "cwd").symlink_to(tree)

    assert locks.clear(lock.parent, tree, proc=proc) == ()
    (proc / "4711" / "comm").write_text("bash\n")
    assert locks.clear(lock.parent, tree, proc=tmp_path / "no-proc") == ()
    me.rename(proc / "1")
    assert locks.clear(lock.parent, tree, proc=proc) == (), "a /proc without us is that of somebody else"
    (proc / "1").rename(me)
    assert locks.clear(lock.parent, tree, proc=proc) == (lock,)
