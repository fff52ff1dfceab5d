"""A workflow's worktree: what it starts from, what is put into it, and that it still is what was recorded."""

from __future__ import annotations

import subprocess

import pytest

from adws.adw_modules.errors import GitError, GitUnreachable, SetupFailed
from adws.adw_modules.interfaces_resources import PortPair
from adws.adw_modules.resources.sizes import size_of
from adws.adw_modules.resources.worktrees import Worktrees
from tests.integration.git_lab import commit_on_remote, git, make_lab

ADW_ID = "1a2b3c4d"
PORTS = PortPair(backend=9101, frontend=9201)


@pytest.fixture
def lab(tmp_path):
    return make_lab(tmp_path)


def make(lab, **options) -> Worktrees:
    return Worktrees(lab.repository, lab.workplace, trees=lab.trees, **options)


def plan_of(worktrees):
    return worktrees.plan(ADW_ID, title="Add the login button", issue_number=7, issue_class="/bug")


def test_it_starts_from_the_freshly_fetched_default_branch(lab):
    theirs = commit_on_remote(lab, "a.txt", "a")

    plan = plan_of(make(lab))
    made = make(lab).prepare(plan)

    assert (plan.base, plan.start, plan.notices) == ("main", theirs, ())
    assert plan.branch == "bug-issue-7-adw-1a2b3c4d-add-login-button"
    assert (made.worktree.path, made.worktree.head) == (lab.trees / ADW_ID, theirs)


def test_offline_it_starts_from_what_was_last_known_and_says_so(lab):
    known = lab.repository.fetch("main")
    lab.remote.rename(lab.remote.with_name("moved.git"))

    plan = plan_of(make(lab))

    assert plan.start == known
    assert "cannot be reached" in plan.notices[0]
    assert f"as it was last known, {known[:12]}" in plan.notices[0]


def test_offline_and_nothing_known_is_an_error(lab):
    lab.remote.rename(lab.remote.with_name("moved.git"))
    git(lab.main, "update-ref", "-d", "refs/remotes/origin/main")
    git(lab.main, "checkout", "-q", "--detach")
    git(lab.main, "branch", "-q", "-D", "main")

    with pytest.raises(GitUnreachable):
        plan_of(make(lab))


# --- files of the person ---------------------------------------------------------------------------------------


def test_only_ignored_files_are_copied(lab):
    (lab.main / ".env").write_text("SECRET=1")
    (lab.main / ".env").chmod(0o600)
    (lab.main / ".mcp.json").write_text("{}")
    worktrees = make(lab, include=(".env", ".mcp.json", "missing.env"))

    done = worktrees.prepare(plan_of(worktrees))

    tree = done.worktree.path
    assert done.copied == (".env",)
    assert (tree / ".env").read_text() == "SECRET=1"
    assert (tree / ".env").stat().st_mode & 0o777 == 0o600
    assert not (tree / ".mcp.json").exists()
    assert done.notices == (".mcp.json is not copied into the worktree: git does not ignore it and could commit it",)
    assert lab.workplace.status(tree) == ()


def test_no_link_is_followed_in_either_direction(lab, tmp_path):
    """
    Neither a link in the main checkout nor one that the repository itself brings may lead out of it.
    """
    secret, outside = tmp_path / "secret", tmp_path / "outside"
    secret.write_text("secret")
    outside.mkdir()
    other = tmp_path.resolve() / "other"
    commit_on_remote(lab, "x.txt", "x")
    (other / "app").symlink_to(outside)
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "A link")
    git(other, "push", "-q", "origin", "main")
    (lab.main / ".env").symlink_to(secret)
    (lab.main / "app").mkdir()
    (lab.main / "app" / ".env").write_text("APP=1")
    worktrees = make(lab, include=(".env", "app/.env"))

    done = worktrees.prepare(plan_of(worktrees))

    assert done.copied == ()
    assert not (done.worktree.path / ".env").exists()
    assert list(outside.iterdir()) == []
    assert [notice.partition(": ")[2] for notice in done.notices] == [
        "it is not a regular file of the main checkout",
        "a link in the worktree leads out of it",
    ]


