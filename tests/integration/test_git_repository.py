"""Real repositories: worktrees, branches and pushes are made once, undone once, and nobody else's work is touched."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.errors import GitError, GitUnreachable, NotOurs, RemoteChanged
from adws.adw_modules.git import git as git_module
from adws.adw_modules.git import locks, repository
from adws.adw_modules.git.git import GitCommands, check_branch
from adws.testing import FakeClock
from tests import forked, warm
from tests.integration.git_lab import Lab, commit_on_remote, git, hands_on, make_lab, persons_config

ADDER = [sys.executable, str(Path(__file__).with_name("worktree_adder.py"))]
NOBODY = 65534
ADW_ID = "1a2b3c4d"
BRANCH = "feature-issue-1-adw-1a2b3c4d-work"
REASON = f"adw:{ADW_ID}"


@pytest.fixture
def lab(tmp_path) -> Lab:
    return make_lab(tmp_path)


# --- the main checkout -----------------------------------------------------------------------------------------


def test_the_main_checkout_is_never_touched(lab):
    """
    HEAD, index, files, configuration and work in progress are byte for byte what they were.
    """
    before = lab.main_checkout()

    made = lab.add()
    (made.path / "new.txt").write_text("new")
    commit = lab.workplace.commit_all(made.path, "feat: add")
    commit_on_remote(lab, "theirs.txt", "theirs")
    lab.workplace.rebase(made.path, lab.repository.fetch("main"))
    tip = lab.repository.commit_of(BRANCH)
    lab.repository.push(made.path, BRANCH, expected=None)
    lab.repository.save_ref(f"refs/adw/salvage/{ADW_ID}", commit)
    lab.repository.delete_remote_branch(BRANCH, expected=tip)
    lab.repository.remove_worktree(made.path, reason=REASON)
    lab.repository.delete_branch(BRANCH, expected=tip)

    assert lab.main_checkout() == before


def test_work_is_refused_in_the_main_checkout_and_in_a_directory_inside_a_worktree(lab):
    made = lab.add()
    (made.path / "sub").mkdir()
    for place in (lab.main, made.path / "sub", lab.main.parent):
        for act in (lambda p: lab.workplace.commit_all(p, "x"), lab.workplace.status, lab.workplace.patch_of_changes):
            with pytest.raises(GitError, match="linked worktree"):
                act(place)


def test_a_place_that_is_no_repository_says_what_to_do(tmp_path):
    (tmp_path / "plain").mkdir()

    with pytest.raises(GitError, match=r"is in no git repository .*: run adw inside one, or set ADW_HOME"):
        hands_on(tmp_path / "plain").repository.worktrees()


# --- adding ----------------------------------------------------------------------------------------------------


def test_a_worktree_has_its_branch_its_lock_and_no_upstream(lab):
    start = lab.repository.fetch("main")

    made = lab.add()

    assert (made.path, made.branch, made.head) == (lab.trees / ADW_ID, BRANCH, start)
    assert (made.lock_reason, made.is_prunable) == (REASON, False)
    assert lab.repository.worktrees() == (made,)
    config = subprocess.run(["git", "config", f"branch.{BRANCH}.remote"], cwd=lab.main, check=False)
    assert config.returncode == 1, "a plain git push of the agent goes nowhere"


@pytest.mark.parametrize(
    "change",
    [
        lambda lab, tree: git(tree, "switch", "-q", "-c", "another"),
        lambda lab, tree: git(tree, "checkout", "-q", "--detach"),
        lambda lab, tree: git(lab.main, "worktree", "unlock", str(tree)),
        lambda lab, tree: (tree / ".git").write_text(f"gitdir: {lab.main / '.git'}\n"),
        lambda lab, tree: (tree / ".git").unlink(),
        lambda lab, tree: tree.rename(tree.with_name("moved")),
    ],
    ids=["another-branch", "no-branch", "unlocked", "linked-elsewhere", "no-link", "moved"],
)
def test_a_worktree_is_as_it_was_made_until_its_files_say_anything_else(lab, change):
    tree = lab.add().path
    assert lab.repository.is_as_made(tree, branch=BRANCH, reason=REASON)
    assert not lab.repository.is_as_made(tree, branch=BRANCH, reason="adw:another")

    change(lab, tree)

    assert not lab.repository.is_as_made(tree, branch=BRANCH, reason=REASON)


def test_a_branch_at_another_commit_is_refused_and_left(lab):
    theirs = commit_on_remote(lab, "a.txt", "a")
    old = lab.repository.commit_of("refs/heads/main")
    git(lab.main, "branch", "--no-track", BRANCH, old)

    with pytest.raises(GitError, match="is there already, at another commit"):
        lab.add()

    assert lab.repository.commit_of(BRANCH) == old != theirs
    assert lab.repository.worktrees() == ()


def test_a_directory_of_somebody_else_is_refused_and_left(lab):
    (lab.trees / ADW_ID).mkdir(parents=True)
    (lab.trees / ADW_ID / "theirs.txt").write_text("theirs")

    with pytest.raises(GitError, match="is there already"):
        lab.add()

    assert (lab.trees / ADW_ID / "theirs.txt").read_text() == "theirs"
    assert lab.repository.commit_of(BRANCH) is None


def test_a_failed_add_leaves_nothing(lab, tmp_path, monkeypatch):
    """
    The checkout fails half-way: a filter of the person's own that every file needs is broken.
    """
    persons_config(tmp_path, monkeypatch, '[filter "broken"]\n smudge = false\n required\n')
    before = dict(lab.repository.refs())
    (lab.main / ".git" / "info" / "attributes").write_text("*.py filter=broken\n")

    with pytest.raises(GitError, match="git reset failed"):
        lab.add()

    assert not (lab.trees / ADW_ID).exists()
    assert lab.repository.worktrees() == ()
    assert dict(lab.repository.refs()) == {**before, "refs/remotes/origin/main": lab.repository.fetch("main")}
    assert list((lab.main / ".git" / "worktrees").glob("*")) == []


def test_ten_processes_add_at_once_without_a_git_lock_error(lab):
    ids = [f"{number:08x}" for number in range(10)]
    running = warm.begin_together(*([*ADDER, str(lab.main), adw_id, "commit"] for adw_id in ids))
    ends = [process.communicate(timeout=120) for process in running]

    assert [(process.returncode, err) for process, (_, err) in zip(running, ends, strict=True)] == [(0, "")] * 10
    result = lab.repository.worktrees()
    assert sorted(entry.path.name for entry in result) == ids
    assert {entry.head for entry in result} == {out.strip() for out, _ in ends}
    assert len({entry.head for entry in result}) == 10


def test_an_add_that_is_killed_at_any_moment_leaves_nothing_that_cannot_be_undone(lab, rng, repeat):
    """
    The worker is killed, its git is not: the next worker waits for that git, then finds or removes what it made.
    """
    before, start = lab.main_checkout(), lab.repository.fetch("main")
    for _ in range(repeat(2, 60)):
        [worker] = warm.begin_together([*ADDER, str(lab.main), ADW_ID])
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=rng.uniform(0.0, 0.5))
        worker.kill()
        worker.communicate()

        lab.repository.remove_worktree(lab.trees / ADW_ID, reason=REASON)
        at = lab.repository.commit_of(f"refs/heads/{BRANCH}")
        lab.repository.delete_branch(BRANCH, expected=at or start)

        assert lab.repository.worktrees() == ()
        assert lab.repository.commit_of(f"refs/heads/{BRANCH}") is None
        assert list(lab.trees.glob("*")) == list((lab.main / ".git" / "worktrees").glob("*")) == []
    assert lab.main_checkout() == before


def test_the_lock_is_held_as_long_as_a_git_is_at_work_whose_adw_was_killed(lab, tmp_path, monkeypatch):
    """
    A checkout is in its middle (a filter waits) when the worker is killed.
    """
    fifo, up = tmp_path / "fifo", tmp_path / "up"
    os.mkfifo(fifo)
    slow = f"sh -c 'echo up > {up}; cat {fifo} > /dev/null; cat'"
    persons_config(tmp_path, monkeypatch, f'[filter "slow"]\n smudge = "{slow}"\n')
    (lab.main / ".git" / "info" / "attributes").write_text("*.py filter=slow\n")
    [worker] = warm.begin_together([*ADDER, str(lab.main), ADW_ID])
    while not up.exists():
        assert worker.poll() is None
    worker.kill()
    worker.communicate()

    clock = FakeClock()
    with (
        pytest.raises(GitError, match="another adw has held"),
        locks.holding(lab.repository.common_dir, clock=clock, patience_seconds=1.0),
    ):
        pass
    fifo.write_text("go on")

    assert lab.repository.remove_worktree(lab.trees / ADW_ID, reason=REASON) is True
    assert lab.repository.worktrees() == ()


# --- removing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["adw:other", "", "a person's"])
def test_a_worktree_of_somebody_else_is_left_alone(lab, reason):
    path = lab.trees / ADW_ID
    lock = ("--lock", "--reason", reason) if reason else ()
    git(lab.main, "worktree", "add", "-q", *lock, "-b", "theirs", str(path))

    with pytest.raises(NotOurs, match="is left alone"):
        lab.repository.remove_worktree(path, reason=REASON)

    assert (path / "app.py").exists()


def test_nothing_outside_our_trees_is_removed(lab, tmp_path):
    outside = tmp_path.resolve() / "elsewhere"
    git(lab.main, "worktree", "add", "-q", "--lock", "--reason", REASON, "-b", "theirs", str(outside))
    deeper = lab.trees / "a" / "b"

    for path in (outside, lab.main, deeper, lab.trees, lab.trees / ".." / "app.py", Path("trees") / ADW_ID):
        with pytest.raises(NotOurs):
            lab.repository.remove_worktree(path, reason=REASON)

    assert (outside / "app.py").exists()


def test_a_symbolic_link_is_not_followed(lab, tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").write_text("precious")
    lab.trees.mkdir()
    (lab.trees / ADW_ID).symlink_to(target)

    with pytest.raises(NotOurs, match="symbolic link"):
        lab.repository.remove_worktree(lab.trees / ADW_ID, reason=REASON)
    made = lab.add("5e6f7a8b", "other-branch")
    (made.path / "out").symlink_to(target)
    lab.repository.remove_worktree(made.path, reason="adw:5e6f7a8b")

    assert (target / "file").read_text() == "precious"


def test_a_worktree_that_became_a_repository_of_its_own_is_left_alone(lab):
    made = lab.add()
    (made.path / ".git").unlink()
    git(made.path, "init", "-q")

    with pytest.raises(NotOurs, match="a repository of its own now"):
        lab.repository.remove_worktree(made.path, reason=REASON)

    assert (made.path / "app.py").exists()


def test_what_was_made_read_only_is_removed_too(tmp_path):
    """
    Some package managers write-protect what they download; root would not notice, so nobody tries.
    """
    box = tmp_path / "box"
    folder = box / "tree" / "cache" / "mod"
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    folder.chmod(0o500)

    def as_nobody() -> None:
        os.chdir(box)  # what leads here need not be open to everybody
        if os.geteuid() == 0:
            for path in (box, *box.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        repository._remove_tree(Path("tree"))

    assert forked.is_well(forked.start(as_nobody))
    assert list(box.iterdir()) == []


def test_what_cannot_be_removed_stays_known_and_can_be_removed_later(lab, monkeypatch):
    """
    While git knows the worktree its owner is known: a removal that failed is no orphan.
    """
    made = lab.add()

    def refuse(path, *args, **options):
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(repository.shutil, "rmtree", refuse)
        with pytest.raises(GitError, match=r"cannot be removed: Device or resource busy .*; remove it by hand"):
            lab.repository.remove_worktree(made.path, reason=REASON)
    assert lab.repository.worktrees() == (made,)
    assert lab.repository.remove_worktree(made.path, reason=REASON) is True


def test_what_an_add_left_that_was_killed_at_its_start_is_removed(lab):
    """
    First comes a directory of git's own, then it says whose it is, then the worktree's directory.
    """
    lab.add("5e6f7a8b", "other-branch")
    admin = lab.main / ".git" / "worktrees" / ADW_ID
    admin.mkdir()
    (lab.trees / ADW_ID).mkdir()

    assert lab.repository.remove_worktree(lab.trees / ADW_ID, reason=REASON) is True

    assert not admin.exists()
    assert not (lab.trees / ADW_ID).exists()
    assert len(lab.repository.worktrees()) == 1


# --- branches --------------------------------------------------------------------------------------------------


def test_a_branch_is_deleted_only_where_it_was_left(lab):
    made = lab.add()
    with pytest.raises(NotOurs, match="is checked out in"):
        lab.repository.delete_branch(BRANCH, expected=made.head)
    (made.path / "theirs.txt").write_text("theirs")
    moved = lab.workplace.commit_all(made.path, "theirs")
    lab.repository.remove_worktree(made.path, reason=REASON)

    with pytest.raises(NotOurs, match="moved from"):
        lab.repository.delete_branch(BRANCH, expected=made.head)
    assert lab.repository.commit_of(BRANCH) == moved
    assert lab.repository.delete_branch(BRANCH, expected=moved) is True
    assert lab.repository.delete_branch(BRANCH, expected=moved) is False


def test_a_salvaged_commit_survives_its_branch(lab):
    made = lab.add()
    (made.path / "work.txt").write_text("work")
    commit = lab.workplace.commit_all(made.path, "work")
    lab.repository.save_ref(f"refs/adw/salvage/{ADW_ID}", commit)
    lab.repository.remove_worktree(made.path, reason=REASON)
    lab.repository.delete_branch(BRANCH, expected=commit)
    git(lab.main, "-c", "gc.pruneExpire=now", "-c", "gc.reflogExpire=now", "gc", "-q", "--prune=now")

    assert lab.repository.commit_of(f"refs/adw/salvage/{ADW_ID}") == commit
    with pytest.raises(GitError, match="is not below refs/adw/"):
        lab.repository.save_ref("refs/heads/main", commit)


@pytest.mark.parametrize(
    "name",
    ["--upload-pack=x", "-b", "a..b", "a b", "a\nb", "x.lock", "@{u}", "a:b", "", "@", "/a", "a/", "a~1", "x" * 300],
)
def test_a_name_that_git_would_read_as_something_else_never_reaches_it(lab, name):
    for call in (
        lambda: lab.repository.add_worktree(lab.trees / ADW_ID, branch=name, start="HEAD", reason=REASON),
        lambda: lab.repository.delete_branch(name, expected="0" * 40),
        lambda: lab.repository.fetch(name),
        lambda: lab.repository.push(lab.trees / ADW_ID, name, expected=None),
        lambda: lab.repository.delete_remote_branch(name, expected="0" * 40),
    ):
        with pytest.raises(GitError, match="cannot be the name of a branch"):
            call()
    assert lab.repository.commit_of(name if name.startswith("-") else f"--{name}") is None


@given(st.text(min_size=1, max_size=30))
def test_what_passes_as_a_branch_passes_with_git(name):
    """
    The rule may be stricter than git's own, never laxer.
    """
    try:
        check_branch(name)
    except GitError:
        return
    done = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, check=False)

    assert done.returncode == 0, name


# --- the remote ------------------------------------------------------------------------------------------------


def test_a_fetch_returns_what_the_remote_has_now(lab):
    theirs = commit_on_remote(lab, "a.txt", "a")

    assert lab.repository.default_branch() == "main"
    assert lab.repository.fetch("main") == theirs == lab.repository.remote_commit("main")
    with pytest.raises(GitError, match="the remote origin has no branch nothing"):
        lab.repository.fetch("nothing")


def test_a_fetch_gets_past_the_lock_that_a_dead_fetch_left(lab):
    lab.repository.fetch("main")
    theirs = commit_on_remote(lab, "a.txt", "a")
    lock = lab.main / ".git/refs/remotes/origin/main.lock"
    lock.touch()

    assert lab.repository.fetch("main") == theirs
    assert not lock.exists()


def while_one_is_made(lab, *, commondir: str) -> tuple[Path, repository.Repository]:
    """Return the folder of a worktree that somebody makes, and a repository that sees its end when it waits."""
    half = lab.main / ".git" / "worktrees" / "half"
    half.mkdir(parents=True)
    (half / "HEAD").write_text(f"{'0' * 40}\n")
    (half / "gitdir").write_text(f"{lab.trees / 'half' / '.git'}\n")
    (half / "commondir").write_text(commondir)
    lock = locks.holding(lab.main / ".git", clock=FakeClock())

    class UntilItIsOver(FakeClock):
        def sleep(self, seconds: float) -> None:
            shutil.rmtree(half)
            lock.__exit__(None, None, None)

    lock.__enter__()

    return half, repository.Repository(GitCommands(lab.main), trees=lab.trees, clock=UntilItIsOver())


def test_a_fetch_is_not_disturbed_by_a_worktree_in_the_making(lab):
    """
    The head of a new worktree is zeros at first; a fetch that read them would find no such commit.
    """
    theirs = commit_on_remote(lab, "a.txt", "a")
    half, result = while_one_is_made(lab, commondir="../..\n")

    assert result.fetch("main") == theirs
    assert half.exists()


def test_a_list_that_met_a_worktree_in_the_making_is_read_again_when_that_is_over(lab):
    """
    The file that leads from a new worktree to its repository is empty at first; git fails over it.
    """
    half, result = while_one_is_made(lab, commondir="")

    assert result.worktrees() == ()
    assert not half.exists()


def test_the_default_branch_is_the_remotes_own(lab):
    git(lab.remote, "branch", "trunk", "main")
    git(lab.remote, "symbolic-ref", "HEAD", "refs/heads/trunk")

    assert lab.repository.default_branch() == "trunk"
    assert lab.repository.fetch_default() == ("trunk", lab.repository.remote_commit("trunk"))


def test_without_a_remote_the_main_checkout_decides(home):
    repository = hands_on(home).repository

    assert repository.default_branch() == "main"
    assert repository.fetch("main") == repository.commit_of("HEAD")
    assert repository.remote_commit("main") is None
    assert repository.delete_remote_branch("gone", expected="0" * 40) is False
    with pytest.raises(GitError, match="there is no remote origin"):
        repository.push(home, "main", expected=None)


def test_a_remote_that_is_gone_is_told_apart_from_a_refusal(lab):
    made = lab.add()
    lab.remote.rename(lab.remote.with_name("moved.git"))

    with pytest.raises(GitUnreachable, match=r"the remote file://.*remote\.git cannot be reached"):
        lab.repository.fetch("main")
    with pytest.raises(GitUnreachable, match="does not appear to be a git repository"):
        lab.repository.push(made.path, BRANCH, expected=None)
    with pytest.raises(GitUnreachable):
        lab.repository.fetch_default()
    assert lab.repository.default_branch() == "main", "as last known"


def test_an_address_that_changes_between_two_calls_is_noticed(lab):
    """
    What git said of a configuration is used again for that very configuration only.
    """
    recorded = lab.repository.fetch("main")
    git(lab.main, "config", "remote.origin.url", "file:///elsewhere")
    with pytest.raises(RemoteChanged, match="the remote origin is file:///elsewhere"):
        lab.repository.fetch("main")
    git(lab.main, "config", "remote.origin.url", f"file://{lab.remote}")

    assert lab.repository.fetch("main") == recorded


def test_a_push_needs_the_remote_to_be_where_it_was_left(lab):
    made = lab.add()
    (made.path / "a.txt").write_text("a")
    first = lab.workplace.commit_all(made.path, "first")
    assert lab.repository.push(made.path, BRANCH, expected=None) == ""
    assert lab.repository.push(made.path, BRANCH, expected=None) == "", "the answer was lost"
    theirs = commit_on_remote(lab, "b.txt", "b", branch=BRANCH)
    (made.path / "c.txt").write_text("c")
    lab.workplace.commit_all(made.path, "second")

    assert lab.repository.push(made.path, BRANCH, expected=first) == "stale"
    assert lab.repository.push(made.path, BRANCH, expected=None) == "stale"
    assert lab.repository.remote_commit(BRANCH) == theirs
    with pytest.raises(NotOurs, match="moved to"):
        lab.repository.delete_remote_branch(BRANCH, expected=first)
    assert lab.repository.push(made.path, BRANCH, expected=theirs) == "", "a person said so"


def test_a_remote_branch_is_deleted_once_and_the_default_one_never(lab):
    made = lab.add()
    lab.repository.push(made.path, BRANCH, expected=None)

    assert lab.repository.delete_remote_branch(BRANCH, expected=made.head) is True
    assert lab.repository.delete_remote_branch(BRANCH, expected=made.head) is False
    with pytest.raises(NotOurs, match="is the default branch"):
        lab.repository.delete_remote_branch("main", expected=made.head)
    assert lab.repository.remote_commit("main") is not None


def test_a_partial_clone_gets_what_it_left_out_before_it_is_needed(lab, tmp_path):
    git(lab.remote, "config", "uploadpack.allowFilter", "true")
    git(lab.remote, "config", "uploadpack.allowAnySHA1InWant", "true")
    main = tmp_path / "partial"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{lab.remote}", str(main))
    partial = hands_on(main, lab.remote)

    made = partial.add()
    assert (made.path / "app.py").read_text() == "print('one')\n"

    (made.path / "b.txt").write_text("b")
    partial.workplace.commit_all(made.path, "work")
    commit_on_remote(lab, "app.py", "print('two')\n")
    assert partial.workplace.rebase(made.path, partial.repository.fetch("main")) == ()
    assert (made.path / "app.py").read_text() == "print('two')\n"
    assert partial.repository.push(made.path, BRANCH, expected=None) == ""
    assert git(main, "fsck") == ""


def test_the_sparse_checkout_of_the_repository_is_kept(lab):
    git(lab.main, "commit", "-q", "-m", "Work in progress", "-a")
    for name in ("wanted", "unwanted"):
        (lab.main / name).mkdir()
        (lab.main / name / "a.txt").write_text(name)
    git(lab.main, "add", "wanted", "unwanted")
    git(lab.main, "commit", "-q", "-m", "Two folders")
    git(lab.main, "push", "-q", "origin", "HEAD:main")
    git(lab.main, "sparse-checkout", "set", "wanted")

    made = lab.add()

    assert (made.path / "wanted").is_dir()
    assert not (made.path / "unwanted").exists()
    (made.path / "wanted" / "b.txt").write_text("b")
    lab.workplace.commit_all(made.path, "work")
    assert git(made.path, "show", "--name-only", "--format=") == "wanted/b.txt"


# --- surroundings ----------------------------------------------------------------------------------------------


def test_no_hook_of_the_repository_runs(lab, tmp_path):
    canary = tmp_path / "canary"
    hooks = lab.main / ".git" / "hooks"
    for name in ("post-checkout", "pre-commit", "commit-msg", "post-commit", "pre-push", "pre-rebase", "post-rewrite"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >> {canary}\nexit 1\n")
        (hooks / name).chmod(0o755)
    made = lab.add()
    (made.path / "a.txt").write_text("a")
    lab.workplace.commit_all(made.path, "work")
    lab.workplace.rebase(made.path, commit_on_remote(lab, "b.txt", "b") and lab.repository.fetch("main"))

    assert lab.repository.push(made.path, BRANCH, expected=None) == ""
    assert not canary.exists()


def test_variables_of_a_hook_lead_git_nowhere_else(lab, tmp_path, monkeypatch):
    """
    What a git hook starts inherits GIT_DIR and GIT_INDEX_FILE of another repository.
    """
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "stolen-index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "Mallory")
    made = lab.add()
    (made.path / "a.txt").write_text("a")
    lab.workplace.commit_all(made.path, "work")

    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_CONFIG_COUNT"):
        monkeypatch.delenv(name)
    assert git(made.path, "log", "-1", "--format=%an <%ae>") == "adw tests <tests@adw.invalid>"
    assert not (tmp_path / "stolen-index").exists()


def test_the_persons_configuration_decides_nothing_but_who_commits(lab, tmp_path, monkeypatch):
    config = tmp_path / "global"
    config.write_text(
        "[user]\n name = A Person\n email = person@example.invalid\n[commit]\n gpgSign = true\n"
        "[core]\n autocrlf = true\n[diff]\n external = false\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    made = lab.add()
    (made.path / "a.txt").write_text("a\n")
    lab.workplace.commit_all(made.path, "work")

    assert git(made.path, "log", "-1", "--format=%an") == "A Person"
    assert "+a" in lab.workplace.diff(made.path, made.head)


def test_without_a_person_adw_commits_and_an_author_that_was_set_wins(lab, monkeypatch):
    made = lab.add()
    (made.path / "a.txt").write_text("a\n")
    robot = hands_on(lab.main, author="A Robot <robot@example.invalid>")
    robot.workplace.commit_all(made.path, "work")
    assert git(made.path, "log", "-1", "--format=%an <%ae> %cn") == "A Robot <robot@example.invalid> A Robot"

    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    (made.path / "b.txt").write_text("b\n")
    hands_on(lab.main).workplace.commit_all(made.path, "work")
    assert git(made.path, "log", "-1", "--format=%an <%ae>") == "adw <adw@localhost>"


def test_a_command_that_does_not_end_is_killed(lab, monkeypatch, tmp_path):
    """
    Also where nothing is installed that lists processes.
    """
    tools, slow = tmp_path / "tools", tmp_path / "slow"
    tools.mkdir()
    for name in ("git", "env", "false", "sh", "sleep"):
        (tools / name).symlink_to(shutil.which(name))
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))

    with pytest.raises(GitError, match=r"git slow did not end within 1 s and was killed"):
        GitCommands(lab.main).run("-c", f"alias.slow=!{slow}", "slow", seconds=1.0)


def test_the_token_is_for_the_host_it_belongs_to(lab, tmp_path, monkeypatch):
    """
    It is in a file without a name, and neither on the command line nor in the environment.
    """
    persons_config(tmp_path, monkeypatch, '[url "git@github.com:"]\n insteadOf = https://github.com/by-ssh/\n')
    commands = GitCommands(lab.main, private=tmp_path / "private", token="ghp_secret")
    place = commands._place()

    with commands._credentials("https://github.com/acme/widget", place) as (options, [fd]):
        assert options == ("-c", f"include.path=/proc/self/fd/{fd}")
        text = os.pread(fd, 4096, 0).decode()
    assert '[http "https://github.com/"]\n\textraHeader = "Authorization: Basic' in text
    for url in (
        "https://gitlab.com/a/b",
        "http://github.com/a/b",
        "git@github.com:a/b",
        "https://github.com.evil.org/x",
        "https://github.com/by-ssh/x",
    ):
        with commands._credentials(url, place) as given:
            assert given == ((), ()), url


def test_what_the_repository_says_about_the_way_to_its_remote_is_named_when_there_is_no_way(lab):
    git(lab.main, "config", "core.sshCommand", "ssh -i deploy-key")
    lab.remote.rename(lab.remote.with_name("moved.git"))

    with pytest.raises(GitUnreachable, match=r"repository's own configuration says \(core\.sshcommand\): set it with"):
        lab.repository.fetch("main")


def test_a_reason_shows_no_password():
    answer = git_module.Answer(status=128, out=b"", err="fatal: unable to access 'https://me:secret@host/x'\n")

    assert answer.reason == "unable to access 'https://***@host/x'"


@pytest.mark.parametrize("prefix", ["1a2b3c4", "1a2b3c4d5"])
def test_a_similar_name_is_another_worktree(lab, prefix):
    made = lab.add()

    assert lab.repository.remove_worktree(lab.trees / prefix, reason=f"adw:{prefix}") is False
    assert made.path.is_dir()


def test_a_directory_that_was_deleted_by_hand_is_forgotten_and_others_are_not(lab):
    made, other = lab.add(), lab.add("5e6f7a8b", "feature-issue-2-adw-5e6f7a8b-work")
    for entry in (made, other):
        subprocess.run(["rm", "-rf", str(entry.path)], check=True)
    assert [entry.is_prunable for entry in lab.repository.worktrees()] == [True, True]

    assert lab.repository.remove_worktree(made.path, reason=REASON) is True

    assert [entry.path for entry in lab.repository.worktrees()] == [other.path]


def test_a_clone_without_its_history_can_push(lab, tmp_path):
    commit_on_remote(lab, "a.txt", "a")
    main = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{lab.remote}", str(main))
    shallow = hands_on(main, lab.remote)
    made = shallow.add()
    (made.path / "b.txt").write_text("b")
    shallow.workplace.commit_all(made.path, "work")
    commit_on_remote(lab, "c.txt", "c")

    assert shallow.workplace.rebase(made.path, shallow.repository.fetch("main")) == ()
    assert shallow.repository.push(made.path, BRANCH, expected=None) == ""


def test_a_repository_of_longer_hashes_is_worked_in_like_any_other(tmp_path):
    main, remote = tmp_path / "main", tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", "--object-format=sha256", "--initial-branch=main", str(remote))
    git(tmp_path, "init", "-q", "--object-format=sha256", "--initial-branch=main", str(main))
    git(main, "commit", "-q", "--allow-empty", "-m", "Begin")
    git(main, "remote", "add", "origin", str(remote))
    git(main, "push", "-q", "origin", "main")
    lab = hands_on(main, remote)
    made = lab.add()
    (made.path / "b.txt").write_text("b")

    assert len(lab.workplace.commit_all(made.path, "work")) == 64
    assert lab.repository.push(made.path, BRANCH, expected=None) == ""


def test_refs_that_are_packed_are_deleted_all_the_same(lab):
    made = lab.add()
    git(lab.main, "pack-refs", "--all")
    lab.repository.remove_worktree(made.path, reason=REASON)

    assert lab.repository.delete_branch(BRANCH, expected=made.head) is True
    assert BRANCH not in git(lab.main, "for-each-ref")
