"""What is put into a new worktree that git does not have, and how large it is then."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import SetupFailed
from adws.adw_modules.git.worktree import GitWorkplace
from adws.adw_modules.resources.ports import PortPair
from adws.adw_modules.resources.quotas import size_of
from tests.integration.git_lab import commit_on_remote, git, make_lab

PORTS = PortPair(backend=9101, frontend=9201)


@pytest.fixture
def lab(tmp_path):
    return make_lab(tmp_path)


def make(lab, **options) -> GitWorkplace:
    return GitWorkplace(lab.repository, **options)


# --- files of the person ---------------------------------------------------------------------------------------


def test_only_ignored_files_are_copied(lab):
    (lab.main / ".env").write_text("SECRET=1")
    (lab.main / ".env").chmod(0o600)
    (lab.main / ".mcp.json").write_text("{}")
    worktrees = make(lab, include=(".env", ".mcp.json", "missing.env"))

    tree = lab.add().path

    copied, notices = worktrees.fill(tree)

    assert copied == (".env",)
    assert (tree / ".env").read_text() == "SECRET=1"
    assert (tree / ".env").stat().st_mode & 0o777 == 0o600
    assert not (tree / ".mcp.json").exists()
    assert notices == (".mcp.json is not copied into the worktree: git does not ignore it and could commit it",)
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

    tree = lab.add().path

    copied, notices = worktrees.fill(tree)

    assert copied == ()
    assert not (tree / ".env").exists()
    assert list(outside.iterdir()) == []
    assert [notice.partition(": ")[2] for notice in notices] == [
        "it is not a regular file of the main checkout",
        "a link in the worktree leads out of it",
    ]


def test_ports_are_written_for_the_tools_that_read_them(lab):
    worktrees = make(lab)
    tree = lab.add().path

    assert worktrees.fill(tree, ports=PORTS) == ((), ())

    assert (tree / ".ports.env").read_text() == (
        "BACKEND_PORT=9101\nFRONTEND_PORT=9201\nVITE_BACKEND_URL=http://localhost:9101\n"
    )
    (tree / ".gitignore").write_text("")
    [notice] = worktrees.fill(tree, ports=PORTS)[1]
    assert ".ports.env is not ignored by git" in notice


# --- set-up ----------------------------------------------------------------------------------------------------


def test_a_set_up_command_that_fails_is_named_and_the_rest_does_not_run(lab):
    worktrees = make(lab, setup=(("npm", "ci"), ("uv", "sync")))
    ran = []

    def run(_command, number):
        ran.append(number)
        return "exit 1, see attempt.log"

    with pytest.raises(
        SetupFailed, match=r"'npm ci' of the worktree failed: exit 1, see attempt.log; see worktree.setup"
    ):
        worktrees.fill(lab.add().path, run=run)
    assert ran == [1]


def test_a_size_is_what_the_disk_gives_for_it(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "a" / "twin").hardlink_to(tmp_path / "a" / "file")
    (tmp_path / "a" / "link").symlink_to("/usr")

    assert 100_000 <= size_of(tmp_path / "a") < 120_000
    assert size_of(tmp_path / "nothing") == 0
