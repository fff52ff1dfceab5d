"""What `adw init` and `adw doctor` ask git: who commits, which remotes there are, what is ignored, what is left."""

from __future__ import annotations

import shutil

import pytest

from adws.adw_modules.errors import GitError
from adws.adw_modules.git.git import GitCommands
from tests.integration.git_lab import git, make_lab


@pytest.fixture
def lab(tmp_path):
    return make_lab(tmp_path)


def test_a_remote_that_answers_has_no_problem_and_one_that_is_gone_says_why(lab):
    assert lab.repository.remote_problem(seconds=30.0) == ""
    lab.repository.fetch("main")
    shutil.rmtree(lab.remote)
    assert "cannot be reached" in lab.repository.remote_problem(seconds=30.0)
    git(lab.main, "remote", "remove", "origin")
    assert "is gone from the repository's configuration" in lab.repository.remote_problem(seconds=30.0)
    lab.repository.commands.record_remote()
    assert lab.repository.remote_problem(seconds=30.0) is None


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
