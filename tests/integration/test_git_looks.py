"""What `adw init` and `adw doctor` ask git: who commits, which remotes there are, what is ignored, what is left."""

from __future__ import annotations

import shutil

import pytest

from adws.adw_modules.errors import GitError
from adws.adw_modules.git.git import GitCommands, numbers_of
from tests.integration.git_lab import git, make_lab


@pytest.fixture
def lab(tmp_path):
    return make_lab(tmp_path)


def test_git_says_its_version(lab):
    said = GitCommands(lab.main).version()

    assert said.startswith("git version ")
    assert numbers_of(said) >= (2, 36)


@pytest.mark.parametrize(
    ("said", "numbers"),
    [("git version 2.43.0", (2, 43)), ("git version 2.39.5 (Apple Git-154)", (2, 39)), ("", (0, 0))],
)
def test_numbers_are_read_from_a_version(said, numbers):
    assert numbers_of(said) == numbers


def test_who_commits_is_told_by_the_settings_then_by_git(lab, monkeypatch):
    assert GitCommands(lab.main, author="Ada <ada@example.com>").author() == "Ada <ada@example.com>"
    assert GitCommands(lab.main).author() == "adw tests <tests@adw.invalid>"
    monkeypatch.setenv("HOME", str(lab.main))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(lab.main))
    assert GitCommands(lab.main).author() == ""


def test_every_remote_is_told_with_its_address(lab):
    git(lab.main, "remote", "add", "fork", "git@github.com:acme/shop.git")

    assert lab.repository.remotes()["fork"] == "git@github.com:acme/shop.git"
    assert set(lab.repository.remotes()) == {"origin", "fork"}


def test_the_default_branch_is_known_without_asking_the_remote(lab):
    shutil.rmtree(lab.remote)

    assert lab.repository.default_branch_known() == "main"


def test_a_remote_that_answers_has_no_problem_and_one_that_is_gone_says_why(lab):
    assert lab.repository.remote_problem(seconds=30.0) == ""
    lab.repository.fetch("main")
    shutil.rmtree(lab.remote)
    assert "cannot be reached" in lab.repository.remote_problem(seconds=30.0)
    git(lab.main, "remote", "remove", "origin")
    assert "is gone from the repository's configuration" in lab.repository.remote_problem(seconds=30.0)
    lab.repository.commands.record_remote()
    assert lab.repository.remote_problem(seconds=30.0) is None


def test_what_git_ignores_is_told_whether_it_is_there_or_not(lab):
    (lab.main / ".gitignore").write_text("/state/\n")

    assert lab.repository.is_ignored("state/x")
    assert not lab.repository.is_ignored("statement/x")


def test_a_lock_that_a_killed_git_left_is_found_and_left_there(lab):
    lock = lab.main / ".git/index.lock"
    assert lab.repository.dead_locks() == ()
    lock.touch()

    assert lab.repository.dead_locks() == (lock,)
    assert lock.exists()
    with lock.open():
        assert lab.repository.dead_locks() == (), "somebody has it open"


def test_without_git_the_version_is_an_error_in_one_sentence(lab, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(GitError, match="cannot be found: install it"):
        GitCommands(lab.main).version()