def test_ports_are_written_for_the_tools_that_read_them(lab):
    worktrees = make(lab)
    tree = worktrees.prepare(plan_of(worktrees), ports=PORTS).worktree.path

    assert (tree / ".ports.env").read_text() == (
        "BACKEND_PORT=9101\nFRONTEND_PORT=9201\nVITE_BACKEND_URL=http://localhost:9101\n"
    )
    assert worktrees.write_ports(tree, PORTS) == ()
    (tree / ".gitignore").write_text("")
    assert ".ports.env is not ignored by git" in worktrees.write_ports(tree, PORTS)[0]


# --- set-up ----------------------------------------------------------------------------------------------------


def test_set_up_commands_run_in_order_inside_the_worktree(lab):
    ran = []

    def run(argv, *, cwd, number):
        ran.append((number, tuple(argv), cwd, (cwd / ".ports.env").exists()))
        return ""

    worktrees = make(lab, setup=(("npm", "ci"), ("uv", "sync")))
    tree = worktrees.prepare(plan_of(worktrees), ports=PORTS, run=run).worktree.path

    assert ran == [(1, ("npm", "ci"), tree, True), (2, ("uv", "sync"), tree, True)]


def test_a_set_up_command_that_fails_is_named_and_the_rest_does_not_run(lab):
    worktrees = make(lab, setup=(("npm", "ci"), ("uv", "sync")))
    ran = []

    def run(argv, *, cwd, number):
        ran.append(number)
        return "exit 1, see attempt.log"

    with pytest.raises(
        SetupFailed, match=r"'npm ci' of the worktree failed: exit 1, see attempt.log; see worktree.setup"
    ):
        worktrees.prepare(plan_of(worktrees), run=run)
    assert ran == [1]


# --- going on --------------------------------------------------------------------------------------------------


def test_a_worktree_that_is_as_recorded_is_found(lab):
    worktrees = make(lab)
    plan = plan_of(worktrees)
    made = worktrees.prepare(plan).worktree

    assert worktrees.check(ADW_ID, branch=plan.branch, commits=[plan.start]) == made


def test_going_on_is_refused_where_something_is_not_as_recorded(lab):
    worktrees = make(lab)
    plan = plan_of(worktrees)
    with pytest.raises(GitError, match="is gone"):
        worktrees.check(ADW_ID, branch=plan.branch)
    tree = worktrees.prepare(plan).worktree.path

    with pytest.raises(GitError, match=r"is on bug-issue-7-.*, not on other"):
        worktrees.check(ADW_ID, branch="other")
    with pytest.raises(GitError, match="is lost"):
        worktrees.check(ADW_ID, branch=plan.branch, commits=["0" * 40])
    git(lab.main, "worktree", "unlock", str(tree))
    with pytest.raises(GitError, match="it is not that of"):
        worktrees.check(ADW_ID, branch=plan.branch)
    subprocess.run(["rm", "-rf", str(tree)], check=True)
    with pytest.raises(GitError, match="is gone"):
        worktrees.check(ADW_ID, branch=plan.branch)


def test_a_plain_directory_is_no_worktree(lab):
    """
    A directory inside the main checkout answers git with the main checkout's own facts.
    """
    (lab.trees / ADW_ID).mkdir(parents=True)

    with pytest.raises(GitError, match="is gone"):
        make(lab).check(ADW_ID, branch="main")
    with pytest.raises(GitError, match="no linked worktree"):
        lab.workplace.git_dir(lab.trees / ADW_ID)


def test_a_size_is_what_the_disk_gives_for_it(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "a" / "twin").hardlink_to(tmp_path / "a" / "file")
    (tmp_path / "a" / "link").symlink_to("/usr")

    assert 100_000 <= size_of(tmp_path / "a") < 120_000
    assert size_of(tmp_path / "nothing") == 0
